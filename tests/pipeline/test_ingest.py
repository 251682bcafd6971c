"""Results are a function of the ledger's rows, whatever happens on the way."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.pipeline.ledger_files import DAY, HOUR, START, an_operation, put, some_operations

from twinbus.ledger.compact import compact
from twinbus.ledger.errors import LedgerNotFound
from twinbus.ledger.recorder import NamespaceRole, Operation, OperationKind, Outcome, Stage
from twinbus.ledger.schema import VERSION_KEY
from twinbus.pipeline.cost import usage_table, usages
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.files import survey
from twinbus.pipeline.ingest import Ingested, ingest
from twinbus.pipeline.overlaps import Interval
from twinbus.pipeline.results import Results, Snapshot
from twinbus.pipeline.tables import ROLLUP_SCHEMAS
from twinbus.pipeline.usage import usage_of
from twinbus.pipeline.watching import Watch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class House:
    """A ledger and its results."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.ledger = folder / "ledger [1] with a {strange} name"
        self.results = Results.open(folder / "the results")
        self.spark = spark

    def ingest(self, **given: Any) -> Ingested:
        return ingest(self.spark, self.ledger, self.results, **given)

    @property
    def latest(self) -> Snapshot:
        found = self.results.latest()
        assert found is not None
        return found

    def tables(self) -> dict[str, pa.Table]:
        """All rollups, in order."""
        return {
            name: self.results.table(self.latest.paths(name), schema).sort_by(
                [(one, "ascending") for one in schema.names]
            )
            for name, schema in ROLLUP_SCHEMAS.items()
        }

    def holds(self, operations: Iterable[Operation]) -> bool:
        """Whether the results are those of just these rows, counted without Spark."""
        rows = list(operations)
        assert usages(usage_table(self.results, self.latest)) == usage_of(rows)
        assert sum(day.rows for day in self.latest.days.values()) == len(rows)
        return True


@pytest.fixture
def house(tmp_path: Path, spark: SparkSession) -> House:
    return House(tmp_path, spark)


def test_files_that_come_late_or_twice_and_rows_in_two_files_count_once(house: House) -> None:
    first, second, late = some_operations(1, 200), some_operations(2, 100, START + DAY), some_operations(3, 50)
    original = put(house.ledger, first)
    put(house.ledger, second)
    assert house.ingest().days == ["2026-11-01", "2026-11-02"]
    assert house.holds([*first, *second])
    assert not house.ingest().is_published

    put(house.ledger, late)
    shutil.copy(original, original.with_name(original.name.replace("-1-", "-2-")))
    put(house.ledger, [*first[:20], *first[60:70]])
    done = house.ingest()
    assert done.days == ["2026-11-01"]
    assert house.holds([*first, *second, *late])
    assert house.latest.days["2026-11-01"].rows_in_files == 480

    before = house.tables()
    shutil.rmtree(house.results._root)
    house.ingest()
    assert house.tables() == before


def test_new_hours_are_added_to_a_day_and_those_of_a_file_that_is_gone_are_taken_away(house: House) -> None:
    rows, later = some_operations(4, 300, hours=8), [an_operation(START + 20 * HOUR + number) for number in range(3)]
    path = put(house.ledger, rows)
    house.ingest()
    put(house.ledger, later)
    house.ingest()
    assert house.holds([*rows, *later])
    path.unlink()
    house.ingest()
    assert house.holds(later)


