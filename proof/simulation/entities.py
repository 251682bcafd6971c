"""Simulates a queue in memory: locks, sessions, duplicate detection, expiry, scheduling, deferral, dead letters.

Stores the bytes that production code sends and returns the bytes that it will read, built by the emulator's message
classes. Never blocks; time comes from the loop.
"""

from __future__ import annotations

import heapq
import itertools
import uuid
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from twinbus.amqp.client.management import Settlement
from twinbus.emulator.entities.message import Arrival, Message
from twinbus.emulator.protocol.error_conditions import MESSAGE_LOCK_LOST, MESSAGE_NOT_FOUND, NOT_ALLOWED
from twinbus.emulator.storage.schema import State

#: Settlement of a message that is returned without increasing its delivery count.
RELEASED = "released"


class RefusedError(Exception):
    """The namespace refused a request; `condition` is its AMQP error condition."""

    def __init__(self, condition: str) -> None:
        super().__init__(condition)
        self.condition = condition


class HeldMessage(NamedTuple):
    """A locked message."""

    token: uuid.UUID
    message: Message
    locked_until: int

    @property
    def payload(self) -> bytes:
        return self.message.encoded(self.token.bytes, self.locked_until)


class LockHolder(Protocol):
    """A process that receives locked messages."""

    #: Ids of all messages it received, however they were settled.
    received_ids: dict[str, None]


class ReceiverLink(Protocol):
    """A receiver link at the namespace's end."""

    @property
    def holder(self) -> LockHolder:
        """The process that holds the locks."""

    def can_receive(self) -> bool:
        """Whether there is credit and an open connection."""

    def push(self, held: HeldMessage) -> None:
        """Send a message that was locked for this link."""


@dataclass(slots=True)
class _Lock:
    sequence: int
    timer: TimerHandle


class DeadLetter(NamedTuple):
    message_id: str
    reason: str
    at: float


