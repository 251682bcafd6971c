"""Tests the removal of old days and the marker of expired days."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from datetime import date, timedelta
from itertools import count as count_from
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ledger.rows import DAY, NOON, a_send, message_ids
from tests.ledger.stores import Killed, MortalStore, memory_url

from twinbus.ledger import expiry
from twinbus.ledger.compaction import compact
from twinbus.ledger.expiry import MARKER, decode_marker, encode_marker, expire, expired_before, parse_day
from twinbus.ledger.layout import FileName, temp_name
from twinbus.ledger.ledger_errors import LedgerError, LedgerNotFoundError
from twinbus.ledger.ledger_reader import read_ledger
from twinbus.ledger.store import open_store
from twinbus.ledger.writer import LedgerWriter

TODAY = date(2026, 11, 16)
ROOT = Path(__file__).parents[2]
SECONDS = 60.0


def days_ago(days: int) -> date:
    return TODAY - timedelta(days=days)


def write(url: str | Path, *days: int) -> None:
    """Write two files for each day, counted back from today."""
    for number in range(2):
        with LedgerWriter(url, now_us=lambda: NOON) as writer:
            for day in days:
                writer.record(a_send(f"{day}-{number}", ts=NOON - day * DAY))


def days_of(url: str | Path) -> set[int]:
    """Return the days that have rows, counted back from today."""
    return {int(str(name).partition("-")[0]) for name in message_ids(url)}


@pytest.fixture(params=["folder", "memory"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "ledger") if request.param == "folder" else memory_url()


def test_expire_removes_earlier_days_oldest_first(ledger: str) -> None:
    write(ledger, 0, 1, 2, 3, 4)
    result = expire(ledger, days_ago(2), now_us=lambda: NOON)
    assert [(day.day, day.files) for day in result.days] == [(days_ago(4), 2), (days_ago(3), 2)]
    assert (result.before, result.files) == (days_ago(2), 4)
    assert result.bytes == sum(day.bytes for day in result.days) > 4000
    assert days_of(ledger) == {0, 1, 2}
    with open_store(ledger).open("", MARKER) as file:
        assert json.loads(file.read()) == {"before": "2026-11-14"}
    assert expire(ledger, days_ago(2), now_us=lambda: NOON).days == []


def test_expire_removes_empty_folders_and_keeps_foreign_files(tmp_path: Path) -> None:
    write(tmp_path, 3, 4)
    (tmp_path / "day=2026-11-13" / "note.txt").write_text("keep")
    expire(tmp_path, days_ago(1), now_us=lambda: NOON)
    assert [path.name for path in tmp_path.glob("day=*")] == ["day=2026-11-13"]
    assert (tmp_path / "day=2026-11-13" / "note.txt").read_text() == "keep"


def test_expire_removes_compacted_files_sidecars_and_old_temporary_files(tmp_path: Path) -> None:
    write(tmp_path, 3)
    compact(tmp_path, now_us=lambda: NOON)
    folder = tmp_path / "day=2026-11-13"
    old, recent = (temp_name(str(FileName(at, "0" * 16, 1, 1))) for at in (NOON - DAY, NOON))
    (folder / old).write_bytes(b"half")
    (folder / recent).write_bytes(b"half")
    assert expire(tmp_path, days_ago(1), now_us=lambda: NOON).files == 5
    assert os.listdir(folder) == [recent]


def test_expire_dry_run_changes_nothing(ledger: str) -> None:
    write(ledger, 0, 3)
    result = expire(ledger, days_ago(1), dry_run=True, now_us=lambda: NOON)
    assert [(day.day, day.files) for day in result.days] == [(days_ago(3), 2)]
    assert days_of(ledger) == {0, 3}
    assert expired_before(open_store(ledger)) is None


def test_marker_never_moves_back(ledger: str) -> None:
    write(ledger, 0, 8, 9)
    expire(ledger, days_ago(2), now_us=lambda: NOON)
    write(ledger, 3, 9)  # late
    result = expire(ledger, days_ago(5), now_us=lambda: NOON)
    assert (result.before, [day.day for day in result.days]) == (days_ago(2), [days_ago(9)])
    assert expired_before(open_store(ledger)) == days_ago(2)
    assert days_of(ledger) == {0, 3}


def test_late_rows_of_expired_days_are_stored_but_not_compacted(ledger: str) -> None:
    write(ledger, 0, 3)
    expire(ledger, days_ago(1), now_us=lambda: NOON)
    write(ledger, 3)
    assert compact(ledger, now_us=lambda: NOON).new_files == 0
    assert days_of(ledger) == {0, 3}
    assert read_ledger(ledger).unreadable == []


def test_expire_rejects_recent_days(tmp_path: Path) -> None:
    write(tmp_path, 0, 1, 2)
    with pytest.raises(ValueError, match="before must be at most 2026-11-15, which is yesterday in UTC"):
        expire(tmp_path, TODAY, now_us=lambda: NOON)
    for force in (False, True):
        with pytest.raises(ValueError, match="before must be at most 2026-11-16, which is today in UTC"):
            expire(tmp_path, days_ago(-1), force=force, now_us=lambda: NOON)
    assert not (tmp_path / MARKER).exists()
    expire(tmp_path, days_ago(1), now_us=lambda: NOON)
    assert days_of(tmp_path) == {0, 1}
    expire(tmp_path, TODAY, force=True, now_us=lambda: NOON)
    assert days_of(tmp_path) == {0}
    with pytest.raises(LedgerNotFoundError):
        expire(tmp_path / "nothing", days_ago(5), now_us=lambda: NOON)


@given(st.dates())
def test_marker_round_trips(day: date) -> None:
    assert decode_marker(encode_marker(day)) == day


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"{}", b'{"before": 7}', b'{"before": "20261101"}'])
def test_damaged_marker_raises_and_removes_nothing(content: bytes, tmp_path: Path) -> None:
    write(tmp_path, 0, 3)
    (tmp_path / MARKER).write_bytes(content)
    for work in (lambda: expire(tmp_path, days_ago(1), now_us=lambda: NOON), lambda: compact(tmp_path)):
        with pytest.raises(LedgerError, match="the marker of expired days at "):
            work()
    assert days_of(tmp_path) == {0, 3}


@pytest.mark.parametrize("text", ["", "2026-11", "20261116", "2026-13-01", "2026-W01-1", "yesterday"])
def test_parse_day_accepts_only_one_format(text: str) -> None:
    with pytest.raises(ValueError, match="before must be a day such as 2026-11-16, not "):
        parse_day(text)
    assert parse_day("2026-11-16") == TODAY


def test_expire_finishes_expiry_interrupted_after_any_change(ledger: str, monkeypatch: pytest.MonkeyPatch) -> None:
    open_real_store = expiry.open_store
    for changes in count_from():
        url = f"{ledger}/{changes}"
        write(url, 0, 2, 3)
        compact(url, now_us=lambda: NOON)
        monkeypatch.setattr(
            expiry, "open_store", lambda *args, changes=changes: MortalStore(open_real_store(*args), changes)
        )
        try:
            expire(url, days_ago(1), now_us=lambda: NOON)
        except Killed:
            pass
        else:
            break
        finally:
            monkeypatch.undo()
        store = open_store(url)
        # Days are only removed after the marker says so, and no row is seen twice.
        assert (days_of(url) == {0, 2, 3}) if changes == 0 else expired_before(store) == days_ago(1)
        assert max(message_ids(url).values()) == 1
        expire(url, days_ago(1), now_us=lambda: NOON)
        assert days_of(url) == {0}
        assert [store.files(folder) for folder in store.folders() if folder < "day=2026-11-15"] in ([], [[], []])
    assert changes == 9  # the marker, and for each of two days two files, a compacted file and its sidecar


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_expire_finishes_killed_expiry(seed: int, tmp_path: Path) -> None:
    write(tmp_path, 0, *range(2, 40))
    work = f"expire({str(tmp_path)!r}, date(2026, 11, 15), now_us=lambda: {NOON})"
    script = f"from datetime import date; from twinbus.ledger.expiry import expire; print(flush=True); {work}"
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(random.Random(seed).uniform(0, 0.01))  # the moment of the kill
        process.kill()
        process.wait(SECONDS)
    if days_of(tmp_path) != {0, *range(2, 40)}:
        assert expired_before(open_store(tmp_path)) == days_ago(1)
    expire(tmp_path, days_ago(1), now_us=lambda: NOON)
    assert days_of(tmp_path) == {0}
    assert [path.name for path in tmp_path.glob("day=*")] == ["day=2026-11-16"]
