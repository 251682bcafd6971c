"""Every accepted message against its arrival, exactly (docs/reconciliation.md).

A day of the ledger is read when it has changed, in slices of time, and what is kept of it (`facts.py`) goes to the
results. A message that is done with in its slice is only counted. All others, and those of which several slices tell,
are judged anew by every run (`judging.py`), in ranges of keys. Both are the work of tasks (`reconciliation_tasks.py`);
here is what they are told, and what is made of what they found. Message ids never come to the driver.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from .changes import changed_hours
from .files import DayFiles, LedgerView, facts_of
from .judging import Counts, Rules
from .places import DayPlaces, Places
from .reconciliation_tasks import KEYS, Kept, Made, judging, number_of, sorting
from .results import RECONCILIATION, Results
from .slices import slices_of
from .summary import NAMESPACE, RECEIVERS, EntityVerdict, Summary
from .tasks import run
from .verdict import WORDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Of the state that is kept from run to run. One of another version is made anew.
VERSION = 3
#: How long receivers must have gone on after a message was accepted for it to be lost, if nobody says otherwise.
PATIENCE = timedelta(hours=1)
LEAST_PATIENCE, MOST_PATIENCE = timedelta(0), timedelta(days=30)


@dataclass(frozen=True, slots=True)
class _Day:
    """What is kept of a day, and which files of the ledger it was made from."""

    fingerprint: str
    #: Where `DayPlaces` are.
    places: str
    #: The files of each of its slices, by kind.
    slices: Sequence[Mapping[str, str]]


def reconcile(
    spark: SparkSession,
    view: LedgerView,
    results: Results,
    before: Mapping[str, Any] | None,
    run: str,
    *,
    drained: bool = False,
    patience: timedelta = PATIENCE,
) -> Mapping[str, Any]:
    """Judge all messages of a ledger; what a snapshot is to keep of it. Its `summary` is `Summary.to_json()`.

    Args:
        before: What the last run returned.
        run: Names the folder below which the tables go.
        drained: Backlog and destinations are empty: what has not arrived by now is lost.
        patience: A message is lost when its receivers were still reporting so long after it had been accepted.

    Raises:
        ValueError: `patience` is out of its bounds.
    """
    if not LEAST_PATIENCE <= patience <= MOST_PATIENCE:
        raise ValueError(f"patience must be from {LEAST_PATIENCE} to {MOST_PATIENCE}, not {patience}")
    return _Run(spark, view, results, before, run, drained, patience // timedelta(microseconds=1)).go()


class _Run:
    """One reconciliation."""

    def __init__(
        self,
        spark: SparkSession,
        view: LedgerView,
        results: Results,
        before: Mapping[str, Any] | None,
        run: str,
        drained: bool,
        patience_us: int,
    ) -> None:
        self._spark = spark
        self._view = view
        self._results = results
        self._before = before
        self._folder = f"{RECONCILIATION}/{run}"
        self._rules: dict[str, Any] = {"drained": drained, "patience_us": patience_us}
        self._days = _days_of(before)

    def go(self) -> Mapping[str, Any]:
        changed = self._changed()
        if self._before is not None and not changed and self._is_settled(self._before):
            days = self._kept_days()
            return self._before if days == self._before["days"] else {**self._before, "days": days}
        if changed:
            self._make(changed)
        places = Places({name: self._places(name) for name in self._days})
        counts, anomalies = self._judge(places)
        return {
            "version": VERSION,
            **self._rules,
            "summary": self._summary(places, counts).to_json(),
            "anomalies": anomalies,
            "days": self._kept_days(),
        }

    def _is_settled(self, before: Mapping[str, Any]) -> bool:
        """Whether the last run has said all there is to say about the same days."""
        same = {"version": VERSION, **self._rules, "set_aside": len(self._view.set_aside)}
        return same == {**{name: before.get(name) for name in same}, "set_aside": before["summary"]["set_aside"]}

    # ---- days ----

    def _kept_days(self) -> dict[str, dict[str, Any]]:
        return {name: asdict(day) for name, day in self._days.items()}

    def _changed(self) -> list[str]:
        """The days whose rows are not those that the facts were made from."""
        latest = self._results.latest()
        found = []
        for name, files in self._view.days.items():
            known = self._days.get(name)
            if known is None:
                found.append(name)
            elif known.fingerprint != files.fingerprint:
                then = latest.days.get(name) if latest else None
                old = DayFiles.of(files.folder, facts_of(self._results.read_bytes(then.inventory))) if then else None
                if old is None or old.fingerprint != known.fingerprint or changed_hours(old, files):
                    found.append(name)
                else:  # the same rows in other files
                    self._days[name] = _Day(**{**asdict(known), "fingerprint": files.fingerprint})
        return found

    def _make(self, names: Sequence[str]) -> None:
        """Read some days of the ledger, and write what is kept of them."""
        folder = f"{self._folder}/days"
        slices = [one for name in names for one in slices_of(name, self._view.days[name])]
        made: defaultdict[str, list[Made]] = defaultdict(list)
        task = sorting(self._view.store, self._results, folder, slices)
        for found in run(self._spark, task, [one.rows for one in slices]):
            one = Made.from_json(found)
            made[one.day].append(one)
        for name in names:
            path, parts = f"{folder}/{name}/places.json", made[name]
            places = DayPlaces.of(one.places for one in parts)
            self._results.write_bytes(path, json.dumps(places.to_json(), ensure_ascii=False).encode())
            files = [one.files for one in parts if one.files]
            self._days[name] = _Day(self._view.days[name].fingerprint, path, files)
        self._days = dict(sorted(self._days.items()))

    def _places(self, name: str) -> DayPlaces:
        return DayPlaces.from_json(json.loads(self._results.read_bytes(self._days[name].places)))

    # ---- the verdict ----

    def _judge(self, places: Places) -> tuple[Counts, list[str]]:
        """Judge what is not settled, and what is told of by several slices; and the files with the anomalies."""
        kept = Kept(
            self._results,
            [files for day in self._days.values() for files in day.slices],
            frozenset((number_of(day), destination) for day, destination in places.doubtful),
            Rules(places.reported, **self._rules),
        )
        ranges = -(-places.rows // KEYS)
        found = run(self._spark, judging(kept, f"{self._folder}/anomalies", ranges), [KEYS] * ranges)
        return Counts.of(found), [one["anomalies"] for one in found if one["anomalies"]]

    def _summary(self, places: Places, counts: Counts) -> Summary:
        settled, arrived = places.settled(), places.arrived()
        # What was judged had been counted as settled, once for each slice.
        settled.subtract(counts.settled)
        for destination, at in counts.arrived.items():
            arrived[destination].update(at)
        entities = []
        for destination in sorted({*settled, *counts.words}):
            words = {word: counts.words.get(destination, {}).get(word, 0) for word in WORDS}
            for word in ("attempted", "acknowledged", "ok"):
                words[word] += settled[destination]
            at = {places.spelt.get(path, path): count for path, count in arrived[destination].items() if count}
            evidence = RECEIVERS if destination in places.reported else NAMESPACE
            spelt = places.spelt.get(destination, destination)
            entities.append(EntityVerdict(spelt, evidence, words, dict(sorted(at.items()))))
        set_aside = len(self._view.set_aside)
        before = places.before_reports()
        before.subtract({name: count for name, count in counts.accepted.items() if name in before})
        before.update(counts.before_reports)
        return Summary(entities, places.dropped, set_aside, notes_of(entities, places, before, set_aside))


def notes_of(
    entities: list[EntityVerdict], places: Places, before_reports: Mapping[str, int], set_aside: int
) -> list[str]:
    """What the figures do not answer, and why."""
    notes = []
    unseen = [one.entity for one in entities if one.evidence == NAMESPACE]
    if unseen:
        notes.append(
            f"{_named(unseen)}: no receiver records there (record_receives). That a message arrived means that the"
            " namespace accepted it. Whether a receiver got it, whether attempts without an answer arrived as well, and"
            " what came from elsewhere, cannot be told."
        )
    early = {
        places.spelt.get(destination, destination): count for destination, count in before_reports.items() if count
    }
    if early:
        notes.append(
            f"{_named(sorted(early))}: {sum(early.values())} messages were accepted before receivers began to record;"
            " for them the namespace's word was taken."
        )
    if sum(one.words.get("in_flight", 0) for one in entities):
        notes.append(
            "What is in flight was accepted, and may still arrive. When backlog and destinations are empty: --drained."
        )
    if places.cancelled:
        notes.append(
            f"Scheduled messages were cancelled ({places.cancelled} requests). The ledger does not know which: they are"
            " in flight, or lost with --drained."
        )
    if places.dropped:
        notes.append(f"The ledger lacks {places.dropped} rows, so as many figures may be wrong.")
    if set_aside:
        notes.append(f"{set_aside} files of the ledger could not be read: what they tell is missing here.")
    return notes


def _named(names: list[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _days_of(before: Mapping[str, Any] | None) -> dict[str, _Day]:
    """What an earlier run has kept."""
    if before is None or before.get("version") != VERSION:
        return {}
    return {name: _Day(**day) for name, day in before["days"].items()}
