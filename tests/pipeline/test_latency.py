"""Tests percentiles from histogram buckets."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tables.result_files import table_of

from twinbus.ledger.schema import pa
from twinbus.report.percentiles import percentile, percentiles
from twinbus.tables.histogram import bucket_of
from twinbus.tables.table_schemas import LATENCY

durations = st.integers(1, 10**9)


@given(values=st.lists(durations, min_size=1, max_size=200), part=st.floats(0, 1))
def test_a_percentile_is_right_to_five_percent(values: list[int], part: float) -> None:
    exact = sorted(values)[max(1, math.ceil(part * len(values))) - 1]
    assert percentile(Counter(map(bucket_of, values)), part) == pytest.approx(exact, rel=0.05)


def test_less_than_a_microsecond_counts_as_one() -> None:
    assert bucket_of(0) == bucket_of(-5) == bucket_of(1) == 0


@pytest.mark.parametrize("part", [-0.1, 1.1])
def test_part_must_be_from_zero_to_one(part: float) -> None:
    with pytest.raises(ValueError, match="part must be from 0 to 1"):
        percentile({1: 1}, part)


def test_percentile_of_empty_buckets_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        percentile({}, 0.5)


def _table(*rows: tuple[str, str, str, int, int]) -> pa.Table:
    columns = ("entity", "stage", "operation", "bucket", "count")
    found = [{**dict(zip(columns, row, strict=True)), "max_us": round(1.1 ** (row[3] + 0.9))} for row in rows]
    return table_of(LATENCY, found)


def test_percentiles_exist_for_each_entity_and_for_all() -> None:
    found = percentiles(_table(("orders", "direct", "send", 50, 9), ("bills", "direct", "send", 90, 1)))
    assert [(row.entity, row.count) for row in found] == [(None, 10), ("bills", 1), ("orders", 9)]
    everything = found[0]
    assert everything.p90_us == pytest.approx(1.1**50.5, rel=0.05)
    assert everything.p99_us == pytest.approx(1.1**90.5, rel=0.05)
    assert everything.max_us == round(1.1**90.9)
    assert everything.to_json()["stage"] == "direct"


def test_no_percentile_is_above_the_longest() -> None:
    row = {"entity": "a", "stage": "direct", "operation": "send", "bucket": 50, "count": 1, "max_us": 118}
    assert percentiles(table_of(LATENCY, [row]))[0].p50_us == 118


def test_percentiles_are_in_the_order_of_entities_and_codes() -> None:
    rows = [("b", "ping", "ping", 5, 1), ("b", "direct", "send", 5, 1), ("a", "poll", "poll", 5, 1)]
    found = [(row.entity, row.stage.name) for row in percentiles(_table(*rows)) if row.entity]
    assert found == [("a", "POLL"), ("b", "DIRECT"), ("b", "PING")]


def test_codes_of_a_later_release_are_left_out() -> None:
    assert percentiles(_table(("orders", "code_99", "send", 50, 9), ("orders", "direct", "code_99", 50, 9))) == []
