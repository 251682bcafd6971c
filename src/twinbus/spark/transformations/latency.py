"""`latency`: how long operations took that were done, per hour, entity, stage, operation and histogram bucket."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from twinbus.tables.table_schemas import LATENCY

from .expressions import HOUR_US, as_table, start_of


def latency(counts: DataFrame) -> DataFrame:
    """The table, from `operation_counts`."""
    hour = start_of(F.col("slot"), HOUR_US).alias("hour")
    measured = counts.where("bucket is not null").groupBy("day", hour, "entity", "stage", "operation", "bucket")
    return as_table(measured.agg(F.sum("rows").alias("count"), F.max("max_us").alias("max_us")), LATENCY)
