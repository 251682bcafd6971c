"""Writes the ledger: rows into Parquet files, beside the work they tell of.

`record` only appends to a buffer; a thread of the writer's own makes files of it. What cannot be stored is tried again.
When the buffer is full new rows are dropped, and their number becomes a row of the ledger as soon as it takes rows.
"""

from __future__ import annotations

import atexit

# Where pandas is installed pyarrow imports it with its first array, and that this. In a process that ends without
# closing its writer the first array is made at the very end, when this cannot be imported any more.
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
#: Seconds after which a store that has not answered is reported.
SLOW_SECONDS = 5.0
# Rows are made into columns a few at a time, with a rest in between: a sender that wants to go on waits for one part.
PART_ROWS = 500
REST_SECONDS = 0.00005

#: Why rows are missing, as the ledger's `error`.
BUFFER_FULL = "BufferFull"
DOES_NOT_FIT = "DoesNotFit"
CLOSED = "Closed"


@dataclass(frozen=True, slots=True)
class WriterStatus:
    """How a writer fares."""

    #: Rows and files that are stored for good.
    written_rows: int
    written_files: int
    #: Rows that are recorded and not stored yet.
    waiting_rows: int
    #: Rows that are lost.
    dropped_rows: int
    #: Why the store did not take the last file; None if it did.
    failing: str | None


_writers: WeakSet[LedgerWriter] = WeakSet()


def _forked() -> None:
    for writer in list(_writers):
        writer.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class _File(NamedTuple):
    folder: str
    name: str
    data: bytes
    rows: int


