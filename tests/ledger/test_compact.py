"""Compaction: few files instead of many, and at every moment every row exactly once."""

from __future__ import annotations

import threading
from itertools import count as count_from
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.ledger.rows import DAY, HOUR, NOON, a_send, message_ids
from tests.ledger.stores import Killed, MortalStore, memory_url

from twinbus.ledger import compaction as compacting
from twinbus.ledger.compaction import compact
from twinbus.ledger.file_rotation import Rotation
from twinbus.ledger.layout import FileName, encode_claims, sidecar_name, temp_name
from twinbus.ledger.ledger_errors import LedgerError, LedgerNotFoundError
from twinbus.ledger.ledger_reader import UnreadableFile, newest, read_ledger
from twinbus.ledger.store import LocalStore, open_store
from twinbus.ledger.writer import LedgerWriter

TODAY = "day=2026-11-16"
TOMORROW = NOON + DAY


def write(
    url: str | Path, count: int, *, prefix: str = "m", files: int = 1, ts: int = NOON, at: int = NOON
) -> set[str]:
    """Write `files` files of `count` messages each; return the ids."""
    times = count_from(at)
    with LedgerWriter(url, rotation=Rotation(rows=count, flush_seconds=0.0), now_us=lambda: next(times)) as writer:
        ids = [f"{prefix}-{number}" for number in range(count * files)]
        for start in range(0, len(ids), count):
            for one in ids[start : start + count]:
                writer.record(a_send(one, ts=ts))
            writer.request_flush().result(30)
    return set(ids)


def once(ids: set[str]) -> dict[str, int]:
    return dict.fromkeys(ids, 1)


def names_of(url: str | Path) -> list[str]:
    """The files of the day that hold rows."""
    return [name for name in open_store(url).files(TODAY) if name.endswith(".parquet")]


def sidecars_of(url: str | Path) -> list[str]:
    return [name for name in open_store(url).files(TODAY) if name.endswith(".replaces")]


