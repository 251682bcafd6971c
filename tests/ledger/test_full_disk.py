"""Tests a ledger on a full disk: senders continue, flushes fail, and dropped rows are counted later."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ledger.rows import a_send, sends
from tests.ledger.stores import SECONDS, until

from twinbus.ledger.durable_rows import Proof
from twinbus.ledger.file_rotation import Rotation
from twinbus.ledger.ledger_errors import NotDurableError
from twinbus.ledger.ledger_reader import read_ledger
from twinbus.ledger.recorder import OperationKind
from twinbus.ledger.schema import to_operations
from twinbus.ledger.writer import LedgerWriter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs tmpfs")

DISK_BYTES = 1 << 20


class SmallDisk:
    """A small mounted file system that a file can fill."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        size = f"size={DISK_BYTES}"
        if shutil.which("mount") is None:
            pytest.skip("needs the command mount")
        mount = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)], capture_output=True)
        if mount.returncode != 0:
            pytest.skip("needs permission to mount file systems")

    def fill(self) -> None:
        with (self.folder / "filler").open("ab", buffering=0) as file:
            try:
                while file.write(bytes(4096)) == 4096:
                    pass
            except OSError:
                return

    def free(self) -> None:
        (self.folder / "filler").unlink()

    def close(self) -> None:
        subprocess.run(["umount", str(self.folder)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    small_disk = SmallDisk(tmp_path)
    try:
        yield small_disk
    finally:
        small_disk.close()


def test_full_disk_only_drops_rows_and_counts_them(disk: SmallDisk) -> None:
    ledger = disk.folder / "ledger"
    with LedgerWriter(ledger, rotation=Rotation(rows=100, flush_seconds=0.0), buffer_rows=1000) as writer:
        before = sends(100)
        for operation in before:
            writer.record(operation)
        writer.request_flush().result(SECONDS)
        disk.fill()
        started = time.monotonic()
        for operation in sends(5000):
            writer.record(operation)
        assert time.monotonic() - started < 10.0
        until(lambda: writer.status().failing is not None)
        status = writer.status()
        assert status.failing == "No space left on device"
        assert status.dropped_rows > 0
        # Incomplete files do not take up space.
        assert [file for file in ledger.glob("*/.*") if file.stat().st_size] == []
        disk.free()
        writer.request_flush().result(SECONDS)
        writer.record(a_send("after"))
        writer.request_flush().result(SECONDS)
        dropped = writer.status().dropped_rows
    contents = read_ledger(ledger)
    rows = list(to_operations(contents.table))
    assert contents.unreadable == []
    assert sum(row.count for row in rows if row.operation is OperationKind.DROPPED) == dropped
    stored = [row for row in rows if row.operation is not OperationKind.DROPPED]
    assert len(stored) + dropped == 100 + 5000 + 1
    assert len({row.op_id for row in rows}) == len(rows)
    assert stored[:100] == before
    assert stored[-1].message_id == "after"


def test_flush_fails_on_full_disk_and_succeeds_with_free_space(disk: SmallDisk) -> None:
    ledger = disk.folder / "ledger"
    with LedgerWriter(ledger, rotation=Rotation(flush_seconds=0.0)) as writer:
        proof = Proof(writer, deadline=0.5)
        proof.record(a_send("before"))
        proof.flush()
        disk.fill()
        for operation in sends(200):
            proof.record(operation)
        with pytest.raises(NotDurableError, match=r"not durable after 0\.5 s: No space left on device"):
            proof.flush()
        disk.free()
        Proof(writer).flush()
        assert read_ledger(ledger).table.num_rows == 201
