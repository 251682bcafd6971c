"""Judges messages by what is kept of them, with arrays: which words hold for each, and how many have each word.

All that is kept of a message is given at once: rows of open ones, and what is kept of settled ones of which several
slices tell. Ids are compared here, not their keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from twinbus.ledger.recorder import OperationKind, Outcome, Stage
from twinbus.ledger.schema import pa, pc

from . import verdict
from .codes import Array
from .facts import MESSAGE, PLACE
from .summary import ANOMALIES as ANOMALY_TABLE
from .summary import NAMESPACE, RECEIVERS
from .verdict import ANOMALIES, WORDS, Facts

#: The facts that are sums, and the times that are extremes.
_SUMS = ("sends", "acknowledged", "accepted", "moves", "held", "completed", "dead", "scheduled")
_TIMES = {"first_us": "min", "last_us": "max", "accepted_us": "max"}
_NO_TIME = -1


@dataclass(frozen=True, slots=True)
class Rules:
    """What messages are judged by, beside what is kept of them."""

    #: When receivers of a destination first and last reported, in microseconds; none if nobody records there.
    reported: Mapping[str, tuple[int, int]]
    #: Backlog and destinations are known to be empty.
    drained: bool
    #: So much later than a message was accepted its receivers must still have reported for it to be lost.
    patience_us: int


@dataclass(slots=True)
class Counts:
    """How many messages have each word, by destination, and how they were counted before."""

    words: dict[str, dict[str, int]] = field(default_factory=dict)
    #: Of destinations whose receivers report: how many were accepted before they began to.
    before_reports: dict[str, int] = field(default_factory=dict)
    #: How many of them had been counted as settled; and how many of these by the namespace's word, beyond doubt.
    settled: dict[str, int] = field(default_factory=dict)
    accepted: dict[str, int] = field(default_factory=dict)
    #: How many more have arrived at each subscription than had been counted, by topic.
    arrived: dict[str, dict[str, int]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, parts: Iterable[Mapping[str, Any]]) -> Counts:
        """The sum of what parts say (`to_json`): each message is in one of them only."""
        found = cls()
        for part in parts:
            for name in ("before_reports", "settled", "accepted"):
                _add(getattr(found, name), part[name])
            for name in ("words", "arrived"):
                for destination, counts in part[name].items():
                    _add(getattr(found, name).setdefault(destination, {}), counts)
        return found


def judge(events: pa.Table, settled: pa.Table, rules: Rules) -> tuple[Counts, pa.Table]:
    """Count the words of these messages, and list the anomalies (`summary.ANOMALIES`).

    Args:
        events: Rows of open messages (`facts.EVENTS`).
        settled: What is kept of settled ones (`facts.SETTLED`) that are to be judged.
    """
    counts = Counts(
        settled=by_destination(settled.filter(settled["subscription"].is_null())),
        arrived=_arrived(events, settled),
    )
    messages = _messages(events, settled)
    if not len(messages):
        return counts, ANOMALY_TABLE.empty_table()
    of = {name: messages[name].to_numpy() for name in (*_SUMS, *_TIMES, "received")}
    judged = _Judged(messages["destination"].combine_chunks().dictionary_encode(), of, rules)
    counts.words, counts.before_reports = judged.words(), judged.before_reports()
    return counts, judged.anomalies(messages["message_id"])


class _Judged:
    """Messages by column, with what holds for them."""

    def __init__(self, destinations: pa.DictionaryArray, of: Mapping[str, Array], rules: Rules) -> None:
        self._of = of
        self._names: list[str] = destinations.dictionary.to_pylist()
        self._destination = destinations.indices.to_numpy()
        reported = [rules.reported.get(one) for one in self._names]
        self._is_reported = np.array([one is not None for one in reported])[self._destination]
        since, until = np.array([one or (0, 0) for one in reported], np.int64)[self._destination].T
        accepted = of["accepted_us"]
        # What was accepted before receivers recorded, and not seen by them later, is judged by the namespace's word.
        in_time = (accepted == _NO_TIME) | (accepted >= since)
        self._by_receivers = self._is_reported & ((of["received"] > 0) | in_time)
        went_on = self._is_reported & (accepted != _NO_TIME) & (until >= accepted + rules.patience_us)
        is_over = rules.drained | (went_on & (of["scheduled"] == 0))
        given = {**of, "by_receivers": self._by_receivers, "is_over": is_over}
        self._verdict = verdict.judge(Facts(**{name: given[name] for name in verdict.FACTS}))

    def words(self) -> dict[str, dict[str, int]]:
        sums = {word: self._by_destination(getattr(self._verdict, word)) for word in WORDS}
        return {name: {word: int(sums[word][at]) for word in WORDS} for at, name in enumerate(self._names)}

    def before_reports(self) -> dict[str, int]:
        sums = self._by_destination(self._is_reported & ~self._by_receivers)
        return {name: int(sums[at]) for at, name in enumerate(self._names) if sums[at]}

    def _by_destination(self, is_counted: Array) -> Array:
        return np.bincount(self._destination[is_counted], minlength=len(self._names))

    def anomalies(self, ids: pa.ChunkedArray) -> pa.Table:
        """One row for each message and word that somebody should look at."""
        arrivals = np.where(self._by_receivers, self._of["received"], self._of["accepted"])
        names = pa.array(self._names, pa.string())
        found = []
        for word in ANOMALIES:
            rows = np.flatnonzero(getattr(self._verdict, word))
            columns = {
                "word": pa.repeat(word, len(rows)),
                "destination": names.take(pa.array(self._destination[rows])),
                "message_id": ids.take(pa.array(rows)),
                **{name: self._of[name][rows] for name in ("first_us", "last_us", "sends", "moves")},
                "arrivals": arrivals[rows],
                "evidence": pc.if_else(pa.array(self._by_receivers[rows]), RECEIVERS, NAMESPACE),
            }
            found.append(pa.table(columns).cast(ANOMALY_TABLE))
        return pa.concat_tables(found)


def _messages(events: pa.Table, settled: pa.Table) -> pa.Table:
    """One row for each message, with everything that is known of it."""
    facts = pa.concat_tables([_facts(events), _facts_of_settled(settled)])
    named = [*MESSAGE, *_SUMS, *_TIMES]
    wanted = [*((name, "sum") for name in _SUMS), *_TIMES.items()]
    messages = facts.group_by(list(MESSAGE)).aggregate(wanted)
    messages = messages.select([*MESSAGE, *(f"{name}_{how}" for name, how in wanted)]).rename_columns(named)
    found = messages.join(_arrivals(events, settled), list(MESSAGE), join_type="left outer")
    return found.set_column(len(named), "received", found["received"].fill_null(0))


def _facts(events: pa.Table) -> pa.Table:
    stage, operation, outcome = (events[name].to_numpy() for name in ("stage", "operation", "outcome"))
    is_done = outcome == int(Outcome.DONE)
    is_sent = np.isin(stage, (Stage.DIRECT, Stage.BACKLOG_SEND))
    is_moved = (stage == Stage.PRIMARY_SEND) & is_done
    of_backlog = stage == Stage.BACKLOG_RECEIVE
    is_accepted = is_moved | ((stage == Stage.DIRECT) & is_done)
    sums = {
        "sends": is_sent,
        "acknowledged": is_sent & is_done,
        "accepted": is_accepted,
        "moves": is_moved,
        "held": of_backlog | (stage == Stage.PRIMARY_SEND),
        "completed": of_backlog & (operation == OperationKind.COMPLETE) & is_done,
        # Also if nobody lived to say that it was done: then it is a dead letter, or still in the queue.
        "dead": of_backlog & (operation == OperationKind.DEAD_LETTER) & (is_done | (outcome == Outcome.PLANNED)),
        "scheduled": operation == OperationKind.SCHEDULE,
    }
    us = _us(events["ts"])
    times = {"first_us": us, "last_us": us, "accepted_us": np.where(is_accepted, us, _NO_TIME)}
    return pa.table(
        {
            **{name: events[name] for name in MESSAGE},
            **{name: sums[name].astype(np.int64) for name in _SUMS},
            **times,
        }
    )


def _facts_of_settled(settled: pa.Table) -> pa.Table:
    """The row of a sender says that it was acknowledged and accepted once, or it would not be settled."""
    # It passed the backlog if it was moved; what else the syphon did no longer matters once it was accepted.
    known = {
        "sends": "sends",
        "acknowledged": "sends",
        "accepted": "sends",
        "moves": "moves",
        "held": "moves",
        "scheduled": "scheduled",
    }
    nothing = np.zeros(len(settled), np.int64)
    return pa.table(
        {
            **{name: settled[name] for name in MESSAGE},
            **{name: settled[known[name]] if name in known else nothing for name in _SUMS},
            **{f"{name}_us": _us(settled[f"{name}_ts"]) for name in ("first", "last", "accepted")},
        }
    )


def _arrivals(events: pa.Table, settled: pa.Table) -> pa.Table:
    """How often each message arrived where it arrived most often: sequence numbers are counted, not deliveries."""
    numbers = _places(events, settled, "number").group_by([*PLACE, "number"]).aggregate([])
    by_place = numbers.group_by(list(PLACE)).aggregate([([], "count_all")])
    found = by_place.group_by(list(MESSAGE)).aggregate([("count_all", "max")])
    return found.rename_columns([*MESSAGE, "received"])


def _arrived(events: pa.Table, settled: pa.Table) -> dict[str, dict[str, int]]:
    """How many more messages each subscription got than were counted as settled."""
    there = _places(events, settled).group_by(list(PLACE)).aggregate([])
    found: dict[str, dict[str, int]] = {}
    for sign, places in ((1, there), (-1, settled)):
        at = places.filter(places["subscription"].is_valid())
        for row in at.group_by(["destination", "subscription"]).aggregate([([], "count_all")]).to_pylist():
            _add(found.setdefault(row["destination"], {}), {row["subscription"]: sign * row["count_all"]})
    return found


def _places(events: pa.Table, settled: pa.Table, *more: str) -> pa.Table:
    """Where messages arrived."""
    columns = [*PLACE, *more]
    tables = [one.filter(one["number"].is_valid()).select(columns) for one in (events, settled)]
    return pa.concat_tables(tables)


def by_destination(table: pa.Table) -> dict[str, int]:
    """How many rows each destination has."""
    return {row["values"]: row["counts"] for row in pc.value_counts(table["destination"]).to_pylist()}


def _us(times: pa.ChunkedArray) -> Array:
    found: Array = times.cast(pa.int64()).fill_null(_NO_TIME).to_numpy()
    return found


def _add(to: dict[str, int], more: Mapping[str, int]) -> None:
    for name, count in more.items():
        to[name] = to.get(name, 0) + count
