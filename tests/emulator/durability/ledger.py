"""Compares what clients attempted and got confirmed with what the store holds: the checker of the crash tests.

Every message has a unique id and is sent once, so sets of ids can be compared. The terms are those of common queue
checkers: attempted, acknowledged, lost, duplicated, unexpected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from twinbus.emulator.storage.schema import State


class StoredMessage(NamedTuple):
    """A row of the messages table."""

    message_id: str
    state: int
    in_dead_letters: bool
    sequence: int
    session: str | None
    size: int
    due_at: int | None


@dataclass(slots=True)
class Violations:
    """Message ids by kind of error; all empty if there are none."""

    lost: set[str] = field(default_factory=set)
    resurrected: set[str] = field(default_factory=set)
    duplicated: set[str] = field(default_factory=set)
    unexpected: set[str] = field(default_factory=set)
    misplaced: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return any(getattr(self, each.name) for each in fields(self))

    def __str__(self) -> str:
        by_kind = {each.name: sorted(getattr(self, each.name)) for each in fields(self)}
        return ", ".join(f"{len(ids)} {name} {ids[:5]}" for name, ids in by_kind.items() if ids) or "no violations"


@dataclass(slots=True)
class Ledger:
    """The operations on one queue or subscription. Requested ones may have happened; confirmed ones must have."""

    attempted: set[str] = field(default_factory=set)
    acknowledged: set[str] = field(default_factory=set)
    completing: set[str] = field(default_factory=set)
    completed: set[str] = field(default_factory=set)
    deferring: set[str] = field(default_factory=set)
    deferred: set[str] = field(default_factory=set)
    dead_lettering: set[str] = field(default_factory=set)
    dead_lettered: set[str] = field(default_factory=set)
    seen: Violations = field(default_factory=Violations)

    def arrived(self, message_id: str) -> None:
        """Record that a receiver got the message."""
        if message_id in self.completed:
            self.seen.resurrected.add(message_id)
        if message_id not in self.attempted:
            self.seen.unexpected.add(message_id)

    def verify(self, stored: Iterable[StoredMessage]) -> Violations:
        """Compare with everything the store holds of this queue, including dead letters."""
        messages = list(stored)
        stored_messages = {message.message_id: message for message in messages}
        violations = Violations(
            lost=self.acknowledged - stored_messages.keys() - self.completing,
            resurrected=self.completed & stored_messages.keys() | self.seen.resurrected,
            duplicated=_repeated(Counter(message.message_id for message in messages)),
            unexpected=stored_messages.keys() - self.attempted | self.seen.unexpected,
        )
        for message_id, message in stored_messages.items():
            if message.in_dead_letters:
                is_misplaced = message_id not in self.dead_lettering
            elif message.state == State.DEFERRED:
                is_misplaced = message_id not in self.deferring
            else:
                is_misplaced = message_id in self.deferred
            if is_misplaced or (message_id in self.dead_lettered and not message.in_dead_letters):
                violations.misplaced.add(message_id)
        return violations


@dataclass(slots=True)
class DeletingLedger(Ledger):
    """A queue with receive-and-delete receivers: a message may be lost in flight, but never comes twice.

    `under_way` bounds the messages in flight when the namespace is killed.
    """

    received: set[str] = field(default_factory=set)
    under_way: int = 0

    def arrived(self, message_id: str) -> None:
        if message_id in self.received:
            self.seen.duplicated.add(message_id)
        if message_id not in self.attempted:
            self.seen.unexpected.add(message_id)
        self.received.add(message_id)

    def verify(self, stored: Iterable[StoredMessage]) -> Violations:
        times_stored = Counter(message.message_id for message in stored)
        missing = self.acknowledged - times_stored.keys() - self.received
        return Violations(
            lost=missing if len(missing) > self.under_way else set(),
            resurrected=self.received & times_stored.keys(),
            duplicated=_repeated(times_stored) | self.seen.duplicated,
            unexpected=times_stored.keys() - self.attempted | self.seen.unexpected,
        )


def _repeated(counts: Counter[str]) -> set[str]:
    return {message_id for message_id, count in counts.items() if count > 1}
