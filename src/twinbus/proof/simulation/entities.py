"""A queue in memory: locks, sessions, duplicate detection, time to live, schedules, deferral and dead letters.

It stores the bytes that production code sends and hands out the bytes that it will read, made by the message classes
of the embedded namespace. Nothing waits here; time comes from the loop.
"""

from __future__ import annotations

import heapq
import itertools
import uuid
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from twinbus.broker.errors import MESSAGE_LOCK_LOST, MESSAGE_NOT_FOUND, NOT_ALLOWED
from twinbus.broker.message import Arrival, Message
from twinbus.broker.schema import State
from twinbus.syphon.management import Settlement

#: A message that was handed back uncounted, besides the settlements that have a name of their own.
RELEASED = "released"


class RefusedError(Exception):
    """The namespace has said no; `condition` is its AMQP word for why."""

    def __init__(self, condition: str) -> None:
        super().__init__(condition)
        self.condition = condition


class Held(NamedTuple):
    """A message under a lock."""

    token: uuid.UUID
    message: Message
    locked_until: int

    @property
    def payload(self) -> bytes:
        return self.message.encoded(self.token.bytes, self.locked_until)


class Holder(Protocol):
    """A process that is given messages under locks."""

    #: The ids of those it was given, however they ended.
    given: dict[str, None]


