"""A topic: what is sent to it goes to every subscription whose rules let it pass, in one commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from .errors import BrokerError
from .inbox import Counters, Done, Environment, Remembered
from .limits import Limits
from .message import Arrival, Message, with_application_properties
from .queue import Queue
from .rules.ruleset import Failure
from .rules.subject import MessageSubject, facts_of
from .schema import Change, State
from .session_queue import SessionQueue
from .store import StoreError

_NO_SESSION = {
    "DeadLetterReason": "Session id is null.",
    "DeadLetterErrorDescription": "Session enabled entity doesn't allow a message whose session identifier is null.",
}


class Topic(Queue):
    """A topic keeps only scheduled messages itself; the rest is stored once for each subscription."""

    def __init__(self, key: int, path: str, limits: Limits, environment: Environment, counters: Counters) -> None:
        super().__init__(key, path, limits, environment, counters)
        self.subscriptions: dict[str, Queue] = {}

    def check_quota(self, size: int) -> None:
        """The size of a topic is the size of what its subscriptions hold, dead letters included."""
        queues = [*self.subscriptions.values()]
        queues += [queue.dead_letter for queue in queues if queue.dead_letter is not None]
        held = sum(queue.counters.bytes for queue in queues)
        super().check_quota(size + held)

    def take(self, arrivals: Sequence[Arrival], done: Done) -> None:
        now = self.env.now_ms()
        self.accessed_at = now / 1000
        changes: list[Change] = []
        scheduled: list[Message] = []
        copies: list[tuple[Queue, Message]] = []
        remembered = Remembered(self.env.store.joined)
        for arrival in arrivals:
            if arrival.is_ping and not self.env.delivers_pings():
                self.activity.pings += 1
            elif self.is_duplicate(arrival, now, changes, remembered):
                continue
            elif arrival.due_at is not None and arrival.due_at > now:
                message = self.admit(arrival, now)
                scheduled.append(message)
                changes.append(message.insertion(self.key))
            else:
                self.activity.received += 1
                ttl = _shorter(arrival.ttl, self.limits.default_ttl_ms)
                expires_at = None if ttl is None else now + ttl
                make = partial(self._copied, arrival, now)
                copies += self._shared(arrival.bare, arrival.annotations, now, expires_at, make)

        changes += [copy.insertion(queue.key) for queue, copy in copies]

        def committed(error: BrokerError | None) -> None:
            if error is None:
                for queue, copy in copies:
                    queue.arrived(copy)
            done(error)

        size = sum(copy.size for _, copy in copies)
        self.submit_arrivals(scheduled, changes, remembered, committed, size)

    def activate(self, sequence: int) -> None:
        """A scheduled message is due: each subscription gets its copy."""
        message = self._due(sequence)
        if message is None:
            return
        copies = self._shared(
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

    def _copied(self, arrival: Arrival, now: int, queue: Queue) -> Message:
        """A message as a subscription keeps it."""
        ttl = _shorter(self.limits.default_ttl_ms, queue.limits.default_ttl_ms)
        return arrival.stored(queue.next_sequence(), now, State.ACTIVE, ttl)

    def _shared(
        self,
        bare: bytes,
        annotations: bytes | None,
        now: int,
        expires_at: int | None,
        make: Callable[[Queue], Message],
    ) -> list[tuple[Queue, Message]]:
        """What each subscription gets of a message, by its rules; `make` is a copy for one, as it was sent."""
        subject: MessageSubject | None = None
        shares: list[tuple[Queue, Message]] = []
        for subscription in self.subscriptions.values():
            rules = subscription.rules
            if rules is None or rules.lets_all_through:
                shares.append(_share(subscription, make(subscription), make))
                continue
            if subject is None:
                subject = MessageSubject(bare, facts_of(annotations, now, expires_at, len(bare)))
            verdict = rules.judge(subject)
            for changed in verdict.copies:
                copy = make(subscription)
                if changed is not bare:
                    copy.rewrite(changed)
                shares.append(_share(subscription, copy, make))
            dead_letter = subscription.dead_letter
            if verdict.failures and dead_letter is not None and subscription.limits.dead_letter_failures:
                shares.append((dead_letter, _dead_letter(make(dead_letter), bare, _reason(verdict.failures[0]))))
        return shares


def _share(subscription: Queue, copy: Message, make: Callable[[Queue], Message]) -> tuple[Queue, Message]:
    """A copy and where it goes: without a session it is a dead letter of a subscription that wants one."""
    dead_letter = subscription.dead_letter
    if copy.session is None and dead_letter is not None and isinstance(subscription, SessionQueue):
        return dead_letter, _dead_letter(make(dead_letter), copy.bare, _NO_SESSION)
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


def _shorter(first: int | None, second: int | None) -> int | None:
    given = [value for value in (first, second) if value is not None]
    return min(given) if given else None
