"""One message on its way from the backlog to its destination."""

from __future__ import annotations

import uuid
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from twinbus.ledger.recorder import OperationKind

from .errors import AmqpError
from .receiver import Delivery
from .restore import Restored

if TYPE_CHECKING:
    from .lanes import Lane

# Why a message was dead-lettered, for those who look through the dead letters of a backlog queue.
EXPIRED = "ExpiredInBacklog"
POISON = "RefusedByDestination"
LOOP = "DestinationIsBacklogQueue"
MAX_TEXT = 1000  # characters of a dead letter's description; the service takes 4096 bytes

MAX_REMEMBERED = 10_000


class Source(Protocol):
    """Where a message was received, and is settled: the queue's own link, or a request for deferred messages."""

    def complete(self, move: Move) -> None:
        """The destination has it."""

    def dead_letter(self, move: Move, reason: str, description: str) -> None:
        """It cannot be moved, ever."""

    def settle_now(self, move: Move) -> None:
        """Complete or dead-letter it, as was said: now the ledger knows."""

    def defer(self, move: Move) -> None:
        """It cannot be moved now: keep it aside."""

    def give_back(self, move: Move) -> None:
        """It was not moved in time: let it come again."""

    def strand(self, move: Move) -> None:
        """It cannot go on: the primary or the ledger is away. Take no more, and let it come again."""

    def settled(self, move: Move, error: AmqpError | None) -> None:
        """The backlog queue has confirmed the settlement, or not."""


class Move:
    """A message that was received and is not settled yet."""

    __slots__ = (
        "attempts",
        "description",
        "held",
        "lane",
        "leads",
        "locked_at",
        "reason",
        "refusals",
        "restored",
        "sent_at",
        "settlement",
        "size",
        "source",
    )

    def __init__(
        self, source: Source, lane: Lane, restored: Restored, held: Delivery | uuid.UUID, size: int, now: float
    ) -> None:
        """`held` is what it is settled by: the delivery, or the lock token of a deferred message."""
        self.source = source
        self.lane = lane
        self.restored = restored
        self.held = held
        self.size = size
        self.locked_at = now
        #: When it was sent, while its outcome is not known; 0 while it waits to be sent.
        self.sent_at = 0.0
        self.attempts = 0
        self.refusals = 0
        #: Whether it is the one message of its session that may be under way.
        self.leads = False
        self.settlement: OperationKind | None = None
        #: Why it is dead-lettered: in a word, and for people. Empty if it is not.
        self.reason = self.description = ""

    def condemn(self, reason: str, description: str) -> None:
        """It is to be dead-lettered."""
        self.reason, self.description = reason, description[:MAX_TEXT]

    @property
    def lock_token(self) -> uuid.UUID:
        return self.held.lock_token if isinstance(self.held, Delivery) else self.held

    def on_sent(self, error: AmqpError | None) -> None:
        self.lane.on_sent(self, error)

    def on_settled(self, error: AmqpError | None) -> None:
        self.source.settled(self, error)


class Numbers:
    """Sequence numbers in order. There may be millions, so they take eight bytes each."""

    def __init__(self) -> None:
        self._numbers = array("q")

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, number: int) -> None:
        if not self._numbers or number > self._numbers[-1]:
            self._numbers.append(number)
        else:
            at = bisect_left(self._numbers, number)
            if self._numbers[at] != number:
                self._numbers.insert(at, number)

    def remove(self, numbers: Iterable[int]) -> None:
        """Forget those of the numbers that are here."""
        gone = set(numbers)
        if gone:
            self._numbers = array("q", (number for number in self._numbers if number not in gone))

    def first(self, count: int) -> list[int]:
        return self._numbers[:count].tolist()


class Memory:
    """What a pump knows about messages that may come again because their locks ran out: once is enough."""

    def __init__(self) -> None:
        self._accepted: dict[int, None] = {}
        #: The messages that came by a link and are not settled, by number.
        self.under_way: dict[int, Move] = {}

    def has_accepted(self, number: int) -> bool:
        """Whether the destination has the message, and only the backlog does not know."""
        return number in self._accepted

    def accepted(self, number: int) -> None:
        """The destination has the message, and it could not be completed."""
        self._accepted[number] = None
        if len(self._accepted) > MAX_REMEMBERED:
            del self._accepted[next(iter(self._accepted))]

    def forget_accepted(self) -> None:
        """What was accepted cannot be proved: it is to be sent again."""
        self._accepted.clear()

    def completed(self, number: int) -> None:
        self._accepted.pop(number, None)
