"""The part of a queue that is in memory: its head, read from the store in order, a bounded piece at a time.

A queue of a million messages lives on the disk; only what receivers will get next is here. A message that was
just committed joins the window directly if nothing older is still on the disk, so a queue that keeps up never
reads back what it wrote.
"""

from __future__ import annotations

import heapq
import sqlite3
from collections import deque
from collections.abc import Container

from .message import Message
from .schema import COLUMNS, State, message_key, sequence_of
from .store import Store

LOAD_MESSAGES = 256
MAX_MESSAGES = 1024
MAX_BYTES = 1 << 20

_BY_KEY = f"SELECT {COLUMNS} FROM stored WHERE id = ?"
# By whether messages were removed alone: only then every row is worth the question, and what is gone the reading.
_NEXT = {
    gone: f"SELECT {COLUMNS} FROM {table} WHERE id > ? AND id <= ? AND state = 0 ORDER BY id LIMIT ?"
    for gone, table in ((False, "messages"), (True, "stored"))
}
_NEXT_OF_SESSION = {gone: sql.replace("WHERE", "WHERE session = ? AND") for gone, sql in _NEXT.items()}
_FREE = (
    "SELECT id, state, session, enqueued_at, due_at, expires_at, delivery_count, size, NULL, NULL, NULL, x''"
    " FROM stored WHERE id BETWEEN ? AND ? AND state < 2 AND enqueued_at < ? AND (? IS NULL OR session = ?)"
    " ORDER BY id"
)


def read_message(reader: sqlite3.Connection, queue: int, sequence: int) -> Message | None:
    """A committed message, whatever its state."""
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
    """The oldest active or deferred messages that are not held, enqueued before a time; without their content."""
    low, high = message_key(queue, 0), message_key(queue, newest)
    rows = reader.execute(_FREE, (low, high, before, session, session))
    found: list[Message] = []
    for row in rows:
        message = from_row(row)
        if message.sequence not in held:
            found.append(message)
            if len(found) == count:
                rows.close()
                break
    return found


def from_row(row: tuple[int, ...]) -> Message:
    return Message(sequence_of(row[0]), *row[1:])  # type: ignore[arg-type]


class Window:
    """The next messages of a queue, or of one session of a queue, in sequence order.

    `held` are the sequence numbers that are locked or on their way out: they are in the store as active
    messages, and must not be handed out again.
    """

    def __init__(self, store: Store, queue: int, held: Container[int], session: str | None = None) -> None:
        self._reader = store.reader
        self._gone = store.removed
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
        """Begin at the head, knowing that everything up to `newest` is committed."""
        self._ready.clear()
        self._bytes = 0
        self._returned.clear()
        self._removed.clear()
        self._cursor = 0
        self._newest = newest

    def offer(self, message: Message) -> None:
        """A message was committed behind all others."""
        if self._cursor == self._newest and len(self._ready) < MAX_MESSAGES and self._bytes + message.size <= MAX_BYTES:
            self._ready.append(message)
            self._bytes += message.size
            self._cursor = message.sequence
        self._newest = message.sequence

    def give_back(self, sequence: int) -> None:
        """A message is available again, at its old place."""
        if sequence <= self._cursor:
            heapq.heappush(self._returned, sequence)

    def remove(self, sequence: int) -> None:
        """A message that may be in the window is gone."""
        if sequence <= self._cursor:
            self._removed.add(sequence)

    def next(self) -> Message | None:
        """Take the next available message out of the window."""
        while True:
            # A part that is all held brings nothing: what is available may lie behind it.
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
        if self._session is None:
            rows = self._reader.execute(_NEXT[bool(self._gone)], (low, high, LOAD_MESSAGES))
        else:
            rows = self._reader.execute(_NEXT_OF_SESSION[bool(self._gone)], (self._session, low, high, LOAD_MESSAGES))
        seen = 0
        for row in rows:
            seen += 1
            message = from_row(row)
            self._cursor = message.sequence
            if message.sequence not in self._held:
                self._ready.append(message)
                self._bytes += message.size
            if self._bytes > MAX_BYTES:
                rows.close()
                return
        if seen < LOAD_MESSAGES:
            self._cursor = self._newest
