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
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from azure.core.exceptions import AzureError
from rich.console import Console

from twinbus.ledger.errors import ExtraMissing
from twinbus.ledger.proof import LedgerMode, for_syphon
from twinbus.pairing.namespaces import Namespace
from twinbus.pairing.naming import backlog_path
from twinbus.pairing.options import SyphonOptions
from twinbus.syphon import AmqpError
from twinbus.syphon.connector import Side
from twinbus.syphon.host import SyphonHost
from twinbus.syphon.report import DrainReport
from twinbus.syphon.terms import MAX_LOCK_SECONDS, Terms

from .logs import LogFormat, configure_logs
from .serve import BAD_USAGE, LEVELS, run_loop, spare_the_collector

if TYPE_CHECKING:  # it needs libraries of the extra `ledger`
    from twinbus.ledger.writer import LedgerWriter

NAME_TIMEOUT = 30.0
PROGRESS_EVERY = 1.0  # seconds
PROGRESS_EVERY_WITHOUT_TERMINAL = 10.0


def syphon(
    primary: Annotated[
        str, typer.Option(envvar="TWINBUS_PRIMARY", help="Connection string of the primary.", show_default=False)
    ] = "",
    secondary: Annotated[
        str, typer.Option(envvar="TWINBUS_SECONDARY", help="Connection string of the secondary.", show_default=False)
    ] = "",
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="End when nothing is left that can be moved.")
    ] = False,
    rate: Annotated[float | None, typer.Option(help="At most so many messages a second.")] = None,
    destination: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="Move only messages for this queue or topic. May be given again."),
    ] = None,
    queues: Annotated[int, typer.Option(min=1, help="How many backlog queues there are.")] = 10,
    primary_name: Annotated[
        str | None, typer.Option(help="First part of the backlog queues' paths, if the primary's host does not say.")
    ] = None,
    order: Annotated[str | None, typer.Option(help="session: keep the order within each session.")] = None,
    ttl: Annotated[
        str, typer.Option(help="remaining: time in the backlog counts; restart: it does not.")
    ] = "remaining",
    lock: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=MAX_LOCK_SECONDS,
            metavar="SECONDS",
            help="Lock duration of the backlog queues, if you know it.",
            show_default=False,
        ),
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option(
            envvar="TWINBUS_LEDGER", metavar="PATH_OR_URL", help="Keep a ledger here: a folder, or a URL as abfs://…"
        ),
    ] = None,
    ledger_mode: Annotated[
        str, typer.Option(help="required: complete nothing that the ledger does not have; best_effort: go on without.")
    ] = "required",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
    log_format: Annotated[LogFormat, typer.Option(help="Logs go to standard error.")] = LogFormat.TEXT,
    log_level: Annotated[str, typer.Option(help=f"One of {', '.join(LEVELS)}.")] = "error",
) -> None:
    """Move messages from the backlog queues of the secondary to where they belong in the primary.

    Without --until-empty it goes on until Ctrl-C. Exit code 0: done; 1: it failed, or something is left in the backlog
    that cannot be moved now; 2: bad usage.

    Example: twinbus syphon --until-empty --rate 500
    """
    if log_level.lower() not in LEVELS:
        _refuse(f"--log-level must be one of {', '.join(LEVELS)}, not {log_level!r}")
    for name, value, known in (
        ("--order", order, (None, "session")),
        ("--ttl", ttl, ("remaining", "restart")),
        ("--ledger-mode", ledger_mode, ("required", "best_effort")),
    ):
        if value not in known:
            _refuse(f"{name} must be {' or '.join(filter(None, known))}, not {value!r}")
    configure_logs(log_format, log_level)
    try:
        sides = [_side(*given) for given in (("--primary", primary), ("--secondary", secondary))]
        options = SyphonOptions(rate=rate, destinations=destination or None)
        terms = Terms(options=options, ttl=ttl, order=order, lock_seconds=lock)  # type: ignore[arg-type]
        namespace = Namespace.from_connection_string(primary)
        if primary_name is not None:
            backlog_path(primary_name, 0)
        writer = _open_ledger(ledger)
    except ValueError as error:
        _refuse(str(error))
    work = _Work(sides[0], sides[1], namespace, primary_name, queues, terms, until_empty, writer, ledger_mode)  # type: ignore[arg-type]
    try:
        with writer or nullcontext():
            report = run_loop(work.run())
    except (AmqpError, AzureError, OSError, ValueError) as error:
        typer.echo(f"twinbus syphon: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(json.dumps(report.to_json()) if as_json else as_text(report))
    if writer is not None and writer.status().dropped_rows:
        typer.echo(f"twinbus syphon: {writer.status().dropped_rows} rows of the ledger are lost", err=True)
    _conclude(report, queues, until_empty and work.is_stopped)


def _conclude(report: DrainReport, queues: int, is_cut_short: bool) -> None:
    """Exit with 1 unless everything was moved, and say why where the report does not."""
    if len(report.missing) == queues:
        typer.echo(f"twinbus syphon: none of the {queues} backlog queues exists: {report.missing[0]}, …", err=True)
    elif is_cut_short:
        typer.echo("twinbus syphon: stopped before the backlog was empty", err=True)
    elif report.is_empty:
        return
    raise typer.Exit(1)


def _refuse(message: str) -> NoReturn:
    typer.echo(f"twinbus syphon: {message}", err=True)
    raise typer.Exit(BAD_USAGE)


def _side(name: str, text: str) -> Side:
    if not text:
        variable = "TWINBUS_" + name.removeprefix("--").upper()
        raise ValueError(f"{name} is missing: give a connection string, or set {variable}")
    try:
        return Side.from_connection_string(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _open_ledger(url: str | None) -> LedgerWriter | None:
    if url is None:
        return None
    try:
        from twinbus.ledger.writer import LedgerWriter

        return LedgerWriter(url)
    except ExtraMissing as error:
        typer.echo(f"twinbus syphon: {error}", err=True)
        raise typer.Exit(1) from None
    except ValueError as error:
        raise ValueError(f"--ledger: {error}") from None


def as_text(report: DrainReport) -> str:
    """The result for people: a line for each destination, and the sum."""
    lines = []
    for path, tally in sorted(report.destinations.items()):
        figures = ", ".join(f"{count:,} {what}" for what, count in asdict(tally).items() if count)
        lines.append(f"{path}: {figures or 'nothing'}")
    total = report.total
    lines.append(f"{total.moved:,} moved in {report.seconds:.1f} s")
    lines.append(f"dead-lettered: {total.expired:,} expired, {total.poison:,} poison, {report.malformed:,} malformed")
    lines.append(f"left in the backlog: {total.parked:,} parked, {report.held:,} locked by others")
    return "\n".join(lines)


class _Work:
    """One run of the syphon."""

    def __init__(
        self,
        primary: Side,
        secondary: Side,
        namespace: Namespace,
        primary_name: str | None,
        count: int,
        terms: Terms,
        until_empty: bool,
        writer: LedgerWriter | None,
        ledger_mode: LedgerMode,
    ) -> None:
        self._sides = primary, secondary
        self._namespace = namespace
        self._primary_name = primary_name
        self._count = count
        self._terms = terms
        self._until_empty = until_empty
        self._writer = writer
        self._ledger_mode: LedgerMode = ledger_mode
        self._stop = asyncio.Event()

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has ended it."""
        return self._stop.is_set()

    async def run(self) -> DrainReport:
        spare_the_collector()
        name = self._primary_name or self._namespace.name or await self._ask_for_name()
        queues = [backlog_path(name, index) for index in range(self._count)]
        host = SyphonHost(*self._sides, queues, self._with_ledger(name))
        drain = asyncio.create_task(host.drain(until_empty=self._until_empty))
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
        if self._writer is None:
            return self._terms
        client = f"syphon-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        recorder, flush = for_syphon(self._writer, asyncio.get_running_loop(), ledger=self._ledger_mode)
        return replace(self._terms, pairing=name, client=client, recorder=recorder, flush=flush)

    async def _stop_when_told(self, host: SyphonHost) -> None:
        await self._stop.wait()
        host.stop()

    async def _ask_for_name(self) -> str:
        """A host that is an address says nothing: the namespace itself does."""
        async with asyncio.timeout(NAME_TIMEOUT), self._namespace.administration() as administration:
            properties = await administration.get_namespace_properties()
        return str(properties.name)


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
