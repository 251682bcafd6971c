"""What the rows of a ledger say of each message, as tables of Spark.

Most messages are done with on their day: sent once, acknowledged, accepted once, and received once if there are
receivers that record. Such a message is *settled*, and one row with a few numbers is kept of it: nothing but a row of
another day could change what is said of it. Of all other messages, the *open* ones, every row is kept.

To tell the ones from the others takes sums, a least and a greatest value for each message. That fits buffers of a fixed
size, so Spark sums up before it shuffles. And a row that is there twice (docs/ledger.md) can make a message open, but
never settled: so only rows of open messages must be looked through for repeated ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.ledger.layout import DAY_US
from twinbus.ledger.recorder import OperationKind, Outcome, Stage

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: What is read of the ledger.
COLUMNS = (
    "op_id",
    "ts",
    "operation",
    "stage",
    "outcome",
    "message_id",
    "message_key",
    "destination",
    "entity",
    "sequence_number",
    "count",
)
#: What makes two rows tell of the same message: ids that share a key are told apart, and so are destinations.
MESSAGE = ("message_key", "message_id", "destination")
#: A topic's message arrives once at each of its subscriptions. Null for the rows of senders, and for queues.
PLACE = (*MESSAGE, "subscription")
#: Days since the epoch at the end of a row's day.
DAY = "day"

#: Settled by the word of receivers, settled by the word of the namespace, and not settled.
RECEIVED, ACCEPTED, OPEN = "received", "accepted", "open"
KINDS = (RECEIVED, ACCEPTED, OPEN)
#: Stands for the sequence number where a receive has none: nobody can tell a second arrival from a redelivery then.
NO_NUMBER = -(2**63)

#: The rows that are kept of an open message.
EVENT_SCHEMA = (
    "op_id binary, message_key bigint, message_id string, destination string, subscription string, ts timestamp,"
    " stage tinyint, operation tinyint, outcome tinyint, number bigint, day int"
)
#: What is kept of a settled one; `number` is null for the row of a sender if receivers have rows of their own.
SETTLED_SCHEMA = (
    "message_key bigint, message_id string, destination string, subscription string, sends bigint, moves bigint,"
    " scheduled bigint, number bigint, first_ts timestamp, last_ts timestamp, accepted_ts timestamp,"
    " received_ts timestamp, day int"
)

_SUBSCRIPTIONS = "/subscriptions/"
#: Dead letters are no arrivals: whoever reads them had his chance before.
_SUB_QUEUE = "/$"
_OF_SENDERS = (OperationKind.SEND, OperationKind.SCHEDULE)
_OF_BACKLOG = (OperationKind.RECEIVE, OperationKind.COMPLETE, OperationKind.DEAD_LETTER)


def is_stage(*stages: Stage) -> Column:
    """Whether a row belongs to one of these stages."""
    from pyspark.sql import functions as f

    return f.col("stage").isin(*map(int, stages))


def is_operation(*kinds: OperationKind) -> Column:
    """Whether a row is one of these operations."""
    from pyspark.sql import functions as f

    return f.col("operation").isin(*map(int, kinds))


def is_done() -> Column:
    """Whether the broker said yes."""
    from pyspark.sql import functions as f

    return f.col("outcome") == int(Outcome.DONE)


def is_receive() -> Column:
    """Whether a row tells of a message that a receiver got."""
    from pyspark.sql import functions as f

    is_got = is_stage(Stage.PRIMARY_RECEIVE) & is_operation(OperationKind.RECEIVE) & is_done()
    return is_got & ~f.col("entity").contains(_SUB_QUEUE)


def events_of(rows: DataFrame) -> DataFrame:
    """The rows that say something about a message, with the destination and subscription that they are about.

    Paths are the same in small and capital letters, and are made small.
    """
    from pyspark.sql import functions as f

    of_senders = is_stage(Stage.DIRECT, Stage.BACKLOG_SEND) & is_operation(*_OF_SENDERS)
    of_backlog = is_stage(Stage.BACKLOG_RECEIVE) & is_operation(*_OF_BACKLOG)
    of_moves = is_stage(Stage.PRIMARY_SEND) & is_operation(OperationKind.SEND)
    of_receivers = is_stage(Stage.PRIMARY_RECEIVE)
    chosen = rows.where(f.col("message_id").isNotNull() & (of_senders | of_backlog | of_moves | is_receive()))
    path = f.lower(f.when(of_receivers, f.col("entity")).otherwise(_destination()))
    is_subscription = of_receivers & f.col("path").contains(_SUBSCRIPTIONS)
    topic = f.substring_index("path", _SUBSCRIPTIONS, 1)
    return chosen.withColumn("path", path).select(
        "op_id",
        "message_key",
        "message_id",
        f.when(is_subscription, topic).otherwise(f.col("path")).alias("destination"),
        f.when(is_subscription, f.col("path")).alias("subscription"),
        "ts",
        "stage",
        "operation",
        "outcome",
        f.when(of_receivers, f.coalesce("sequence_number", f.lit(NO_NUMBER))).alias("number"),
        day_of(),
    )


def day_of() -> Column:
    """The day of a row. It lies in that day's folder, or its file was set aside."""
    from pyspark.sql import functions as f

    return (f.floor(f.unix_micros("ts") / DAY_US) + 1).cast("int").alias(DAY)


