"""Accepts arriving messages: checks, numbers and stores them, and activates scheduled ones.

Every change goes to the store first. Clients get their answer, and receivers their message, after the commit.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from ..protocol.error_conditions import (
    ARGUMENT_ERROR,
    INTERNAL_ERROR,
    MESSAGE_NOT_FOUND,
    MESSAGE_TOO_LARGE,
    QUOTA_EXCEEDED,
    SERVER_BUSY,
    BrokerError,
    not_found,
)
from ..storage.schema import COLUMNS, DELETE, FORGET, MAX_SEQUENCE, REMEMBER, RESERVE, Change, State, message_key
from ..storage.store import Store, StoreError
from .limits import Limits
from .locks import TokenSource
from .message import Arrival, Message
from .window import from_row, read_message

PEEK_BYTES = 1 << 20
MAX_TIME = (1 << 63) - 1  # the store's largest integer
RETRY_SECONDS = 1.0  # after a failed write, such as on a full disk

# A deferred message does not expire until it is requested.
_PEEK = (
    f"SELECT {COLUMNS} FROM stored WHERE id BETWEEN ? AND ?"
    f" AND (expires_at IS NULL OR expires_at > ? OR state = {State.DEFERRED:d}) ORDER BY id LIMIT ?"
)
_PEEK_SESSION = _PEEK.replace("WHERE", "WHERE session = ? AND")

Done = Callable[[BrokerError | None], None]

_ACTIVE, _SCHEDULED = State.ACTIVE, State.SCHEDULED  # enum member access is slow


@dataclass(slots=True)
class Counters:
    """How many messages a queue holds by state, their bytes, and its last sequence number."""

    active: int = 0
    deferred: int = 0
    scheduled: int = 0
    bytes: int = 0
    last_sequence: int = 0


@dataclass(slots=True)
class Activity:
    """Event counts of a queue since the namespace started.

    A poll is a receive that ended empty: the client took its credit back and no message had used it.
    """

    received: int = 0
    pings: int = 0
    delivered: int = 0
    completed: int = 0
    polls: int = 0


@dataclass(slots=True)
class Environment:
    """The services that all queues of a namespace share."""

    store: Store
    now_ms: Callable[[], int]
    delivers_pings: Callable[[], bool]
    watch_times: Callable[[Message], None]
    #: The error of the fault, if any, that blocks forwarding to an entity.
    forwarding_refused: Callable[[str], BrokerError | None]
    tokens: TokenSource = field(default_factory=TokenSource)


class PendingIds:
    """Message ids that one commit is storing for duplicate detection.

    Until it is committed, a second message with one of these ids depends on the first: it is a duplicate only if the
    first is stored.
    """

    __slots__ = ("depends_on", "error", "ids", "unit")

    def __init__(self, unit: object | None) -> None:
        #: Identifies the unit of changes it is committed with; None for its own.
        self.unit = unit
        self.ids: list[str] = []
        self.depends_on: list[PendingIds] = []
        self.error: StoreError | None = None


def store_failure(error: StoreError) -> BrokerError:
    """The answer to a client whose change could not be stored."""
    return BrokerError(INTERNAL_ERROR, f"The message was not stored: {error}.")


class Inbox(ABC):
    """The sending side of one entity: arriving and scheduled messages."""

    def __init__(
        self,
        key: int,
        path: str,
        limits: Limits,
        environment: Environment,
        counters: Counters,
    ) -> None:
        self.key = key
        self.path = path
        self.limits = limits
        self.counters = counters
        self.env = environment
        self.activity = Activity()
        self.accessed_at = environment.now_ms() / 1000
        self._pending_bytes = 0
        #: Sequence numbers that are locked or being removed: not available to other receivers.
        self._held: set[int] = set()
        self._pending_ids: dict[str, PendingIds] = {}
        self._loop = asyncio.get_running_loop()
        #: Whether the entity was deleted or the namespace is stopping.
        self.is_closed = False

    # ---- arriving ----

    def check(self, arrivals: Sequence[Arrival]) -> None:
        """Raise `BrokerError` if the entity cannot take these messages."""
        if self.is_closed:
            raise not_found(self.path)
        size = 0
        for arrival in arrivals:
            if arrival.size > self.limits.max_message_bytes:
                raise BrokerError(
                    MESSAGE_TOO_LARGE,
                    f"The message has {arrival.size} bytes; the limit of '{self.path}' is"
                    f" {self.limits.max_message_bytes} bytes.",
                )
            size += arrival.size
        self.check_quota(size)

    def check_quota(self, size: int) -> None:
        """Raise `BrokerError` if `size` more bytes would exceed the entity's maximum size."""
        used = self.used_bytes
        if used + size > self.limits.max_bytes:
            raise BrokerError(
                QUOTA_EXCEEDED,
                f"The maximum entity size has been reached or exceeded for '{self.path}':"
                f" {used} of {self.limits.max_bytes} bytes are used.",
            )

    @property
    def used_bytes(self) -> int:
        """The bytes that count towards the maximum size."""
        return self.counters.bytes + self._pending_bytes

    def take(self, arrivals: Sequence[Arrival], done: Done) -> None:
        """Store messages that passed `check`; `done` runs after the commit."""
        now = self.env.now_ms()
        self.accessed_at = now / 1000
        changes: list[Change] = []
        stored: list[Message] = []
        pending = PendingIds(self.env.store.joined) if self.limits.duplicate_window_ms is not None else None
        for arrival in arrivals:
            if arrival.is_ping and not self.env.delivers_pings():
                self.activity.pings += 1
            elif pending is not None and self.is_duplicate(arrival, now, changes, pending):
                continue
            else:
                message = self.admit(arrival, now)
                stored.append(message)
                changes.append(message.insertion(self.key))
        self.submit_arrivals(stored, changes, pending, done)

    def admit(self, arrival: Arrival, now: int) -> Message:
        """The message with its sequence number and state."""
        state = _SCHEDULED if arrival.due_at is not None and arrival.due_at > now else _ACTIVE
        counters = self.counters
        counters.last_sequence += 1  # `next_sequence` inlined: this runs for every message
        return arrival.stored(counters.last_sequence, now, state, self.limits.default_ttl_ms)

    def next_sequence(self) -> int:
        self.counters.last_sequence += 1
        return self.counters.last_sequence

    def submit_arrivals(
        self, stored: list[Message], changes: list[Change], pending: PendingIds | None, done: Done, size: int = 0
    ) -> None:
        """Store the messages; `size` is the size of other messages in `changes`."""
        for message in stored:
            size += message.size
        self._pending_bytes += size
        self.env.store.submit(changes, partial(self._committed, stored, pending, size, done), size)

    def _committed(
        self, stored: list[Message], pending: PendingIds | None, size: int, done: Done, error: StoreError | None
    ) -> None:
        self._pending_bytes -= size
        if error is None:
            self.activity.received += len(stored)
            for message in stored:
                self.arrived(message)
        if pending is not None:
            error = self._resolve_ids(pending, error)
        done(None if error is None else store_failure(error))

    def _resolve_ids(self, pending: PendingIds, error: StoreError | None) -> StoreError | None:
        """Clear ids whose commit ended; returns the error of that commit or of one it depended on."""
        pending.error = error
        for message_id in pending.ids:
            self._pending_ids.pop(message_id, None)
        return error or next((first.error for first in pending.depends_on if first.error is not None), None)

    def arrived(self, message: Message) -> None:
        """Count a committed message and make it available, or watch its time."""
        counters = self.counters
        counters.bytes += message.size
        if message.due_at is not None or message.expires_at is not None:
            self.env.watch_times(message)
        if message.state == _SCHEDULED:
            counters.scheduled += 1
            return
        counters.active += 1
        self.make_available(message)

    def is_duplicate(self, arrival: Arrival, now: int, changes: list[Change], pending: PendingIds) -> bool:
        """Whether the message's id was seen within the duplicate detection window; if not, record the id.

        Raises `BrokerError` if that depends on a commit in progress and the message is part of a larger unit: the rest
        of the unit could then be stored without it.
        """
        window = self.limits.duplicate_window_ms
        if window is None or arrival.message_id is None:
            return False
        first = self._pending_ids.get(arrival.message_id)
        if first is not None:
            if first is not pending:
                if pending.unit is not None and first.unit is not pending.unit:
                    for message_id in pending.ids:
                        del self._pending_ids[message_id]
                    raise BrokerError(SERVER_BUSY, f"A message with the id '{arrival.message_id}' is being stored.")
                pending.depends_on.append(first)
            return True
        row = self.env.store.reader.execute(
            "SELECT at FROM seen WHERE key = ? AND message_id = ?", (self.key, arrival.message_id)
        ).fetchone()
        if row is not None and row[0] > now - window:
            return True
        self._pending_ids[arrival.message_id] = pending
        pending.ids.append(arrival.message_id)
        changes.append((REMEMBER, (self.key, arrival.message_id, now)))
        return False

    def forget_seen(self) -> None:
        """Delete message ids that are older than the duplicate detection window."""
        if self.limits.duplicate_window_ms is not None:
            cutoff = self.env.now_ms() - self.limits.duplicate_window_ms
            self.env.store.submit([(FORGET, (self.key, cutoff))], lambda error: None)

    @abstractmethod
    def make_available(self, message: Message) -> None:
        """Offer a committed message to receivers."""

    def _removal(self, message: Message) -> Change:
        return DELETE, (message_key(self.key, message.sequence),)

    def _forget(self, state: int, size: int) -> None:
        counters = self.counters
        counters.bytes -= size
        if state == State.ACTIVE:
            counters.active -= 1
        elif state == State.DEFERRED:
            counters.deferred -= 1
        else:
            counters.scheduled -= 1

    # ---- by sequence number ----

    def peek(self, start: int, count: int, session: str | None = None) -> list[Message]:
        """Up to `count` messages from sequence number `start`, including locked, deferred and scheduled ones."""
        low, high = message_key(self.key, min(max(0, start), MAX_SEQUENCE)), message_key(self.key, MAX_SEQUENCE)
        now = self.env.now_ms()
        if session is None:
            rows = self.env.store.reader.execute(_PEEK, (low, high, now, count))
        else:
            rows = self.env.store.reader.execute(_PEEK_SESSION, (session, low, high, now, count))
        messages: list[Message] = []
        size = 0
        for row in rows:
            message = from_row(row)
            size += message.size
            if messages and size > PEEK_BYTES:
                rows.close()
                break
            messages.append(message)
        return messages

    def remove_messages(self, messages: list[Message], done: Done) -> None:
        """Delete messages that were found by their sequence number."""
        for message in messages:
            self._held.add(message.sequence)

        def deleted(error: StoreError | None) -> None:
            for message in messages:
                self._held.discard(message.sequence)
                if error is None:
                    self._forget(message.state, message.size)
                else:
                    self.env.watch_times(message)
            done(None if error is None else store_failure(error))

        self.env.store.submit([self._removal(message) for message in messages], deleted)

    def schedule(self, arrivals: Sequence[Arrival], done: Done) -> list[int]:
        """Store scheduled messages; returns their sequence numbers, which are valid until the messages are due.

        A ping or a duplicate also gets a number, with no message behind it.
        """
        if any(arrival.due_at is None for arrival in arrivals):
            raise BrokerError(ARGUMENT_ERROR, "A scheduled message needs x-opt-scheduled-enqueue-time.")
        now = self.env.now_ms()
        stored: list[Message] = []
        changes: list[Change] = []
        pending = PendingIds(self.env.store.joined)
        numbers = [self.next_sequence() for _ in arrivals]
        for number, arrival in zip(numbers, arrivals, strict=True):
            is_ping = arrival.is_ping and not self.env.delivers_pings()
            if is_ping or self.is_duplicate(arrival, now, changes, pending):
                self.activity.pings += is_ping
                changes.append((RESERVE, (self.key, number)))  # the number must not be reused, not even after a crash
            else:
                message = arrival.stored(number, now, State.SCHEDULED, self.limits.default_ttl_ms)
                stored.append(message)
                changes.append(message.insertion(self.key))
        self.submit_arrivals(stored, changes, pending, done)
        return numbers

    def cancel(self, sequences: Sequence[int], done: Done) -> None:
        """Delete scheduled messages; raises `BrokerError` if one of them is not (or no longer) scheduled."""
        messages = []
        for sequence in dict.fromkeys(sequences):
            message = None
            if 0 < sequence <= MAX_SEQUENCE:
                message = read_message(self.env.store.reader, self.key, sequence)
            if message is None or message.state != State.SCHEDULED or sequence in self._held:
                raise BrokerError(MESSAGE_NOT_FOUND, f"There is no scheduled message with number {sequence}.")
            messages.append(message)
        self.remove_messages(messages, done)

    # ---- timed events ----

    def activate(self, sequence: int) -> None:
        """Move a scheduled message that is due into the queue, with a new sequence number."""
        message = self._due(sequence)
        if message is None:
            return
        active = self.activated(message)
        changes = [self._removal(message), active.insertion(self.key)]

        def committed(error: StoreError | None) -> None:
            self._held.discard(sequence)
            if error is None:
                self._forget(State.SCHEDULED, message.size)
                self.arrived(active)
            else:
                self.watch_later(message)

        self.env.store.submit(changes, committed, active.size)

    def watch_later(self, message: Message) -> None:
        """Activate or expire a message again after a failed write, with a delay."""
        self._loop.call_later(RETRY_SECONDS, self.env.watch_times, message)

    def _due(self, sequence: int) -> Message | None:
        if sequence in self._held:
            return None
        message = read_message(self.env.store.reader, self.key, sequence)
        if message is None or message.state != State.SCHEDULED:
            return None
        self._held.add(sequence)
        return message

    def activated(self, message: Message) -> Message:
        """A copy of a due message as this queue stores it."""
        active = message.copy()
        active.sequence = self.next_sequence()
        active.state = State.ACTIVE
        active.due_at = None
        active.enqueued_at = max(self.env.now_ms(), message.due_at or 0)
        # A subscription has its own time-to-live limit, which the topic did not apply.
        lifetimes = [] if self.limits.default_ttl_ms is None else [self.limits.default_ttl_ms]
        if message.expires_at is not None:
            lifetimes.append(message.expires_at - message.enqueued_at)
        active.expires_at = min(active.enqueued_at + min(lifetimes), MAX_TIME) if lifetimes else None
        return active
