"""Tests killed writers and compactions: durable rows exist once, and readers see no incomplete file."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.ledger.rows import DAY, HOUR, a_send, message_ids
from tests.ledger.stores import until

from twinbus.ledger.compaction import compact
from twinbus.ledger.layout import FileName, parse_temp
from twinbus.ledger.ledger_reader import read_ledger
from twinbus.ledger.writer import LedgerWriter

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ROUNDS = 6
SECONDS = 120.0


class Recording:
    """A process that records until it is killed."""

    def __init__(self, folder: Path, name: str, module: str = "recording_process") -> None:
        command = [sys.executable, "-m", f"tests.ledger.{module}", str(folder), name]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.name = name
        self.durable = 0
        self.has_begun = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            # The last line may be incomplete.
            if line.endswith("\n"):
                self.durable = int(line)
                self.has_begun.set()
        self.has_begun.set()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()


def temporaries(folder: Path) -> list[Path]:
    return [file for file in folder.glob("*/.*") if parse_temp(file.name)]


def is_readable(file: Path) -> bool:
    return pq.read_table(file, partitioning=None).num_rows > 0


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_durable_rows_survive_kill_without_incomplete_files(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    processes = [Recording(tmp_path, f"writer-{seed}-{number}") for number in range(2)]
    for process in processes:
        assert process.has_begun.wait(SECONDS)
    for process in processes:
        time.sleep(rng.uniform(0, 0.3))  # a random time of the kill
        process.kill()
    counts = message_ids(tmp_path)
    for process in processes:
        assert process.durable > 0
        lost = [number for number in range(process.durable) if f"{process.name}-{number}" not in counts]
        assert lost == []
    assert max(counts.values()) == 1
    visible = [file for file in tmp_path.glob("*/*") if not file.name.startswith(".")]
    assert all(is_readable(file) for file in visible)


def test_temporary_files_of_killed_writer_are_ignored_and_later_removed(tmp_path: Path) -> None:
    # A kill hits a write only by chance: the file may be complete before the kill.
    for attempt in range(30):
        process = Recording(tmp_path, f"writer-{attempt}")
        until(lambda: any(temporaries(tmp_path)))
        process.kill()
        remaining = temporaries(tmp_path)
        if remaining:
            break
    else:
        pytest.skip("no kill hit a write")
    assert read_ledger(tmp_path).unreadable == []
    name = parse_temp(remaining[0].name)
    assert name is not None
    with LedgerWriter(tmp_path, now_us=lambda: name.written_us + 2 * HOUR) as writer:
        writer.record(a_send("later"))
    assert not remaining[0].exists()
    compact(tmp_path, now_us=lambda: name.written_us + 2 * DAY)
    assert message_ids(tmp_path)["later"] == 1


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_killed_compaction_keeps_every_row_once(seed: int, tmp_path: Path) -> None:
    process = Recording(tmp_path, "m", "compacting_process")
    assert process.has_begun.wait(SECONDS)
    time.sleep(random.Random(seed).uniform(0, 1.0))  # a random time of the kill
    process.kill()
    counts = message_ids(tmp_path)
    assert [number for number in range(process.durable) if f"m-{number}" not in counts] == []
    assert max(counts.values()) == 1
    last_us = max(parsed.written_us for file in tmp_path.glob("*/*.parquet") if (parsed := FileName.parse(file.name)))
    for days in (3, 6, 9):
        compact(tmp_path, now_us=lambda days=days: last_us + days * DAY)
    assert message_ids(tmp_path) == counts
    # Only a compacted file and its sidecar remain.
    assert len(list(tmp_path.glob("*/*"))) == 2
