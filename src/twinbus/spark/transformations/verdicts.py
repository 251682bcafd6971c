"""`verdicts`: how many messages of a destination have each word, per day on which they were first seen.

A message is what `message_days` has of one message id at one destination within the horizon: operations of the days
[D, D + horizon), where D is its first day; a day is a first day if the message has none in the horizon before it.
`words` is the rule for every word, and `twinbus.tables.verdict` the same rule in plain Python, for tests and proof.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from twinbus.tables.table_schemas import VERDICTS
from twinbus.tables.verdict import ANOMALIES, NAMESPACE, RECEIVERS, WORDS

from .expressions import as_table
from .message_days import MERGES, MESSAGE

_SUMS = ("sends", "acknowledged", "accepted", "moves", "held", "completed", "dead", "scheduled")


@dataclass(frozen=True, slots=True)
class Rules:
    """What messages are judged by, beside their own operations."""

    #: Days within which operations of one message id belong together.
    horizon: int
    #: A message is lost if its receivers still reported this long after it was accepted.
    patience: timedelta
    #: How far clocks may differ.
    clock_skew: timedelta
    #: Backlog and destinations are empty: what has not arrived is lost.
    drained: bool


def messages(message_days: DataFrame, rules: Rules) -> DataFrame:
    """One row per message with its facts and its `first_day`.

    `is_beyond` says that its operations span more than the horizon: it has to be judged in parts
    (`messages_in_parts`). `seen_day` is the day under which a row is published.
    """
    whole = _grouped(message_days.withColumn("seen_day", F.lit(None).cast("date")), is_late=False)
    is_beyond = F.datediff("latest_day", "earliest_day") >= rules.horizon
    first_day = F.col("earliest_day")
    return whole.withColumns({"seen_day": first_day, "first_day": first_day, "is_beyond": is_beyond})


def beyond_horizon(counted: DataFrame) -> DataFrame:
    """The messages of `counted` that have to be judged in parts."""
    return counted.where("is_beyond").select(*MESSAGE)


def messages_in_parts(message_days: DataFrame, beyond: DataFrame, rules: Rules) -> DataFrame:
    """As `messages`, of those in `beyond`: a row per first day, and `is_late` rows for operations beyond the horizon.

    Late operations are published under their own day.
    """
    spread = message_days.join(beyond, list(MESSAGE), "left_semi")
    in_order = Window.partitionBy(*MESSAGE).orderBy(F.datediff("day", F.lit(date(1970, 1, 1))))
    number = F.datediff("day", F.lit(date(1970, 1, 1)))
    before = F.max(number).over(in_order.rangeBetween(Window.unboundedPreceding, -1))
    is_first = before.isNull() | (number - before >= rules.horizon)
    split = spread.withColumn("start", F.when(is_first, F.col("day"))).withColumn(
        "first_day", F.max("start").over(in_order.rangeBetween(Window.unboundedPreceding, 0))
    )
    is_late = F.datediff("day", "first_day") >= rules.horizon
    in_time = split.where(~is_late).withColumn("seen_day", F.col("first_day"))
    late = split.where(is_late).withColumn("seen_day", F.col("day"))
    found = _grouped(in_time, is_late=False).unionByName(_grouped(late, is_late=True))
    return found.withColumns({"first_day": F.col("seen_day"), "is_beyond": F.lit(False)})


def _grouped(rows: DataFrame, *, is_late: bool) -> DataFrame:
    """The facts of each message and `seen_day`. A topic's message arrived as often as where it arrived most often."""
    keys = (*MESSAGE, "seen_day")
    merged = [merge(name).alias(name) for name, merge in MERGES.items()]
    days = [F.min("earliest_day").alias("earliest_day"), F.max("latest_day").alias("latest_day")]
    by_place = (
        rows.repartition("message_key")
        .withColumns({"earliest_day": F.col("day"), "latest_day": F.col("day")})
        .groupBy(*keys, "subscription")
        .agg(*merged, F.sum("arrivals").alias("arrivals"), *days)
    )
    arrivals = (
        F.when(F.col("receives") == 0, F.lit(0))
        # The same number on several days is one arrival; a redelivery of one of several copies counts again.
        .when(F.col("lowest_number") == F.col("highest_number"), F.lit(1))
        .otherwise(F.greatest(F.col("arrivals"), F.lit(2)))
    )
    return (
        by_place.withColumn("received", arrivals)
        .groupBy(*keys)
        .agg(*merged, F.max("received").alias("received"), *days)
        .withColumn("is_late", F.lit(is_late))
    )


