"""Every accepted message against its arrival, exactly, day by day (docs/reconciliation.md).

A day of the ledger is read when it has changed, and what is kept of it (`facts.py`) goes to the results. A message that
was done with on its day is only counted. All others, and those of which several days tell, are judged anew by every run
(`judging.py`). Of days that have not changed a run reads what was kept of open messages, and one number for each of the
others: enough to see whether a day that has changed tells of it, too. Message ids never come to the driver.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from twinbus.ledger.layout import DAY_US, end_of_day_us
from twinbus.ledger.reading import LedgerFile
from twinbus.ledger.schema import pc

from .changes import changed_hours
from .facts import (
    ACCEPTED,
    COLUMNS,
    DAY,
    EVENT_SCHEMA,
    KINDS,
    OPEN,
    PLACE,
    RECEIVED,
    SETTLED_SCHEMA,
    events_of,
    gaps_of,
    open_events,
    sorted_out,
    topics_of,
)
from .files import DayFiles, LedgerView, facts_of, spark_path, spark_schema
from .judging import CONTEXT, anomalies_of, at_subscriptions, counts_of, judged, known
from .places import DayPlaces, Place, Places
from .results import RECONCILIATION, Results
from .summary import NAMESPACE, RECEIVERS, EntityVerdict, Summary
from .verdict import WORDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Of the state that is kept from run to run. One of another version is made anew.
VERSION = 2
#: What is read at once: enough that a job is worth its start, and no more than fits a small machine.
MOST_DAYS, MOST_ROWS = 10, 30_000_000
#: How long receivers must have gone on after a message was accepted for it to be lost, if nobody says otherwise.
PATIENCE = timedelta(hours=1)
LEAST_PATIENCE, MOST_PATIENCE = timedelta(0), timedelta(days=30)


@dataclass(frozen=True, slots=True)
class _Day:
    """Where the facts of a day are, and which files of the ledger they were made from."""

    fingerprint: str
    folder: str
    #: How many rows of each kind there are.
    kinds: Mapping[str, int]


@dataclass(slots=True)
class _State:
    """What is kept from run to run."""

    days: dict[str, _Day] = field(default_factory=dict)
    #: The folder with the keys of settled messages of which several days tell; None if there are none.
    crossing: str | None = None

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
        topics = {topic for name in self._state.days for topic in self._places(name).topics}
        for names in self._groups(changed):
            self._make(names, topics)
        self._state.days = dict(sorted(self._state.days.items()))
        self._cross(changed)
        places = Places({name: self._places(name) for name in self._state.days})
        summary, anomalies = self._judge(places)
        return {
            "version": VERSION,
            **self._rules,
            "summary": summary.as_json(),
            "anomalies": anomalies,
            "days": self._days(),
            "crossing": self._state.crossing,
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

    def _make(self, names: Sequence[str], topics: set[str]) -> None:
        """Read some days of the ledger, and write what is kept of them. Topics that they tell of are added."""
        from pyspark.sql import functions as f

        folder, days = f"{self._folder}/days/{names[0]}", {name: self._view.days[name] for name in names}
        rows = self._rows(days.values())
        topics |= {row.topic for row in topics_of(rows).collect()}
        with _no_sort(self._spark, len(KINDS) * len(names)):
            messages = sorted_out(events_of(rows), sorted(topics)).withColumn("part", f.col(DAY))
            self._write(messages, f"{folder}/messages", "part", "kind")
        places = self._count(folder)
        gaps = {row[DAY]: row.asDict() for row in gaps_of(rows).collect()}
        made = {}
        for name, files in days.items():
            number = _number_of(name)
            own, gap = places.get(number, ()), gaps.get(number, {})
            kinds = {kind: sum(one.messages for one in own if one.kind == kind) for kind in KINDS}
            made[name] = _Day(files.fingerprint, folder, kinds)
            kept = DayPlaces(own, self._spelt(files), gap.get("cancelled", 0), gap.get("dropped", 0))
            content = json.dumps(kept.to_json(), ensure_ascii=False).encode()
            self._results.write_bytes(_places_path(name, folder), content)
        self._state.days |= made
        if any(day.kinds[OPEN] for day in made.values()):
            found = open_events(rows, self._messages(OPEN, days=list(names))).withColumn("part", f.col(DAY))
            self._write(found, f"{folder}/events", "part")

    def _spelt(self, files: DayFiles) -> dict[str, str]:
        """How the paths in one file of a day are written that have capital letters: it is for show only."""
        if not files.live:
            return {}
        with LedgerFile(self._view.store, files.folder, files.live[-1].name) as file:
            tables = list(file.tables(["entity", "destination"]))
        columns = [table[name] for table in tables for name in ("entity", "destination")]
        paths = {path for column in columns for path in pc.unique(column).to_pylist() if path}
        paths |= {path[: path.lower().find("/subscriptions/")] for path in paths if "/subscriptions/" in path.lower()}
        return {path.lower(): path for path in sorted(paths, reverse=True) if path != path.lower()}

    def _groups(self, days: Sequence[str]) -> Iterator[list[str]]:
        """Days that are read together: a job for each alone would spend most of its time on getting started."""
        group: list[str] = []
        rows = 0
        for name in days:
            more = self._view.days[name].rows
            if group and (len(group) == MOST_DAYS or rows + more > MOST_ROWS):
                yield group
                group, rows = [], 0
            group.append(name)
            rows += more
        if group:
            yield group

    def _rows(self, days: Iterable[DayFiles]) -> DataFrame:
        """The rows as they lie in the files of these days: repeated ones, too, for they are found where they matter."""
        schema = spark_schema(COLUMNS)
        paths = [spark_path(self._view.url, day.folder, one.name) for day in days for one in day.live]
        if not paths:
            return self._spark.createDataFrame([], schema)
        return self._spark.read.schema(schema).option("recursiveFileLookup", "true").parquet(*paths)

    def _count(self, folder: str) -> dict[int, tuple[Place, ...]]:
        """What was written, summed up, by day."""
        from pyspark.sql import functions as f

        written = self._spark.read.schema(f"{SETTLED_SCHEMA}, part int, kind string").parquet(
            spark_path(self._results.url, f"{folder}/messages")
        )
        rows = written.groupBy(DAY, "kind", "destination", "subscription").agg(
            f.count("*").alias("messages"),
            f.unix_micros(f.max("accepted_ts")).alias("accepted_us"),
            f.unix_micros(f.min("received_ts")).alias("first_us"),
            f.unix_micros(f.max("received_ts")).alias("last_us"),
        )
        found: defaultdict[int, tuple[Place, ...]] = defaultdict(tuple)
        for row in rows.collect():
            columns = row.asDict()
            found[columns.pop(DAY)] += (Place(**columns),)
        return found

    def _places(self, name: str) -> DayPlaces:
        path = _places_path(name, self._state.days[name].folder)
        return DayPlaces.from_json(json.loads(self._results.read_bytes(path)))

    # ---- messages of several days ----

    def _cross(self, changed: list[str]) -> None:
        """Find the settled messages of which several days tell; the keys are enough, for what is exact compares ids."""
        from pyspark.sql import functions as f

        days = self._state.days
        before = self._state.crossing
        if len(days) < 2 or not changed:
            return
        keys = self._keys(list(days))
        if len(changed) < len(days):
            keys = keys.join(self._keys(changed).select("message_key").distinct(), "message_key", "left_semi")
        days_of = keys.groupBy("message_key").agg(
            f.min("day").alias("first"), f.max("day").alias("last"), f.max("is_settled").alias("is_settled")
        )
        found = days_of.where((f.col("first") != f.col("last")) & f.col("is_settled")).select("message_key")
        if before is not None:
            found = found.union(self._read("message_key bigint", [before])).distinct()
        folder = f"{self._folder}/crossing"
        self._write(found, folder)
        is_any = self._results.files_below(folder) and self._read("message_key bigint", [folder]).count() > 0
        self._state.crossing = folder if is_any else None

    def _keys(self, days: list[str]) -> DataFrame:
        from pyspark.sql import functions as f

        settled = self._messages(RECEIVED, ACCEPTED, days=days)
        keys = settled.select("message_key", "day", f.lit(True).alias("is_settled"))
        others = self._messages(OPEN, days=days).select("message_key", "day", f.lit(False).alias("is_settled"))
        return keys.unionByName(others)

    # ---- the verdict ----

    def _judge(self, places: Places) -> tuple[Summary, list[str]]:
        """Judge what is not settled, and count the rest."""
        from pyspark.sql import functions as f

        settled = self._settled_to_judge(places)
        days = self._state.days.items()
        folders = [f"{day.folder}/events/part={_number_of(name)}" for name, day in days if day.kinds[OPEN]]
        events = self._read(EVENT_SCHEMA, folders)
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
        if self._is_any_judged_again(places):
            # What is judged was counted as settled, once for each day.
            for row in settled.where(f.col("subscription").isNull()).groupBy("destination").count().collect():
                done[row["destination"]] -= row["count"]
        arrived = places.arrived()
        if places.has_subscriptions:
            anew = events.where(f.col("number").isNotNull()).select(*PLACE).unionByName(settled.select(*PLACE))
            for sign, some in ((1, anew.distinct()), (-1, settled)):
                for row in at_subscriptions(some).collect():
                    arrived[row.destination][row.subscription] += sign * row.messages
        return self._summary(places, counts, done, arrived), self._results.files_below(folder)

    def _is_any_judged_again(self, places: Places) -> bool:
        return self._state.crossing is not None or bool(places.doubtful)

    def _settled_to_judge(self, places: Places) -> DataFrame:
        """Settled messages that are to be judged all the same."""
        from pyspark.sql import functions as f

        found = self._spark.createDataFrame([], SETTLED_SCHEMA)
        accepted = self._messages(ACCEPTED)
        doubtful = [(_number_of(day), destination) for day, destination in places.doubtful]
        if doubtful:
            known = f.broadcast(self._spark.createDataFrame(doubtful, "day int, destination string"))
            found = accepted.join(known, ["day", "destination"], "left_semi").select(found.columns)
            accepted = accepted.join(known, ["day", "destination"], "left_anti").select(found.columns)
        if self._state.crossing is not None:
            keys = self._read("message_key bigint", [self._state.crossing])
            crossing = self._messages(RECEIVED).unionByName(accepted).join(keys, "message_key", "left_semi")
            found = found.unionByName(crossing.select(found.columns))
        return found

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

    def _messages(self, *kinds: str, days: list[str] | None = None) -> DataFrame:
        chosen = {name: self._state.days[name] for name in days or self._state.days}
        folders = [
            f"{day.folder}/messages/part={_number_of(name)}/kind={kind}"
            for name, day in chosen.items()
            for kind in kinds
            if day.kinds[kind]
        ]
        return self._read(SETTLED_SCHEMA, folders)

    def _read(self, schema: str, folders: list[str]) -> DataFrame:
        if not folders:
            return self._spark.createDataFrame([], schema)
        paths = [spark_path(self._results.url, folder) for folder in folders]
        # No folder becomes a column.
        return self._spark.read.schema(schema).option("recursiveFileLookup", "true").parquet(*paths)

    def _write(self, frame: DataFrame, folder: str, *partitions: str) -> None:
        # The folder is this run's own: what is there was left by an attempt that failed.
        writer = frame.write.mode("overwrite").partitionBy(*partitions).option("compression", "zstd")
        writer.parquet(self._results.path(folder))


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


def _number_of(day: str) -> int:
    return end_of_day_us(day) // DAY_US


def _places_path(day: str, folder: str) -> str:
    return f"{folder}/places-{day}.json"


@contextmanager
def _no_sort(spark: SparkSession, files: int) -> Iterator[None]:
    """Let Spark write so many files at once, rather than sort all rows by day and kind."""
    name = "spark.sql.maxConcurrentOutputFileWriters"
    before = spark.conf.get(name, "0")
    spark.conf.set(name, str(files))
    try:
        yield
    finally:
        spark.conf.set(name, before or "0")
