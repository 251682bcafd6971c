"""Malicious files in a ledger's folder are reported as unreadable, and the rest is read."""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.ledger.rows import a_send, sends

from twinbus.ledger.compaction import compact
from twinbus.ledger.layout import FileName, encode_claims, sidecar_name
from twinbus.ledger.ledger_reader import MAX_CLAIMS_BYTES, MAX_GROUP_ROWS, newest, read_ledger
from twinbus.ledger.schema import SCHEMA, VERSION_KEY, to_batch
from twinbus.ledger.writer import LedgerWriter

TODAY = "day=2026-11-16"
NOON = 1_794_830_400_000_000
METADATA = {VERSION_KEY: b"1"}


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """A ledger with ten valid rows."""
    with LedgerWriter(tmp_path / "ledger") as writer:
        for row in sends(10):
            writer.record(row)
    return tmp_path / "ledger"


def name(number: int) -> str:
    return str(FileName(NOON + number, "0" * 16, 1, number))


def hostile(ledger: Path, data: bytes | None = None, number: int = 1) -> Path:
    path = ledger / TODAY / name(number)
    if data is not None:
        path.write_bytes(data)
    return path


def parquet(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(METADATA), sink, **options)
    return sink.getvalue().to_pybytes()


def valid_rows(count: int) -> pa.Table:
    return pa.Table.from_batches([to_batch([a_send(f"x-{number}") for number in range(count)])])


def reasons(ledger: Path) -> dict[str, str]:
    """The unreadable files and reasons; asserts that exactly the valid rows were read."""
    contents = read_ledger(ledger)
    assert contents.table.num_rows == 10
    assert newest(ledger, 100).table.num_rows == 10
    return {Path(file.path).name: file.reason for file in contents.unreadable}


def test_truncated_file_is_reported_as_unreadable(ledger: Path) -> None:
    whole = parquet(valid_rows(50))
    for number, length in enumerate(range(0, len(whole), max(1, len(whole) // 40)), 1):
        hostile(ledger, whole[:length], number)
    unreadable = reasons(ledger)
    assert len(unreadable) >= 40
    assert {reason.partition(":")[0] for reason in unreadable.values()} == {"corrupt"}


def test_changed_bytes_never_stop_the_reader(ledger: Path) -> None:
    """A changed byte may still give a valid row: a ledger does not prove who wrote it."""
    whole, chance = parquet(valid_rows(50)), random.Random(1)
    for number in range(60):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 20)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        hostile(ledger, bytes(data))
        contents = read_ledger(ledger)
        ours = {row for row in contents.table["message_id"].to_pylist() if row and row.startswith("m-")}
        assert len(ours) == 10, number


def test_wrong_column_types_are_reported_by_name(ledger: Path) -> None:
    table = valid_rows(3)
    for number, column in enumerate(table.column_names, 1):
        kind = pa.int64() if pa.types.is_string(table.schema.field(column).type) else pa.string()
        at = table.column_names.index(column)
        hostile(ledger, parquet(table.set_column(at, column, pa.nulls(3, kind))), number)
    hostile(ledger, parquet(table.select(["op_id"])), 100)
    nested = pa.array([[{"a": 1}]] * 3)
    hostile(ledger, parquet(table.set_column(0, "op_id", nested)), 101)
    unreadable = reasons(ledger)
    assert len(unreadable) == len(table.column_names) + 2
    assert all(reason.startswith("column ") for reason in unreadable.values()), unreadable


@pytest.mark.slow
def test_small_file_with_millions_of_rows_is_not_read(ledger: Path) -> None:
    """Identical rows compress to almost nothing but take gigabytes in memory; the child may use 2 GiB."""
    count = MAX_GROUP_ROWS + 1
    row = valid_rows(1)
    text = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), count), pa.array(["a" * 1000]))
    columns = {
        field.name: text if pa.types.is_string(field.type) else pa.repeat(row[field.name][0], count)
        for field in SCHEMA
        if field.name in row.column_names and row[field.name][0].is_valid
    }
    data = parquet(pa.table(columns), row_group_size=count, compression="zstd")
    assert len(data) < 3_000_000
    hostile(ledger, data)
    code = (
        "from twinbus.ledger.ledger_reader import read_ledger\n"
        f"contents = read_ledger({str(ledger)!r})\n"
        "print(contents.table.num_rows, contents.unreadable[0].reason)"
    )
    limit = 2 << 30
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert run.stdout.startswith(f"10 row group 0 has {count:,} rows"), run.stderr


