"""Durable storage: one SQLite file in WAL mode, one writer thread, group commit.

Everything that must survive goes through `Store.submit`: the changes of one unit are committed together or not
at all, units in the order they were submitted, and `done` runs on the event loop after the commit. While one
group is being written the next one collects, so the cost of a sync is shared by everything that waited for it.
Reads happen on the event loop through a second connection, which sees only what is committed.

A small group is written on the event loop itself as long as that is quick: handing it to a thread and back costs more
than a commit, even one that waits for a good disk. A slow commit sends the next ones to the thread for a while. The
log is copied into the database by the thread alone.

How many messages a queue holds is counted in memory and written when the store closes: counting on disk would double
the pages of a small commit. After a crash the messages themselves are counted, once, when the store is opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path

from .filelock import lock_folder
from .grouping import Counters, count, sorted_out
from .schema import (
    COUNT,
    COUNTED,
    RESERVE,
    SCHEMA_VERSION,
    TABLES,
    Change,
    begin_counting,
    recount,
)

logger = logging.getLogger("twinbus.broker.store")

MAX_GROUP = 2_000  # units in one commit: bounds the time a single send waits
CACHE_KIB = 16 * 1024
PAGE_BYTES = 8192  # a page of the usual 4 KB holds three messages of 1 KB and wastes the rest
CHECKPOINT_BYTES = 8 << 20  # written to the log before it is copied into the database
INLINE_UNITS = 16
SLOW_COMMIT = 0.02  # a commit that takes longer sends those of the next second to the thread
SLOW_DISK_SECONDS = 1.0
# What goes to the log, roughly: it takes whole pages, so a commit costs some whatever is in it.
COMMIT_BYTES = 12 << 10
CHANGE_BYTES = 1 << 10  # of a change that brings no message
RESERVED = 1_000  # sequence numbers that are set aside at a time, so that none is ever given twice
PRESSURE_BYTES = 16 << 20  # waiting to be written: above this, connections stop reading


class Durability(StrEnum):
    """When a send is acknowledged.

    FULL: after the operating system says the bytes are on the disk; survives power loss.
    NORMAL: after they are written to the file; survives the process being killed, not power loss.
    MEMORY: nothing outlives the process.
    """

    FULL = "full"
    NORMAL = "normal"
    MEMORY = "memory"


# One process owns the folder (`lock_folder`): SQLite need not ask the kernel for six locks at each commit.
_ONE_PROCESS = ("vfs=unix-excl",) if os.name == "posix" else ()
_SYNCHRONOUS = {Durability.FULL: "FULL", Durability.NORMAL: "NORMAL", Durability.MEMORY: "OFF"}


class StoreError(Exception):
    """The changes could not be stored; nothing of them was."""


Done = Callable[[StoreError | None], None]


# Changes that are stored together, who is told, and how many bytes they hold. A plain tuple: every message makes one.
Unit = tuple[Sequence[Change], Done, int]


def _tell(done: Done, error: StoreError | None) -> None:
    try:
        done(error)
    except Exception:
        logger.exception("a callback after a commit failed")


class Store:
    """The database of one namespace. Open it on the running event loop; every method is called there."""

    def __init__(self, folder: Path | None, durability: Durability = Durability.NORMAL) -> None:
        self.durability = durability
        self._temporary: str | None = None
        if folder is None or durability is Durability.MEMORY:
            self._temporary = tempfile.mkdtemp(prefix="twinbus-")
            folder = Path(self._temporary)
        # The folder holds keys and message bodies: nobody else may look.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = folder / "namespace.db"
        lock = lock_folder(folder)
        if lock is None:
            raise StoreError(f"the data folder {folder} is in use by another process")
        self._lock = lock
        self.pending_bytes = 0
        self._syncs = durability is Durability.FULL
        self._slow_until = 0.0
        self._logged = 0
        #: What has changed since the counters in the database were true, and how far sequence numbers are set aside.
        self._counters: Counters = {}
        self._reserved: dict[int, int] = {}
        self._pressed: list[Callable[[], None]] = []
        self._waiting: list[Unit] = []
        self._joined: list[Unit] | None = None
        self._writing = False
        self._flush_scheduled = False
        self._collecting = False
        self._closed = False
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()
        self._handover: queue.SimpleQueue[list[Unit] | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        try:
            self._writer_connection = self._open_writer()
            try:
                self.reader = self._open_reader()
            except BaseException:
                self._writer_connection.close()
                raise
        except sqlite3.Error as error:
            self._let_go()
            raise StoreError(f"the database {self.path} cannot be opened: {error}") from error
        except BaseException:
            self._let_go()
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
            # A publish to a thousand subscriptions changes more pages than the cache holds; written before the commit,
            # each would be written and read again and again.
            connection.execute("PRAGMA cache_spill = OFF")
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            connection.execute("PRAGMA busy_timeout = 5000")
            # Some builds wipe what is deleted, which costs a write for every page that becomes free.
            connection.execute("PRAGMA secure_delete = OFF")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version > SCHEMA_VERSION:
                raise StoreError(f"the database {self.path} was written by a newer twinbus (schema {version})")
            connection.executescript(TABLES)
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            if not begin_counting(connection):
                recount(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _address(self, *options: str) -> str:
        return f"{self.path.absolute().as_uri()}?{'&'.join((*_ONE_PROCESS, *options))}"

    def _open_reader(self) -> sqlite3.Connection:
        reader = sqlite3.connect(self._address("mode=ro"), uri=True, isolation_level=None, cached_statements=256)
        reader.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        return reader

    @property
    def is_pressed(self) -> bool:
        """Whether more is waiting to be written than should be."""
        return self.pending_bytes > PRESSURE_BYTES or len(self._waiting) > 4 * MAX_GROUP

    def when_relieved(self, callback: Callable[[], None]) -> None:
        """Call back once the pressure is off."""
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
        self.pending_bytes += size
        self._waiting.append((changes, done, size))
        self._idle.clear()
        if not self._collecting:
            self._flush_soon()

    def atomically(self, act: Callable[[], None], done: Done) -> None:
        """Commit all that `act` submits as one unit, then call `done` as `submit` does.

        Raises what `act` raises: then nothing of it is stored, and whoever submitted something is told so.
        """
        joined: list[Unit] = []
        self._joined = joined
        try:
            act()
        except BaseException:
            self._joined = None
            for _, told, _ in joined:
                _tell(told, StoreError("what belongs to it was refused"))
            raise
        self._joined = None
        changes = [change for unit in joined for change in unit[0]]

        def committed(error: StoreError | None) -> None:
            for _, told, _ in joined:
                _tell(told, error)
            done(error)

        self.submit(changes, committed, sum(size for _, _, size in joined))

    def _flush_soon(self) -> None:
        if not self._writing and not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def collect(self) -> None:
        """Let what is submitted from here on wait for `write_collected`: it belongs together."""
        self._collecting = True

    def write_collected(self) -> None:
        """Write what was collected, at once if that is cheap: a turn of the event loop costs as much as a commit.

        A sync is not cheap: it waits for the other connections that have something to write in this turn.
        """
        self._collecting = False
        if self._waiting and not self._writing and not self._flush_scheduled:
            if not self._syncs and len(self._waiting) <= INLINE_UNITS:
                self._flush()
            else:
                self._flush_soon()

    async def commit(self, changes: Sequence[Change]) -> None:
        """Submit and wait; raises `StoreError`."""
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

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._writing or not self._waiting:
            return
        group, self._waiting = self._waiting[:MAX_GROUP], self._waiting[MAX_GROUP:]
        began = time.monotonic()
        if len(group) <= INLINE_UNITS and self._logged < CHECKPOINT_BYTES and began >= self._slow_until:
            failure = self._try_write(group)
            self._judge_disk(time.monotonic() - began)
            if failure is None:
                self._committed(group, [None] * len(group))
                return
        self._writing = True
        self._handover.put(group)

    def _judge_disk(self, seconds: float) -> None:
        if seconds > SLOW_COMMIT:
            self._slow_until = time.monotonic() + SLOW_DISK_SECONDS

    def _committed(self, group: list[Unit], errors: list[StoreError | None]) -> None:
        self._writing = False
        if len(self._waiting) > INLINE_UNITS or time.monotonic() < self._slow_until:
            self._flush()  # let the disk work while the callbacks run
        for (_, done, size), error in zip(group, errors, strict=True):
            self.pending_bytes -= size
            try:  # `_tell` without the call: every message comes by here
                done(error)
            except Exception:
                logger.exception("a callback after a commit failed")
        if self._pressed and not self.is_pressed:
            relieved, self._pressed = self._pressed, []
            for callback in relieved:
                callback()
        if self._waiting:
            # Only now: callbacks must run in the order of the commits, and a small group would be done at once.
            self._flush_soon()
        elif not self._writing:
            self._idle.set()

    # ---- the writer thread ----

    def _write_groups(self) -> None:
        while (group := self._handover.get()) is not None:
            errors: list[StoreError | None] = [None] * len(group)
            failure = self._try_write(group)
            if failure is not None:
                self._make_room()
                errors = self._write_apart(group)
                failed = len(group) - errors.count(None)
                logger.error("%d of %d changes could not be stored: %s", failed, len(group), failure)
            if self._logged >= CHECKPOINT_BYTES:
                self._make_room()
            self._loop.call_soon_threadsafe(self._committed, group, errors)

    def _write_apart(self, group: list[Unit]) -> list[StoreError | None]:
        """Write by halves what failed as a whole: what can be stored is, whatever it shared a commit with."""
        failure = self._try_write(group)
        if failure is None or len(group) == 1:
            return [failure] * len(group)
        half = len(group) // 2
        return self._write_apart(group[:half]) + self._write_apart(group[half:])

    def _try_write(self, group: list[Unit]) -> StoreError | None:
        # One thread at a time: the loop writes only while nothing is handed over.
        # Whatever goes wrong must not end the thread: a sender would wait for its answer for ever.
        try:
            self._write(group)
        except Exception as failure:
            if not isinstance(failure, sqlite3.Error):
                logger.exception("a change cannot be written")
            with contextlib.suppress(sqlite3.Error):
                self._writer_connection.rollback()
            return StoreError(f"the store could not write: {failure}")
        return None

    def _make_room(self) -> None:
        """Copy the log into the database, so that it can start anew: now and then, and when the disk is full."""
        self._logged = 0
        with contextlib.suppress(sqlite3.Error):
            self._writer_connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def _write(self, group: list[Unit]) -> None:
        """Write a group in one transaction.

        New messages go first, in one statement: a key is never reused, so nothing in the group can depend on a
        message not being there yet.
        """
        connection = self._writer_connection
        if len(group) == 1 and len(group[0][0]) == 1:
            # One client that waits for each answer: every microsecond here is one it waits for.
            sql, parameters, key, *counts = group[0][0][0]
            if key < 0:
                connection.execute(sql, parameters)
            elif counts[-1] <= self._reserved.get(key, 0):
                connection.execute(sql, parameters)  # a transaction by itself
                count(self._counters, key, *counts)
            else:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(sql, parameters)
                self._commit({key: counts})
        else:
            inserts, others, counters = sorted_out(changes for changes, _, _ in group)
            if not others and not any(inserts.values()):
                return
            connection.execute("BEGIN IMMEDIATE")
            for sql, rows in inserts.items():
                connection.executemany(sql, rows)
            for sql, rows in others:
                connection.executemany(sql, rows)
            self._commit(counters)
        self._logged += COMMIT_BYTES + sum(size or CHANGE_BYTES * len(changes) for changes, _, size in group)

    def _commit(self, counters: Counters) -> None:
        """Commit, with sequence numbers set aside where they have run out; only then has anything been counted."""
        ahead = {
            key: counts[-1] + RESERVED for key, counts in counters.items() if counts[-1] > self._reserved.get(key, 0)
        }
        self._writer_connection.executemany(RESERVE, ahead.items())
        self._writer_connection.execute("COMMIT")
        self._reserved |= ahead
        for key, counts in counters.items():
            count(self._counters, key, *counts)

    def _write_counters(self) -> None:
        """The messages need not be counted at the next start: nothing is going to change any more."""
        connection = self._writer_connection
        with contextlib.suppress(sqlite3.Error):
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(COUNT, [(key, *counts) for key, counts in self._counters.items()])
            connection.execute(COUNTED)
            connection.execute("COMMIT")

    # ---- closing ----

    async def close(self) -> None:
        """Write what was submitted, then close the files."""
        if self._closed:
            return
        self._closed = True
        await self._idle.wait()
        self._handover.put(None)
        await asyncio.to_thread(self._thread.join)
        self._write_counters()
        self.reader.close()
        self._writer_connection.close()
        self._let_go()

    def _let_go(self) -> None:
        self._lock.close()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
