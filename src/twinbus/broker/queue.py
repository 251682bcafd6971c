"""A queue: it takes messages in, hands them to receivers under a lock, and settles them.

Every change goes to the store first; what a client is told, and what a receiver is given, follows the commit.
A subscription and a dead-letter queue are queues too; a queue with sessions is a `SessionQueue`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .durations import MAX_TICKS
from .errors import (
    ARGUMENT_ERROR,
    INTERNAL_ERROR,
    MESSAGE_NOT_FOUND,
    MESSAGE_TOO_LARGE,
    QUOTA_EXCEEDED,
    BrokerError,
    message_lock_lost,
    not_found,
)
from .locks import Lock, LockTable, TokenSource
from .message import Arrival, Message, with_application_properties
from .schema import (
    COLUMNS,
    DELETE,
    FORGET,
    MAX_SEQUENCE,
    REMEMBER,
    SET_BARE,
    SET_DELIVERY_COUNT,
    SET_STATE,
    Change,
    State,
    message_key,
)
from .store import Store, StoreError
from .window import Window, from_row, read_message

TICKS_PER_MS = 10_000
MAX_RECHECK = 30.0  # seconds: how late a timer may notice that the clock was set
PEEK_BYTES = 1 << 20
MAX_TIME = (1 << 63) - 1  # what the store can keep
RETRY_SECONDS = 1.0  # after the store could not write, as on a full disk

Done = Callable[[BrokerError | None], None]


class Receiver(Protocol):
    """What a queue delivers to: a link with credit."""

    deletes: bool

    def can_take(self) -> bool:
        """Whether one more message may be sent now."""

    def reserve(self) -> None:
        """Count a message against the credit before it is sent."""

    def deliver(self, message: Message, lock: Lock | None) -> None:
        """Send a reserved message."""

    def unreserve(self) -> None:
        """A reserved message will not be sent after all."""

    def session_lost(self) -> None:
        """The lock of the receiver's session has run out."""


@dataclass(slots=True)
class Limits:
    """What a queue checks on each message; made from its description."""

    lock_ms: int
    default_ttl_ms: int | None
    max_bytes: int
    max_message_bytes: int
    max_delivery_count: int
    dead_letter_expired: bool
    duplicate_window_ms: int | None


@dataclass(slots=True)
class Counters:
    active: int = 0
    deferred: int = 0
    scheduled: int = 0
    bytes: int = 0
    last_sequence: int = 0


@dataclass(slots=True)
class Activity:
    """What has happened at a queue since the start."""

    received: int = 0
    pings: int = 0
    delivered: int = 0
    completed: int = 0


@dataclass(slots=True)
class Environment:
    """What every queue of a namespace shares."""

    store: Store
    now_ms: Callable[[], int]
    delivers_pings: Callable[[], bool]
    watch_times: Callable[[Message], None]
    tokens: TokenSource = field(default_factory=TokenSource)


class Remembered:
    """The message ids that one unit stores for duplicate detection.

    Until that is done, a second message with one of them relies on the first: it is a duplicate only if the first
    gets stored.
    """

    __slots__ = ("error", "ids", "relies_on")

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.relies_on: list[Remembered] = []
        self.error: StoreError | None = None


def ttl_ms(ticks: int) -> int | None:
    """A time to live in milliseconds; the service's maximum means for ever."""
    return None if ticks >= MAX_TICKS else ticks // TICKS_PER_MS


def store_failure(error: StoreError) -> BrokerError:
    return BrokerError(INTERNAL_ERROR, f"The message was not stored: {error}.")


