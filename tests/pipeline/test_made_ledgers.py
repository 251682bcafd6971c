"""Made ledgers (`bench/ledgers.py`) hold what they are said to hold, counted here row by row."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from bench.ledger_shape import Expected, Shape
from bench.ledgers import generate

from twinbus.ledger.ledger_reader import read_ledger
from twinbus.ledger.recorder import Operation, OperationKind, Outcome, Stage
from twinbus.ledger.schema import message_key, to_operations
from twinbus.tables.billed_units import usage_of

SHAPE = Shape(
    rows=12_000,
    seed=7,
    entities=5,
    clients=2,
    backlog_queues=3,
    days=2,
    outages=2,
    outage_minutes=120,
    trouble=10_000,
    lost=8,
    unexpected=3,
    is_drained=False,
)
START = 1_793_491_200_000_000  # 2026-11-01


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Expected]:
    folder = tmp_path_factory.mktemp("ledger")
    return folder, generate(folder, SHAPE)


@pytest.fixture(scope="module")
def rows(made: tuple[Path, Expected]) -> list[Operation]:
    return operations_in(made[0])


def operations_in(folder: Path) -> list[Operation]:
    contents = read_ledger(folder)
    assert contents.unreadable == []
    return list(to_operations(contents.table))


def arrivals(rows: list[Operation]) -> dict[str | None, set[int | None]]:
    """The sequence numbers under which each message arrived."""
    found: defaultdict[str | None, set[int | None]] = defaultdict(set)
    for row in rows:
        if row.stage is Stage.PRIMARY_RECEIVE and row.operation is OperationKind.RECEIVE:
            found[row.message_id].add(row.sequence_number)
    return found


def sends(rows: list[Operation], *outcomes: Outcome) -> set[str | None]:
    stages = (Stage.DIRECT, Stage.BACKLOG_SEND)
    return {row.message_id for row in rows if row.stage in stages and row.outcome in (outcomes or Outcome)}


def test_there_are_about_as_many_rows_as_asked_for_and_each_once(
    made: tuple[Path, Expected], rows: list[Operation]
) -> None:
    assert len(rows) == made[1].rows == made[1].rows_in_files
    assert SHAPE.rows < len(rows) < 1.5 * SHAPE.rows
    assert len({row.op_id for row in rows}) == len(rows)


def test_rows_lie_with_their_days_in_order(made: tuple[Path, Expected]) -> None:
    days = sorted(folder.name for folder in made[0].iterdir())
    assert days == ["day=2026-11-01", "day=2026-11-02"]
    for number, day in enumerate(("2026-11-01", "2026-11-02")):
        table = read_ledger(made[0], since=day, until=day).table
        assert {row.ts // 86_400_000_000 for row in to_operations(table)} == {START // 86_400_000_000 + number}


def test_keys_are_those_of_the_ids(made: tuple[Path, Expected]) -> None:
    for row in read_ledger(made[0]).table.select(["message_id", "message_key"]).to_pylist():
        expected = None if row["message_id"] is None else message_key(row["message_id"])
        assert row["message_key"] == expected


def test_operations_and_usage_are_what_a_count_finds(made: tuple[Path, Expected], rows: list[Operation]) -> None:
    assert made[1].operations == Counter((row.namespace, row.stage, row.operation, row.outcome) for row in rows)
    assert made[1].usages() == usage_of(rows)
    assert {row.stage for row in rows} == set(Stage)
    assert any(row.bytes > 64 * 1024 for row in rows)


def test_messages_ended_as_they_are_said_to_have(made: tuple[Path, Expected], rows: list[Operation]) -> None:
    expected = made[1]
    attempted, acknowledged, arrived = sends(rows), sends(rows, Outcome.DONE), arrivals(rows)
    assert len(attempted) == expected.attempted == SHAPE.messages
    assert len(acknowledged) == expected.acknowledged < expected.attempted
    assert len(attempted & set(arrived)) == expected.ok
    completed = {
        row.message_id for row in rows if row.stage is Stage.BACKLOG_RECEIVE and row.operation is OperationKind.COMPLETE
    }
    diverted = {row.message_id for row in rows if row.stage is Stage.BACKLOG_SEND}
    assert set(expected.in_flight) == diverted - completed
    assert set(expected.lost) == acknowledged - set(arrived) - set(expected.in_flight)
    assert set(expected.unexpected) == set(arrived) - attempted
    assert set(expected.recovered) == (attempted - acknowledged) & set(arrived)
    assert set(expected.duplicated) == {one for one, numbers in arrived.items() if len(numbers) > 1}
    assert len(expected.unexpected) == 3
    assert 4 <= len(expected.lost) <= 8
    for found in (expected.in_flight, expected.recovered, expected.duplicated, expected.redelivered):
        assert found
        assert len(set(found)) == len(found)


def test_a_redelivered_message_comes_twice_under_one_number(made: tuple[Path, Expected], rows: list[Operation]) -> None:
    receives = Counter(
        (row.message_id, row.sequence_number)
        for row in rows
        if row.stage is Stage.PRIMARY_RECEIVE and row.operation is OperationKind.RECEIVE
    )
    assert {one for (one, _), count in receives.items() if count == 2} == set(made[1].redelivered)


def test_outages_are_what_the_rows_say(made: tuple[Path, Expected], rows: list[Operation]) -> None:
    assert len(made[1].outages) == 5 + 3
    for (number, entity), outage in made[1].outages.items():
        window = SHAPE.windows[number]
        near = [
            row
            for row in rows
            if entity in (row.entity, row.destination) and window.began <= row.ts < window.began + 8 * 3_600_000_000
        ]
        failed = [
            row.ts for row in near if row.stage is Stage.DIRECT and row.ts < window.began + 60_000_000 and row.error
        ]
        pings = [row for row in near if row.stage is Stage.PING]
        diverted = [row for row in near if row.stage is Stage.BACKLOG_SEND]
        done = [
            row.ts for row in near if row.stage is Stage.BACKLOG_RECEIVE and row.operation is OperationKind.COMPLETE
        ]
        assert outage.suspected == min(failed, default=None)
        assert outage.failed_over == min(row.ts for row in pings)
        assert [outage.recovered] * SHAPE.clients == [row.ts for row in pings if row.outcome is Outcome.DONE]
        assert len(pings) == SHAPE.clients * SHAPE.outage_minutes
        assert (outage.diverted, outage.moved, outage.drained) == (len(diverted), len(done), max(done, default=None))


def test_after_the_failover_nothing_but_pings_reaches_the_primary(rows: list[Operation]) -> None:
    for window in SHAPE.windows:
        hit = {f"queue-{one:04}" for one in SHAPE.hits(window)}
        reached = {
            row.stage for row in rows if row.entity in hit and window.began + 60_000_000 <= row.ts < window.recovered
        }
        assert Stage.DIRECT not in reached
        assert Stage.PRIMARY_SEND not in reached
        assert Stage.PING in reached


def test_the_gap_in_the_ledger_is_told(made: tuple[Path, Expected], rows: list[Operation]) -> None:
    assert sum(row.count for row in rows if row.operation is OperationKind.DROPPED) == made[1].dropped


def test_a_seed_makes_the_same_ledger_however_many_processes_make_it(tmp_path: Path) -> None:
    shape = Shape(rows=3 * 1_200, days=1, outages=1, block=500)
    first = generate(tmp_path / "first", shape)
    second = generate(tmp_path / "second", shape, workers=2)
    other = generate(tmp_path / "other", replace(shape, seed=2))
    assert first == second != other
    assert first.files >= 4
    one, two = (read_ledger(tmp_path / name).table.sort_by("op_id") for name in ("first", "second"))
    assert one.equals(two)


def test_repeated_rows_have_the_id_of_the_first(tmp_path: Path) -> None:
    expected = generate(tmp_path, Shape(rows=3_000, days=1, outages=1, repeats=200))
    ids = [row.op_id for row in operations_in(tmp_path)]
    assert len(ids) == expected.rows_in_files > 1.1 * expected.rows
    assert len(set(ids)) == expected.rows


def test_everything_is_drained_unless_told_otherwise(tmp_path: Path) -> None:
    expected = generate(tmp_path, Shape(rows=3_000, days=1, outages=1, outage_minutes=120))
    assert expected.in_flight == []
    assert sum(one.diverted for one in expected.outages.values()) > 0
    assert all(one.diverted == one.moved for one in expected.outages.values())


def test_it_runs_as_a_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.ledgers", str(tmp_path / "made"), "--rows", "1_000", "--workers", "1"]
    finished = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert '"attempted": 333' in finished.stdout.splitlines()[-1]
    again = subprocess.run(command, capture_output=True, text=True, timeout=60)
    refusal = f"expected an empty folder, got {tmp_path / 'made'}; choose another one\n"
    assert (again.returncode, again.stderr) == (1, refusal)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"rows": 0}, "rows must be from 1 to"),
        ({"entities": 0}, "entities must be from 1"),
        ({"outage_minutes": 1}, "outage_minutes must be from 2"),
        ({"outages": 100, "days": 1}, "outages must fit into 1 days twice, not 100"),
        ({"lost": 10, "rows": 3}, "lost must be from 0 to 1, not 10"),
    ],
)
def test_a_shape_out_of_bounds_is_refused(changes: dict[str, int], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        Shape(**changes)  # type: ignore[arg-type]


def test_it_starts_on_the_day_asked_for(tmp_path: Path) -> None:
    generate(tmp_path, Shape(rows=300, days=1, outages=0, start=date(2025, 2, 28)))
    assert sorted(folder.name for folder in tmp_path.iterdir())[0] == "day=2025-02-28"
