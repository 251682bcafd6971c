"""Judges messages by what is kept of them, with Spark: which words hold for each, and how many have each word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.ledger.recorder import OperationKind, Outcome, Stage

from . import verdict
from .facts import MESSAGE, PLACE
from .summary import ANOMALIES as ANOMALY_TABLE
from .summary import NAMESPACE, RECEIVERS
from .verdict import ANOMALIES, WORDS, Facts

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: What is known of a destination when its messages are judged: when its receivers have first and last reported.
CONTEXT = "destination string, since_us bigint, until_us bigint"
#: The facts that are sums.
_SUMS = ("sends", "acknowledged", "accepted", "moves", "held", "completed", "dead", "scheduled")


def known(events: DataFrame, settled: DataFrame, context: DataFrame, *, drained: bool, patience_us: int) -> DataFrame:
    """One row for each message of these, with everything that it is judged by: keep it, then `judged` is quick.

    Args:
        events: Rows of open messages (`EVENTS`).
        settled: What is kept of settled ones (`SETTLED`) that are to be judged with the rows of other days.
        drained: Backlog and destinations are known to be empty.
        patience_us: So much later than a message was accepted its receivers must still have reported for it to be lost.
    """
    from pyspark.sql import functions as f

    messages = (
        _facts(events)
        .unionByName(_facts_of_settled(settled))
        .groupBy(*MESSAGE)
        .agg(
            *(f.sum(name).alias(name) for name in _SUMS),
            f.unix_micros(f.min("first_ts")).alias("first_us"),
            f.unix_micros(f.max("last_ts")).alias("last_us"),
            f.unix_micros(f.max("accepted_ts")).alias("accepted_us"),
        )
        .join(_arrivals(events, settled), list(MESSAGE), "left")
        .join(f.broadcast(context), "destination", "left")
        .withColumn("received", f.coalesce("received", f.lit(0)))
    )
    # What was accepted before receivers recorded, and was not seen by them later, is judged by the namespace's word.
    in_time = f.coalesce(f.col("accepted_us") >= f.col("since_us"), f.lit(True))
    by_receivers = f.col("since_us").isNotNull() & ((f.col("received") > 0) | in_time)
    went_on = f.coalesce(f.col("until_us") >= f.col("accepted_us") + patience_us, f.lit(False))
    is_over = f.lit(drained) | (went_on & (f.col("scheduled") == 0))
    return messages.withColumns({"by_receivers": by_receivers.cast("int"), "is_over": is_over.cast("int")})


def judged(messages: DataFrame) -> DataFrame:
    """The same rows (`known`), with a column of 0 or 1 for each word.

    The rules name each fact many times. Where a fact is not the column of a kept table but an expression, Spark writes
    it out each time, and compiles for ten seconds.
    """
    from pyspark.sql import functions as f

    words = verdict.judge(Facts(**{name: f.col(name) for name in verdict.FACTS}))
    told = f.col("by_receivers") == 1
    return messages.withColumns(
        {f"is_{word}": getattr(words, word).cast("int") for word in WORDS}
        | {
            "arrivals": f.when(told, f.col("received")).otherwise(f.col("accepted")),
            "evidence": f.when(told, RECEIVERS).otherwise(NAMESPACE),
        }
    )


def _facts(events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    of_backlog = _is_stage(Stage.BACKLOG_RECEIVE)
    return events.groupBy(*MESSAGE).agg(
        *_counted(
            sends=_is_sent(),
            acknowledged=_is_sent() & _is_done(),
            accepted=_is_accepted(),
            moves=_is_stage(Stage.PRIMARY_SEND) & _is_done(),
            held=_is_stage(Stage.BACKLOG_RECEIVE, Stage.PRIMARY_SEND),
            completed=of_backlog & _is_operation(OperationKind.COMPLETE) & _is_done(),
            dead=of_backlog & _is_operation(OperationKind.DEAD_LETTER) & _is_done(),
            scheduled=_is_operation(OperationKind.SCHEDULE),
        ),
        f.min("ts").alias("first_ts"),
        f.max("ts").alias("last_ts"),
        f.max(f.when(_is_accepted(), f.col("ts"))).alias("accepted_ts"),
    )


def _facts_of_settled(settled: DataFrame) -> DataFrame:
    """The row of a sender says that it was acknowledged and accepted once, or it would not be settled."""
    from pyspark.sql import functions as f

    # It passed the backlog if it was moved; what else the syphon did no longer matters once it was accepted.
    known = {"sends": "sends", "acknowledged": "sends", "accepted": "sends", "moves": "moves", "held": "moves"}
    facts = [f.col(known.get(name, name)).alias(name) for name in (*known, "scheduled")]
    none = [f.lit(0).cast("bigint").alias(name) for name in ("completed", "dead")]
    return settled.select(*MESSAGE, *facts, *none, "first_ts", "last_ts", "accepted_ts")


def _arrivals(events: DataFrame, settled: DataFrame) -> DataFrame:
    """How often each message arrived where it arrived most often: sequence numbers are counted, not deliveries."""
    from pyspark.sql import functions as f

    numbers = events.select(*PLACE, "number").unionByName(settled.select(*PLACE, "number"))
    numbers = numbers.where(f.col("number").isNotNull()).distinct()
    by_place = numbers.groupBy(*PLACE).agg(f.count("*").alias("received"))
    return by_place.groupBy(*MESSAGE).agg(f.max("received").alias("received"))


def counts_of(messages: DataFrame) -> DataFrame:
    """How many messages of each destination have each word, and how many came before their receivers recorded."""
    from pyspark.sql import functions as f

    is_before = (f.col("by_receivers") == 0) & f.col("since_us").isNotNull()
    return messages.groupBy("destination").agg(
        *(f.sum(f"is_{word}").alias(word) for word in WORDS), *_counted(before_reports=is_before)
    )


def anomalies_of(messages: DataFrame) -> DataFrame:
    """One row for each message and word that somebody should look at."""
    from pyspark.sql import functions as f

    found = f.array_compact(f.array(*(f.when(f.col(f"is_{word}") == 1, f.lit(word)) for word in ANOMALIES)))
    return messages.withColumn("word", f.explode(found)).select(*ANOMALY_TABLE.names)


def at_subscriptions(places: DataFrame) -> DataFrame:
    """How many of these (`PLACE`) there are for each subscription."""
    from pyspark.sql import functions as f

    there = places.where(f.col("subscription").isNotNull())
    return there.groupBy("destination", "subscription").agg(f.count("*").alias("messages"))


def _is_stage(*stages: Stage) -> Column:
    from pyspark.sql import functions as f

    return f.col("stage").isin(*map(int, stages))


def _is_operation(*kinds: OperationKind) -> Column:
    from pyspark.sql import functions as f

    return f.col("operation").isin(*map(int, kinds))


def _is_done() -> Column:
    """Whether the broker said yes."""
    from pyspark.sql import functions as f

    return f.col("outcome") == int(Outcome.DONE)


def _is_sent() -> Column:
    """Whether a row is an attempt of a sender."""
    return _is_stage(Stage.DIRECT, Stage.BACKLOG_SEND)


def _is_accepted() -> Column:
    """Whether the destination itself said yes."""
    return _is_stage(Stage.DIRECT, Stage.PRIMARY_SEND) & _is_done()


def _counted(**conditions: Column) -> list[Column]:
    """How many rows fulfil each condition."""
    from pyspark.sql import functions as f

    return [f.count(f.when(condition, 1)).alias(name) for name, condition in conditions.items()]