class Queue:
    """Messages in order of arrival, each given to one receiver at a time."""

    def __init__(
        self,
        key: int,
        path: str,
        limits: Limits,
        environment: Environment,
        counters: Counters,
        dead_letter: Queue | None = None,
    ) -> None:
        self.key = key
        self.path = path
        self.limits = limits
        self.counters = counters
        self.dead_letter = dead_letter
        self.env = environment
        self.activity = Activity()
        self.accessed_at = environment.now_ms() / 1000
        self.receivers: set[Receiver] = set()
        self._pending_bytes = 0
        self._held: set[int] = set()
        self._locks = LockTable()
        self._newest = counters.last_sequence
        self._window = Window(environment.store.reader, key, self._held)
        self._waiting: deque[Receiver] = deque()
        self._dispatch_scheduled = False
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._unseen: dict[str, Remembered] = {}
        self._closed = False

    @property
    def locked(self) -> int:
        """How many messages are locked by receivers."""
        return len(self._locks)

    # ---- arriving ----

    def check(self, arrivals: Sequence[Arrival]) -> None:
        """Raise `BrokerError` if the queue cannot take these messages."""
        if self._closed:
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
        used = self.counters.bytes + self._pending_bytes
        if self.dead_letter is not None:
            used += self.dead_letter.counters.bytes
        if used + size > self.limits.max_bytes:
            raise BrokerError(
                QUOTA_EXCEEDED,
                f"The maximum entity size has been reached or exceeded for '{self.path}':"
                f" {used} of {self.limits.max_bytes} bytes are used.",
            )

    def take(self, arrivals: Sequence[Arrival], done: Done) -> None:
        """Store messages that `check` has passed; `done` runs after the commit."""
        now = self.env.now_ms()
        self.accessed_at = now / 1000
        changes: list[Change] = []
        stored: list[Message] = []
        remembered = Remembered()
        for arrival in arrivals:
            if arrival.is_ping and not self.env.delivers_pings():
                self.activity.pings += 1
            elif self.is_duplicate(arrival, now, changes, remembered):
                continue
            else:
                message = self.admit(arrival, now)
                stored.append(message)
                changes.append(message.insertion(self.key))
        self.submit_arrivals(stored, changes, remembered, done)

    def admit(self, arrival: Arrival, now: int) -> Message:
        """Give a message its sequence number."""
        scheduled = arrival.due_at is not None and arrival.due_at > now
        state = State.SCHEDULED if scheduled else State.ACTIVE
        return arrival.stored(self.next_sequence(), now, state, self.limits.default_ttl_ms)

    def next_sequence(self) -> int:
        self.counters.last_sequence += 1
        return self.counters.last_sequence

    def submit_arrivals(
        self, stored: list[Message], changes: list[Change], remembered: Remembered, done: Done, size: int = 0
    ) -> None:
        """Store the messages; `size` is that of what else is in `changes`."""
        size += sum(message.size for message in stored)
        self._pending_bytes += size

        def committed(error: StoreError | None) -> None:
            self._pending_bytes -= size
            remembered.error = error
            for message_id in remembered.ids:
                self._unseen.pop(message_id, None)
            if error is None:
                self.activity.received += len(stored)
                for message in stored:
                    self.arrived(message)
                error = next((one.error for one in remembered.relies_on if one.error is not None), None)
            done(None if error is None else store_failure(error))

        self.env.store.submit(changes, committed, size)

    def arrived(self, message: Message) -> None:
        """A message of this queue is committed."""
        counters = self.counters
        counters.bytes += message.size
        if message.due_at is not None or message.expires_at is not None:
            self.env.watch_times(message)
        if message.state == State.SCHEDULED:
            counters.scheduled += 1
            return
        counters.active += 1
        self.make_available(message)

    def make_available(self, message: Message) -> None:
        self._newest = message.sequence
        if self.receivers:
            self._window.offer(message)
            self.schedule_dispatch()

    def is_duplicate(self, arrival: Arrival, now: int, changes: list[Change], remembered: Remembered) -> bool:
        """Whether the message was seen within the duplicate detection window; if not, remember it."""
        window = self.limits.duplicate_window_ms
        if window is None or arrival.message_id is None:
            return False
        pending = self._unseen.get(arrival.message_id)
        if pending is not None:
            if pending is not remembered:
                remembered.relies_on.append(pending)
            return True
        row = self.env.store.reader.execute(
            "SELECT at FROM seen WHERE key = ? AND message_id = ?", (self.key, arrival.message_id)
        ).fetchone()
        if row is not None and row[0] > now - window:
            return True
        self._unseen[arrival.message_id] = remembered
        remembered.ids.append(arrival.message_id)
        changes.append(Change(REMEMBER, (self.key, arrival.message_id, now)))
        return False

    def forget_seen(self) -> None:
        """Drop what duplicate detection no longer needs."""
        if self.limits.duplicate_window_ms is not None:
            cutoff = self.env.now_ms() - self.limits.duplicate_window_ms
            self.env.store.submit([Change(FORGET, (self.key, cutoff))], lambda error: None)

    # ---- receivers ----

    def attach(self, receiver: Receiver) -> None:
        if not self.receivers:
            self._window.start(self._newest)
        self.receivers.add(receiver)
        self.accessed_at = self.env.now_ms() / 1000

    def detach(self, receiver: Receiver) -> None:
        """The receiver is gone. Its locks stay until they run out, as on the service."""
        self.receivers.discard(receiver)
        if not self.receivers:
            self._window.start(self._newest)

    def wake(self, receiver: Receiver) -> None:
        """The receiver can take messages (again)."""
        if receiver not in self._waiting:
            self._waiting.append(receiver)
        self.dispatch()

    def schedule_dispatch(self) -> None:
        if not self._dispatch_scheduled and self._waiting:
            self._dispatch_scheduled = True
            self._loop.call_soon(self.dispatch)

    def dispatch(self) -> None:
        """Give available messages to receivers that can take them, in turn."""
        self._dispatch_scheduled = False
        now = self.env.now_ms()
        taken: list[tuple[Receiver, Message]] = []
        while self._waiting:
            receiver = self._waiting[0]
            if receiver not in self.receivers or not receiver.can_take():
                self._waiting.popleft()
                continue
            message = self.next_message(receiver, now)
            if message is None:
                break
            receiver.reserve()
            self.activity.delivered += 1
            if receiver.deletes:
                taken.append((receiver, message))
            else:
                receiver.deliver(message, self.lock(message, receiver, now))
            self._waiting.rotate(-1)
        if taken:
            self._delete_then_deliver(taken)

    def next_message(self, receiver: Receiver, now: int) -> Message | None:
        return self._take_unexpired(self._window, now)

    def _take_unexpired(self, window: Window, now: int) -> Message | None:
        while (message := window.next()) is not None:
            if message.expires_at is None or message.expires_at > now:
                return message
            self._expire(message)
        return None

    def lock(self, message: Message, holder: Receiver, now: int, deferred: bool = False) -> Lock:
        """Lock a message for the queue's lock duration."""
        lock = Lock(self.env.tokens.take(), message, now + self.limits.lock_ms, holder, deferred)
        self._held.add(message.sequence)
        self._locks.add(lock, timed=True)
        self._set_timer(self._locks.next_time())
        return lock

    def _delete_then_deliver(self, taken: list[tuple[Receiver, Message]]) -> None:
        """Receive and delete: gone from the store before anyone sees it, so that it can never come twice."""
        for _, message in taken:
            self._held.add(message.sequence)

        def deleted(error: StoreError | None) -> None:
            if error is not None:
                self.activity.delivered -= len(taken)
                for receiver, _ in taken:
                    receiver.unreserve()
                self._loop.call_later(RETRY_SECONDS, self._give_back_undelivered, taken)
                return
            for receiver, message in taken:
                self._held.discard(message.sequence)
                self._forget(message.state, message.size)
                receiver.deliver(message, None)

        self.env.store.submit([self._removal(message) for _, message in taken], deleted)

    def _give_back_undelivered(self, taken: list[tuple[Receiver, Message]]) -> None:
        for _, message in taken:
            self.give_back(message.sequence, message.session)
        for receiver in {receiver for receiver, _ in taken}:
            if receiver in self.receivers:
                self.wake(receiver)

    def _removal(self, message: Message | Lock, state: int = State.ACTIVE) -> Change:
        return Change(
            DELETE,
            (message_key(self.key, message.sequence),),
            self.key,
            -1 if state == State.ACTIVE else 0,
            -1 if state == State.DEFERRED else 0,
            -1 if state == State.SCHEDULED else 0,
            -message.size,
        )

    def _forget(self, state: int, size: int) -> None:
        counters = self.counters
        counters.bytes -= size
        if state == State.ACTIVE:
            counters.active -= 1
        elif state == State.DEFERRED:
            counters.deferred -= 1
        else:
            counters.scheduled -= 1

    def give_back(self, sequence: int, session: str | None) -> None:
        """A message that was held is available again."""
        self._held.discard(sequence)
        self._window.give_back(sequence)
        self.schedule_dispatch()

    # ---- settling ----

    def take_lock(self, token: bytes) -> Lock:
        """The lock for settling: it is out of the table until the settlement is stored."""
        lock = self._locks.remove(token)
        if lock is None:
            raise message_lock_lost()
        return lock

    def restore_lock(self, lock: Lock) -> None:
        """A settlement could not be stored: the receiver still holds the message, if only until the next try."""
        lock.locked_until = max(lock.locked_until, self.env.now_ms() + int(RETRY_SECONDS * 1000))
        self._locks.add(lock, timed=True)
        self._set_timer(self._locks.next_time())

    def _settle(self, lock: Lock, changes: list[Change], then: Callable[[], None], done: Done) -> None:
        def stored(error: StoreError | None) -> None:
            if error is None:
                then()
                done(None)
            else:
                self.restore_lock(lock)
                done(store_failure(error))

        self.env.store.submit(changes, stored)

    def complete(self, token: bytes, done: Done) -> None:
        """Remove a locked message for good. Raises `BrokerError` if the lock is lost."""
        lock = self.take_lock(token)
        state = State.DEFERRED if lock.deferred else State.ACTIVE

        def removed() -> None:
            self._held.discard(lock.sequence)
            self._forget(state, lock.size)
            self.activity.completed += 1

        self._settle(lock, [self._removal(lock, state)], removed, done)

    def abandon(self, token: bytes, changed: dict[str, Any] | None, done: Done) -> None:
        """Make a locked message available again, one delivery poorer."""
        lock = self.take_lock(token)
        self._return(lock, changed, done)

    def release(self, token: bytes, done: Done) -> None:
        """Make a locked message available again as if it had never been delivered."""
        lock = self.take_lock(token)
        self._unlock(lock)
        done(None)

    def defer(self, token: bytes, changed: dict[str, Any] | None, done: Done) -> None:
        """Set a locked message aside, to be received by its sequence number."""
        lock = self.take_lock(token)
        changes = self._modifications(lock, changed)
        if not lock.deferred:
            key = message_key(self.key, lock.sequence)
            changes.append(Change(SET_STATE, (int(State.DEFERRED), key), self.key, -1, 1))

        def deferred() -> None:
            self._held.discard(lock.sequence)
            if not lock.deferred:
                self.counters.active -= 1
                self.counters.deferred += 1

        self._settle(lock, changes, deferred, done)

    def dead_letter_locked(self, token: bytes, reason: dict[str, Any], done: Done) -> None:
        """Move a locked message to the dead-letter queue with the given application properties."""
        lock = self.take_lock(token)
        self._dead_letter(lock, reason, done)

    def _modifications(self, lock: Lock, changed: dict[str, Any] | None) -> list[Change]:
        if not changed:
            return []
        message = read_message(self.env.store.reader, self.key, lock.sequence)
        if message is None:
            return []
        bare = with_application_properties(message.bare, changed)
        return [Change(SET_BARE, (bare, message_key(self.key, lock.sequence)))]

    def _return(self, lock: Lock, changed: dict[str, Any] | None, done: Done) -> None:
        """After a failed delivery: count it, and give the message back or dead-letter it."""
        count = lock.delivery_count + 1
        if count >= self.limits.max_delivery_count and self.dead_letter is not None:
            reason = {
                "DeadLetterReason": "MaxDeliveryCountExceeded",
                "DeadLetterErrorDescription": f"Message could not be consumed after {count} delivery attempts.",
            }
            lock.delivery_count = count
            self._dead_letter(lock, {**(changed or {}), **reason}, done)
            return
        changes = self._modifications(lock, changed)
        changes.append(Change(SET_DELIVERY_COUNT, (count, message_key(self.key, lock.sequence))))
        self._settle(lock, changes, lambda: self._unlock(lock), done)

    def _unlock(self, lock: Lock) -> None:
        if lock.expires_at is not None and lock.expires_at <= self.env.now_ms():
            self._held.discard(lock.sequence)
            self.expire(lock.sequence)
        elif lock.deferred:
            self._held.discard(lock.sequence)
        else:
            self.give_back(lock.sequence, lock.session)

    def _dead_letter(self, lock: Lock, reason: dict[str, Any], done: Done) -> None:
        message = read_message(self.env.store.reader, self.key, lock.sequence)
        if message is None:
            self._held.discard(lock.sequence)
            done(message_lock_lost())
            return
        message.delivery_count = lock.delivery_count

        def moved(error: StoreError | None) -> None:
            if error is not None:
                self.restore_lock(lock)
                done(store_failure(error))
                return
            self._held.discard(lock.sequence)
            done(None)

        self._move_to_dead_letter(message, reason, moved)

    def _move_to_dead_letter(
        self, message: Message, reason: dict[str, Any], done: Callable[[StoreError | None], None]
    ) -> None:
        target = self.dead_letter if self.dead_letter is not None else self
        moved = message.copy()
        moved.sequence = target.next_sequence()
        moved.state = State.ACTIVE
        moved.expires_at = None
        moved.bare = with_application_properties(message.bare, reason)

        def committed(error: StoreError | None) -> None:
            if error is None:
                self._forget(message.state, message.size)
                target.arrived(moved)
            done(error)

        changes = [self._removal(message, message.state), moved.insertion(target.key)]
        self.env.store.submit(changes, committed, moved.size)

    # ---- locks by time ----

    def renew(self, token: bytes) -> int:
        """Extend a message lock; returns when it now runs out (ms)."""
        lock = self._locks.get(token)
        if lock is None:
            raise message_lock_lost()
        self._locks.renew(lock, self.env.now_ms() + self.limits.lock_ms)
        return lock.locked_until

    def _set_timer(self, at: int | None) -> None:
        if at is None or self._closed or (self._timer is not None and self._timer_at <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        delay = max(0.0, (at - self.env.now_ms()) / 1000 + 0.001)
        self._timer = self._loop.call_later(min(delay, MAX_RECHECK), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        for lock in self._locks.take_expired(self.env.now_ms()):
            self._return(lock, None, lambda error: None)
        self._set_timer(self._locks.next_time())

    def check_clock(self) -> None:
        """Act on the clock now: it was set, and the timer may still be far away."""
        if self._timer is not None:
            self._timer.cancel()
        self._on_timer()

    # ---- by sequence number ----

    def peek(self, start: int, count: int, session: str | None = None) -> list[Message]:
        """Up to `count` messages from sequence number `start` on, locked, deferred and scheduled ones too."""
        low, high = message_key(self.key, min(max(0, start), MAX_SEQUENCE)), message_key(self.key, MAX_SEQUENCE)
        if session is None:
            rows = self.env.store.reader.execute(
                f"SELECT {COLUMNS} FROM messages WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?",
                (low, high, count),
            )
        else:
            rows = self.env.store.reader.execute(
                f"SELECT {COLUMNS} FROM messages WHERE session = ? AND id BETWEEN ? AND ? ORDER BY id LIMIT ?",
                (session, low, high, count),
            )
        messages: list[Message] = []
        size, now = 0, self.env.now_ms()
        for row in rows:
            message = from_row(row)
            size += message.size
            if messages and size > PEEK_BYTES:
                rows.close()
                break
            if message.expires_at is None or message.expires_at > now:
                messages.append(message)
        return messages

    def find_deferred(self, sequences: Sequence[int]) -> list[Message]:
        """The deferred messages with these numbers; raises unless all are there and free."""
        messages = []
        for sequence in sequences:
            message = None
            if 0 < sequence <= MAX_SEQUENCE:
                message = read_message(self.env.store.reader, self.key, sequence)
            if message is None or message.state != State.DEFERRED or sequence in self._held:
                raise BrokerError(
                    MESSAGE_NOT_FOUND,
                    f"Failed to lock one or more specified messages: {sequence} is not there.",
                )
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

        self.env.store.submit([self._removal(message, message.state) for message in messages], deleted)

    def schedule(self, arrivals: Sequence[Arrival], done: Done) -> list[int]:
        """Store messages for later; returns their sequence numbers, good until they are due.

        A ping or a duplicate gets a number too, with nothing behind it.
        """
        if any(arrival.due_at is None for arrival in arrivals):
            raise BrokerError(ARGUMENT_ERROR, "A scheduled message needs x-opt-scheduled-enqueue-time.")
        now = self.env.now_ms()
        stored: list[Message] = []
        changes: list[Change] = []
        remembered = Remembered()
        numbers = [self.next_sequence() for _ in arrivals]
        for number, arrival in zip(numbers, arrivals, strict=True):
            if arrival.is_ping and not self.env.delivers_pings():
                self.activity.pings += 1
            elif not self.is_duplicate(arrival, now, changes, remembered):
                message = arrival.stored(number, now, State.SCHEDULED, self.limits.default_ttl_ms)
                stored.append(message)
                changes.append(message.insertion(self.key))
        self.submit_arrivals(stored, changes, remembered, done)
        return numbers

    def cancel(self, sequences: Sequence[int], done: Done) -> None:
        """Remove scheduled messages; raises if one of them is not scheduled (any more)."""
        messages = []
        for sequence in sequences:
            message = None
            if 0 < sequence <= MAX_SEQUENCE:
                message = read_message(self.env.store.reader, self.key, sequence)
            if message is None or message.state != State.SCHEDULED or sequence in self._held:
                raise BrokerError(MESSAGE_NOT_FOUND, f"There is no scheduled message with number {sequence}.")
            messages.append(message)
        self.remove_messages(messages, done)

    # ---- called when a time has come ----

    def expire(self, sequence: int) -> None:
        """A message's time to live is over: dead-letter or drop it, unless someone holds it."""
        if sequence in self._held:
            return
        message = read_message(self.env.store.reader, self.key, sequence)
        if message is None or message.expires_at is None or message.state == State.SCHEDULED:
            return
        if message.expires_at <= self.env.now_ms():
            if message.state == State.ACTIVE:
                self._window_for(message).remove(sequence)
            self._expire(message)

    def _window_for(self, message: Message) -> Window:
        return self._window

    def _expire(self, message: Message) -> None:
        self._held.add(message.sequence)

        def gone(error: StoreError | None) -> None:
            self._held.discard(message.sequence)
            if error is not None:
                self.watch_later(message)
            elif not dead_letters:
                self._forget(message.state, message.size)

        dead_letters = self.limits.dead_letter_expired and self.dead_letter is not None
        if dead_letters:
            reason = {
                "DeadLetterReason": "TTLExpiredException",
                "DeadLetterErrorDescription": "The message expired and was dead lettered.",
            }
            self._move_to_dead_letter(message, reason, gone)
        else:
            self.env.store.submit([self._removal(message, message.state)], gone)

    def activate(self, sequence: int) -> None:
        """A scheduled message is due: it joins the queue with a new sequence number."""
        message = self._due(sequence)
        if message is None:
            return
        active = self.activated(message)
        changes = [self._removal(message, State.SCHEDULED), active.insertion(self.key)]

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

    def close(self) -> None:
        """The queue is deleted or the namespace stops: no more timers or deliveries."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting.clear()
        self.receivers.clear()
