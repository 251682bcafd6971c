"""`activity`: the events from which outages are found, per minute, pairing, entity and kind.

`twinbus.tables.activity` says which operations are events of which kind.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from twinbus.tables.table_schemas import ACTIVITY

from .expressions import as_table, time_span


def activity(counts: DataFrame) -> DataFrame:
    """The table, from `operation_counts`."""
    events = counts.where("kind is not null").withColumnRenamed("slot", "minute")
    sums = events.groupBy("day", "minute", "pairing", "entity", "kind").agg(F.sum("rows").alias("count"), *time_span())
    return as_table(sums, ACTIVITY)
