"""Reads the database of a stopped namespace with plain SQL, for tests to compare with."""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.emulator.durability.ledger import StoredMessage

from twinbus.amqp.codec import sections
from twinbus.emulator.storage.removals import Removals
from twinbus.emulator.storage.schema import State, queue_of, sequence_of

DATABASE = "namespace.db"
LOG = "namespace.db-wal"
REMOVALS = "namespace.removed"
FILES = (DATABASE, LOG, REMOVALS)


def as_after_a_crash(running: Path, folder: Path) -> Path:
    """Copy the files of an open store, as a crash would leave them."""
    folder.mkdir()
    for file in FILES:
        shutil.copy(running / file, folder / file)
    return folder


class Counted(NamedTuple):
    """The counters of a queue, stored or computed from its messages."""

    active: int = 0
    deferred: int = 0
    scheduled: int = 0
    bytes: int = 0


@dataclass(slots=True)
class Tables:
    """The contents of the database, by path of the queue or subscription."""

    messages: dict[str, list[StoredMessage]] = field(default_factory=dict)
    scanned: dict[int, Counted] = field(default_factory=dict)
    counters: dict[int, Counted] = field(default_factory=dict)
    last_sequences: dict[int, int] = field(default_factory=dict)
    newest: dict[int, int] = field(default_factory=dict)
    session_states: dict[tuple[str, str], bytes] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)

    def wrong_counters(self) -> list[str]:
        """The queues whose counters do not match their messages; counters are exact after the store was closed."""
        wrong = self.wrong_sequences()
        for key in self.scanned.keys() | self.counters.keys():
            scanned, counted = self.scanned.get(key, Counted()), self.counters.get(key, Counted())
            if scanned != counted:
                wrong.append(f"queue {key}: the counters say {counted}, the messages {scanned}")
        return wrong

    def wrong_sequences(self) -> list[str]:
        """The queues that would reuse a sequence number."""
        return [
            f"queue {key}: message {newest} is behind the last sequence number"
            for key, newest in self.newest.items()
            if newest > self.last_sequences.get(key, 0)
        ]

    def count(self, path: str, dead_letters: bool = False) -> Counted:
        return self.scanned.get(2 * self.keys[path] + dead_letters, Counted())


@contextmanager
def copied(folder: Path) -> Iterator[Path]:
    """A copy of the database files, because reading recovers the log and would change the original."""
    with tempfile.TemporaryDirectory(prefix="twinbus-copy-") as name:
        for file in FILES:
            if (folder / file).exists():
                shutil.copy(folder / file, Path(name) / file)
        yield Path(name)


def read_tables(folder: Path) -> Tables:
    """Read a namespace's database; raises `AssertionError` if SQLite finds it damaged."""
    with copied(folder) as copy, closing(sqlite3.connect(copy / DATABASE)) as connection:
        checked = connection.execute("PRAGMA integrity_check").fetchone()[0]
        assert checked == "ok", f"the database is damaged: {checked}"
        remove_noted(connection, copy)
        return _read(connection)


def remove_noted(connection: sqlite3.Connection, folder: Path) -> None:
    """Delete the messages with a noted removal, as the store does when it opens."""
    row = connection.execute("SELECT value FROM settings WHERE name = 'removals'").fetchone()
    if row is not None and (folder / REMOVALS).exists():
        with Removals(folder / REMOVALS, syncs=False) as removals:
            keys = removals.read(int(row[0]))
        connection.executemany("DELETE FROM messages WHERE id = ?", [(key,) for key in keys])


def _read(connection: sqlite3.Connection) -> Tables:
    tables = Tables()
    paths: dict[int, str] = {}
    for key, text in connection.execute("SELECT key, description FROM entities"):
        description = json.loads(text)
        path = description.get("path") or f"{description['topic']}/{description['name']}"
        tables.keys[path], paths[key] = key, path
        tables.messages[path] = []
    for key, active, deferred, scheduled, size, last in connection.execute("SELECT * FROM counters"):
        tables.counters[key] = Counted(active, deferred, scheduled, size)
        tables.last_sequences[key] = last
    for key, session, state in connection.execute("SELECT key, session, state FROM session_states"):
        tables.session_states[paths[key // 2], session] = state
    rows = connection.execute("SELECT id, state, session, size, due_at, bare FROM messages ORDER BY id")
    for row, state, session, size, due_at, bare in rows:
        key, sequence = queue_of(row), sequence_of(row)
        message_id = str(sections.list_fields(sections.split_sections(bare).properties, 1)[0])
        message = StoredMessage(message_id, state, key % 2 == 1, sequence, session, size, due_at)
        tables.messages[paths[key // 2]].append(message)
        _count(tables, key, message)
    return tables


def _count(tables: Tables, key: int, message: StoredMessage) -> None:
    before = tables.scanned.get(key, Counted())
    tables.scanned[key] = Counted(
        before.active + (message.state == State.ACTIVE),
        before.deferred + (message.state == State.DEFERRED),
        before.scheduled + (message.state == State.SCHEDULED),
        before.bytes + message.size,
    )
    tables.newest[key] = message.sequence