@dataclass(slots=True)
class SimulatedQueue:
    """One queue of a namespace; `now_ms` is that namespace's clock."""

    path: str
    loop: AbstractEventLoop
    now_ms: Callable[[], int]
    lock_seconds: float = 60.0
    requires_session: bool = False
    #: In seconds; `None` without duplicate detection.
    duplicate_window: float | None = None
    shows_pings: bool = False
    #: Properties as administration set them.
    properties: dict[str, Any] = field(default_factory=dict)
    #: Called when a message may be available.
    on_available: Callable[[], None] = lambda: None
    #: Called with the id of each message that was stored.
    on_stored: Callable[[str], None] = lambda message_id: None
    messages: dict[int, Message] = field(default_factory=dict)
    ids: dict[int, str] = field(default_factory=dict)
    dead: list[DeadLetter] = field(default_factory=list)
    #: The ids of messages that were completed, in order.
    completed: list[str] = field(default_factory=list)
    receivers: list[ReceiverLink] = field(default_factory=list)
    _available: list[int] = field(default_factory=list)
    _locks: dict[uuid.UUID, _Lock] = field(default_factory=dict)
    _message_ids: dict[uuid.UUID, str] = field(default_factory=dict)
    _locked: set[int] = field(default_factory=set)
    #: Timers of scheduled messages.
    _due: dict[int, TimerHandle] = field(default_factory=dict)
    _seen: dict[str, int] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _tokens: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    # ---- arriving ----

    def put(self, arrivals: Sequence[Arrival]) -> list[int]:
        """Store messages, all or none; return their sequence numbers. Pings and duplicates are not stored."""
        if self.requires_session and any(arrival.session is None for arrival in arrivals):
            raise RefusedError(NOT_ALLOWED)
        numbers = []
        for arrival in arrivals:
            number = next(self._numbers)
            numbers.append(number)
            if (arrival.is_ping and not self.shows_pings) or self._is_duplicate(arrival):
                continue
            now = self.now_ms()
            is_due = arrival.due_at is None or arrival.due_at <= now
            state = State.ACTIVE if is_due else State.SCHEDULED
            self.messages[number] = message = arrival.stored(number, now, state, None)
            self.ids[number] = arrival.message_id or ""
            self.on_stored(self.ids[number])
            if is_due:
                heapq.heappush(self._available, number)
            else:
                assert message.due_at is not None
                self._due[number] = self.loop.call_later((message.due_at - now) / 1000, self._activate, number)
        self.dispatch()
        return numbers

    def _is_duplicate(self, arrival: Arrival) -> bool:
        if self.duplicate_window is None or arrival.message_id is None:
            return False
        now, first_seen = self.now_ms(), self._seen.get(arrival.message_id)
        if first_seen is not None and now - first_seen < self.duplicate_window * 1000:
            return True
        self._seen[arrival.message_id] = now
        return False

    def _activate(self, number: int) -> None:
        """Move a due scheduled message to the end of the queue."""
        del self._due[number]
        message = self.messages.pop(number)
        message.sequence, message.state = next(self._numbers), State.ACTIVE
        self.messages[message.sequence] = message
        self.ids[message.sequence] = self.ids.pop(number)
        heapq.heappush(self._available, message.sequence)
        self.dispatch()

    # ---- receiving ----

    def dispatch(self) -> None:
        """Send available messages to receiver links with credit."""
        if not self._available:
            return
        self.on_available()
        for receiver in list(self.receivers):
            while receiver.can_receive() and (message := self.next_active()) is not None:
                receiver.push(self._lock(message, receiver.holder))

    def next_active(self) -> Message | None:
        """Take the next available message; dead-letter expired ones."""
        while self._available:
            number = heapq.heappop(self._available)
            message = self.messages.get(number)
            if message is None or message.state != State.ACTIVE or number in self._locked:
                continue
            if message.expires_at is not None and message.expires_at <= self.now_ms():
                self._dead_letter(number, "TTLExpiredException")
                continue
            return message
        return None

    def take(self) -> Message | None:
        """Receive the next message and delete it."""
        message = self.next_active()
        if message is not None:
            del self.messages[message.sequence]
        return message

    def _lock(self, message: Message, holder: LockHolder) -> HeldMessage:
        token = uuid.UUID(int=next(self._tokens))
        timer = self.loop.call_later(self.lock_seconds, self._expire_lock, token)
        self._locks[token] = _Lock(message.sequence, timer)
        holder.received_ids[self.ids[message.sequence]] = None
        self._message_ids[token] = self.ids[message.sequence]
        self._locked.add(message.sequence)
        return HeldMessage(token, message, self.now_ms() + int(self.lock_seconds * 1000))

    def _expire_lock(self, token: uuid.UUID) -> None:
        number = self._unlock(token)
        self.messages[number].delivery_count += 1
        self._return_to_queue(number)

    def _unlock(self, token: uuid.UUID) -> int:
        lock = self._locks.pop(token, None)
        if lock is None:
            raise RefusedError(MESSAGE_LOCK_LOST)
        lock.timer.cancel()
        self._locked.discard(lock.sequence)
        return lock.sequence

    def _return_to_queue(self, number: int) -> None:
        if self.messages[number].state == State.ACTIVE:
            heapq.heappush(self._available, number)
            self.dispatch()

    def expire_locks(self) -> None:
        """Expire all locks now."""
        for token in list(self._locks):
            self._expire_lock(token)

    def message_id_of(self, token: uuid.UUID) -> str:
        """The id of the message that this token locks or locked."""
        return self._message_ids[token]

    # ---- settling ----

    def settle(self, token: uuid.UUID, settlement: str, reason: str = "") -> None:
        """Settle a message. Raises `RefusedError` if its lock is lost."""
        number = self._unlock(token)
        message = self.messages[number]
        if settlement == Settlement.COMPLETED:
            self.completed.append(self.ids.pop(number))
            del self.messages[number]
        elif settlement == Settlement.DEAD_LETTERED:
            self._dead_letter(number, reason)
        elif settlement == Settlement.DEFERRED:
            message.state = State.DEFERRED
        else:
            message.delivery_count += settlement == Settlement.ABANDONED
            self._return_to_queue(number)

    def _dead_letter(self, number: int, reason: str) -> None:
        del self.messages[number]
        self.dead.append(DeadLetter(self.ids.pop(number), reason, self.loop.time()))

    def renew(self, tokens: Sequence[uuid.UUID]) -> list[int]:
        if any(token not in self._locks for token in tokens):
            raise RefusedError(MESSAGE_LOCK_LOST)
        for token in tokens:
            lock = self._locks[token]
            lock.timer.cancel()
            lock.timer = self.loop.call_later(self.lock_seconds, self._expire_lock, token)
        return [self.now_ms() + int(self.lock_seconds * 1000)] * len(tokens)

    # ---- by sequence number ----

    def peek(self, first: int, count: int) -> list[bytes]:
        numbers = sorted(number for number in self.messages if number >= first)[:count]
        return [self.messages[number].encoded() for number in numbers]

    def take_deferred(self, numbers: Sequence[int], holder: LockHolder) -> list[HeldMessage]:
        """Lock deferred messages, all or none."""
        messages = [
            message
            for number in numbers
            if (message := self.messages.get(number)) is not None and message.state == State.DEFERRED
        ]
        if len(messages) < len(numbers) or any(number in self._locked for number in numbers):
            raise RefusedError(MESSAGE_NOT_FOUND)
        return [self._lock(message, holder) for message in messages]

    # ---- operations of the namespace ----

    def restart(self) -> None:
        """Restart: keep stored messages, release all locks, drop all receivers."""
        self.receivers.clear()
        for token in list(self._locks):
            self._return_to_queue(self._unlock(token))

    def holds(self, message_id: str) -> bool:
        return any(self.ids[number] == message_id for number in self.messages)

    def delete(self) -> list[str]:
        """Delete the queue and create it again, empty; return the ids of the messages that are gone.

        Its locks, links, sequence numbers and duplicate detection history are gone, too. `dead` and `completed` are
        records of the run, not contents of the queue, and are kept.
        """
        gone = [self.ids[number] for number in self.messages]
        for timer in (*(lock.timer for lock in self._locks.values()), *self._due.values()):
            timer.cancel()
        contents: tuple[dict[Any, Any] | list[Any] | set[Any], ...] = (self.messages, self.ids, self.receivers)
        for content in (*contents, self._available, self._locks, self._locked, self._due, self._seen):
            content.clear()
        self._numbers = itertools.count(1)
        return gone

    def sweep(self) -> None:
        """Dead-letter expired messages."""
        now = self.now_ms()
        for number, message in list(self.messages.items()):
            if message.expires_at is not None and message.expires_at <= now and number not in self._locked:
                self._dead_letter(number, "TTLExpiredException")
