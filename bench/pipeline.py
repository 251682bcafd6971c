"""Measures the pipeline on Spark against DuckDB, which writes the same tables (`make bench-pipeline`).

Uses 20 million rows of ten weeks; 100 million with BIG=1, 2 million with QUICK=1, or --rows. Spark and DuckDB alternate
on the same number of threads, and the first round is a warm-up. The tables of both must have the same rows and match
what the generator of the ledger knows. Besides wall time, the CPU time of all cores is measured, because only that is
comparable on a shared machine. `bench.spark_syphon` runs at the end (--no-syphon skips it). The last line is one JSON
object; the exit code is 1 only if a result is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from bench.cores import seconds_of_cores
from bench.ledger_shape import Shape
from bench.ledgers import generate
from bench.pipeline_duckdb import DuckTables
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table as ShownTable

from twinbus.spark.pipeline.day_planning import FIRST_PLAUSIBLE_DAY
from twinbus.spark.pipeline.run import CLOCK_SKEW, RunOptions, RunResult, run_pipeline
from twinbus.spark.pipeline.storage import ResultTables, settings
from twinbus.spark.session import running_spark
from twinbus.spark.transformations import message_days as message_days_table
from twinbus.spark.transformations import operation_counts as counts
from twinbus.spark.transformations.anomalies import anomalies, with_late_arrivals
from twinbus.spark.transformations.operations import read_files
from twinbus.spark.transformations.usage import usage
from twinbus.spark.transformations.verdicts import (
    daily_usage,
    messages,
    receiver_times,
    spellings,
    verdict_counts,
    verdicts,
    with_words,
)
from twinbus.tables.table_schemas import ANOMALIES, MESSAGE_DAYS, USAGE, VERDICTS, Table

CORES = os.cpu_count() or 1
FOLDER = Path("build/bench-pipeline")
OPTIONS = RunOptions()
PATIENCE = OPTIONS.patience + CLOCK_SKEW
#: Later than every row of a generated ledger, so that all timestamps are plausible.
NOW = datetime(2027, 1, 1, tzinfo=UTC)
#: Sizes for the runs with one changed day and with many small files.
ROWS_OF_A_SMALL_DAY = 1_000
SMALL_FILES, ROWS_OF_A_SMALL_FILE = 5_000, 50

AIMS = {
    "usage, Spark": "≤ 2.2 of DuckDB",
    "reconciliation, Spark": "≤ 3.0 of DuckDB",
    "full run": "≥ 300,000 rows/s at 100 million",
    "one changed day of 300": "± 30 % of 30 days",
    "many small files": "≤ 20 s",
}


class WrongResultError(Exception):
    """A table differs from the expected result."""


@dataclass
class Stopwatch:
    """Wall time and CPU time by name, including the process `java` and its descendants."""

    java: int
    seconds: dict[str, list[float]] = field(default_factory=dict)
    cores: dict[str, list[float]] = field(default_factory=dict)

    def take(self, name: str, work: Callable[[], Any], *, counts: bool = True) -> Any:
        started, cores = time.perf_counter(), self._cores()
        result = work()
        if counts:
            self.seconds.setdefault(name, []).append(time.perf_counter() - started)
            self.cores.setdefault(name, []).append(self._cores() - cores)
        print(f"{name}: {time.perf_counter() - started:.2f} s{'' if counts else ' (warms up)'}", file=sys.stderr)
        return result

    def _cores(self) -> float:
        return sum(os.times()[:2]) + seconds_of_cores(self.java)

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def ratio(self, name: str, other: str) -> float:
        return round(self.median(name) / self.median(other), 2)

    def core_ratio(self, name: str, other: str) -> float:
        return round(statistics.median(self.cores[name]) / statistics.median(self.cores[other]), 2)

    def peak_mb(self) -> int:
        """Peak memory of Java so far."""
        lines = Path(f"/proc/{self.java}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024


def cached_ledger(name: str, shape: Shape) -> Path:
    """A ledger that is generated once; its expected figures are in a file beside it (`truth_of`)."""
    ledger = FOLDER / f"{name}-{shape.rows}"
    if not truth_file(ledger).is_file():
        shutil.rmtree(ledger, ignore_errors=True)
        expected = generate(ledger, shape, workers=CORES)
        truth = {word: getattr(expected, word) for word in ("attempted", "acknowledged", "ok")}
        for word in ("lost", "unexpected", "duplicated", "recovered", "in_flight"):
            truth[word] = len(getattr(expected, word))
        truth_file(ledger).write_text(json.dumps({"rows": expected.rows, "files": expected.files, "words": truth}))
    return ledger


def truth_file(ledger: Path) -> Path:
    return ledger.with_name(f"{ledger.name}.truth.json")


def truth_of(ledger: Path) -> dict[str, Any]:
    truth: dict[str, Any] = json.loads(truth_file(ledger).read_text())
    return truth


def history(rows: int, days: int = 70) -> Shape:
    """Ten weeks with an outage every other day, and a few lost and unexpected messages."""
    anomaly_count = min(20, rows // 1_000)
    return Shape(
        rows=rows, days=days, start=FIRST_PLAUSIBLE_DAY, outages=days // 2, lost=anomaly_count, unexpected=anomaly_count
    )


class SparkTables:
    """Writes tables with the transformations, as `twinbus.spark.pipeline.run` does."""

    def __init__(self, spark: SparkSession, ledger: Path, results: Path) -> None:
        self._spark = spark
        self._ledger = ledger.absolute().as_uri()
        self._tables = ResultTables(spark, results.absolute().as_uri())
        self._days = sorted(date.fromisoformat(folder.name.removeprefix("day=")) for folder in ledger.glob("day=*"))

    def _rows(self) -> DataFrame:
        return read_files(self._spark, self._ledger, [self._ledger])

    def usage(self) -> None:
        self._tables.replace(USAGE, usage(counts.operation_counts(self._rows().select(*counts.COLUMNS))), self._days)

    def reconcile(self) -> None:
        """Write `message_days`, `verdicts` and `anomalies`. Needs `usage`."""
        facts = message_days_table.message_days(self._rows().select(*message_days_table.COLUMNS))
        self._tables.replace(MESSAGE_DAYS, facts, self._days, small=False)
        used = daily_usage(self._tables.read(USAGE)).persist()
        paths, facts = spellings(used), self._tables.read(MESSAGE_DAYS, self._days)
        times = receiver_times(used, used.select("day").distinct(), OPTIONS.horizon_days)
        found = with_words(messages(facts, OPTIONS.horizon_days), times, PATIENCE, OPTIONS.drained)
        persisted = counted = verdict_counts(found).persist()
        if counted.where("is_beyond").limit(1).count():
            raise WrongResultError("expected no operations beyond the horizon, which the DuckDB queries do not handle")
        if counted.where("unexpected and not is_late").limit(1).count():
            counted = with_late_arrivals(counted, facts)
        self._tables.replace(VERDICTS, verdicts(counted, paths), self._days)
        self._tables.replace(ANOMALIES, anomalies(counted, paths), self._days)
        persisted.unpersist()
        used.unpersist()


class Bench:
    """All measurements on one ledger."""

    def __init__(self, spark: SparkSession, watch: Stopwatch, ledger: Path, rounds: int, duckdb_memory: str) -> None:
        self._spark = spark
        self._watch = watch
        self._ledger = ledger
        self._rounds = rounds
        self._duck_results, self._spark_results = FOLDER / "duckdb-results", FOLDER / "spark-results"
        for results in (self._duck_results, self._spark_results):
            shutil.rmtree(results, ignore_errors=True)
        self._duck = DuckTables(ledger, self._duck_results, threads=CORES, memory=duckdb_memory)

    def against_duckdb(self) -> dict[str, float]:
        tables = SparkTables(self._spark, self._ledger, self._spark_results)
        measurements: dict[str, tuple[Callable[[], None], Callable[[], None], tuple[Table, ...]]] = {
            "usage": (tables.usage, self._duck.usage, (USAGE,)),
            "reconciliation": (
                tables.reconcile,
                lambda: self._duck.reconcile(OPTIONS.horizon_days, PATIENCE),
                (MESSAGE_DAYS, VERDICTS, ANOMALIES),
            ),
        }
        figures: dict[str, float] = {}
        with settings(self._spark):
            for name, (by_spark, by_duckdb, written) in measurements.items():
                for number in range(self._rounds + 1):
                    self._watch.take(f"{name}, Spark", by_spark, counts=number > 0)
                    self._watch.take(f"{name}, DuckDB", by_duckdb, counts=number > 0)
                self._check(self._spark_results, *written)
                pair = f"{name}, Spark", f"{name}, DuckDB"
                figures |= {f"{name}_vs_duckdb": self._watch.ratio(*pair)}
                figures |= {f"{name}_vs_duckdb_cores": self._watch.core_ratio(*pair)}
        self._check_words(self._spark_results)
        self._check_words(self._duck_results)
        return figures

    def full_run(self) -> dict[str, float]:
        results = FOLDER / "run-results"
        rows = 0
        for _ in range(self._rounds):
            shutil.rmtree(results, ignore_errors=True)
            rows = self._watch.take("full run", lambda: self._run(self._ledger, results)).rows
            if self._watch.take("full run, nothing new", lambda: self._run(self._ledger, results)).is_changed:
                raise WrongResultError("expected no changes from a run without new files")
        self._check(results, USAGE, MESSAGE_DAYS, VERDICTS, ANOMALIES)
        self._check_words(results)
        return {"rows": rows, "full_run_rows_per_second": round(rows / self._watch.median("full run"))}

    def changed_day(self) -> dict[str, float]:
        """Measure runs with one changed day, with 30 and with 300 days."""
        ledgers = {days: cached_ledger("days", history(days * ROWS_OF_A_SMALL_DAY, days)) for days in (30, 300)}
        for days, ledger in ledgers.items():
            shutil.rmtree(FOLDER / f"days-{days}-results", ignore_errors=True)
            self._run(ledger, FOLDER / f"days-{days}-results")
        for number in range(self._rounds + 1):
            for days, ledger in ledgers.items():
                newest = max(ledger.iterdir())
                os.utime(max(newest.iterdir()))  # a changed time counts as a rewritten file
                work = lambda: self._run(ledger, FOLDER / f"days-{days}-results")  # noqa: B023, E731
                result = self._watch.take(f"one changed day of {days}", work, counts=number > 0)
                if [f"day={day}" for day in result.days] != [newest.name]:
                    raise WrongResultError(f"expected a run over {newest.name}, got {result.days}")
        return {"changed_day_300_vs_30_days": self._watch.ratio("one changed day of 300", "one changed day of 30")}

    def small_files(self) -> dict[str, float]:
        rows = SMALL_FILES * ROWS_OF_A_SMALL_FILE
        shape = Shape(rows=rows, days=7, start=FIRST_PLAUSIBLE_DAY, block=rows // 3 // SMALL_FILES + 1)
        ledger, results = cached_ledger("files", shape), FOLDER / "files-results"
        shutil.rmtree(results, ignore_errors=True)
        result = self._watch.take("many small files", lambda: self._run(ledger, results))
        if result.rows != truth_of(ledger)["rows"]:
            raise WrongResultError(f"small files: expected {truth_of(ledger)['rows']} rows, got {result.rows}")
        return {
            "small_files": len(result.inputs),
            "small_files_seconds": round(self._watch.median("many small files"), 1),
        }

    def close(self) -> None:
        self._duck.close()

    def _run(self, ledger: Path, results: Path) -> RunResult:
        places = ledger.absolute().as_uri(), results.absolute().as_uri()
        return run_pipeline(self._spark, *places, OPTIONS, now=NOW)

    def _check(self, results: Path, *tables: Table) -> None:
        for table in tables:
            ours, theirs = (self._duck.fingerprint(folder, table) for folder in (results, self._duck_results))
            if ours != theirs:
                raise WrongResultError(
                    f"{table.name} in {results}: rows differ from DuckDB's ({ours[0]} rows, DuckDB {theirs[0]})"
                )

    def _check_words(self, results: Path) -> None:
        """Compare the verdicts of each destination with DuckDB's, and their sums with the truth."""
        words = self._duck.words(results)
        if words != self._duck.words(self._duck_results):
            raise WrongResultError(f"{results}: verdicts by destination differ from DuckDB's")
        expected = truth_of(self._ledger)["words"]
        totals = {word: sum(counts[word] for counts in words.values()) for word in expected}
        if totals != expected:
            raise WrongResultError(f"{results}: expected {expected}, got {totals}")


