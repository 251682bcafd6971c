"""`twinbus pipeline`: updates the result tables from a ledger, once or repeatedly."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from twinbus.ledger.ledger_errors import LedgerError, LedgerNotFoundError
from twinbus.ledger.locations import locate
from twinbus.spark.pipeline_errors import PipelineError
from twinbus.spark.session import require_spark
from twinbus.tables.table_errors import TablesError

from ..exits import BAD_USAGE, fail
from ..failures import exit_on_error
from ..logs import LEVELS, FormatOption, LogFormat, configure_logs
from ..options.places import check_results
from ..options.quantities import seconds
from ..options.spark_options import MasterOption, MemoryOption, RemoteOption
from ..options.storage_options import StorageOption, storage_options
from ..text import counted, printable

if TYPE_CHECKING:  # these need libraries of the extra `spark`
    from pyspark.sql import SparkSession

    from twinbus.report.reconciliation_summary import Summary
    from twinbus.spark.pipeline.day_planning import InputFile
    from twinbus.spark.pipeline.run import RunResult

COMMAND = "twinbus pipeline"
#: Unreadable files that are printed; the JSON has them all.
MAX_LINES = 20

app = typer.Typer(no_args_is_help=True, help="Compute result tables from a ledger, for reports and SQL.")

LedgerArgument = Annotated[str, typer.Argument(metavar="LEDGER", help="Ledger: a folder, or a URL such as abfss://…")]
ResultsOption = Annotated[
    str | None,
    typer.Option(metavar="PATH_OR_URL", help="Location of the result tables.", show_default="<LEDGER>-results"),
]
ReconcileOption = Annotated[
    bool, typer.Option("--reconcile/--no-reconcile", help="Check whether every accepted message arrived.")
]
DrainedOption = Annotated[
    bool, typer.Option("--drained", help="Backlog and destinations are empty, so what has not arrived is lost.")
]
PatienceOption = Annotated[
    str,
    typer.Option(
        metavar="DURATION",
        help="A message counts as lost only if its receivers still reported this long after it was accepted,"
        " such as 30m.",
    ),
]
HorizonOption = Annotated[
    int, typer.Option(metavar="DAYS", help="Operations of a message belong together within this many days.")
]
ShrinkOption = Annotated[
    bool,
    typer.Option("--allow-shrink", help="Recompute days whose files were removed, from the files that are left."),
]
TableFormatOption = Annotated[
    str, typer.Option(metavar="NAME", help="parquet, or a format that this Spark can write, such as delta or iceberg.")
]
SlotsOption = Annotated[int | None, typer.Option(help="Parallel tasks on this machine.", show_default="cores")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per run, for programs.")]
LevelOption = Annotated[str, typer.Option(help=f"One of {', '.join(LEVELS)}.")]


@app.command()
def run(
    ledger: LedgerArgument,
    results: ResultsOption = None,
    reconcile: ReconcileOption = True,
    drained: DrainedOption = False,
    patience: PatienceOption = "1h",
    horizon: HorizonOption = 14,
    allow_shrink: ShrinkOption = False,
    format: TableFormatOption = "parquet",
    storage_option: StorageOption = None,
    master: MasterOption = None,
    remote: RemoteOption = None,
    memory: MemoryOption = None,
    slots: SlotsOption = None,
    as_json: JsonOption = False,
    log_format: FormatOption = LogFormat.TEXT,
    log_level: LevelOption = "error",
) -> None:
    """Update the tables once. Reads only days whose files are new or changed.

    Example: twinbus pipeline run ./ledger && twinbus report ./ledger-results
    """
    with _exit_on_error(log_format, log_level):
        options = storage_options(storage_option)
        arguments = _options(reconcile, drained, patience, horizon, allow_shrink, format)
        job = _Job(ledger, results or _default_results(ledger), arguments, options)
        job.check()
        started = time.monotonic()
        with _spark(master, remote, memory, slots) as spark, _progress() as progress:
            result = job.run(spark, progress)
        job.show(result, time.monotonic() - started, as_json)


@app.command()
def watch(
    ledger: LedgerArgument,
    results: ResultsOption = None,
    interval: Annotated[float, typer.Option(metavar="SECONDS", help="Pause between runs.")] = 60.0,
    reconcile: ReconcileOption = True,
    drained: DrainedOption = False,
    patience: PatienceOption = "1h",
    horizon: HorizonOption = 14,
    format: TableFormatOption = "parquet",
    storage_option: StorageOption = None,
    master: MasterOption = None,
    remote: RemoteOption = None,
    memory: MemoryOption = None,
    slots: SlotsOption = None,
    as_json: JsonOption = False,
    log_format: FormatOption = LogFormat.TEXT,
    log_level: LevelOption = "error",
) -> None:
    """Update the tables repeatedly, until Ctrl-C.

    Example: twinbus pipeline watch ./ledger --interval 60
    """
    with _exit_on_error(log_format, log_level):
        from twinbus.spark.pipeline.watching import Watch, check_interval

        check_interval(interval)
        options = storage_options(storage_option)
        arguments = _options(reconcile, drained, patience, horizon, False, format)
        job = _Job(ledger, results or _default_results(ledger), arguments, options)
        job.check()
        with _spark(master, remote, memory, slots) as spark:
            started = time.monotonic()

            def on_run(result: RunResult) -> None:
                nonlocal started
                if result.is_changed:
                    job.show(result, time.monotonic() - started, as_json)
                started = time.monotonic()

            watching = Watch(lambda: job.run(spark), interval, on_run)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: watching.stop())
            watching.go()


@contextmanager
def _exit_on_error(log_format: LogFormat, log_level: str) -> Iterator[None]:
    """Configure logging, and exit with one line and the right code on an error."""
    if log_level.lower() not in LEVELS:
        fail(COMMAND, f"--log-level must be one of {', '.join(LEVELS)}, not {log_level!r}", BAD_USAGE)
    configure_logs(log_format, log_level)
    with exit_on_error(COMMAND):
        require_spark()
        from twinbus.spark.pipeline.run_errors import (
            LedgerUnreachableError,
            ResultsUnreachableError,
            ResultsVersionError,
        )

        try:
            yield
        except (LedgerUnreachableError, ResultsUnreachableError, ResultsVersionError) as error:
            fail(COMMAND, str(error), BAD_USAGE)
        except (LedgerError, OSError, PipelineError, TablesError, ValueError, ImportError, typer.Exit):
            raise
        except Exception as error:
            fail(COMMAND, f"Spark failed: {_reason(error)}; details are in {_write_log(error)}")


def _reason(error: Exception) -> str:
    from twinbus.spark.pipeline.error_inspection import reason_of

    return reason_of(error)


def _write_log(error: Exception) -> str:
    """Write the traceback of an error to a new file; return its path."""
    with tempfile.NamedTemporaryFile(
        "w", prefix="twinbus-pipeline-", suffix=".log", delete=False, encoding="utf-8"
    ) as file:
        file.writelines(traceback.format_exception(error))
    return file.name


def _default_results(ledger: str) -> str:
    from twinbus.tables.result_reader import default_results

    return default_results(ledger)


def _options(
    reconcile: bool, drained: bool, patience: str, horizon: int, allow_shrink: bool, format: str
) -> Mapping[str, Any]:
    """Return the arguments of `run_pipeline`. Raises `ValueError` for values out of bounds."""
    from twinbus.spark.pipeline.run import LONGEST_PATIENCE, RunOptions

    patience_time = timedelta(seconds=float(seconds("--patience", patience)))
    if not timedelta(0) <= patience_time <= LONGEST_PATIENCE:
        raise ValueError(f"--patience must be from 0 to {LONGEST_PATIENCE.days} days, not {patience}")
    try:
        RunOptions(horizon_days=horizon)
    except ValueError as error:
        raise ValueError(str(error).replace("horizon_days", "--horizon")) from None
    return {
        "reconcile": reconcile,
        "drained": drained,
        "patience": patience_time,
        "horizon_days": horizon,
        "allow_shrink": allow_shrink,
        "format": format,
    }


@dataclass(frozen=True, slots=True)
class _Job:
    """A pipeline run: its ledger, its results and its arguments."""

    ledger: str
    results: str
    arguments: Mapping[str, Any]
    storage_options: Mapping[str, Any]

    @property
    def results_url(self) -> str:
        return locate(self.results, self.storage_options).spark

    def check(self) -> None:
        """Refuse impossible locations before Spark starts. Stores that only Spark reaches are not checked."""
        from twinbus.ledger.store import open_store, require_ledger

        try:
            require_ledger(open_store(self.ledger, self.storage_options))
        except LedgerNotFoundError as error:
            fail(COMMAND, str(error), BAD_USAGE)
        except ImportError:
            if locate(self.ledger).is_local:
                raise
        check_results(self.results, self.ledger, self.storage_options)

    def run(
        self, spark: SparkSession, progress: Callable[[str, int, int], None] = lambda what, done, total: None
    ) -> RunResult:
        from twinbus.spark import run_pipeline

        return run_pipeline(
            spark,
            self.ledger,
            self.results,
            **self.arguments,
            storage_options=self.storage_options,
            progress=progress,
        )

    def show(self, result: RunResult, seconds: float, as_json: bool) -> None:
        """Print what a run did, and a summary of the tables."""
        summary, facts = self._summary(result)
        unreadable = [file for file in result.inputs if file.reason is not None and file.status != "replaced"]
        if as_json:
            document = {
                "results": self.results_url,
                "snapshot": result.number,
                "published": result.is_changed,
                "seconds": round(seconds, 3),
                "ingested": {"days": [day.isoformat() for day in result.days], "rows": result.rows},
                "ledger": facts,
                "unreadable": [{"path": _path(file), "reason": file.reason} for file in unreadable],
                "reconciliation": None if summary is None else summary.to_json(),
            }
            typer.echo(json.dumps(document, ensure_ascii=False))
            return
        for file in unreadable[:MAX_LINES]:
            typer.echo(f"{COMMAND}: {printable(_path(file))} was left out: {printable(file.reason or '')}", err=True)
        if (more := len(unreadable) - MAX_LINES) > 0:
            typer.echo(f"{COMMAND}: {counted(more, 'more file was', 'more files were')} left out", err=True)
        if result.is_changed:
            typer.echo(f"{counted(result.rows, 'row')} of {counted(len(result.days), 'day')} read in {seconds:.1f} s")
        else:
            typer.echo("nothing has changed")
        contents = (counted(facts["rows"], "row"), counted(facts["days"], "day"), counted(facts["files"], "file"))
        typer.echo(
            "ledger: {} of {} in {};".format(*contents)
            + f" {counted(facts['repeated_rows'], 'repeated row')}, {counted(facts['dropped_rows'], 'dropped row')}"
        )
        if summary is not None:
            words = ("acknowledged", "ok", "lost", "unexpected", "duplicated", "recovered", "in_flight")
            typer.echo(", ".join(f"{summary.count(word):,} {word.replace('_', ' ')}" for word in words))
        typer.echo(f"results: {self.results_url}, snapshot {result.number}")

    def _summary(self, result: RunResult) -> tuple[Summary | None, dict[str, Any]]:
        """Summarize the tables, read without Spark, and the ledger's files."""
        from twinbus.report.reconciliation import summary_of
        from twinbus.report.report_inputs import read_tables
        from twinbus.tables.result_reader import Results

        facts = _facts([file for file in result.inputs if file.status == "read"])
        rows_in_files = facts.pop("rows_in_files")
        unknown = facts | {"rows": rows_in_files, "repeated_rows": 0, "dropped_rows": 0}
        if self.arguments["format"] != "parquet":
            return None, unknown
        location = locate(self.results, self.storage_options)
        try:
            results = Results(location.fsspec, {**location.options, **self.storage_options})
        except (ImportError, ValueError):  # only Spark reaches this store
            return None, unknown
        tables = read_tables(results, lambda period: period, since=None, until=None, anomalies=0)
        rows = tables.facts.total("rows")
        dropped = tables.facts.total("dropped")
        known = facts | {"rows": rows, "repeated_rows": rows_in_files - rows, "dropped_rows": dropped}
        return summary_of(tables), known


