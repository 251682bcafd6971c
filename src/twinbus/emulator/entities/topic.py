"""Implements topics: a message is copied to every subscription whose rules match, in one commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..protocol.error_conditions import BrokerError
from ..storage.schema import Change, State
from ..storage.store import StoreError
from .inbox import Counters, Done, Environment, PendingIds
from .limits import Limits
from .message import Arrival, Message, with_application_properties
from .queue import Queue
from .rules.ruleset import Failure
from .rules.subject import MessageSubject, broker_properties
from .session_queue import SessionQueue

_NO_SESSION = {
    "DeadLetterReason": "Session id is null.",
    "DeadLetterErrorDescription": "Session enabled entity doesn't allow a message whose session identifier is null.",
}


class Topic(Queue):
    """A topic stores only scheduled messages itself; other messages are stored once per subscription."""

    def __init__(self, key: int, path: str, limits: Limits, environment: Environment, counters: Counters) -> None:
        super().__init__(key, path, limits, environment, counters)
        self.subscriptions: dict[str, Queue] = {}

    def check_quota(self, size: int) -> None:
        """The size of a topic is the size of its subscriptions' messages, including dead letters."""
        queues = [*self.subscriptions.values()]
        queues += [queue.dead_letter for queue in queues if queue.dead_letter is not None]
        stored_bytes = sum(queue.counters.bytes for queue in queues)
        super().check_quota(size + stored_bytes)

    def take(self, arrivals: Sequence[Arrival], done: Done) -> None:
        now = self.env.now_ms()
        self.accessed_at = now / 1000
        changes: list[Change] = []
        scheduled: list[Message] = []
        copies: list[tuple[Queue, Message]] = []
        pending = PendingIds(self.env.store.joined)
        for arrival in arrivals:
            if arrival.is_ping and not self.env.delivers_pings():
                self.activity.pings += 1
            elif self.is_duplicate(arrival, now, changes, pending):
                continue
            elif arrival.due_at is not None and arrival.due_at > now:
                message = self.admit(arrival, now)
                scheduled.append(message)
                changes.append(message.insertion(self.key))
            else:
                self.activity.received += 1
                ttl = _shorter_ttl(arrival.ttl, self.limits.default_ttl_ms)
                expires_at = None if ttl is None else now + ttl
                make_copy = partial(self._copy_of_arrival, arrival, now)
                copies += self._fan_out(arrival.bare, arrival.annotations, now, expires_at, make_copy)

        changes += [copy.insertion(queue.key) for queue, copy in copies]

        def committed(error: BrokerError | None) -> None:
            if error is None:
                for queue, copy in copies:
                    queue.arrived(copy)
            done(error)

        size = sum(copy.size for _, copy in copies)
        self.submit_arrivals(scheduled, changes, pending, committed, size)

    def activate(self, sequence: int) -> None:
        """Copy a scheduled message that is due to the subscriptions."""
        message = self._due(sequence)
        if message is None:
            return
        copies = self._fan_out(
            message.bare,
            message.annotations,
            self.env.now_ms(),
            message.expires_at,
            lambda queue: queue.activated(message),
        )
        changes = [self._removal(message), *(copy.insertion(queue.key) for queue, copy in copies)]

        def committed(error: StoreError | None) -> None:
            self._held.discard(sequence)
            if error is None:
                self._forget(State.SCHEDULED, message.size)
                for queue, copy in copies:
                    queue.arrived(copy)
            else:
                self.watch_later(message)

        self.env.store.submit(changes, committed, sum(copy.size for _, copy in copies))

    def _copy_of_arrival(self, arrival: Arrival, now: int, queue: Queue) -> Message:
        """A message as a subscription stores it."""
        ttl = _shorter_ttl(self.limits.default_ttl_ms, queue.limits.default_ttl_ms)
        return arrival.stored(queue.next_sequence(), now, State.ACTIVE, ttl)

    def _fan_out(
        self,
        bare: bytes,
        annotations: bytes | None,
        now: int,
        expires_at: int | None,
        make_copy: Callable[[Queue], Message],
    ) -> list[tuple[Queue, Message]]:
        """The copies that the subscriptions' rules make of a message, each with the queue that stores it.

        `make_copy` returns an unchanged copy for a queue.
        """
        subject: MessageSubject | None = None
        copies: list[tuple[Queue, Message]] = []
        for subscription in self.subscriptions.values():
            rules = subscription.rules
            if rules is None or rules.passes_everything:
                copies.append(_route(subscription, make_copy(subscription), make_copy))
                continue
            if subject is None:
                subject = MessageSubject(bare, broker_properties(annotations, now, expires_at, len(bare)))
            outcome = rules.evaluate(subject)
            for new_bare in outcome.copies:
                copy = make_copy(subscription)
                if new_bare is not bare:
                    copy.rewrite(new_bare)
                copies.append(_route(subscription, copy, make_copy))
            dead_letter = subscription.dead_letter
            if outcome.failures and dead_letter is not None and subscription.limits.dead_letter_failures:
                copies.append((dead_letter, _dead_letter(make_copy(dead_letter), bare, _reason(outcome.failures[0]))))
        return copies


def _route(subscription: Queue, copy: Message, make_copy: Callable[[Queue], Message]) -> tuple[Queue, Message]:
    """A copy and its queue: a copy without a session is dead-lettered if the subscription requires sessions."""
    dead_letter = subscription.dead_letter
    if copy.session is None and dead_letter is not None and isinstance(subscription, SessionQueue):
        return dead_letter, _dead_letter(make_copy(dead_letter), copy.bare, _NO_SESSION)
    return subscription, copy


def _dead_letter(copy: Message, bare: bytes, reason: dict[str, Any]) -> Message:
    copy.expires_at = None
    copy.rewrite(with_application_properties(bare, reason))
    return copy


def _reason(failure: Failure) -> dict[str, Any]:
    return {
        "DeadLetterReason": "FilterEvaluationException",
        "DeadLetterErrorDescription": f"The rule '{failure.rule}' could not be evaluated: {failure.why}.",
    }


def _shorter_ttl(first: int | None, second: int | None) -> int | None:
    limits = [ttl for ttl in (first, second) if ttl is not None]
    return min(limits) if limits else None
