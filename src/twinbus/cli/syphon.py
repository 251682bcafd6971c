"""`twinbus syphon`: bring the backlog home, once or for as long as it runs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
import uuid
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console

from twinbus.ledger.proof import for_syphon
from twinbus.pairing.errors import NamespacesSwappedError
from twinbus.pairing.naming import backlog_path
from twinbus.pairing.options import SyphonOptions
from twinbus.syphon import AmqpError
from twinbus.syphon.host import SyphonHost
from twinbus.syphon.report import DrainReport
from twinbus.syphon.terms import MAX_LOCK_SECONDS, Terms

from .event_loop import run_loop, spare_the_collector
from .exits import BAD_USAGE, fail
from .failing import failing
from .logs import LEVELS, FormatOption, LogFormat, configure_logs
from .namespaces import (
    Pair,
    PrimaryNameOption,
    PrimaryOption,
    ProxyOption,
    SecondaryOption,
    Transport,
    TransportOption,
    Unanswered,
)
from .places import check_ledger
from .spark_options import MasterOption, MemoryOption, RemoteOption
from .spark_syphon import SparkSyphon, spark_settings

if TYPE_CHECKING:  # it needs libraries of the extra `ledger`
    from twinbus.ledger.writer import LedgerWriter

PROGRESS_EVERY = 1.0  # seconds
PROGRESS_EVERY_WITHOUT_TERMINAL = 10.0


UntilEmptyOption = Annotated[bool, typer.Option("--until-empty", help="End when nothing is left that can be moved.")]
RateOption = Annotated[float | None, typer.Option(help="At most so many messages a second.")]
DestinationOption = Annotated[
    list[str] | None,
    typer.Option(metavar="PATH", help="Move only messages for this queue or topic. May be given again."),
]
QueuesOption = Annotated[int, typer.Option(min=1, help="How many backlog queues there are.")]
OrderOption = Annotated[str | None, typer.Option(help="session: keep the order within each session.")]
TtlOption = Annotated[str, typer.Option(help="remaining: time in the backlog counts; restart: it does not.")]
LockOption = Annotated[
    float | None,
    typer.Option(
        min=1,
        max=MAX_LOCK_SECONDS,
        metavar="SECONDS",
        help="Lock duration of the backlog queues, if you know it.",
        show_default=False,
    ),
]
LedgerOption = Annotated[
    str | None,
    typer.Option(
        envvar="TWINBUS_LEDGER", metavar="PATH_OR_URL", help="Keep a ledger here: a folder, or a URL as abfs://…"
    ),
]
LedgerModeOption = Annotated[
    str, typer.Option(help="required: complete nothing that the ledger does not have; best_effort: go on without.")
]
SparkOption = Annotated[bool, typer.Option("--spark", help="Move with tasks of Spark, on this machine or a cluster.")]
WatchOption = Annotated[
    bool, typer.Option("--watch", help="Go on until Ctrl-C, as without --until-empty. With --spark.")
]
PumpsOption = Annotated[int | None, typer.Option(min=1, help="Most pumps at a time. With --spark.", show_default="10")]
SliceOption = Annotated[
    float | None,
    typer.Option("--slice", metavar="SECONDS", help="Plan anew after so long. With --spark.", show_default="60"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
LevelOption = Annotated[
    str | None, typer.Option(help=f"One of {', '.join(LEVELS)}.", show_default="warning, with --spark error")
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
    """Move messages from the backlog queues of the secondary to where they belong in the primary.

    Without --until-empty it goes on until Ctrl-C. Exit code 0: done; 1: it failed, or something is left in the backlog
    that cannot be moved now; 2: bad usage.

    Example: twinbus syphon --until-empty --rate 500

    Example: twinbus syphon --spark --until-empty --ledger ./ledger
    """
    log_level = log_level or ("error" if spark else "warning")  # tasks tell what failed in their facts
    _check_words(log_level, order, ttl, ledger_mode)
    only_with_spark = {
        "--watch": watch or None,
        "--pumps": pumps,
        "--slice": slice_seconds,
        "--master": master,
        "--remote": remote,
        "--memory": memory,
    }
    if not spark and (given := [name for name, value in only_with_spark.items() if value is not None]):
        _refuse(f"{given[0]} needs --spark")
    if watch and until_empty:
        _refuse("--watch goes on for ever: give it or --until-empty")
    configure_logs(log_format, log_level)
    with _failing():
        pair = Pair.of(primary, secondary, primary_name, transport, proxy)
        options = SyphonOptions(rate=rate, destinations=destination or None, ledger_mode=ledger_mode)  # type: ignore[arg-type]
        terms = Terms(options=options, ttl=ttl, order=order, lock_seconds=lock)  # type: ignore[arg-type]
        if ledger is not None:
            check_ledger(ledger)
        if spark:
            settings = spark_settings(terms, pumps, slice_seconds, ledger, ledger_mode, log_level)  # type: ignore[arg-type]
            _run_on_spark(SparkSyphon(pair, queues, settings, not until_empty, master, remote, memory), as_json)
        else:
            writer = _open_ledger(ledger)
            _run_here(_Work(pair, queues, terms, until_empty, writer), as_json)


def _failing() -> AbstractContextManager[None]:
    return failing("twinbus syphon", AmqpError, Unanswered, NamespacesSwappedError)


def _check_words(log_level: str, order: str | None, ttl: str, ledger_mode: str) -> None:
    """Refuse options that are none of the words they may be."""
    if log_level.lower() not in LEVELS:
        _refuse(f"--log-level must be one of {', '.join(LEVELS)}, not {log_level!r}")
    for name, value, known in (
        ("--order", order, (None, "session")),
        ("--ttl", ttl, ("remaining", "restart")),
        ("--ledger-mode", ledger_mode, ("required", "best_effort")),
    ):
        if value not in known:
            _refuse(f"{name} must be {' or '.join(filter(None, known))}, not {value!r}")


def _run_here(work: _Work, as_json: bool) -> None:
    """Move messages in this process, and say what came of it."""
    with work.writer or nullcontext():
        report = run_loop(work.run())
    typer.echo(json.dumps(report.to_json()) if as_json else as_text(report, work.count))
    if work.writer is not None and work.writer.status().dropped_rows:
        typer.echo(f"twinbus syphon: {work.writer.status().dropped_rows} rows of the ledger are lost", err=True)
    _conclude(report, work.count, work.until_empty and work.is_stopped)


def _run_on_spark(work: SparkSyphon, as_json: bool) -> None:
    report, is_stopped = work.run()
    if as_json:
        typer.echo(json.dumps(report.to_json()))
    else:
        typer.echo(as_text(report.drain, work.count))
        if report.repeated:
            typer.echo(f"{report.repeated} tasks were lost and repeated: what those had moved only the ledger knows")
    _conclude(report.drain, work.count, is_stopped and not work.watch)


def _conclude(report: DrainReport, queues: int, is_cut_short: bool) -> None:
    """Exit with 1 unless everything was moved, and say why where the report does not."""
    if len(report.missing) == queues:
        typer.echo(
            f"twinbus syphon: none of the {queues} backlog queues exists: {report.missing[0]}, …"
            " Are --primary and --secondary exchanged, or is --primary-name wrong?",
            err=True,
        )
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
    """The result for people: a line for each destination, the sum, and how many of so many queues there were."""
    lines = []
    for path, tally in sorted(report.destinations.items()):
        figures = ", ".join(f"{count:,} {what}" for what, count in asdict(tally).items() if count)
        lines.append(f"{path}: {figures or 'nothing'}")
    total = report.total
    lines.append(f"{total.moved:,} moved in {report.seconds:.1f} s")
    lines.append(f"dead-lettered: {total.expired:,} expired, {total.poison:,} poison, {report.malformed:,} malformed")
    gone = sorted(report.missing)
    there = queues - len(gone)
    where = f"in {there:,} backlog queue{'' if there == 1 else 's'}"  # of others it knows nothing
    lines.append(f"left {where}: {total.parked:,} parked, {report.held:,} locked by others")
    if gone:
        which = gone[0] if len(gone) == 1 else f"{gone[0]}, …"
        verb = "does" if len(gone) == 1 else "do"
        lines.append(f"{len(gone):,} of the {queues:,} queues that --queues says {verb} not exist: {which}")
    return "\n".join(lines)


class _Work:
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
        """Whether a signal has ended it."""
        return self._stop.is_set()

    async def run(self) -> DrainReport:
        spare_the_collector()
        name = await self._pair.primary_name()
        await self._pair.check_not_swapped(name)
        queues = [backlog_path(name, index) for index in range(self.count)]
        host = SyphonHost(self._pair.primary, self._pair.secondary, queues, self._with_ledger(name))
        drain = asyncio.create_task(host.drain(until_empty=self.until_empty))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop.set)
        stopper = asyncio.create_task(self._stop_when_told(host))
        shower = asyncio.create_task(_show_progress(host))
        try:
            return await drain
        finally:
            for task in (stopper, shower):
                task.cancel()
            await asyncio.gather(stopper, shower, return_exceptions=True)

    def _with_ledger(self, name: str) -> Terms:
        if self.writer is None:
            return self._terms
        client = f"syphon-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        recorder, flush = for_syphon(self.writer, asyncio.get_running_loop(), ledger=self._terms.options.ledger_mode)
        return replace(self._terms, pairing=name, client=client, recorder=recorder, flush=flush)

    async def _stop_when_told(self, host: SyphonHost) -> None:
        await self._stop.wait()
        host.stop()


async def _show_progress(host: SyphonHost) -> None:
    """How far it is, on standard error: one line that changes, or where nobody watches, one now and then."""
    console = Console(stderr=True, highlight=False)
    before, at = 0, time.monotonic()
    with console.status("connecting") as status:
        while True:
            await asyncio.sleep(PROGRESS_EVERY if console.is_terminal else PROGRESS_EVERY_WITHOUT_TERMINAL)
            report, now = host.report(), time.monotonic()
            rate = (report.total.moved - before) / (now - at)
            before, at = report.total.moved, now
            line = f"{before:,} moved, {rate:,.0f} a second, {report.total.parked:,} parked"
            if console.is_terminal:
                status.update(line)
            else:
                print(line, file=sys.stderr, flush=True)
