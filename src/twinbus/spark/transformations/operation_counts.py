"""Count operations once for `usage`, `latency` and `activity`, so that the raw files are read once for all three.

A row stands for an hour (a minute, if its operations are events of `activity`), pairing, client, namespace, entity,
operation, stage, outcome, kind of event and latency bucket.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from twinbus.ledger.recorder import NamespaceRole, OperationKind, Outcome, Stage
from twinbus.tables.activity import ACTIVITY_RULES
from twinbus.tables.billed_units import BILLED, NOT_BILLED_STAGES, SIZED, SIZED_TOGETHER, UNIT_BYTES

from .expressions import HOUR_US, MINUTE_US, bucket_of, is_operation, is_outcome, is_stage, start_of, word_of

_CODES = {"namespace": NamespaceRole, "operation": OperationKind, "stage": Stage, "outcome": Outcome}
#: Columns of the ledger that are needed as they are, and all that are needed.
_COPIED = ("day", "pairing", "client", *_CODES, "bytes", "count", "ts")
COLUMNS = (*_COPIED, "entity", "destination", "error", "latency_us")


def operation_counts(operations: DataFrame) -> DataFrame:
    """Count operations that have `COLUMNS`."""
    kind = kind_of_event()
    is_measured = is_outcome(Outcome.DONE) & F.col("latency_us").isNotNull()
    rows = operations.select(
        *_COPIED,
        F.when(kind.isNotNull(), start_of(F.col("ts"), MINUTE_US))
        .otherwise(start_of(F.col("ts"), HOUR_US))
        .alias("slot"),
        # A diverted message costs on account of where it goes, not of the backlog queue.
        F.coalesce("destination", "entity").alias("entity"),
        kind.alias("kind"),
        F.when(is_measured, bucket_of(F.col("latency_us"))).alias("bucket"),
        F.when(is_measured, F.col("latency_us")).alias("latency_us"),
        billed_units().alias("units"),
    )
    counts = rows.groupBy("day", "slot", "pairing", "client", "entity", *_CODES, "kind", "bucket").agg(
        F.count(F.lit(1)).alias("rows"),
        F.sum("count").alias("count"),
        F.sum("units").alias("units"),
        F.sum("bytes").alias("bytes"),
        F.min("ts").alias("first_time"),
        F.max("ts").alias("last_time"),
        F.max("latency_us").alias("max_us"),
    )
    transferred = F.when(is_transferred(), F.col("bytes")).otherwise(0)
    words = {name: word_of(name, codes) for name, codes in _CODES.items()}
    return counts.withColumns({"transferred": transferred, **words})


def billed_units() -> Column:
    """`twinbus.tables.billed_units.billed_units` of a row, without the copies of topics."""
    sized = F.greatest(F.lit(1), F.ceil(F.col("bytes") / F.lit(UNIT_BYTES)))
    by_message = F.greatest(F.when(is_operation(*SIZED), sized).otherwise(1), F.col("count"))
    units = F.when(is_operation(*SIZED_TOGETHER), sized).otherwise(by_message)
    return F.when(is_outcome(*BILLED) & ~is_stage(*NOT_BILLED_STAGES), units).otherwise(0)


def is_transferred() -> Column:
    """`twinbus.tables.billed_units.is_transferred` of a row."""
    is_secondary = F.col("namespace") == int(NamespaceRole.SECONDARY)
    return is_secondary & is_operation(*SIZED, *SIZED_TOGETHER) & is_outcome(*BILLED)


def kind_of_event() -> Column:
    """The kind of event in `activity` that a row is; null if it is none."""
    kinds = []
    for name, rule in ACTIVITY_RULES.items():
        fits = is_stage(rule.stage) & is_operation(*rule.operations) & is_outcome(*rule.outcomes)
        if rule.error is not None:
            fits &= F.col("error").eqNullSafe(rule.error)
        kinds.append(F.when(fits, F.lit(str(name))))
    return F.coalesce(*kinds)
