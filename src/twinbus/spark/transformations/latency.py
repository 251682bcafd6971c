"""`latency`: how long operations took that were done, per hour, entity, stage, operation and histogram bucket."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from twinbus.ledger.recorder import OperationKind, Stage
from twinbus.tables.table_schemas import LATENCY

from .expressions import HOUR_US, as_table, floored, time_of, word_of


def latency(counts: DataFrame) -> DataFrame:
    """The table, from `operation_counts`."""
    hour = time_of(floored(F.col("slot"), HOUR_US)).alias("hour")
    sums = (
        counts.where(F.col("bucket").isNotNull())
        .groupBy("day", hour, "entity", "stage", "operation", "bucket")
        .agg(F.sum("rows").alias("count"), F.max("max_us").alias("max_us"))
    )
    codes = {"stage": Stage, "operation": OperationKind}
    return as_table(sums.withColumns({name: word_of(name, kind) for name, kind in codes.items()}), LATENCY)
