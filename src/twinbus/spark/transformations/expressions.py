"""Column expressions that several transformations share."""

from __future__ import annotations

import math
from enum import IntEnum

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from twinbus.ledger.recorder import OperationKind, Outcome, Stage
from twinbus.tables.histogram import GROWTH
from twinbus.tables.table_schemas import Table

HOUR_US, MINUTE_US = 3_600_000_000, 60_000_000
#: Separates the topic from the subscription in a path in lower case.
SUBSCRIPTIONS = "/subscriptions/"


def is_stage(*stages: Stage) -> Column:
    return F.col("stage").isin([int(stage) for stage in stages])


def is_operation(*operations: OperationKind) -> Column:
    return F.col("operation").isin([int(operation) for operation in operations])


def is_outcome(*outcomes: Outcome) -> Column:
    return F.col("outcome").isin([int(outcome) for outcome in outcomes])


def topic_or_queue(path: Column) -> Column:
    """The topic or queue of a path in lower case."""
    return F.substring_index(path, SUBSCRIPTIONS, 1)


def start_of(time: Column, length_us: int) -> Column:
    """Start of the hour or minute that a time is in. Unlike `date_trunc`, independent of the session's time zone."""
    micros = F.unix_micros(time)
    return F.timestamp_micros(micros - F.pmod(micros, F.lit(length_us)))


def time_span() -> list[Column]:
    """Aggregates `first_time` and `last_time`."""
    return [F.min("first_time").alias("first_time"), F.max("last_time").alias("last_time")]


def word_of(column: str, codes: type[IntEnum]) -> Column:
    """The word for a code of the ledger; `code_25` for one that a later release has added."""
    words = F.create_map(*(F.lit(value) for code in codes for value in (int(code), code.name.lower())))
    return F.coalesce(words[F.col(column).cast("int")], F.concat(F.lit("code_"), F.col(column).cast("string")))


def bucket_of(duration_us: Column) -> Column:
    """`twinbus.tables.histogram.bucket_of` of a duration in microseconds."""
    return F.floor(F.log(F.greatest(duration_us, F.lit(1)).cast("double")) / F.lit(math.log(GROWTH))).cast("int")


def as_table(frame: DataFrame, table: Table) -> DataFrame:
    """The columns of a table in their order, with their types."""
    return frame.select(*(F.col(column.name).cast(column.type).alias(column.name) for column in table.columns))
