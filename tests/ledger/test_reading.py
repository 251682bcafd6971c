"""Tests reading a ledger, and the report of unreadable files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ledger.rows import DAY, NOON, a_send, message_ids, operations, sends
from tests.ledger.stores import memory_url

from twinbus.ledger.file_rotation import Rotation
from twinbus.ledger.layout import FileName, temp_name
from twinbus.ledger.ledger_errors import LedgerNotFoundError
from twinbus.ledger.ledger_reader import UnreadableFile, newest, read_ledger
from twinbus.ledger.recorder import Operation
from twinbus.ledger.schema import SCHEMA, VERSION_KEY, encode, to_batch, to_operations
from twinbus.ledger.writer import LedgerWriter

TODAY = "day=2026-11-16"


def write(url: str | Path, recorded: list[Operation], **options: int) -> None:
    with LedgerWriter(url, rotation=Rotation(**options)) as writer:
        for operation in recorded:
            writer.record(operation)


def a_name(number: int, *, is_compacted: bool = False) -> str:
    return str(FileName(NOON, "0" * 16, 1, number, is_compacted))


@given(st.lists(operations, min_size=1, max_size=20))
@settings(max_examples=30)
def test_recorded_operations_round_trip(recorded: list[Operation]) -> None:
    url = memory_url()
    write(url, recorded)
    contents = read_ledger(url)
    assert contents.unreadable == []
    assert Counter(to_operations(contents.table)) == Counter(recorded)


def test_local_ledger_is_readable_by_parquet_readers(tmp_path: Path) -> None:
    write(tmp_path, [*sends(10), *sends(5, ts=NOON - DAY)])
    table = pq.read_table(tmp_path)
    assert table.num_rows == 15
    assert sorted(set(table["day"].to_pylist())) == ["2026-11-15", "2026-11-16"]


@pytest.mark.parametrize("place", ["folder", "memory"])
def test_reader_reports_foreign_and_unreadable_files(place: str, tmp_path: Path) -> None:
    url = str(tmp_path) if place == "folder" else memory_url()
    write(url, sends(10))
    valid = encode(pa.Table.from_batches([to_batch([a_send("never")])]))
    later_version = pa.table(
        {"op_id": [b"x"]}, schema=pa.schema([("op_id", pa.binary())], metadata={VERSION_KEY: b"2"})
    )
    wrong_columns = pa.table({"ts": [1]}, schema=pa.schema([("ts", pa.int64())], metadata={VERSION_KEY: b"1"}))
    put(url, TODAY, a_name(1), valid[: len(valid) // 2])
    put(url, TODAY, a_name(2), b"")
    put(url, TODAY, a_name(3), as_parquet(pa.table({"a": [1]})))
    put(url, TODAY, a_name(4), as_parquet(later_version))
    put(url, TODAY, a_name(5), as_parquet(wrong_columns))
    put(url, TODAY, a_name(6, is_compacted=True), valid[:-1])
    put(url, TODAY, f"{a_name(7)}.replaces", b"")
    put(url, TODAY, "part-00000.parquet", valid)
    put(url, "year=2026", a_name(1), valid)
    put(url, "", "readme.txt", b"hello")
    # Files that are hidden by convention are not reported.
    put(url, TODAY, temp_name(a_name(7)), valid)
    put(url, TODAY, "_SUCCESS", b"")
    put(url, "_spark_metadata", "0", b"v1")
    contents = read_ledger(url)
    assert contents.table.num_rows == 10
    assert sorted(contents.unreadable, key=lambda file: file.path) == sorted(
        [
            UnreadableFile(f"{TODAY}/{a_name(1)}", "corrupt: ArrowInvalid"),
            UnreadableFile(f"{TODAY}/{a_name(2)}", "corrupt: ArrowInvalid"),
            UnreadableFile(f"{TODAY}/{a_name(3)}", "not a file of a ledger"),
            UnreadableFile(f"{TODAY}/{a_name(4)}", "written by a later release, version 2"),
            UnreadableFile(f"{TODAY}/{a_name(5)}", "column ts is int64, not timestamp[us, tz=UTC]"),
            UnreadableFile(f"{TODAY}/{a_name(6, is_compacted=True)}", "corrupt: ArrowInvalid"),
            UnreadableFile(f"{TODAY}/{a_name(7)}.replaces", "not a file of a ledger"),
            UnreadableFile(f"{TODAY}/part-00000.parquet", "not a file of a ledger"),
            UnreadableFile("readme.txt", "not a file of a ledger"),
            UnreadableFile("year=2026", "not a folder of a ledger"),
        ],
        key=lambda file: file.path,
    )


def put(url: str, folder: str, name: str, data: bytes) -> None:
    import fsspec

    fs, root = fsspec.core.url_to_fs(url)
    path = "/".join(filter(None, [root, folder, name]))
    fs.makedirs(path.rpartition("/")[0], exist_ok=True)
    fs.pipe_file(path, data)


def as_parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


def test_reader_reports_file_with_damaged_rows(tmp_path: Path) -> None:
    write(tmp_path, sends(1000))
    write(tmp_path, [a_send("good")])
    damaged = max(tmp_path.glob("*/*.parquet"), key=lambda file: file.stat().st_size)
    data = bytearray(damaged.read_bytes())
    data[4:2000] = bytes(1996)
    damaged.write_bytes(data)
    contents = read_ledger(tmp_path)
    assert contents.table["message_id"].to_pylist() == ["good"]
    assert [file.path for file in contents.unreadable] == [f"{TODAY}/{damaged.name}"]
    assert contents.unreadable[0].reason.startswith("corrupt: ")


def test_reader_accepts_missing_and_additional_columns(tmp_path: Path) -> None:
    write(tmp_path, [a_send("now")])
    table = pa.Table.from_batches([to_batch([a_send("then")])])
    changed = table.drop_columns(["latency_us"]).append_column("flavour", pa.array(["sweet"]))
    put(str(tmp_path), TODAY, a_name(1), as_parquet(changed))
    rows = read_ledger(tmp_path).table
    assert rows.schema.names == SCHEMA.names
    assert dict(zip(rows["message_id"].to_pylist(), rows["latency_us"].to_pylist(), strict=True)) == {
        "now": 300,
        "then": None,
    }


def test_read_ledger_filters_days_columns_and_rows(tmp_path: Path) -> None:
    write(tmp_path, [a_send(f"day-{day}", ts=NOON + day * DAY) for day in range(5)])
    contents = read_ledger(
        tmp_path,
        columns=["message_id"],
        since="2026-11-17",
        until="2026-11-19",
        where=pc.field("message_id") != "day-2",
    )
    assert contents.table.to_pydict() == {"message_id": ["day-1", "day-3"]}


def test_newest_returns_newest_rows_oldest_first(tmp_path: Path) -> None:
    rows = [a_send(f"m-{number}", ts=NOON + number * DAY // 10) for number in range(50)]
    write(tmp_path, rows[::-1], rows=7)
    contents = newest(tmp_path, 13)
    assert contents.table["message_id"].to_pylist() == [f"m-{number}" for number in range(37, 50)]
    filtered = newest(tmp_path, 3, where=pc.field("message_id") < "m-2")
    assert filtered.table["message_id"].to_pylist() == ["m-17", "m-18", "m-19"]
    assert newest(tmp_path, 100).table.num_rows == 50
    with pytest.raises(ValueError, match="limit must be at least 1, not 0"):
        newest(tmp_path, 0)


def test_newest_does_not_read_earlier_days(tmp_path: Path) -> None:
    write(tmp_path, [a_send("old", ts=NOON - DAY), a_send("new")])
    (old,) = tmp_path.glob("day=2026-11-15/*")
    old.write_bytes(b"damaged")
    contents = newest(tmp_path, 1)
    assert (contents.table["message_id"].to_pylist(), contents.unreadable) == (["new"], [])


def test_read_ledger_raises_when_ledger_is_missing(tmp_path: Path) -> None:
    for url in (tmp_path / "nothing", memory_url()):
        with pytest.raises(LedgerNotFoundError, match="there is no ledger at "):
            read_ledger(url)


def test_empty_folder_is_empty_ledger(tmp_path: Path) -> None:
    assert read_ledger(tmp_path).table.num_rows == 0
    assert newest(tmp_path, 5).table.num_rows == 0
    assert message_ids(tmp_path) == {}
