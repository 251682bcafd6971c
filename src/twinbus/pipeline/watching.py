"""Keeps results up to date while a ledger grows: a stream of Spark says which files are new.

The stream only rings the bell. What is counted comes from the ledger as it is then (`ingest`), so a checkpoint that is
lost, old or replayed makes no difference but a look in vain.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .errors import PipelineError
from .files import spark_path, survey_url
from .ingest import Ingested, Reconcile, Tell, ingest
from .results import CHECKPOINTS, Results

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger("twinbus.pipeline")

INTERVAL = 60.0
LEAST_INTERVAL, MOST_INTERVAL = 1.0, 86_400.0
#: How often in a row a run may fail before watching ends, and the longest pause after a failure.
MOST_FAILURES = 5
MOST_PAUSE = 60.0
#: Once in so many seconds a run looks at all days, for the stream passes over files that were changed last more than a
#: week before others, and removes old results, for to know which are in use takes all snapshots of a day.
WHOLE_LOOK_SECONDS = 3600.0

# Only where and when: the content is never read.
_FILES = "path STRING, modificationTime TIMESTAMP, length BIGINT, content BINARY"
_DAY = re.compile(r"/day=(\d{4}-\d{2}-\d{2})/[^/]+$", re.ASCII)


class Watch:
    """Runs of `ingest`, one after the other, as files come.

    Args:
        interval: Seconds between two looks.
        on_run: Is told of every run.

    Raises:
        ValueError: `interval` is out of its bounds.
        PipelineError: Spark is a Spark Connect server.
    """

    def __init__(
        self,
        spark: SparkSession,
        ledger: str | os.PathLike[str],
        results: Results,
        *,
        interval: float = INTERVAL,
        on_run: Callable[[Ingested], None],
        reconcile: Reconcile | None = None,
        tell: Tell = lambda what, done, total: None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if not LEAST_INTERVAL <= interval <= MOST_INTERVAL:
            raise ValueError(f"interval must be from {LEAST_INTERVAL:g} to {MOST_INTERVAL:g} seconds, not {interval!r}")
        if not hasattr(spark, "sparkContext") or "connect" in type(spark).__module__:
            raise PipelineError(
                "a Spark Connect server calls nobody back when files come: run `twinbus pipeline run` now and then"
            )
        self._spark = spark
        self._ledger = ledger
        self._results = results
        self._interval = interval
        self._on_run = on_run
        self._given: dict[str, Any] = {"reconcile": reconcile, "tell": tell, "options": options}
        self._stop = threading.Event()
        self._failures = 0
        self._whole_look_at = 0.0

    def stop(self) -> None:
        """End when the run that is under way is done. From any thread, or a signal handler."""
        self._stop.set()

    def go(self) -> None:
        """Watch until `stop`.

        Raises:
            LedgerNotFound: There is nothing at this place.
            PipelineError: Runs have failed again and again.
        """
        self._ingest(set())
        while not self._stop.is_set():
            query = self._start()
            try:
                self._await(query)
            finally:
                query.stop()

    def _start(self) -> StreamingQuery:
        files = (
            self._spark.readStream.format("binaryFile")
            .schema(_FILES)
            .option("recursiveFileLookup", "true")
            .option("pathGlobFilter", "*.parquet")
            # A file may be compacted away between two looks.
            .option("ignoreMissingFiles", "true")
            .load(spark_path(survey_url(self._ledger, self._given["options"])))
            .select("path")
        )
        return (
            files.writeStream.foreachBatch(self._batch)
            .option("checkpointLocation", self._results.path(CHECKPOINTS, "watch"))
            .trigger(processingTime=f"{self._interval:g} seconds")
            .start()
        )

    def _batch(self, files: DataFrame, number: int) -> None:
        paths = [row.path for row in files.collect()]
        days = {found[1] for path in paths if (found := _DAY.search(path)) is not None}
        if days:
            self._ingest(days)

    def _ingest(self, days: set[str]) -> None:
        is_whole = time.monotonic() >= self._whole_look_at
        # Reconciliation has to know all days, to tell those that are as they were from those that are gone.
        only = None if is_whole or self._given["reconcile"] is not None else days
        done = ingest(self._spark, self._ledger, self._results, only=only, **self._given)
        self._failures = 0
        if is_whole:
            self._whole_look_at = time.monotonic() + WHOLE_LOOK_SECONDS
            self._results.sweep()
        self._on_run(done)

    def _await(self, query: StreamingQuery) -> None:
        """Wait until the stream has ended by itself, which is a failure, or is to end."""
        while query.isActive and not self._stop.wait(0.2):
            pass
        if self._stop.is_set():
            return
        self._failures += 1
        error = query.exception()
        if self._failures > MOST_FAILURES:
            raise PipelineError(f"{MOST_FAILURES} runs in a row have failed: {type(error).__name__}") from error
        pause = min(MOST_PAUSE, 2.0**self._failures)
        logger.warning("A run has failed; the next one is in %d seconds", pause)
        logger.debug("The run that has failed", exc_info=error)
        self._stop.wait(pause)
