"""Count billed units from the operations of a ledger.

`usage_of` counts single operations; the pipeline counts the same from rollups. Both use the rules in this module, and
the bill is computed from the resulting `Usage`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from typing import NamedTuple

from twinbus.ledger.recorder import NamespaceRole, Operation, OperationKind, Outcome, Stage

#: Bytes of a billed unit of sends and receives.
UNIT_BYTES = 64 * 1024
MAX_SUBSCRIPTIONS = 2_000

#: Each message is one or more units, by its size.
SIZED = frozenset({OperationKind.SEND, OperationKind.SCHEDULE, OperationKind.RECEIVE})
#: A request counts once for all its messages, in units of all their bytes.
SIZED_TOGETHER = frozenset({OperationKind.PEEK})
#: A topic makes a copy for each of its subscriptions, and each copy is an operation.
COPIED = frozenset({OperationKind.SEND, OperationKind.SCHEDULE})
#: Operations that the broker refused, or that did not reach it, are not billed. Those without an answer may be.
BILLED = frozenset({Outcome.DONE, Outcome.EMPTY, Outcome.UNKNOWN})
#: Rows about the ledger itself.
NOT_BILLED_STAGES = frozenset({Stage.LEDGER})
#: Stages that pairing adds. The others would be paid without pairing too.
PAIRING_STAGES = frozenset({Stage.BACKLOG_SEND, Stage.BACKLOG_RECEIVE, Stage.PING, Stage.POLL, Stage.MANAGE})


def units_of(size: int) -> int:
    """Return the number of units for a number of bytes: at least one."""
    return max(1, -(-size // UNIT_BYTES))


def billed_units(
    kind: OperationKind, stage: Stage, outcome: Outcome, *, size: int = 0, count: int = 1, subscriptions: int = 0
) -> int:
    """Return the number of billed operations of a row of the ledger.

    Args:
        size: Bytes of all its messages.
        count: Number of its messages.
        subscriptions: Number of subscriptions of a topic; 0 for a queue.
    """
    if outcome not in BILLED or stage in NOT_BILLED_STAGES:
        return 0
    if kind in SIZED_TOGETHER:
        return units_of(size)
    units = max(units_of(size) if kind in SIZED else 1, count)
    return units * (1 + subscriptions) if kind in COPIED else units


def is_transferred(namespace: NamespaceRole, kind: OperationKind, outcome: Outcome) -> bool:
    """Whether the bytes of a row crossed regions: messages into the secondary, and out of it."""
    carries = kind in SIZED or kind in SIZED_TOGETHER
    return carries and namespace is NamespaceRole.SECONDARY and outcome in BILLED


class Usage(NamedTuple):
    """The billed operations of one day, namespace, entity and stage."""

    day: date
    namespace: NamespaceRole
    #: The destination of the message if it has one, otherwise the entity that was asked.
    entity: str
    stage: Stage
    #: Billed units.
    operations: int
    #: Those that got no answer. They may not have reached the service, and then are not billed.
    unanswered: int = 0
    #: Bytes between regions.
    transferred: int = 0

    @property
    def is_pairing(self) -> bool:
        return self.stage in PAIRING_STAGES


def usage_of(operations: Iterable[Operation], subscriptions: Mapping[str, int] | None = None) -> list[Usage]:
    """Count the billed units of operations.

    Args:
        subscriptions: Number of subscriptions of each topic, which is not in the ledger.

    Raises:
        ValueError: A number of subscriptions is out of bounds.
    """
    copies = checked_subscriptions(subscriptions or {})
    sums: defaultdict[tuple[date, NamespaceRole, str, Stage], list[int]] = defaultdict(lambda: [0, 0, 0])
    for operation in operations:
        units = billed_units(
            operation.operation,
            operation.stage,
            operation.outcome,
            size=operation.bytes,
            count=operation.count,
            subscriptions=copies.get(operation.entity.lower(), 0),
        )
        if not units:
            continue
        day = datetime.fromtimestamp(operation.ts // 1_000_000, UTC).date()
        values = sums[day, operation.namespace, operation.destination or operation.entity, operation.stage]
        values[0] += units
        values[1] += units if operation.outcome is Outcome.UNKNOWN else 0
        values[2] += (
            operation.bytes if is_transferred(operation.namespace, operation.operation, operation.outcome) else 0
        )
    return [Usage(*key, *values) for key, values in sorted(sums.items())]


def checked_subscriptions(subscriptions: Mapping[str, int]) -> dict[str, int]:
    """Return the number of subscriptions by topic in lower case, because paths ignore case. Raises `ValueError`."""
    for topic, number in subscriptions.items():
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MAX_SUBSCRIPTIONS:
            raise ValueError(
                f"subscriptions of {topic} must be a whole number from 0 to {MAX_SUBSCRIPTIONS}, not {number!r}"
            )
    return {topic.lower(): number for topic, number in subscriptions.items()}
