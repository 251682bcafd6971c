"""What the pipeline takes (`make bench-pipeline`): ingest, cost and reports, DuckDB and Polars on the same files.

20 million rows of ten weeks, 100 million with BIG=1, 2 million with QUICK=1 (or ROWS=…). Engines take turns, and the
first round does not count. Beside the time on the clock there is the time of all cores: where others use the machine,
too, only that compares. Then it runs `bench.reconcile` on the same ledger, and `bench.spark_syphon`; PARTS=ingest
leaves those out. The last line is one JSON object.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
from bench.cores import seconds_of_cores, with_children
from bench.ledger_shape import Shape
from bench.ledgers import generate
from rich.console import Console
from rich.table import Table

from twinbus.ledger.schema import pa
from twinbus.pipeline.billing import Bill, Contract, bill
from twinbus.pipeline.changes import changed_hours
from twinbus.pipeline.cost import Period, cost_of, period_of, usages
from twinbus.pipeline.files import survey
from twinbus.pipeline.ingest import ingest
from twinbus.pipeline.latency import percentiles
from twinbus.pipeline.outages import outages_of
from twinbus.pipeline.prices import load_prices
from twinbus.pipeline.results import Results, Snapshot
from twinbus.pipeline.rollup_tasks import blocks_of, rolling
from twinbus.pipeline.session import spark_session
from twinbus.pipeline.tables import ACTIVITY, LATENCY, USAGE, WAITS
from twinbus.pipeline.tasks import run

ROWS = int(os.environ.get("ROWS") or (100e6 if os.environ.get("BIG") else 2e6 if os.environ.get("QUICK") else 20e6))
MEMORY = os.environ.get("MEMORY", "2g")
ROUNDS = 3
WEEKS = 10
CORES = os.cpu_count() or 1
FOLDER = Path("build/bench-pipeline")

#: The rollup `usage`, as SQL.
USAGE_SQL = """
select epoch_us(ts) - epoch_us(ts) % 3600000000 as hour_us, pairing, client, namespace,
    coalesce(destination, entity) as entity, operation, stage, outcome,
    count(*) as rows, sum(count)::bigint as count,
    sum(case when outcome not in (1, 3, 4) or stage = 9 then 0
        when operation = 10 then greatest(1, (bytes + 65535) // 65536)
        else greatest(count, case when operation in (1, 2, 11) then greatest(1, (bytes + 65535) // 65536) else 1 end)
        end)::bigint as units,
    sum(bytes)::bigint as bytes,
    sum(case when namespace = 2 and operation in (1, 2, 10, 11) and outcome in (1, 3, 4) then bytes else 0 end)::bigint
        as transferred
from {rows} group by all
"""


class Stopwatch:
    """The time of some runs, on the clock and of all cores, by name."""

    def __init__(self) -> None:
        self.java: int | None = None
        self.seconds: dict[str, list[float]] = {}
        self.cores: dict[str, list[float]] = {}

    def take(self, name: str, work: Callable[[], Any], *, counts: bool = True) -> Any:
        started, cores = time.perf_counter(), self._cores()
        found = work()
        if counts:
            self.seconds.setdefault(name, []).append(time.perf_counter() - started)
            self.cores.setdefault(name, []).append(self._cores() - cores)
        return found

    def _cores(self) -> float:
        return sum(os.times()[:2]) + (seconds_of_cores(self.java) if self.java else 0.0)

    def peak_mb(self) -> tuple[int, int]:
        """The most memory that Java has had so far, and the most that one of its Python workers has had."""
        assert self.java is not None
        java, *workers = (_peak_mb(one) for one in with_children(self.java))
        return java, max(workers, default=0)

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def ratio(self, name: str, other: str) -> float:
        return round(self.median(name) / self.median(other), 2)

    def core_ratio(self, name: str, other: str) -> float:
        return round(statistics.median(self.cores[name]) / statistics.median(self.cores[other]), 2)


def _peak_mb(process: int) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0) // 1024


def ledgers() -> dict[str, Path]:
    """A week, ten weeks with the same traffic, and these with every tenth row in a second file; made once."""
    shapes = {
        "week": Shape(rows=ROWS // WEEKS, days=7, outages=3),
        "history": Shape(rows=ROWS, days=7 * WEEKS, outages=3 * WEEKS),
        "repeats": Shape(rows=ROWS, days=7 * WEEKS, outages=3 * WEEKS, repeats=100),
    }
    found = {}
    for name, shape in shapes.items():
        found[name] = FOLDER / f"{name}-{shape.rows}"
        if not found[name].is_dir():
            making = found[name].with_name("making")
            shutil.rmtree(making, ignore_errors=True)
            generate(making, shape, workers=CORES)
            making.rename(found[name])
    return found


def cost_with_spark(spark: Any, ledger: Path) -> Bill:
    view, results = survey(ledger), Results.open(FOLDER / "cost-results")
    shutil.rmtree(FOLDER / "cost-results", ignore_errors=True)
    blocks = [one for day, files in view.days.items() for one in blocks_of(day, files, changed_hours(None, files), {})]
    made = run(spark, rolling(view.store, results, "cost", blocks, ["usage"]), [one.rows for one in blocks])
    return billed(results.table([one["files"]["usage"] for one in made if one["files"]], USAGE))


def cost_with_duckdb(duck: duckdb.DuckDBPyConnection, ledger: Path, *, is_unique: bool = True) -> Bill:
    rows = f"read_parquet('{ledger}/*/*.parquet')"
    rows = rows if is_unique else f"(select distinct on (op_id) * from {rows})"
    return billed(duck.sql(USAGE_SQL.format(rows=rows)).to_arrow_table())


def cost_with_polars(ledger: Path) -> Bill:
    us, size = pl.col("ts").cast(pl.Int64), (pl.col("bytes") + 65_535) // 65_536
    sized = pl.when(pl.col("operation").is_in([1, 2, 11])).then(pl.max_horizontal(size, 1)).otherwise(1)
    units = (
        pl.when(~pl.col("outcome").is_in([1, 3, 4]) | (pl.col("stage") == 9))
        .then(0)
        .when(pl.col("operation") == 10)
        .then(pl.max_horizontal(size, 1))
        .otherwise(pl.max_horizontal(sized, "count"))
    )
    is_moved = (pl.col("namespace") == 2) & pl.col("operation").is_in([1, 2, 10, 11])
    keys = ["hour_us", "pairing", "client", "namespace", "entity", "operation", "stage", "outcome"]
    frame = (
        pl.scan_parquet(f"{ledger}/*/*.parquet", hive_partitioning=False)
        .with_columns(
            (us - us % 3_600_000_000).alias("hour_us"),
            pl.coalesce("destination", "entity").alias("entity"),
            units.alias("units"),
            pl.when(is_moved & pl.col("outcome").is_in([1, 3, 4])).then("bytes").otherwise(0).alias("transferred"),
        )
        .group_by(keys)
        .agg(pl.len().alias("rows"), *(pl.col(one).sum() for one in ("count", "units", "bytes", "transferred")))
    )
    return billed(frame.collect(engine="streaming").to_arrow())


def billed(table: pa.Table) -> Bill:
    used = usages(table.select(USAGE.names).cast(USAGE))
    period = Period.of_days(used[0].day, used[-1].day)
    return bill(used, load_prices(), Contract(), since=period.since, until=period.until)


def report(results: Results, snapshot: Snapshot, period: Period) -> tuple[Bill, int, int]:
    """Everything that `twinbus report` reads: cost, outages and latency of a period."""
    days = period.first_day, period.last_day
    cost = cost_of(results, snapshot, load_prices(), Contract(), period=period)
    activity, waits, latency = (
        results.table(snapshot.paths(name, *days), schema)
        for name, schema in (("activity", ACTIVITY), ("waits", WAITS), ("latency", LATENCY))
    )
    return cost, len(outages_of(activity, waits)), len(percentiles(latency))


def measure(watch: Stopwatch) -> dict[str, Any]:
    places = ledgers()
    spark = spark_session(
        master=f"local[{CORES},4]", memory=MEMORY, config={"spark.sql.shuffle.partitions": str(4 * CORES)}
    )
    gateway = spark.sparkContext._gateway
    watch.java = gateway.proc.pid if gateway is not None else None
    stores = {name: Results.open(FOLDER / f"{name}-results") for name in places}
    for name in places:
        shutil.rmtree(FOLDER / f"{name}-results", ignore_errors=True)
    found: dict[str, Any] = {}
    snapshots = {"week": ingest(spark, places["week"], stores["week"]).snapshot}  # warms up
    found["peak_memory_mb_of_a_tenth"], found["peak_memory_mb_of_a_worker_of_a_tenth"] = watch.peak_mb()
    for name in ("history", "repeats"):
        done = watch.take(f"ingest, {name}", partial(ingest, spark, places[name], stores[name]))
        snapshots[name] = done.snapshot
    watch.take("ingest, nothing new", lambda: ingest(spark, places["history"], stores["history"]))
    rows = {name: sum(day.rows_in_files for day in snapshots[name].days.values()) for name in snapshots}
    found["ingest_rows_a_second"] = round(rows["history"] / watch.median("ingest, history"))
    found["ingest_rows_a_second_with_repeats"] = round(rows["repeats"] / watch.median("ingest, repeats"))
    found |= costs(watch, spark, places)
    found |= reports(watch, stores, snapshots)
    found["peak_memory_mb"], found["peak_memory_mb_of_a_worker"] = watch.peak_mb()
    found["memory_setting"] = MEMORY
    found["rows"] = rows["history"]
    spark.stop()
    return found


def costs(watch: Stopwatch, spark: Any, places: Mapping[str, Path]) -> dict[str, Any]:
    duck = duckdb.connect(config={"threads": CORES})
    ledger = places["history"]
    for number in range(ROUNDS + 1):
        bills = [
            watch.take("cost, Spark", lambda: cost_with_spark(spark, ledger), counts=number > 0),
            watch.take("cost, DuckDB", lambda: cost_with_duckdb(duck, ledger), counts=number > 0),
            watch.take("cost, Polars", lambda: cost_with_polars(ledger), counts=number > 0),
        ]
        if bills[0] != bills[1] or bills[1] != bills[2]:
            sys.exit("the engines do not agree")
    for number in range(2):
        one = watch.take("cost, Spark, repeats", lambda: cost_with_spark(spark, places["repeats"]), counts=number > 0)
        other = watch.take(
            "cost, DuckDB, repeats",
            lambda: cost_with_duckdb(duck, places["repeats"], is_unique=False),
            counts=number > 0,
        )
        if one != other:
            sys.exit("the engines do not agree about repeated rows")
    return {
        "cost_vs_duckdb": watch.ratio("cost, Spark", "cost, DuckDB"),
        "cost_vs_duckdb_cores": watch.core_ratio("cost, Spark", "cost, DuckDB"),
        "cost_vs_polars": watch.ratio("cost, Spark", "cost, Polars"),
        "cost_with_repeats_vs_duckdb": watch.ratio("cost, Spark, repeats", "cost, DuckDB, repeats"),
    }


def reports(watch: Stopwatch, stores: Mapping[str, Results], snapshots: Mapping[str, Snapshot]) -> dict[str, Any]:
    whole = period_of(snapshots["history"])
    assert whole is not None
    week = Period(whole.since, whole.since + timedelta(days=7))
    for number in range(2 * ROUNDS + 1):
        for name, place, period in (
            ("report of a week, from a week", "week", week),
            ("report of a week, from ten", "history", week),
            ("report of ten weeks", "history", whole),
        ):
            watch.take(name, lambda: report(stores[place], snapshots[place], period), counts=number > 0)  # noqa: B023
    return {
        "report_vs_duckdb_full_scan": watch.ratio("report of ten weeks", "cost, DuckDB"),
        "report_growth_with_ten_times_the_history": watch.ratio(
            "report of a week, from ten", "report of a week, from a week"
        ),
    }


def other_parts(ledger: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for command in (["bench.reconcile", "--ledger", str(ledger), "--memory", MEMORY], ["bench.spark_syphon"]):
        ran = subprocess.run([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True, check=True)
        *lines, last = ran.stdout.strip().splitlines()
        print("\n".join(lines))
        found |= json.loads(last)
    return found


def _main() -> None:
    watch = Stopwatch()
    found = measure(watch)
    table = Table(f"{found['rows']:,} rows, {CORES} cores, {MEMORY} for Spark", "seconds", "seconds of all cores")
    for name in watch.seconds:
        table.add_row(name, f"{watch.median(name):.2f}", f"{statistics.median(watch.cores[name]):.2f}")
    Console().print(table)
    if os.environ.get("PARTS") != "ingest":
        found |= other_parts(FOLDER / f"history-{ROWS}")
    print(json.dumps(found))


if __name__ == "__main__":
    _main()
