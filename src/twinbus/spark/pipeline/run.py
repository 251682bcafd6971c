"""Bring the result tables up to date with a ledger.

A run lists the ledger's files, compares them with those of the last run (`_inputs`), computes the days that have
changed again from all their files, and replaces those days in every table. `_inputs` is written last, so a run that
was killed is simply repeated by the next one. No day is computed from its own old rows.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from itertools import accumulate, groupby

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from twinbus import __version__
from twinbus.tables import table_schemas as tables
from twinbus.tables.table_schemas import Table

from ..transformations import message_days, operation_counts, verdicts
from ..transformations.activity import activity
from ..transformations.anomalies import anomalies, with_late_arrivals
from ..transformations.arrivals import arrivals
from ..transformations.backlog_time import backlog_time
from ..transformations.latency import latency
from ..transformations.operations import each_operation_once
from ..transformations.usage import usage
from .day_planning import (
    InputFile,
    Listing,
    Status,
    changed_days,
    days_to_reconcile,
    files_to_compare,
    plan,
    whole_days,
)
from .error_inspection import is_malformed, is_missing_path, reason_of
from .inventory import LedgerFiles
from .lock import RunLock
from .run_errors import ResultsLostError
from .storage import PARQUET, ResultTables, literal_rows, settings, use_fewer_partitions

logger = logging.getLogger("twinbus.spark")

LONGEST_PATIENCE = timedelta(days=30)
LONGEST_HORIZON_DAYS = 366
#: How far the clocks of clients may differ.
CLOCK_SKEW = timedelta(minutes=5)
#: How often a run starts over because files disappeared or turned out to be damaged.
ATTEMPTS = 3
#: Days are computed in pieces of about this many rows, so that a long history needs no more disk than a short one.
PIECE_ROWS = 25_000_000
#: Tables that need nothing but the files of a day.
TABLES_OF_ONE_DAY = (tables.USAGE, tables.LATENCY, tables.ACTIVITY, tables.MESSAGE_DAYS)
#: States of `_generation`.
WRITING, COMPLETE = "writing", "complete"

#: Called with what is being done, and how many rows of how many are done.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a run is asked to do (`twinbus.spark.run_pipeline`). Raises ValueError for a value out of its bounds."""

    reconcile: bool = True
    drained: bool = False
    patience: timedelta = timedelta(hours=1)
    horizon_days: int = 14
    allow_shrink: bool = False
    format: str = PARQUET

    def __post_init__(self) -> None:
        if not timedelta(0) <= self.patience <= LONGEST_PATIENCE:
            raise ValueError(f"patience must be from 0 to {LONGEST_PATIENCE.days} days, got {self.patience}")
        if not 1 <= self.horizon_days <= LONGEST_HORIZON_DAYS:
            raise ValueError(f"horizon_days must be from 1 to {LONGEST_HORIZON_DAYS}, got {self.horizon_days}")

    @property
    def rules(self) -> dict[str, int]:
        """The options on which verdicts depend, as `_generation` has them."""
        patience_us = self.patience // timedelta(microseconds=1)
        return {"drained": self.drained, "patience_us": patience_us, "horizon_days": self.horizon_days}


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
    options, started = options or RunOptions(), now or datetime.now(UTC)
    name = f"{started:%Y%m%dT%H%M%S.%f}Z-{uuid.uuid4().hex[:8]}"
    stored = ResultTables(spark, results, options.format)
    with settings(spark), _described(spark, f"twinbus pipeline {name}"):
        files = LedgerFiles(spark, ledger)
        listing = files.listing()  # before anything is written
        use_fewer_partitions(spark, sum(file.bytes for file in listing.files))
        stored.check()
        with RunLock(spark, stored.path("_lock"), name).held():
            return _Run(spark, files, stored, options, name, started, progress).go()


