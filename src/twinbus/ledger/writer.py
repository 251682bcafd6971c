"""Writes rows to a ledger's Parquet files in the background.

`record` only appends to a buffer; the writer's thread stores it as files and retries failed writes. When the buffer is
full, new rows are dropped, and their number is written as a row once the ledger takes rows again.
"""

from __future__ import annotations

import atexit

# pyarrow imports pandas, if installed, with its first array, and pandas imports this module. If a process exits without
# closing its writer, the first array may be made during interpreter shutdown, when this import would fail.
import concurrent.futures.thread  # noqa: F401
import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakSet

from . import layout
from .file_rotation import Pace, Rotation
from .ledger_errors import LedgerClosedError, reason_of
from .recorder import NamespaceRole, Operation, OperationKind, Outcome, Stage, prompt
from .schema import encode, pa, pc, to_batch, to_batch_of_fitting
from .store import Store, open_store

logger = logging.getLogger("twinbus.ledger")

BUFFER_ROWS = 100_000
CLOSE_SECONDS = 4.0
#: Seconds after which a write that has not ended is reported.
SLOW_SECONDS = 5.0
# Rows are encoded in small parts with a pause between them, so that a sending thread waits for one part at most.
PART_ROWS = 500
PAUSE_SECONDS = 0.00005

#: Why rows were dropped: the `error` of a `DROPPED` row.
BUFFER_FULL = "BufferFull"
DOES_NOT_FIT = "DoesNotFit"
CLOSED = "Closed"


@dataclass(frozen=True, slots=True)
class WriterStatus:
    """The state of a writer."""

    #: Rows and files that are durable.
    written_rows: int
    written_files: int
    #: Rows that are recorded but not stored yet.
    waiting_rows: int
    #: Rows that were dropped for good.
    dropped_rows: int
    #: Why the last write failed; None if it succeeded.
    failing: str | None


_writers: WeakSet[LedgerWriter] = WeakSet()


def _restart_writers_after_fork() -> None:
    for writer in list(_writers):
        writer.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restart_writers_after_fork)


class _File(NamedTuple):
    """An encoded file that waits for the store."""

    folder: str
    name: str
    data: bytes
    rows: int


