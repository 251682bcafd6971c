"""`message_days`: what the operations of one day say about each message at each destination.

A verdict needs nothing else. Operations of senders and of the syphon, and arrivals at a queue, are in the row without
a subscription; arrivals at a topic are in one row per subscription, because each numbers its messages by itself.
Destinations are in lower case: paths are the same in any.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from twinbus.ledger.recorder import OperationKind, Outcome, Stage
from twinbus.tables.table_schemas import MESSAGE_DAYS

from .expressions import as_table, count_of, is_operation, is_outcome, is_stage

#: What is read of the ledger.
COLUMNS = (
    "day",
    "ts",
    "message_id",
    "message_key",
    "entity",
    "destination",
    "operation",
    "stage",
    "outcome",
    "sequence_number",
)
#: What makes two rows tell of the same message.
MESSAGE = ("message_key", "message_id", "destination")
#: Stands for the sequence number of an arrival that was recorded without one.
NO_NUMBER = -(2**63)

_SUBSCRIPTIONS = "/subscriptions/"


def message_days(operations: DataFrame) -> DataFrame:
    """The table, from operations that have `COLUMNS`."""
    path = F.lower("entity")
    is_arrival, at = _is_arrival(), F.instr(path, _SUBSCRIPTIONS)
    topic_or_queue = F.when(at > 0, path.substr(F.lit(1), at - 1)).otherwise(path)
    events = operations.where(_is_event()).select(
        "day",
        F.coalesce("message_key", _key_of(F.col("message_id"))).alias("message_key"),
        "message_id",
        F.when(is_arrival, topic_or_queue).otherwise(F.lower(F.coalesce("destination", "entity"))).alias("destination"),
        F.when(is_arrival & (at > 0), path).alias("subscription"),
        F.when(is_arrival, F.coalesce("sequence_number", F.lit(NO_NUMBER))).alias("number"),
        "ts",
        "stage",
        "operation",
        "outcome",
    )
    # All rows of a message go to one task, so that both steps need no other exchange: first each sequence number
    # counts once, however often it was delivered, then the message.
    place = ("day", *MESSAGE, "subscription")
    by_number = events.repartition("message_key").groupBy(*place, "number").agg(*_facts())
    return as_table(by_number.groupBy(*place).agg(*_merged(), F.count("number").alias("arrivals")), MESSAGE_DAYS)


def _is_arrival() -> Column:
    """A receiver got the message. Messages read from a dead-letter queue did not arrive there."""
    is_receive = is_stage(Stage.PRIMARY_RECEIVE) & is_operation(OperationKind.RECEIVE) & is_outcome(Outcome.DONE)
    return is_receive & ~F.col("entity").contains("/$")


def _is_event() -> Column:
    """The row tells something about a message."""
    is_send = is_stage(Stage.DIRECT, Stage.BACKLOG_SEND) & is_operation(OperationKind.SEND, OperationKind.SCHEDULE)
    is_move = is_stage(Stage.PRIMARY_SEND) & is_operation(OperationKind.SEND)
    in_backlog = is_stage(Stage.BACKLOG_RECEIVE) & is_operation(
        OperationKind.RECEIVE, OperationKind.COMPLETE, OperationKind.DEAD_LETTER
    )
    return F.col("message_id").isNotNull() & (is_send | is_move | in_backlog | _is_arrival())


def _facts() -> list[Column]:
    is_done = is_outcome(Outcome.DONE)
    is_sent = is_stage(Stage.DIRECT, Stage.BACKLOG_SEND)
    is_diverted = is_stage(Stage.BACKLOG_SEND) & is_done
    is_moved = is_stage(Stage.PRIMARY_SEND) & is_done
    is_accepted = is_moved | (is_stage(Stage.DIRECT) & is_done)
    in_backlog = is_stage(Stage.BACKLOG_RECEIVE)
    # Also if it was only planned: then the message is a dead letter, or still in the queue.
    is_dead = in_backlog & is_operation(OperationKind.DEAD_LETTER) & is_outcome(Outcome.DONE, Outcome.PLANNED)
    return [
        count_of(is_sent).alias("sends"),
        count_of(is_sent & is_done).alias("acknowledged"),
        count_of(is_accepted).alias("accepted"),
        count_of(is_moved).alias("moves"),
        count_of(in_backlog | is_stage(Stage.PRIMARY_SEND)).alias("held"),
        count_of(in_backlog & is_operation(OperationKind.COMPLETE) & is_done).alias("completed"),
        count_of(is_dead).alias("dead"),
        count_of(is_operation(OperationKind.SCHEDULE)).alias("scheduled"),
        count_of(F.col("number").isNotNull()).alias("receives"),
        F.min("number").alias("lowest_number"),
        F.max("number").alias("highest_number"),
        F.min("ts").alias("first_time"),
        F.max("ts").alias("last_time"),
        F.max(F.when(is_accepted, F.col("ts"))).alias("accepted_time"),
        F.min(F.when(is_diverted, F.col("ts"))).alias("diverted_time"),
        F.min(F.when(is_moved, F.col("ts"))).alias("moved_time"),
        F.max(F.when(is_dead & is_done, F.col("ts"))).alias("dead_time"),
    ]


#: How facts of a part of a message's operations become facts of all of them.
MERGES = {
    **dict.fromkeys(
        ("sends", "acknowledged", "accepted", "moves", "held", "completed", "dead", "scheduled", "receives"), F.sum
    ),
    **dict.fromkeys(("lowest_number", "first_time", "diverted_time", "moved_time"), F.min),
    **dict.fromkeys(("highest_number", "last_time", "accepted_time", "dead_time"), F.max),
}


def _merged() -> list[Column]:
    return [merge(name).alias(name) for name, merge in MERGES.items()]


def _key_of(message_id: Column) -> Column:
    """`twinbus.ledger.schema.message_key`, for files of others that lack the column."""
    digits = F.substring(F.md5(message_id.cast("binary")), 1, 16)
    return F.conv(digits, 16, -10).cast("bigint")  # a negative base asks for a number with sign
