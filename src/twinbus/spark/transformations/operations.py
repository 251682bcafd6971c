"""The view `operations`: the rows of the ledger's files, each operation once.

Only `op_id` makes two rows the same operation. It is a random number for the process that recorded it, followed by a
counter, so the ids of two files overlap only if one repeats rows of the other (a copy, or a flush that was repeated).
Rows are compared only in files whose ids overlap: to compare all of them would take as long as everything else.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from twinbus.ledger.schema import SCHEMA, pa

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


def read_files(spark: SparkSession, ledger: str, paths: Sequence[str]) -> DataFrame:
    """The rows of files of the ledger, with their `day` (of the folder) and `file` (name)."""
    # The schema is given, so that Spark opens no file to learn it; a column that a file lacks is null.
    reader = spark.read.schema(f"{LEDGER_DDL}, `day` date").option("basePath", ledger)
    return reader.parquet(*paths).withColumn("file", F.col("_metadata.file_name"))


def file_facts(rows: DataFrame) -> DataFrame:
    """One row per file: its rows, times of the first and the last, ranges of ids (null: too many).

    `valid` counts the rows that have an id, and a time on the day of their folder. Times are in microseconds.
    """
    writer = F.xxhash64(F.expr("substring(op_id, 1, 8)")).alias("writer")
    counter = F.conv(F.hex(F.expr("substring(op_id, 9, 8)")), 16, 10).cast("decimal(20,0)").alias("counter")
    micros = F.unix_micros("ts").alias("micros")
    is_valid = F.expr("counter is not null and micros div 86400000000 = unix_date(day)")
    by_writer = (
        rows.select("day", "file", micros, writer, counter)
        .groupBy("day", "file", "writer")
        .agg(
            F.count(F.lit(1)).alias("rows"),
            F.count_if(is_valid).alias("valid"),
            F.min("micros").alias("first_time"),
            F.max("micros").alias("last_time"),
            F.min("counter").alias("lowest"),
            F.max("counter").alias("highest"),
        )
    )
    ranges = F.collect_list(F.struct("writer", "lowest", "highest"))
    return by_writer.groupBy("day", "file").agg(
        F.sum("rows").alias("rows"),
        F.sum("valid").alias("valid"),
        F.min("first_time").alias("first_time"),
        F.max("last_time").alias("last_time"),
        F.when(F.count(F.lit(1)) <= MOST_WRITERS, ranges).alias("ids"),
    )


def each_operation_once(rows: DataFrame, compared: Collection[str], columns: Sequence[str]) -> DataFrame:
    """Some columns of the rows; in the files `compared`, each `op_id` comes once."""
    if not compared:
        return rows.select(*columns)
    is_compared = F.col("file").isin(list(compared))
    # Two rows of one operation are alike in every column, and `distinct` is faster than to pick one row for each id.
    distinct = rows.where(is_compared).select("op_id", *columns).distinct().select(*columns)
    return rows.where(~is_compared).select(*columns).unionByName(distinct)
