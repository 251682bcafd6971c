"""`twinbus demo`: an outage from beginning to end, on this machine, without an account."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import tempfile
import time
from collections.abc import Coroutine
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from twinbus.ledger.errors import ExtraMissing
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.session import require_spark

from .exits import BAD_USAGE, fail
from .failing import reason_with_place
from .logs import LogFormat, configure_logs

if TYPE_CHECKING:
    from twinbus.demo.story import Ending

FAULTS = ("kill", "blackhole")


def demo(
    fault: Annotated[
        str, typer.Option(help="kill: the primary's process is killed; blackhole: it goes silent.")
    ] = "kill",
    seconds: Annotated[float, typer.Option(min=1, max=600, help="How long the outage lasts.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Makes message ids and the order of things repeatable.")] = 1,
    folder: Annotated[
        Path | None,
        typer.Option(help="Keep namespaces, ledger and report here.", show_default="a new folder for the report"),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="The last line on standard output is one JSON object; the rest is on standard error."
        ),
    ] = False,
) -> None:
    """See sends outlive their namespace: two namespaces, traffic, a real outage, a drain on Spark and a verdict.

    Takes about a minute. Exit code 1 if an accepted message was lost.

    Example: twinbus demo --fault blackhole
    """
    if fault not in FAULTS:
        fail("twinbus demo", f"--fault must be {' or '.join(FAULTS)}, not {fault!r}", BAD_USAGE)
    if folder is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        fail("twinbus demo", f"--folder must be an empty folder, or one that is not there yet: {folder}", BAD_USAGE)
    configure_logs(LogFormat.TEXT, "error")  # what the pairing logs, the demo prints
    console = Console(highlight=False, stderr=as_json)
    place = nullcontext(str(folder)) if folder is not None else tempfile.TemporaryDirectory(prefix="twinbus-demo-")
    try:
        require_spark()  # it is needed in the end: better said now
        with place as name:
            ending = _run(Path(name), console, fault, seconds, seed)
            html = ending.html if folder is not None else _kept(ending.html)
    except KeyboardInterrupt:
        fail("twinbus demo", "stopped")
    except (ExtraMissing, PipelineError, TimeoutError, RuntimeError) as error:
        fail("twinbus demo", str(error))
    except OSError as error:
        fail("twinbus demo", reason_with_place(error))
    _tell(console, ending, html)
    if as_json:
        typer.echo(json.dumps({**ending.to_json(), "report": str(html)}))
    if ending.verdict.lost:
        raise typer.Exit(1)


def _run(folder: Path, console: Console, fault: str, seconds: float, seed: int) -> Ending:
    from twinbus.demo.screen import Screen
    from twinbus.demo.story import Story

    with Screen(console, time.monotonic) as screen:
        story = Story(folder.resolve(), screen, fault=fault, seconds=seconds, seed=seed)  # type: ignore[arg-type]
        return asyncio.run(_until_told(story.run()))


async def _until_told(work: Coroutine[Any, Any, Ending]) -> Ending:
    """A signal ends it in order: no process stays behind."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _kept(html: Path) -> Path:
    """The report outlives the rest."""
    kept = Path(tempfile.mkdtemp(prefix="twinbus-report-")) / html.name
    shutil.copy(html, kept)
    return kept


def _tell(console: Console, ending: Ending, html: Path) -> None:
    verdict, cost = ending.verdict, ending.report.cost
    console.print(
        f"\n[bold]attempted {verdict.attempted:,}, acknowledged {verdict.acknowledged:,}, ok {verdict.ok:,},"
        f" [{'red' if verdict.lost else 'green'}]lost {verdict.lost:,}[/], unexpected {verdict.unexpected:,},"
        f" duplicated {verdict.duplicated:,}[/]"
    )
    console.print(
        f"first message in the backlog after {ending.failover_seconds:.1f} s, {ending.moved:,} messages drained in"
        f" {ending.drain_seconds:.1f} s; the slowest send took {ending.slowest_send:.1f} s, {ending.refused:,} refused"
    )
    if cost is not None:
        currency, bill, used = cost.book.currency, cost.bill, cost.whole
        console.print(
            f"{used.operations:,} operations billed, {used.pairing_operations:,} of them for the pairing;"
            f" at list prices {currency} {bill.total:.4f}, of which {currency} {bill.pairing:.4f} for the pairing"
        )
    console.print(f"the ledger says: {ending.report.headline.sentence}")
    console.print(f"report: {html}")