def _facts(files: Sequence[InputFile]) -> dict[str, Any]:
    first = min((file.first_time for file in files if file.first_time is not None), default=None)
    last = max((file.last_time for file in files if file.last_time is not None), default=None)
    return {
        "days": len({file.day for file in files}),
        "files": len(files),
        "bytes": sum(file.bytes for file in files),
        "rows_in_files": sum(file.rows for file in files),
        "first": _iso(first),
        "last": _iso(last),
    }


def _path(file: InputFile) -> str:
    return file.name if file.day is None else f"day={file.day}/{file.name}"


def _iso(us: int | None) -> str | None:
    return None if us is None else datetime.fromtimestamp(us / 1e6, UTC).isoformat(timespec="microseconds")


@contextmanager
def _spark(master: str | None, remote: str | None, memory: str | None, slots: int | None) -> Iterator[SparkSession]:
    from twinbus.spark.session import is_running, running_spark

    # Reading is CPU-bound: more tasks than cores would only compete for memory.
    tasks = max(2, os.cpu_count() or 1) if slots is None else slots
    is_own = master is None and remote is None and not is_running()
    # Spark's default, 200, is meant for clusters.
    config = {"spark.sql.shuffle.partitions": str(4 * tasks)} if is_own else {}
    with running_spark(master=master, remote=remote, memory=memory, slots=tasks, config=config) as spark:
        yield spark


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show a progress bar on standard error, if that is a terminal."""
    console = Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting Spark", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total or None)
