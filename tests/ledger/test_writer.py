"""Tests how the writer stores, retries and drops rows."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.ledger.rows import DAY, HOUR, NOON, a_send, message_ids, sends
from tests.ledger.stores import SECONDS, Obstinate, memory_url, until

from twinbus.ledger import writer as writer_module
from twinbus.ledger.durable_rows import Proof
from twinbus.ledger.file_rotation import Rotation
from twinbus.ledger.layout import FileName, temp_name
from twinbus.ledger.ledger_reader import read_ledger
from twinbus.ledger.recorder import NamespaceRole, Operation, OperationKind, Outcome, Recorder, Stage
from twinbus.ledger.schema import to_operations
from twinbus.ledger.store import LocalStore
from twinbus.ledger.writer import BUFFER_FULL, CLOSED, DOES_NOT_FIT, LedgerWriter

QUICK = Rotation(flush_seconds=0.0)


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("day=*/*"))


def rows_of(url: str | os.PathLike[str]) -> list[Operation]:
    return list(to_operations(read_ledger(url).table))


def dropped_in(url: str | os.PathLike[str]) -> Counter[str | None]:
    """Return the number of dropped rows that the ledger reports, by reason."""
    dropped: Counter[str | None] = Counter()
    for row in rows_of(url):
        if row.operation is OperationKind.DROPPED:
            assert (row.stage, row.namespace, row.outcome) == (Stage.LEDGER, NamespaceRole.NEITHER, Outcome.FAILED)
            assert (row.pairing, row.client) == ("contoso", "client-1")
            dropped[row.error] += row.count
    return dropped


@pytest.fixture(params=["folder", "url of a folder", "memory"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return memory_url()
    folder = tmp_path / "created by the writer" / "ledger"
    return str(folder) if request.param == "folder" else folder.as_uri()


def test_close_writes_recorded_rows(ledger: str) -> None:
    recorded = sends(1000)
    with LedgerWriter(ledger) as writer:
        recorder: Recorder = writer
        for operation in recorded:
            recorder.record(operation)
    assert rows_of(ledger) == recorded
    status = writer.status()
    assert (status.written_rows, status.written_files, status.waiting_rows, status.dropped_rows) == (1000, 1, 0, 0)
    assert status.failing is None


def test_writer_without_rows_creates_nothing(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path / "ledger"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_files_have_unique_names_in_folder_of_their_day(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path, now_us=lambda: NOON, random_bytes=lambda size: b"\xab" * size) as writer:
        writer.record(a_send("late", ts=NOON - DAY))
        writer.record(a_send("today"))
    assert [file.relative_to(tmp_path).as_posix() for file in files_of(tmp_path)] == [
        f"day=2026-11-15/20261116T120000.000000Z-abababababababab-{os.getpid()}-1.parquet",
        f"day=2026-11-16/20261116T120000.000000Z-abababababababab-{os.getpid()}-2.parquet",
    ]
    assert message_ids(tmp_path) == {"late": 1, "today": 1}


def test_files_have_at_most_rotation_rows(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path, rotation=Rotation(rows=100)) as writer:
        for operation in sends(1050):
            writer.record(operation)
    sizes = [pq.read_metadata(file).num_rows for file in files_of(tmp_path)]
    assert max(sizes) == 100
    assert sum(sizes) == 1050


def test_files_have_at_most_rotation_bytes(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path, rotation=Rotation(bytes=20_000)) as writer:
        for operation in sends(2000, entity="e" * 200):
            writer.record(operation)
    files = files_of(tmp_path)
    assert len(files) > 2000 * 300 / 20_000
    assert all(pq.read_table(file).nbytes < 25_000 for file in files)
    assert sum(message_ids(tmp_path).values()) == 2000


def test_rows_are_written_at_row_limit(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path, rotation=Rotation(rows=10)) as writer:
        for operation in sends(10):
            writer.record(operation)
        until(lambda: writer.status().written_rows == 10)


def test_rows_are_written_after_rotation_seconds(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path, rotation=Rotation(seconds=0.05, flush_seconds=0.0)) as writer:
        for number in (1, 2):
            writer.record(a_send())
            until(lambda rows=number: writer.status().written_rows >= rows)


def test_writer_is_thread_safe(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path, rotation=Rotation(rows=500)) as writer:

        def record_many(name: str) -> None:
            for number in range(1000):
                writer.record(a_send(f"{name}-{number}"))

        threads = [threading.Thread(target=record_many, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert message_ids(tmp_path) == {f"{name}-{number}": 1 for name in "abcd" for number in range(1000)}


def test_processes_share_a_folder(tmp_path: Path) -> None:
    program = (
        "import sys; from tests.ledger.rows import sends; from twinbus.ledger.writer import LedgerWriter\n"
        "with LedgerWriter(sys.argv[1]) as writer:\n"
        "    for operation in sends(100, pairing=sys.argv[2]): writer.record(operation)\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path), name]) for name in "abc"]
    assert [process.wait(SECONDS) for process in processes] == [0, 0, 0]
    assert len(files_of(tmp_path)) == 3
    assert Counter(row.pairing for row in rows_of(tmp_path)) == {"a": 100, "b": 100, "c": 100}
    assert len({row.op_id for row in rows_of(tmp_path)}) == 300


def test_process_exit_without_close_writes_rows(tmp_path: Path) -> None:
    program = (
        "import sys; from tests.ledger.rows import sends; from twinbus.ledger.writer import LedgerWriter\n"
        "writer = LedgerWriter(sys.argv[1])\n"
        "for operation in sends(100): writer.record(operation)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=SECONDS)
    assert len(rows_of(tmp_path)) == 100


def test_record_never_waits_for_hanging_store_and_dropped_rows_are_counted() -> None:
    url = Obstinate.reset()
    with LedgerWriter(url, rotation=Rotation(rows=10), buffer_rows=100) as writer:
        Obstinate.let_go.clear()
        for operation in sends(10):
            writer.record(operation)
        assert Obstinate.hangs.wait(SECONDS)
        started = time.monotonic()
        for operation in sends(1000):
            writer.record(operation)
        assert time.monotonic() - started < 5.0
        assert writer.status().waiting_rows == 110
        assert writer.status().dropped_rows == 900
        Obstinate.let_go.set()
        Proof(writer).flush()
        assert writer.status().dropped_rows == 900
    assert dropped_in(url) == {BUFFER_FULL: 900}
    assert len(rows_of(url)) == 110 + 1


def test_rows_are_stored_once_after_store_failure(caplog: pytest.LogCaptureFixture) -> None:
    url = Obstinate.reset()
    with LedgerWriter(url, rotation=QUICK) as writer, caplog.at_level(logging.INFO, "twinbus.ledger"):
        Obstinate.error = PermissionError(13, "Permission denied", "secret-url")
        for operation in sends(10):
            writer.record(operation)
        flushed = writer.request_flush()
        until(lambda: writer.status().failing is not None)
        assert writer.status().failing == "Permission denied"
        assert not flushed.done()
        Obstinate.error = None
        flushed.result(SECONDS)
        assert writer.status().failing is None
    assert message_ids(url) == {f"m-{number}": 1 for number in range(10)}
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        f"Writing ledger rows to {url} failed, retrying: Permission denied",
        f"Writing ledger rows to {url} succeeded again",
    ]


def test_retried_file_keeps_its_name() -> None:
    url = Obstinate.reset()
    put = Obstinate.pipe_file
    names: list[str] = []

    def fail_once_after_storing(self: Obstinate, path: str, value: bytes, mode: str = "overwrite") -> None:
        put(self, path, value, mode)
        names.append(path)
        if len(names) == 1:
            raise TimeoutError

    with LedgerWriter(url, rotation=QUICK) as writer, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Obstinate, "pipe_file", fail_once_after_storing)
        writer.record(a_send("once"))
        writer.request_flush().result(SECONDS)
    # A PUT whose answer is lost may have stored the file: the retry must not store it twice.
    assert len(names) == 2
    assert len(set(names)) == 1
    assert message_ids(url) == {"once": 1}


def test_folder_is_created_once_possible(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    ledger.write_text("a file where the folder should be")
    with LedgerWriter(ledger, rotation=QUICK) as writer:
        writer.record(a_send("waiting"))
        flushed = writer.request_flush()
        until(lambda: writer.status().failing is not None)
        assert writer.status().failing in ("File exists", "Not a directory")
        ledger.unlink()
        flushed.result(SECONDS)
    assert message_ids(ledger) == {"waiting": 1}


def test_removed_folder_is_created_again(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    with LedgerWriter(ledger, rotation=QUICK) as writer:
        writer.record(a_send("first"))
        writer.request_flush().result(SECONDS)
        (file,) = files_of(ledger)
        file.unlink()
        file.parent.rmdir()
        ledger.rmdir()
        writer.record(a_send("second"))
        writer.request_flush().result(SECONDS)
    assert message_ids(ledger) == {"second": 1}


def test_close_ends_at_timeout_and_reports_lost_rows(caplog: pytest.LogCaptureFixture) -> None:
    url = Obstinate.reset()
    writer = LedgerWriter(url)
    Obstinate.error = OSError(28, "No space left on device")
    for operation in sends(10):
        writer.record(operation)
    started = time.monotonic()
    writer.close(timeout=0.3)
    assert 0.2 < time.monotonic() - started < 5.0
    assert writer.status().dropped_rows == 10
    assert writer.status().waiting_rows == 0
    assert f"Closing the writer of the ledger at {url}: 10 rows could not be stored and are lost" in caplog.text


def test_close_does_not_wait_for_hanging_store() -> None:
    url = Obstinate.reset()
    writer = LedgerWriter(url)
    Obstinate.let_go.clear()
    writer.record(a_send())
    started = time.monotonic()
    writer.close(timeout=0.1)
    assert time.monotonic() - started < 5.0
    Obstinate.let_go.set()


def test_close_counts_rows_still_being_encoded_as_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    is_encoding, may_end = threading.Event(), threading.Event()
    encode = writer_module.encode

    def slow_encode(table: pa.Table) -> bytes:
        is_encoding.set()
        assert may_end.wait(SECONDS)
        return encode(table)

    monkeypatch.setattr(writer_module, "encode", slow_encode)
    writer = LedgerWriter(tmp_path, rotation=Rotation(rows=10))
    for operation in sends(10):
        writer.record(operation)
    assert is_encoding.wait(SECONDS)
    try:
        writer.close(timeout=0.1)
        assert writer.status().waiting_rows == 10
        assert f"ledger at {tmp_path}: no file was stored within 1.1 s; 10 rows may be lost" in caplog.text
    finally:
        may_end.set()
    until(lambda: writer.status().written_rows == 10)
    assert writer.status().waiting_rows == 0


def test_close_reports_no_lost_rows_while_temporary_files_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    may_end = threading.Event()

    def slow_removal(self: LocalStore, folder: str, before_us: int) -> int:
        assert may_end.wait(SECONDS)
        return 0

    monkeypatch.setattr(LocalStore, "remove_temporaries", slow_removal)
    writer = LedgerWriter(tmp_path)
    writer.record(a_send())
    try:
        writer.close(timeout=0.1)
        assert writer.status().written_rows == 1
        assert caplog.text == ""
    finally:
        may_end.set()


def test_close_waits_for_slow_store() -> None:
    url = Obstinate.reset()
    put = Obstinate.pipe_file

    def put_slowly(self: Obstinate, path: str, value: bytes, mode: str = "overwrite") -> None:
        time.sleep(0.3)
        put(self, path, value, mode)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Obstinate, "pipe_file", put_slowly)
        writer = LedgerWriter(url, rotation=Rotation(rows=10))
        for operation in sends(100):
            writer.record(operation)
        writer.close(timeout=0.1)
    assert len(rows_of(url)) == 100
    assert writer.status().dropped_rows == 0


def test_row_that_does_not_fit_is_dropped_and_counted(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path) as writer:
        for operation in sends(300):
            writer.record(operation)
        writer.record(a_send(bytes=2**63))
        writer.record(a_send("\ud800"))
        for operation in sends(300):
            writer.record(operation)
    assert dropped_in(tmp_path) == {DOES_NOT_FIT: 2}
    assert len(rows_of(tmp_path)) == 601
    assert writer.status().dropped_rows == 2


def test_object_that_is_not_an_operation_is_dropped_and_counted(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path) as writer:
        writer.record(a_send("before"))
        writer.record(None)  # type: ignore[arg-type]
        writer.record(a_send("after"))
    assert [row.message_id for row in rows_of(tmp_path)][:2] == ["before", "after"]
    assert writer.status().dropped_rows == 1


def test_rows_recorded_after_close_are_counted_as_dropped(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path)
    writer.close()
    assert not writer.offer(a_send())
    writer.record(a_send())
    assert writer.status().dropped_rows == 2
    assert writer._unreported_drops == {("contoso", "client-1", CLOSED): 2}
    writer.close()


def test_writer_removes_old_temporary_files_only(tmp_path: Path) -> None:
    folder = tmp_path / "day=2026-11-16"
    folder.mkdir()
    old = folder / temp_name(str(FileName(NOON - 2 * HOUR, "0" * 16, 1, 1)))
    recent = folder / temp_name(str(FileName(NOON - HOUR // 2, "0" * 16, 1, 1)))
    foreign = folder / ".hidden.tmp"
    for file in (old, recent, foreign):
        file.write_bytes(b"part of a file")
    with LedgerWriter(tmp_path, now_us=lambda: NOON) as writer:
        writer.record(a_send())
    assert not old.exists()
    assert recent.exists()
    assert foreign.exists()
    assert message_ids(tmp_path) == {"m": 1}


def test_close_ends_the_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    for _ in range(3):
        with LedgerWriter(tmp_path) as writer:
            writer.record(a_send())
    gc.collect()
    assert threading.active_count() == before


@pytest.mark.parametrize(
    "url", ["sftp://host/ledger", "https://host/ledger", "hdfs://host/ledger", "zip://x::file://y"]
)
def test_writer_rejects_url_without_atomic_writes(url: str) -> None:
    with pytest.raises(ValueError, match="files do not appear whole"):
        LedgerWriter(url)


def test_writer_rejects_invalid_arguments(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="buffer_rows must be at least 1, not 0"):
        LedgerWriter(tmp_path, buffer_rows=0)
    with pytest.raises(ValueError, match="path must not be empty"):
        LedgerWriter("")


def test_forked_child_writes_its_own_rows_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.ledger.forking_process", str(tmp_path)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert finished.returncode == 0, finished.stderr
    parent_rows, *child_rows = map(int, finished.stdout.split())
    assert child_rows == [100, 100, 100]
    counts = message_ids(tmp_path)
    assert set(counts.values()) == {1}
    rows = Counter(str(name).rpartition("-")[0] for name in counts)
    assert rows == {"parent": parent_rows, "child-0": 100, "child-1": 100, "child-2": 100}
    assert len({path.name.split("-")[1] for path in files_of(tmp_path)}) == 4, "each process writes its own files"
