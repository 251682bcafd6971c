"""What clients did and were told, against what the store holds: the checker of the crash tests.

Every message has an id of its own and is sent once, so the sets can be compared. The words are those of the usual
queue checkers: attempted, acknowledged, lost, duplicated, unexpected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from twinbus.broker.schema import State


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
class Verdict:
    """What is wrong; all empty if nothing is."""

    lost: set[str] = field(default_factory=set)
    back: set[str] = field(default_factory=set)
    duplicated: set[str] = field(default_factory=set)
    unexpected: set[str] = field(default_factory=set)
    misplaced: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return any(getattr(self, one.name) for one in fields(self))

    def __str__(self) -> str:
        found = {one.name: sorted(getattr(self, one.name)) for one in fields(self)}
        return ", ".join(f"{len(ids)} {name} {ids[:5]}" for name, ids in found.items() if ids) or "nothing wrong"


@dataclass(slots=True)
class Ledger:
    """One queue or subscription. What was asked for may have happened or not; what was confirmed must have."""

    attempted: set[str] = field(default_factory=set)
    acknowledged: set[str] = field(default_factory=set)
    completing: set[str] = field(default_factory=set)
    completed: set[str] = field(default_factory=set)
    deferring: set[str] = field(default_factory=set)
    deferred: set[str] = field(default_factory=set)
    dead_lettering: set[str] = field(default_factory=set)
    dead_lettered: set[str] = field(default_factory=set)
    seen: Verdict = field(default_factory=Verdict)

    def arrived(self, message_id: str) -> None:
        """A receiver got the message."""
        if message_id in self.completed:
            self.seen.back.add(message_id)
        if message_id not in self.attempted:
            self.seen.unexpected.add(message_id)

    def verify(self, stored: Iterable[StoredMessage]) -> Verdict:
        """Compare with everything the store holds of this queue, dead letters included."""
        places = list(stored)
        found = {one.message_id: one for one in places}
        verdict = Verdict(
            lost=self.acknowledged - found.keys() - self.completing,
            back=self.completed & found.keys() | self.seen.back,
            duplicated={one for one, times in Counter(p.message_id for p in places).items() if times > 1},
            unexpected=found.keys() - self.attempted | self.seen.unexpected,
        )
        for message_id, place in found.items():
            if place.in_dead_letters:
                wrong = message_id not in self.dead_lettering
            elif place.state == State.DEFERRED:
                wrong = message_id not in self.deferring
            else:
                wrong = message_id in self.deferred
            if wrong or (message_id in self.dead_lettered and not place.in_dead_letters):
                verdict.misplaced.add(message_id)
        return verdict


@dataclass(slots=True)
class DeletingLedger(Ledger):
    """A queue whose receivers delete: a message may be lost on its way to one, but never comes twice.

    `under_way` bounds how many can be on their way at the moment of a kill.
    """

    received: set[str] = field(default_factory=set)
    under_way: int = 0

    def arrived(self, message_id: str) -> None:
        if message_id in self.received:
            self.seen.duplicated.add(message_id)
        if message_id not in self.attempted:
            self.seen.unexpected.add(message_id)
        self.received.add(message_id)

    def verify(self, stored: Iterable[StoredMessage]) -> Verdict:
        found = Counter(one.message_id for one in stored)
        missing = self.acknowledged - found.keys() - self.received
        return Verdict(
            lost=missing if len(missing) > self.under_way else set(),
            back=self.received & found.keys(),
            duplicated={one for one, times in found.items() if times > 1} | self.seen.duplicated,
            unexpected=found.keys() - self.attempted | self.seen.unexpected,
        )