def test_damaged_foreign_and_newer_files_are_set_aside_and_the_rest_counts(house: House) -> None:
    rows, more = some_operations(5, 100), some_operations(6, 400)
    good = put(house.ledger, rows)
    damaged = put(house.ledger, more)
    data = bytearray(damaged.read_bytes())
    data[100 : len(data) // 2] = bytes(len(data) // 2 - 100)  # the footer is whole, the pages are not
    damaged.write_bytes(data)
    cut = put(house.ledger, more[:10])
    cut.write_bytes(cut.read_bytes()[:-20])
    newer = put(house.ledger, more[:10])
    table = pq.read_table(newer)
    pq.write_table(table.replace_schema_metadata({VERSION_KEY: b"2"}), newer)
    foreign = put(house.ledger, more[:10])
    pq.write_table(pa.table({"x": [1]}), foreign)
    misplaced = put(house.ledger, more[:10])
    elsewhere = house.ledger / "day=2026-11-05" / misplaced.name
    elsewhere.parent.mkdir()
    misplaced.rename(elsewhere)
    (house.ledger / "notes.txt").write_text("hello")
    (good.parent / "_SUCCESS").touch()

    house.ingest()
    assert house.holds(rows)
    reasons = {Path(one.path).name: one.reason for one in house.latest.set_aside}
    assert reasons.keys() == {damaged.name, cut.name, newer.name, foreign.name, misplaced.name, "notes.txt"}
    assert reasons[damaged.name].startswith("corrupt")
    assert reasons[cut.name].startswith("corrupt")
    assert "later release" in reasons[newer.name]
    assert reasons[foreign.name] == "not a file of a ledger"
    assert "other days" in reasons[misplaced.name]

    assert not house.ingest().is_published  # what was damaged is not tried again
    put(house.ledger, more)
    damaged.unlink()
    house.ingest()
    assert house.holds([*rows, *more])
    assert damaged.name not in {Path(one.path).name for one in house.latest.set_aside}


def test_a_compacted_ledger_has_the_same_results_and_is_not_read_again(house: House) -> None:
    parts = [some_operations(seed, 50) for seed in (7, 8, 9)]
    for rows in parts[:2]:
        put(house.ledger, rows)
    house.ingest()
    before = house.tables()
    after_the_day = START + 3 * DAY
    compact(house.ledger, now_us=lambda: after_the_day)
    (house.ledger / "day=2026-11-01").chmod(0o755)
    asked: list[Any] = []
    house.spark.conf.set("spark.sql.files.ignoreCorruptFiles", "false")
    done = house.ingest(tell=lambda *what: asked.append(what))
    assert done.is_published  # the files are others
    assert house.tables() == before
    assert house.latest.days["2026-11-01"].files == 1
    assert house.latest.days["2026-11-01"].rollups == done.snapshot.days["2026-11-01"].rollups

    put(house.ledger, parts[2])
    house.ingest()
    assert house.holds([row for rows in parts for row in rows])


def test_compaction_between_the_look_and_the_read_makes_a_run_start_over(house: House) -> None:
    parts = [some_operations(seed, 50) for seed in (10, 11)]
    for rows in parts:
        put(house.ledger, rows)
    is_compacted = False

    def compact_now(what: str, done: int, total: int) -> None:
        nonlocal is_compacted
        if what == "making rollups" and not is_compacted:
            is_compacted = True
            compact(house.ledger, now_us=lambda: START + 3 * DAY)
            compact(house.ledger, now_us=lambda: START + 9 * DAY)  # removes what was replaced

    house.ingest(tell=compact_now)
    assert house.holds([row for rows in parts for row in rows])
    assert house.latest.days["2026-11-01"].files == 1


def _returns(value: Callable[[], None]) -> Callable[..., dict[str, Any]]:
    def reconcile(*_: object) -> dict[str, Any]:
        value()
        return {"summary": {}}

    return reconcile


def test_of_two_runs_at_once_one_publishes_and_the_other_starts_over(house: House) -> None:
    rows, more = some_operations(12, 50), some_operations(13, 50)
    put(house.ledger, rows)
    others: list[Ingested] = []

    def meanwhile() -> None:
        if not others:
            put(house.ledger, more)
            others.append(house.ingest(reconcile=_returns(lambda: None)))

    done = house.ingest(reconcile=_returns(meanwhile))
    assert others[0].snapshot.number == 1
    assert not done.is_published  # the other one has seen everything
    assert house.holds([*rows, *more])


def test_a_run_that_always_loses_says_so(house: House) -> None:
    put(house.ledger, some_operations(14, 5))
    numbers = iter(range(100))

    def meanwhile() -> None:
        house.results.publish(Snapshot(run=f"other {next(numbers)}"), after=house.results.highest())

    with pytest.raises(PipelineError, match="others were faster 3 times"):
        house.ingest(reconcile=_returns(meanwhile))


def test_a_run_that_dies_leaves_nothing_to_be_seen(house: House) -> None:
    rows = some_operations(15, 50)
    put(house.ledger, rows)

    def die() -> None:
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        house.ingest(reconcile=_returns(die))
    assert house.results.latest() is None
    house.ingest()
    assert house.holds(rows)


def test_days_that_are_removed_from_the_ledger_keep_their_results(house: House) -> None:
    first, second = some_operations(16, 30), some_operations(17, 30, START + DAY)
    path = put(house.ledger, first)
    put(house.ledger, second)
    house.ingest()
    shutil.rmtree(path.parent)
    house.ingest()
    assert house.holds([*first, *second])
    assert house.latest.days["2026-11-01"].is_gone
    assert not house.latest.days["2026-11-02"].is_gone


def test_rows_that_the_ledger_lacks_are_counted(house: House) -> None:
    gap = an_operation(
        START,
        namespace=NamespaceRole.NEITHER,
        entity="",
        operation=OperationKind.DROPPED,
        stage=Stage.LEDGER,
        outcome=Outcome.FAILED,
        count=23,
        error="BufferFull",
    )
    put(house.ledger, [gap])
    house.ingest()
    assert house.latest.dropped == 23
    assert usages(usage_table(house.results, house.latest)) == []


def test_rows_can_be_read_without_their_times(house: House) -> None:
    rows = some_operations(21, 30)
    path = put(house.ledger, rows)
    shutil.copy(path, path.with_name(path.name.replace("-1-", "-2-")))
    found = survey(house.ledger).rows(house.spark, ["bytes"], within=[Interval(START, START + HOUR - 1)]).collect()
    assert sorted(row.bytes for row in found) == sorted(row.bytes for row in rows if row.ts < START + HOUR)


def test_days_cannot_be_chosen_where_arrivals_are_reconciled(house: House) -> None:
    with pytest.raises(ValueError, match="only must not be given with reconcile"):
        house.ingest(only=["2026-11-01"], reconcile=_returns(lambda: None))


def test_a_folder_that_is_not_there_is_no_ledger(house: House) -> None:
    with pytest.raises(LedgerNotFound):
        house.ingest()


def test_watching_brings_results_up_to_date_as_files_come_also_without_its_checkpoint(house: House) -> None:
    rows, more, last = some_operations(18, 50), some_operations(19, 50, START + DAY), some_operations(20, 50)
    put(house.ledger, rows)
    runs: list[Ingested] = []
    came = threading.Condition()

    def on_run(done: Ingested) -> None:
        with came:
            runs.append(done)
            came.notify_all()

    def watched(do: Callable[[], object], expected: int) -> None:
        watch = Watch(house.spark, house.ledger, house.results, interval=1, on_run=on_run)
        thread = threading.Thread(target=watch.go)
        thread.start()
        try:
            with came:
                assert came.wait_for(lambda: runs and runs[-1].snapshot.days, timeout=60)
            do()
            with came:
                assert came.wait_for(
                    lambda: sum(day.rows for day in runs[-1].snapshot.days.values()) == expected, timeout=60
                )
        finally:
            watch.stop()
            thread.join(60)

    watched(lambda: put(house.ledger, more), 100)
    assert house.holds([*rows, *more])
    shutil.rmtree(Path(house.results._root) / "checkpoints")
    watched(lambda: put(house.ledger, last), 150)
    assert house.holds([*rows, *more, *last])


@pytest.mark.parametrize("interval", [0, 0.5, 86_401])
def test_an_interval_out_of_bounds_is_refused(house: House, interval: float) -> None:
    with pytest.raises(ValueError, match="interval must be from 1 to 86400 seconds"):
        Watch(house.spark, house.ledger, house.results, interval=interval, on_run=lambda done: None)
