"""`twinbus syphon`: bring the backlog home, once or for as long as it runs."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from dataclasses import asdict
from typing import Annotated, NoReturn

import typer
from azure.core.exceptions import AzureError
from rich.console import Console

from twinbus.pairing.namespaces import Namespace
from twinbus.pairing.naming import backlog_path
from twinbus.pairing.options import SyphonOptions
from twinbus.syphon import AmqpError
from twinbus.syphon.connector import Side
from twinbus.syphon.host import SyphonHost
from twinbus.syphon.report import DrainReport
from twinbus.syphon.terms import Terms

from .logs import LogFormat, configure_logs
from .serve import BAD_USAGE, LEVELS, run_loop, spare_the_collector

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
    for name, value, known in (("--order", order, (None, "session")), ("--ttl", ttl, ("remaining", "restart"))):
        if value not in known:
            _refuse(f"{name} must be {' or '.join(filter(None, known))}, not {value!r}")
    configure_logs(log_format, log_level)
    try:
        sides = [_side(*given) for given in (("--primary", primary), ("--secondary", secondary))]
        options = SyphonOptions(rate=rate, destinations=destination or None)
        terms = Terms(options=options, ttl=ttl, order=order)  # type: ignore[arg-type]
        namespace = Namespace.from_connection_string(primary)
        if primary_name is not None:
            backlog_path(primary_name, 0)
    except ValueError as error:
        _refuse(str(error))
    work = _Work(sides[0], sides[1], namespace, primary_name, queues, terms, until_empty)
    try:
        report = run_loop(work.run())
    except (AmqpError, AzureError, OSError, ValueError) as error:
        typer.echo(f"twinbus syphon: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(json.dumps(report.to_json()) if as_json else as_text(report))
    if len(report.missing) == queues:
        typer.echo(f"twinbus syphon: none of the {queues} backlog queues exists: {report.missing[0]}, …", err=True)
        raise typer.Exit(1)
    if until_empty and work.is_stopped:
        typer.echo("twinbus syphon: stopped before the backlog was empty", err=True)
        raise typer.Exit(1)
    if not report.is_empty:
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
    ) -> None:
        self._sides = primary, secondary
        self._namespace = namespace
        self._primary_name = primary_name
        self._count = count
        self._terms = terms
        self._until_empty = until_empty
        self._stop = asyncio.Event()

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has ended it."""
        return self._stop.is_set()

    async def run(self) -> DrainReport:
        spare_the_collector()
        name = self._primary_name or self._namespace.name or await self._ask_for_name()
        host = SyphonHost(*self._sides, [backlog_path(name, index) for index in range(self._count)], self._terms)
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
