"""The time that messages spend in the backlog: the one rollup for which rows of different hours have to be joined.

It belongs to the hour in which messages were diverted. Their ends, a move or a dead letter, are in the same hour or in
later ones. So an hour is made anew if it has changed itself, and if an hour has changed in which its messages may have
ended.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinbus.ledger.recorder import OperationKind, Outcome, Stage
from twinbus.ledger.schema import pa, pc

from .tables import DEAD_BUCKET, GROWTH, HOUR_US, OPEN_BUCKET, Happening

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: What is read of the ledger.
COLUMNS = ("ts", "operation", "stage", "message_id", "message_key", "destination", "outcome")
#: How a message leaves the backlog.
ENDS = frozenset({Happening.MOVED, Happening.EXPIRED, Happening.POISON})

_KEYS = ("message_key", "message_id", "destination")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to make, and where to look for it: hours, as the times of their beginning."""

    #: The hours of diverting to make anew.
    hours: list[int]
    #: Those in which their messages may have ended.
    ends: list[int]


def plan(changed: Collection[int], activity: pa.Table, known: pa.Table) -> Plan:
    """Which hours have to be made anew after others have changed.

    Args:
        changed: The hours that were made anew.
        activity: The rollup as it is now, of all days.
        known: The rollup `waits` as it was, of all days.
    """
    diverted = _hours(activity, {Happening.DIVERTED})
    ended = _hours(activity, ENDS)
    news = sorted(hour for hour in ended if hour in changed)
    # Until when messages of an hour are known to have ended; for ever if some have not.
    until: defaultdict[int, float] = defaultdict(float)
    for row in known.group_by(["hour_us", "bucket"]).aggregate([("max_us", "max")]).to_pylist():
        last = float("inf") if row["bucket"] == OPEN_BUCKET else row["hour_us"] + HOUR_US + row["max_us_max"]
        until[row["hour_us"]] = max(until[row["hour_us"]], last)
    hours = [
        hour
        for hour in sorted(diverted | set(until))
        if hour in changed or (hour in diverted and any(hour <= one <= until.get(hour, float("inf")) for one in news))
    ]
    return Plan(hours, [hour for hour in sorted(ended) if hours and hour >= hours[0]])


def waits(diverts: DataFrame, ends: DataFrame) -> DataFrame:
    """The rollup, from rows of the hours to be made and from rows of those in which messages may have ended."""
    from pyspark.sql import functions as f

    us = f.unix_micros("ts")
    by_hour = diverts.where(_is(Stage.BACKLOG_SEND, OperationKind.SEND)).groupBy(
        *_KEYS, (us - us % HOUR_US).alias("hour_us")
    )
    sent = by_hour.agg(f.min(us).alias("sent_us"))
    is_move = f.col("stage") == int(Stage.PRIMARY_SEND)
    ended = ends.where(
        _is(Stage.PRIMARY_SEND, OperationKind.SEND) | _is(Stage.BACKLOG_RECEIVE, OperationKind.DEAD_LETTER)
    )
    ended = ended.groupBy(*_KEYS).agg(
        f.min(f.when(is_move, us)).alias("moved_us"), f.max(f.when(~is_move, us)).alias("dead_us")
    )
    end = f.coalesce("moved_us", "dead_us", "sent_us")
    found = sent.join(ended, list(_KEYS), "left").select(
        "hour_us",
        f.col("destination").alias("entity"),
        "moved_us",
        "dead_us",
        # The clocks of sender and syphon may differ a little.
        f.greatest(end - f.col("sent_us"), f.lit(0)).alias("us"),
    )
    where = f.when(f.col("moved_us").isNotNull(), _bucket(f.col("us")))
    where = where.when(f.col("dead_us").isNotNull(), f.lit(DEAD_BUCKET)).otherwise(f.lit(OPEN_BUCKET))
    found = found.select("hour_us", "entity", where.cast("smallint").alias("bucket"), "us")
    groups = found.groupBy("hour_us", "entity", "bucket")
    return groups.agg(f.count(f.lit(1)).alias("count"), f.max("us").alias("max_us"))


def _bucket(duration: Column) -> Column:
    """`tables.bucket_of`, of a duration that is not null."""
    from pyspark.sql import functions as f

    return f.floor(f.log(f.greatest(duration, f.lit(1)).cast("double")) / math.log(GROWTH))


def _is(stage: Stage, operation: OperationKind) -> Column:
    from pyspark.sql import functions as f

    done = f.col("outcome") == int(Outcome.DONE)
    return done & (f.col("stage") == int(stage)) & (f.col("operation") == int(operation))


def _hours(activity: pa.Table, kinds: Iterable[Happening]) -> set[int]:
    """The hours in which something of these kinds has happened."""
    chosen = activity.filter(pc.is_in(activity["kind"], pa.array([int(one) for one in kinds], pa.int8())))
    minutes = pc.unique(chosen["minute_us"]).to_pylist()
    return {minute - minute % HOUR_US for minute in minutes}
