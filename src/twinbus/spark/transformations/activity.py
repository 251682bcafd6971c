"""`activity`: the events from which outages are found, per minute, pairing, entity and kind.

`twinbus.tables.activity` says which operations are events of which kind.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from twinbus.tables.table_schemas import ACTIVITY

from .expressions import as_table, time_of


def activity(counts: DataFrame) -> DataFrame:
    """The table, from `operation_counts`."""
    sums = (
        counts.where(F.col("kind").isNotNull())
        .groupBy("day", time_of(F.col("slot")).alias("minute"), "pairing", "entity", "kind")
        .agg(
            F.sum("rows").alias("count"),
            time_of(F.min("first_micros")).alias("first_time"),
            time_of(F.max("last_micros")).alias("last_time"),
        )
    )
    return as_table(sums, ACTIVITY)
