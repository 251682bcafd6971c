"""What every entity does with messages that arrive: check, number and store them, and keep those that wait.

Every change goes to the store first; what a client is told, and what a receiver is given, follows the commit.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from .errors import (
    ARGUMENT_ERROR,
    INTERNAL_ERROR,
    MESSAGE_NOT_FOUND,
    MESSAGE_TOO_LARGE,
    QUOTA_EXCEEDED,
    SERVER_BUSY,
    BrokerError,
    not_found,
)
from .limits import Limits
from .locks import TokenSource
from .message import Arrival, Message
from .schema import COLUMNS, DELETE, FORGET, MAX_SEQUENCE, REMEMBER, RESERVE, Change, State, message_key
from .store import Store, StoreError
from .window import from_row, read_message

PEEK_BYTES = 1 << 20
MAX_TIME = (1 << 63) - 1  # what the store can keep
RETRY_SECONDS = 1.0  # after the store could not write, as on a full disk

# A deferred message stays until it is asked for, however old it is.
_PEEK = (
    f"SELECT {COLUMNS} FROM stored WHERE id BETWEEN ? AND ?"
    f" AND (expires_at IS NULL OR expires_at > ? OR state = {State.DEFERRED:d}) ORDER BY id LIMIT ?"
)
_PEEK_SESSION = _PEEK.replace("WHERE", "WHERE session = ? AND")

Done = Callable[[BrokerError | None], None]

_ACTIVE, _SCHEDULED = State.ACTIVE, State.SCHEDULED  # a class is slow to ask for its members


@dataclass(slots=True)
class Counters:
    active: int = 0
    deferred: int = 0
    scheduled: int = 0
    bytes: int = 0
    last_sequence: int = 0


@dataclass(slots=True)
class Activity:
    """What has happened at a queue since the start.

    A poll is a receive that waited in vain: its credit was asked for again and no message had come for it.
    """

    received: int = 0
    pings: int = 0
    delivered: int = 0
    completed: int = 0
    polls: int = 0


@dataclass(slots=True)
class Environment:
    """What every queue of a namespace shares."""

    store: Store
    now_ms: Callable[[], int]
    delivers_pings: Callable[[], bool]
    watch_times: Callable[[Message], None]
    #: The fault, if any, that refuses what is forwarded to an entity.
    forwarding_refused: Callable[[str], BrokerError | None]
    tokens: TokenSource = field(default_factory=TokenSource)


class Remembered:
    """The message ids that one unit stores for duplicate detection.

    Until that is done, a second message with one of them relies on the first: it is a duplicate only if the first
    gets stored.
    """

    __slots__ = ("error", "ids", "relies_on", "unit")

    def __init__(self, unit: object | None) -> None:
        #: With what else it is committed.
        self.unit = unit
        self.ids: list[str] = []
        self.relies_on: list[Remembered] = []
        self.error: StoreError | None = None


def store_failure(error: StoreError) -> BrokerError:
    return BrokerError(INTERNAL_ERROR, f"The message was not stored: {error}.")


class Inbox(ABC):
    """The messages of one entity, as they arrive and while they wait to be due."""

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
        #: Sequence numbers that are locked or on their way out: nobody else may have them.
        self._held: set[int] = set()
        self._unseen: dict[str, Remembered] = {}
        self._loop = asyncio.get_running_loop()
        #: Whether it was deleted, or the namespace stops.
        self.is_closed = False

    # ---- arriving ----

    def check(self, arrivals: Sequence[Arrival]) -> None:
        """Raise `BrokerError` if the queue cannot take these messages."""
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
        """Raise `BrokerError` if there is no room for `size` more bytes."""
        used = self.used_bytes
        if used + size > self.limits.max_bytes:
            raise BrokerError(
                QUOTA_EXCEEDED,
                f"The maximum entity size has been reached or exceeded for '{self.path}':"
                f" {used} of {self.limits.max_bytes} bytes are used.",
            )

    @property
    def used_bytes(self) -> int:
        """What counts towards the size limit."""
        return self.counters.bytes + self._pending_bytes

    def take(self, arrivals: Sequence[Arrival], done: Done) -> None:
        """Store messages that `check` has passed; `done` runs after the commit."""
        now = self.env.now_ms()
        self.accessed_at = now / 1000
        changes: list[Change] = []
        stored: list[Message] = []
        remembered = Remembered(self.env.store.joined) if self.limits.duplicate_window_ms is not None else None
        for arrival in arrivals:
            if arrival.is_ping and not self.env.delivers_pings():
                self.activity.pings += 1
            elif remembered is not None and self.is_duplicate(arrival, now, changes, remembered):
                continue
            else:
                message = self.admit(arrival, now)
                stored.append(message)
                changes.append(message.insertion(self.key))
        self.submit_arrivals(stored, changes, remembered, done)

    def admit(self, arrival: Arrival, now: int) -> Message:
        """Give a message its sequence number."""
        state = _SCHEDULED if arrival.due_at is not None and arrival.due_at > now else _ACTIVE
        counters = self.counters
        counters.last_sequence += 1  # `next_sequence` without the call: every message comes by here
        return arrival.stored(counters.last_sequence, now, state, self.limits.default_ttl_ms)

    def next_sequence(self) -> int:
        self.counters.last_sequence += 1
        return self.counters.last_sequence

    def submit_arrivals(
        self, stored: list[Message], changes: list[Change], remembered: Remembered | None, done: Done, size: int = 0
    ) -> None:
        """Store the messages; `size` is that of what else is in `changes`."""
        for message in stored:
            size += message.size
        self._pending_bytes += size
        self.env.store.submit(changes, partial(self._committed, stored, remembered, size, done), size)

    def _committed(
        self, stored: list[Message], remembered: Remembered | None, size: int, done: Done, error: StoreError | None
    ) -> None:
        self._pending_bytes -= size
        if error is None:
            self.activity.received += len(stored)
            for message in stored:
                self.arrived(message)
        if remembered is not None:
            error = self._remembered(remembered, error)
        done(None if error is None else store_failure(error))

    def _remembered(self, remembered: Remembered, error: StoreError | None) -> StoreError | None:
        """The ids are stored, or could not be; returns why the messages, or those they relied on, were not."""
        remembered.error = error
        for message_id in remembered.ids:
            self._unseen.pop(message_id, None)
        return error or next((one.error for one in remembered.relies_on if one.error is not None), None)

    def arrived(self, message: Message) -> None:
        """A message of this queue is committed."""
        counters = self.counters
        counters.bytes += message.size
        if message.due_at is not None or message.expires_at is not None:
            self.env.watch_times(message)
        if message.state == _SCHEDULED:
            counters.scheduled += 1
            return
        counters.active += 1
        self.make_available(message)

    def is_duplicate(self, arrival: Arrival, now: int, changes: list[Change], remembered: Remembered) -> bool:
        """Whether the message was seen within the duplicate detection window; if not, remember it.

        Raises `BrokerError` if nobody can say yet, and what belongs to the message would be stored without it.
        """
        window = self.limits.duplicate_window_ms
        if window is None or arrival.message_id is None:
            return False
        pending = self._unseen.get(arrival.message_id)
        if pending is not None:
            if pending is not remembered:
                if remembered.unit is not None and pending.unit is not remembered.unit:
                    for message_id in remembered.ids:
                        del self._unseen[message_id]
                    raise BrokerError(SERVER_BUSY, f"A message with the id '{arrival.message_id}' is being stored.")
                remembered.relies_on.append(pending)
            return True
        row = self.env.store.reader.execute(
            "SELECT at FROM seen WHERE key = ? AND message_id = ?", (self.key, arrival.message_id)
        ).fetchone()
        if row is not None and row[0] > now - window:
            return True
        self._unseen[arrival.message_id] = remembered
        remembered.ids.append(arrival.message_id)
        changes.append((REMEMBER, (self.key, arrival.message_id, now)))
        return False

    def forget_seen(self) -> None:
        """Drop what duplicate detection no longer needs."""
        if self.limits.duplicate_window_ms is not None:
            cutoff = self.env.now_ms() - self.limits.duplicate_window_ms
            self.env.store.submit([(FORGET, (self.key, cutoff))], lambda error: None)

    @abstractmethod
    def make_available(self, message: Message) -> None:
        """A message is committed and may be handed out."""

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
        """Up to `count` messages from sequence number `start` on, locked, deferred and scheduled ones too."""
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
        """Remove messages that were found by their sequence number."""
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
        """Store messages for later; returns their sequence numbers, good until they are due.

        A ping or a duplicate gets a number too, with nothing behind it.
        """
        if any(arrival.due_at is None for arrival in arrivals):
            raise BrokerError(ARGUMENT_ERROR, "A scheduled message needs x-opt-scheduled-enqueue-time.")
        now = self.env.now_ms()
        stored: list[Message] = []
        changes: list[Change] = []
        remembered = Remembered(self.env.store.joined)
        numbers = [self.next_sequence() for _ in arrivals]
        for number, arrival in zip(numbers, arrivals, strict=True):
            is_ping = arrival.is_ping and not self.env.delivers_pings()
            if is_ping or self.is_duplicate(arrival, now, changes, remembered):
                self.activity.pings += is_ping
                changes.append((RESERVE, (self.key, number)))  # nobody else may get the number, after a crash either
            else:
                message = arrival.stored(number, now, State.SCHEDULED, self.limits.default_ttl_ms)
                stored.append(message)
                changes.append(message.insertion(self.key))
        self.submit_arrivals(stored, changes, remembered, done)
        return numbers

    def cancel(self, sequences: Sequence[int], done: Done) -> None:
        """Remove scheduled messages; raises if one of them is not scheduled (any more)."""
        messages = []
        for sequence in dict.fromkeys(sequences):
            message = None
            if 0 < sequence <= MAX_SEQUENCE:
                message = read_message(self.env.store.reader, self.key, sequence)
            if message is None or message.state != State.SCHEDULED or sequence in self._held:
                raise BrokerError(MESSAGE_NOT_FOUND, f"There is no scheduled message with number {sequence}.")
            messages.append(message)
        self.remove_messages(messages, done)

    # ---- called when a time has come ----

    def activate(self, sequence: int) -> None:
        """A scheduled message is due: it joins the queue with a new sequence number."""
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
        """What its time asks for could not be stored: try again, but not at once."""
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
        """A copy of a due message as it joins this queue."""
        active = message.copy()
        active.sequence = self.next_sequence()
        active.state = State.ACTIVE
        active.due_at = None
        active.enqueued_at = max(self.env.now_ms(), message.due_at or 0)
        # A subscription has a limit of its own, which the topic did not know when it took the message.
        lifetimes = [] if self.limits.default_ttl_ms is None else [self.limits.default_ttl_ms]
        if message.expires_at is not None:
            lifetimes.append(message.expires_at - message.enqueued_at)
        active.expires_at = min(active.enqueued_at + min(lifetimes), MAX_TIME) if lifetimes else None
        return active
