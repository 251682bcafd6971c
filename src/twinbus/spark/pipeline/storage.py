"""Read and replace the result tables through Spark, in any format that the session can write."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import date
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from twinbus.ledger.locations import escape_glob
from twinbus.tables.table_schemas import GENERATION, INPUTS, TABLES, VERSION, Table

from .day_planning import IdRange, InputFile, Status
from .error_inspection import is_missing_path, is_unknown_format, reason_of
from .run_errors import ResultsUnreachableError, ResultsVersionError

PARQUET = "parquet"
#: Formats that replace days by themselves, in one transaction.
_TRANSACTIONAL = ("delta",)
_DAY = re.compile(r"/day=(\d{4}-\d{2}-\d{2})/", re.ASCII)

#: What the tables depend on.
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    # The default, INT96, is not what other engines expect.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Tasks write the days of a table at the same time, instead of sorting their rows by day first.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
    # Many paths are listed by a job; without this it has a task for each of them.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "32",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
}
PARTITIONS = "spark.sql.shuffle.partitions"
#: Bytes of ledger files for each partition of an exchange, and the least number of them.
PARTITION_BYTES, FEWEST_PARTITIONS = 4_000_000, 4


@contextmanager
def settings(spark: SparkSession) -> Iterator[None]:
    """Give a session the settings that the tables depend on, and its own back at the end."""
    before = {name: spark.conf.get(name, None) for name in (*_SETTINGS, PARTITIONS)}
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def use_fewer_partitions(spark: SparkSession, size: int) -> None:
    """Exchange rows of small ledgers in few partitions: Spark's default, 200, is for large ones."""
    most = int(spark.conf.get(PARTITIONS, "200") or 200)
    spark.conf.set(PARTITIONS, str(min(most, max(FEWEST_PARTITIONS, size // PARTITION_BYTES))))


def literal_rows(spark: SparkSession, table: Table, rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    """A few rows of the driver as a frame, without Python on the executors. Times are microseconds."""
    types = {column.name: "bigint" if column.type == "timestamp" else column.type for column in table.columns}
    fields = ", ".join(f"`{name}`: {type}" for name, type in types.items())
    text = json.dumps(list(rows), default=str, ensure_ascii=False)
    parsed = spark.range(1).select(F.inline(F.from_json(F.lit(text), f"array<struct<{fields}>>")))
    times = {column.name: F.timestamp_micros(column.name) for column in table.columns if column.type == "timestamp"}
    return parsed.withColumns(times) if times else parsed  # Spark Connect refuses an empty mapping


class ResultTables:
    """The tables of one place.

    Args:
        url: The place as Spark takes it.
        format: `parquet`, or another one that the session can write, such as `delta`.
    """

    def __init__(self, spark: SparkSession, url: str, format: str = PARQUET) -> None:
        self._spark = spark
        self.url = url.rstrip("/")
        self.format = format

    def path(self, name: str) -> str:
        return f"{self.url}/{name}"

    def check(self) -> None:
        """Raise ResultsUnreachableError unless the session knows the format, and tables that are there have it.

        Raises ResultsVersionError for tables of a later release.
        """
        try:
            self._spark.read.format(self.format).schema("nothing int").load(self.path("_nothing"))
        except Exception as error:  # PySpark's or, for some formats, Py4J's
            if is_unknown_format(error):
                raise ResultsUnreachableError(
                    f"this Spark cannot write {self.format} tables to {self.url}: {reason_of(error)}"
                ) from error
        last = self.generation()
        if last is not None and last.format != self.format:
            raise ResultsUnreachableError(
                f"the tables at {self.url} have the format {last.format}: write {self.format} tables to another place,"
                " or delete these"
            )

    # ---- tables ----

    def read(self, table: Table, days: Sequence[date] | None = None) -> DataFrame:
        """The rows of a table, of some days or of all; none if there is no such table."""
        rows = self._load(table.name, table).select(*table.names)
        return rows if days is None else rows.where(F.col("day").isin(list(days)))

    def _load(self, folder: str, table: Table) -> DataFrame:
        path = escape_glob(self.path(folder))
        # Bookkeeping is always Parquet, so that everyone can find out in which format the tables are.
        format = PARQUET if table.name.startswith("_") else self.format
        reader = self._spark.read.format(format)
        try:
            rows = (reader if format in _TRANSACTIONAL else reader.schema(table.ddl)).load(path)
            _ = rows.columns  # Spark Connect looks for the path only now
        except PySparkException as error:
            if not is_missing_path(error):
                raise
            return literal_rows(self._spark, table, ())
        return rows

    def files(self, table: Table) -> dict[date, set[str]]:
        """The files that a table has, by day."""
        files: defaultdict[date, set[str]] = defaultdict(set)
        for path in self._load(table.name, table).inputFiles():
            if (day := _DAY.search(path)) is not None:
                files[date.fromisoformat(day[1])].add(path)
        return files

    def days(self) -> dict[str, list[date]]:
        """The days that each table has."""
        return {name: sorted(self.files(table)) for name, table in TABLES.items()}

    def replace(self, table: Table, rows: DataFrame, days: Iterable[date], *, small: bool = True) -> None:
        """Replace some days of a table; a day without rows becomes empty.

        Args:
            rows: Of these days only.
            small: One file for each day; else as many as there are tasks.
        """
        replaced, path = sorted(days), self.path(table.name)
        if not replaced:
            return
        writer = (rows.repartition("day") if small else rows).write.format(self.format).mode("overwrite")
        if self.format in _TRANSACTIONAL:
            chosen = ", ".join(f"'{day}'" for day in replaced)
            writer.option("replaceWhere", f"day in ({chosen})").partitionBy("day").save(path)
            return
        before = self.files(table)
        writer.option("partitionOverwriteMode", "dynamic").partitionBy("day").save(path)
        after = self.files(table)
        if not after and self.read(table).limit(1).count():
            raise ResultsUnreachableError(
                f"Spark does not say which files {self.format} tables have, so single days of {self.url} cannot be"
                " replaced: use parquet or delta"
            )
        # Spark leaves partitions as they were of which there are no rows.
        stale = [day for day in replaced if day in before and after.get(day) == before[day]]
        # A table without any rows has one empty file, so that every reader finds its columns.
        for day in stale or ([] if after else replaced[:1]):
            nothing = literal_rows(self._spark, table, ()).drop("day").coalesce(1)
            nothing.write.format(self.format).mode("overwrite").save(f"{path}/day={day}")

    # ---- bookkeeping ----

    def generation(self) -> Row | None:
        """The last run, or None. Raises ResultsVersionError."""
        rows = self.read(GENERATION).collect()
        if rows and rows[0].version > VERSION:
            raise ResultsVersionError(
                f"the tables at {self.url} were written by a later release of twinbus ({rows[0].twinbus})"
            )
        return rows[0] if rows else None

    def write_generation(self, values: Mapping[str, Any]) -> None:
        self._overwrite(GENERATION.name, GENERATION, [{"version": VERSION, "format": self.format, **values}])

    def inputs(self) -> tuple[int, list[InputFile]]:
        """The number of the last run that finished, and the files that it has seen; 0 and none if there is none."""
        by_run: defaultdict[int, list[InputFile]] = defaultdict(list)
        times = {name: F.unix_micros(name) for name in ("modified", "first_time", "last_time")}
        for slot in (0, 1):
            for row in self._load(f"{INPUTS.name}/{slot}", INPUTS).withColumns(times).collect():
                values = row.asDict()
                number, name, status, ids = (values.pop(key) for key in ("number", "file", "status", "ids"))
                ranges = None if ids is None else tuple(IdRange(*map(int, entry)) for entry in ids)
                by_run[number].append(InputFile(name=name, status=Status(status), ids=ranges, **values))
        return max(by_run.items(), default=(0, []))

    def write_inputs(self, number: int, files: Iterable[InputFile]) -> None:
        """Keep the files that run `number` has seen. Those of the run before are kept, too: this one may be killed."""
        rows = [{"number": number, "file": file.name, **asdict(file)} for file in files]
        self._overwrite(f"{INPUTS.name}/{number % 2}", INPUTS, rows)

    def _overwrite(self, folder: str, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        literal_rows(self._spark, table, rows).coalesce(1).write.mode("overwrite").parquet(self.path(folder))
