"""How rows of the ledger become rollups, in Spark's own expressions: nothing here runs Python for a row.

Their columns are in `twinbus.pipeline.tables`. One pass for each rollup, and each reads only the columns it needs: one
pass for all would have to group by everything at once, which takes longer than three.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from twinbus.ledger.recorder import NamespaceRole, OperationKind, Outcome, Stage
from twinbus.syphon.moves import EXPIRED

from .tables import GROWTH, HOUR_US, MINUTE_US, ROLLUP_SCHEMAS, Happening
from .usage import BILLED, NOT_BILLED_STAGES, SIZED, SIZED_TOGETHER, UNIT_BYTES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: What is read of the ledger.
COLUMNS = (
    "ts",
    "pairing",
    "client",
    "namespace",
    "entity",
    "operation",
    "stage",
    "destination",
    "bytes",
    "count",
    "outcome",
    "error",
    "latency_us",
)

#: Rows of these are counted by the minute.
_HAPPENINGS: dict[Happening, tuple[Stage, tuple[OperationKind, ...], tuple[Outcome, ...]]] = {
    Happening.FAILED_SEND: (
        Stage.DIRECT,
        (OperationKind.SEND, OperationKind.SCHEDULE),
        (Outcome.FAILED, Outcome.UNKNOWN),
    ),
    Happening.DIVERTED: (Stage.BACKLOG_SEND, (OperationKind.SEND,), (Outcome.DONE,)),
    Happening.FAILED_DIVERT: (Stage.BACKLOG_SEND, (OperationKind.SEND,), (Outcome.FAILED, Outcome.UNKNOWN)),
    Happening.PING: (Stage.PING, (OperationKind.PING,), (Outcome.DONE,)),
    Happening.FAILED_PING: (Stage.PING, (OperationKind.PING,), (Outcome.FAILED, Outcome.UNKNOWN)),
    Happening.MOVED: (Stage.PRIMARY_SEND, (OperationKind.SEND,), (Outcome.DONE,)),
    Happening.FAILED_MOVE: (Stage.PRIMARY_SEND, (OperationKind.SEND,), (Outcome.FAILED, Outcome.UNKNOWN)),
    Happening.COMPLETED: (Stage.BACKLOG_RECEIVE, (OperationKind.COMPLETE,), (Outcome.DONE,)),
    Happening.POISON: (Stage.BACKLOG_RECEIVE, (OperationKind.DEAD_LETTER,), (Outcome.DONE,)),
    Happening.DEFERRED: (Stage.BACKLOG_RECEIVE, (OperationKind.DEFER,), (Outcome.DONE,)),
    Happening.RENEWED: (Stage.BACKLOG_RECEIVE, (OperationKind.RENEW,), (Outcome.DONE,)),
}


def usage(rows: DataFrame) -> DataFrame:
    """What is billed, by the hour."""
    from pyspark.sql import functions as f

    facts = rows.select(
        _begin_of(HOUR_US).alias("hour_us"),
        "pairing",
        "client",
        "namespace",
        _entity(),
        "operation",
        "stage",
        "outcome",
        "count",
        _units().alias("units"),
        "bytes",
        f.when(_is_transferred(), f.col("bytes")).otherwise(0).alias("transferred"),
    )
    groups = facts.groupBy("hour_us", "pairing", "client", "namespace", "entity", "operation", "stage", "outcome")
    sums = (f.sum(name).alias(name) for name in ("count", "units", "bytes", "transferred"))
    return shaped(groups.agg(f.count(f.lit(1)).alias("rows"), *sums), "usage")


def latency(rows: DataFrame) -> DataFrame:
    """How long it took, by the hour."""
    from pyspark.sql import functions as f

    done = rows.where((f.col("outcome") == int(Outcome.DONE)) & f.col("latency_us").isNotNull())
    facts = done.select(
        _begin_of(HOUR_US).alias("hour_us"),
        _entity(),
        "stage",
        "operation",
        bucket(f.col("latency_us")).alias("bucket"),
        "latency_us",
    )
    groups = facts.groupBy("hour_us", "entity", "stage", "operation", "bucket")
    return shaped(groups.agg(f.count(f.lit(1)).alias("count"), f.max("latency_us").alias("max_us")), "latency")


def activity(rows: DataFrame) -> DataFrame:
    """What outages are made of, by the minute."""
    from pyspark.sql import functions as f

    facts = rows.select(
        _begin_of(MINUTE_US).alias("minute_us"),
        "pairing",
        _entity(),
        _kind().alias("kind"),
        f.unix_micros("ts").alias("us"),
    ).where(f.col("kind").isNotNull())
    groups = facts.groupBy("minute_us", "pairing", "entity", "kind").agg(
        f.count(f.lit(1)).alias("count"), f.min("us").alias("first_us"), f.max("us").alias("last_us")
    )
    return shaped(groups, "activity")


#: The rollups whose hours are functions of the ledger's rows of those hours, by name.
ROLLUPS = {"usage": usage, "latency": latency, "activity": activity}


def shaped(frame: DataFrame, name: str) -> DataFrame:
    """The columns of the contract, in its order and types."""
    from pyspark.sql import functions as f

    types = {"int8": "tinyint", "int16": "smallint", "int64": "bigint", "string": "string"}
    return frame.select(*(f.col(one.name).cast(types[str(one.type)]).alias(one.name) for one in ROLLUP_SCHEMAS[name]))


def _begin_of(length_us: int) -> Column:
    """When the hour or minute of a row began."""
    from pyspark.sql import functions as f

    us = f.unix_micros("ts")
    return us - us % length_us


def _entity() -> Column:
    """As `usage_of` has it: a diverted message costs on account of where it goes, not of the backlog queue."""
    from pyspark.sql import functions as f

    return f.coalesce("destination", "entity").alias("entity")


def bucket(duration: Column) -> Column:
    """`tables.bucket_of`, of a duration that is not null."""
    from pyspark.sql import functions as f

    return f.floor(f.log(f.greatest(duration, f.lit(1)).cast("double")) / math.log(GROWTH)).cast("smallint")


def _units() -> Column:
    """`usage.billed_units`, without the copies of topics."""
    from pyspark.sql import functions as f

    sized = f.expr(f"greatest(1, (bytes + {UNIT_BYTES - 1}) div {UNIT_BYTES})")
    by_message = f.greatest(f.when(_is("operation", SIZED), sized).otherwise(f.lit(1)), f.col("count"))
    units = f.when(_is("operation", SIZED_TOGETHER), sized).otherwise(by_message)
    return f.when(_is("outcome", BILLED) & ~_is("stage", NOT_BILLED_STAGES), units).otherwise(f.lit(0))


def _is_transferred() -> Column:
    """`usage.is_transferred`."""
    from pyspark.sql import functions as f

    is_secondary = f.col("namespace") == int(NamespaceRole.SECONDARY)
    return _is("operation", SIZED | SIZED_TOGETHER) & is_secondary & _is("outcome", BILLED)


def _kind() -> Column:
    """The code of what happened; null for most rows."""
    from pyspark.sql import functions as f

    is_expired = f.col("error").eqNullSafe(f.lit(EXPIRED))
    found = f.when(f.lit(False), f.lit(0))
    for kind, (stage, operations, outcomes) in _HAPPENINGS.items():
        condition = (f.col("stage") == int(stage)) & _is("operation", operations) & _is("outcome", outcomes)
        code = f.lit(int(kind))
        if kind is Happening.POISON:
            code = f.when(is_expired, f.lit(int(Happening.EXPIRED))).otherwise(code)
        found = found.when(condition, code)
    return found.cast("tinyint")


def _is(column: str, codes: Iterable[int]) -> Column:
    from pyspark.sql import functions as f

    return f.col(column).isin(*sorted(int(one) for one in codes))
