"""Describes the fate of each settled message, for counting and planning."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from twinbus.amqp.client.errors import AmqpError
from twinbus.ledger.recorder import OperationKind

from .moves import EXPIRED

if TYPE_CHECKING:
    from .moves import Move

MOVED = "moved"
#: Dead-lettered: its time to live ended in the backlog, its destination refused it, or it names no destination.
EXPIRED_THERE, REFUSED, MALFORMED = "expired", "poison", "malformed"
#: Deferred: its destination is down or not allowed.
DEFERRED = "deferred"
#: Not moved in time; it comes again.
ABANDONED = "abandoned"
#: The backlog queue did not confirm the settlement, so it may come again.
UNCONFIRMED = "unconfirmed"


class Fact(NamedTuple):
    """One settled message and its outcome.

    `age_ms` is its time in the backlog by the broker's clock, None if unknown; `attempts` is how often it was sent.
    """

    queue: str
    destination: str
    outcome: str
    size: int
    age_ms: int | None
    attempts: int


def fact_of(queue: str, move: Move, kind: OperationKind, error: AmqpError | None, broker_ms: int) -> Fact:
    """The fact of a message whose settlement ended. `broker_ms` is 0 if the broker's time is unknown."""
    restored = move.restored
    enqueued = restored.enqueued_at_ms
    age = max(0, broker_ms - enqueued) if broker_ms and enqueued else None
    outcome = UNCONFIRMED if error is not None else _outcome(move, kind)
    return Fact(queue, restored.destination, outcome, move.size, age, move.attempts)


def _outcome(move: Move, kind: OperationKind) -> str:
    if kind is OperationKind.COMPLETE:
        return MOVED
    if kind is OperationKind.DEFER:
        return DEFERRED
    if kind is not OperationKind.DEAD_LETTER:
        return ABANDONED
    if not move.restored.destination:
        return MALFORMED
    return EXPIRED_THERE if move.reason == EXPIRED else REFUSED
