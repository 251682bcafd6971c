"""Tracks one message on its way from the backlog to its destination."""

from __future__ import annotations

import uuid
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from twinbus.amqp.client.errors import AmqpError
from twinbus.amqp.client.receiver import Delivery
from twinbus.envelope.restoring import Identity, Restored
from twinbus.ledger.recorder import EXPIRED_IN_BACKLOG, OperationKind

if TYPE_CHECKING:
    from ..delivery.lanes import Lane

# Dead-letter reasons of a backlog queue.
EXPIRED = EXPIRED_IN_BACKLOG
POISON = "RefusedByDestination"
LOOP = "DestinationIsBacklogQueue"
MAX_TEXT = 1000  # characters of a dead letter's description; the service allows 4096 bytes

MAX_REMEMBERED = 10_000


class Source(Protocol):
    """Where a message came from and is settled: the receiver link, or a batch of deferred messages."""

    def complete(self, move: Move) -> None:
        """The destination has accepted the message."""

    def dead_letter(self, move: Move, reason: str, description: str) -> None:
        """The message can never be moved."""

    def settle_now(self, move: Move) -> None:
        """Complete or dead-letter the message: the ledger has its rows now."""

    def defer(self, move: Move) -> None:
        """The message cannot be moved now."""

    def abandon(self, move: Move) -> None:
        """The message was not moved in time: let it come again."""

    def stop_and_abandon(self, move: Move) -> None:
        """The primary or the ledger is unavailable: stop receiving, and let the message come again."""

    def settled(self, move: Move, error: AmqpError | None) -> None:
        """The backlog queue confirmed the settlement; `error` if it did not."""


class Move:
    """A received message that is not settled yet."""

    __slots__ = (
        "attempts",
        "description",
        "is_session_head",
        "lane",
        "locked_at",
        "reason",
        "receipt",
        "refusals",
        "restored",
        "sent_at",
        "settlement",
        "size",
        "source",
    )

    def __init__(
        self, source: Source, lane: Lane, restored: Restored, receipt: Delivery | uuid.UUID, size: int, now: float
    ) -> None:
        """`receipt` is what it is settled by: the delivery, or the lock token of a deferred message."""
        self.source = source
        self.lane = lane
        self.restored = restored
        self.receipt = receipt
        self.size = size
        self.locked_at = now
        #: When it was sent; 0 while it waits to be sent.
        self.sent_at = 0.0
        self.attempts = 0
        self.refusals = 0
        #: Whether it is the one message of its session that may be in flight.
        self.is_session_head = False
        self.settlement: OperationKind | None = None
        #: Why it is dead-lettered; empty if it is not.
        self.reason = self.description = ""

    def mark_dead_letter(self, reason: str, description: str) -> None:
        """Note why the message is to be dead-lettered."""
        self.reason, self.description = reason, description[:MAX_TEXT]

    @property
    def lock_token(self) -> uuid.UUID:
        return self.receipt.lock_token if isinstance(self.receipt, Delivery) else self.receipt

    def on_sent(self, error: AmqpError | None) -> None:
        self.lane.on_sent(self, error)

    def on_settled(self, error: AmqpError | None) -> None:
        self.source.settled(self, error)


class SequenceNumbers:
    """Sorted sequence numbers, eight bytes each: there may be millions."""

    def __init__(self) -> None:
        self._numbers = array("q")

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, number: int) -> None:
        if not self._numbers or number > self._numbers[-1]:
            self._numbers.append(number)
        else:
            position = bisect_left(self._numbers, number)
            if self._numbers[position] != number:
                self._numbers.insert(position, number)

    def remove(self, numbers: Iterable[int]) -> None:
        """Remove those of the numbers that are present."""
        gone = set(numbers)
        if gone:
            self._numbers = array("q", (number for number in self._numbers if number not in gone))

    def first(self, count: int) -> list[int]:
        return self._numbers[:count].tolist()


class DuplicateGuard:
    """Remembers messages that may arrive again after their locks expired, so that each is sent once."""

    def __init__(self) -> None:
        self._accepted: dict[Identity, None] = {}
        #: Messages received by a link and not settled yet.
        self.in_progress: dict[Identity, Move] = {}

    def has_accepted(self, message: Identity) -> bool:
        """Whether the destination has accepted the message, but the backlog has not completed it."""
        return message in self._accepted

    def accepted(self, message: Identity) -> None:
        """The destination accepted the message, but completing it failed."""
        self._accepted[message] = None
        if len(self._accepted) > MAX_REMEMBERED:
            del self._accepted[next(iter(self._accepted))]

    def forget_accepted(self) -> None:
        """Forget the accepted messages, so that they are sent again: their rows may be missing."""
        self._accepted.clear()

    def completed(self, message: Identity) -> None:
        self._accepted.pop(message, None)
