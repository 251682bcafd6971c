"""Implements queues: delivers messages to receivers under locks, and settles them.

Subscriptions and dead-letter queues are queues too; a queue with sessions is a `SessionQueue`. `inbox.py` has the
sending side.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..protocol.error_conditions import MESSAGE_NOT_FOUND, BrokerError, message_lock_lost
from ..storage.schema import DELETE, MAX_SEQUENCE, SET_BARE, SET_DELIVERY_COUNT, SET_STATE, Change, State, message_key
from ..storage.store import StoreError
from .consumer import Receiver
from .inbox import RETRY_SECONDS, Counters, Done, Environment, Inbox, store_failure
from .limits import Limits
from .locks import Lock, LockTable
from .message import Message, with_application_properties
from .rules.ruleset import RuleSet
from .window import Window, find_free, read_message

MAX_RECHECK = 30.0  # seconds: how late a timer may notice that the clock was changed


class Queue(Inbox):
    """Messages in order of arrival, each delivered to one receiver at a time."""

    def __init__(
        self,
        key: int,
        path: str,
        limits: Limits,
        environment: Environment,
        counters: Counters,
        dead_letter: Queue | None = None,
    ) -> None:
        super().__init__(key, path, limits, environment, counters)
        self.dead_letter = dead_letter
        #: Subscriptions only: select the messages of the topic.
        self.rules: RuleSet | None = None
        self.receivers: set[Receiver] = set()
        self._locks = LockTable()
        self._newest = counters.last_sequence
        self._window = Window(environment.store, key, self._held)
        self._waiting: deque[Receiver] = deque()
        self._dispatch_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0

    @property
    def used_bytes(self) -> int:
        used = self.counters.bytes + self._pending_bytes
        return used if self.dead_letter is None else used + self.dead_letter.counters.bytes

    @property
    def locked(self) -> int:
        """How many messages are locked by receivers."""
        return len(self._locks)

    def make_available(self, message: Message) -> None:
        self._newest = message.sequence
        if self.receivers:
            self._window.offer(message)
            self.schedule_dispatch()

    # ---- receivers ----

    def attach(self, receiver: Receiver) -> None:
        if not self.receivers:
            self._window.start(self._newest)
        self.receivers.add(receiver)
        self.accessed_at = self.env.now_ms() / 1000

    def detach(self, receiver: Receiver) -> None:
        """Remove a receiver. Its locks stay until they expire, as on the service."""
        self.receivers.discard(receiver)
        if receiver in self._waiting:
            self._waiting.remove(receiver)
        self.accessed_at = self.env.now_ms() / 1000
        if not self.receivers:
            self._window.start(self._newest)

    def wake(self, receiver: Receiver) -> None:
        """Deliver to a receiver that has credit again."""
        if receiver not in self._waiting:
            self._waiting.append(receiver)
        self.dispatch()

    def schedule_dispatch(self) -> None:
        if not self._dispatch_scheduled and self._waiting:
            self._dispatch_scheduled = True
            self._loop.call_soon(self.dispatch)

    def dispatch(self) -> None:
        """Deliver available messages to receivers with credit, in turn."""
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
        # No holder: nothing reads it here, and the lock outlives the receiver's connection, which it would keep alive.
        lock = Lock(self.env.tokens.take(), message, now + self.limits.lock_ms, None, deferred)
        self._held.add(message.sequence)
        self._locks.add(lock, timed=True)
        self._set_timer(lock.locked_until)
        return lock

    def _delete_then_deliver(self, taken: list[tuple[Receiver, Message]]) -> None:
        """Receive and delete: delete from the store before delivery, so that no message is delivered twice."""
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

    def give_back(self, sequence: int, session: str | None) -> None:
        """Make a held message available again."""
        self._held.discard(sequence)
        self._window.give_back(sequence)
        self.schedule_dispatch()

    # ---- settling ----

    def take_lock(self, token: bytes) -> Lock:
        """Remove and return a lock, while its settlement is being stored. Raises `BrokerError` if the lock is lost."""
        lock = self._locks.by_token.pop(token, None)
        if lock is None:
            raise message_lock_lost()
        return lock

    def restore_lock(self, lock: Lock) -> None:
        """Put back a lock whose settlement could not be stored, for at least the time until a retry."""
        lock.locked_until = max(lock.locked_until, self.env.now_ms() + int(RETRY_SECONDS * 1000))
        self._locks.add(lock, timed=True)
        self._set_timer(lock.locked_until)

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
        """Delete a locked message. Raises `BrokerError` if the lock is lost."""
        lock = self.take_lock(token)
        removal = (DELETE, (message_key(self.key, lock.sequence),))
        self.env.store.submit((removal,), partial(self._completed, lock, done), lock.size)

    def _completed(self, lock: Lock, done: Done, error: StoreError | None) -> None:
        if error is not None:
            self.restore_lock(lock)
            done(store_failure(error))
            return
        self._held.discard(lock.sequence)
        counters = self.counters
        counters.bytes -= lock.size
        if lock.deferred:
            counters.deferred -= 1
        else:
            counters.active -= 1
        self.activity.completed += 1
        done(None)

    def abandon(self, token: bytes, changed: dict[str, Any] | None, done: Done) -> None:
        """Make a locked message available again, with its delivery counted."""
        lock = self.take_lock(token)
        self._return(lock, changed, done)

    def release(self, token: bytes, done: Done) -> None:
        """Make a locked message available again, with its delivery not counted."""
        lock = self.take_lock(token)
        self._unlock(lock)
        done(None)

    def defer(self, token: bytes, changed: dict[str, Any] | None, done: Done) -> None:
        """Defer a locked message: it can then be received only by its sequence number."""
        lock = self.take_lock(token)
        changes = self._modifications(lock, changed)
        if not lock.deferred:
            key = message_key(self.key, lock.sequence)
            changes.append((SET_STATE, (int(State.DEFERRED), key)))

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

    def dead_letter_to(self, token: bytes, reason: dict[str, Any], target: Queue, done: Done) -> None:
        """Move a locked message that cannot be forwarded to the transfer dead-letter queue `target`."""
        lock = self.take_lock(token)
        self._dead_letter(lock, reason, done, target)

    def holds(self, token: bytes) -> bool:
        """Whether a lock is still held."""
        return self._locks.get(token) is not None

    def _modifications(self, lock: Lock, changed: dict[str, Any] | None) -> list[Change]:
        if not changed:
            return []
        message = read_message(self.env.store.reader, self.key, lock.sequence)
        if message is None:
            return []
        bare = with_application_properties(message.bare, changed)
        return [(SET_BARE, (bare, message_key(self.key, lock.sequence)))]

    def _return(self, lock: Lock, changed: dict[str, Any] | None, done: Done) -> None:
        """Count a failed delivery, and make the message available again or dead-letter it."""
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
        changes.append((SET_DELIVERY_COUNT, (count, message_key(self.key, lock.sequence))))
        self._settle(lock, changes, lambda: self._unlock(lock), done)

    def _unlock(self, lock: Lock) -> None:
        if lock.deferred:
            self._held.discard(lock.sequence)
        elif lock.expires_at is not None and lock.expires_at <= self.env.now_ms():
            self._held.discard(lock.sequence)
            self.expire(lock.sequence)
        else:
            self.give_back(lock.sequence, lock.session)

    def _dead_letter(self, lock: Lock, reason: dict[str, Any], done: Done, target: Queue | None = None) -> None:
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

        self._move_to_dead_letter(message, reason, moved, target)

    def _move_to_dead_letter(
        self,
        message: Message,
        reason: dict[str, Any],
        done: Callable[[StoreError | None], None],
        chosen_target: Queue | None = None,
    ) -> None:
        target = chosen_target or self.dead_letter or self
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

        changes = [self._removal(message), moved.insertion(target.key)]
        self.env.store.submit(changes, committed, moved.size)

    # ---- locks by time ----

    def renew(self, token: bytes) -> int:
        """Extend a message lock; returns its new expiry (ms). Raises `BrokerError` if the lock is lost."""
        lock = self._locks.get(token)
        if lock is None:
            raise message_lock_lost()
        self._locks.renew(lock, self.env.now_ms() + self.limits.lock_ms)
        return lock.locked_until

    def _set_timer(self, at: int | None) -> None:
        if at is None or self.is_closed or (self._timer is not None and self._timer_at <= at):
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
        """Expire locks now: the clock was changed, and the timer may be set for much later."""
        if self._timer is not None:
            self._timer.cancel()
        self._on_timer()

    # ---- by sequence number ----

    def find_deferred(self, sequences: Sequence[int]) -> list[Message]:
        """The deferred messages with these numbers, each once; raises `BrokerError` unless all exist and are free.

        As on the service, a deferred message past its time to live expires only when it is requested.
        """
        messages = []
        for sequence in dict.fromkeys(sequences):
            message = None
            if 0 < sequence <= MAX_SEQUENCE and sequence not in self._held:
                message = read_message(self.env.store.reader, self.key, sequence)
            if message is not None and message.state == State.DEFERRED and self._is_expired(message):
                self._expire(message)
                message = None
            if message is None or message.state != State.DEFERRED:
                raise BrokerError(
                    MESSAGE_NOT_FOUND,
                    f"Failed to lock one or more specified messages: {sequence} is not there.",
                )
            messages.append(message)
        return messages

    def delete_oldest(self, before: int, count: int, session: str | None, done: Done) -> int:
        """Delete up to `count` unlocked messages enqueued before a time (ms); returns how many."""
        # Messages that are committed but whose commit is not announced yet are not in the queue.
        free = find_free(self.env.store.reader, self.key, self._newest, before, count, self._held, session)
        for message in free:
            if message.state == State.ACTIVE:
                self._window_for(message).remove(message.sequence)

        def deleted(error: BrokerError | None) -> None:
            for message in free:
                if error is not None and message.state == State.ACTIVE:
                    self.give_back(message.sequence, message.session)
            done(error)

        self.remove_messages(free, deleted)
        return len(free)

    # ---- timed events ----

    def expire(self, sequence: int) -> None:
        """Dead-letter or delete a message past its time to live, unless it is locked or deferred."""
        # A message whose commit is not announced yet is not in the queue; its expiry is watched when it is.
        if sequence in self._held or sequence > self._newest:
            return
        message = read_message(self.env.store.reader, self.key, sequence)
        if message is not None and message.state == State.ACTIVE and self._is_expired(message):
            self._window_for(message).remove(sequence)
            self._expire(message)

    def _is_expired(self, message: Message) -> bool:
        return message.expires_at is not None and message.expires_at <= self.env.now_ms()

    def _window_for(self, message: Message) -> Window:
        return self._window

    def _expire(self, message: Message) -> None:
        self._held.add(message.sequence)

        def expired(error: StoreError | None) -> None:
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
            self._move_to_dead_letter(message, reason, expired)
        else:
            self.env.store.submit([self._removal(message)], expired)

    def close(self) -> None:
        """Stop timers and deliveries: the queue is deleted or the namespace is stopping."""
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting.clear()
        self.receivers.clear()
