"""Stores a namespace durably: one SQLite file in WAL mode, one writer thread, group commit.

All changes go through `Store.submit`. The changes of one unit are committed together or not at all, units are committed
in the order of submission, and `done` runs on the event loop after the commit. While one group is being written the
next one collects, so all units of a group share the cost of one sync. Reads happen on the event loop through a second
connection, which sees only committed data.

A small group is written on the event loop itself as long as that is fast: passing it to a thread and back costs more
than a commit, even with a sync on a good disk. After a slow commit the thread writes for a while. Only the thread
copies the log into the database (a checkpoint).

A message that is removed alone, as by a client that completes one message after the other, is noted in a separate file
(`removals.py`) and deleted from its table with others at the next checkpoint.

Queues count their messages in memory, and the counts are written when the store closes: counting on disk would double
the pages of a small commit. After a crash the messages are counted once, when the store is opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import secrets
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from time import monotonic
from typing import Any

from .change_groups import group_by_statement
from .filelock import lock_folder
from .private_files import keep_private
from .removals import CAPACITY, Removals
from .schema import (
    COUNT,
    COUNTED,
    DELETE,
    INSERT,
    INSERT_PLAIN,
    PUT_SETTING,
    RESERVE,
    SCHEMA_VERSION,
    SEQUENCE_BITS,
    STORED,
    TABLES,
    Change,
    begin_counting,
    recount,
    sequence_of,
)

logger = logging.getLogger("twinbus.emulator.storage.store")

MAX_GROUP = 2_000  # units in one commit: bounds the time a single send waits
CACHE_KIB = 16 * 1024
PAGE_BYTES = 8192  # a page of the usual 4 KB holds three messages of 1 KB and wastes the rest
CHECKPOINT_BYTES = 8 << 20  # log size that triggers a checkpoint
INLINE_UNITS = 16
SLOW_COMMIT = 0.02  # after a slower commit, the thread writes for `SLOW_DISK_SECONDS`
SLOW_DISK_SECONDS = 1.0
# Estimated log bytes of a commit besides its messages: the log holds whole pages.
COMMIT_BYTES = 12 << 10
CHANGE_BYTES = 256  # estimated log and memory size of a change, besides its message
REMOVAL_BYTES = CHECKPOINT_BYTES // CAPACITY  # makes a full file of notes trigger a checkpoint
RESERVED = 1_000  # sequence numbers reserved at a time, so that none is reused after a crash
PRESSURE_BYTES = 16 << 20  # bytes waiting to be written above which connections stop reading


class Durability(StrEnum):
    """When a send is acknowledged.

    FULL: after the bytes are synced to disk; survives power loss.
    NORMAL: after they are written to the file; survives a killed process, not power loss.
    MEMORY: nothing is kept when the process ends.
    """

    FULL = "full"
    NORMAL = "normal"
    MEMORY = "memory"


# One process owns the folder (`lock_folder`), so SQLite can skip six system calls for file locks per commit.
_ONE_PROCESS = ("vfs=unix-excl",) if os.name == "posix" else ()
_SYNCHRONOUS = {Durability.FULL: "FULL", Durability.NORMAL: "NORMAL", Durability.MEMORY: "OFF"}


_INSERTS = frozenset({INSERT, INSERT_PLAIN})


class StoreError(Exception):
    """The changes could not be stored; none of them was."""


Done = Callable[[StoreError | None], None]


# Changes that are committed together, their callback, and their size in bytes. A plain tuple for speed.
Unit = tuple[Sequence[Change], Done, int]


def _run_callback(done: Done, error: StoreError | None) -> None:
    try:
        done(error)
    except Exception:
        logger.exception("a callback after a commit raised an error")


class Store:
    """The database of one namespace. Open it on the running event loop, and call every method there."""

    def __init__(self, folder: Path | None, durability: Durability = Durability.NORMAL) -> None:
        self.durability = durability
        self._files = contextlib.ExitStack()
        if folder is None or durability is Durability.MEMORY:
            folder = Path(tempfile.mkdtemp(prefix="twinbus-"))
            self._files.callback(shutil.rmtree, folder, ignore_errors=True)
        # The folder holds keys and message bodies: only its owner may read it.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = folder / "namespace.db"
        lock = lock_folder(folder)
        if lock is None:
            raise StoreError(f"the data folder {folder} is in use by another process")
        self._files.enter_context(lock)
        self.pending_bytes = 0
        self._syncs = durability is Durability.FULL
        self._slow_until = 0.0
        self._logged = 0
        #: By queue: the last message key whose sequence number is reserved.
        self._reserved: dict[int, int] = {}
        self._pressed: list[Callable[[], None]] = []
        self._waiting: list[Unit] = []
        self._joined: list[Unit] | None = None
        self._writing = False
        self._flush_scheduled = False
        #: Whether submitted units wait for `write_collected`, to be committed as one group.
        self.collecting = False
        #: Keys of messages that were removed but are still in their table; the view `stored` leaves them out.
        self.removed: set[int] = set()
        self._swept: list[int] = []
        self._closed = False
        self._emptied: asyncio.Future[None] | None = None
        self._handover: queue.SimpleQueue[list[Unit] | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        try:
            keep_private(self.path)
            self._removals = self._files.enter_context(Removals(self.path.with_suffix(".removed"), self._syncs))
            self._writer_connection = self._files.enter_context(contextlib.closing(self._open_writer()))
            self._cursor = self._writer_connection.cursor()
            self.reader = self._files.enter_context(contextlib.closing(self._open_reader()))
        except (sqlite3.Error, OSError) as error:
            self._files.close()
            file = getattr(error, "filename", None) or f"the database {self.path}"
            raise StoreError(f"{file} cannot be opened: {getattr(error, 'strerror', None) or error}") from error
        except BaseException:
            self._files.close()
            raise
        self._thread = threading.Thread(target=self._write_groups, name="twinbus-store", daemon=True)
        self._thread.start()

    def _open_writer(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._address(), uri=True, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        try:
            connection.execute("PRAGMA locking_mode = NORMAL")
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            if mode != "wal":
                raise StoreError(f"the database {self.path} needs a file system with shared memory: a local disk")
            connection.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[self.durability]}")
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            # A publish to a thousand subscriptions changes more pages than the cache holds; spilling would write and
            # read each of them several times before the commit.
            connection.execute("PRAGMA cache_spill = OFF")
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            connection.execute("PRAGMA busy_timeout = 5000")
            # Some builds overwrite deleted data, which costs a write per freed page.
            connection.execute("PRAGMA secure_delete = OFF")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version > SCHEMA_VERSION:
                raise StoreError(f"the database {self.path} was written by a newer twinbus (schema {version})")
            connection.executescript(TABLES)
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            self._remove_noted(connection)
            if not begin_counting(connection):
                recount(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _remove_noted(self, connection: sqlite3.Connection) -> None:
        """Delete the messages whose removal was noted before the process ended."""
        row = connection.execute("SELECT value FROM settings WHERE name = 'removals'").fetchone()
        if row and self._removals.is_new:
            logger.warning(
                "the file of noted removals %s is missing: completed messages may be delivered again",
                self.path.with_suffix(".removed"),
            )
        keys = self._removals.read(int(row[0])) if row else []
        self._remove(connection.cursor(), keys)

    def _address(self, *options: str) -> str:
        return f"{self.path.absolute().as_uri()}?{'&'.join((*_ONE_PROCESS, *options))}"

    def _open_reader(self) -> sqlite3.Connection:
        reader = sqlite3.connect(self._address("mode=ro"), uri=True, isolation_level=None, cached_statements=256)
        reader.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        reader.create_function("removed", 1, self.removed.__contains__)
        reader.execute("PRAGMA temp_store = MEMORY")
        reader.execute(STORED)
        return reader

    @property
    def is_pressed(self) -> bool:
        """Whether too much is waiting to be written."""
        return self.pending_bytes > PRESSURE_BYTES or len(self._waiting) > 4 * MAX_GROUP

    def when_relieved(self, callback: Callable[[], None]) -> None:
        """Call `callback` once `is_pressed` is false."""
        self._pressed.append(callback)

    # ---- writing ----

    def submit(self, changes: Sequence[Change], done: Done, size: int = 0) -> None:
        """Commit `changes` as one unit, then call `done` on the event loop with None or the error.

        An empty list is a barrier: `done` runs when everything submitted before it is committed.
        """
        if self._joined is not None:
            self._joined.append((changes, done, size))
            return
        if self._closed:
            error = StoreError("the namespace is closing")
            self._loop.call_soon(done, error)
            return
        size += CHANGE_BYTES * len(changes)
        self.pending_bytes += size
        self._waiting.append((changes, done, size))
        if not self.collecting:
            self._flush_soon()

    @property
    def joined(self) -> object | None:
        """Identifies the unit that `atomically` is collecting; None outside of it."""
        return self._joined

    def atomically(self, act: Callable[[], None], done: Done) -> None:
        """Commit all changes that `act` submits as one unit, then call `done` as `submit` does.

        Raises what `act` raises; then nothing is stored, and the callbacks of its submissions get an error.
        """
        joined: list[Unit] = []
        self._joined = joined
        try:
            act()
        except BaseException:
            self._joined = None
            for _, callback, _ in joined:
                _run_callback(callback, StoreError("another change of the same unit was refused"))
            raise
        self._joined = None
        changes = [change for unit in joined for change in unit[0]]

        def committed(error: StoreError | None) -> None:
            for _, callback, _ in joined:
                _run_callback(callback, error)
            done(error)

        self.submit(changes, committed, sum(size for _, _, size in joined))

    def _flush_soon(self) -> None:
        if not self._writing and not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def write_collected(self) -> bool:
        """Write the collected units, at once if that is cheap: a turn of the event loop costs as much as a commit.

        A sync is not cheap: with syncs, wait for units of other connections in this turn of the event loop. Returns
        whether too much is waiting.
        """
        self.collecting = False
        if self._waiting and not self._writing and not self._flush_scheduled:
            if not self._syncs and len(self._waiting) <= INLINE_UNITS:
                self._flush()
            else:
                self._flush_soon()
        return bool(self._waiting) and self.is_pressed

    async def commit(self, changes: Sequence[Change]) -> None:
        """Submit and wait for the commit; raises `StoreError`."""
        committed: asyncio.Future[None] = self._loop.create_future()

        def done(error: StoreError | None) -> None:
            if committed.cancelled():
                return
            if error is None:
                committed.set_result(None)
            else:
                committed.set_exception(error)

        self.submit(changes, done)
        await committed

    def _flush(self, by_thread: bool = False) -> None:
        self._flush_scheduled = False
        group = self._waiting
        if self._writing or not group:
            return
        self._waiting = group[MAX_GROUP:]
        del group[MAX_GROUP:]
        began = monotonic()
        is_small = len(group) <= INLINE_UNITS and self._logged < CHECKPOINT_BYTES
        if is_small and not by_thread and began >= self._slow_until:
            try:
                self._write(group)
            except Exception:  # the thread retries, makes room and logs the error
                self._roll_back()
            else:
                ended = monotonic()
                if ended - began > SLOW_COMMIT:
                    self._slow_until = ended + SLOW_DISK_SECONDS
                self._committed(group, ())
                return
        self._writing = True
        self._handover.put(group)

    def _committed(self, group: list[Unit], errors: Sequence[StoreError | None]) -> None:
        """Run the callbacks of a group; `errors` is empty if all units were committed."""
        if self._swept:  # not earlier: a query that began before the sweep still sees the deleted rows
            self.removed.difference_update(self._swept)
            self._swept = []
        self._writing = False
        if self._waiting and (len(self._waiting) > INLINE_UNITS or monotonic() < self._slow_until):
            self._flush(by_thread=True)  # let the disk work while the callbacks run
        for number, (_, done, size) in enumerate(group):
            self.pending_bytes -= size
            try:  # `_run_callback` inlined: this runs for every message
                done(errors[number] if errors else None)
            except Exception:
                logger.exception("a callback after a commit raised an error")
        if self._pressed and not self.is_pressed:
            relieved, self._pressed = self._pressed, []
            for callback in relieved:
                callback()
        if self._waiting:
            # After the callbacks, which must run in commit order: a small group would be committed at once.
            self._flush_soon()
        elif self._emptied is not None and not self._writing and not self._emptied.done():
            self._emptied.set_result(None)

    # ---- the writer thread ----

    def _write_groups(self) -> None:
        while (group := self._handover.get()) is not None:
            errors: Sequence[StoreError | None] = ()
            failure = self._try_write(group)
            if failure is not None:
                self._make_room()
                errors = self._write_by_halves(group)
                failed = len(group) - errors.count(None)
                logger.error("storing %d of %d units of changes failed: %s", failed, len(group), failure)
            if self._logged >= CHECKPOINT_BYTES:
                self._make_room()
            self._loop.call_soon_threadsafe(self._committed, group, errors)
            del group, errors  # they reference connections, and the next group may be long in coming

    def _write_by_halves(self, group: list[Unit]) -> list[StoreError | None]:
        """Split a failed group in halves and retry, so that one bad unit does not fail the others."""
        failure = self._try_write(group)
        if failure is None or len(group) == 1:
            return [failure] * len(group)
        half = len(group) // 2
        return self._write_by_halves(group[:half]) + self._write_by_halves(group[half:])

    def _try_write(self, group: list[Unit]) -> StoreError | None:
        # No error may end the thread: senders would wait for their answers forever.
        try:
            self._write(group)
        except Exception as failure:
            if not isinstance(failure, sqlite3.Error):
                logger.exception("writing a group of changes failed")
            self._roll_back()
            return StoreError(f"the store could not write: {failure}")
        return None

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._writer_connection.rollback()

    def _make_room(self) -> None:
        """Copy the log into the database, so that it starts again from its beginning; also frees a full disk."""
        self._logged = 0
        failure = self._sweep()
        with contextlib.suppress(sqlite3.Error):
            self._writer_connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        if failure is not None and (failure := self._sweep()) is not None:  # the checkpoint may have made room
            logger.warning("deleting removed messages from their table failed, will retry: %s", failure)

    def _sweep(self) -> Exception | None:
        """Delete the noted messages from their table; returns the error if that failed, which is harmless."""
        if not self._removals.is_used:
            return None
        keys = list(self.removed)
        try:
            self._remove(self._cursor, keys)
        except (sqlite3.Error, OSError) as failure:
            self._roll_back()
            # After a failed sync the new seed may still be in the log and be valid after a crash; notes with the old
            # seed would then be ignored.
            self._removals.takes_notes = False
            return failure
        self._swept += keys
        return None

    def _remove(self, cursor: sqlite3.Cursor, keys: list[int]) -> None:
        """Delete messages from their table and invalidate their notes."""
        start = secrets.randbits(32)
        cursor.execute("BEGIN IMMEDIATE")
        cursor.executemany(DELETE, [(key,) for key in keys])
        cursor.execute(PUT_SETTING, ("removals", str(start)))
        cursor.execute("COMMIT")
        self._removals.begin(start)

    def _write(self, group: list[Unit]) -> None:
        """Write a group in one transaction.

        New messages go first, in one statement: a key is never reused, so no other change of the group depends on a
        message not being stored yet.
        """
        changes, _, size = group[0]
        if len(changes) == len(group) == 1:
            # A single client that waits for each answer: every microsecond here adds to its wait.
            sql, parameters = changes[0]
            key: Any = parameters[0]
            if sql is DELETE and self._removals.takes_notes:
                try:
                    self._removals.add(key)
                    self.removed.add(key)
                    self._logged += max(REMOVAL_BYTES, size)
                    return
                except OSError as failure:
                    logger.warning("noting a removal failed, deleting from the database instead: %s", failure)
            if sql not in _INSERTS or key <= self._reserved.get(key >> SEQUENCE_BITS, 0):
                self._cursor.execute(sql, parameters)  # a transaction by itself
                self._logged += COMMIT_BYTES + size
                return
        inserts, others = group_by_statement(changes for changes, _, _ in group)
        if not others and not any(inserts.values()):
            return
        cursor = self._cursor
        cursor.execute("BEGIN IMMEDIATE")
        for sql, rows in inserts.items():
            cursor.executemany(sql, rows)
        for sql, rows in others:
            cursor.executemany(sql, rows)
        self._commit(row[0] for rows in inserts.values() for row in rows)
        self._logged += COMMIT_BYTES + sum(size for _, _, size in group)

    def _commit(self, keys: Iterable[Any]) -> None:
        """Commit, and reserve more sequence numbers for queues whose reserved ones are used up."""
        ahead: dict[int, int] = {}
        for key in keys:
            queue = key >> SEQUENCE_BITS
            if key > self._reserved.get(queue, 0):
                ahead[queue] = max(key + RESERVED, ahead.get(queue, 0))
        if ahead:
            self._cursor.executemany(RESERVE, [(queue, sequence_of(key)) for queue, key in ahead.items()])
        self._cursor.execute("COMMIT")
        self._reserved |= ahead

    def _write_counters(self, counters: Iterable[tuple[int, ...]]) -> None:
        """Store exact counters, so that the next start need not count the messages."""
        connection = self._writer_connection
        with contextlib.suppress(sqlite3.Error):
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(COUNT, counters)
            connection.execute(COUNTED)
            connection.execute("COMMIT")

    # ---- closing ----

    async def close(self, counted: Callable[[], Iterable[tuple[int, ...]]] | None = None) -> None:
        """Write what was submitted, then the counters that `counted` returns, and close the files."""
        if self._closed:
            return
        self._closed = True
        if self._waiting or self._writing:
            self._emptied = self._loop.create_future()
            await self._emptied
        self._handover.put(None)
        await asyncio.to_thread(self._thread.join)
        with self._files:
            self._sweep()
            if counted is not None:
                self._write_counters(counted())
