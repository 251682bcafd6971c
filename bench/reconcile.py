"""Full reconciliation with Spark against DuckDB on the same files, and what a run takes when one day has changed.

    python -m bench.reconcile [--rows 20_000_000] [--ledger FOLDER] [--rounds 3]

Both say the same: words for each entity, and a table of anomalies; Spark also keeps what the next run needs. They take
turns, the first round does not count, and beside the time on the clock there is the time of all cores: where others use
the machine, too, only that compares. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
from bench.cores import seconds_of_cores
from bench.ledger_shape import Expected, Shape
from bench.ledgers import generate
from rich.console import Console
from rich.table import Table

from twinbus.pipeline.files import survey
from twinbus.pipeline.reconciliation import reconcile
from twinbus.pipeline.results import Results, new_run
from twinbus.pipeline.session import spark_session

QUICK = bool(os.environ.get("QUICK"))
WORDS = ("attempted", "acknowledged", "ok", "lost", "unexpected", "duplicated", "recovered", "in_flight")

MESSAGES = """
create or replace temp table messages as
select message_key, message_id, coalesce(destination, entity) as entity, min(ts) as first_ts, max(ts) as last_ts,
    count(*) filter (stage in (1, 2)) as sends,
    count(*) filter (stage in (1, 2) and outcome = 1) as acknowledged,
    count(*) filter (stage in (1, 4) and outcome = 1) as accepted,
    count(*) filter (stage = 4 and outcome = 1) as moves,
    count(*) filter (stage = 3 and operation = 6) as dead,
    {arrivals} as arrivals
from {rows}
where message_id is not null and (stage in (1, 2, 3, 4) or (stage = 5 and operation = 2))
group by message_key, message_id, coalesce(destination, entity)
"""
COUNTS = """
select entity,
    count(*) filter (sends > 0), count(*) filter (acknowledged > 0), count(*) filter (sends > 0 and arrivals > 0),
    count(*) filter (acknowledged > 0 and arrivals = 0 and accepted > 0),
    count(*) filter (sends = 0 and arrivals > 0), count(*) filter (arrivals > 1),
    count(*) filter (sends > 0 and acknowledged = 0 and arrivals > 0),
    count(*) filter (acknowledged > 0 and arrivals = 0 and accepted = 0 and dead = 0)
from messages group by entity order by entity
"""
ANOMALIES = """
copy (select * from messages where acknowledged = 0 or arrivals <> 1 or sends = 0) to '{file}' (format parquet)
"""
#: How often a message arrived: two forms, the first counts, the second only sees that it is more than once.
DISTINCT = "count(distinct sequence_number) filter (stage = 5)"
SPREAD = (
    "case when count(*) filter (stage = 5) = 0 then 0"
    " when min(sequence_number) filter (stage = 5) = max(sequence_number) filter (stage = 5) then 1 else 2 end"
)


@dataclass
class Runs:
    """What some runs of one thing took."""

    name: str
    seconds: list[float] = field(default_factory=list)
    cores: list[float] = field(default_factory=list)

    @property
    def median(self) -> tuple[float, float]:
        return statistics.median(self.seconds), statistics.median(self.cores)


class Bench:
    """One ledger, and both ways to reconcile it."""

    def __init__(self, ledger: Path, scratch: Path, memory: str) -> None:
        self.ledger = ledger
        self.scratch = scratch
        cores = os.cpu_count() or 1
        settings = {"spark.sql.shuffle.partitions": str(max(8, 2 * cores))}
        self.spark = spark_session(master=f"local[{cores},4]", memory=memory, config=settings)
        gateway = self.spark.sparkContext._gateway
        self._java = int(gateway.proc.pid) if gateway is not None else 0
        self.duck = duckdb.connect(config={"threads": cores, "temp_directory": str(scratch / "duck")})

    def close(self) -> None:
        self.duck.close()
        self.spark.stop()

    def _cores(self) -> float:
        """Seconds of all cores that this process, Java and Python's workers have used."""
        return sum(os.times()[:2]) + seconds_of_cores(self._java)

    def measure(self, runs: Runs, work: Callable[[], Any], *, counts: bool) -> Any:
        started, cores = time.perf_counter(), self._cores()
        found = work()
        if counts:
            runs.seconds.append(time.perf_counter() - started)
            runs.cores.append(self._cores() - cores)
        return found

    def with_spark(self) -> dict[str, Any]:
        shutil.rmtree(self.scratch / "results", ignore_errors=True)
        results = Results.open(self.scratch / "results")
        return dict(reconcile(self.spark, survey(self.ledger), results, None, new_run()))

    def of_one_day(self, before: dict[str, Any]) -> dict[str, Any]:
        """The last day is new."""
        days = {name: day for name, day in before["days"].items() if name != max(before["days"])}
        results = Results.open(self.scratch / "results")
        return dict(reconcile(self.spark, survey(self.ledger), results, {**before, "days": days}, new_run()))

    def with_duckdb(self, arrivals: str, *, unique: bool) -> list[tuple[Any, ...]]:
        rows = f"read_parquet('{self.ledger}/*/*.parquet')"
        rows = f"(select distinct on (op_id) * from {rows})" if unique else rows
        self.duck.execute(MESSAGES.format(arrivals=arrivals, rows=rows))
        self.duck.execute(ANOMALIES.format(file=self.scratch / "anomalies.parquet"))
        return self.duck.execute(COUNTS).fetchall()