@pytest.fixture(params=["folder", "memory"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "ledger") if request.param == "folder" else memory_url()


def test_small_files_of_a_day_become_one_and_are_removed_a_day_later(ledger: str) -> None:
    ids = write(ledger, 10, files=20)
    done = compact(ledger, now_us=lambda: TOMORROW)
    assert (done.replaced_files, done.new_files, done.rows, done.removed_files) == (20, 1, 200, 0)
    assert len(names_of(ledger)) == 21
    assert sidecars_of(ledger) == [f"{names_of(ledger)[-1]}.replaces"]
    assert message_ids(ledger) == once(ids)
    assert newest(ledger, 1000).table.num_rows == 200
    done = compact(ledger, now_us=lambda: TOMORROW + DAY + 1)
    assert (done.replaced_files, done.new_files, done.removed_files) == (0, 0, 20)
    assert len(names_of(ledger)) == 1
    assert message_ids(ledger) == once(ids)


def test_a_day_is_left_alone_until_it_is_over_and_settled(ledger: str) -> None:
    write(ledger, 1, files=3)
    midnight = NOON + DAY // 2
    for now in (NOON, midnight, midnight + HOUR - 1):
        assert compact(ledger, now_us=lambda now=now: now).new_files == 0
    assert compact(ledger, now_us=lambda: midnight + HOUR).new_files == 1


def test_files_get_about_as_many_rows_as_wanted_and_large_ones_stay(tmp_path: Path) -> None:
    ids = write(tmp_path, 10, files=35) | write(tmp_path, 60, prefix="large", at=NOON + HOUR)
    done = compact(tmp_path, target_rows=100, now_us=lambda: TOMORROW)
    assert (done.replaced_files, done.new_files, done.rows) == (35, 4, 350)
    compacted = [pq.read_metadata(file).num_rows for file in tmp_path.glob("*/*.compacted.parquet")]
    assert sorted(compacted) == [50, 100, 100, 100]
    assert message_ids(tmp_path) == once(ids)


def test_a_compacted_file_is_sorted_by_time(tmp_path: Path) -> None:
    for number, ts in enumerate([NOON + 5, NOON + 1, NOON + 9]):
        write(tmp_path, 1, prefix=str(ts), ts=ts, at=NOON + number)
    compact(tmp_path, now_us=lambda: TOMORROW)
    times = read_ledger(tmp_path).table["message_id"].to_pylist()
    assert times == [f"{NOON + 1}-0", f"{NOON + 5}-0", f"{NOON + 9}-0"]


def test_rows_that_are_there_twice_are_once_in_a_compacted_file(tmp_path: Path) -> None:
    ids = write(tmp_path, 10, files=3)
    store = open_store(tmp_path)
    first = names_of(tmp_path)[0]
    store.put(TODAY, first.replace("-1.parquet", "-99.parquet"), (tmp_path / TODAY / first).read_bytes())
    assert compact(tmp_path, now_us=lambda: TOMORROW).rows == 30
    assert message_ids(tmp_path) == once(ids)


def test_late_rows_are_compacted_with_what_was_compacted_before(ledger: str) -> None:
    ids = write(ledger, 10, files=3)
    compact(ledger, now_us=lambda: TOMORROW)
    ids |= write(ledger, 10, prefix="late", at=TOMORROW + 1)
    assert message_ids(ledger) == once(ids)
    done = compact(ledger, now_us=lambda: TOMORROW + HOUR)
    assert (done.replaced_files, done.rows) == (2, 40)
    assert message_ids(ledger) == once(ids)
    # Whatever of the old files is removed first, none of the others comes to life again.
    store = open_store(ledger)
    for name in reversed([name for name in names_of(ledger)[:-1] if ".compacted" in name]):
        store.delete(TODAY, name)
    assert message_ids(ledger) == once(ids)
    compact(ledger, now_us=lambda: TOMORROW + 3 * DAY)
    assert len(names_of(ledger)) == 1
    assert message_ids(ledger) == once(ids)


def test_files_whose_rows_were_compacted_twice_are_still_named(ledger: str) -> None:
    """Who read them before the first compaction must find out where their rows are."""
    write(ledger, 5, files=2)
    first = set(names_of(ledger))
    for day in (0, 2):
        compact(ledger, now_us=lambda day=day: TOMORROW + day * DAY)  # type: ignore[misc]
    write(ledger, 5, prefix="late", at=TOMORROW + 2 * DAY)
    for day in (3, 5):
        compact(ledger, now_us=lambda day=day: TOMORROW + day * DAY)  # type: ignore[misc]
    [last] = sidecars_of(ledger)
    with open_store(ledger).open(TODAY, last) as file:
        assert first < set(file.read().decode().splitlines())


def test_two_compactions_at_once_do_no_harm(ledger: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = write(ledger, 10, files=3)
    survey = compacting.survey
    nested: list[Any] = []

    def another_comes_between(store: Any) -> Any:
        found = survey(store)
        if not nested:
            nested.append(None)
            write(ledger, 10, prefix="late", at=NOON + HOUR)
            compact(ledger, now_us=lambda: TOMORROW + 1)
        return found

    monkeypatch.setattr(compacting, "survey", another_comes_between)
    ids |= {f"late-{number}" for number in range(10)}
    compact(ledger, now_us=lambda: TOMORROW)
    assert len([name for name in names_of(ledger) if ".compacted" in name]) == 2
    assert message_ids(ledger) == once(ids)
    # The void one goes at once, with its sidecar; the other files when their time has come.
    done = compact(ledger, now_us=lambda: TOMORROW + HOUR)
    assert done.removed_files == 1
    assert sidecars_of(ledger) == [f"{name}.replaces" for name in names_of(ledger) if ".compacted" in name]
    assert message_ids(ledger) == once(ids)
    compact(ledger, now_us=lambda: TOMORROW + 3 * DAY)
    assert len(names_of(ledger)) == 1
    assert message_ids(ledger) == once(ids)


def test_readers_see_every_row_once_while_others_compact_and_write(tmp_path: Path) -> None:
    ids = write(tmp_path, 5, files=30)
    stop = threading.Event()
    wrong: list[object] = []

    def watch() -> None:
        while not stop.is_set():
            seen = message_ids(tmp_path)
            if {one: count for one, count in seen.items() if one in ids} != once(ids) or max(seen.values()) > 1:
                wrong.append(seen)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for round_ in range(8):
            write(tmp_path, 3, prefix=f"more-{round_}", at=TOMORROW + round_ * DAY)
            compact(tmp_path, now_us=lambda round_=round_: TOMORROW + round_ * 2 * DAY)
    finally:
        stop.set()
        watcher.join()
    assert wrong == []


def test_what_cannot_be_read_is_named_and_stays(tmp_path: Path) -> None:
    ids = write(tmp_path, 10, files=3)
    torn = tmp_path / TODAY / str(FileName(NOON, "f" * 16, 1, 1))
    torn.write_bytes(b"PAR1 torn")
    done = compact(tmp_path, now_us=lambda: TOMORROW)
    assert done.replaced_files == 3
    assert [one.path for one in done.unreadable] == [f"{TODAY}/{torn.name}"]
    compact(tmp_path, now_us=lambda: TOMORROW + 2 * DAY)
    assert torn.exists()
    torn.unlink()
    assert message_ids(tmp_path) == once(ids)


def test_damaged_rows_are_found_before_their_file_is_replaced(tmp_path: Path) -> None:
    ids = write(tmp_path, 1000)
    write(tmp_path, 1000, prefix="damaged", at=NOON + 1)
    ids |= write(tmp_path, 1000, prefix="last", at=NOON + 2)
    damaged = sorted(tmp_path.glob("*/*.parquet"))[1]
    data = bytearray(damaged.read_bytes())
    data[4:2000] = bytes(1996)
    damaged.write_bytes(data)
    done = compact(tmp_path, now_us=lambda: TOMORROW)
    assert (done.replaced_files, done.rows) == (2, 2000)
    assert [one.path for one in done.unreadable] == [f"{TODAY}/{damaged.name}"]
    damaged.unlink()
    assert message_ids(tmp_path) == once(ids)


def test_leftovers_of_killed_writers_are_removed(tmp_path: Path) -> None:
    write(tmp_path, 1)
    left = tmp_path / TODAY / temp_name(str(FileName(NOON, "0" * 16, 1, 1)))
    left.write_bytes(b"half a file")
    assert compact(tmp_path, now_us=lambda: NOON + HOUR).removed_files == 0
    assert compact(tmp_path, now_us=lambda: NOON + HOUR + 1).removed_files == 1
    assert not left.exists()


def test_a_compaction_that_takes_too_long_gives_up(tmp_path: Path) -> None:
    ids = write(tmp_path, 10, files=3)
    later = iter([TOMORROW, TOMORROW + DAY // 2 + 1])
    with pytest.raises(LedgerError, match="compacting day=2026-11-16 took too long"):
        compact(tmp_path, now_us=lambda: next(later))
    assert len(names_of(tmp_path)) == 3
    assert sidecars_of(tmp_path) == []
    assert message_ids(tmp_path) == once(ids)


def test_the_sidecar_names_one_replaced_file_per_line(tmp_path: Path) -> None:
    write(tmp_path, 10, files=3)
    inputs = names_of(tmp_path)
    compact(tmp_path, now_us=lambda: TOMORROW)
    (sidecar,) = sidecars_of(tmp_path)
    assert (tmp_path / TODAY / sidecar).read_text() == "".join(f"{name}\n" for name in inputs)


def test_a_sidecar_without_its_file_claims_nothing_and_is_removed_when_it_is_old(ledger: str) -> None:
    ids = write(ledger, 10, files=3)
    orphan = sidecar_name(str(FileName(TOMORROW, "a" * 16, 1, 1, is_compacted=True)))
    open_store(ledger).put(TODAY, orphan, encode_claims(names_of(ledger)))
    assert message_ids(ledger) == once(ids)
    # Its compacted file may still come.
    assert compact(ledger, now_us=lambda: TOMORROW + DAY).removed_files == 0
    assert orphan in sidecars_of(ledger)
    compact(ledger, now_us=lambda: TOMORROW + DAY + 1)
    assert orphan not in sidecars_of(ledger)
    assert message_ids(ledger) == once(ids)


def test_a_compacted_file_without_its_sidecar_claims_nothing(ledger: str) -> None:
    ids = write(ledger, 10, files=3)
    compact(ledger, now_us=lambda: TOMORROW)
    open_store(ledger).delete(TODAY, sidecars_of(ledger)[0])
    assert message_ids(ledger) == dict.fromkeys(ids, 2)
    # The next compaction sees the same rows in both, and keeps them once.
    assert compact(ledger, now_us=lambda: TOMORROW + HOUR).rows == 30
    assert message_ids(ledger) == once(ids)


def test_files_are_kept_while_the_one_that_replaces_them_cannot_be_read(tmp_path: Path) -> None:
    ids = write(tmp_path, 10, files=3)
    compact(tmp_path, now_us=lambda: TOMORROW)
    (whole,) = (tmp_path / TODAY).glob("*.compacted.parquet")
    whole.write_bytes(b"torn")
    for days in (2, 4):
        done = compact(tmp_path, now_us=lambda days=days: TOMORROW + days * DAY)
        assert (done.removed_files, done.unreadable) == (
            0,
            [UnreadableFile(f"{TODAY}/{whole.name}", "corrupt: ArrowInvalid")],
        )
    whole.unlink()
    assert message_ids(tmp_path) == once(ids)


def test_a_compaction_that_ends_after_any_change_leaves_every_row_once(
    ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = compacting.open_store
    for changes in count_from():
        monkeypatch.undo()
        url = f"{ledger}/{changes}"
        # Files to merge, a compacted one that was replaced by another, and a sidecar that was left behind.
        ids = write(url, 2, files=3)
        compact(url, now_us=lambda: TOMORROW)
        ids |= write(url, 2, prefix="late", at=TOMORROW + 1)
        compact(url, now_us=lambda: TOMORROW + HOUR)
        ids |= write(url, 2, prefix="later", files=2, at=TOMORROW + DAY)
        orphan = sidecar_name(str(FileName(NOON, "a" * 16, 1, 1, is_compacted=True)))
        open_store(url).put(TODAY, orphan, encode_claims(names_of(url)))
        left = changes
        monkeypatch.setattr(compacting, "open_store", lambda *given, left=left: MortalStore(opened(*given), left))
        try:
            compact(url, now_us=lambda: TOMORROW + 3 * DAY)
        except Killed:
            monkeypatch.undo()
            assert message_ids(url) == once(ids)
            for days in (4, 6, 8):
                compact(url, now_us=lambda days=days: TOMORROW + days * DAY)
            assert message_ids(url) == once(ids)
            assert len(names_of(url)) == len(sidecars_of(url)) == 1
        else:
            break
    assert changes == 9  # five files, a sidecar of one of them, the one that was left behind, and two new ones


def test_a_reader_starts_again_when_files_vanish_under_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = write(tmp_path, 10, files=3)
    opened = LocalStore.open
    calls = 0

    def compacted_meanwhile(self: LocalStore, folder: str, name: str) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            compact(tmp_path, now_us=lambda: TOMORROW)
            compact(tmp_path, now_us=lambda: TOMORROW + 2 * DAY)
        return opened(self, folder, name)

    monkeypatch.setattr(LocalStore, "open", compacted_meanwhile)
    assert message_ids(tmp_path) == once(ids)


def test_bad_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="settle_seconds must be at least 0, not -1"):
        compact(tmp_path, settle_seconds=-1)
    with pytest.raises(ValueError, match="keep_seconds must be more than 0, not 0"):
        compact(tmp_path, keep_seconds=0)
    with pytest.raises(ValueError, match="target_rows must be at least 1, not 0"):
        compact(tmp_path, target_rows=0)
    with pytest.raises(LedgerNotFoundError):
        compact(tmp_path / "nothing")
