"""What happened, in sentences: used by every form of a report that people read. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinbus.ledger.recorder import OperationKind, Stage
from twinbus.report.reconciliation_summary import UNKNOWN

from .incidents import Incident
from .render.formats import clock, duration, money, number, percent, plural

if TYPE_CHECKING:
    from twinbus.report.percentiles import Percentiles

    from .document import Report

_LATENCIES = {
    (Stage.DIRECT, OperationKind.SEND): "send to the primary",
    (Stage.BACKLOG_SEND, OperationKind.SEND): "send to the backlog",
    (Stage.PRIMARY_SEND, OperationKind.SEND): "syphon: send to the primary",
    (Stage.PING, OperationKind.PING): "ping",
    (Stage.POLL, OperationKind.POLL): "syphon: poll",
}
_WHO = {
    Stage.DIRECT: "sender",
    Stage.BACKLOG_SEND: "sender, to the backlog",
    Stage.BACKLOG_RECEIVE: "syphon",
    Stage.PRIMARY_SEND: "syphon",
    Stage.PRIMARY_RECEIVE: "receiver",
    Stage.MANAGE: "management",
}


@dataclass(frozen=True, slots=True)
class Card:
    """The short answer to one of the three questions."""

    anchor: str
    question: str
    answer: str
    more: str


def card_texts(report: Report) -> list[Card]:
    """What happened, is anything missing, what did it cost."""
    return [
        Card("happened", "What happened?", *_happened(report)),
        Card("missing", "Is anything missing?", *_missing(report)),
        Card("cost", "What did it cost?", *_cost(report)),
    ]


def _happened(report: Report) -> tuple[str, str]:
    if report.period is None:
        if report.left_out:
            return "Not known", "No row of the ledger could be read."
        return "Nothing yet", "The ledger has no rows."
    if report.moved_unseen:
        return "Not known", f"{moved_unseen_text(report)} Senders that record would tell of the outage."
    if not report.incidents:
        return "No outage", "Every entity was healthy for the whole period."
    entities = {(one.pairing, one.entity) for one in report.outages}
    text = f"{plural(len(entities), 'entity', 'entities')}, {plural(_diverted(report), 'message')} diverted."
    away = sum(not one.is_over for one in report.incidents)
    longest = longest_of(report.incidents)
    more = f"The longest lasted {duration(longest)}." if longest is not None else ""
    open_text = f"{plural(away, 'is', 'are')} not over." if away else ""
    return plural(len(report.incidents), "outage"), " ".join(one for one in (text, more, open_text) if one)


def moved_unseen_text(report: Report) -> str:
    """That there was an outage of which no sender has kept a row."""
    moved = plural(report.moved_unseen, "operation")
    return f"A syphon brought messages home ({moved}), but no sender keeps rows in this ledger."


def _diverted(report: Report) -> int:
    return sum(one.diverted for one in report.outages)


def _missing(report: Report) -> tuple[str, str]:
    summary = report.summary
    if summary is None:
        return "Not known", report.headline.sentence
    lost, attempted = summary["lost"], summary["attempted"]
    is_known = report.verdict != UNKNOWN
    if not attempted and not lost:
        return ("Nothing", "No messages were sent.") if is_known else ("Not known", report.headline.sentence)
    more = f"{number(summary['ok'])} of {number(attempted)} messages arrived ({percent(summary['ok'], attempted)})."
    if summary["in_flight"]:
        more += f" {plural(summary['in_flight'], 'is', 'are')} still on the way."
    if not is_known:
        return "Not known", more
    if lost:
        return f"{number(lost)} lost", more
    return "Nothing so far" if summary["in_flight"] else "Nothing", more


def _cost(report: Report) -> tuple[str, str]:
    if report.cost is None:
        return "Nothing", "Nothing was used."
    bill, currency = report.cost.bill, report.cost.book.currency
    operations = plural(report.cost.whole.operations, "billed operation")
    return f"{currency} {money(bill.total)}", f"{operations}. Pairing adds {currency} {money(bill.pairing)}."


def longest_of(incidents: Sequence[Incident]) -> int | None:
    """How long the longest incident was, from the first failure until the last entity was back."""
    return max((one.recovered - one.began for one in incidents if one.recovered is not None), default=None)


def incident_story(incident: Incident) -> list[str]:
    """What happened, one sentence for each step."""
    count = len({(one.pairing, one.entity) for one in incident.outages})
    who = "one entity" if count == 1 else f"{number(count)} entities"
    failing = plural(incident.total("failed_sends"), "send")
    story = [f"At {clock(incident.began, seconds=True)} sends to {who} began to fail ({failing} in all)."]
    waits = incident.waits
    story.append(
        f"Failover came {_between(waits)} after the first failure." if waits else "It did not come to a failover."
    )
    diverted = incident.total("diverted")
    story.append(f"{plural(diverted, 'message')} went to the backlog instead." if diverted else "Nothing was diverted.")
    story.extend(_ending(incident, diverted))
    return story


def _ending(incident: Incident, diverted: int) -> list[str]:
    recovered, drained = incident.recovered, incident.drained
    aside = incident.total("expired") + incident.total("poison")
    left = diverted - incident.total("moved") - aside
    found = []
    if recovered is None:
        away = sum(one.recovered_at is None for one in incident.outages)
        found.append(f"{plural(away, 'entity is', 'entities are')} not back yet.")
    else:
        found.append(f"All was back {duration(recovered - incident.began)} after the first failure.")
    if drained is not None and recovered is not None:
        found.append(f"The backlog was empty {duration(max(0, drained - recovered))} later.")
    elif diverted and left > 0:
        found.append(f"{plural(left, 'message is', 'messages are')} still in the backlog.")
    if aside:
        held = plural(aside, "message was", "messages were")
        expired = number(incident.total("expired"))
        found.append(f"{held} put aside in the backlog: {expired} expired, {number(incident.total('poison'))} refused.")
    return found


def _between(lengths: Sequence[int]) -> str:
    """One length of time, or the least and the most."""
    low, high = duration(min(lengths)), duration(max(lengths))
    return low if low == high else f"{low} to {high}"


def latency_name(percentiles: Percentiles) -> str:
    """What was done, in words."""
    stage, operation = percentiles.stage, percentiles.operation
    who = _WHO.get(stage, stage.name.lower())
    return _LATENCIES.get((stage, operation)) or f"{who}: {operation.name.lower().replace('_', ' ')}"
