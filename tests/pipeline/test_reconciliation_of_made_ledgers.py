"""Reconciliation of weeks of made traffic: what is said equals what was made, and what SQL finds in the same files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest
from bench.ledger_shape import Expected, Shape
from bench.ledgers import generate
from tests.pipeline.reconciling import Reconciled, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)

SHAPE = Shape(
    rows=9_000,
    seed=11,
    entities=4,
    clients=2,
    backlog_queues=2,
    days=3,
    outages=2,
    outage_minutes=300,
    trouble=8_000,
    lost=6,
    unexpected=3,
    is_drained=False,
    repeats=150,
    block=700,
)
WORDS = ("attempted", "acknowledged", "ok", "lost", "unexpected", "duplicated", "recovered", "in_flight")
LISTED = ("lost", "unexpected", "duplicated", "recovered", "in_flight")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Expected]:
    folder = tmp_path_factory.mktemp("made") / "ledger"
    return folder, generate(folder, SHAPE)


@pytest.fixture(scope="module")
def found(spark: SparkSession, made: tuple[Path, Expected]) -> Reconciled:
    return run(spark, made[0])


def test_every_word_is_what_was_made(made: tuple[Path, Expected], found: Reconciled) -> None:
    expected = made[1]
    counts = {word: getattr(expected, word) for word in ("attempted", "acknowledged", "ok")}
    counts |= {word: len(getattr(expected, word)) for word in LISTED}
    assert {word: found.count(word) for word in WORDS} == counts
    assert all(counts.values())
    assert {one["evidence"] for one in found.verdicts} == {"receivers"}


def test_every_anomaly_is_listed_by_its_id_and_no_other(made: tuple[Path, Expected], found: Reconciled) -> None:
    for word in LISTED:
        assert found.ids(word) == sorted(getattr(made[1], word)), word
    assert not {one["message_id"] for one in found.rows} & (set(made[1].redelivered) - _troubled(made[1]))


def _troubled(expected: Expected) -> set[str]:
    return {one for word in LISTED for one in getattr(expected, word)}


#: Another way to the same figures: each row once, each message a group, all days at once.
SQL = """
with rows as (select distinct on (op_id) * from read_parquet('{folder}/*/*.parquet')),
messages as (
    select coalesce(destination, entity) as entity, message_id,
        count(*) filter (stage in (1, 2) and operation = 1) as sends,
        count(*) filter (stage in (1, 2) and operation = 1 and outcome = 1) as acknowledged,
        count(*) filter (stage = 4 and outcome = 1) as moves,
        count(*) filter (stage in (3, 4)) as held,
        count(*) filter (stage = 2) > 0 as is_diverted,
        count(distinct sequence_number) filter (stage = 5 and operation = 2) as arrivals
    from rows where message_id is not null group by 1, 2)
select entity,
    count(*) filter (sends > 0) as attempted,
    count(*) filter (acknowledged > 0) as acknowledged,
    count(*) filter (sends > 0 and arrivals > 0) as ok,
    count(*) filter (acknowledged > 0 and arrivals = 0 and (moves > 0 or not is_diverted)) as lost,
    count(*) filter (sends = 0 and arrivals > 0) as unexpected,
    count(*) filter (arrivals > 1) as duplicated,
    count(*) filter (sends > 0 and acknowledged = 0 and arrivals > 0) as recovered,
    count(*) filter (acknowledged > 0 and arrivals = 0 and moves = 0 and is_diverted) as in_flight
from messages group by 1 order by 1
"""


def test_sql_finds_the_same_for_each_entity(made: tuple[Path, Expected], found: Reconciled) -> None:
    with duckdb.connect() as connection:
        rows = connection.execute(SQL.format(folder=made[0])).fetchall()
    sums: dict[str, Counter[str]] = {}
    for one in found.verdicts:
        sums.setdefault(one["destination"], Counter()).update({word: one[word] for word in WORDS})
    assert [(name, *(sums[name][word] for word in WORDS)) for name in sorted(sums)] == rows
