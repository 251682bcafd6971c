"""Keep two runs from writing the same results: a claim with a heartbeat, written through Spark.

Object stores have no file locks, and Spark no call that creates a file only if there is none. So a run writes a claim
of its own, then reads all claims: it goes on only if it sees no other one that is alive. Of two runs that see each
other the one with the lower name waits for the other to withdraw. Whoever goes on has read the claims after it had
written its own, so no two runs can miss each other. Claims age by the clock of the storage, which is the same for all.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
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
        self._owner = f"{socket.gethostname()}, process {os.getpid()}"

    @contextmanager
    def held(self, sleep: Callable[[float], None] = time.sleep) -> Iterator[None]:
        """Hold the lock. Raises ResultsLockedError."""
        try:
            self._write()
        except Exception as error:  # PySpark's or Py4J's
            raise ResultsUnreachableError(f"Spark cannot write to {self._folder}: {reason_of(error)}") from error
        try:
            self._acquire(sleep)
            stop = threading.Event()
            beating = threading.Thread(target=self._beat, args=(stop,), name="twinbus-lock", daemon=True)
            beating.start()
            try:
                yield
            finally:
                stop.set()
                beating.join()
        finally:
            self._withdraw()

    def _acquire(self, sleep: Callable[[float], None]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while others := self._others():
            run, (owner, _) = min(others.items())
            if run < self._run or time.monotonic() > deadline:
                raise ResultsLockedError(
                    f"another run ({owner}) is writing these results; try again when it is done,"
                    f" or {DEAD_AFTER_SECONDS} seconds after it was killed"
                )
            sleep(0.5)

    def _others(self) -> dict[str, tuple[str, int]]:
        """The claims of other runs that are alive: owner and last heartbeat, by name of the run."""
        claims: dict[str, tuple[str, int]] = {}
        for row in self._claims():
            before = claims.get(row.run)
            if before is None or before[1] < row.modified:
                claims[row.run] = (row.value, row.modified)
        if self._run not in claims:
            raise ResultsLockedError("the claim of this run is gone: are its results being deleted?")
        now = max(modified for _, modified in claims.values())
        return {
            run: claim
            for run, claim in claims.items()
            if run != self._run and now - claim[1] < DEAD_AFTER_SECONDS * 1_000_000
        }

    def _claims(self) -> list[Any]:
        claims = self._spark.read.schema("value string, run string").text(escape_glob(self._folder))
        modified = F.unix_micros("_metadata.file_modification_time").alias("modified")
        return claims.select("value", "run", modified).collect()

    def _write(self) -> None:
        # Into a folder of its own: jobs that write into the same one remove each other's temporary files.
        claim = self._spark.range(1).select(F.lit(self._owner).alias("value"))
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

    @property
    def _path(self) -> str:
        return f"{self._folder}/run={self._run}"


_NO_MARKER = ("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
