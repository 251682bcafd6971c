"""`arrivals`: how many messages of a topic arrived at each of its subscriptions, per day of the first arrival."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from twinbus.tables.table_schemas import ARRIVALS

from .expressions import as_table
from .message_days import MESSAGE
from .verdicts import with_spelling


def arrivals(message_days: DataFrame, spellings: DataFrame, horizon: int) -> DataFrame:
    """The table, from `message_days`. A message that arrived within the horizon before has been counted then."""
    in_order = Window.partitionBy(*MESSAGE, "subscription").orderBy(F.unix_date("day"))
    before = F.max("day").over(in_order.rangeBetween(1 - horizon, -1))
    first = message_days.where("subscription is not null").withColumn("before", before).where("before is null")
    sums = first.groupBy("day", "destination", "subscription").agg(F.count(F.lit(1)).alias("messages"))
    for column in ("destination", "subscription"):
        sums = with_spelling(sums, spellings, column)
    return as_table(sums, ARRIVALS)
