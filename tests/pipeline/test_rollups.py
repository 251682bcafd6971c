"""Rollups of a made ledger say what is known to be in it, and what DuckDB finds there."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import duckdb
import pytest
from bench.ledger_shape import Expected, Shape
from bench.ledgers import generate

from twinbus.ledger.recorder import NamespaceRole, OperationKind, Outcome, Stage
from twinbus.ledger.schema import pa
from twinbus.pipeline.cost import usage_table, usages
from twinbus.pipeline.ingest import ingest
from twinbus.pipeline.latency import percentiles
from twinbus.pipeline.outages import outages_of
from twinbus.pipeline.results import Results, Snapshot
from twinbus.pipeline.tables import ACTIVITY, LATENCY, MINUTE_US, WAITS, Happening

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SHAPE = Shape(rows=40_000, days=2, outages=3, entities=6, clients=3, repeats=30, trouble=1_000, is_drained=False)


class Made(NamedTuple):
    ledger: Path
    expected: Expected
    results: Results
    snapshot: Snapshot

    def rollup(self, name: str, schema: pa.Schema) -> pa.Table:
        return self.results.table(self.snapshot.paths(name), schema)

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """What DuckDB says to a query of `ledger`, in which each row is once."""
        files = f"read_parquet('{self.ledger}/*/*.parquet')"
        rows = f"with ledger as (select distinct on (op_id) *, epoch_us(ts) as us from {files}) {query}"
        return duckdb.connect().execute(rows).fetchall()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Made:
    folder = tmp_path_factory.mktemp("made")
    expected = generate(folder / "ledger", SHAPE)
    results = Results.open(folder / "results")
    return Made(folder / "ledger", expected, results, ingest(spark, folder / "ledger", results).snapshot)


def test_each_row_counts_once(made: Made) -> None:
    days = made.snapshot.days.values()
    assert sum(day.rows for day in days) == made.expected.rows
    assert sum(day.rows_in_files for day in days) == made.expected.rows_in_files > made.expected.rows
    assert made.snapshot.dropped == made.expected.dropped


def test_operations_are_counted_by_what_they_were(made: Made) -> None:
    found: Counter[Any] = Counter()
    for row in usage_table(made.results, made.snapshot).to_pylist():
        codes = NamespaceRole(row["namespace"]), Stage(row["stage"]), OperationKind(row["operation"])
        found[*codes, Outcome(row["outcome"])] += row["rows"]
    assert found == made.expected.operations


def test_usage_is_what_the_made_ledger_has(made: Made) -> None:
    assert usages(usage_table(made.results, made.snapshot)) == made.expected.usages()


def test_usage_by_hour_and_client_is_what_duckdb_finds(made: Made) -> None:
    query = """
        select us - us % 3600000000, pairing, client, namespace, coalesce(destination, entity), operation, stage,
               outcome, count(*), sum(count)::bigint, sum(bytes)::bigint
        from ledger group by all"""
    names = [
        "hour_us",
        "pairing",
        "client",
        "namespace",
        "entity",
        "operation",
        "stage",
        "outcome",
        "rows",
        "count",
        "bytes",
    ]
    found = usage_table(made.results, made.snapshot).select(names).to_pylist()
    assert sorted(tuple(row.values()) for row in found) == sorted(made.ask(query))


def test_percentiles_are_right_to_five_percent(made: Made) -> None:
    query = """
        select coalesce(destination, entity), stage, operation, count(*), quantile_disc(latency_us, [0.5, 0.9, 0.99]),
               max(latency_us)
        from ledger where outcome = 1 and latency_us is not null group by all"""
    exact = {row[:3]: row[3:] for row in made.ask(query)}
    found = {(one.entity, one.stage, one.operation): one for one in percentiles(made.rollup("latency", LATENCY))}
    of_entities = {key: one for key, one in found.items() if key[0] is not None}
    assert of_entities.keys() == exact.keys()
    for key, one in of_entities.items():
        count, parts, longest = exact[key]
        assert (one.count, one.max_us) == (count, longest)
        assert [one.p50_us, one.p90_us, one.p99_us] == pytest.approx(parts, rel=0.05)


def test_activity_is_what_duckdb_finds(made: Made) -> None:
    kinds = {
        Happening.FAILED_SEND: "stage = 1 and operation in (1, 11) and outcome in (2, 3)",
        Happening.DIVERTED: "stage = 2 and operation = 1 and outcome = 1",
        Happening.PING: "operation = 8 and outcome = 1",
        Happening.FAILED_PING: "operation = 8 and outcome in (2, 3)",
        Happening.MOVED: "stage = 4 and operation = 1 and outcome = 1",
        Happening.FAILED_MOVE: "stage = 4 and operation = 1 and outcome in (2, 3)",
        Happening.COMPLETED: "stage = 3 and operation = 3 and outcome = 1",
    }
    columns = "us - us % 60000000, pairing, coalesce(destination, entity)"
    parts = [
        f"select {columns}, {int(kind)}, count(*), min(us), max(us) from ledger where {condition} group by all"
        for kind, condition in kinds.items()
    ]
    rows = made.rollup("activity", ACTIVITY).to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == sorted(made.ask(" union all ".join(parts)))


def test_outages_are_those_of_the_made_ledger(made: Made) -> None:
    found = outages_of(made.rollup("activity", ACTIVITY), made.rollup("waits", WAITS))
    expected = made.expected.outages
    windows = {window.number: window for window in SHAPE.windows}
    assert len(found) == len(expected)
    for (number, entity), known in expected.items():
        (one,) = [
            one
            for one in found
            if one.entity == entity and windows[number].began <= one.suspected_at < windows[number].recovered
        ]
        assert (one.failed_over_at, one.recovered_at) == (known.failed_over, known.recovered)
        assert (one.diverted, one.moved) == (known.diverted, known.moved)
        assert one.drained_at == (known.drained if known.moved == known.diverted else None)
        # If nobody sent anything in the first minute, the first ping is the first that is known of it. An earlier
        # failure of the same minute, which had nothing to do with it, cannot be told apart.
        suspected = known.failed_over if known.suspected is None else known.suspected
        assert suspected is not None
        assert suspected - MINUTE_US < one.suspected_at <= suspected
    assert any(one.drained_at is None for one in found)


def test_time_in_the_backlog_is_what_duckdb_finds(made: Made) -> None:
    query = """
        select sent.us - sent.us % 3600000000, destination, count(moved.us), count(*), max(moved.us - sent.us)
        from (select message_id, destination, min(us) as us from ledger
              where stage = 2 and outcome = 1 group by all) sent
        left join (select message_id, destination, min(us) as us from ledger
              where stage = 4 and outcome = 1 group by all) moved using (message_id, destination)
        group by all"""
    found: dict[tuple[int, str], list[int]] = {}
    for row in made.rollup("waits", WAITS).to_pylist():
        sums = found.setdefault((row["hour_us"], row["entity"]), [0, 0, 0])
        sums[0] += row["count"] if row["bucket"] >= 0 else 0
        sums[1] += row["count"]
        sums[2] = max(sums[2], row["max_us"])
    exact = {row[:2]: [row[2], row[3], row[4] or 0] for row in made.ask(query)}
    assert found == exact
    assert any(moved < all_of_them for moved, all_of_them, _ in found.values())
