"""`usage`: what was used, per hour, pairing, client, namespace, entity, operation, stage and outcome.

The bill is made from it.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from twinbus.ledger.recorder import NamespaceRole, OperationKind, Outcome, Stage
from twinbus.tables.table_schemas import USAGE

from .expressions import HOUR_US, as_table, floored, time_of, word_of
from .operation_counts import is_transferred


def usage(counts: DataFrame) -> DataFrame:
    """The table, from `operation_counts`."""
    keys = ("day", "pairing", "client", "namespace", "entity", "operation", "stage", "outcome")
    sums = counts.groupBy(*keys, floored(F.col("slot"), HOUR_US).alias("hour")).agg(
        *(F.sum(name).alias(name) for name in ("rows", "count", "units", "bytes")),
        F.min("first_micros").alias("first_time"),
        F.max("last_micros").alias("last_time"),
    )
    found = sums.withColumn("transferred", F.when(is_transferred(), F.col("bytes")).otherwise(F.lit(0)))
    for name in ("hour", "first_time", "last_time"):
        found = found.withColumn(name, time_of(F.col(name)))
    codes = {"namespace": NamespaceRole, "operation": OperationKind, "stage": Stage, "outcome": Outcome}
    return as_table(found.withColumns({name: word_of(name, kind) for name, kind in codes.items()}), USAGE)