def judged(messages: DataFrame, reported: DataFrame, rules: Rules) -> DataFrame:
    """Messages with one boolean per word, the evidence used, and `is_before_receivers`.

    Args:
        reported: When receivers of each destination reported, as of each first day (`reported`).
    """
    known = messages.join(F.broadcast(reported), ["first_day", "destination"], "left")
    accepted, since, until = (F.col(name) for name in ("accepted_time", "since", "until"))
    has_receivers = since.isNotNull()
    # What was accepted before receivers recorded, and not seen by them later, is judged by the namespace's word.
    by_receivers = has_receivers & ((F.col("received") > 0) | accepted.isNull() | (accepted >= since))
    patience = F.make_dt_interval(secs=F.lit((rules.patience + rules.clock_skew).total_seconds()))
    went_on = has_receivers & accepted.isNotNull() & (until >= accepted + patience)
    is_over = F.lit(rules.drained) | (went_on & (F.col("scheduled") == 0))
    found = known.withColumns(
        {
            "by_receivers": F.coalesce(by_receivers, F.lit(False)),
            "is_over": F.coalesce(is_over, F.lit(False)),
            "has_receivers": has_receivers,
        }
    )
    return found.withColumns(words())


def words() -> dict[str, Column]:
    """Which words hold for a message: the rule."""
    sends, acknowledged, accepted = (F.col(name) for name in ("sends", "acknowledged", "accepted"))
    held, completed, dead, received = (F.col(name) for name in ("held", "completed", "dead", "received"))
    # Receivers' word if they record, else that of the namespace.
    arrivals = F.when(F.col("by_receivers"), received).otherwise(accepted)
    attempted, is_known = (sends > 0) | (held > 0), (acknowledged > 0) | (held > 0)
    # A dead letter that was sent again later is none any more.
    is_dead = (dead > 0) & (accepted == 0)
    is_missing = (arrivals == 0) & is_known & ~is_dead
    # Completed without a move: the ledger itself says that no one has it any more.
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


def usage_of_days(usage: DataFrame) -> DataFrame:
    """`usage` without its hours: all that `reported` and `spelling` need of it. Small, so that it is read once."""
    keys = ("day", "client", "entity", "stage", "operation", "outcome")
    return usage.groupBy(*keys).agg(F.min("first_time").alias("first_time"), F.max("last_time").alias("last_time"))


