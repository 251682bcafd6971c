"""Read and replace the result tables through Spark, in any format that the session can write."""

from __future__ import annotations

import json
import re
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

from .day_planning import InputFile, Status
from .error_inspection import is_missing_path, is_unknown_format, reason_of
from .run_errors import ResultsUnreachableError, ResultsVersionError

PARQUET = "parquet"
#: Formats that replace days by themselves, in one transaction.
_TRANSACTIONAL = ("delta",)
_DAY = re.compile(r"/day=(\d{4}-\d{2}-\d{2})/", re.ASCII)
_TIMES = ("modified", "first_time", "last_time")

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


def use_fewer_partitions(spark: SparkSession, size: int) -> None:
    """Exchange rows of small ledgers in few partitions: Spark's default, 200, is for large ones."""
    most = int(spark.conf.get(PARTITIONS, "200") or 200)
    spark.conf.set(PARTITIONS, str(min(most, max(FEWEST_PARTITIONS, size // PARTITION_BYTES))))


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


def literal_rows(spark: SparkSession, table: Table, rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    """A few rows of the driver as a frame, without Python on the executors. Times are microseconds."""
    fields = ", ".join(f"`{one.name}`: {'bigint' if one.type == 'timestamp' else one.type}" for one in table.columns)
    text = json.dumps(list(rows), default=str, ensure_ascii=False)
    found = spark.range(1).select(F.inline(F.from_json(F.lit(text), f"array<struct<{fields}>>")))
    times = {one.name: F.timestamp_micros(one.name) for one in table.columns if one.type == "timestamp"}
    return found.withColumns(times) if times else found


def no_rows(spark: SparkSession, table: Table) -> DataFrame:
    return spark.range(0).select(*(F.lit(None).cast(one.type).alias(one.name) for one in table.columns))


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
        try:
            found = self._load(table.name, table)
            # Spark Connect looks for the path only when the columns are asked for.
            _ = found.columns
        except PySparkException as error:
            if not is_missing_path(error):
                raise
            return no_rows(self._spark, table)
        if days is not None:
            found = found.where(F.col("day").isin(list(days))) if days else found.where(F.lit(False))
        return found.select(*table.names)

    def _load(self, folder: str, table: Table) -> DataFrame:
        path = escape_glob(self.path(folder))
        if table.name.startswith("_") or self.format == PARQUET:
            return self._spark.read.schema(table.ddl).parquet(path)
        reader = self._spark.read.format(self.format)
        return (reader if self.format in _TRANSACTIONAL else reader.schema(table.ddl)).load(path)

    def files(self, table: Table) -> dict[date, frozenset[str]]:
        """The files that a table has, by day."""
        try:
            paths = self._load(table.name, table).inputFiles()
        except PySparkException as error:
            if not is_missing_path(error):
                raise
            return {}
        found: dict[date, set[str]] = {}
        for path in paths:
            if (day := _DAY.search(path)) is not None:
                found.setdefault(date.fromisoformat(day[1]), set()).add(path)
        return {day: frozenset(some) for day, some in found.items()}

    def days(self) -> dict[str, list[date]]:
        """The days that each table has."""
        return {name: sorted(self.files(table)) for name, table in TABLES.items()}

    def replace(self, table: Table, rows: DataFrame, days: Iterable[date], *, small: bool = True) -> None:
        """Replace some days of a table; a day without rows becomes empty.

        Args:
            rows: Of these days only.
            small: One file for each day; else as many as there are tasks.
        """
        wanted = sorted(days)
        if not wanted:
            return
        writer = (rows.repartition("day") if small else rows).write.format(self.format).mode("overwrite")
        if self.format in _TRANSACTIONAL:
            chosen = ", ".join(f"'{day}'" for day in wanted)
            writer.option("replaceWhere", f"day in ({chosen})").partitionBy("day").save(self.path(table.name))
            return
        before = self.files(table)
        writer.option("partitionOverwriteMode", "dynamic").partitionBy("day").save(self.path(table.name))
        after = self.files(table)
        if not after and self.read(table).limit(1).count():
            raise ResultsUnreachableError(
                f"Spark does not say which files {self.format} tables have, so single days of {self.url} cannot be"
                " replaced: use parquet or delta"
            )
        # Spark leaves partitions as they were of which there are no rows.
        stale = [day for day in wanted if day in before and after.get(day) == before[day]]
        # A table without any rows has one empty file, so that every reader finds its columns.
        for day in stale or ([] if after else wanted[:1]):
            nothing = no_rows(self._spark, table).drop("day").coalesce(1)
            nothing.write.format(self.format).mode("overwrite").save(f"{self.path(table.name)}/day={day}")

    # ---- bookkeeping ----

    def generation(self) -> Row | None:
        """The last run, or None. Raises ResultsVersionError."""
        times = {name: F.unix_micros(name) for name in ("started", "finished")}
        rows = self.read(GENERATION).withColumns(times).collect()
        if not rows:
            return None
        if rows[0].version > VERSION:
            raise ResultsVersionError(
                f"the tables at {self.url} were written by a later release of twinbus ({rows[0].twinbus})"
            )
        return rows[0]

    def write_generation(self, values: Mapping[str, Any]) -> None:
        self._overwrite(GENERATION.name, GENERATION, [{"version": VERSION, "format": self.format, **values}])

    def inputs(self) -> tuple[int, list[InputFile]]:
        """The number of the last run that finished, and the files that it has seen; 0 and none if there is none."""
        by_run: dict[int, list[InputFile]] = {}
        for slot in (0, 1):
            try:
                rows = self._load(f"{INPUTS.name}/{slot}", INPUTS).withColumns(
                    {name: F.unix_micros(name) for name in _TIMES}
                )
                found = rows.collect()
            except PySparkException as error:
                if not is_missing_path(error):
                    raise
                continue
            for row in found:
                by_run.setdefault(row.number, []).append(_input_file(row))
        return max(by_run.items(), default=(0, []))

    def write_inputs(self, number: int, files: Iterable[InputFile]) -> None:
        """Keep the files that run `number` has seen. Those of the run before are kept, too: this one may be killed."""
        rows = []
        for one in files:
            given = asdict(one)
            ids = given.pop("ids")
            given["ids"] = None if ids is None else [dict(zip(_ID, each, strict=True)) for each in ids]
            rows.append({"number": number, "file": given.pop("name"), **given})
        self._overwrite(f"{INPUTS.name}/{number % 2}", INPUTS, rows)

    def _overwrite(self, folder: str, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        # Always Parquet, so that everyone can find out in which format the tables are.
        literal_rows(self._spark, table, rows).coalesce(1).write.mode("overwrite").parquet(self.path(folder))


_ID = ("writer", "lowest", "highest")


def _input_file(row: Row) -> InputFile:
    given = row.asDict(recursive=True)
    del given["number"]
    if (ids := given.pop("ids")) is not None:
        ids = tuple((one["writer"], int(one["lowest"]), int(one["highest"])) for one in ids)
    return InputFile(name=given.pop("file"), status=Status(given.pop("status")), ids=ids, **given)
