"""Define the result tables: columns, types and the meaning of a row (docs/reference/tables.md).

The schemas of Spark and Arrow and the page in `docs/` are derived from this definition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .verdict import WORDS

#: Version of the tables. Tables of another version are refused.
VERSION = 2


class Column(NamedTuple):
    """One column; `type` is a type name of Spark SQL."""

    name: str
    type: str
    meaning: str


class Table:
    """One table, stored below `<results>/<name>/day=YYYY-MM-DD/`.

    Args:
        row: The key of a row: there is one row for each.
    """

    def __init__(self, name: str, row: str, *columns: tuple[str, str, str]) -> None:
        self.name = name
        self.row = row
        self.columns = tuple(Column(*column) for column in columns)
        self.names = [column.name for column in self.columns]
        #: The columns as Spark SQL writes a schema.
        self.ddl = ", ".join(f"`{column.name}` {column.type}" for column in self.columns)


_HOUR = ("hour", "timestamp", "start of the hour, UTC")
_ENTITY = ("entity", "string", "queue or topic the message is for; for other operations, the entity that was asked")

USAGE = Table(
    "usage",
    "hour, pairing, client, namespace, entity, operation, stage and outcome",
    ("day", "date", "UTC day of the operations"),
    _HOUR,
    ("pairing", "string", "name of the pairing"),
    ("client", "string", "client that recorded the operations"),
    ("namespace", "string", "`primary`, `secondary` or `neither`"),
    _ENTITY,
    ("operation", "string", "what was asked, such as `send`"),
    ("stage", "string", "what it was for, such as `direct` or `backlog_send`"),
    ("outcome", "string", "`done`, `failed`, `unknown`, `empty` or `planned`"),
    ("rows", "bigint", "operations"),
    ("count", "bigint", "messages of these operations"),
    ("units", "bigint", "billed units, without the copies of topics"),
    ("bytes", "bigint", "bytes of all messages"),
    ("transferred", "bigint", "bytes carried into or out of the secondary"),
    ("first_time", "timestamp", "time of the first operation"),
    ("last_time", "timestamp", "time of the last operation"),
)

LATENCY = Table(
    "latency",
    "hour, entity, stage, operation and histogram bucket, of operations that were done",
    ("day", "date", "UTC day of the operations"),
    _HOUR,
    _ENTITY,
    ("stage", "string", "as in `usage`"),
    ("operation", "string", "as in `usage`"),
    ("bucket", "int", "bucket of the duration: it begins at 1.1 to the power of `bucket` microseconds"),
    ("count", "bigint", "operations"),
    ("max_us", "bigint", "longest duration in microseconds"),
)

BACKLOG_TIME = Table(
    "backlog_time",
    "hour in which messages were diverted, entity, state and histogram bucket",
    ("day", "date", "UTC day on which the messages were diverted"),
    ("hour", "timestamp", "start of the hour in which they were diverted, UTC"),
    ("entity", "string", "queue or topic the messages are for"),
    ("state", "string", "`moved`, `dead_lettered` or `waiting`"),
    ("bucket", "int", "bucket of the time in the backlog, as in `latency`; null unless moved"),
    ("count", "bigint", "messages"),
    ("max_us", "bigint", "longest time in the backlog in microseconds; 0 while waiting"),
)

ACTIVITY = Table(
    "activity",
    "minute, pairing, entity and kind of event",
    ("day", "date", "UTC day of the events"),
    ("minute", "timestamp", "start of the minute, UTC"),
    ("pairing", "string", "name of the pairing"),
    _ENTITY,
    ("kind", "string", "kind of event, such as `diverted` (`ActivityKind`)"),
    ("count", "bigint", "events"),
    ("first_time", "timestamp", "time of the first event"),
    ("last_time", "timestamp", "time of the last event"),
)

MESSAGE_DAYS = Table(
    "message_days",
    "day, message and destination; for topics one more row for each subscription at which the message arrived",
    ("day", "date", "UTC day of the operations"),
    ("message_key", "bigint", "first eight bytes of the MD5 of the message id, big-endian, signed"),
    ("message_id", "string", "id of the message"),
    ("destination", "string", "queue or topic in lower case"),
    ("subscription", "string", "path of the subscription in lower case; null for senders, syphon and queues"),
    ("sends", "int", "attempts of senders, at the primary or at a backlog queue"),
    ("acknowledged", "int", "attempts that were accepted"),
    ("accepted", "int", "sends that the destination accepted: from senders, and moves of the syphon"),
    ("moves", "int", "moves of the syphon that the destination accepted"),
    ("held", "int", "operations of the syphon on the message"),
    ("completed", "int", "times the syphon completed it in the backlog"),
    ("dead", "int", "times the syphon dead-lettered it in the backlog, or was about to"),
    ("scheduled", "int", "attempts to schedule it"),
    ("receives", "int", "deliveries to receivers, redeliveries included"),
    ("arrivals", "int", "arrivals: different sequence numbers under which receivers got it"),
    ("lowest_number", "bigint", "lowest sequence number of these arrivals"),
    ("highest_number", "bigint", "highest sequence number of these arrivals"),
    ("first_time", "timestamp", "time of the first operation"),
    ("last_time", "timestamp", "time of the last operation"),
    ("accepted_time", "timestamp", "time of the last send that the destination accepted"),
    ("diverted_time", "timestamp", "time of the first send that a backlog queue accepted"),
    ("moved_time", "timestamp", "time of the first move that the destination accepted"),
    ("dead_time", "timestamp", "time of the last dead-lettering in the backlog"),
)

_EVIDENCE = ("evidence", "string", "`receivers` if receivers of the destination record, else `namespace`")

VERDICTS = Table(
    "verdicts",
    "day on which messages were first seen, and destination",
    ("day", "date", "UTC day of the messages' first operation"),
    ("destination", "string", "queue or topic, as clients write it"),
    _EVIDENCE,
    *((word, "bigint", f"messages that are {word.replace('_', ' ')}") for word in WORDS),
    ("before_receivers", "bigint", "messages that arrived by the namespace's word, before receivers recorded"),
)

ARRIVALS = Table(
    "arrivals",
    "day on which messages first arrived, topic and subscription",
    ("day", "date", "UTC day of the messages' first arrival at the subscription"),
    ("destination", "string", "topic, as clients write it"),
    ("subscription", "string", "path of the subscription, as clients write it"),
    ("messages", "bigint", "messages that arrived there"),
)

ANOMALIES = Table(
    "anomalies",
    "message and word that should be looked at",
    ("day", "date", "UTC day of the message's first operation"),
    ("word", "string", "`lost`, `unexpected`, `duplicated`, `recovered`, `in_flight`, `dead_lettered` or `late`"),
    ("destination", "string", "queue or topic, as clients write it"),
    ("message_id", "string", "id of the message"),
    ("first_time", "timestamp", "time of the first operation"),
    ("last_time", "timestamp", "time of the last operation"),
    ("sends", "bigint", "attempts of senders"),
    ("moves", "bigint", "moves of the syphon that the destination accepted"),
    ("arrivals", "bigint", "arrivals, by the evidence that was used"),
    ("evidence", "string", "`receivers` or `namespace`: the evidence used for this message"),
)

#: The public tables, by name.
TABLES: Mapping[str, Table] = {
    table.name: table for table in (USAGE, LATENCY, BACKLOG_TIME, ACTIVITY, MESSAGE_DAYS, VERDICTS, ARRIVALS, ANOMALIES)
}

#: Bookkeeping of runs.
INPUTS = Table(
    "_inputs",
    "file of the ledger that a run listed; runs write into two folders in turn",
    ("number", "bigint", "number of the run"),
    ("day", "date", "day of the file's folder; null for a file outside the day folders"),
    ("file", "string", "name of the file, with its folder if it is outside the day folders"),
    ("bytes", "bigint", "size"),
    ("modified", "timestamp", "when the file was last changed, by the clock of the storage"),
    ("status", "string", "`read`, `unreadable`, `replaced`, `late`, `clock` or `stray`"),
    ("reason", "string", "why its rows are not in the tables; null if they are"),
    ("rows", "bigint", "rows, repeated ones included; 0 unless read"),
    ("first_time", "timestamp", "time of the first row"),
    ("last_time", "timestamp", "time of the last row"),
    ("ids", "array<struct<writer:bigint,lowest:decimal(20,0),highest:decimal(20,0)>>", "ranges of operation ids"),
)

GENERATION = Table(
    "_generation",
    "run that wrote the tables last; always one row",
    ("version", "int", "version of the tables"),
    ("number", "bigint", "number of runs that have changed the tables"),
    ("run", "string", "name of the run"),
    ("state", "string", "`writing` while partitions are replaced, then `complete`"),
    ("format", "string", "format of the tables, such as `parquet`"),
    ("started", "timestamp", "when the run began"),
    ("finished", "timestamp", "when it was complete"),
    ("reconciled", "boolean", "whether `verdicts`, `arrivals` and `anomalies` are current"),
    ("drained", "boolean", "run option: backlog and destinations were empty"),
    ("patience_us", "bigint", "run option: how long receivers must go on before a message counts as lost"),
    ("horizon_days", "int", "run option: days within which operations of a message belong together"),
    ("days", "array<struct<table:string,days:array<date>>>", "the days that each table has"),
    ("twinbus", "string", "version of twinbus"),
    ("spark", "string", "version of Spark"),
)