class LedgerWriter:
    """A recorder that stores rows in a folder or at a URL. Thread-safe.

    `record` never raises and never waits, even if the store fails or hangs. For rows that serve as proof see `Proof`.
    Close the writer or use it as a context manager: rows that are not stored when the process is killed are lost. In a
    forked child it starts empty and writes its own files; the parent writes the rows recorded before.

    Args:
        url: A folder, which is created with the first file, or a URL that fsspec supports.
        rotation: Limits of a file's size and age.
        buffer_rows: Most rows that wait for the store, about half a kilobyte each; more are dropped and counted.
        storage_options: Options of fsspec's file system, such as credentials.
        now_us: Returns the time for file names, in microseconds since the epoch.
        monotonic: Returns the time of a monotonic clock, in seconds.
        random_bytes: Returns random bytes, as `os.urandom`.

    Raises:
        ValueError: `buffer_rows` is less than 1, or files cannot be stored atomically at this URL.
        ExtraMissingError: pyarrow or fsspec is not installed.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        rotation: Rotation | None = None,
        buffer_rows: int = BUFFER_ROWS,
        storage_options: Mapping[str, Any] | None = None,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        monotonic: Callable[[], float] = time.monotonic,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        if buffer_rows < 1:
            raise ValueError(f"buffer_rows must be at least 1, not {buffer_rows!r}")
        self._open_store = partial(open_store, url, storage_options)
        self._rotation = rotation or Rotation()
        self._now_us = now_us
        self._monotonic = monotonic
        self._random_bytes = random_bytes
        self._buffer_rows = buffer_rows
        self._is_closed = False
        self._start()
        atexit.register(self.close)
        _writers.add(self)

    def _start(self) -> None:
        """Open the store and start the thread, with an empty buffer."""
        self._store: Store = self._open_store()
        self._writer_id = self._random_bytes(8).hex()
        self._pid = os.getpid()
        self._last_file_number = 0
        self._buffer: deque[Operation] = deque()
        self._pace = Pace(self._rotation, self._buffer_rows, self._monotonic())
        self._wake_rows = self._pace.rows_due
        self._wake = threading.Event()
        # Guards the next four attributes; all others are changed by the thread only.
        self._lock = threading.Lock()
        self._unreported_drops: Counter[tuple[str, str, str]] = Counter()
        self._new_requests: list[Future[None]] = []
        self._give_up_at = float("inf")
        self._dropped_rows = 0
        self._requests: list[Future[None]] = []
        # Rows taken from the buffer that are not in a pending file yet.
        self._encoding_rows = 0
        self._pending: deque[_File] = deque()
        self._written_rows = 0
        self._written_files = 0
        self._cleaned_folders: set[str] = set()
        self._last_error: BaseException | None = None
        self._put_started_at: float | None = None  # start of the write in progress
        #: Number of rows with a value that does not fit its column.
        self.unfit_rows = 0
        self._thread = threading.Thread(target=self._run, name="twinbus-ledger", daemon=True)
        self._thread.start()

    def forked(self) -> None:
        """Start again in a forked child process, where the thread does not run."""
        if not self._is_closed:
            self._start()

    @prompt
    def record(self, operation: Operation) -> None:
        """Queue a row for writing. Never raises and never waits."""
        self.offer(operation)

    def offer(self, operation: Operation) -> bool:
        """Queue a row as `record` does; return False if it was dropped."""
        waiting = len(self._buffer)
        if waiting >= self._buffer_rows or self._is_closed:
            self._drop([operation], CLOSED if self._is_closed else BUFFER_FULL)
            return False
        self._buffer.append(operation)
        if waiting + 1 >= self._wake_rows and not self._wake.is_set():
            self._wake.set()
        return True

    def request_flush(self) -> Future[None]:
        """Return a future that is done when everything recorded before is durable. Cancel it to stop waiting.

        It fails with `LedgerClosedError` if the writer is closed, and only then: failed writes are retried.
        """
        future: Future[None] = Future()
        with self._lock:
            if self._is_closed:
                future.set_exception(
                    LedgerClosedError(f"the writer of the ledger at {self.place} is closed: flush before closing it")
                )
                return future
            self._new_requests.append(future)
        self._wake.set()
        return future

    @property
    def place(self) -> str:
        """Folder or URL of the ledger for messages to people, without secrets."""
        return self._store.place

    @property
    def last_error(self) -> BaseException | None:
        """The error of the last write; None if it succeeded."""
        return self._last_error

    @property
    def trouble(self) -> str | None:
        """Why the store takes no rows, in a few words; None if it does."""
        error, started_at = self._last_error, self._put_started_at
        if error is not None:
            return reason_of(error)
        seconds = 0.0 if started_at is None else self._monotonic() - started_at
        return f"the store has not answered for {seconds:.0f} s" if seconds >= SLOW_SECONDS else None

    def status(self) -> WriterStatus:
        """Return the number of written, waiting and dropped rows, and why the last write failed."""
        with self._lock:
            dropped = self._dropped_rows
        # In the order in which rows move on, so that none is missed.
        waiting = len(self._buffer)
        waiting += self._encoding_rows
        waiting += sum(file.rows for file in tuple(self._pending))
        error = self._last_error
        failing = None if error is None else reason_of(error)
        return WriterStatus(self._written_rows, self._written_files, waiting, dropped, failing)

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Write the waiting rows and stop. If no file is stored for `timeout` seconds, drop the remaining rows."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._give_up_at = self._monotonic() + timeout
        self._wake.set()
        atexit.unregister(self.close)
        if threading.current_thread() is not self._thread:
            self._join(timeout + 1.0)

    def _join(self, timeout: float) -> None:
        """Wait for the thread to end, while it stores at least one file per `timeout` seconds."""
        files_before = -1
        while self._thread.is_alive():
            if self._written_files == files_before:
                waiting_rows = self.status().waiting_rows
                if waiting_rows:  # otherwise the thread only removes old temporary files
                    logger.warning(
                        "Closing the writer of the ledger at %s: no file was stored within %g s; %d rows may be lost",
                        self.place,
                        timeout,
                        waiting_rows,
                    )
                return
            files_before = self._written_files
            self._thread.join(timeout)

    def __enter__(self) -> LedgerWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _drop(self, operations: Sequence[Operation], reason: str) -> None:
        """Count dropped rows, to report them in a row of the ledger."""
        with self._lock:
            self._dropped_rows += len(operations)
            for operation in operations:
                # Objects that are not operations are counted too.
                pairing = _valid_unicode(getattr(operation, "pairing", ""))
                client = _valid_unicode(getattr(operation, "client", ""))
                self._unreported_drops[pairing, client, reason] += 1

    def _run(self) -> None:
        """Write files when they are due, until the writer is closed. Everything below runs on the thread."""
        while True:
            self._accept_requests()
            is_last = self._is_closed  # read before the buffer: no rows are added once it is set
            is_urgent = is_last or bool(self._requests)
            now = self._monotonic()
            due_at = self._pace.due_at(len(self._buffer), urgent=is_urgent)
            if is_last and (not self._pace.is_failing or now >= self._give_up_at):
                due_at = now
            if now < due_at:
                self._wake.wait(max(0.0, min(due_at, self._give_up_at) - now))
                self._wake.clear()
                continue
            is_stored = self._write_waiting_rows(is_urgent)
            if is_last and (is_stored or self._monotonic() >= self._give_up_at):
                break
        self._drop_remaining_rows()

    def _accept_requests(self) -> None:
        """Take over new flush requests, without cancelled ones."""
        with self._lock:
            new_requests, self._new_requests = self._new_requests, []
        self._requests = [request for request in (*self._requests, *new_requests) if not request.cancelled()]

    def _write_waiting_rows(self, is_urgent: bool) -> bool:
        """Store the rows that wait now and finish the flush requests; return whether that succeeded."""
        # All rows recorded before the accepted requests are in the buffer or in pending files by now.
        remaining = len(self._buffer)
        has_drops = bool(self._unreported_drops)
        try:
            self._store_pending_files()
            while remaining > 0 or has_drops:
                remaining -= self._encode_next_files(min(remaining, self._rotation.rows))
                has_drops = False
                self._store_pending_files()
        except Exception as error:  # any error of the store's library: it must not end the thread
            self._note_failure(error)
            return False
        if self._last_error is not None:
            logger.info("Writing ledger rows to %s succeeded again", self.place)
            self._last_error = None
        self._pace.wrote(self._monotonic(), urgent=is_urgent)
        self._wake_rows = self._pace.rows_due
        for request in self._requests:
            if request.set_running_or_notify_cancel():
                request.set_result(None)
        self._requests = []
        return True

    def _store_pending_files(self) -> None:
        while self._pending:
            file = self._pending[0]
            self._put_started_at = self._monotonic()
            try:
                self._store.put(file.folder, file.name, file.data)
            finally:
                self._put_started_at = None
            self._pending.popleft()
            self._written_rows += file.rows
            self._written_files += 1
            if file.folder not in self._cleaned_folders:
                self._cleaned_folders.add(file.folder)
                self._remove_old_temporaries(file.folder)

    def _remove_old_temporaries(self, folder: str) -> None:
        try:
            self._store.remove_temporaries(folder, self._now_us() - layout.OLD_TEMP_US)
        except Exception as error:  # harmless: the rows are stored
            logger.debug("Removing old temporary files in %s/%s failed", self.place, folder, exc_info=error)

    def _note_failure(self, error: Exception) -> None:
        """Log the first of several failures, and schedule a retry."""
        if self._last_error is None:
            logger.warning("Writing ledger rows to %s failed, retrying: %s", self.place, reason_of(error))
        logger.debug("Writing ledger rows to %s failed", self.place, exc_info=error)
        self._last_error = error
        self._pace.failed(self._monotonic())

    def _drop_remaining_rows(self) -> None:
        """Drop the rows that are not stored, and fail the flush requests."""
        unwritten = [self._buffer.popleft() for _ in range(len(self._buffer))]
        rows = len(unwritten) + sum(file.rows for file in self._pending)
        if rows:
            logger.warning(
                "Closing the writer of the ledger at %s: %d rows could not be stored and are lost",
                self.place,
                rows,
            )
        with self._lock:
            self._dropped_rows += rows
            futures = [*self._requests, *self._new_requests]
            self._new_requests = []
        self._pending.clear()
        self._requests = []
        for future in futures:
            if future.set_running_or_notify_cancel():
                future.set_exception(
                    LedgerClosedError(
                        f"the writer of the ledger at {self.place} was closed before the rows were stored"
                    )
                )

    def _encode_next_files(self, count: int) -> int:
        """Move `count` rows from the buffer to pending files; return their number."""
        self._encoding_rows = count
        try:
            rows = [self._buffer.popleft() for _ in range(count)]
            self._pending.extend(self._encode_files(rows))
        finally:
            self._encoding_rows = 0
        return count

    def _encode_files(self, rows: list[Operation]) -> list[_File]:
        """Return files with the rows, and with rows that report dropped ones."""
        try:
            batches = []
            for start in range(0, len(rows), PART_ROWS):
                batches.append(self._to_batch(rows[start : start + PART_ROWS]))
                time.sleep(PAUSE_SECONDS)
            batches.append(to_batch(self._drop_reports()))
            table = pa.Table.from_batches(batches)
            self._pace.measured(table.num_rows, table.nbytes)
            return [file for folder, part in _by_day(table) for file in self._split(folder, part)]
        except BaseException:  # such as MemoryError: count the rows as dropped, so that later flushes fail
            self.unfit_rows += len(rows)
            self._drop(rows, DOES_NOT_FIT)
            raise

    def _split(self, folder: str, table: pa.Table) -> Iterator[_File]:
        """Yield files with the rows of a day, split by the limits of the rotation."""
        file_count = max(1, -(-table.nbytes // self._rotation.bytes), -(-table.num_rows // self._rotation.rows))
        file_rows = -(-table.num_rows // file_count)
        for start in range(0, table.num_rows, file_rows):
            part = table.slice(start, file_rows)
            yield _File(folder, self._new_name(), encode(part), part.num_rows)

    def _to_batch(self, rows: list[Operation]) -> pa.RecordBatch:
        """Return the rows as a batch. Drops rows with values that do not fit."""
        try:
            return to_batch(rows)
        except (ValueError, TypeError, AttributeError, OverflowError, pa.ArrowException):
            batch, refused = to_batch_of_fitting(rows)
            self.unfit_rows += len(refused)
            self._drop(refused, DOES_NOT_FIT)
            logger.warning(
                "Encoding rows of the ledger at %s: dropped %d rows with values that do not fit",
                self.place,
                len(refused),
            )
            return batch

    def _drop_reports(self) -> list[Operation]:
        """Return rows that report dropped rows, and reset their count."""
        with self._lock:
            drops, self._unreported_drops = self._unreported_drops, Counter()
        return [
            Operation(
                pairing=pairing,
                client=client,
                namespace=NamespaceRole.NEITHER,
                entity="",
                operation=OperationKind.DROPPED,
                stage=Stage.LEDGER,
                outcome=Outcome.FAILED,
                ts=self._now_us(),
                count=rows,
                error=reason,
            )
            for (pairing, client, reason), rows in drops.items()
        ]

    def _new_name(self) -> str:
        self._last_file_number += 1
        return str(layout.FileName(self._now_us(), self._writer_id, self._pid, self._last_file_number))


def _valid_unicode(text: object) -> str:
    """Return the text with surrogates replaced, which cannot be stored."""
    return str(text).encode(errors="replace").decode()


def _by_day(table: pa.Table) -> list[tuple[str, pa.Table]]:
    """Return the folder and the rows of each day, oldest day first."""
    if not table.num_rows:
        return []
    days = pc.divide(table["ts"].cast(pa.int64()), layout.DAY_US)
    unique_days = sorted(pc.unique(days).to_pylist())
    if len(unique_days) == 1:
        return [(layout.folder_of(unique_days[0] * layout.DAY_US), table)]
    return [(layout.folder_of(day * layout.DAY_US), table.filter(pc.equal(days, day))) for day in unique_days]
