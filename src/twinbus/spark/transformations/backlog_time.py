"""`backlog_time`: how long diverted messages stayed in the backlog, per hour of diverting, entity, state and bucket."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from twinbus.tables.table_schemas import BACKLOG_TIME

from .expressions import HOUR_US, as_table, bucket_of, start_of
from .message_days import MESSAGE
from .verdicts import with_spelling


def backlog_time(message_days: DataFrame, spellings: DataFrame, horizon: int) -> DataFrame:
    """The table, from `message_days`. Messages whose diverting is not known are left out.

    A message that was diverted on a day leaves the backlog with the first move within the horizon of that day.
    """
    following = Window.partitionBy(*MESSAGE).orderBy(F.unix_date("day")).rangeBetween(0, horizon - 1)
    diverted = (
        message_days.where("coalesce(diverted_time, moved_time, dead_time) is not null")
        .select(
            "day",
            F.col("destination").alias("entity"),
            F.unix_micros("diverted_time").alias("diverted"),
            start_of(F.col("diverted_time"), HOUR_US).alias("hour"),
            F.unix_micros(F.min("moved_time").over(following)).alias("moved"),
            F.unix_micros(F.max("dead_time").over(following)).alias("dead"),
        )
        .where("diverted is not null")
    )
    # The clocks of sender and syphon may differ a little.
    stayed = F.greatest(F.coalesce("moved", "dead", "diverted") - F.col("diverted"), F.lit(0))
    state = F.expr(
        "case when moved is not null then 'moved' when dead is not null then 'dead_lettered' else 'waiting' end"
    )
    bucket = F.when(F.col("moved").isNotNull(), bucket_of(stayed))
    sums = diverted.groupBy("day", "hour", "entity", state.alias("state"), bucket.alias("bucket")).agg(
        F.count(F.lit(1)).alias("count"), F.max(stayed).alias("max_us")
    )
    return as_table(with_spelling(sums, spellings, "entity"), BACKLOG_TIME)
