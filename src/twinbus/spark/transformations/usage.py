"""`usage`: what was used, per hour, pairing, client, namespace, entity, operation, stage and outcome.

The bill is computed from it.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from twinbus.tables.table_schemas import USAGE

from .expressions import HOUR_US, as_table, start_of, time_span


def usage(counts: DataFrame) -> DataFrame:
    """The table, from `operation_counts`."""
    keys = ("day", "pairing", "client", "namespace", "entity", "operation", "stage", "outcome")
    sums = (F.sum(name).alias(name) for name in ("rows", "count", "units", "bytes", "transferred"))
    by_hour = counts.groupBy(*keys, start_of(F.col("slot"), HOUR_US).alias("hour"))
    return as_table(by_hour.agg(*sums, *time_span()), USAGE)
