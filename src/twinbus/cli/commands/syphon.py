"""`twinbus syphon`: drains the backlog, once or continuously."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import signal
import socket
import sys
import time
import uuid
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console

from twinbus.ledger.durable_rows import for_syphon
from twinbus.pairing.options import SyphonOptions
from twinbus.pairing.pairing_errors import NamespacesSwappedError
from twinbus.servicebus.entity_paths import backlog_path
from twinbus.syphon import AmqpError
from twinbus.syphon.drain_report import DrainReport
from twinbus.syphon.host import SyphonHost
from twinbus.syphon.terms import MAX_LOCK_SECONDS, Terms

from ..event_loop import run_loop, tune_garbage_collector
from ..exits import BAD_USAGE, fail
from ..failures import exit_on_error
from ..logs import LEVELS, FormatOption, LogFormat, configure_logs
from ..options.namespaces import (
    NoAnswerError,
    Pair,
    PrimaryNameOption,
    PrimaryOption,
    ProxyOption,
    SecondaryOption,
    Transport,
    TransportOption,
)
from ..options.places import check_ledger
from ..options.spark_options import MasterOption, MemoryOption, RemoteOption
from ..text import counted, missing_queues_text
from .access_check import find_access_problem, missing_text
from .spark_syphon import SparkSyphon, spark_settings

if TYPE_CHECKING:  # it needs libraries of the extra `ledger`
    from twinbus.ledger.writer import LedgerWriter

logger = logging.getLogger("twinbus.syphon")

PROGRESS_EVERY = 1.0  # seconds
PROGRESS_EVERY_WITHOUT_TERMINAL = 10.0
ACCESS_RETRY = 10.0  # seconds between checks for a corrected key, or for backlog queues that a client creates


UntilEmptyOption = Annotated[bool, typer.Option("--until-empty", help="Exit when nothing is left that can be moved.")]
RateOption = Annotated[float | None, typer.Option(help="Most messages per second. Default: no limit.")]
DestinationOption = Annotated[
    list[str] | None,
    typer.Option(metavar="PATH", help="Move only messages for this queue or topic (repeatable)."),
]
QueuesOption = Annotated[int, typer.Option(min=1, help="Number of backlog queues.")]
OrderOption = Annotated[str | None, typer.Option(help="session: keep the order within each session.")]
TtlOption = Annotated[
    str,
    typer.Option(help="Time to live of moved messages. remaining: minus the time in the backlog; restart: in full."),
]
LockOption = Annotated[
    float | None,
    typer.Option(
        min=1,
        max=MAX_LOCK_SECONDS,
        metavar="SECONDS",
        help="Lock duration of the backlog queues, if known.",
        show_default=False,
    ),
]
LedgerOption = Annotated[
    str | None,
    typer.Option(
        envvar="TWINBUS_LEDGER", metavar="PATH_OR_URL", help="Record the moves in this ledger: a folder or URL."
    ),
]
LedgerModeOption = Annotated[
    str,
    typer.Option(
        help="If the ledger cannot be written: required waits and completes no message; best_effort drains without it."
    ),
]
SparkOption = Annotated[bool, typer.Option("--spark", help="Drain with Spark tasks, on this machine or a cluster.")]
WatchOption = Annotated[bool, typer.Option("--watch", help="With --spark: run until Ctrl-C, as without --until-empty.")]
PumpsOption = Annotated[
    int | None, typer.Option(min=1, help="With --spark: largest number of parallel pumps.", show_default="10")
]
SliceOption = Annotated[
    float | None,
    typer.Option("--slice", metavar="SECONDS", help="With --spark: time between two plans.", show_default="60"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
LevelOption = Annotated[
    str | None, typer.Option(help=f"One of {', '.join(LEVELS)}.", show_default="warning; with --spark: error")
]


def syphon(
    primary: PrimaryOption = "",
    secondary: SecondaryOption = "",
    until_empty: UntilEmptyOption = False,
    rate: RateOption = None,
    destination: DestinationOption = None,
    queues: QueuesOption = 10,
    primary_name: PrimaryNameOption = None,
    transport: TransportOption = Transport.AMQP,
    proxy: ProxyOption = None,
    order: OrderOption = None,
    ttl: TtlOption = "remaining",
    lock: LockOption = None,
    ledger: LedgerOption = None,
    ledger_mode: LedgerModeOption = "required",
    spark: SparkOption = False,
    watch: WatchOption = False,
    pumps: PumpsOption = None,
    slice_seconds: SliceOption = None,
    master: MasterOption = None,
    remote: RemoteOption = None,
    memory: MemoryOption = None,
    as_json: JsonOption = False,
    log_format: FormatOption = LogFormat.TEXT,
    log_level: LevelOption = None,
) -> None:
    """Move messages from the secondary's backlog queues to their destinations in the primary.

    Runs until Ctrl-C, or with --until-empty until the backlog is empty. Exit code 0: done. 1: failed, or messages are
    left that cannot be moved now. 2: bad usage.

    Example: twinbus syphon --until-empty --rate 500

    Example: twinbus syphon --spark --until-empty --ledger ./ledger
    """
    log_level = log_level or ("error" if spark else "warning")  # Spark tasks report failures in their results
    _check_choices(log_level, order, ttl, ledger_mode)
    only_with_spark = {
        "--watch": watch or None,
        "--pumps": pumps,
        "--slice": slice_seconds,
        "--master": master,
        "--remote": remote,
        "--memory": memory,
    }
    if not spark and (misplaced := [name for name, value in only_with_spark.items() if value is not None]):
        _refuse(f"{misplaced[0]} needs --spark")
    if watch and until_empty:
        _refuse("--watch and --until-empty exclude each other")
    configure_logs(log_format, log_level)
    with _exit_on_error():
        pair = Pair.of(primary, secondary, primary_name, transport, proxy)
        if rate is not None and not 0 < rate < math.inf:
            raise ValueError(f"--rate must be above 0 messages per second, not {rate:g}; leave it out for no limit")
        options = SyphonOptions(rate=rate, destinations=destination or None, ledger_mode=ledger_mode)  # type: ignore[arg-type]
        terms = Terms(options=options, ttl=ttl, order=order, lock_seconds=lock)  # type: ignore[arg-type]
        if ledger is not None:
            check_ledger(ledger)
        if spark:
            settings = spark_settings(terms, pumps, slice_seconds, ledger, ledger_mode, log_level)  # type: ignore[arg-type]
            _run_on_spark(SparkSyphon(pair, queues, settings, not until_empty, master, remote, memory), as_json)
        else:
            writer = _open_ledger(ledger)
            _run_here(_Drain(pair, queues, terms, until_empty, writer), as_json)


def _exit_on_error() -> AbstractContextManager[None]:
    return exit_on_error("twinbus syphon", AmqpError, NoAnswerError, NamespacesSwappedError)


def _check_choices(log_level: str, order: str | None, ttl: str, ledger_mode: str) -> None:
    """Exit unless each option has one of its allowed values."""
    if log_level.lower() not in LEVELS:
        _refuse(f"--log-level must be one of {', '.join(LEVELS)}, not {log_level!r}")
    for name, value, known in (
        ("--order", order, (None, "session")),
        ("--ttl", ttl, ("remaining", "restart")),
        ("--ledger-mode", ledger_mode, ("required", "best_effort")),
    ):
        if value not in known:
            _refuse(f"{name} must be {' or '.join(filter(None, known))}, not {value!r}")


def _run_here(drain: _Drain, as_json: bool) -> None:
    """Drain in this process, and print the report."""
    with drain.writer or nullcontext():
        report = run_loop(drain.run())
    if as_json:
        typer.echo(json.dumps(report.to_json()))
    elif len(report.missing) < drain.count:  # else the one line of `_conclude` says it all
        typer.echo(as_text(report, drain.count))
    if drain.writer is not None and (dropped := drain.writer.status().dropped_rows):
        typer.echo(f"twinbus syphon: {counted(dropped, 'row')} of the ledger lost", err=True)
    _conclude(report, drain.count, drain.until_empty and drain.is_stopped)


def _run_on_spark(syphon: SparkSyphon, as_json: bool) -> None:
    report, is_stopped = syphon.run()
    if as_json:
        typer.echo(json.dumps(report.to_json()))
    elif len(report.drain.missing) < syphon.count:
        typer.echo(as_text(report.drain, syphon.count))
        if report.repeated:
            tasks = counted(report.repeated, "task was", "tasks were")
            typer.echo(f"{tasks} lost and repeated: messages that lost tasks moved are only in the ledger")
    _conclude(report.drain, syphon.count, is_stopped and not syphon.watch)


def _conclude(report: DrainReport, queues: int, is_cut_short: bool) -> None:
    """Exit with 1 unless everything was moved; print the reason if the report does not show it."""
    if len(report.missing) == queues:
        typer.echo(f"twinbus syphon: {missing_text(sorted(report.missing))}", err=True)
    elif is_cut_short:
        typer.echo("twinbus syphon: stopped before the backlog was empty", err=True)
    elif report.is_empty:
        return
    raise typer.Exit(1)


def _refuse(message: str) -> NoReturn:
    fail("twinbus syphon", message, BAD_USAGE)


def _open_ledger(url: str | None) -> LedgerWriter | None:
    if url is None:
        return None
    from twinbus.ledger.writer import LedgerWriter

    return LedgerWriter(url)


def as_text(report: DrainReport, queues: int) -> str:
    """Format the report: one line per destination, the totals, and the queues that do not exist."""
    lines = []
    for path, tally in sorted(report.destinations.items()):
        figures = ", ".join(f"{count:,} {what}" for what, count in asdict(tally).items() if count)
        lines.append(f"{path}: {figures or 'nothing'}")
    total = report.total
    lines.append(f"{total.moved:,} moved in {report.seconds:.1f} s")
    lines.append(f"dead-lettered: {total.expired:,} expired, {total.poison:,} poison, {report.malformed:,} malformed")
    missing = sorted(report.missing)
    where = f"in {counted(queues - len(missing), 'backlog queue')}"  # only those of --queues
    lines.append(f"left {where}: {total.deferred:,} deferred, {report.held:,} locked by others")
    if missing:
        examples = missing[0] if len(missing) == 1 else f"{missing[0]}, …"
        lines.append(f"{missing_queues_text(len(missing), queues)}: {examples}")
    return "\n".join(lines)


class _Drain:
    """One run of the syphon."""

    def __init__(
        self,
        pair: Pair,
        count: int,
        terms: Terms,
        until_empty: bool,
        writer: LedgerWriter | None,
    ) -> None:
        self._pair = pair
        self.count = count
        self._terms = terms
        self.until_empty = until_empty
        self.writer = writer
        self._stop = asyncio.Event()

    @property
    def is_stopped(self) -> bool:
        """Whether a signal ended it."""
        return self._stop.is_set()

    async def run(self) -> DrainReport:
        tune_garbage_collector()
        name = await self._pair.primary_name()
        await self._pair.check_not_swapped(name)
        queues = [backlog_path(name, index) for index in range(self.count)]
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop.set)
        await self._check_access(queues)
        host = SyphonHost(self._pair.primary, self._pair.secondary, queues, self._with_ledger(name))
        drain = asyncio.create_task(host.drain(until_empty=self.until_empty))
        stopper = asyncio.create_task(self._stop_on_signal(host))
        progress = asyncio.create_task(_show_progress(host))
        try:
            return await drain
        finally:
            for task in (stopper, progress):
                task.cancel()
            await asyncio.gather(stopper, progress, return_exceptions=True)

    async def _check_access(self, queues: list[str]) -> None:
        """Raise `NoAnswerError` if a key is refused. Without --until-empty log that once, and wait until it works."""
        logged = ""
        while problem := await find_access_problem(self._pair, queues, self._terms.options.destinations):
            if self.until_empty:
                if problem.is_missing:
                    return  # the report names the queues
                raise NoAnswerError(problem.text)
            if problem.text != logged:
                logger.warning("%s (trying again every %g s)", problem.text, ACCESS_RETRY)
                logged = problem.text
            with suppress(TimeoutError):
                async with asyncio.timeout(ACCESS_RETRY):
                    await self._stop.wait()
                raise NoAnswerError(f"stopped before anything was moved: {problem.text}")

    def _with_ledger(self, name: str) -> Terms:
        if self.writer is None:
            return self._terms
        client = f"syphon-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        recorder, flush = for_syphon(self.writer, asyncio.get_running_loop(), ledger=self._terms.options.ledger_mode)
        return replace(self._terms, pairing=name, client=client, recorder=recorder, flush=flush)

    async def _stop_on_signal(self, host: SyphonHost) -> None:
        await self._stop.wait()
        host.stop()


async def _show_progress(host: SyphonHost) -> None:
    """Show the progress on standard error: one changing line in a terminal, else a line every few seconds."""
    console = Console(stderr=True, highlight=False)
    before, at = 0, time.monotonic()
    with console.status("connecting") as status:
        while True:
            await asyncio.sleep(PROGRESS_EVERY if console.is_terminal else PROGRESS_EVERY_WITHOUT_TERMINAL)
            report, now = host.report(), time.monotonic()
            rate = (report.total.moved - before) / (now - at)
            before, at = report.total.moved, now
            line = f"{before:,} moved, {rate:,.0f} a second, {report.total.deferred:,} deferred"
            if console.is_terminal:
                status.update(line)
            else:
                print(line, file=sys.stderr, flush=True)
