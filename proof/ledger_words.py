"""Compares the ledger's verdicts with those of the checker; both are computed independently."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import replace

from twinbus.ledger.recorder import Operation
from twinbus.tables.verdict import Facts, facts_of, judge

from .checker import Verdict
from .history import Id


def facts_by_message(rows: Iterable[Operation]) -> dict[Id, Facts]:
    """Ledger facts of each message of a finished run."""
    by_message: defaultdict[Id, list[Operation]] = defaultdict(list)
    for row in rows:
        if row.message_id is not None and row.destination is not None:
            by_message[Id(row.destination, row.message_id)].append(row)
    return {message: replace(facts_of(operations), is_over=True) for message, operations in by_message.items()}


def disagreements(
    verdict: Verdict,
    rows: Iterable[Operation],
    completed: Iterable[str] = (),
    in_deleted_queues: Collection[Id] = (),
) -> list[str]:
    """Sentences that say where the ledger and the checker disagree; empty if they agree.

    Both must find the same messages *acknowledged* and *lost*. If an answer was lost the ledger cannot know that it was
    positive, so it may miss an arrival. But what it calls ok must have arrived or expired at its destination, and it
    must know of every other dead letter that the checker found. `completed` are the ids of messages completed in
    backlog queues: each needs a durable row of its move.

    Nor can the ledger know that the owner deleted a queue with messages. Those `in_deleted_queues`, all or one of their
    copies, it may call lost; a message that was deleted at its destination it may call ok.
    """
    facts = facts_by_message(rows)
    verdicts = {message: judge(message_facts) for message, message_facts in facts.items()}

    def by_ledger(word: str) -> set[Id]:
        return {
            message
            for message, ledger_verdict in verdicts.items()
            if getattr(ledger_verdict, word) and ledger_verdict.acknowledged
        }

    acknowledged, dead_lettered = set(verdict.acknowledged), set(verdict.dead_lettered)
    deleted = set(verdict.deleted)
    suspects = {
        "the ledger knows of {}, which no client sent": verdicts.keys() - set(verdict.attempted),
        "only the ledger says that {} was acknowledged": by_ledger("acknowledged") - acknowledged,
        "only the checker says that {} was acknowledged": acknowledged - by_ledger("acknowledged"),
        "only the ledger says that {} is lost": by_ledger("lost") - set(verdict.lost) - set(in_deleted_queues),
        "only the checker says that {} is lost": set(verdict.lost) - by_ledger("lost"),
        "only the ledger says that {} is ok": by_ledger("ok") - set(verdict.ok) - dead_lettered - deleted,
        "only the checker says that {} is a dead letter": dead_lettered - by_ledger("dead_lettered") - by_ledger("ok"),
    }
    moved = {message.message_id for message, message_facts in facts.items() if message_facts.accepted}
    return [
        *(text.format(message.message_id) for text, messages in suspects.items() for message in sorted(messages)),
        *(
            f"{message_id} was completed in the backlog without a row of its move"
            for message_id in completed
            if message_id not in moved
        ),
    ]
