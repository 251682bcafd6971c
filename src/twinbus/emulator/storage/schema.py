"""Defines the database tables of a namespace and the SQL statements on them.

A message's primary key holds the queue in its upper bits and the sequence number in its lower bits, so every queue is
one contiguous, append-only range of a single table: the common case needs no second index, and reading a queue in order
is a range scan.

A message that was removed alone is deleted from its table later, in a batch (`removals.py`). While the store is open,
read messages from the view `stored`, which leaves these out.
"""

from __future__ import annotations

import sqlite3
from enum import IntEnum

SCHEMA_VERSION = 2  # version 1 had no file of noted removals
SEQUENCE_BITS = 40
MAX_SEQUENCE = (1 << SEQUENCE_BITS) - 1

TABLES = """
CREATE TABLE IF NOT EXISTS entities (
    key INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    parent INTEGER,
    description TEXT NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS counters (
    key INTEGER PRIMARY KEY,
    active INTEGER NOT NULL,
    deferred INTEGER NOT NULL,
    scheduled INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    last_sequence INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS messages (
    id INTEGER PRIMARY KEY,
    state INTEGER NOT NULL,
    session TEXT,
    enqueued_at INTEGER NOT NULL,
    due_at INTEGER,
    expires_at INTEGER,
    delivery_count INTEGER NOT NULL,
    size INTEGER NOT NULL,
    header BLOB,
    delivery_annotations BLOB,
    annotations BLOB,
    bare BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS by_session ON messages (session, id, state) WHERE session IS NOT NULL;
CREATE INDEX IF NOT EXISTS by_due_time ON messages (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS by_expiry ON messages (expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS seen (
    key INTEGER NOT NULL,
    message_id TEXT NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (key, message_id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS seen_by_time ON seen (key, at);
CREATE TABLE IF NOT EXISTS session_states (
    key INTEGER NOT NULL,
    session TEXT NOT NULL,
    state BLOB NOT NULL,
    updated_at REAL NOT NULL,
    PRIMARY KEY (key, session)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


class State(IntEnum):
    """The state of a stored message. Locked messages are active here: a lock does not outlive the process."""

    ACTIVE = 0
    DEFERRED = 1
    SCHEDULED = 2


def message_key(queue: int, sequence: int) -> int:
    """The primary key of a message."""
    return queue << SEQUENCE_BITS | sequence


def sequence_of(key: int) -> int:
    return key & MAX_SEQUENCE


def queue_of(key: int) -> int:
    return key >> SEQUENCE_BITS


#: A statement and its parameters. A plain tuple for speed: every message makes two.
Change = tuple[str, tuple[object, ...]]


COLUMNS = (
    "id, state, session, enqueued_at, due_at, expires_at, delivery_count, size, header,"
    " delivery_annotations, annotations, bare"
)
#: On the reading connection: the store defines the SQL function `removed`.
STORED = "CREATE TEMP VIEW stored AS SELECT * FROM messages WHERE NOT removed(id)"
INSERT = f"INSERT INTO messages ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
# For the common message without optional columns: binding nulls costs more than storing the other columns.
INSERT_PLAIN = "INSERT INTO messages (id, state, enqueued_at, delivery_count, size, bare) VALUES (?, 0, ?, 0, ?, ?)"
DELETE = "DELETE FROM messages WHERE id = ?"
SET_STATE = "UPDATE messages SET state = ? WHERE id = ?"
SET_DELIVERY_COUNT = "UPDATE messages SET delivery_count = ? WHERE id = ?"
SET_BARE = "UPDATE messages SET bare = ? WHERE id = ?"
REMEMBER = "INSERT OR REPLACE INTO seen (key, message_id, at) VALUES (?, ?, ?)"
FORGET = "DELETE FROM seen WHERE key = ? AND at < ?"
PUT_SESSION_STATE = "INSERT OR REPLACE INTO session_states (key, session, state, updated_at) VALUES (?, ?, ?, ?)"
DROP_SESSION_STATE = "DELETE FROM session_states WHERE key = ? AND session = ?"
PUT_ENTITY = (
    "INSERT OR REPLACE INTO entities (key, kind, parent, description, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?)"
)
PUT_SETTING = "INSERT OR REPLACE INTO settings (name, value) VALUES (?, ?)"
# While the store is open, `last_sequence` is the last number reserved: messages up to it need no write to this table.
RESERVE = (
    "INSERT INTO counters (key, active, deferred, scheduled, bytes, last_sequence) VALUES (?, 0, 0, 0, 0, ?)"
    " ON CONFLICT (key) DO UPDATE SET last_sequence = max(last_sequence, excluded.last_sequence)"
)
COUNT = (
    "INSERT INTO counters (key, active, deferred, scheduled, bytes, last_sequence) VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (key) DO UPDATE SET active = excluded.active, deferred = excluded.deferred,"
    " scheduled = excluded.scheduled, bytes = excluded.bytes, last_sequence = excluded.last_sequence"
)
COUNTED = "INSERT OR REPLACE INTO settings (name, value) VALUES ('counters', 'exact')"


def begin_counting(connection: sqlite3.Connection) -> bool:
    """Whether the stored counters are exact; marks them as inexact until `COUNTED` is executed."""
    return connection.execute("DELETE FROM settings WHERE name = 'counters'").rowcount > 0


def recount(connection: sqlite3.Connection) -> None:
    """Count the messages of every queue, after the store was not closed properly."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE counters SET active = 0, deferred = 0, scheduled = 0, bytes = 0")
    for queue in stored_queues(connection):
        counts, size, last = [0, 0, 0], 0, 0
        rows = connection.execute(
            "SELECT state, count(*), sum(size), max(id) FROM messages WHERE id BETWEEN ? AND ? GROUP BY state",
            (message_key(queue, 0), message_key(queue, MAX_SEQUENCE)),
        )
        for state, count, of_state, newest in rows:
            counts[state] = count
            size += of_state
            last = max(last, sequence_of(newest))
        # Keeps a higher number that is stored: the numbers of deleted messages must not be reused.
        connection.execute(RESERVE, (queue, last))
        connection.execute(
            "UPDATE counters SET active = ?, deferred = ?, scheduled = ?, bytes = ? WHERE key = ?",
            (*counts, size, queue),
        )
    connection.execute("COMMIT")


def delete_queue(queue: int) -> list[Change]:
    """The changes that delete a queue's messages, session states and counters."""
    low, high = message_key(queue, 0), message_key(queue, MAX_SEQUENCE)
    return [
        ("DELETE FROM messages WHERE id BETWEEN ? AND ?", (low, high)),
        ("DELETE FROM counters WHERE key = ?", (queue,)),
        ("DELETE FROM seen WHERE key = ?", (queue,)),
        ("DELETE FROM session_states WHERE key = ?", (queue,)),
    ]


def delete_entity(key: int, queues: tuple[int, ...]) -> list[Change]:
    """The changes that delete an entity with its queues."""
    changes: list[Change] = [("DELETE FROM entities WHERE key = ?", (key,))]
    for queue in queues:
        changes += delete_queue(queue)
    return changes


def stored_queues(reader: sqlite3.Connection) -> list[int]:
    """The queues that have messages, with one index lookup per queue."""
    queues: list[int] = []
    key = 0
    while row := reader.execute("SELECT id FROM messages WHERE id >= ? ORDER BY id LIMIT 1", (key,)).fetchone():
        queues.append(queue_of(row[0]))
        key = message_key(queues[-1] + 1, 0)
    return queues
