"""Runs of the pipeline on Spark: what changes the tables, what does not, and what makes a run fail."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bench.ledger_shape import Shape
from bench.ledgers import generate
from tests.pipeline.ledger_files import DAY, START, an_operation, put

from twinbus.ledger.compaction import compact
from twinbus.ledger.expiry import expire
from twinbus.spark import read_table, run_pipeline
from twinbus.spark.pipeline.day_planning import Status
from twinbus.spark.pipeline.inventory import LedgerFiles
from twinbus.spark.pipeline.lock import RunLock
from twinbus.spark.pipeline.run import RunResult
from twinbus.spark.pipeline.run_errors import (
    LedgerReadError,
    ResultsLockedError,
    ResultsLostError,
    ResultsUnreachableError,
)
from twinbus.spark.pipeline.storage import ResultTables
from twinbus.tables.result_reader import Results
from twinbus.tables.table_schemas import INPUTS, TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NOW = datetime(2026, 11, 30, tzinfo=UTC)
SHAPE = Shape(rows=3_000, entities=3, days=4, outages=1, lost=2, unexpected=1, trouble=5_000, block=300)


def run(spark: SparkSession, ledger: Path, **options: Any) -> RunResult:
    return run_pipeline(spark, ledger, now=NOW, **options)


def tables(ledger: Path) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of all tables, in order."""
    results = Results(f"{ledger}-results")
    return {
        name: sorted(map(tuple, map(dict.values, results.read(table).to_pylist())), key=repr)
        for name, table in TABLES.items()
    }


def statuses(ledger: Path) -> Mapping[str, str]:
    rows = Results(f"{ledger}-results").read(INPUTS).to_pylist()
    newest = max(row["number"] for row in rows)
    return {row["file"]: row["status"] for row in rows if row["number"] == newest}


class KilledError(BaseException):
    """Not an Exception: nothing handles it."""


def killed(*_: Any) -> None:
    raise KilledError


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "ledger"
    generate(folder, SHAPE)
    return folder


@pytest.fixture(scope="module")
def clean(spark: SparkSession, made: Path) -> dict[str, list[tuple[Any, ...]]]:
    """The tables of one run over the whole ledger."""
    assert run(spark, made).is_changed
    return tables(made)


def test_a_run_without_news_changes_nothing(spark: SparkSession, made: Path, clean: object) -> None:
    done = run(spark, made)
    assert (done.is_changed, done.number) == (False, 1)


def test_spark_reads_the_same_rows_as_everyone(
    spark: SparkSession, made: Path, clean: dict[str, list[tuple[Any, ...]]]
) -> None:
    for name, rows in clean.items():
        assert read_table(spark, f"{made}-results", name).count() == len(rows)
    with pytest.raises(ValueError, match="name must be one of usage, "):
        read_table(spark, f"{made}-results", "operations")