class Taker(Protocol):
    """A receiver link at the namespace's end."""

    @property
    def holder(self) -> Holder:
        """The process that has the locks."""

    def wants(self) -> bool:
        """Whether there is credit, and a connection to send by."""

    def hand_out(self, held: Held) -> None:
        """Send it a message that was locked for it."""


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
    #: In seconds; None where nobody looks for duplicates.
    duplicate_window: float | None = None
    shows_pings: bool = False
    #: As administration has given them.
    properties: dict[str, Any] = field(default_factory=dict)
    #: Called when a message may be there to be received.
    on_available: Callable[[], None] = lambda: None
    messages: dict[int, Message] = field(default_factory=dict)
    ids: dict[int, str] = field(default_factory=dict)
    dead: list[DeadLetter] = field(default_factory=list)
    #: The ids of messages that were completed, in order.
    completed: list[str] = field(default_factory=list)
    takers: list[Taker] = field(default_factory=list)
    _available: list[int] = field(default_factory=list)
    _locks: dict[uuid.UUID, _Lock] = field(default_factory=dict)
    _names: dict[uuid.UUID, str] = field(default_factory=dict)
    _locked: set[int] = field(default_factory=set)
    _seen: dict[str, int] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _tokens: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    # ---- arriving ----

    def put(self, arrivals: Sequence[Arrival]) -> list[int]:
        """Store messages, all or none; returns their numbers. A ping or a duplicate leaves nothing behind."""
        if self.requires_session and any(one.session is None for one in arrivals):
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
            if is_due:
                heapq.heappush(self._available, number)
            else:
                assert message.due_at is not None
                self.loop.call_later((message.due_at - now) / 1000, self._activate, number)
        self.dispatch()
        return numbers

    def _is_duplicate(self, arrival: Arrival) -> bool:
        if self.duplicate_window is None or arrival.message_id is None:
            return False
        now, seen = self.now_ms(), self._seen.get(arrival.message_id)
        if seen is not None and now - seen < self.duplicate_window * 1000:
            return True
        self._seen[arrival.message_id] = now
        return False

    def _activate(self, number: int) -> None:
        """A scheduled message is due, and joins the queue at its end."""
        message = self.messages.pop(number)
        message.sequence, message.state = next(self._numbers), State.ACTIVE
        self.messages[message.sequence] = message
        self.ids[message.sequence] = self.ids.pop(number)
        heapq.heappush(self._available, message.sequence)
        self.dispatch()

    # ---- receiving ----

    def dispatch(self) -> None:
        """Hand out what is available to whoever wants it."""
        if not self._available:
            return
        self.on_available()
        for taker in list(self.takers):
            while taker.wants() and (message := self.next_active()) is not None:
                taker.hand_out(self._lock(message, taker.holder))

    def next_active(self) -> Message | None:
        """Take the next message out of the line; what has expired becomes a dead letter."""
        while self._available:
            number = heapq.heappop(self._available)
            message = self.messages.get(number)
            if message is None or message.state != State.ACTIVE or number in self._locked:
                continue
            if message.expires_at is not None and message.expires_at <= self.now_ms():
                self._bury(number, "TTLExpiredException")
                continue
            return message
        return None

    def take(self) -> Message | None:
        """Receive and delete."""
        message = self.next_active()
        if message is not None:
            del self.messages[message.sequence]
        return message

    def _lock(self, message: Message, holder: Holder) -> Held:
        token = uuid.UUID(int=next(self._tokens))
        timer = self.loop.call_later(self.lock_seconds, self._run_out, token)
        self._locks[token] = _Lock(message.sequence, timer)
        holder.given[self.ids[message.sequence]] = None
        self._names[token] = self.ids[message.sequence]
        self._locked.add(message.sequence)
        return Held(token, message, self.now_ms() + int(self.lock_seconds * 1000))

    def _run_out(self, token: uuid.UUID) -> None:
        number = self._unlock(token)
        self.messages[number].delivery_count += 1
        self._give_back(number)

    def _unlock(self, token: uuid.UUID) -> int:
        lock = self._locks.pop(token, None)
        if lock is None:
            raise RefusedError(MESSAGE_LOCK_LOST)
        lock.timer.cancel()
        self._locked.discard(lock.sequence)
        return lock.sequence

    def _give_back(self, number: int) -> None:
        if self.messages[number].state == State.ACTIVE:
            heapq.heappush(self._available, number)
            self.dispatch()

    def expire_locks(self) -> None:
        """All locks run out now."""
        for token in list(self._locks):
            self._run_out(token)

    def name_of(self, token: uuid.UUID) -> str:
        """The id of the message that was once locked by this token."""
        return self._names[token]

    # ---- settling ----

    def settle(self, token: uuid.UUID, settlement: str, reason: str = "") -> None:
        """What a receiver says of a message. Raises `RefusedError` if its lock is lost."""
        number = self._unlock(token)
        message = self.messages[number]
        if settlement == Settlement.COMPLETED:
            self.completed.append(self.ids.pop(number))
            del self.messages[number]
        elif settlement == Settlement.DEAD_LETTERED:
            self._bury(number, reason)
        elif settlement == Settlement.DEFERRED:
            message.state = State.DEFERRED
        else:
            message.delivery_count += settlement == Settlement.ABANDONED
            self._give_back(number)

    def _bury(self, number: int, reason: str) -> None:
        del self.messages[number]
        self.dead.append(DeadLetter(self.ids.pop(number), reason, self.loop.time()))

    def renew(self, tokens: Sequence[uuid.UUID]) -> list[int]:
        if any(token not in self._locks for token in tokens):
            raise RefusedError(MESSAGE_LOCK_LOST)
        for token in tokens:
            lock = self._locks[token]
            lock.timer.cancel()
            lock.timer = self.loop.call_later(self.lock_seconds, self._run_out, token)
        return [self.now_ms() + int(self.lock_seconds * 1000)] * len(tokens)

    # ---- by number ----

    def peek(self, first: int, count: int) -> list[bytes]:
        numbers = sorted(number for number in self.messages if number >= first)[:count]
        return [self.messages[number].encoded() for number in numbers]

    def take_deferred(self, numbers: Sequence[int], holder: Holder) -> list[Held]:
        """Lock deferred messages, all or none."""
        found = [self.messages.get(number) for number in numbers]
        messages = [one for one in found if one is not None and one.state == State.DEFERRED]
        if len(messages) < len(numbers) or any(number in self._locked for number in numbers):
            raise RefusedError(MESSAGE_NOT_FOUND)
        return [self._lock(message, holder) for message in messages]

    # ---- the namespace ----

    def restart(self) -> None:
        """What was stored is there again; nobody has a lock, and nobody listens."""
        self.takers.clear()
        for token in list(self._locks):
            self._give_back(self._unlock(token))

    def sweep(self) -> None:
        """Bury what has expired."""
        now = self.now_ms()
        for number, message in list(self.messages.items()):
            if message.expires_at is not None and message.expires_at <= now and number not in self._locked:
                self._bury(number, "TTLExpiredException")
