"""Which files of a ledger count, and which hours have changed with them. No Spark."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.ledger.stores import memory_url
from tests.pipeline.ledger_files import DAY, HOUR, START, put, some_operations

from twinbus.ledger.compact import compact
from twinbus.ledger.errors import LedgerChanged, LedgerNotFound
from twinbus.ledger.layout import FileName
from twinbus.ledger.store import LocalStore
from twinbus.ledger.writer import LedgerWriter
from twinbus.pipeline.changes import changed_hours, pieces, whole_hours
from twinbus.pipeline.files import DayFiles, FileFacts, facts_of, spark_path, survey
from twinbus.pipeline.overlaps import Interval
from twinbus.pipeline.rollup_tasks import blocks_of

FOLDER = "day=2026-11-01"


def name(number: int, *, compacted: bool = False) -> str:
    return str(FileName(START, "00000000000000aa", 1, number, is_compacted=compacted))


def a_file(number: int, first: int = 0, last: int = 0, *, rows: int = 10, tag: str = "1") -> FileFacts:
    """A file with rows of the hours from `first` to `last` of the day."""
    return FileFacts(name(number), 100, tag, rows, START + first * HOUR + 1, START + last * HOUR + 2)


def compacted(number: int, replaces: Sequence[FileFacts], rows: int) -> FileFacts:
    names = [one.name for one in replaces]
    first, last = min(one.first_us for one in replaces), max(one.last_us for one in replaces)
    return FileFacts(name(number, compacted=True), 100, "1", rows, first, last, replaces=names)


def a_day(*files: FileFacts) -> DayFiles:
    return DayFiles.of(FOLDER, sorted(files, key=lambda one: one.name))


def hours(*numbers: int) -> list[Interval]:
    return whole_hours(Interval(START + one * HOUR, START + one * HOUR) for one in numbers)


def test_all_hours_of_a_new_day_are_made() -> None:
    assert changed_hours(None, a_day(a_file(1, 2, 3), a_file(2, 7, 7))) == hours(2, 3, 7)


def test_the_hours_of_files_that_came_went_or_changed_are_made_anew() -> None:
    before = a_day(a_file(1, 1, 1), a_file(2, 5, 5), a_file(3, 9, 9))
    now = a_day(a_file(1, 1, 1), a_file(3, 9, 10, tag="2"), a_file(4, 20, 20))
    assert changed_hours(before, now) == hours(5, 9, 10, 20)


def test_compacted_rows_that_counted_are_not_read_again() -> None:
    first, second = a_file(1, 1, 1), a_file(2, 5, 5)
    before = a_day(first, second)
    assert changed_hours(before, a_day(first, second, compacted(3, [first, second], 20))) == []
    assert changed_hours(before, a_day(compacted(3, [first, second], 20))) == []


def test_a_compacted_file_with_rows_that_did_not_count_or_fewer_rows_is_read() -> None:
    first, second = a_file(1, 1, 1), a_file(2, 5, 5)
    assert changed_hours(a_day(first), a_day(compacted(3, [first, second], 20))) == hours(1, 2, 3, 4, 5)
    assert changed_hours(a_day(first, second), a_day(compacted(3, [first, second], 19))) == hours(1, 2, 3, 4, 5)


def test_a_compacted_file_is_compacted_again_and_not_read() -> None:
    first, second, late = a_file(1, 1, 1), a_file(2, 5, 5), a_file(4, 7, 7)
    once = compacted(3, [first, second], 20)
    before = a_day(first, second, once, late)
    assert changed_hours(before, a_day(compacted(5, [first, second, once, late], 30))) == []


def test_work_is_cut_into_pieces_of_whole_days() -> None:
    days = {f"2026-11-{number:02}": a_day(a_file(1, rows=9_000_000)) for number in range(1, 6)}
    assert list(pieces(days)) == [["2026-11-01", "2026-11-02"], ["2026-11-03", "2026-11-04"], ["2026-11-05"]]
    assert list(pieces({"2026-11-01": a_day(a_file(1, rows=10**9))})) == [["2026-11-01"]]


def test_an_inventory_comes_back_as_it_was() -> None:
    day = a_day(a_file(1), compacted(3, [a_file(2)], 10), FileFacts(name(4), 1, "x", refused="corrupt"))
    assert facts_of(day.inventory()) == [
        one if one.replaces else FileFacts(**{**_fields(one), "replaces": []}) for one in day.listed
    ]
    assert DayFiles.of(FOLDER, facts_of(day.inventory())).fingerprint == day.fingerprint


def _fields(one: FileFacts) -> dict[str, object]:
    return {field: getattr(one, field) for field in FileFacts.__slots__}


@pytest.mark.parametrize("place", ["folder", "memory"])
def test_footers_say_what_a_file_holds_and_are_read_once(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(tmp_path / "ledger") if place == "folder" else memory_url()
    rows = [*some_operations(1, 20), *some_operations(2, 10, START + DAY)]
    with LedgerWriter(url) as writer:
        for row in rows:
            writer.record(row)
    view = survey(url)
    assert list(view.days) == ["2026-11-01", "2026-11-02"]
    (file,) = view.days["2026-11-01"].live
    assert (file.rows, file.first_us, file.last_us) == (20, rows[0].ts, rows[19].ts)
    ids = sorted(f"{row.op_id:032x}" for row in rows[:20])
    assert (file.first_id, file.last_id) == (ids[0], ids[-1])
    known = {name: day.listed for name, day in view.days.items()}

    def no_open(*_: object) -> None:
        raise AssertionError("a file that is known was opened")

    monkeypatch.setattr("twinbus.pipeline.files._open", no_open)
    again = survey(url, known)
    assert [day.fingerprint for day in again.days.values()] == [day.fingerprint for day in view.days.values()]
    assert survey(url, known, only=["2026-11-02"]).days.keys() == {"2026-11-02"}


def test_damage_that_a_footer_does_not_tell_is_found_by_reading(tmp_path: Path) -> None:
    good, bad = put(tmp_path, some_operations(3, 50)), put(tmp_path, some_operations(4, 500))
    data = bytearray(bad.read_bytes())
    data[50 : len(data) // 2] = bytes(len(data) // 2 - 50)
    bad.write_bytes(data)
    view = survey(tmp_path)
    assert len(view.days["2026-11-01"].live) == 2
    (found,) = view.check()
    assert found.path == f"{FOLDER}/{bad.name}"
    assert [one.name for one in view.days["2026-11-01"].live] == [good.name]
    assert view.set_aside == [found]
    assert view.check() == []


def test_a_damaged_file_whose_rows_are_in_a_compacted_one_is_not_missed(tmp_path: Path) -> None:
    paths = [put(tmp_path, some_operations(seed, 20)) for seed in (5, 6)]
    compact(tmp_path, now_us=lambda: START + 3 * DAY)
    paths[0].write_bytes(b"")
    view = survey(tmp_path)
    assert view.set_aside == []
    assert view.days["2026-11-01"].rows == 40


def test_a_compacted_file_that_is_damaged_gives_way_to_the_files_it_replaced(tmp_path: Path) -> None:
    for seed in (7, 8):
        put(tmp_path, some_operations(seed, 20))
    compact(tmp_path, now_us=lambda: START + 3 * DAY)
    (whole,) = (tmp_path / FOLDER).glob("*.compacted.parquet")
    whole.write_bytes(whole.read_bytes()[:-9])
    view = survey(tmp_path)
    assert [one.path for one in view.set_aside] == [f"{FOLDER}/{whole.name}"]
    assert (len(view.days["2026-11-01"].live), view.days["2026-11-01"].rows) == (2, 40)


def shared(ledger: Path) -> Sequence[str]:
    """The files whose rows a task compares with each other."""
    files = survey(ledger).days["2026-11-01"]
    [block] = blocks_of("2026-11-01", files, changed_hours(None, files), {})
    return block.shared


def test_rows_are_compared_only_where_files_may_share_some(tmp_path: Path) -> None:
    path = put(tmp_path, some_operations(9, 50))
    put(tmp_path, some_operations(10, 50))
    assert not shared(tmp_path)
    shutil.copy(path, path.with_name(path.name.replace("-1-", "-2-")))
    assert shared(tmp_path)


def test_a_file_that_vanishes_during_the_look_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, some_operations(11, 5))

    def gone(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(LocalStore, "open", gone)
    with pytest.raises(LedgerChanged):
        survey(tmp_path)


def test_nothing_is_no_ledger(tmp_path: Path) -> None:
    with pytest.raises(LedgerNotFound):
        survey(tmp_path / "nothing")


def test_patterns_in_paths_are_escaped_for_spark() -> None:
    assert spark_path("file:///a[1]", "b{c}*") == "file:///a\\[1\\]/b\\{c\\}\\*"
