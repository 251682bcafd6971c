"""A full disk: senders go on, the syphon is told, and when there is room again the ledger says what is missing."""

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
    """A small file system of its own that another file fills."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        size = f"size={DISK_BYTES}"
        if shutil.which("mount") is None:
            pytest.skip("there is no mount here")
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)], capture_output=True)
        if mounted.returncode != 0:
            pytest.skip("file systems cannot be mounted here")

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
    made = SmallDisk(tmp_path)
    try:
        yield made
    finally:
        made.close()


def test_full_disk_only_drops_rows_and_counts_them(disk: SmallDisk) -> None:
    ledger = disk.folder / "ledger"
    with LedgerWriter(ledger, rotation=Rotation(rows=100, flush_seconds=0.0), buffer_rows=1000) as writer:
        before = sends(100)
        for one in before:
            writer.record(one)
        writer.request_flush().result(SECONDS)
        disk.fill()
        started = time.monotonic()
        for one in sends(5000):
            writer.record(one)
        assert time.monotonic() - started < 10.0
        until(lambda: writer.status().failing is not None)
        status = writer.status()
        assert status.failing == "No space left on device"
        assert status.dropped_rows > 0
        # What could not be written is not left lying about, in the way of others.
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
    kept = [row for row in rows if row.operation is not OperationKind.DROPPED]
    assert len(kept) + dropped == 100 + 5000 + 1
    assert len({row.op_id for row in rows}) == len(rows)
    assert kept[:100] == before
    assert kept[-1].message_id == "after"


def test_flush_fails_on_full_disk_and_succeeds_with_free_space(disk: SmallDisk) -> None:
    ledger = disk.folder / "ledger"
    with LedgerWriter(ledger, rotation=Rotation(flush_seconds=0.0)) as writer:
        proof = Proof(writer, deadline=0.5)
        proof.record(a_send("before"))
        proof.flush()
        disk.fill()
        for one in sends(200):
            proof.record(one)
        with pytest.raises(NotDurableError, match=r"not durable after 0\.5 s: No space left on device"):
            proof.flush()
        disk.free()
        Proof(writer).flush()
        assert read_ledger(ledger).table.num_rows == 201
