"""Bring the result tables up to date with a ledger.

A run lists the ledger's files, compares them with those of the last run (`_inputs`), computes the days that have
changed again from all their files, and replaces those days in every table. `_inputs` is written last, so a run that
was killed is simply repeated by the next one. No day is computed from its own old rows.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import partial

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from twinbus import __version__
from twinbus.tables.table_schemas import (
    ACTIVITY,
    ANOMALIES,
    ARRIVALS,
    BACKLOG_TIME,
    LATENCY,
    MESSAGE_DAYS,
    USAGE,
    VERDICTS,
    Table,
)

from ..transformations import message_days as message_days_table
from ..transformations import operation_counts as counts
from ..transformations.activity import activity
from ..transformations.anomalies import anomalies, without_late_arrivals
from ..transformations.arrivals import arrivals
from ..transformations.backlog_time import backlog_time
from ..transformations.latency import latency
from ..transformations.message_days import message_days
from ..transformations.operations import IdRange, each_operation_once, files_to_compare
from ..transformations.usage import usage
from ..transformations.verdicts import (
    Rules,
    beyond_horizon,
    counted,
    judged,
    messages,
    messages_in_parts,
    reported,
    spelling,
    usage_of_days,
    verdicts,
)
from .day_planning import InputFile, Judging, Listing, Status, changed_days, judging, plan, whole_days
from .error_inspection import is_malformed, is_missing_path, reason_of
from .inventory import LedgerFiles
from .lock import RunLock
from .run_errors import LedgerChangedError, ResultsLostError
from .storage import PARQUET, ResultTables, no_rows, settings, use_fewer_partitions

logger = logging.getLogger("twinbus.spark")

PATIENCE = timedelta(hours=1)
LONGEST_PATIENCE = timedelta(days=30)
HORIZON_DAYS = 14
LONGEST_HORIZON_DAYS = 366
#: How far the clocks of clients may differ.
CLOCK_SKEW = timedelta(minutes=5)
#: How often a run starts over because files disappeared or turned out to be damaged.
ATTEMPTS = 3
#: Days are computed in pieces of about this many rows, so that a long history needs no more disk than a short one.
PIECE_ROWS = 25_000_000
#: Tables that need nothing but the files of a day.
TABLES_OF_ONE_DAY = (USAGE, LATENCY, ACTIVITY, MESSAGE_DAYS)
#: States of `_generation`.
WRITING, COMPLETE = "writing", "complete"

#: Is told what is being done, and how many rows of how many are.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a run is asked to do. Raises ValueError for a value out of its bounds."""

    reconcile: bool = True
    drained: bool = False
    patience: timedelta = PATIENCE
    horizon_days: int = HORIZON_DAYS
    allow_shrink: bool = False
    format: str = PARQUET

    def __post_init__(self) -> None:
        if not timedelta(0) <= self.patience <= LONGEST_PATIENCE:
            raise ValueError(f"patience must be from 0 to {LONGEST_PATIENCE.days} days, got {self.patience}")
        if not 1 <= self.horizon_days <= LONGEST_HORIZON_DAYS:
            raise ValueError(f"horizon_days must be from 1 to {LONGEST_HORIZON_DAYS}, got {self.horizon_days}")

    @property
    def rules(self) -> Rules:
        return Rules(self.horizon_days, self.patience, CLOCK_SKEW, self.drained)


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run has done."""

    number: int
    #: False if nothing had changed.
    is_changed: bool
    #: The days that were computed again, and the rows of their files.
    days: Sequence[date] = ()
    rows: int = 0
    #: All files that the ledger has, as `_inputs` has them.
    inputs: Sequence[InputFile] = field(default=(), repr=False)


def run_pipeline(
    spark: SparkSession,
    ledger: str,
    results: str,
    options: RunOptions | None = None,
    *,
    progress: Progress = lambda what, done, total: None,
    now: datetime | None = None,
) -> RunResult:
    """Bring the tables at `results` up to date with the ledger; both are places as Spark takes them.

    Raises PipelineError if it cannot be done: the tables are then as they were, or the next run repairs them.
    """
    started = now or datetime.now(UTC)
    name = f"{started:%Y%m%dT%H%M%S.%f}Z-{uuid.uuid4().hex[:8]}"
    options = options or RunOptions()
    tables = ResultTables(spark, results, options.format)
    with settings(spark), _described(spark, f"twinbus pipeline {name}"):
        files = LedgerFiles(spark, ledger)
        listing = files.listing()  # before anything is written
        use_fewer_partitions(spark, sum(one.bytes for one in listing.files))
        tables.check()
        with RunLock(spark, tables.path("_lock"), name).held():
            return _Run(spark, files, tables, options, name, started, progress).go()


class _Run:
    """One run."""

    def __init__(
        self,
        spark: SparkSession,
        ledger: LedgerFiles,
        tables: ResultTables,
        options: RunOptions,
        name: str,
        started: datetime,
        progress: Progress,
    ) -> None:
        self._spark = spark
        self._ledger = ledger
        self._tables = tables
        self._options = options
        self._name = name
        self._started = started
        self._progress = progress
        #: Files that turned out to be damaged while their rows were read.
        self._damaged: dict[tuple[date | None, str], InputFile] = {}
        self._at_work: Sequence[InputFile] = ()

    def go(self) -> RunResult:
        for attempt in range(ATTEMPTS):
            is_last = attempt == ATTEMPTS - 1
            try:
                return self._go()
            except LedgerChangedError as error:
                if is_last:
                    raise
                logger.info("Starting over: %s", error)
            except Exception as error:  # Spark's errors have no class in common over its versions
                if is_last:
                    raise
                if is_missing_path(error):  # a compaction or expiry has removed files while they were read
                    logger.info("Starting over: %s", reason_of(error))
                elif is_malformed(error) and self._find_damaged():
                    logger.warning("Starting over without %d damaged files", len(self._damaged))
                else:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _find_damaged(self) -> bool:
        """Whether files of the days at work are damaged that could be read when they were surveyed."""
        found = self._ledger.damaged(self._at_work)
        self._damaged |= {(one.day, one.name): one for one in found}
        return bool(found)

    def _go(self) -> RunResult:
        last, (seen, before) = self._tables.generation(), self._tables.inputs()
        self._progress("listing files", 0, 0)
        listing = self._ledger.listing()
        inputs = self._inputs(listing, before)
        read = [one for one in inputs if one.status is Status.READ]
        had = {} if last is None or last.days is None else {one.table: one.days for one in last.days}
        lost = self._lost_days(had)
        changed = changed_days(inputs, (), before)
        changed |= self._days_to_repair(last, before, lost, whole_days(listing, read))
        judges_all = self._options.reconcile and (bool(lost) or self._are_rules_new(last))
        if last is not None and not changed and not judges_all and _is_current(last, inputs, before):
            return RunResult(last.number, False, inputs=inputs)
        number = max(seen, 0 if last is None else last.number) + 1
        if seen and (number - seen) % 2 == 0:
            number += 1  # or the files that the last complete run has seen would be overwritten
        self._write_generation(number, WRITING, had)
        self._at_work = [one for one in read if one.day in changed]
        self._compute(sorted(changed), read)
        if self._options.reconcile:
            self._reconcile(changed, judges_all)
        self._tables.write_inputs(number, inputs)
        self._write_generation(number, COMPLETE, self._tables.days())
        return RunResult(number, True, sorted(changed), sum(one.rows for one in self._at_work), inputs)

    # ---- files ----

    def _inputs(self, listing: Listing, before: Sequence[InputFile]) -> list[InputFile]:
        """The ledger's files, with what this run can make of them."""
        planned = plan(listing, before, today=self._started.date(), allow_shrink=self._options.allow_shrink)
        if planned.to_survey:
            self._progress(f"looking at {len(planned.to_survey)} new files", 0, 0)
        found = [*planned.settled, *self._ledger.survey(planned.to_survey)]
        return [self._damaged.get((one.day, one.name), one) for one in found]

    def _lost_days(self, had: Mapping[str, Sequence[date]]) -> dict[str, set[date]]:
        """The days that each table has lost since the last complete run."""
        if not had:
            return {}
        now = self._tables.days()
        lost = {name: set(days) - set(now[name]) for name, days in had.items()}
        return {name: days for name, days in lost.items() if days}

    def _days_to_repair(
        self, last: Row | None, before: Sequence[InputFile], lost: Mapping[str, set[date]], whole: set[date]
    ) -> set[date]:
        """Days to be computed again although their files are those of the last complete run.

        Args:
            whole: Days of which the ledger has all files that were read.

        Raises:
            ResultsLostError: A day is lost, and the ledger has no files any more to compute it from.
        """
        found = {day for table in TABLES_OF_ONE_DAY for day in lost.get(table.name, ())}
        if (gone := sorted(found - whole)) and not self._options.allow_shrink:
            raise ResultsLostError(
                f"the tables at {self._tables.url} have lost {gone[0]}, and the ledger does not have all files of it"
                " any more: --allow-shrink goes on without it"
            )
        if last is None or last.state != COMPLETE:  # a run was killed, and it is not known what it has replaced
            found |= {one.day for one in before if one.day is not None}
        return found & whole

    def _are_rules_new(self, last: Row | None) -> bool:
        rules = self._options.rules
        return (
            last is None
            or not last.reconciled
            or last.drained != rules.drained
            or last.patience_us != rules.patience // timedelta(microseconds=1)
            or last.horizon_days != rules.horizon
        )

    def _write_generation(self, number: int, state: str, days: Mapping[str, Sequence[date]]) -> None:
        rules = self._options.rules
        is_complete = state == COMPLETE
        self._tables.write_generation(
            {
                "number": number,
                "run": self._name,
                "state": state,
                "started": _micros(self._started),
                "finished": _micros(datetime.now(UTC)) if is_complete else None,
                "reconciled": is_complete and self._options.reconcile,
                "drained": rules.drained,
                "patience_us": rules.patience // timedelta(microseconds=1),
                "horizon_days": rules.horizon,
                "days": [{"table": name, "days": some} for name, some in days.items()],
                "twinbus": __version__,
                "spark": self._spark.version,
            }
        )

    # ---- tables of one day ----

    def _compute(self, changed: Sequence[date], read: Sequence[InputFile]) -> None:
        """Compute the tables that depend on rows of one day only."""
        by_day = {day: [one for one in read if one.day == day] for day in changed}
        total = sum(one.rows for files in by_day.values() for one in files)
        done = 0
        for piece in _pieces(by_day):
            self._progress("computing tables", done, total)
            self._compute_piece(piece, {day: by_day[day] for day in piece})
            done += sum(one.rows for day in piece for one in by_day[day])
        self._progress("computing tables", done, total)

    def _compute_piece(self, days: Sequence[date], files: Mapping[date, Sequence[InputFile]]) -> None:
        listed = [one for some in files.values() for one in some]
        if not listed:  # only with allow_shrink
            for table in TABLES_OF_ONE_DAY:
                self._replace(table, no_rows(self._spark, table), days)
            return
        rows = self._ledger.rows(listed)
        compared = {day.isoformat(): _compared(some) for day, some in files.items()}
        operations = partial(each_operation_once, rows, compared)
        with _kept(counts.operation_counts(operations(counts.COLUMNS))) as counted_once:
            self._replace(USAGE, usage(counted_once), days)
            self._replace(LATENCY, latency(counted_once), days)
            self._replace(ACTIVITY, activity(counted_once), days)
        found = message_days(operations(message_days_table.COLUMNS))
        self._replace(MESSAGE_DAYS, found, days, small=False)

    # ---- tables of several days ----

    def _reconcile(self, changed: Iterable[date], judges_all: bool) -> None:
        """Compute the tables for which days have to be compared."""
        rules, known = self._options.rules, sorted(self._tables.files(USAGE))
        days = judging(known, known if judges_all else changed, rules.horizon)
        if not days.publish:
            return
        self._progress("reconciling", 0, 0)
        with _kept(usage_of_days(self._tables.read(USAGE))) as used, _kept(spelling(used)) as spelt:
            if self._is_spelt_otherwise(spelt, days.publish):
                days = judging(known, known, rules.horizon)
            found = self._tables.read(MESSAGE_DAYS, days.scan)
            is_published = F.col("day").isin(list(days.publish))
            self._replace(BACKLOG_TIME, backlog_time(found, spelt, rules.horizon).where(is_published), days.publish)
            self._replace(ARRIVALS, arrivals(found, spelt, rules.horizon).where(is_published), days.publish)
            with ExitStack() as kept:
                judgements = kept.enter_context(_kept(self._judged(messages(found, rules), used, days)))
                beyond = beyond_horizon(judgements)
                if beyond.limit(1).count():
                    parts = self._judged(messages_in_parts(found, beyond, rules), used, days)
                    judgements = kept.enter_context(_kept(judgements.where("not is_beyond").unionByName(parts)))
                if judgements.where(F.col("unexpected") & ~F.col("is_late")).limit(1).count():
                    judgements = without_late_arrivals(judgements, self._tables.read(MESSAGE_DAYS))
                self._replace(VERDICTS, verdicts(judgements, spelt), days.publish)
                self._replace(ANOMALIES, anomalies(judgements, spelt), days.publish)

    def _is_spelt_otherwise(self, spelt: DataFrame, publish: Sequence[date]) -> bool:
        """Whether days that are not published again have paths as clients wrote them before, and do not any more."""
        kept = ~F.col("day").isin(list(publish))
        written = self._tables.read(VERDICTS).where(kept).select(F.col("destination").alias("written"))
        places = self._tables.read(ARRIVALS).where(kept).select(F.col("subscription").alias("written"))
        paths = written.unionByName(places).distinct().withColumn("path", F.lower("written"))
        return bool(paths.join(spelt, "path").where(F.col("written") != F.col("spelt")).limit(1).count())

    def _judged(self, found: DataFrame, used: DataFrame, days: Judging) -> DataFrame:
        """Judge messages that belong to days to be published."""
        rules = self._options.rules
        chosen = found.where(F.col("is_beyond") | F.col("seen_day").isin(list(days.publish)))
        first_days = self._spark.range(1).select(F.explode(F.lit(list(days.publish))).alias("first_day"))
        return counted(judged(chosen, reported(used, first_days, rules), rules))

    def _replace(self, table: Table, rows: DataFrame, days: Iterable[date], *, small: bool = True) -> None:
        with _described(self._spark, f"twinbus: {table.name}"):
            self._tables.replace(table, rows, days, small=small)


