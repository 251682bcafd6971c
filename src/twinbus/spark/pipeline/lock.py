"""Keep two runs from writing the same results: a claim with a heartbeat, written through Spark.

Object stores have no file locks, and Spark no call that creates a file only if there is none. So a run writes a claim
of its own, then reads all claims: it goes on only if no other one is alive. Of two runs that see each other the one
with the lower name waits for the other to withdraw. Each has written before it reads, so no two runs can miss each
other. Claims age by the clock of the storage, which is the same for all.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import unquote, urlsplit

from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from twinbus.ledger.locations import escape_glob

from .error_inspection import reason_of
from .run_errors import ResultsLockedError, ResultsUnreachableError

logger = logging.getLogger("twinbus.spark")

HEARTBEAT_SECONDS = 30.0
#: A claim without a heartbeat for this long belongs to a run that was killed.
DEAD_AFTER_SECONDS = 150
#: How long a run waits for one that has to withdraw.
WAIT_SECONDS = 30.0
_NO_MARKER = ("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")


class RunLock:
    """The claim of one run on results.

    Args:
        folder: Where claims are written, as Spark takes it.
        run: Name of the run; lower ones win.
    """

    def __init__(self, spark: SparkSession, folder: str, run: str) -> None:
        self._spark = spark
        self._folder = folder
        self._run = run
        # A folder of its own: jobs that write into the same one remove each other's temporary files.
        self._path = f"{folder}/run={run}"

    @contextmanager
    def held(self, sleep: Callable[[float], None] = time.sleep) -> Iterator[None]:
        """Hold the lock. Raises ResultsLockedError."""
        try:
            self._write()
        except Exception as error:  # PySpark's or Py4J's
            raise ResultsUnreachableError(f"Spark cannot write to {self._folder}: {reason_of(error)}") from error
        stop = threading.Event()
        beating = threading.Thread(target=self._beat, args=(stop,), name="twinbus-lock", daemon=True)
        beating.start()
        try:
            self._acquire(sleep)
            yield
        finally:
            stop.set()
            beating.join()
            self._withdraw()

    def _acquire(self, sleep: Callable[[float], None]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while others := self._others():
            if others[0].run < self._run or time.monotonic() > deadline:
                raise ResultsLockedError(
                    f"another run ({others[0].owner}) is writing these results; try again when it is done,"
                    f" or {DEAD_AFTER_SECONDS} seconds after it was killed"
                )
            sleep(0.5)

    def _others(self) -> list[Row]:
        """The claims of other runs that are alive, by name of the run."""
        # A claim that disappears between listing and reading was withdrawn.
        reader = self._spark.read.schema("value string, run string").option("ignoreMissingFiles", "true")
        files = reader.text(escape_glob(self._folder))
        beat = F.unix_seconds("_metadata.file_modification_time").alias("beat")
        claims = files.select("run", F.col("value").alias("owner"), beat).collect()
        newest = {claim.run: claim for claim in sorted(claims, key=lambda claim: claim.beat)}
        if self._run not in newest:
            raise ResultsLockedError("the claim of this run is gone: are its results being deleted?")
        now = max(claim.beat for claim in claims)
        return [
            claim for run, claim in sorted(newest.items()) if run != self._run and now - claim.beat < DEAD_AFTER_SECONDS
        ]

    def _write(self) -> None:
        owner = f"{socket.gethostname()}, process {os.getpid()}"
        claim = self._spark.range(1).select(F.lit(owner).alias("value"))
        claim.coalesce(1).write.mode("append").option(*_NO_MARKER).text(self._path)

    def _withdraw(self) -> None:
        try:
            # Of a partitioned folder without rows nothing is left but the folder itself.
            nothing = self._spark.range(0).select(F.lit("").alias("value"), F.lit("").alias("part"))
            nothing.write.mode("overwrite").option(*_NO_MARKER).partitionBy("part").text(self._path)
            if self._path.startswith("file:"):
                os.rmdir(unquote(urlsplit(self._path).path))
        except (PySparkException, OSError) as error:
            logger.warning(
                "Withdrawing the claim on the results failed; it ends in %s seconds: %r", DEAD_AFTER_SECONDS, error
            )

    def _beat(self, stop: threading.Event) -> None:
        while not stop.wait(HEARTBEAT_SECONDS):
            try:
                self._write()
            except PySparkException as error:
                logger.warning("Renewing the claim on the results failed: %r", error)
