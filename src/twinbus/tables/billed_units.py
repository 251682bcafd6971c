"""What is counted: how the operations of a ledger become billed units.

`Usage` is the seam to the bill: `usage_of` counts it from operations, one by one; the pipeline counts the same from
rollups. All tables that the counting needs are here, so that both count alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from typing import NamedTuple

from twinbus.ledger.recorder import NamespaceRole, Operation, OperationKind, Outcome, Stage

#: Sends and receives are billed in units of so many bytes.
UNIT_BYTES = 64 * 1024
MAX_SUBSCRIPTIONS = 2_000

#: One or more units for each message, by its size.
SIZED = frozenset({OperationKind.SEND, OperationKind.SCHEDULE, OperationKind.RECEIVE})
#: One request, however many messages it shows, in units of all their bytes.
SIZED_TOGETHER = frozenset({OperationKind.PEEK})
#: A topic makes a copy for each of its subscriptions, and each is an operation.
COPIED = frozenset({OperationKind.SEND, OperationKind.SCHEDULE})
#: An operation that the broker has refused, or that never reached it, is not billed; one without an answer may be.
BILLED = frozenset({Outcome.DONE, Outcome.EMPTY, Outcome.UNKNOWN})
#: Rows about the ledger itself.
NOT_BILLED_STAGES = frozenset({Stage.LEDGER})
#: The rest would have been paid without pairing, too.
PAIRING_STAGES = frozenset({Stage.BACKLOG_SEND, Stage.BACKLOG_RECEIVE, Stage.PING, Stage.POLL, Stage.MANAGE})


def units_of(size: int) -> int:
    """How many units so many bytes are: at least one."""
    return max(1, -(-size // UNIT_BYTES))


def billed_units(
    kind: OperationKind, stage: Stage, outcome: Outcome, *, size: int = 0, count: int = 1, subscriptions: int = 0
) -> int:
    """How many operations are billed for a row of the ledger.

    Args:
        size: Bytes of all its messages.
        count: How many messages it is about.
        subscriptions: How many subscriptions a topic has; 0 for a queue.
    """
    if outcome not in BILLED or stage in NOT_BILLED_STAGES:
        return 0
    if kind in SIZED_TOGETHER:
        return units_of(size)
    units = max(units_of(size) if kind in SIZED else 1, count)
    return units * (1 + subscriptions) if kind in COPIED else units


def is_transferred(namespace: NamespaceRole, kind: OperationKind, outcome: Outcome) -> bool:
    """Whether the bytes of a row went between regions: messages into the secondary, and out of it again."""
    carries = kind in SIZED or kind in SIZED_TOGETHER
    return carries and namespace is NamespaceRole.SECONDARY and outcome in BILLED


class Usage(NamedTuple):
    """What was used in one day, by one entity, for one stage."""

    day: date
    namespace: NamespaceRole
    #: Where the message is to arrive in the end if it has a destination, else what was asked.
    entity: str
    stage: Stage
    #: Billed units.
    operations: int
    #: How many of them got no answer: perhaps they never reached the service, and are not billed.
    unanswered: int = 0
    #: Bytes between regions.
    transferred: int = 0

    @property
    def is_pairing(self) -> bool:
        return self.stage in PAIRING_STAGES


def usage_of(operations: Iterable[Operation], subscriptions: Mapping[str, int] | None = None) -> list[Usage]:
    """Count the operations of a ledger.

    Args:
        subscriptions: How many subscriptions each topic has; the ledger does not know.

    Raises:
        ValueError: A number of subscriptions is out of bounds.
    """
    copies = checked_subscriptions(subscriptions or {})
    sums: defaultdict[tuple[date, NamespaceRole, str, Stage], list[int]] = defaultdict(lambda: [0, 0, 0])
    for one in operations:
        units = billed_units(
            one.operation,
            one.stage,
            one.outcome,
            size=one.bytes,
            count=one.count,
            subscriptions=copies.get(one.entity.lower(), 0),
        )
        if not units:
            continue
        day = datetime.fromtimestamp(one.ts // 1_000_000, UTC).date()
        found = sums[day, one.namespace, one.destination or one.entity, one.stage]
        found[0] += units
        found[1] += units if one.outcome is Outcome.UNKNOWN else 0
        found[2] += one.bytes if is_transferred(one.namespace, one.operation, one.outcome) else 0
    return [Usage(*key, *values) for key, values in sorted(sums.items())]


def checked_subscriptions(subscriptions: Mapping[str, int]) -> dict[str, int]:
    """The number of subscriptions by topic in small letters, for paths are the same in any. Raises `ValueError`."""
    for topic, number in subscriptions.items():
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MAX_SUBSCRIPTIONS:
            raise ValueError(
                f"subscriptions of {topic} must be a whole number from 0 to {MAX_SUBSCRIPTIONS}, not {number!r}"
            )
    return {topic.lower(): number for topic, number in subscriptions.items()}
