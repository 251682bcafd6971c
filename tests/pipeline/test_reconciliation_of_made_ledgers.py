"""Reconciliation of weeks of made traffic: what is said equals what was made, and what SQL finds in the same files."""

from __future__ import annotations

import shutil
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
    return run(spark, made[0], made[0].with_name("results"))


def test_every_word_is_what_was_made(made: tuple[Path, Expected], found: Reconciled) -> None:
    expected = made[1]
    counts = {word: getattr(expected, word) for word in ("attempted", "acknowledged", "ok")}
    counts |= {word: len(getattr(expected, word)) for word in LISTED}
    assert {word: found.summary[word] for word in WORDS} == counts
    assert all(counts.values())
    assert found.summary["dropped_rows"] == expected.dropped
    assert {one["evidence"] for one in found.summary["entities"]} == {"receivers"}


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
    assert [(one["entity"], *(one[word] for word in WORDS)) for one in found.summary["entities"]] == rows


def test_files_that_come_day_by_day_late_and_twice_give_the_same_answer(
    spark: SparkSession, made: tuple[Path, Expected], found: Reconciled, tmp_path: Path
) -> None:
    ledger, results = tmp_path / "ledger", tmp_path / "results"
    days = sorted(folder.name for folder in made[0].iterdir())
    late = sorted((made[0] / days[0]).iterdir())[1]
    shutil.copytree(made[0] / days[0], ledger / days[0], ignore=lambda *_: [late.name])
    first = run(spark, ledger, results)
    assert first.summary["attempted"] < found.summary["attempted"]
    shutil.copytree(made[0] / days[1], ledger / days[1])
    shutil.copy(late, ledger / days[0])
    second = run(spark, ledger, results, first)
    assert second.state["days"]["2026-11-01"]["places"] != first.state["days"]["2026-11-01"]["places"]
    shutil.copytree(made[0] / days[2], ledger / days[2])
    # The same rows once more, in a file of another name.
    again = sorted((made[0] / days[2]).iterdir())[0]
    shutil.copy(again, ledger / days[2] / again.name.replace("-1-", "-9-"))
    last = run(spark, ledger, results, second)
    for day in days[:2]:
        name = day.removeprefix("day=")
        # It has not changed, and was not read again.
        assert last.state["days"][name] == second.state["days"][name]
    assert last.summary == found.summary
    assert sorted(map(tuple, map(dict.values, last.rows))) == sorted(map(tuple, map(dict.values, found.rows)))
