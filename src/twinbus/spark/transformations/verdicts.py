"""`verdicts`: how many messages of a destination have each word, per day on which they were first seen.

From top to bottom: the rule for every word (`words`), what a message is (`messages`), when receivers reported
(`receiver_times`), and the table (`verdicts`).
"""

from __future__ import annotations

from datetime import timedelta
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from twinbus.tables.table_schemas import VERDICTS
from twinbus.tables.verdict import ANOMALIES, NAMESPACE, RECEIVERS, WORDS

from .expressions import as_table, time_span, topic_or_queue
from .message_days import MESSAGE, merged_facts

#: What is listed of a message that someone should look at.
_DETAILS = ("message_key", "message_id", "first_time", "last_time", "sends", "moves", "arrivals")


def words() -> dict[str, Column]:
    """The rule: which words hold for a message.

    `arrivals` is what receivers say if they record, else what the namespace said to senders and syphon.
    `twinbus.tables.verdict` has the same rule in plain Python, for tests and proof.
    """
    sends, acknowledged, accepted = F.col("sends"), F.col("acknowledged"), F.col("accepted")
    held, completed, dead, arrivals = F.col("held"), F.col("completed"), F.col("dead"), F.col("arrivals")
    attempted, is_known = (sends > 0) | (held > 0), (acknowledged > 0) | (held > 0)
    # A dead letter that was sent again later is none any more.
    is_dead = (dead > 0) & (accepted == 0)
    is_missing = (arrivals == 0) & is_known & ~is_dead
    # Completed without a move: by the ledger itself, the message is nowhere any more.
    is_over = F.col("is_over") | ((completed > 0) & (accepted == 0))
    return {
        "attempted": attempted,
        "acknowledged": acknowledged > 0,
        "ok": attempted & (arrivals > 0),
        "lost": is_missing & is_over,
        "unexpected": ~attempted & (arrivals > 0),
        "duplicated": arrivals > 1,
        "recovered": attempted & (arrivals > 0) & (acknowledged == 0),
        "in_flight": is_missing & ~is_over,
        "dead_lettered": (arrivals == 0) & is_dead,
        "unconfirmed": (arrivals == 0) & (sends > 0) & ~is_known,
    }


def with_words(messages: DataFrame, receiver_times: DataFrame, patience: timedelta, drained: bool) -> DataFrame:
    """`messages` with one boolean per word, and the evidence that was used.

    Args:
        patience: A message is lost if its receivers still reported this long after it was accepted.
        drained: Backlog and destinations are empty: what has not arrived is lost.
    """
    accepted, since, until = F.col("accepted_time"), F.col("since"), F.col("until")
    has_receivers = since.isNotNull()
    # What was accepted before receivers recorded, and not seen by them later, is decided by the namespace's word.
    by_receivers = has_receivers & ((F.col("received") > 0) | accepted.isNull() | (accepted >= since))
    longest_wait = F.make_dt_interval(secs=F.lit(patience.total_seconds()))
    went_on = has_receivers & accepted.isNotNull() & (until >= accepted + longest_wait)
    evidence = {
        "has_receivers": has_receivers,
        "by_receivers": by_receivers,
        "before_receivers": has_receivers & ~by_receivers,
        "arrivals": F.when(by_receivers, F.col("received")).otherwise(F.col("accepted")),
        "is_over": F.lit(drained) | (went_on & (F.col("scheduled") == 0)),
    }
    known = messages.join(F.broadcast(receiver_times), ["day", "destination"], "left")
    return known.withColumns(evidence).withColumns(words())


def messages(message_days: DataFrame, horizon: int) -> DataFrame:
    """One row per message: its facts, and the `day` under which it is published, its first one.

    A message is what `message_days` has of one id at one destination on the days [D, D + horizon), where D is a day
    without any operation in the horizon before it. `is_beyond`: there are operations on later days, so that the row
    is wrong, and those of `messages_beyond_horizon` are right.
    """
    return _messages(message_days.withColumns({"part": F.lit(None).cast("date"), "is_late": F.lit(False)}), horizon)


def messages_beyond_horizon(message_days: DataFrame, counts: DataFrame, horizon: int) -> DataFrame:
    """As `messages`, of those that `counts` (`verdict_counts`) has as `is_beyond`.

    They have a row for each first day, and one with `is_late` for each day of operations that came too late.
    """
    beyond = counts.where("is_beyond").select(*MESSAGE)
    number = F.unix_date("day")
    in_order = Window.partitionBy(*MESSAGE).orderBy(number)
    before = F.max(number).over(in_order.rangeBetween(Window.unboundedPreceding, -1))
    is_first = before.isNull() | (number - before >= horizon)
    first_day = F.max("start").over(in_order.rangeBetween(Window.unboundedPreceding, 0))
    split = (
        message_days.join(beyond, list(MESSAGE), "left_semi")
        .withColumn("start", F.when(is_first, F.col("day")))
        .withColumn("first_day", first_day)
        .withColumn("is_late", F.datediff("day", "first_day") >= horizon)
    )
    return _messages(split.withColumn("part", F.expr("if(is_late, day, first_day)")), horizon)


