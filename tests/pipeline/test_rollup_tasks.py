"""Rollups that tasks make of blocks of a day: however it is cut, and whatever is there twice, without Spark."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from bench.ledger_shape import Shape
from bench.ledgers import generate
from hypothesis import given
from hypothesis import strategies as st

from twinbus.ledger.schema import pa, to_operations
from twinbus.pipeline.changes import changed_hours
from twinbus.pipeline.cost import usages
from twinbus.pipeline.files import LedgerView, survey
from twinbus.pipeline.overlaps import Interval
from twinbus.pipeline.results import Results
from twinbus.pipeline.rollup_tasks import Made, blocks_of, roll_up
from twinbus.pipeline.rollups import ROLLUPS, buckets_of
from twinbus.pipeline.tables import HOUR_US, ROLLUP_SCHEMAS, bucket_of
from twinbus.pipeline.usage import usage_of

SHAPE = Shape(rows=4_000, seed=5, entities=3, clients=2, backlog_queues=2, days=2, outages=2, repeats=200, block=300)


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> LedgerView:
    folder = tmp_path_factory.mktemp("ledger")
    generate(folder, SHAPE)
    return survey(folder)


def made(view: LedgerView, results: Results, most: int) -> list[Made]:
    return [
        roll_up(view.store, results, "rollups", block)
        for day, files in view.days.items()
        for block in blocks_of(day, files, changed_hours(None, files), {}, most)
    ]


def tables(results: Results, some: list[Made]) -> dict[str, pa.Table]:
    return {
        name: results.table([one.files[name] for one in some if name in one.files], ROLLUP_SCHEMAS[name])
        for name in ROLLUPS
    }


def test_all_ways_to_cut_a_day_give_the_same(view: LedgerView, tmp_path: Path) -> None:
    results = Results.open(tmp_path)
    whole, pieces = made(view, results, 10**9), made(view, results, 150)
    assert len(whole) == 2
    assert len(pieces) > 10
    assert tables(results, pieces) == tables(results, whole)
    assert sum(one.rows for one in pieces) == sum(one.rows for one in whole)


def test_usage_is_what_a_loop_over_the_operations_counts(view: LedgerView, tmp_path: Path) -> None:
    results = Results.open(tmp_path)
    rows = pa.concat_tables(
        pa.parquet.read_table(path) for path in sorted(Path(view.url.removeprefix("file://")).glob("*/*.parquet"))
    )
    unique = {one.op_id: one for one in to_operations(rows)}
    assert len(unique) < len(rows)
    found = made(view, results, 500)
    assert usages(tables(results, found)["usage"]) == usage_of(unique.values())
    assert sum(one.rows for one in found) == len(unique)


def test_hours_that_are_not_made_anew_stay_as_they_were(view: LedgerView, tmp_path: Path) -> None:
    results = Results.open(tmp_path)
    before = made(view, results, 10**9)
    day, files = next(iter(view.days.items()))
    [old] = [one for one in before if one.day == day]
    hour = files.live[0].first_us // HOUR_US * HOUR_US
    kept = {name: [path] for name, path in old.files.items()}
    again = [
        roll_up(view.store, results, "again", block)
        for block in blocks_of(day, files, [Interval(hour, hour + HOUR_US - 1)], kept, 400)
    ]
    assert tables(results, again) == tables(results, [old])


@given(st.lists(st.integers(-10, 2**63 - 1)))
def test_buckets_are_those_of_single_durations(durations: list[int]) -> None:
    assert buckets_of(np.array(durations, np.int64)).tolist() == [bucket_of(one) for one in durations]


def test_buckets_are_right_where_they_begin() -> None:
    edges = [us + more for us in (1, 2, 10, 1_000, 11**7, 10**12, 2**62) for more in (-1, 0, 1)]
    assert buckets_of(np.array(edges, np.int64)).tolist() == [bucket_of(one) for one in edges]
