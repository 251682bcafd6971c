"""Count operations once for `usage`, `latency` and `activity`, so that the raw files are read once for all three.

A row stands for an hour (a minute, if its operations are events of `activity`), pairing, client, namespace, entity,
operation, stage, outcome, kind of event and latency bucket. Codes are still numbers here.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from twinbus.ledger.recorder import NamespaceRole, Outcome
from twinbus.tables.activity import ACTIVITY_RULES
from twinbus.tables.billed_units import BILLED, NOT_BILLED_STAGES, SIZED, SIZED_TOGETHER, UNIT_BYTES

from .expressions import HOUR_US, MINUTE_US, bucket_of, floored, is_operation, is_outcome, is_stage

#: What is read of the ledger.
COLUMNS = (
    "day",
    "ts",
    "pairing",
    "client",
    "namespace",
    "entity",
    "destination",
    "operation",
    "stage",
    "outcome",
    "bytes",
    "count",
    "error",
    "latency_us",
)
_KEYS = ("day", "slot", "pairing", "client", "namespace", "entity", "operation", "stage", "outcome", "kind", "bucket")


def operation_counts(operations: DataFrame) -> DataFrame:
    """Count operations that have `COLUMNS`."""
    micros = F.unix_micros("ts")
    kind = kind_of_event()
    is_measured = is_outcome(Outcome.DONE) & F.col("latency_us").isNotNull()
    rows = operations.select(
        "day",
        F.when(kind.isNotNull(), floored(micros, MINUTE_US)).otherwise(floored(micros, HOUR_US)).alias("slot"),
        "pairing",
        "client",
        "namespace",
        # A diverted message costs on account of where it goes, not of the backlog queue.
        F.coalesce("destination", "entity").alias("entity"),
        "operation",
        "stage",
        "outcome",
        kind.alias("kind"),
        F.when(is_measured, bucket_of(F.col("latency_us"))).alias("bucket"),
        F.when(is_measured, F.col("latency_us")).alias("latency_us"),
        billed_units().alias("units"),
        "count",
        "bytes",
        micros.alias("micros"),
    )
    return rows.groupBy(*_KEYS).agg(
        F.count(F.lit(1)).alias("rows"),
        F.sum("count").alias("count"),
        F.sum("units").alias("units"),
        F.sum("bytes").alias("bytes"),
        F.min("micros").alias("first_micros"),
        F.max("micros").alias("last_micros"),
        F.max("latency_us").alias("max_us"),
    )


def billed_units() -> Column:
    """`twinbus.tables.billed_units.billed_units` of a row, without the copies of topics."""
    sized = F.greatest(F.lit(1), F.ceil(F.col("bytes") / F.lit(UNIT_BYTES)))
    by_message = F.greatest(F.when(is_operation(*SIZED), sized).otherwise(F.lit(1)), F.col("count"))
    units = F.when(is_operation(*SIZED_TOGETHER), sized).otherwise(by_message)
    return F.when(is_outcome(*BILLED) & ~is_stage(*NOT_BILLED_STAGES), units).otherwise(F.lit(0))


def is_transferred() -> Column:
    """`twinbus.tables.billed_units.is_transferred` of a row."""
    is_secondary = F.col("namespace") == int(NamespaceRole.SECONDARY)
    return is_secondary & is_operation(*SIZED, *SIZED_TOGETHER) & is_outcome(*BILLED)


def kind_of_event() -> Column:
    """The kind of event in `activity` that a row is; null if it is none."""
    kind = F.lit(None).cast("string")
    for name, rule in reversed(list(ACTIVITY_RULES.items())):
        fits = is_stage(rule.stage) & is_operation(*rule.operations) & is_outcome(*rule.outcomes)
        if rule.error is not None:
            fits = fits & F.col("error").eqNullSafe(rule.error)
        kind = F.when(fits, F.lit(str(name))).otherwise(kind)
    return kind
