"""What the ledger says of a run, against what senders and receivers say. Neither knows of the other."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from twinbus.ledger.recorder import Operation, OperationKind, Outcome, Stage
from twinbus.pipeline.verdict import Facts, judge

from .checker import Verdict
from .history import Id


def facts_of(rows: Iterable[Operation]) -> dict[Id, Facts]:
    """What the rows of a ledger have of each message, by the word of the namespaces; the run is over."""
    counts: dict[Id, Counter[str]] = defaultdict(Counter)
    for row in rows:
        if row.message_id is not None and row.destination is not None:
            counts[Id(row.destination, row.message_id)].update(_told_by(row))
    return {message: Facts(**found, is_over=1) for message, found in counts.items()}


def _told_by(row: Operation) -> Iterator[str]:
    is_done = row.outcome is Outcome.DONE
    if row.stage in (Stage.DIRECT, Stage.BACKLOG_SEND):
        yield "sends"
        if is_done:
            yield "acknowledged"
    if row.stage in (Stage.DIRECT, Stage.PRIMARY_SEND) and is_done:
        yield "accepted"
    if row.stage is Stage.BACKLOG_RECEIVE:
        yield "held"
        if is_done and row.operation is OperationKind.COMPLETE:
            yield "completed"
        # Also if nobody lived to say that it was done: the row comes first.
        if row.operation is OperationKind.DEAD_LETTER and (is_done or row.outcome is Outcome.PLANNED):
            yield "dead"


def disagreements(verdict: Verdict, rows: Iterable[Operation], completed: Iterable[str] = ()) -> list[str]:
    """Where the ledger says something else than the checker, in sentences; empty if nowhere.

    Both must say *acknowledged* and *lost* of the same messages. Of an answer that was lost the ledger cannot know
    that it was a yes, so it may miss an arrival; but whatever it says is ok must have arrived or expired at its
    destination, and what the checker found among the other dead letters it must know. `completed` are the ids of
    messages that backlog queues were told to complete: each needs a durable row of its move.
    """
    facts = facts_of(rows)
    words = {message: judge(one) for message, one in facts.items()}

    def said(word: str) -> set[Id]:
        return {message for message, one in words.items() if getattr(one, word) and one.acknowledged}

    acknowledged, dead = set(verdict.acknowledged), set(verdict.dead_lettered)
    suspects = {
        "the ledger knows of {}, which nobody sent": words.keys() - set(verdict.attempted),
        "only the ledger says that {} was acknowledged": said("acknowledged") - acknowledged,
        "only the checker says that {} was acknowledged": acknowledged - said("acknowledged"),
        "only the ledger says that {} is lost": said("lost") - set(verdict.lost),
        "only the checker says that {} is lost": set(verdict.lost) - said("lost"),
        "only the ledger says that {} is ok": said("ok") - set(verdict.ok) - dead,
        "only the checker says that {} is a dead letter": dead - said("dead_lettered") - said("ok"),
    }
    moved = {message.message_id for message, one in facts.items() if one.accepted}
    return [
        *(text.format(one.message_id) for text, found in suspects.items() for one in sorted(found)),
        *(f"{one} was completed in the backlog without a row of its move" for one in completed if one not in moved),
    ]
