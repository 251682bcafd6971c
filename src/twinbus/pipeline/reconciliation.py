"""Every accepted message against its arrival, exactly (docs/reconciliation.md).

A day of the ledger is read when it has changed, in slices of time, and what is kept of it (`facts.py`) goes to the
results. A message that is done with in its slice is only counted. All others, and those of which several slices tell,
are judged anew by every run (`judging.py`). Message ids never come to the driver.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from .changes import changed_hours
from .facts import ACCEPTED, EVENTS, OPEN, PLACE, RECEIVED, SETTLED, ddl
from .files import DayFiles, LedgerView, facts_of, spark_path
from .judging import CONTEXT, anomalies_of, at_subscriptions, counts_of, judged, known
from .places import DayPlaces, Places
from .results import RECONCILIATION, Results
from .slice_tasks import CROSSING, KEYS, MADE, Made, Tasks, crossing, number_of, sorting
from .slices import slices_of
from .summary import NAMESPACE, RECEIVERS, EntityVerdict, Summary
from .verdict import WORDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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

    def files(self, kind: str) -> list[str]:
        return [files[kind] for files in self.slices if kind in files]


@dataclass(slots=True)
class _State:
    """What is kept from run to run."""

    days: dict[str, _Day] = field(default_factory=dict)
    #: The files with the settled messages of which several slices tell.
    crossing: Sequence[str] = ()

    @classmethod
    def of(cls, before: Mapping[str, Any] | None) -> _State:
        if before is None or before.get("version") != VERSION:
            return cls()
        return cls({name: _Day(**day) for name, day in before["days"].items()}, before["crossing"])


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
    """Judge all messages of a ledger; what a snapshot is to keep of it. Its `summary` is `Summary.as_json()`.

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
        self._state = _State.of(before)

    def go(self) -> Mapping[str, Any]:
        changed = self._changed()
        if self._before is not None and not changed and self._is_settled(self._before):
            days = self._days()
            return self._before if days == self._before["days"] else {**self._before, "days": days}
        if changed:
            self._make(changed)
            self._cross()
        places = Places({name: self._places(name) for name in self._state.days})
        summary, anomalies = self._judge(places)
        return {
            "version": VERSION,
            **self._rules,
            "summary": summary.as_json(),
            "anomalies": anomalies,
            "days": self._days(),
            "crossing": list(self._state.crossing),
        }

    def _is_settled(self, before: Mapping[str, Any]) -> bool:
        """Whether the last run has said all there is to say about the same days."""
        same = {"version": VERSION, **self._rules, "set_aside": len(self._view.set_aside)}
        return same == {**{name: before.get(name) for name in same}, "set_aside": before["summary"]["set_aside"]}

    # ---- days ----

    def _days(self) -> dict[str, dict[str, Any]]:
        return {name: asdict(day) for name, day in self._state.days.items()}

    def _changed(self) -> list[str]:
        """The days whose rows are not those that the facts were made from."""
        latest = self._results.latest()
        found = []
        for name, files in self._view.days.items():
            known = self._state.days.get(name)
            if known is None:
                found.append(name)
            elif known.fingerprint != files.fingerprint:
                then = latest.days.get(name) if latest else None
                old = DayFiles.of(files.folder, facts_of(self._results.read_bytes(then.inventory))) if then else None
                if old is None or old.fingerprint != known.fingerprint or changed_hours(old, files):
                    found.append(name)
                else:  # the same rows in other files
                    self._state.days[name] = _Day(**{**asdict(known), "fingerprint": files.fingerprint})
        return found

    def _make(self, names: Sequence[str]) -> None:
        """Read some days of the ledger, and write what is kept of them."""
        folder = f"{self._folder}/days"
        slices = [one for name in names for one in slices_of(name, self._view.days[name])]
        made: defaultdict[str, list[Made]] = defaultdict(list)
        tasks = sorting(self._view.store, self._results, folder, slices)
        for row in self._run(tasks, len(slices), MADE).collect():
            one = Made.from_json(row.made)
            made[one.day].append(one)
        for name in names:
            path, parts = f"{folder}/{name}/places.json", made[name]
            places = DayPlaces.of(one.places for one in parts)
            self._results.write_bytes(path, json.dumps(places.to_json(), ensure_ascii=False).encode())
            files = [one.files for one in parts if one.files]
            self._state.days[name] = _Day(self._view.days[name].fingerprint, path, files)
        self._state.days = dict(sorted(self._state.days.items()))

    def _places(self, name: str) -> DayPlaces:
        return DayPlaces.from_json(json.loads(self._results.read_bytes(self._state.days[name].places)))

    def _cross(self) -> None:
        """Find the settled messages of which several slices tell."""
        kept = [files for day in self._state.days.values() for files in day.slices]
        self._state.crossing = ()
        if len(kept) < 2:
            return
        messages = sum(one.messages for name in self._state.days for one in self._places(name).places)
        parts = -(-messages // KEYS)
        folder = f"{self._folder}/crossing"
        self._write(self._run(crossing(self._results, kept, parts), parts, CROSSING), folder)
        self._state.crossing = self._results.files_below(folder)

    def _run(self, tasks: Tasks, number: int, schema: str) -> DataFrame:
        """What so many tasks yield: each is given its number."""
        return self._spark.range(0, number, 1, max(1, number)).mapInArrow(tasks, schema)

    # ---- the verdict ----

    def _judge(self, places: Places) -> tuple[Summary, list[str]]:
        """Judge what is not settled, and count the rest."""
        from pyspark.sql import functions as f

        settled = self._settled_to_judge(places)
        events = self._read(ddl(EVENTS), self._files(OPEN))
        reported = [(destination, *times) for destination, times in places.reported.items()]
        context = self._spark.createDataFrame(reported, CONTEXT)
        facts = known(events, settled, context, **self._rules).persist()
        try:
            messages = judged(facts)
            counts = {row.destination: row.asDict() for row in counts_of(messages).collect()}
            folder = f"{self._folder}/anomalies"
            self._write(anomalies_of(messages), folder)
        finally:
            facts.unpersist()
        done = places.settled()
        if self._state.crossing or places.doubtful:
            # What is judged was counted as settled, once for each slice.
            for row in settled.where(f.col("subscription").isNull()).groupBy("destination").count().collect():
                done[row["destination"]] -= row["count"]
        arrived = places.arrived()
        if places.has_subscriptions:
            anew = events.where(f.col("number").isNotNull()).select(*PLACE).unionByName(settled.select(*PLACE))
            for sign, some in ((1, anew.distinct()), (-1, settled)):
                for row in at_subscriptions(some).collect():
                    arrived[row.destination][row.subscription] += sign * row.messages
        return self._summary(places, counts, done, arrived), self._results.files_below(folder)

    def _settled_to_judge(self, places: Places) -> DataFrame:
        """Settled messages that are to be judged all the same."""
        from pyspark.sql import functions as f

        found = self._read(CROSSING, self._state.crossing)
        doubtful = places.doubtful
        if doubtful:
            rows = [(number_of(day), destination) for day, destination in doubtful]
            known = f.broadcast(self._spark.createDataFrame(rows, "day int, destination string"))
            accepted = self._read(ddl(SETTLED), self._files(ACCEPTED, days={day for day, _ in doubtful}))
            accepted = accepted.join(known, ["day", "destination"], "left_semi")
            is_other = f.col("kind") == RECEIVED
            others = found.where(is_other).unionByName(
                found.where(~is_other).join(known, ["day", "destination"], "left_anti")
            )
            found = accepted.unionByName(others.drop("kind"))
        return found.select(SETTLED.names)

    def _summary(
        self,
        places: Places,
        counts: Mapping[str, Mapping[str, int]],
        settled: Mapping[str, int],
        arrived: Mapping[str, Mapping[str, int]],
    ) -> Summary:
        entities = []
        for destination in sorted({*settled, *counts}):
            done = settled.get(destination, 0)
            words = {word: counts.get(destination, {}).get(word, 0) for word in WORDS}
            for word in ("attempted", "acknowledged", "ok"):
                words[word] += done
            at = {places.spelt.get(path, path): count for path, count in arrived.get(destination, {}).items() if count}
            evidence = RECEIVERS if destination in places.reported else NAMESPACE
            spelt = places.spelt.get(destination, destination)
            entities.append(EntityVerdict(spelt, evidence, words, dict(sorted(at.items()))))
        set_aside = len(self._view.set_aside)
        before = places.before_reports()
        before.update({destination: row["before_reports"] for destination, row in counts.items()})
        return Summary(entities, places.dropped, set_aside, notes_of(entities, places, before, set_aside))

    # ---- tables ----

    def _files(self, kind: str, days: Iterable[str] | None = None) -> list[str]:
        return [path for name in days or self._state.days for path in self._state.days[name].files(kind)]

    def _read(self, schema: str, files: Sequence[str]) -> DataFrame:
        if not files:
            return self._spark.createDataFrame([], schema)
        return self._spark.read.schema(schema).parquet(*(spark_path(self._results.url, one) for one in files))

    def _write(self, frame: DataFrame, folder: str) -> None:
        # The folder is this run's own: what is there was left by an attempt that failed.
        frame.write.mode("overwrite").option("compression", "zstd").parquet(self._results.path(folder))


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
