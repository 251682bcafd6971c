"""What became of a message, from what the ledger counts of it: the words of Jepsen's total-queue, and three of our own.

The rules are written with comparisons, `&` and `|` only. So the same lines judge one message, whose facts are numbers,
and millions, whose facts are arrays: there is no second version that could say something else.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

#: A number, or an array of numbers.
Number = Any
#: True or false, or an array of it.
Truth = Any

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
#: Those that somebody should look at, and whose message ids are therefore kept.
ANOMALIES = ("lost", "unexpected", "duplicated", "recovered", "in_flight", "dead_lettered")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the ledger has of one message id at one destination."""

    #: Attempts of senders, at the primary or at a backlog queue, however they ended.
    sends: Number = 0
    #: Those of them that the broker said yes to.
    acknowledged: Number = 0
    #: Sends that the destination itself said yes to: a sender's, and the syphon's moves.
    accepted: Number = 0
    #: What the syphon did with it: it was in the backlog, whoever put it there.
    held: Number = 0
    #: The syphon has completed it in the backlog; it does so only after a move that has its row.
    completed: Number = 0
    #: It became a dead letter of the backlog: expired or refused.
    dead: Number = 0
    #: How often it arrived at a receiver; for a topic at that subscription where it arrived most often.
    received: Number = 0
    #: 1 if receivers tell of this message, 0 if the namespace's word is the best there is.
    by_receivers: Number = 0
    #: 1 if there is nothing left to wait for: what has not arrived by now does not arrive.
    is_over: Number = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which words hold for a message."""

    #: Somebody tried to send it, or it was found in the backlog.
    attempted: Truth
    #: A sender was told that it was accepted.
    acknowledged: Truth
    #: It was attempted, and has arrived.
    ok: Truth
    #: It was accepted, and neither arrived nor can it still arrive.
    lost: Truth
    #: It has arrived, and nobody is known to have sent it.
    unexpected: Truth
    #: It has arrived more than once.
    duplicated: Truth
    #: It has arrived though no sender was told that it was accepted.
    recovered: Truth
    #: It was accepted, and may still arrive.
    in_flight: Truth
    #: It is a dead letter of the backlog: not arrived, and not lost either.
    dead_lettered: Truth
    #: It was attempted, and nobody knows of an acceptance or an arrival: the sender was told so.
    unconfirmed: Truth


def judge(facts: Facts) -> Verdict:
    """The words for a message. If attempted it is just one of ok, lost, in flight, dead-lettered and unconfirmed."""
    by_receivers, by_namespace = facts.by_receivers == 1, facts.by_receivers == 0
    arrived = (by_receivers & (facts.received > 0)) | (by_namespace & (facts.accepted > 0))
    missing = (by_receivers & (facts.received == 0)) | (by_namespace & (facts.accepted == 0))
    attempted = (facts.sends > 0) | (facts.held > 0)
    known = (facts.acknowledged > 0) | (facts.held > 0)
    # A dead letter that was sent home later is none any more.
    dead_lettered = missing & (facts.dead > 0) & (facts.accepted == 0)
    astray = missing & known & ((facts.dead == 0) | (facts.accepted > 0))
    # Completed without a move: the ledger itself says that nobody has it any more.
    proved = (facts.completed > 0) & (facts.accepted == 0)
    disproved = (facts.completed == 0) | (facts.accepted > 0)
    return Verdict(
        attempted=attempted,
        acknowledged=facts.acknowledged > 0,
        ok=attempted & arrived,
        lost=astray & ((facts.is_over == 1) | proved),
        unexpected=(facts.sends == 0) & (facts.held == 0) & arrived,
        duplicated=(by_receivers & (facts.received > 1)) | (by_namespace & (facts.accepted > 1)),
        recovered=attempted & arrived & (facts.acknowledged == 0),
        in_flight=astray & (facts.is_over == 0) & disproved,
        dead_lettered=dead_lettered,
        unconfirmed=missing & (facts.sends > 0) & (facts.acknowledged == 0) & (facts.held == 0),
    )


FACTS = tuple(field.name for field in fields(Facts))
