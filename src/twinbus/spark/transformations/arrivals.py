"""`arrivals`: how many messages of a topic arrived at each of its subscriptions, per day of the first arrival."""

from __future__ import annotations

from datetime import date

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from twinbus.tables.table_schemas import ARRIVALS

from .expressions import as_table
from .message_days import MESSAGE
from .verdicts import spelt


def arrivals(message_days: DataFrame, spelling: DataFrame, horizon: int) -> DataFrame:
    """The table, from `message_days`. A message that arrived within the horizon before has been counted then."""
    number = F.datediff("day", F.lit(date(1970, 1, 1)))
    before = Window.partitionBy(*MESSAGE, "subscription").orderBy(number).rangeBetween(1 - horizon, -1)
    at_subscriptions = message_days.where(F.col("subscription").isNotNull())
    first = at_subscriptions.withColumn("before", F.max("day").over(before)).where(F.col("before").isNull())
    sums = first.groupBy("day", "destination", "subscription").agg(F.count(F.lit(1)).alias("messages"))
    return as_table(spelt(spelt(sums, spelling, "destination"), spelling, "subscription"), ARRIVALS)