def check(expected: Expected | None, state: dict[str, Any], rows: list[tuple[Any, ...]]) -> None:
    """Both must say the same, and what was made."""
    entities = [(one["entity"], *(one[word] for word in WORDS)) for one in state["summary"]["entities"]]
    if entities != rows:
        sys.exit("Spark and DuckDB do not agree")
    if expected is not None and state["summary"]["lost"] != len(expected.lost):
        sys.exit(f"{state['summary']['lost']} messages are said to be lost; {len(expected.lost)} are")


def run(ledger: Path, expected: Expected | None, rounds: int, memory: str) -> dict[str, float]:
    """Measure, print a table, and return the ratios."""
    names = ("Spark, all days", "DuckDB", "DuckDB, arrivals counted", "DuckDB, rows made unique", "Spark, one day new")
    spark, duck, counted, unique, one_day = (Runs(name) for name in names)
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(ledger, Path(scratch), memory)
        try:
            for number in range(rounds + 1):
                is_warm = number > 0
                state = bench.measure(spark, bench.with_spark, counts=is_warm)
                rows = bench.measure(duck, lambda: bench.with_duckdb(SPREAD, unique=False), counts=is_warm)
                bench.measure(counted, lambda: bench.with_duckdb(DISTINCT, unique=False), counts=is_warm)
                bench.measure(unique, lambda: bench.with_duckdb(SPREAD, unique=True), counts=is_warm)
                bench.measure(one_day, partial(bench.of_one_day, state), counts=is_warm)
                check(expected, state, rows)
        finally:
            bench.close()
    table = Table("reconciliation", "seconds", "seconds of all cores")
    for runs in (spark, duck, counted, unique, one_day):
        table.add_row(runs.name, *(f"{value:.2f}" for value in runs.median))
    Console().print(table)
    return {
        "reconcile_vs_duckdb": round(spark.median[0] / duck.median[0], 2),
        "reconcile_vs_duckdb_cores": round(spark.median[1] / duck.median[1], 2),
        "reconcile_vs_duckdb_unique": round(spark.median[0] / unique.median[0], 2),
        "reconcile_one_day_vs_all": round(one_day.median[0] / spark.median[0], 2),
    }


def _main() -> None:
    parser = argparse.ArgumentParser(description="Measure reconciliation.")
    parser.add_argument("--rows", type=int, default=2_000_000 if QUICK else 20_000_000, help="default: %(default)s")
    parser.add_argument("--ledger", type=Path, help="one that is there; else one is made")
    parser.add_argument("--rounds", type=int, default=3, help="that count; default: %(default)s")
    parser.add_argument("--memory", default="2g", help="of Spark; default: %(default)s")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        expected = None
        if given.ledger is None:
            shape = Shape(rows=given.rows, lost=40, unexpected=20)
            expected = generate(folder, shape, workers=os.cpu_count() or 1)
        found = run(given.ledger or Path(folder), expected, given.rounds, given.memory)
    print(json.dumps(found))


if __name__ == "__main__":
    _main()