def reported(usage: DataFrame, first_days: DataFrame, rules: Rules) -> DataFrame:
    """When receivers of each destination first and last reported, as of the end of each first day's horizon.

    One clock alone does not make time pass: `until` is at most the time that two clients have reached, if there are
    two. So a receiver whose clock is fast cannot turn messages in flight into lost ones.

    Args:
        first_days: The days to judge, in a column `first_day`.
    """
    path = F.lower("entity")
    at = F.instr(path, "/subscriptions/")
    is_receive = (
        (F.col("stage") == "primary_receive") & (F.col("operation") == "receive") & (F.col("outcome") == "done")
    )
    receives = usage.where(is_receive & ~F.col("entity").contains("/$")).select(
        "day",
        F.when(at > 0, path.substr(F.lit(1), at - 1)).otherwise(path).alias("destination"),
        "first_time",
        "last_time",
    )
    by_day = receives.groupBy("day", "destination").agg(
        F.min("first_time").alias("since"), F.max("last_time").alias("until")
    )
    is_in_horizon = F.col("day") <= F.date_add("first_day", rules.horizon - 1)
    first_days = F.broadcast(first_days)
    spans = (
        by_day.join(first_days, is_in_horizon)
        .groupBy("first_day", "destination")
        .agg(F.min("since").alias("since"), F.max("until").alias("until"))
    )
    clocks = (
        usage.groupBy("day", "client")
        .agg(F.max("last_time").alias("last_time"))
        .join(first_days, is_in_horizon)
        .groupBy("first_day", "client")
        .agg(F.max("last_time").alias("last_time"))
        .groupBy("first_day")
        .agg(F.sort_array(F.collect_list("last_time"), asc=False).alias("clocks"))
    )
    second = F.when(F.size("clocks") > 1, F.get("clocks", F.lit(1)))
    return spans.join(F.broadcast(clocks), "first_day").select(
        "first_day", "destination", "since", F.coalesce(F.least("until", second), "until").alias("until")
    )


def counted(judged: DataFrame) -> DataFrame:
    """One row per message that someone should look at, and one per day, destination and set of words for the rest.

    Small, so that `verdicts` and `anomalies` are made from it without judging the messages twice.
    """
    is_anomaly = F.lit(False)
    for word in ANOMALIES:
        is_anomaly = is_anomaly | F.col(word)
    is_listed = is_anomaly | F.col("is_late") | F.col("is_beyond")
    arrivals = F.when(F.col("by_receivers"), F.col("received")).otherwise(F.col("accepted"))
    details = {
        **{name: F.col(name) for name in ("message_id", "message_key", "first_time", "last_time", "sends", "moves")},
        "arrivals": arrivals,
    }
    rows = judged.select(
        "first_day",
        "seen_day",
        "destination",
        "is_late",
        "is_beyond",
        "has_receivers",
        "by_receivers",
        *WORDS,
        *(F.when(is_listed, column).alias(name) for name, column in details.items()),
    )
    return rows.groupBy(*rows.columns).agg(F.count(F.lit(1)).alias("messages"))


def verdicts(counted: DataFrame, spelling: DataFrame) -> DataFrame:
    """The table, from `counted`; `spelling` says how clients write each path."""
    sums = (
        counted.where(~F.col("is_late"))
        .groupBy("first_day", "destination")
        .agg(
            F.max("has_receivers").alias("has_receivers"),
            *(F.sum(F.when(F.col(word), F.col("messages")).otherwise(0)).alias(word) for word in WORDS),
            F.sum(F.when(F.col("has_receivers") & ~F.col("by_receivers"), F.col("messages")).otherwise(0)).alias(
                "before_receivers"
            ),
        )
    )
    found = spelt(sums, spelling, "destination").withColumns(
        {"day": F.col("first_day"), "evidence": evidence(F.col("has_receivers"))}
    )
    return as_table(found, VERDICTS)


def evidence(by_receivers: Column) -> Column:
    return F.when(by_receivers, F.lit(RECEIVERS)).otherwise(F.lit(NAMESPACE))


def spelling(usage: DataFrame) -> DataFrame:
    """How clients write each path, by its lower-case form: topics and queues, and paths of subscriptions."""
    at = F.instr(F.lower("entity"), "/subscriptions/")
    topics = usage.where(at > 0).select(F.col("entity").substr(F.lit(1), at - 1).alias("entity"))
    paths = usage.select("entity").unionByName(topics)
    return paths.groupBy(F.lower("entity").alias("path")).agg(F.min("entity").alias("spelt"))


def spelt(frame: DataFrame, spelling: DataFrame, column: str) -> DataFrame:
    """The same with a path as clients write it."""
    known = spelling.withColumnRenamed("path", column)
    return frame.join(F.broadcast(known), column, "left").withColumn(column, F.coalesce("spelt", column)).drop("spelt")
