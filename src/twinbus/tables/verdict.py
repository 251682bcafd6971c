"""What became of a message, by its operations: the rule in plain Python, for the proof and for tests.

The words are those of Jepsen's total-queue, and three of our own. `twinbus.spark.transformations.verdicts` has the same
rule as a Spark expression, and a property test holds them together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, fields

from twinbus.ledger.recorder import Operation, OperationKind, Outcome, Stage

#: What can be said of a message, in the order of reports. A message has none, one or several of them.
WORDS = (
    "attempted",
    "acknowledged",
    "ok",
    "lost",
    "unexpected",
    "duplicated",
    "recovered",
    "in_flight",
    "dead_lettered",
    "unconfirmed",
)
#: Words that someone should look at: the messages are listed in the table `anomalies`.
ANOMALIES = ("lost", "unexpected", "duplicated", "recovered", "in_flight", "dead_lettered")

#: Whose word was taken for arrivals: the receivers' own rows, or what the namespace said to senders and syphon.
RECEIVERS, NAMESPACE = "receivers", "namespace"

_SUBSCRIPTIONS = "/subscriptions/"


@dataclass(slots=True, kw_only=True)
class Facts:
    """What the ledger has of one message id at one destination."""

    #: Attempts of senders, at the primary or at a backlog queue, and those that were accepted.
    sends: int = 0
    acknowledged: int = 0
    #: Sends that the destination itself accepted: a sender's, and the syphon's moves.
    accepted: int = 0
    #: Operations of the syphon on it: it was in the backlog.
    held: int = 0
    #: The syphon completed it in the backlog, which it does only after a move that has its row.
    completed: int = 0
    #: It became a dead letter of the backlog: expired or refused.
    dead: int = 0
    #: Attempts to schedule it.
    scheduled: int = 0
    #: How often it arrived at a receiver; for a topic, at the subscription where it arrived most often.
    received: int = 0
    #: Whether receivers tell of this message; if not, the namespace's word is the best there is.
    by_receivers: bool = False
    #: There is nothing left to wait for: what has not arrived by now does not arrive.
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which words hold for a message."""

    #: A sender tried to send it, or it was found in the backlog.
    attempted: bool
    #: A sender was told that it was accepted.
    acknowledged: bool
    #: It was attempted and has arrived.
    ok: bool
    #: It was accepted, has not arrived and cannot arrive any more.
    lost: bool
    #: It has arrived, and no one is known to have sent it.
    unexpected: bool
    #: It has arrived more than once.
    duplicated: bool
    #: It has arrived although no sender was told that it was accepted.
    recovered: bool
    #: It was accepted and may still arrive.
    in_flight: bool
    #: It is a dead letter of the backlog: it has not arrived and is not lost.
    dead_lettered: bool
    #: It was attempted, and no acceptance or arrival is known: the sender was told so.
    unconfirmed: bool

    def words(self) -> list[str]:
        return [field.name for field in fields(self) if getattr(self, field.name)]


def judge(facts: Facts) -> Verdict:
    """The words for a message. If attempted it is just one of ok, lost, in flight, dead-lettered, unconfirmed."""
    arrivals = facts.received if facts.by_receivers else facts.accepted
    attempted = facts.sends > 0 or facts.held > 0
    is_known = facts.acknowledged > 0 or facts.held > 0
    # A dead letter that was sent again later is none any more.
    is_dead = facts.dead > 0 and facts.accepted == 0
    is_missing = arrivals == 0 and is_known and not is_dead
    # Completed without a move: the ledger itself says that no one has it any more.
    is_over = facts.is_over or (facts.completed > 0 and facts.accepted == 0)
    return Verdict(
        attempted=attempted,
        acknowledged=facts.acknowledged > 0,
        ok=attempted and arrivals > 0,
        lost=is_missing and is_over,
        unexpected=not attempted and arrivals > 0,
        duplicated=arrivals > 1,
        recovered=attempted and arrivals > 0 and facts.acknowledged == 0,
        in_flight=is_missing and not is_over,
        dead_lettered=arrivals == 0 and is_dead,
        unconfirmed=arrivals == 0 and facts.sends > 0 and not is_known,
    )


def is_arrival(row: Operation) -> bool:
    """A receiver got the message. Messages read from a dead-letter queue did not arrive there."""
    code = row.stage, row.operation, row.outcome
    return code == (Stage.PRIMARY_RECEIVE, OperationKind.RECEIVE, Outcome.DONE) and "/$" not in row.entity


def destination_of(row: Operation) -> str:
    """The queue or topic that a row is about, in lower case."""
    if is_arrival(row):
        return row.entity.lower().partition(_SUBSCRIPTIONS)[0]
    return (row.destination or row.entity).lower()


def facts_of(rows: Iterable[Operation]) -> Facts:
    """What the rows of one message at one destination say about it."""
    facts = Facts()
    numbers: defaultdict[str, set[int | None]] = defaultdict(set)
    for row in rows:
        _add(facts, row)
        if is_arrival(row):
            numbers[row.entity.lower()].add(row.sequence_number)
    facts.received = max((len(some) for some in numbers.values()), default=0)
    return facts


def _add(facts: Facts, row: Operation) -> None:
    """Count a row of a sender or of the syphon."""
    is_done = row.outcome is Outcome.DONE
    facts.scheduled += row.operation is OperationKind.SCHEDULE
    if row.stage in (Stage.DIRECT, Stage.BACKLOG_SEND):
        if row.operation in (OperationKind.SEND, OperationKind.SCHEDULE):
            facts.sends += 1
            facts.acknowledged += is_done
            facts.accepted += is_done and row.stage is Stage.DIRECT
    elif row.stage is Stage.PRIMARY_SEND and row.operation is OperationKind.SEND:
        facts.held += 1
        facts.accepted += is_done
    elif row.stage is Stage.BACKLOG_RECEIVE:
        kind = row.operation
        if kind in (OperationKind.RECEIVE, OperationKind.COMPLETE, OperationKind.DEAD_LETTER):
            facts.held += 1
            facts.completed += is_done and kind is OperationKind.COMPLETE
            # Also if it was only planned: then the message is a dead letter, or still in the queue.
            facts.dead += kind is OperationKind.DEAD_LETTER and row.outcome in (Outcome.DONE, Outcome.PLANNED)
