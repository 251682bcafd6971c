"""The view `operations`: the rows of the ledger's files, each operation once.

Only `op_id` makes two rows the same operation. It is a random number for the process that recorded it, followed by a
counter, so the ids of two files overlap only if one repeats rows of the other (a copy, or a flush that was repeated).
Rows are compared only in files whose ids overlap: to compare all of them would take as long as everything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from twinbus.ledger.schema import SCHEMA, pa

from .expressions import count_of

_SPARK_TYPES = {
    pa.binary(16): "binary",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.string(): "string",
    pa.int8(): "tinyint",
    pa.int32(): "int",
    pa.int64(): "bigint",
}
#: The columns of the ledger's files, as Spark SQL writes a schema.
LEDGER_DDL = ", ".join(f"`{field.name}` {_SPARK_TYPES[field.type]}" for field in SCHEMA)
#: A file with ids of more writers than this is compared with all others of its day.
MOST_WRITERS = 100


@dataclass(frozen=True, slots=True)
class IdRange:
    """Ids of one writer that a file holds; `writer` is a hash of the ids' random half, the others are counters."""

    writer: int
    lowest: int
    highest: int


def read_files(spark: SparkSession, ledger: str, paths: Sequence[str]) -> DataFrame:
    """The rows of files of the ledger, with their `day` (of the folder) and `file` (name)."""
    # The schema is given, so that Spark opens no file to learn it; a column that a file lacks is null.
    reader = spark.read.schema(f"{LEDGER_DDL}, `day` date").option("basePath", ledger)
    return reader.parquet(*paths).withColumn("file", F.col("_metadata.file_name"))


def file_facts(rows: DataFrame) -> DataFrame:
    """One row per file: its rows, times of the first and the last (microseconds), ranges of ids (null: too many).

    `known` counts the rows that have an id and a time.
    """
    counter = F.conv(F.hex(F.expr("substring(op_id, 9, 8)")), 16, 10).cast("decimal(20,0)")
    by_writer = (
        rows.select(
            "day",
            "file",
            "ts",
            F.xxhash64(F.expr("substring(op_id, 1, 8)")).alias("writer"),
            counter.alias("counter"),
        )
        .groupBy("day", "file", "writer")
        .agg(
            F.count(F.lit(1)).alias("rows"),
            count_of(F.col("ts").isNotNull() & F.col("counter").isNotNull()).alias("known"),
            F.min("ts").alias("first_time"),
            F.max("ts").alias("last_time"),
            F.min("counter").alias("lowest"),
            F.max("counter").alias("highest"),
        )
    )
    ranges = F.collect_list(F.struct("writer", "lowest", "highest"))
    return by_writer.groupBy("day", "file").agg(
        F.sum("rows").alias("rows"),
        F.sum("known").alias("known"),
        F.unix_micros(F.min("first_time")).alias("first_time"),
        F.unix_micros(F.max("last_time")).alias("last_time"),
        F.when(F.count(F.lit(1)) <= MOST_WRITERS, ranges).alias("ids"),
    )


def files_to_compare(ids: Mapping[str, Sequence[IdRange] | None]) -> set[str]:
    """The files of one day whose ids overlap with those of another. A file without ranges is compared with all.

    Args:
        ids: The id ranges of each file, by its name.
    """
    if len(ids) > 1 and any(ranges is None for ranges in ids.values()):
        return set(ids)
    listed = sorted((one.writer, one.lowest, one.highest, file) for file, ranges in ids.items() for one in ranges or ())
    found: set[str] = set()
    for _, ranges_of_writer in groupby(listed, key=lambda one: one[0]):
        highest, holder = -1, ""
        for _, low, high, file in ranges_of_writer:
            if low <= highest:
                found |= {file, holder}
            if high > highest:
                highest, holder = high, file
    return found


def each_operation_once(rows: DataFrame, compared: Mapping[str, Iterable[str]], columns: Sequence[str]) -> DataFrame:
    """The rows with some of their columns; in files to be compared, each `op_id` comes once.

    Args:
        compared: The files to be compared, by day (YYYY-MM-DD).
    """
    if not any(compared.values()):
        return rows.select(*columns)
    is_compared = F.lit(False)
    for day, files in compared.items():
        is_compared = is_compared | (_is_day(day) & F.col("file").isin(sorted(files)))
    # Two rows of one operation are alike in every column, and `distinct` is faster than to pick one row for each id.
    repeated = rows.where(is_compared).select("op_id", *columns).distinct().select(*columns)
    return rows.where(~is_compared).select(*columns).unionByName(repeated)


def _is_day(day: str) -> Column:
    return F.col("day") == F.lit(day).cast("date")
