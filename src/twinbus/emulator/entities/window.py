"""Keeps the head of a queue in memory, read from the store in bounded chunks.

A queue of a million messages stays on disk; only the next messages to deliver are here. A newly committed message
joins the window directly if nothing older is still on disk, so a queue that keeps up never reads back what it wrote.
"""

from __future__ import annotations

import heapq
import sqlite3
from collections import deque
from collections.abc import Container

from ..storage.schema import COLUMNS, State, message_key, sequence_of
from ..storage.store import Store
from .message import Message

LOAD_MESSAGES = 256
MAX_MESSAGES = 1024
MAX_BYTES = 1 << 20

_BY_KEY = f"SELECT {COLUMNS} FROM stored WHERE id = ?"
# By whether the store has noted removals: only then is it worth filtering every row (the view `stored`).
_NEXT = {
    has_removals: f"SELECT {COLUMNS} FROM {table} WHERE id > ? AND id <= ? AND state = 0 ORDER BY id LIMIT ?"
    for has_removals, table in ((False, "messages"), (True, "stored"))
}
_NEXT_OF_SESSION = {has_removals: sql.replace("WHERE", "WHERE session = ? AND") for has_removals, sql in _NEXT.items()}
_FREE = (
    "SELECT id, state, session, enqueued_at, due_at, expires_at, delivery_count, size, NULL, NULL, NULL, x''"
    " FROM stored WHERE id BETWEEN ? AND ? AND state < 2 AND enqueued_at < ? AND (? IS NULL OR session = ?)"
    " ORDER BY id"
)


def read_message(reader: sqlite3.Connection, queue: int, sequence: int) -> Message | None:
    """Read a committed message in any state; None if there is none."""
    row = reader.execute(_BY_KEY, (message_key(queue, sequence),)).fetchone()
    return from_row(row) if row else None


def find_free(
    reader: sqlite3.Connection,
    queue: int,
    newest: int,
    before: int,
    count: int,
    held: Container[int],
    session: str | None,
) -> list[Message]:
    """The oldest `count` active or deferred messages that are not held, enqueued before a time; without content."""
    low, high = message_key(queue, 0), message_key(queue, newest)
    rows = reader.execute(_FREE, (low, high, before, session, session))
    messages: list[Message] = []
    for row in rows:
        message = from_row(row)
        if message.sequence not in held:
            messages.append(message)
            if len(messages) == count:
                rows.close()
                break
    return messages


def from_row(row: tuple[int, ...]) -> Message:
    return Message(sequence_of(row[0]), *row[1:])  # type: ignore[arg-type]


class Window:
    """The next messages of a queue, or of one session of a queue, in sequence order.

    `held` are the sequence numbers that are locked or being removed: the store still has them as active messages, and
    they must not be delivered again.
    """

    def __init__(self, store: Store, queue: int, held: Container[int], session: str | None = None) -> None:
        self._reader = store.reader
        self._noted_removals = store.removed
        self._queue = queue
        self._held = held
        self._session = session
        self._ready: deque[Message] = deque()
        self._bytes = 0
        self._returned: list[int] = []
        self._removed: set[int] = set()
        self._cursor = 0
        self._newest = 0

    def start(self, newest: int) -> None:
        """Start at the head; everything up to sequence number `newest` is committed."""
        self._ready.clear()
        self._bytes = 0
        self._returned.clear()
        self._removed.clear()
        self._cursor = 0
        self._newest = newest

    def offer(self, message: Message) -> None:
        """Add a message that was just committed at the end of the queue, if the window reaches that far."""
        if self._cursor == self._newest and len(self._ready) < MAX_MESSAGES and self._bytes + message.size <= MAX_BYTES:
            self._ready.append(message)
            self._bytes += message.size
            self._cursor = message.sequence
        self._newest = message.sequence

    def give_back(self, sequence: int) -> None:
        """Make a message available again, at its original position."""
        if sequence <= self._cursor:
            heapq.heappush(self._returned, sequence)

    def remove(self, sequence: int) -> None:
        """Skip a message that was deleted and may be in the window."""
        if sequence <= self._cursor:
            self._removed.add(sequence)

    def next(self) -> Message | None:
        """Take the next available message; None if there is none."""
        while True:
            # A chunk may hold nothing but held messages, with available ones behind it.
            while not self._ready and self._cursor < self._newest:
                self._load()
            if self._returned and (not self._ready or self._returned[0] < self._ready[0].sequence):
                sequence = heapq.heappop(self._returned)
                message = None
                if sequence not in self._removed and sequence not in self._held:
                    message = read_message(self._reader, self._queue, sequence)
            elif self._ready:
                message = self._ready.popleft()
                sequence = message.sequence
                self._bytes -= message.size
            else:
                return None
            if sequence in self._removed:
                self._removed.discard(sequence)
            elif message is not None and message.state == State.ACTIVE:
                return message

    def _load(self) -> None:
        low, high = message_key(self._queue, self._cursor), message_key(self._queue, self._newest)
        has_removals = bool(self._noted_removals)
        if self._session is None:
            rows = self._reader.execute(_NEXT[has_removals], (low, high, LOAD_MESSAGES))
        else:
            rows = self._reader.execute(_NEXT_OF_SESSION[has_removals], (self._session, low, high, LOAD_MESSAGES))
        count = 0
        for row in rows:
            count += 1
            message = from_row(row)
            self._cursor = message.sequence
            if message.sequence not in self._held:
                self._ready.append(message)
                self._bytes += message.size
            if self._bytes > MAX_BYTES:
                rows.close()
                return
        if count < LOAD_MESSAGES:
            self._cursor = self._newest