def _messages(rows: DataFrame, horizon: int) -> DataFrame:
    """Rows of `message_days` by message and part. A topic's message arrived as often as where it arrived most often."""
    keys = (*MESSAGE, "part", "is_late")
    by_place = (
        rows.repartition("message_key")
        .groupBy(*keys, "subscription")
        .agg(
            *merged_facts(),
            F.sum("arrivals").alias("arrivals"),
            F.min("day").alias("first"),
            F.max("day").alias("last"),
        )
    )
    received = (
        F.when(F.col("receives") == 0, 0)
        # The same number on several days is one arrival; a redelivery of one of several copies counts again.
        .when(F.col("lowest_number") == F.col("highest_number"), 1)
        .otherwise(F.greatest(F.col("arrivals"), F.lit(2)))
    )
    days = [F.min("first").alias("first"), F.max("last").alias("last")]
    whole = by_place.groupBy(*keys).agg(*merged_facts(), F.max(received).alias("received"), *days)
    is_beyond = F.col("part").isNull() & (F.datediff("last", "first") >= horizon)
    return whole.withColumns({"day": F.coalesce("part", "first"), "is_beyond": is_beyond})


def daily_usage(usage: DataFrame) -> DataFrame:
    """`usage` without its hours: all that `receiver_times` and `spellings` need of it. Small, so it is read once."""
    return usage.groupBy("day", "client", "entity", "stage", "operation", "outcome").agg(*time_span())


def receiver_times(usage: DataFrame, days: DataFrame, horizon: int) -> DataFrame:
    """When receivers of each destination first and last reported, as of the end of the horizon of each day.

    One clock alone does not make time pass: `until` is at most the time that two clients have reached, if there are
    two. So a receiver whose clock is fast cannot turn messages in flight into lost ones.

    Args:
        days: The days to publish, in a column `day`.
    """

    def as_of(frame: DataFrame, key: str) -> DataFrame:
        by_day = frame.groupBy(F.col("day").alias("earlier"), key).agg(*time_span())
        is_known = F.col("earlier") < F.date_add("day", horizon)
        return by_day.join(F.broadcast(days), is_known).groupBy("day", key).agg(*time_span())

    is_receive = "stage = 'primary_receive' and operation = 'receive' and outcome = 'done'"
    receives = usage.where(is_receive).where(~F.col("entity").contains("/$"))
    spans = as_of(receives.withColumn("destination", topic_or_queue(F.lower("entity"))), "destination")
    latest = F.sort_array(F.collect_list("last_time"), asc=False)
    second = as_of(usage, "client").groupBy("day").agg(F.get(latest, F.lit(1)).alias("second"))
    until = F.least("last_time", "second")  # `least` leaves out nulls
    return spans.join(F.broadcast(second), "day").select(
        "day", "destination", F.col("first_time").alias("since"), until.alias("until")
    )


def verdict_counts(messages: DataFrame) -> DataFrame:
    """One row per message that someone should look at, and one per day, destination and set of words for the rest.

    Small, so that `verdicts` and `anomalies` are computed from it without a second pass over the messages.
    """
    is_listed = reduce(or_, map(F.col, (*ANOMALIES, "is_late", "is_beyond")))
    flags = ("is_late", "is_beyond", "has_receivers", "by_receivers", "before_receivers")
    details = (F.when(is_listed, F.col(name)).alias(name) for name in _DETAILS)
    rows = messages.select("day", "destination", *flags, *WORDS, *details)
    return rows.groupBy(*rows.columns).agg(F.count(F.lit(1)).alias("messages"))


def verdicts(counts: DataFrame, spellings: DataFrame) -> DataFrame:
    """The table, from `verdict_counts`."""
    names = (*WORDS, "before_receivers")
    numbers = (F.sum(F.when(F.col(name), F.col("messages")).otherwise(0)).alias(name) for name in names)
    in_time = counts.where("not is_late").groupBy("day", "destination")
    sums = in_time.agg(evidence(F.max("has_receivers")).alias("evidence"), *numbers)
    return as_table(with_spelling(sums, spellings, "destination"), VERDICTS)


def evidence(by_receivers: Column) -> Column:
    return F.when(by_receivers, RECEIVERS).otherwise(NAMESPACE)


def spellings(usage: DataFrame) -> DataFrame:
    """How clients write each path, by its lower-case form: topics and queues, and paths of subscriptions."""
    topic = F.regexp_replace("entity", "(?i)/subscriptions/.*", "")
    paths = usage.select(F.explode(F.array("entity", topic)).alias("spelling"))
    return paths.groupBy(F.lower("spelling").alias("path")).agg(F.min("spelling").alias("spelling"))


def with_spelling(frame: DataFrame, spellings: DataFrame, column: str) -> DataFrame:
    """The frame, with a path as clients write it."""
    known = frame.join(F.broadcast(spellings.withColumnRenamed("path", column)), column, "left")
    return known.withColumn(column, F.coalesce("spelling", column)).drop("spelling")
