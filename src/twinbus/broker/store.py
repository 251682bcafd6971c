"""Durable storage: one SQLite file in WAL mode, one writer thread, group commit.

Everything that must survive goes through `Store.submit`: the changes of one unit are committed together or not
at all, units in the order they were submitted, and `done` runs on the event loop after the commit. While one
group is being written the next one collects, so the cost of a sync is shared by everything that waited for it.
Reads happen on the event loop through a second connection, which sees only what is committed.

A small group is written on the event loop itself as long as that is quick: handing it to a thread and back costs more
than a commit, even one that waits for a good disk. A slow commit sends the next ones to the thread for a while. The
log is copied into the database by the thread alone.

A message that is removed alone, as by a client that completes one after the other, is noted in a file of its own
(`removals.py`), and leaves its table with others when the log is copied.

How many messages a queue holds is counted in memory, by the queue, and written when the store closes: counting on disk
would double the pages of a small commit. After a crash the messages themselves are counted, once, when the store is
opened.
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

from .filelock import lock_folder
from .grouping import sorted_out
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
CHANGE_BYTES = 256  # of a change, besides its message; that is also what it takes in memory, at least
REMOVAL_BYTES = CHECKPOINT_BYTES // CAPACITY  # the notes are full when the log is to be copied
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


_INSERTS = frozenset({INSERT, INSERT_PLAIN})


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
        self._files = contextlib.ExitStack()
        if folder is None or durability is Durability.MEMORY:
            folder = Path(tempfile.mkdtemp(prefix="twinbus-"))
            self._files.callback(shutil.rmtree, folder, ignore_errors=True)
        # The folder holds keys and message bodies: nobody else may look.
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
        #: By queue: the last key of a message that is set aside.
        self._reserved: dict[int, int] = {}
        self._pressed: list[Callable[[], None]] = []
        self._waiting: list[Unit] = []
        self._joined: list[Unit] | None = None
        self._writing = False
        self._flush_scheduled = False
        #: Whether what is submitted waits for `write_collected`, because it belongs together.
        self.collecting = False
        #: Keys of messages that were removed and are still in their table. Who reads them there must look here, too.
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
            self._remove_noted(connection)
            if not begin_counting(connection):
                recount(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _remove_noted(self, connection: sqlite3.Connection) -> None:
        """Remove what was noted and not taken out when the process ended."""
        row = connection.execute("SELECT value FROM settings WHERE name = 'removals'").fetchone()
        if row and self._removals.is_new:
            logger.warning(
                "%s, which belongs to the database, was not there: messages that were completed may come back",
                self.path.with_suffix(".removed"),
            )
        noted = self._removals.read(int(row[0])) if row else []
        self._remove(connection.cursor(), noted)

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
        size += CHANGE_BYTES * len(changes)
        self.pending_bytes += size
        self._waiting.append((changes, done, size))
        if not self.collecting:
            self._flush_soon()

    @property
    def joined(self) -> object | None:
        """What is submitted now is committed together with all else that this is the same for; None if alone."""
        return self._joined

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

    def write_collected(self) -> bool:
        """Write what was collected, at once if that is cheap: a turn of the event loop costs as much as a commit.

        A sync is not cheap: it waits for the other connections that have something to write in this turn. Returns
        whether more is waiting than should be.
        """
        self.collecting = False
        if self._waiting and not self._writing and not self._flush_scheduled:
            if not self._syncs and len(self._waiting) <= INLINE_UNITS:
                self._flush()
            else:
                self._flush_soon()
        return bool(self._waiting) and self.is_pressed

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
            except Exception:  # the thread tries again, makes room and says what is wrong
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
        """Tell everyone; `errors` is empty if there was none."""
        if self._swept:  # only now: a query that had begun before the sweep still sees what it took out
            self.removed.difference_update(self._swept)
            self._swept = []
        self._writing = False
        if self._waiting and (len(self._waiting) > INLINE_UNITS or monotonic() < self._slow_until):
            self._flush(by_thread=True)  # let the disk work while the callbacks run
        for number, (_, done, size) in enumerate(group):
            self.pending_bytes -= size
            try:  # `_tell` without the call: every message comes by here
                done(errors[number] if errors else None)
            except Exception:
                logger.exception("a callback after a commit failed")
        if self._pressed and not self.is_pressed:
            relieved, self._pressed = self._pressed, []
            for callback in relieved:
                callback()
        if self._waiting:
            # Only now: callbacks must run in the order of the commits, and a small group would be done at once.
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
                errors = self._write_apart(group)
                failed = len(group) - errors.count(None)
                logger.error("%d of %d changes could not be stored: %s", failed, len(group), failure)
            if self._logged >= CHECKPOINT_BYTES:
                self._make_room()
            self._loop.call_soon_threadsafe(self._committed, group, errors)
            del group, errors  # with their connections, until the next group: that may be long after these are gone

    def _write_apart(self, group: list[Unit]) -> list[StoreError | None]:
        """Write by halves what failed as a whole: what can be stored is, whatever it shared a commit with."""
        failure = self._try_write(group)
        if failure is None or len(group) == 1:
            return [failure] * len(group)
        half = len(group) // 2
        return self._write_apart(group[:half]) + self._write_apart(group[half:])

    def _try_write(self, group: list[Unit]) -> StoreError | None:
        # Whatever goes wrong must not end the thread: a sender would wait for its answer for ever.
        try:
            self._write(group)
        except Exception as failure:
            if not isinstance(failure, sqlite3.Error):
                logger.exception("a change cannot be written")
            self._roll_back()
            return StoreError(f"the store could not write: {failure}")
        return None

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._writer_connection.rollback()

    def _make_room(self) -> None:
        """Copy the log into the database, so that it can start anew: now and then, and when the disk is full."""
        self._logged = 0
        failure = self._sweep()
        with contextlib.suppress(sqlite3.Error):
            self._writer_connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        if failure is not None and (failure := self._sweep()) is not None:  # on a full disk there may be room only now
            logger.warning("removed messages could not be taken out of their table: %s", failure)

    def _sweep(self) -> Exception | None:
        """Take the messages that were removed alone out of their table; nobody reads them, so that may fail."""
        if not self._removals.is_used:
            return None
        keys = list(self.removed)
        try:
            self._remove(self._cursor, keys)
        except (sqlite3.Error, OSError) as failure:
            self._roll_back()
            # After a sync that failed the new number may be in the log all the same, and be good after a crash: notes
            # with the old one would then be none.
            self._removals.takes_notes = False
            return failure
        self._swept += keys
        return None

    def _remove(self, cursor: sqlite3.Cursor, noted: list[int]) -> None:
        """Take messages out of their table, and make the notes of them void."""
        start = secrets.randbits(32)
        cursor.execute("BEGIN IMMEDIATE")
        cursor.executemany(DELETE, [(key,) for key in noted])
        cursor.execute(PUT_SETTING, ("removals", str(start)))
        cursor.execute("COMMIT")
        self._removals.begin(start)

    def _write(self, group: list[Unit]) -> None:
        """Write a group in one transaction.

        New messages go first, in one statement: a key is never reused, so nothing in the group can depend on a
        message not being there yet.
        """
        changes, _, size = group[0]
        if len(changes) == len(group) == 1:
            # One client that waits for each answer: every microsecond here is one it waits for.
            sql, parameters = changes[0]
            key: Any = parameters[0]
            if sql is DELETE and self._removals.takes_notes:
                try:
                    self._removals.add(key)
                    self.removed.add(key)
                    self._logged += max(REMOVAL_BYTES, size)
                    return
                except OSError as failure:
                    logger.warning("a removal could not be noted, so the database is told at once: %s", failure)
            if sql not in _INSERTS or key <= self._reserved.get(key >> SEQUENCE_BITS, 0):
                self._cursor.execute(sql, parameters)  # a transaction by itself
                self._logged += COMMIT_BYTES + size
                return
        inserts, others = sorted_out(changes for changes, _, _ in group)
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
        """Commit, with sequence numbers set aside where those of the new messages have run out."""
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
        """The messages need not be counted at the next start: nothing is going to change any more."""
        connection = self._writer_connection
        with contextlib.suppress(sqlite3.Error):
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(COUNT, counters)
            connection.execute(COUNTED)
            connection.execute("COMMIT")

    # ---- closing ----

    async def close(self, counted: Callable[[], Iterable[tuple[int, ...]]] | None = None) -> None:
        """Write what was submitted, then the counters of all queues, if someone has counted, and close the files."""
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
