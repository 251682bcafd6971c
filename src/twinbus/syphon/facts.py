"""What became of one message of the backlog: a row for those who count, watch or plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from twinbus.ledger.recorder import OperationKind

from .errors import AmqpError
from .moves import EXPIRED

if TYPE_CHECKING:
    from .moves import Move

MOVED = "moved"
#: Dead-lettered: its time to live ended in the backlog, its destination refused it, it says no destination.
EXPIRED_THERE, REFUSED, MALFORMED = "expired", "poison", "malformed"
#: Deferred: its destination is down or not allowed.
SET_ASIDE = "set_aside"
#: It was not moved in time, and comes again.
GIVEN_BACK = "given_back"
#: The backlog queue did not confirm what became of it, so it may come again.
UNCONFIRMED = "unconfirmed"


class Fact(NamedTuple):
    """One message and what became of it. `age_ms` is its time in the backlog by the broker's clock, None if not known;
    `attempts` how often it was sent."""

    queue: str
    destination: str
    outcome: str
    size: int
    age_ms: int | None
    attempts: int


def fact_of(queue: str, move: Move, kind: OperationKind, error: AmqpError | None, broker_ms: int) -> Fact:
    """The fact of a message whose settlement was confirmed, or not. `broker_ms` is 0 if the time is not known."""
    restored = move.restored
    enqueued = restored.enqueued_at_ms
    age = max(0, broker_ms - enqueued) if broker_ms and enqueued else None
    outcome = UNCONFIRMED if error is not None else _outcome(move, kind)
    return Fact(queue, restored.destination, outcome, move.size, age, move.attempts)


def _outcome(move: Move, kind: OperationKind) -> str:
    if kind is OperationKind.COMPLETE:
        return MOVED
    if kind is OperationKind.DEFER:
        return SET_ASIDE
    if kind is not OperationKind.DEAD_LETTER:
        return GIVEN_BACK
    if not move.restored.destination:
        return MALFORMED
    return EXPIRED_THERE if move.reason == EXPIRED else REFUSED