def table_of(watch: Stopwatch, figures: dict[str, Any], title: str) -> ShownTable:
    table = ShownTable("", "seconds", "CPU seconds of all cores", "ratio to DuckDB", "aim", title=title)
    for name in watch.seconds:
        base = name.replace(", Spark", ", DuckDB")
        ratio = f"{watch.ratio(name, base):.2f}" if base != name else ""
        if name == "full run":
            ratio = f"{figures['full_run_rows_per_second']:,} rows/s"
        cores = statistics.median(watch.cores[name])
        table.add_row(name, f"{watch.median(name):.2f}", f"{cores:.2f}", ratio, AIMS.get(name, ""))
    return table


def arguments() -> argparse.ArgumentParser:
    """The options shared with `bench.pipeline_scale`."""
    rows = 100e6 if os.environ.get("BIG") else 2e6 if os.environ.get("QUICK") else 20e6
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=int(rows), help="rows of the ledger (%(default)s)")
    parser.add_argument("--ledger", type=Path, help="a ledger generated by an earlier run")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds (%(default)s)")
    parser.add_argument("--memory", default="2g", help="memory of the Spark driver and of executors (%(default)s)")
    return parser


def main() -> None:
    parser = arguments()
    parser.add_argument("--duckdb-memory", default="8GB", help="DuckDB's memory limit (%(default)s)")
    parser.add_argument("--no-syphon", action="store_true", help="skip the syphon on Spark")
    options = parser.parse_args()
    ledger = options.ledger or cached_ledger("history", history(options.rows))
    figures: dict[str, Any] = {}
    config = {"spark.sql.shuffle.partitions": str(4 * CORES)}  # as `twinbus pipeline run` has it
    with running_spark(master=f"local[{CORES},4]", memory=options.memory, config=config) as spark:
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        watch = Stopwatch(gateway.proc.pid)
        bench = Bench(spark, watch, ledger, options.rounds, options.duckdb_memory)
        for part in (bench.against_duckdb, bench.full_run, bench.changed_day, bench.small_files):
            figures |= part()
        figures |= {"peak_memory_mb": watch.peak_mb(), "memory_setting": options.memory}
        bench.close()
    title = f"{figures['rows']:,} rows, {CORES} cores; {options.memory} for Spark, {options.duckdb_memory} for DuckDB"
    Console(width=120).print(table_of(watch, figures, title))
    print(f"Java peak memory: {figures['peak_memory_mb']} MB; its heap (spark.driver.memory) is {options.memory}")
    if not options.no_syphon:
        command = [sys.executable, "-m", "bench.spark_syphon"]
        completed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        *lines, last = completed.stdout.strip().splitlines()
        print("\n".join(lines))
        figures |= json.loads(last)
    print(json.dumps(figures))


if __name__ == "__main__":
    try:
        main()
    except WrongResultError as error:
        sys.exit(f"wrong result: {error}")
