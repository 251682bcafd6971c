"""A topic: what is sent to it goes to every subscription, in one commit."""

from __future__ import annotations

from collections.abc import Sequence

from .errors import BrokerError
from .inbox import Counters, Done, Environment, Limits, Remembered
from .message import Arrival, Message
from .queue import Queue
from .schema import Change, State
from .store import StoreError


class Topic(Queue):
    """A topic keeps only scheduled messages itself; the rest is stored once for each subscription."""

    def __init__(self, key: int, path: str, limits: Limits, environment: Environment, counters: Counters) -> None:
        super().__init__(key, path, limits, environment, counters)
        self.subscriptions: dict[str, Queue] = {}

    def check(self, arrivals: Sequence[Arrival]) -> None:
        super().check(arrivals)
        for subscription in self.subscriptions.values():
            subscription.check(arrivals)

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
        remembered = Remembered()
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
                for subscription in self.subscriptions.values():
                    ttl = _shorter(self.limits.default_ttl_ms, subscription.limits.default_ttl_ms)
                    copy = arrival.stored(subscription.next_sequence(), now, State.ACTIVE, ttl)
                    copies.append((subscription, copy))
                    changes.append(copy.insertion(subscription.key))

        def committed(error: BrokerError | None) -> None:
            if error is None:
                for subscription, copy in copies:
                    subscription.arrived(copy)
            done(error)

        size = sum(copy.size for _, copy in copies)
        self.submit_arrivals(scheduled, changes, remembered, committed, size)

    def activate(self, sequence: int) -> None:
        """A scheduled message is due: each subscription gets its copy."""
        message = self._due(sequence)
        if message is None:
            return
        changes = [self._removal(message, State.SCHEDULED)]
        copies = []
        for subscription in self.subscriptions.values():
            copy = subscription.activated(message)
            copies.append((subscription, copy))
            changes.append(copy.insertion(subscription.key))

        def committed(error: StoreError | None) -> None:
            self._held.discard(sequence)
            if error is None:
                self._forget(State.SCHEDULED, message.size)
                for subscription, copy in copies:
                    subscription.arrived(copy)
            else:
                self.watch_later(message)

        self.env.store.submit(changes, committed, len(copies) * message.size)


def _shorter(first: int | None, second: int | None) -> int | None:
    given = [value for value in (first, second) if value is not None]
    return min(given) if given else None