def _is_current(last: Row, inputs: Iterable[InputFile], before: Iterable[InputFile]) -> bool:
    return last.state == COMPLETE and set(inputs) == set(before)


def _compared(files: Sequence[InputFile]) -> set[str]:
    ranges = {one.name: None if one.ids is None else [IdRange(*each) for each in one.ids] for one in files}
    return files_to_compare(ranges)


def _pieces(by_day: Mapping[date, Sequence[InputFile]]) -> Iterator[list[date]]:
    """Days in pieces of a bounded number of rows, at least one day each."""
    piece: list[date] = []
    rows = 0
    for day, files in sorted(by_day.items()):
        more = sum(one.rows for one in files)
        if piece and rows + more > PIECE_ROWS:
            yield piece
            piece, rows = [], 0
        piece.append(day)
        rows += more
    if piece:
        yield piece


@contextmanager
def _kept(frame: DataFrame) -> Iterator[DataFrame]:
    """Compute a small frame once, for several tables."""
    kept = frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield kept
    finally:
        kept.unpersist()


@contextmanager
def _described(spark: SparkSession, text: str) -> Iterator[None]:
    """Describe the jobs of a block in Spark's web page; with Spark Connect there is no way to."""
    context = None if "connect" in type(spark).__module__ else spark.sparkContext
    if context is None:
        yield
        return
    before = context.getLocalProperty("spark.job.description")
    context.setJobDescription(text)
    try:
        yield
    finally:
        context.setLocalProperty("spark.job.description", before)  # type: ignore[arg-type]


def _micros(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