class LedgerWriter:
    """A recorder that keeps a ledger in a folder or at a URL. Safe to use from several threads.

    `record` never raises and never waits, whatever the store does. For rows that prove something see `Proof`. Close it,
    or use it as a context manager: what is not written when the process is killed is lost. In a forked child it starts
    empty and writes files of its own; what was recorded before is the parent's to write.

    Args:
        url: A folder, made when the first file is, or a URL that fsspec knows.
        rotation: How large and old files get.
        buffer_rows: Most rows that wait for the store, about half a kilobyte each; more are dropped and counted.
        storage_options: For fsspec's file system: credentials and the like.
        now_us: The time of day for the names of files, in microseconds since the epoch.
        monotonic: A steady clock in seconds.
        random_bytes: As `os.urandom`.

    Raises:
        ValueError: `buffer_rows` is less than 1, or files cannot be stored whole at this URL.
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
        """Begin with nothing recorded and nothing written."""
        self._store: Store = self._open_store()
        self._id = self._random_bytes(8).hex()
        self._pid = os.getpid()
        self._number = 0
        self._buffer: deque[Operation] = deque()
        self._pace = Pace(self._rotation, self._buffer_rows, self._monotonic())
        self._wake_rows = self._pace.rows_due
        self._wake = threading.Event()
        self._lock = threading.Lock()  # for what follows; all else belongs to the thread
        self._dropped: Counter[tuple[str, str, str]] = Counter()
        self._new_requests: list[Future[None]] = []
        self._give_up_at = float("inf")
        self._dropped_rows = 0
        self._requests: list[Future[None]] = []
        self._pending: deque[_File] = deque()
        self._written_rows = 0
        self._written_files = 0
        self._swept: set[str] = set()
        self._error: BaseException | None = None
        self._asked_at: float | None = None  # when the store was given the file that it has not answered for
        #: Rows that could not be stored because of a value in them.
        self.unfit_rows = 0
        self._thread = threading.Thread(target=self._run, name="twinbus-ledger", daemon=True)
        self._thread.start()

    def forked(self) -> None:
        """This process is a fork, which has no thread of ours."""
        if not self._is_closed:
            self._start()

    # ---- for everybody ----

    @prompt
    def record(self, operation: Operation) -> None:
        """Have a row written, some time. Never raises and never waits."""
        self.offer(operation)

    def offer(self, operation: Operation) -> bool:
        """The same; false if the row had to be dropped."""
        waiting = len(self._buffer)
        if waiting >= self._buffer_rows or self._is_closed:
            self._drop([operation], CLOSED if self._is_closed else BUFFER_FULL)
            return False
        self._buffer.append(operation)
        if waiting + 1 >= self._wake_rows and not self._wake.is_set():
            self._wake.set()
        return True

    def request_flush(self) -> Future[None]:
        """Ends when everything that was recorded before is durable, and not before. Cancel it to stop waiting.

        It fails only if the writer is closed: a store that cannot be written to is tried again and again.
        """
        future: Future[None] = Future()
        with self._lock:
            if self._is_closed:
                future.set_exception(LedgerClosedError("the ledger's writer is closed"))
                return future
            self._new_requests.append(future)
        self._wake.set()
        return future

    @property
    def last_error(self) -> BaseException | None:
        """Why the store did not take the last file; None if it did."""
        return self._error

    @property
    def trouble(self) -> str | None:
        """What keeps the store from taking rows, in a few words; None if nothing does."""
        error, asked_at = self._error, self._asked_at
        if error is not None:
            return reason_of(error)
        seconds = 0.0 if asked_at is None else self._monotonic() - asked_at
        return f"the store has not answered for {seconds:.0f} s" if seconds >= SLOW_SECONDS else None

    def status(self) -> WriterStatus:
        with self._lock:
            dropped = self._dropped_rows
        waiting = len(self._buffer) + sum(file.rows for file in tuple(self._pending))
        failing = None if self._error is None else reason_of(self._error)
        return WriterStatus(self._written_rows, self._written_files, waiting, dropped, failing)

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Write what waits and end. After `timeout` seconds in which no file could be stored the rest is dropped."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._give_up_at = self._monotonic() + timeout
        self._wake.set()
        atexit.unregister(self.close)
        if threading.current_thread() is not self._thread:
            self._join(timeout + 1.0)

    def _join(self, timeout: float) -> None:
        stored = -1
        while self._thread.is_alive():
            if self._written_files == stored:
                logger.warning("The ledger's store does not answer; %d rows are lost", self.status().waiting_rows)
                return
            stored = self._written_files
            self._thread.join(timeout)

    def __enter__(self) -> LedgerWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _drop(self, operations: Sequence[Operation], reason: str) -> None:
        with self._lock:
            self._dropped_rows += len(operations)
            for one in operations:
                # Also of something that is no operation at all the number is told.
                pairing, client = _storable(getattr(one, "pairing", "")), _storable(getattr(one, "client", ""))
                self._dropped[pairing, client, reason] += 1

    # ---- the thread ----

    def _run(self) -> None:
        while True:
            self._accept_requests()
            is_last = self._is_closed  # nothing is recorded from now on
            is_urgent = is_last or bool(self._requests)
            now = self._monotonic()
            due_at = self._pace.due_at(len(self._buffer), urgent=is_urgent)
            if is_last and (not self._pace.is_failing or now >= self._give_up_at):
                due_at = now
            if now < due_at:
                self._wake.wait(max(0.0, min(due_at, self._give_up_at) - now))
                self._wake.clear()
                continue
            is_done = self._write(is_urgent)
            if is_last and (is_done or self._monotonic() >= self._give_up_at):
                break
        self._give_up()

    def _accept_requests(self) -> None:
        with self._lock:
            new, self._new_requests = self._new_requests, []
        self._requests = [one for one in (*self._requests, *new) if not one.cancelled()]

    def _write(self, is_urgent: bool) -> bool:
        """Store what waits now; whether that worked."""
        # What was recorded before the accepted requests were made is in the buffer by now, or among the pending files.
        left = len(self._buffer)
        has_notices = bool(self._dropped)
        try:
            self._put_pending()
            while left > 0 or has_notices:
                rows = [self._buffer.popleft() for _ in range(min(left, self._rotation.rows))]
                left -= len(rows)
                has_notices = False
                self._pending.extend(self._encoded(rows))
                self._put_pending()
        except Exception as error:  # whatever a store's library raises: it must not end the thread
            self._failed(error)
            return False
        if self._error is not None:
            logger.info("The ledger's store takes files again")
            self._error = None
        self._pace.wrote(self._monotonic(), urgent=is_urgent)
        self._wake_rows = self._pace.rows_due
        for request in self._requests:
            if request.set_running_or_notify_cancel():
                request.set_result(None)
        self._requests = []
        return True

    def _put_pending(self) -> None:
        while self._pending:
            file = self._pending[0]
            self._asked_at = self._monotonic()
            try:
                self._store.put(file.folder, file.name, file.data)
            finally:
                self._asked_at = None
            self._pending.popleft()
            self._written_rows += file.rows
            self._written_files += 1
            if file.folder not in self._swept:
                self._swept.add(file.folder)
                self._remove_leftovers(file.folder)

    def _remove_leftovers(self, folder: str) -> None:
        try:
            self._store.remove_temporaries(folder, self._now_us() - layout.OLD_TEMP_US)
        except Exception as error:  # the rows are stored; that something old is still there does no harm
            logger.debug("Old temporary files could not be removed", exc_info=error)

    def _failed(self, error: Exception) -> None:
        if self._error is None:
            logger.warning("The ledger's store takes no files: %s", reason_of(error))
        logger.debug("The ledger's store failed", exc_info=error)
        self._error = error
        self._pace.failed(self._monotonic())

    def _give_up(self) -> None:
        lost = [self._buffer.popleft() for _ in range(len(self._buffer))]
        rows = len(lost) + sum(file.rows for file in self._pending)
        if rows:
            logger.warning("The ledger's writer was closed before %d rows could be stored; they are lost", rows)
        with self._lock:
            self._dropped_rows += rows
            futures = [*self._requests, *self._new_requests]
            self._new_requests = []
        self._pending.clear()
        self._requests = []
        for future in futures:
            if future.set_running_or_notify_cancel():
                future.set_exception(LedgerClosedError("the ledger's writer was closed before the rows were stored"))

    # ---- files ----

    def _encoded(self, rows: list[Operation]) -> list[_File]:
        """The rows, and one for those that were dropped, as files."""
        try:
            batches = []
            for start in range(0, len(rows), PART_ROWS):
                batches.append(self._batch(rows[start : start + PART_ROWS]))
                time.sleep(REST_SECONDS)
            batches.append(to_batch(self._notices()))
            table = pa.Table.from_batches(batches)
            self._pace.measured(table.num_rows, table.nbytes)
            return [file for folder, part in _by_day(table) for file in self._files(folder, part)]
        except BaseException:  # out of memory, perhaps: the rows are gone, and those who rely on them must learn it
            self.unfit_rows += len(rows)
            self._drop(rows, DOES_NOT_FIT)
            raise

    def _files(self, folder: str, table: pa.Table) -> Iterator[_File]:
        """The rows of a day, split where they are too many or too large."""
        pieces = max(1, -(-table.nbytes // self._rotation.bytes), -(-table.num_rows // self._rotation.rows))
        size = -(-table.num_rows // pieces)
        for start in range(0, table.num_rows, size):
            piece = table.slice(start, size)
            yield _File(folder, self._new_name(), encode(piece), piece.num_rows)

    def _batch(self, rows: list[Operation]) -> pa.RecordBatch:
        try:
            return to_batch(rows)
        except (ValueError, TypeError, AttributeError, OverflowError, pa.ArrowException):
            batch, refused = to_batch_of_fitting(rows)
            self.unfit_rows += len(refused)
            self._drop(refused, DOES_NOT_FIT)
            logger.warning("%d rows have values that the ledger cannot hold", len(refused))
            return batch

    def _notices(self) -> list[Operation]:
        """Rows that say how many were dropped."""
        with self._lock:
            dropped, self._dropped = self._dropped, Counter()
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
            for (pairing, client, reason), rows in dropped.items()
        ]

    def _new_name(self) -> str:
        self._number += 1
        return str(layout.FileName(self._now_us(), self._id, self._pid, self._number))


def _storable(text: object) -> str:
    return str(text).encode(errors="replace").decode()


def _by_day(table: pa.Table) -> list[tuple[str, pa.Table]]:
    """The rows by the folder of their day."""
    if not table.num_rows:
        return []
    days = pc.divide(table["ts"].cast(pa.int64()), layout.DAY_US)
    found = sorted(pc.unique(days).to_pylist())
    if len(found) == 1:
        return [(layout.folder_of(found[0] * layout.DAY_US), table)]
    return [(layout.folder_of(day * layout.DAY_US), table.filter(pc.equal(days, day))) for day in found]