def test_extreme_values_are_read_and_shown_safely(ledger: Path) -> None:
    """No time, number or text in a row stops the reader."""
    extreme = [
        a_send("\u202e\x00\x1b[2J<script>alert(1)</script>", entity="../../etc/passwd", destination="'; drop table x"),
        a_send("x" * 100_000, bytes=2**63 - 1, latency_us=-(2**63)),
    ]
    table = pa.Table.from_batches([to_batch(extreme)])
    hostile(ledger, parquet(table))
    assert read_ledger(ledger).table.num_rows == 12
    shown = subprocess.run(
        [sys.executable, "-m", "twinbus", "ledger", "show", str(ledger)],
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert shown.returncode == 0, shown.stderr
    # Row text must not control the reader's terminal.
    assert b"\x1b[2J" not in shown.stdout
    assert "\u202e".encode() not in shown.stdout


def test_symlinks_and_special_files_do_no_harm(ledger: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "secret.txt"
    foreign.write_text("a foreign secret")
    hostile(ledger, number=1).symlink_to(foreign)
    hostile(ledger, number=2).symlink_to("/dev/zero")
    hostile(ledger, number=3).symlink_to(tmp_path / "gone")
    loop = hostile(ledger, number=4)
    loop.symlink_to(loop)
    os.mkfifo(hostile(ledger, number=5))
    hostile(ledger, number=6).mkdir()
    (ledger / "day=2026-11-17").symlink_to(ledger / "day=2026-11-17")
    unreadable = reasons(ledger)
    assert unreadable[name(1)] == "corrupt: ArrowInvalid"
    assert "a foreign secret" not in str(unreadable)
    compact(ledger, now_us=lambda: NOON + 10 * 86_400_000_000)
    assert read_ledger(ledger).table.num_rows == 10
    assert foreign.read_text() == "a foreign secret"


def test_replacement_claims_do_not_reach_other_folders(ledger: Path, tmp_path: Path) -> None:
    """A client that may write files to this folder may remove files here, but nowhere else."""
    other = ledger / "day=2026-11-15" / name(7)
    other.parent.mkdir()
    other.write_bytes(parquet(valid_rows(3)))
    outside = tmp_path / "precious.txt"
    outside.write_text("precious")
    claims = [f"../{other.parent.name}/{other.name}", "../../precious.txt", str(outside), "..", ".", ""]
    compacted = ledger / TODAY / name(8).replace(".parquet", ".compacted.parquet")
    compacted.write_bytes(parquet(valid_rows(1)))
    compacted.with_name(sidecar_name(compacted.name)).write_bytes(encode_claims(claims))
    assert read_ledger(ledger).table.num_rows == 14
    for day in (10, 20, 30):
        compact(ledger, now_us=lambda day=day: NOON + day * 86_400_000_000)  # type: ignore[misc]
    assert read_ledger(ledger).table.num_rows == 14
    assert outside.read_text() == "precious"
    assert other.exists()


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "large", "not text"])
def test_invalid_sidecar_claims_nothing(ledger: Path, kind: str) -> None:
    compacted = ledger / TODAY / name(8).replace(".parquet", ".compacted.parquet")
    compacted.write_bytes(parquet(valid_rows(1)))
    sidecar = compacted.with_name(sidecar_name(compacted.name))
    if kind == "pipe":
        os.mkfifo(sidecar)
    elif kind == "device":
        sidecar.symlink_to("/dev/zero")
    elif kind == "folder":
        sidecar.mkdir()
    elif kind == "large":
        with sidecar.open("wb") as file:
            file.truncate(MAX_CLAIMS_BYTES + 1)
    else:
        sidecar.write_bytes(bytes(range(256)) * 4)
    contents = read_ledger(ledger)
    assert contents.table.num_rows == 11
    assert [file.path for file in contents.unreadable] == ([f"{TODAY}/{sidecar.name}"] if kind == "large" else [])