@dataclass(slots=True)
class _Run:
    """One run."""

    spark: SparkSession
    ledger: LedgerFiles
    tables: ResultTables
    options: RunOptions
    name: str
    started: datetime
    progress: Progress
    #: Files of the days that are computed.
    at_work: Sequence[InputFile] = ()
    #: Those of them that turned out to be damaged.
    damaged: list[InputFile] = field(default_factory=list)

    def go(self) -> RunResult:
        for _ in range(ATTEMPTS - 1):
            try:
                return self._attempt()
            except Exception as error:  # Spark's errors have no class in common over its versions
                # A compaction or expiry has removed files, or columns are damaged that the survey does not read.
                damaged = self.ledger.damaged(self.at_work) if is_malformed(error) else []
                if not damaged and not is_missing_path(error):
                    raise
                self.damaged += damaged
                logger.warning("Starting over: %s", reason_of(error))
        return self._attempt()

    def _attempt(self) -> RunResult:
        last, (seen, before) = self.tables.generation(), self.tables.inputs()
        self.progress("listing files", 0, 0)
        listing = self.ledger.listing()
        inputs = self._inputs(listing, before)
        had = {} if last is None else {entry.table: entry.days for entry in last.days or ()}
        now = self.tables.days() if had else {}
        lost = {name: set(days) - set(now[name]) for name, days in had.items()}
        changed = changed_days(inputs, before) | self._days_to_repair(last, before, lost, whole_days(listing, inputs))
        is_rule_new = last is None or not last.reconciled or any(last[k] != v for k, v in self.options.rules.items())
        reconciles_all = self.options.reconcile and (is_rule_new or any(lost.values()))
        is_same = last is not None and last.state == COMPLETE and set(inputs) == set(before)
        if last is not None and is_same and not changed and not reconciles_all:
            return RunResult(last.number, False, inputs=inputs)
        number = max(seen, 0 if last is None else last.number) + 1
        if seen and (number - seen) % 2 == 0:
            number += 1  # or the files that the last complete run has seen would be overwritten
        self._write_generation(number, WRITING, had)
        self._compute(sorted(changed), inputs)
        if self.options.reconcile:
            self._reconcile(changed, reconciles_all)
        self.tables.write_inputs(number, inputs)
        self._write_generation(number, COMPLETE, self.tables.days())
        return RunResult(number, True, sorted(changed), sum(file.rows for file in self.at_work), inputs)

    def _inputs(self, listing: Listing, before: Sequence[InputFile]) -> list[InputFile]:
        """The ledger's files, with what this run can make of them."""
        new, settled = plan(listing, before, today=self.started.date(), allow_shrink=self.options.allow_shrink)
        if new:
            self.progress(f"looking at {len(new)} new files", 0, 0)
        damaged = {(file.day, file.name): file for file in self.damaged}
        return [damaged.get((file.day, file.name), file) for file in (*settled, *self.ledger.survey(new))]

    def _days_to_repair(
        self, last: Row | None, before: Sequence[InputFile], lost: Mapping[str, set[date]], whole: set[date]
    ) -> set[date]:
        """Days to be computed again although their files are those of the last complete run.

        Args:
            lost: The days that each table has lost since then.
            whole: Days of which the ledger has all files that were read.

        Raises:
            ResultsLostError: A day is lost, and the ledger has no files any more to compute it from.
        """
        days = {day for table in TABLES_OF_ONE_DAY for day in lost.get(table.name, ())}
        if (gone := sorted(days - whole)) and not self.options.allow_shrink:
            raise ResultsLostError(
                f"the tables at {self.tables.url} have lost {gone[0]}, and the ledger does not have all files of it"
                " any more: --allow-shrink goes on without it"
            )
        if last is None or last.state != COMPLETE:  # a run was killed, and it is not known what it has replaced
            days |= {file.day for file in before if file.day is not None}
        return days & whole

    def _write_generation(self, number: int, state: str, days: Mapping[str, Sequence[date]]) -> None:
        is_complete = state == COMPLETE
        self.tables.write_generation(
            {
                "number": number,
                "run": self.name,
                "state": state,
                "started": round(self.started.timestamp() * 1e6),
                "finished": round(time.time() * 1e6) if is_complete else None,
                "reconciled": is_complete and self.options.reconcile,
                "days": [{"table": name, "days": published} for name, published in days.items()],
                "twinbus": __version__,
                "spark": self.spark.version,
                **self.options.rules,
            }
        )

    # ---- tables of one day ----

    def _compute(self, days: Sequence[date], inputs: Iterable[InputFile]) -> None:
        """Compute the tables that depend on rows of one day only."""
        files: dict[date, list[InputFile]] = {day: [] for day in days}
        for file in inputs:
            if file.status is Status.READ and file.day in files:
                files[file.day].append(file)
        self.at_work = [file for day in days for file in files[day]]
        totals = dict(zip(days, accumulate(sum(file.rows for file in files[day]) for day in days), strict=True))
        total, done = sum(file.rows for file in self.at_work), 0
        for _, piece in groupby(days, key=lambda day: totals[day] // PIECE_ROWS):
            self.progress("computing tables", done, total)
            chosen = list(piece)
            self._compute_piece({day: files[day] for day in chosen})
            done = totals[chosen[-1]]
        self.progress("computing tables", done, total)

    def _compute_piece(self, files: Mapping[date, Sequence[InputFile]]) -> None:
        if not any(files.values()):  # only with allow_shrink
            for table in TABLES_OF_ONE_DAY:
                self._replace(table, literal_rows(self.spark, table, ()), files)
            return
        rows = self.ledger.rows([file for of_day in files.values() for file in of_day])
        compared = {name for of_day in files.values() for name in files_to_compare(of_day)}
        operations = each_operation_once(rows, compared, operation_counts.COLUMNS)
        with _kept(operation_counts.operation_counts(operations)) as counts:
            self._replace(tables.USAGE, usage(counts), files)
            self._replace(tables.LATENCY, latency(counts), files)
            self._replace(tables.ACTIVITY, activity(counts), files)
        operations = each_operation_once(rows, compared, message_days.COLUMNS)
        self._replace(tables.MESSAGE_DAYS, message_days.message_days(operations), files, small=False)

    # ---- tables of several days ----

    def _reconcile(self, changed: Iterable[date], reconciles_all: bool) -> None:
        """Compute the tables for which days have to be compared."""
        known, horizon = sorted(self.tables.files(tables.USAGE)), self.options.horizon_days
        publish, scan = days_to_reconcile(known, known if reconciles_all else changed, horizon)
        if not publish:
            return
        self.progress("reconciling", 0, 0)
        used = verdicts.daily_usage(self.tables.read(tables.USAGE))
        with _kept(used) as used, _kept(verdicts.spellings(used)) as spellings:
            if self._has_new_spelling(spellings, publish):
                publish, scan = days_to_reconcile(known, known, horizon)
            days = self.spark.range(1).select(F.explode(F.lit(list(publish))).alias("day"))
            times = verdicts.receiver_times(used, days, horizon)
            rows = self.tables.read(tables.MESSAGE_DAYS, scan)
            is_published = F.col("day").isin(list(publish))

            def count(messages: DataFrame) -> DataFrame:
                chosen = messages.where(F.col("is_beyond") | is_published)
                patience = self.options.patience + CLOCK_SKEW
                return verdicts.verdict_counts(verdicts.with_words(chosen, times, patience, self.options.drained))

            self._replace(tables.BACKLOG_TIME, backlog_time(rows, spellings, horizon).where(is_published), publish)
            self._replace(tables.ARRIVALS, arrivals(rows, spellings, horizon).where(is_published), publish)
            with ExitStack() as kept:
                counts = kept.enter_context(_kept(count(verdicts.messages(rows, horizon))))
                if counts.where("is_beyond").limit(1).count():
                    beyond = count(verdicts.messages_beyond_horizon(rows, counts, horizon))
                    counts = kept.enter_context(_kept(counts.where("not is_beyond").unionByName(beyond)))
                if counts.where("unexpected and not is_late").limit(1).count():
                    counts = with_late_arrivals(counts, self.tables.read(tables.MESSAGE_DAYS))
                self._replace(tables.VERDICTS, verdicts.verdicts(counts, spellings), publish)
                self._replace(tables.ANOMALIES, anomalies(counts, spellings), publish)

    def _has_new_spelling(self, spellings: DataFrame, publish: Sequence[date]) -> bool:
        """Whether days that are not published again have a path in a spelling that clients do not use any more."""
        written = [
            self.tables.read(table).where(~F.col("day").isin(list(publish))).select(F.col(column).alias("written"))
            for table, column in ((tables.VERDICTS, "destination"), (tables.ARRIVALS, "subscription"))
        ]
        paths = written[0].unionByName(written[1]).distinct().withColumn("path", F.lower("written"))
        return bool(paths.join(spellings, "path").where("written != spelling").limit(1).count())

    def _replace(self, table: Table, rows: DataFrame, days: Iterable[date], *, small: bool = True) -> None:
        with _described(self.spark, f"twinbus: {table.name}"):
            self.tables.replace(table, rows, days, small=small)


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
    if "connect" in type(spark).__module__:
        yield
        return
    context = spark.sparkContext
    before = context.getLocalProperty("spark.job.description")
    context.setJobDescription(text)
    try:
        yield
    finally:
        context.setLocalProperty("spark.job.description", before)  # type: ignore[arg-type]
