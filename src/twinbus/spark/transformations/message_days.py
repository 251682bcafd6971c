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

from .expressions import SUBSCRIPTIONS, as_table, is_operation, is_outcome, is_stage, topic_or_queue

_COPIED = ("day", "message_id", "ts", "stage", "operation", "outcome")
#: What is read of the ledger.
COLUMNS = (*_COPIED, "message_key", "entity", "destination", "sequence_number")
#: What makes two rows be about the same message.
MESSAGE = ("message_key", "message_id", "destination")
#: Stands for the sequence number of an arrival that was recorded without one.
NO_NUMBER = -(2**63)


def message_days(operations: DataFrame) -> DataFrame:
    """The table, from operations that have `COLUMNS`."""
    path, is_arrival = F.lower("entity"), _is_arrival()
    destination = F.when(is_arrival, topic_or_queue(path)).otherwise(F.lower(F.coalesce("destination", "entity")))
    events = operations.where(_is_event()).select(
        *_COPIED,
        F.coalesce("message_key", _key_of(F.col("message_id"))).alias("message_key"),
        destination.alias("destination"),
        F.when(is_arrival & path.contains(SUBSCRIPTIONS), path).alias("subscription"),
        F.when(is_arrival, F.coalesce("sequence_number", F.lit(NO_NUMBER))).alias("number"),
    )
    # All rows of a message go to one task, so that both steps need no other exchange: first each sequence number
    # counts once, however often it was delivered, then the message.
    place = ("day", *MESSAGE, "subscription")
    facts = [fact.alias(name) for name, fact in _facts().items()]
    by_number = events.repartition("message_key").select(*place, "number", *facts).groupBy(*place, "number")
    by_place = by_number.agg(*merged_facts()).groupBy(*place)
    return as_table(by_place.agg(*merged_facts(), F.count("number").alias("arrivals")), MESSAGE_DAYS)


def _is_arrival() -> Column:
    """A receiver got the message. Messages read from a dead-letter queue did not arrive there."""
    is_receive = is_stage(Stage.PRIMARY_RECEIVE) & is_operation(OperationKind.RECEIVE) & is_outcome(Outcome.DONE)
    return is_receive & ~F.col("entity").contains("/$")


def _is_event() -> Column:
    """The row says something about a message."""
    is_send = is_stage(Stage.DIRECT, Stage.BACKLOG_SEND) & is_operation(OperationKind.SEND, OperationKind.SCHEDULE)
    is_move = is_stage(Stage.PRIMARY_SEND) & is_operation(OperationKind.SEND)
    in_backlog = is_stage(Stage.BACKLOG_RECEIVE) & is_operation(
        OperationKind.RECEIVE, OperationKind.COMPLETE, OperationKind.DEAD_LETTER
    )
    return F.col("message_id").isNotNull() & (is_send | is_move | in_backlog | _is_arrival())


def _facts() -> dict[str, Column]:
    """What one operation says about its message."""
    is_done, in_backlog = is_outcome(Outcome.DONE), is_stage(Stage.BACKLOG_RECEIVE)
    is_sent = is_stage(Stage.DIRECT, Stage.BACKLOG_SEND)
    is_diverted = is_stage(Stage.BACKLOG_SEND) & is_done
    is_moved = is_stage(Stage.PRIMARY_SEND) & is_done
    is_accepted = is_moved | (is_stage(Stage.DIRECT) & is_done)
    # Also if it was only planned: then the message is a dead letter, or still in the queue.
    is_dead = in_backlog & is_operation(OperationKind.DEAD_LETTER) & is_outcome(Outcome.DONE, Outcome.PLANNED)
    counts = {
        "sends": is_sent,
        "acknowledged": is_sent & is_done,
        "accepted": is_accepted,
        "moves": is_moved,
        "held": in_backlog | is_stage(Stage.PRIMARY_SEND),
        "completed": in_backlog & is_operation(OperationKind.COMPLETE) & is_done,
        "dead": is_dead,
        "scheduled": is_operation(OperationKind.SCHEDULE),
        "receives": F.col("number").isNotNull(),
    }
    return {name: F.when(condition, 1).otherwise(0) for name, condition in counts.items()} | {
        "lowest_number": F.col("number"),
        "highest_number": F.col("number"),
        "first_time": F.col("ts"),
        "last_time": F.col("ts"),
        "accepted_time": F.when(is_accepted, F.col("ts")),
        "diverted_time": F.when(is_diverted, F.col("ts")),
        "moved_time": F.when(is_moved, F.col("ts")),
        "dead_time": F.when(is_dead & is_done, F.col("ts")),
    }


def merged_facts() -> list[Column]:
    """Aggregates that make the facts of a message from the facts of parts of its operations."""
    sums = ("sends", "acknowledged", "accepted", "moves", "held", "completed", "dead", "scheduled", "receives")
    return [
        *(F.sum(name).alias(name) for name in sums),
        *(F.min(name).alias(name) for name in ("lowest_number", "first_time", "diverted_time", "moved_time")),
        *(F.max(name).alias(name) for name in ("highest_number", "last_time", "accepted_time", "dead_time")),
    ]


def _key_of(message_id: Column) -> Column:
    """`twinbus.ledger.schema.message_key`, for files of others that lack the column."""
    digits = F.substring(F.md5(message_id.cast("binary")), 1, 16)
    return F.conv(digits, 16, -10).cast("bigint")  # a negative base asks for a number with sign
