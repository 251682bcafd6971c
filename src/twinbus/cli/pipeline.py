"""`twinbus pipeline`: bring results up to date with a ledger, once or for as long as it runs."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from twinbus.pipeline.session import require_spark

from .exits import BAD_USAGE, fail
from .failing import failing
from .logs import LEVELS, FormatOption, LogFormat, configure_logs
from .places import check_results
from .quantities import seconds
from .spark_options import MasterOption, MemoryOption, RemoteOption
from .text import printable

if TYPE_CHECKING:  # they need libraries of the extra `spark`
    from pyspark.sql import SparkSession

    from twinbus.pipeline.ingest import Ingested, Reconcile
    from twinbus.pipeline.results import Results, Snapshot

#: Lines of what was set aside, in print. All are in the JSON.
MOST_LINES = 20

app = typer.Typer(no_args_is_help=True, help="Bring results up to date with a ledger, for reports to read.")

LedgerArgument = Annotated[str, typer.Argument(metavar="LEDGER", help="The ledger's folder, or a URL such as abfs://…")]
ResultsOption = Annotated[
    str | None,
    typer.Option(metavar="PATH_OR_URL", help="Where results are kept.", show_default="<LEDGER>-results"),
]
ReconcileOption = Annotated[
    bool, typer.Option("--reconcile/--no-reconcile", help="Whether every accepted message has arrived.")
]
DrainedOption = Annotated[
    bool, typer.Option("--drained", help="Backlog and destinations are empty: what has not arrived is lost.")
]
PatienceOption = Annotated[
    str,
    typer.Option(
        metavar="DURATION",
        help="How long after a message was accepted its receivers must still report for it to be lost, such as 30m.",
    ),
]
SlotsOption = Annotated[int | None, typer.Option(help="Tasks at once on this machine.", show_default="cores")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object a run, for programs.")]
LevelOption = Annotated[str, typer.Option(help=f"One of {', '.join(LEVELS)}.")]


@app.command()
def run(
    ledger: LedgerArgument,
    results: ResultsOption = None,
    reconcile: ReconcileOption = True,
    drained: DrainedOption = False,
    patience: PatienceOption = "1h",
    master: MasterOption = None,
    remote: RemoteOption = None,
    memory: MemoryOption = None,
    slots: SlotsOption = None,
    as_json: JsonOption = False,
    log_format: FormatOption = LogFormat.TEXT,
    log_level: LevelOption = "error",
) -> None:
    """Bring results up to date, once. Only hours whose files are new or have changed are read.

    Example: twinbus pipeline run ./ledger && twinbus report ./ledger-results
    """
    with _work(log_format, log_level):
        from twinbus.pipeline.ingest import ingest

        store, judge = _open(ledger, results), _reconcile(reconcile, drained, patience)
        started = time.monotonic()
        with _spark(master, remote, memory, slots) as spark, _progress(as_json) as tell:
            done = ingest(spark, ledger, store, reconcile=judge, tell=tell)
            store.sweep()
        _print(store, done, time.monotonic() - started, as_json)


@app.command()
def watch(
    ledger: LedgerArgument,
    results: ResultsOption = None,
    interval: Annotated[float, typer.Option(metavar="SECONDS", help="How often to look for new files.")] = 60.0,
    reconcile: ReconcileOption = True,
    drained: DrainedOption = False,
    patience: PatienceOption = "1h",
    master: MasterOption = None,
    memory: MemoryOption = None,
    slots: SlotsOption = None,
    as_json: JsonOption = False,
    log_format: FormatOption = LogFormat.TEXT,
    log_level: LevelOption = "error",
) -> None:
    """Bring results up to date again and again, as files come, until Ctrl-C.

    Example: twinbus pipeline watch ./ledger --interval 60
    """
    with _work(log_format, log_level):
        from twinbus.pipeline.watching import Watch

        store, judge = _open(ledger, results), _reconcile(reconcile, drained, patience)
        started = time.monotonic()

        def on_run(done: Ingested) -> None:
            nonlocal started
            if done.is_published:
                _print(store, done, time.monotonic() - started, as_json)
            started = time.monotonic()

        with _spark(master, None, memory, slots) as spark:
            watching = Watch(spark, ledger, store, interval=interval, on_run=on_run, reconcile=judge)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: watching.stop())
            watching.go()


@contextmanager
def _work(log_format: LogFormat, log_level: str) -> Iterator[None]:
    """Errors in a line, each with its exit code."""
    if log_level.lower() not in LEVELS:
        fail("twinbus pipeline", f"--log-level must be one of {', '.join(LEVELS)}, not {log_level!r}", BAD_USAGE)
    configure_logs(log_format, log_level)
    with failing("twinbus pipeline"):
        require_spark()
        yield


def _open(ledger: str, results: str | None) -> Results:
    from twinbus.ledger.store import open_store, require_ledger
    from twinbus.pipeline.results import Results, default_results

    require_ledger(open_store(ledger))  # Spark takes seconds to start
    place = results or default_results(ledger)
    check_results(place, ledger)
    return Results.open(place)


@contextmanager
def _spark(master: str | None, remote: str | None, memory: str | None, slots: int | None) -> Iterator[SparkSession]:
    from twinbus.pipeline.session import check_workers, is_running, running_spark

    # Reading is work for the processor: more tasks than cores would only take memory from each other.
    tasks = max(2, os.cpu_count() or 1) if slots is None else slots
    is_own = master is None and remote is None and not is_running()
    # Spark's own number, 200, is for clusters.
    config = {"spark.sql.shuffle.partitions": str(4 * tasks)} if is_own else {}
    with running_spark(master=master, remote=remote, memory=memory, slots=tasks, config=config) as spark:
        if not is_own:
            check_workers(spark)
        yield spark


def _reconcile(wanted: bool, drained: bool, patience: str) -> Reconcile | None:
    if not wanted:
        return None
    from functools import partial

    from twinbus.pipeline.reconciliation import LEAST_PATIENCE, MOST_PATIENCE, reconcile

    waits = float(seconds("--patience", patience))
    if not LEAST_PATIENCE.total_seconds() <= waits <= MOST_PATIENCE.total_seconds():  # before Spark is started
        raise ValueError(f"--patience must be from {LEAST_PATIENCE.days} to {MOST_PATIENCE.days} days, not {patience}")
    return partial(reconcile, drained=drained, patience=timedelta(seconds=waits))


@contextmanager
def _progress(as_json: bool) -> Iterator[Any]:
    """A bar on standard error, where somebody watches."""
    console = Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting Spark", total=None)
        yield lambda what, done, total: progress.update(task, description=what, completed=done, total=total or None)


def _print(store: Results, done: Ingested, seconds: float, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(_to_json(store, done, seconds), ensure_ascii=False))
        return
    snapshot = done.snapshot
    for one in snapshot.set_aside[:MOST_LINES]:
        typer.echo(f"twinbus pipeline: {printable(one.path)} was left out: {printable(one.reason)}", err=True)
    if (more := len(snapshot.set_aside) - MOST_LINES) > 0:
        typer.echo(f"twinbus pipeline: and {more:,} more were left out", err=True)
    known = _ledger(snapshot)
    if done.is_published:
        typer.echo(f"{done.rows:,} rows of {len(done.days):,} days read in {seconds:.1f} s")
    else:
        typer.echo("nothing has changed")
    typer.echo(
        f"{known['rows']:,} rows of {known['days']:,} days in {known['files']:,} files;"
        f" {known['repeated_rows']:,} rows were there twice, {known['dropped_rows']:,} are missing"
    )
    summary = (snapshot.reconciliation or {}).get("summary")
    if summary is not None:
        words = ("acknowledged", "ok", "lost", "unexpected", "duplicated", "recovered", "in_flight")
        typer.echo(", ".join(f"{summary[word]:,} {word.replace('_', ' ')}" for word in words))
    typer.echo(f"results: {store.url}, number {snapshot.number}")


def _to_json(store: Results, done: Ingested, seconds: float) -> dict[str, Any]:
    snapshot = done.snapshot
    return {
        "results": store.url,
        "snapshot": snapshot.number,
        "published": done.is_published,
        "seconds": round(seconds, 3),
        "ingested": {"days": list(done.days), "rows": done.rows},
        "ledger": _ledger(snapshot),
        "set_aside": [{"path": one.path, "reason": one.reason} for one in snapshot.set_aside],
        "reconciliation": (snapshot.reconciliation or {}).get("summary"),
    }


def _ledger(snapshot: Snapshot) -> Mapping[str, Any]:
    """What the results tell of."""
    days = snapshot.days.values()
    rows = sum(day.rows for day in days)
    first = min((day.first_us for day in days if day.first_us is not None), default=None)
    last = max((day.last_us for day in days if day.last_us is not None), default=None)
    return {
        "days": len(days),
        "files": sum(day.files for day in days),
        "bytes": sum(day.bytes for day in days),
        "rows": rows,
        "repeated_rows": sum(day.rows_in_files for day in days) - rows,
        "dropped_rows": snapshot.dropped,
        "first": _iso(first),
        "last": _iso(last),
    }


def _iso(us: int | None) -> str | None:
    return None if us is None else datetime.fromtimestamp(us / 1e6, UTC).isoformat(timespec="microseconds")