def topics_of(rows: DataFrame) -> DataFrame:
    """The destinations that were received from subscriptions, in small letters."""
    from pyspark.sql import functions as f

    path = f.lower("entity")
    received = rows.where(is_receive() & path.contains(_SUBSCRIPTIONS))
    return received.select(f.substring_index(path, _SUBSCRIPTIONS, 1).alias("topic")).distinct()


def _destination() -> Column:
    from pyspark.sql import functions as f

    return f.coalesce("destination", "entity")


def counted(**conditions: Column) -> list[Column]:
    """How many rows fulfil each condition."""
    from pyspark.sql import functions as f

    return [f.count(f.when(condition, 1)).alias(name) for name, condition in conditions.items()]


def is_sent() -> Column:
    """Whether a row is an attempt of a sender."""
    return is_stage(Stage.DIRECT, Stage.BACKLOG_SEND)


def is_accepted() -> Column:
    """Whether the destination itself said yes."""
    return is_stage(Stage.DIRECT, Stage.PRIMARY_SEND) & is_done()


def sorted_out(events: DataFrame, topics: list[str]) -> DataFrame:
    """All messages of each day, by place, with the column `kind`. `topics` are those received from subscriptions.

    Repeated rows may be among the events. The columns are those of `SETTLED_SCHEMA`, and `kind`.
    """
    from pyspark.sql import functions as f

    summed = events.groupBy(*PLACE, DAY).agg(
        *counted(
            sends=is_sent(),
            acknowledged=is_sent() & is_done(),
            accepted=is_accepted(),
            moves=is_stage(Stage.PRIMARY_SEND) & is_done(),
            scheduled=is_operation(OperationKind.SCHEDULE),
        ),
        f.min("number").alias("number"),
        f.max("number").alias("last_number"),
        f.min("ts").alias("first_ts"),
        f.max("ts").alias("last_ts"),
        f.max(f.when(is_accepted(), f.col("ts"))).alias("accepted_ts"),
        f.max(f.when(is_stage(Stage.PRIMARY_RECEIVE), f.col("ts"))).alias("received_ts"),
    )
    if topics:
        of_topic = f.col("destination").isin(topics)
        found = _kinds_of_queues(summed.where(~of_topic)).unionByName(_kinds_of_topics(summed.where(of_topic)))
    else:
        found = _kinds_of_queues(summed)
    return found.drop("acknowledged", "accepted", "last_number")


def _is_plain() -> Column:
    """Whether the sender's side of a message is as simple as can be."""
    from pyspark.sql import functions as f

    return (f.col("sends") == 1) & (f.col("acknowledged") == 1) & (f.col("accepted") == 1)


def _kinds_of_queues(summed: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    once = f.col("number") == f.col("last_number")
    waits = f.col("number").isNull() & (f.col("scheduled") == 0)
    return summed.withColumn(
        "kind", f.when(_is_plain() & once, RECEIVED).when(_is_plain() & waits, ACCEPTED).otherwise(OPEN)
    )


def _kinds_of_topics(summed: DataFrame) -> DataFrame:
    """The rows of a message at all its places are of one kind."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    message = Window.partitionBy(*MESSAGE, DAY)
    plain = f.sum(_is_plain().cast("int")).over(message) == 1
    senders = f.sum((f.col("sends") > 0).cast("int")).over(message) == 1
    places = f.count("number").over(message)
    several = f.count(f.when(f.col("number") != f.col("last_number"), 1)).over(message)
    is_scheduled = f.sum("scheduled").over(message) > 0
    once = (places > 0) & (several == 0)
    return summed.withColumn(
        "kind",
        f.when(~(plain & senders), OPEN)
        .when(once, RECEIVED)
        .when((places == 0) & ~is_scheduled, ACCEPTED)
        .otherwise(OPEN),
    )


def open_events(rows: DataFrame, open_messages: DataFrame) -> DataFrame:
    """The events of these messages on the days on which they are open, each once."""
    # To look up a number is quick, and leaves few rows whose ids must be compared.
    near = rows.join(open_messages.select("message_key").distinct(), "message_key", "left_semi")
    messages = open_messages.select(*MESSAGE, DAY).distinct()
    return events_of(near).join(messages, [*MESSAGE, DAY], "left_semi").dropDuplicates(["op_id"])


def gaps_of(rows: DataFrame) -> DataFrame:
    """For each day that has any: requests to cancel scheduled messages, and rows that were dropped."""
    from pyspark.sql import functions as f

    # Spark leaves out the parts of files that have no such operation, which are nearly all.
    few = rows.where(is_operation(OperationKind.CANCEL, OperationKind.DROPPED)).dropDuplicates(["op_id"])
    is_dropped = is_operation(OperationKind.DROPPED)
    dropped = f.coalesce(f.sum(f.when(is_dropped, f.col("count"))), f.lit(0)).alias("dropped")
    return few.groupBy(day_of()).agg(*counted(cancelled=is_operation(OperationKind.CANCEL) & is_done()), dropped)
