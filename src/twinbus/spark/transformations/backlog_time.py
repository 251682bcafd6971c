"""`backlog_time`: how long diverted messages stayed in the backlog, per hour of diverting, entity, state and bucket."""

from __future__ import annotations

from datetime import date

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from twinbus.tables.table_schemas import BACKLOG_TIME

from .expressions import HOUR_US, as_table, bucket_of, floored, time_of
from .message_days import MESSAGE
from .verdicts import spelt


def backlog_time(message_days: DataFrame, spelling: DataFrame, horizon: int) -> DataFrame:
    """The table, from `message_days`. Messages whose diverting is not known are left out.

    A message that was diverted on a day leaves the backlog with the first move within the horizon of that day.
    """
    ends = ("diverted_time", "moved_time", "dead_time")
    is_concerned = F.lit(False)
    for name in ends:
        is_concerned = is_concerned | F.col(name).isNotNull()
    number = F.datediff("day", F.lit(date(1970, 1, 1)))
    following = Window.partitionBy(*MESSAGE).orderBy(number).rangeBetween(0, horizon - 1)
    by_message = (
        message_days.where(is_concerned)
        .select(
            "day",
            "destination",
            "diverted_time",
            F.min("moved_time").over(following).alias("moved_time"),
            F.max("dead_time").over(following).alias("dead_time"),
        )
        .where(F.col("diverted_time").isNotNull())
    )
    diverted = F.unix_micros("diverted_time")
    end = F.unix_micros(F.coalesce("moved_time", "dead_time", "diverted_time"))
    # The clocks of sender and syphon may differ a little.
    stayed = F.greatest(end - diverted, F.lit(0))
    state = (
        F.when(F.col("moved_time").isNotNull(), F.lit("moved"))
        .when(F.col("dead_time").isNotNull(), F.lit("dead_lettered"))
        .otherwise(F.lit("waiting"))
    )
    sums = (
        by_message.select(
            "day",
            time_of(floored(diverted, HOUR_US)).alias("hour"),
            F.col("destination").alias("entity"),
            state.alias("state"),
            F.when(F.col("moved_time").isNotNull(), bucket_of(stayed)).alias("bucket"),
            stayed.alias("us"),
        )
        .groupBy("day", "hour", "entity", "state", "bucket")
        .agg(F.count(F.lit(1)).alias("count"), F.max("us").alias("max_us"))
    )
    return as_table(spelt(sums, spelling, "entity"), BACKLOG_TIME)