def test_files_that_come_late_twice_and_compacted_give_the_same_tables(
    spark: SparkSession, made: Path, clean: dict[str, list[tuple[Any, ...]]], tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    days = sorted(folder.name for folder in made.iterdir() if folder.is_dir())
    late = sorted((made / days[0]).iterdir())[1]
    for day in days[:2]:
        shutil.copytree(made / day, ledger / day, ignore=lambda *_: [late.name])
    assert [str(day) for day in run(spark, ledger).days] == [day.removeprefix("day=") for day in days[:2]]
    shutil.copy(late, ledger / days[0])
    for day in days[2:]:
        shutil.copytree(made / day, ledger / day)
    # The same rows once more, in a file of another name.
    again = sorted((made / days[2]).iterdir())[0]
    shutil.copy(again, ledger / days[2] / again.name.replace("-1-", "-9-"))
    done = run(spark, ledger)
    assert date.fromisoformat(days[1].removeprefix("day=")) not in done.days
    assert tables(ledger) == clean
    assert compact(ledger).new_files
    run(spark, ledger)
    assert tables(ledger) == clean
    claimed = {name for sidecar in ledger.rglob("*.replaces") for name in sidecar.read_text("utf-8").split()}
    assert {name for name, status in statuses(ledger).items() if status == "replaced"} == claimed


def test_results_that_are_lost_are_computed_again(
    spark: SparkSession, made: Path, clean: dict[str, list[tuple[Any, ...]]]
) -> None:
    results = Path(f"{made}-results")
    shutil.rmtree(results / "_inputs")
    shutil.rmtree(results / "verdicts")
    assert run(spark, made).is_changed
    assert tables(made) == clean


def test_a_run_that_was_killed_is_repeated_by_the_next(
    spark: SparkSession, made: Path, clean: dict[str, list[tuple[Any, ...]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = ResultTables.replace
    shutil.rmtree(f"{made}-results")

    def killed_at_verdicts(self: ResultTables, table: Any, *given: Any, **more: Any) -> None:
        if table.name == "verdicts":
            raise KilledError
        replace(self, table, *given, **more)

    monkeypatch.setattr(ResultTables, "replace", killed_at_verdicts)
    with pytest.raises(KilledError):
        run(spark, made)
    monkeypatch.undo()
    assert run(spark, made).is_changed
    assert tables(made) == clean


def test_executors_need_no_python(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "ledger", [an_operation(START, message_id="m-1")])
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "no-such-python")
    run(spark, tmp_path / "ledger")
    assert len(tables(tmp_path / "ledger")["verdicts"]) == 1


def test_history_does_not_shrink_by_itself(spark: SparkSession, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    first = put(ledger, [an_operation(START, message_id="m-1", destination="orders")])
    put(ledger, [an_operation(START + DAY, message_id="m-2", destination="orders")])
    run(spark, ledger)
    before = tables(ledger)
    first.unlink()
    assert not run(spark, ledger).days
    late = put(ledger, [an_operation(START + 5, message_id="m-3", destination="orders")])
    done = run(spark, ledger)
    assert tables(ledger) == before
    assert statuses(ledger)[late.name] == "late"
    [listed] = [one for one in done.inputs if one.status is Status.LATE]
    assert "1 files of its day were removed; --allow-shrink" in (listed.reason or "")
    run(spark, ledger, allow_shrink=True)
    ids = sorted(row[2] for row in tables(ledger)["message_days"])
    assert ids == ["m-2", "m-3"]


def test_a_late_row_for_an_expired_day_is_listed(spark: SparkSession, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    put(ledger, [an_operation(START, message_id="m-1", destination="orders")])
    put(ledger, [an_operation(START + DAY, message_id="m-2", destination="orders")])
    run(spark, ledger)
    before = tables(ledger)
    expire(ledger, date(2026, 11, 2), now_us=lambda: START + 20 * DAY)
    late = put(ledger, [an_operation(START + 5, message_id="m-3", destination="orders")])
    run(spark, ledger)
    assert tables(ledger) == before
    assert statuses(ledger)[late.name] == "late"


def test_a_killed_run_after_an_expiry_is_repeated_without_the_expired_days(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = tmp_path / "ledger"
    put(ledger, [an_operation(START, message_id="m-1")])
    run(spark, ledger)
    put(ledger, [an_operation(START + DAY, message_id="m-2")])
    expire(ledger, date(2026, 11, 2), now_us=lambda: START + 20 * DAY)
    monkeypatch.setattr(ResultTables, "write_inputs", killed)
    for _ in range(2):  # each has another number, and must not write over what the complete run has left
        with pytest.raises(KilledError):
            run(spark, ledger)
        assert ResultTables(spark, f"file://{ledger}-results").inputs()[0] == 1
    monkeypatch.undo()
    shutil.rmtree(f"{ledger}-results/verdicts/day=2026-11-01")  # by a kill between deleting and renaming
    run(spark, ledger)
    found = tables(ledger)
    assert [row[2] for row in found["message_days"]] == ["m-1", "m-2"]
    assert [row[0].day for row in found["verdicts"]] == [1, 2]
    shutil.rmtree(f"{ledger}-results/usage/day=2026-11-01")
    with pytest.raises(ResultsLostError, match="have lost 2026-11-01, and the ledger does not have all files of it"):
        run(spark, ledger)


def test_days_that_come_late_change_what_was_published_under_later_days(spark: SparkSession, tmp_path: Path) -> None:
    """As in a clean run: where a message began, and how clients write a path."""
    ledger = tmp_path / "ledger"
    put(ledger, [an_operation(START + 3 * DAY, message_id="m-1")])
    put(ledger, [an_operation(START + 28 * DAY, message_id="m-2")])
    run(spark, ledger)
    put(ledger, [an_operation(START + DAY, message_id="m-1")])
    run(spark, ledger)
    assert sorted((row[0].day, row[1]) for row in tables(ledger)["verdicts"]) == [(2, "orders"), (29, "orders")]
    put(ledger, [an_operation(START + 28 * DAY, message_id="m-3", entity="Orders")])
    run(spark, ledger)
    assert sorted((row[0].day, row[1]) for row in tables(ledger)["verdicts"]) == [(2, "Orders"), (29, "Orders")]


def test_files_that_disappear_while_they_are_read_are_looked_for_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = tmp_path / "ledger"
    for number in range(2):
        put(ledger, [an_operation(START + number, message_id=f"m-{number}")])
    rows = LedgerFiles.rows
    calls = iter(range(100))

    def compacted_meanwhile(self: LedgerFiles, files: Any) -> Any:
        if next(calls) == 1:  # after the survey: the day is computed
            compact(ledger, now_us=lambda: START + 3 * DAY)
            compact(ledger, now_us=lambda: START + 6 * DAY)  # removes what the first has replaced
        return rows(self, files)

    monkeypatch.setattr(LedgerFiles, "rows", compacted_meanwhile)
    run(spark, ledger)
    assert len(tables(ledger)["message_days"]) == 2
    assert list(statuses(ledger).values()) == ["read"]


def test_unreadable_files_are_listed_and_tried_again(spark: SparkSession, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    for number in range(4):
        put(ledger, [an_operation(START + number, message_id=f"m-{number}", destination="orders")])
    damaged = put(ledger, [an_operation(START + 9, message_id="m-9", destination="orders")])
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[: len(whole) // 2])
    empty = put(ledger, [an_operation(START + 8)])
    empty.write_bytes(b"")
    foreign, kind, nameless = (put(ledger, [an_operation(START + 7)]) for _ in range(3))
    table = pq.read_table(nameless)
    pq.write_table(pa.table({"x": [1]}), foreign)
    pq.write_table(table.set_column(table.column_names.index("stage"), "stage", pa.array(["direct"])), kind)
    pq.write_table(table.drop_columns(["op_id"]), nameless)
    run(spark, ledger)
    found = statuses(ledger)
    assert {found[one.name] for one in (damaged, empty, foreign, kind, nameless)} == {"unreadable"}
    assert len(tables(ledger)["message_days"]) == 4
    damaged.write_bytes(whole)
    run(spark, ledger)
    assert statuses(ledger)[damaged.name] == "read"
    assert len(tables(ledger)["message_days"]) == 5


def test_a_read_error_is_retried_and_then_fails_the_run(spark: SparkSession, tmp_path: Path) -> None:
    # The words of a damaged file are in its path: only its bytes tell that the content is not to blame.
    ledger = tmp_path / "Invalid snappy"
    path = put(ledger, [an_operation(START, message_id="m-1")])
    checksums = path.with_name(f".{path.name}.crc")  # Spark's local files check them, and find the disk at fault
    wrong = b"crc\0\0\0\2\0" + bytes(4 * 100)
    checksums.write_bytes(wrong)
    recovered = LedgerFiles(spark, f"file://{ledger}", sleep=lambda _: checksums.unlink())
    [one] = recovered.survey(recovered.listing().files)
    assert (one.status, one.rows) == (Status.READ, 1)
    checksums.write_bytes(wrong)
    broken = LedgerFiles(spark, f"file://{ledger}", sleep=lambda _: None)
    with pytest.raises(LedgerReadError, match=f"{path.name} could not be read 3 times: .*[Cc]hecksum"):
        broken.survey(broken.listing().files)


def test_days_of_impossible_clocks_are_listed_and_not_counted(spark: SparkSession, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    put(ledger, [an_operation(START, message_id="m-1", destination="orders")])
    early = put(ledger, [an_operation(5, message_id="m-2", destination="orders")])
    ahead = put(ledger, [an_operation(START + 60 * DAY, message_id="m-3", destination="orders")])
    run(spark, ledger)
    found = statuses(ledger)
    assert (found[early.name], found[ahead.name]) == ("clock", "clock")
    assert {row[0] for row in tables(ledger)["usage"]} == {date(2026, 11, 1)}


def test_a_day_folder_below_another_folder_is_not_read(spark: SparkSession, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    path = put(ledger, [an_operation(START, message_id="m-1", destination="orders")])
    other = put(tmp_path / "other", [an_operation(START + DAY, message_id="m-2", destination="orders")])
    for copied in (path, other):
        shutil.copytree(copied.parent, ledger / "backup" / copied.parent.name)
    run(spark, ledger)
    assert [row[2] for row in tables(ledger)["message_days"]] == ["m-1"]
    assert statuses(ledger) == {
        path.name: "read",
        f"{path.parent.name}/{path.name}": "stray",
        f"{other.parent.name}/{other.name}": "stray",
    }


def test_two_runs_at_once_are_kept_apart(spark: SparkSession, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    put(ledger, [an_operation(START)])
    with (
        RunLock(spark, f"file://{ledger}-results/_lock", "0-first").held(),
        pytest.raises(ResultsLockedError, match=r"another run .* is writing these results"),
    ):
        run(spark, ledger)
    assert run(spark, ledger).is_changed


def test_of_runs_that_start_together_one_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    together, refused = threading.Barrier(3), threading.Semaphore(0)

    def take_part(number: int) -> bool:
        lock = RunLock(spark, f"file://{tmp_path}/_lock", f"run-{number}")
        together.wait(60)
        try:
            with lock.held():
                for _ in range(2):  # the others see this one, and give up
                    assert refused.acquire(timeout=120)
        except ResultsLockedError:
            return False
        finally:
            refused.release()
        return True

    with ThreadPoolExecutor(3) as pool:
        assert sum(pool.map(take_part, range(3))) == 1


def test_another_format_is_passed_through(spark: SparkSession, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    put(ledger, [an_operation(START, message_id="m-1", destination="orders")])
    run(spark, ledger, format="orc")
    assert list(Path(f"{ledger}-results").glob("usage/day=2026-11-01/*.orc"))
    assert read_table(spark, f"{ledger}-results", "usage").count() == 1
    with pytest.raises(ResultsUnreachableError, match="have the format orc: write parquet tables to another place"):
        run(spark, ledger)


def test_results_must_be_outside_the_ledger(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="results must be outside the ledger, got file://"):
        run_pipeline(spark, tmp_path, tmp_path / "results")
