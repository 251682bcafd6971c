"""Files that somebody has put into a ledger's folder to do harm: they are set aside and named, and the rest is read."""

from __future__ import annotations

import json
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

from twinbus.ledger.compact import compact
from twinbus.ledger.layout import FileName
from twinbus.ledger.reading import MAX_GROUP_ROWS, newest, read_ledger
from twinbus.ledger.schema import REPLACES_KEY, SCHEMA, VERSION_KEY, to_batch
from twinbus.ledger.writer import LedgerWriter

TODAY = "day=2026-11-16"
NOON = 1_794_830_400_000_000
METADATA = {VERSION_KEY: b"1"}


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """Ten good rows."""
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


def rows_like_ours(count: int) -> pa.Table:
    return pa.Table.from_batches([to_batch([a_send(f"x-{number}") for number in range(count)])])


def reasons(ledger: Path) -> dict[str, str]:
    """What was set aside, when the good rows and no others were read."""
    contents = read_ledger(ledger)
    assert contents.table.num_rows == 10
    assert newest(ledger, 100).table.num_rows == 10
    return {Path(one.path).name: one.reason for one in contents.set_aside}


def test_a_file_that_is_cut_off_anywhere_is_set_aside(ledger: Path) -> None:
    whole = parquet(rows_like_ours(50))
    for number, length in enumerate(range(0, len(whole), max(1, len(whole) // 40)), 1):
        hostile(ledger, whole[:length], number)
    found = reasons(ledger)
    assert len(found) >= 40
    assert {reason.partition(":")[0] for reason in found.values()} == {"corrupt"}


def test_bytes_that_were_changed_anywhere_never_end_the_reading(ledger: Path) -> None:
    """What a changed byte says may still be a row; nobody promises that a ledger shows who wrote it."""
    whole, chance = parquet(rows_like_ours(50)), random.Random(1)
    for number in range(60):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 20)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        hostile(ledger, bytes(data))
        contents = read_ledger(ledger)
        ours = {row for row in contents.table["message_id"].to_pylist() if row and row.startswith("m-")}
        assert len(ours) == 10, number


def test_columns_of_other_kinds_are_named(ledger: Path) -> None:
    table = rows_like_ours(3)
    for number, column in enumerate(table.column_names, 1):
        kind = pa.int64() if pa.types.is_string(table.schema.field(column).type) else pa.string()
        at = table.column_names.index(column)
        hostile(ledger, parquet(table.set_column(at, column, pa.nulls(3, kind))), number)
    hostile(ledger, parquet(table.select(["op_id"])), 100)
    nested = pa.array([[{"a": 1}]] * 3)
    hostile(ledger, parquet(table.set_column(0, "op_id", nested)), 101)
    found = reasons(ledger)
    assert len(found) == len(table.column_names) + 2
    assert all(reason.startswith("column ") for reason in found.values()), found


@pytest.mark.slow
def test_a_small_file_with_millions_of_rows_is_refused_unread(ledger: Path) -> None:
    """Rows that are all alike take next to nothing in a file, and gigabytes in memory: it may have no more than two."""
    count = MAX_GROUP_ROWS + 1
    one = rows_like_ours(1)
    text = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), count), pa.array(["a" * 1000]))
    columns = {
        field.name: text if pa.types.is_string(field.type) else pa.repeat(one[field.name][0], count)
        for field in SCHEMA
        if field.name in one.column_names and one[field.name][0].is_valid
    }
    data = parquet(pa.table(columns), row_group_size=count, compression="zstd")
    assert len(data) < 3_000_000
    hostile(ledger, data)
    code = (
        "from twinbus.ledger.reading import read_ledger\n"
        f"found = read_ledger({str(ledger)!r})\n"
        "print(found.table.num_rows, found.set_aside[0].reason)"
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


def test_absurd_values_are_rows_like_any_others(ledger: Path) -> None:
    """They do no harm to whoever reads them: no time, number or text in a row ends the reading."""
    absurd = [
        a_send("\u202e\x00\x1b[2J<script>alert(1)</script>", entity="../../etc/passwd", destination="'; drop table x"),
        a_send("x" * 100_000, bytes=2**63 - 1, latency_us=-(2**63)),
    ]
    table = pa.Table.from_batches([to_batch(absurd)])
    hostile(ledger, parquet(table))
    assert read_ledger(ledger).table.num_rows == 12
    shown = subprocess.run(
        [sys.executable, "-m", "twinbus", "ledger", "show", str(ledger)],
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert shown.returncode == 0, shown.stderr
    # What a row says must not move the cursor of whoever looks at it.
    assert b"\x1b[2J" not in shown.stdout
    assert "\u202e".encode() not in shown.stdout


def test_links_and_devices_are_not_followed_into_trouble(ledger: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "secret.txt"
    foreign.write_text("nobody's business")
    hostile(ledger, number=1).symlink_to(foreign)
    hostile(ledger, number=2).symlink_to("/dev/zero")
    hostile(ledger, number=3).symlink_to(tmp_path / "gone")
    loop = hostile(ledger, number=4)
    loop.symlink_to(loop)
    os.mkfifo(hostile(ledger, number=5))
    hostile(ledger, number=6).mkdir()
    (ledger / "day=2026-11-17").symlink_to(ledger / "day=2026-11-17")
    found = reasons(ledger)
    assert found[name(1)] == "corrupt: ArrowInvalid"
    assert "nobody's business" not in str(found)
    compact(ledger, now_us=lambda: NOON + 10 * 86_400_000_000)
    assert read_ledger(ledger).table.num_rows == 10
    assert foreign.read_text() == "nobody's business"


def test_a_file_that_claims_to_replace_others_reaches_no_other_folder(ledger: Path, tmp_path: Path) -> None:
    """Whoever may write files here may also remove them, but only here."""
    other = ledger / "day=2026-11-15" / name(7)
    other.parent.mkdir()
    other.write_bytes(parquet(rows_like_ours(3)))
    outside = tmp_path / "precious.txt"
    outside.write_text("precious")
    claims = [f"../{other.parent.name}/{other.name}", "../../precious.txt", str(outside), "..", ".", ""]
    metadata = {**METADATA, REPLACES_KEY: json.dumps(claims).encode()}
    sink = pa.BufferOutputStream()
    pq.write_table(rows_like_ours(1).replace_schema_metadata(metadata), sink)
    (ledger / TODAY / name(8).replace(".parquet", ".compacted.parquet")).write_bytes(sink.getvalue().to_pybytes())
    assert read_ledger(ledger).table.num_rows == 14
    for day in (10, 20, 30):
        compact(ledger, now_us=lambda day=day: NOON + day * 86_400_000_000)  # type: ignore[misc]
    assert read_ledger(ledger).table.num_rows == 14
    assert outside.read_text() == "precious"
    assert other.exists()
