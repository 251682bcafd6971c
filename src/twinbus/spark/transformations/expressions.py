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


def is_stage(*stages: Stage) -> Column:
    return F.col("stage").isin([int(stage) for stage in stages])


def is_operation(*operations: OperationKind) -> Column:
    return F.col("operation").isin([int(operation) for operation in operations])


def is_outcome(*outcomes: Outcome) -> Column:
    return F.col("outcome").isin([int(outcome) for outcome in outcomes])


def count_of(condition: Column) -> Column:
    """How many rows of a group fulfil a condition."""
    return F.coalesce(F.sum(condition.cast("int")), F.lit(0)).cast("int")


def floored(micros: Column, length_us: int) -> Column:
    """The start of the hour or minute of a time in microseconds. It does not depend on the session's time zone."""
    return micros - F.pmod(micros, F.lit(length_us))


def time_of(micros: Column) -> Column:
    """A timestamp from microseconds since the epoch."""
    return F.timestamp_micros(micros)


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
