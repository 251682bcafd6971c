"""The report in sentences, for the terminal and for HTML. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinbus.ledger.recorder import OperationKind, Stage
from twinbus.report.reconciliation_summary import UNKNOWN

from .incidents import Incident
from .render.formats import clock, duration, moment, money, number, percent, plural

if TYPE_CHECKING:
    from twinbus.report.outages import Outage
    from twinbus.report.percentiles import Percentiles

    from .document import Report

_LATENCIES = {
    (Stage.DIRECT, OperationKind.SEND): "send to the primary",
    (Stage.BACKLOG_SEND, OperationKind.SEND): "send to the backlog",
    (Stage.PRIMARY_SEND, OperationKind.SEND): "syphon: send to the primary",
    (Stage.PING, OperationKind.PING): "ping",
    (Stage.POLL, OperationKind.POLL): "syphon: poll",
}
_ACTORS = {
    Stage.DIRECT: "sender",
    Stage.BACKLOG_SEND: "sender, to the backlog",
    Stage.BACKLOG_RECEIVE: "syphon",
    Stage.PRIMARY_SEND: "syphon",
    Stage.PRIMARY_RECEIVE: "receiver",
    Stage.MANAGE: "management",
}


@dataclass(frozen=True, slots=True)
class Card:
    """Short answer to one of the three questions."""

    anchor: str
    question: str
    answer: str
    more: str


def card_texts(report: Report) -> list[Card]:
    """Return the answers: what happened, is anything missing, what did it cost."""
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
        return "Not known", f"{moved_unseen_text(report)} Senders that record would show the outage."
    if report.coverage.first is None:
        return "Not known", "The ledger has no rows for this period."
    forced = _forced_text(report)
    if not report.incidents:
        if report.no_data:
            calm = f"No failure in the time that the ledger covers. {no_data_text(report)}"
        else:
            calm = "" if forced else "Every entity was healthy for the whole period."
        return "No outage", " ".join(text for text in (forced, calm) if text)
    longest = longest_of(report.incidents)
    texts = (
        f"{_affected(report.outages)}.",
        f"The longest lasted {duration(longest)}." if longest is not None else "",
        _open_text(report),
        forced,
        no_data_text(report),
    )
    return plural(len(report.incidents), "outage"), " ".join(text for text in texts if text)


def _open_text(report: Report) -> str:
    """Say which outages were not over, and when: the newest row, not the report, is the latest that is known."""
    not_over = sum(not incident.is_over for incident in report.incidents)
    if not not_over or report.coverage.last is None:
        return ""
    which = "Not" if not_over == len(report.incidents) == 1 else f"{number(not_over)} not"
    return f"{which} over at {moment(report.coverage.last)} UTC, the time of the newest row."


def moved_unseen_text(report: Report) -> str:
    """Say that a syphon moved messages of which no sender has a row."""
    moved = plural(report.moved_unseen, "operation")
    return f"A syphon moved messages from the backlog ({moved}), but no sender keeps rows in this ledger."


def _forced_text(report: Report) -> str:
    if not report.forced_failovers:
        return ""
    return f"Failed over by hand: {_affected(report.forced_failovers)}."


def _affected(outages: Sequence[Outage]) -> str:
    entities = plural(len({(outage.pairing, outage.entity) for outage in outages}), "entity", "entities")
    return f"{entities}, {plural(sum(outage.diverted for outage in outages), 'message')} diverted"


def no_data_text(report: Report) -> str:
    """Say how long the ledger has no rows; empty if it covers the whole period."""
    gaps = report.no_data
    if not gaps:
        return ""
    length = duration(sum(gap.until - gap.since for gap in gaps))
    return f"No data for {length} of the period."


def not_drawn_text(incidents: Sequence[Incident], drawn: Sequence[Incident]) -> str:
    """Count the incidents without a plot of their own; empty if there are none."""
    smaller = [incident for incident in incidents if incident not in drawn]
    forced = sum(incident.is_forced for incident in smaller)
    outages = len(smaller) - forced
    counts = [plural(outages, "smaller outage")] if outages else []
    counts += [plural(forced, "smaller failover by hand", "smaller failovers by hand")] if forced else []
    return f"{' and '.join(counts)} {'is' if len(smaller) == 1 else 'are'} not drawn one by one." if smaller else ""


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
    """Return the length of the longest incident, from the first failure until the last entity was back."""
    lengths = (incident.recovered - incident.began for incident in incidents if incident.recovered is not None)
    return max(lengths, default=None)


def incident_story(incident: Incident) -> list[str]:
    """Return one sentence for each step of an incident."""
    count = len({(outage.pairing, outage.entity) for outage in incident.outages})
    entities = "one entity" if count == 1 else f"{number(count)} entities"
    began, diverted = clock(incident.began, seconds=True), incident.total("diverted")
    if incident.is_forced:
        return [
            f"From {began} on, messages to {entities} went to the backlog although no send had failed, as after a"
            f" failover by hand. {plural(diverted, 'message was', 'messages were')} diverted.",
            *_ending(incident, diverted),
        ]
    failing = plural(incident.total("failed_sends"), "send")
    waits = incident.waits
    return [
        f"At {began} sends to {entities} began to fail ({failing} in all).",
        f"Failover came {_between(waits)} after the first failure." if waits else "It did not come to a failover.",
        f"{plural(diverted, 'message')} went to the backlog instead." if diverted else "No message was diverted.",
        *_ending(incident, diverted),
    ]


def _ending(incident: Incident, diverted: int) -> list[str]:
    recovered, drained = incident.recovered, incident.drained
    expired, refused = incident.total("expired"), incident.total("poison")
    dead = expired + refused
    left = diverted - incident.total("moved") - dead
    story = []
    if recovered is None:
        away = sum(outage.recovered_at is None for outage in incident.outages)
        story.append(f"{plural(away, 'entity is', 'entities are')} not back yet.")
    else:
        length = duration(recovered - incident.began)
        end = "The last one followed" if incident.is_forced else "The last entity was back"
        story.append(f"{end} {length} after the first{'' if incident.is_forced else ' failure'}.")
    if drained is not None and recovered is not None:
        story.append(f"The backlog was empty {duration(max(0, drained - recovered))} later.")
    elif diverted and left > 0:
        story.append(f"{plural(left, 'message is', 'messages are')} still in the backlog.")
    if dead:
        messages = plural(dead, "message was", "messages were")
        story.append(f"{messages} dead-lettered in the backlog: {number(expired)} expired, {number(refused)} refused.")
    return story


def _between(lengths: Sequence[int]) -> str:
    """Return the shortest and the longest time, or one if they are the same."""
    low, high = duration(min(lengths)), duration(max(lengths))
    return low if low == high else f"{low} to {high}"


def latency_name(percentiles: Percentiles) -> str:
    """Return the kind of operation in words."""
    stage, operation = percentiles.stage, percentiles.operation
    actor = _ACTORS.get(stage, stage.name.lower())
    return _LATENCIES.get((stage, operation)) or f"{actor}: {operation.name.lower().replace('_', ' ')}"
