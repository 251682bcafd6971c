"""`twinbus demo`: plays an outage from start to end on this machine, without an Azure account."""

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

from twinbus.ledger.ledger_errors import ExtraMissingError
from twinbus.spark.pipeline_errors import PipelineError
from twinbus.spark.session import require_spark
from twinbus.tables.table_errors import TablesError

from ..exits import BAD_USAGE, fail
from ..failures import describe_os_error
from ..logs import LogFormat, configure_logs
from ..text import counted

if TYPE_CHECKING:
    from twinbus.demo.story import Ending

FAULTS = ("kill", "blackhole")


def demo(
    fault: Annotated[
        str, typer.Option(help="kill: kill the primary's process; blackhole: it accepts everything and never answers.")
    ] = "kill",
    seconds: Annotated[float, typer.Option(min=1, max=600, help="How long the outage lasts.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Seed of message ids and timing offsets.")] = 1,
    folder: Annotated[
        Path | None,
        typer.Option(help="Keep namespaces, ledger and report here.", show_default="keep only the report"),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object on standard output, and the progress on standard error."),
    ] = False,
) -> None:
    """Show a real outage of one of two local namespaces: failover, drain on Spark, verdict and report.

    Takes about a minute. Exit code 1 if an accepted message was lost.

    Example: twinbus demo --fault blackhole
    """
    if fault not in FAULTS:
        fail("twinbus demo", f"--fault must be {' or '.join(FAULTS)}, not {fault!r}", BAD_USAGE)
    if folder is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        fail("twinbus demo", f"--folder must be an empty or a new folder, and {folder} is not", BAD_USAGE)
    configure_logs(LogFormat.TEXT, "error")  # the demo prints itself what the pairing would log
    console = Console(highlight=False, stderr=as_json)
    workspace = nullcontext(str(folder)) if folder is not None else tempfile.TemporaryDirectory(prefix="twinbus-demo-")
    try:
        require_spark()  # the demo needs it at the end: fail now rather than then
        with workspace as name:
            ending = _run(Path(name), console, fault, seconds, seed)
            html = ending.html if folder is not None else _keep_report(ending.html)
    except KeyboardInterrupt:
        fail("twinbus demo", "stopped")
    except (ExtraMissingError, PipelineError, TablesError, TimeoutError, RuntimeError) as error:
        fail("twinbus demo", str(error))
    except OSError as error:
        fail("twinbus demo", describe_os_error(error))
    _print_summary(console, ending, html)
    if as_json:
        typer.echo(json.dumps({**ending.to_json(), "report": str(html)}))
    if ending.verdict.lost:
        raise typer.Exit(1)


def _run(folder: Path, console: Console, fault: str, seconds: float, seed: int) -> Ending:
    from twinbus.demo.screen import Screen
    from twinbus.demo.story import Story

    with Screen(console, time.monotonic) as screen:
        story = Story(folder.resolve(), screen, fault=fault, seconds=seconds, seed=seed)  # type: ignore[arg-type]
        return asyncio.run(_cancel_on_signal(story.run()))


async def _cancel_on_signal(work: Coroutine[Any, Any, Ending]) -> Ending:
    """Cancel the work on a signal, so that it stops its processes. Raises `KeyboardInterrupt` then."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _keep_report(html: Path) -> Path:
    """Copy the report out of the temporary folder."""
    kept = Path(tempfile.mkdtemp(prefix="twinbus-report-")) / html.name
    shutil.copy(html, kept)
    return kept


def _print_summary(console: Console, ending: Ending, html: Path) -> None:
    verdict, cost = ending.verdict, ending.report.cost
    console.print(
        f"\n[bold]attempted {verdict.attempted:,}, acknowledged {verdict.acknowledged:,}, ok {verdict.ok:,},"
        f" [{'red' if verdict.lost else 'green'}]lost {verdict.lost:,}[/], unexpected {verdict.unexpected:,},"
        f" duplicated {verdict.duplicated:,}[/]"
    )
    console.print(
        f"first message in the backlog after {ending.failover_seconds:.1f} s,"
        f" {counted(ending.moved, 'message')} drained in {ending.drain_seconds:.1f} s;"
        f" slowest send {ending.slowest_send:.1f} s, {ending.refused:,} sends failed"
    )
    if cost is not None:
        currency, bill, usage = cost.book.currency, cost.bill, cost.whole
        console.print(
            f"{usage.operations:,} operations billed, {usage.pairing_operations:,} of them for the pairing;"
            f" at list prices {currency} {bill.total:.4f}, of which {currency} {bill.pairing:.4f} for the pairing"
        )
    console.print(f"verdict from the ledger: {ending.report.headline.sentence}")
    console.print(f"report: {html}")
