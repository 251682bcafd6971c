"""What is kept of messages from run to run, and how the rows of a ledger tell of them.

Of a *settled* message (`settling.py`) one short row is kept for each place, of an *open* one every row.
"""

from __future__ import annotations

from twinbus.ledger.schema import pa

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

#: Settled by the word of receivers, settled by the word of the namespace, and not settled.
RECEIVED, ACCEPTED, OPEN = "received", "accepted", "open"
KINDS = (RECEIVED, ACCEPTED, OPEN)
#: Stands for the sequence number where a receive has none: nobody can tell a second arrival from a redelivery then.
NO_NUMBER = -(2**63)

_PATH, _TIME = pa.dictionary(pa.int32(), pa.string()), pa.timestamp("us", "UTC")
#: The rows that are kept of an open message.
EVENTS = pa.schema(
    [
        ("op_id", pa.binary(16)),
        ("message_key", pa.int64()),
        ("message_id", pa.string()),
        ("destination", _PATH),
        ("subscription", _PATH),
        ("ts", _TIME),
        ("stage", pa.int8()),
        ("operation", pa.int8()),
        ("outcome", pa.int8()),
        ("number", pa.int64()),
        ("day", pa.int32()),
    ]
)
#: What is kept of a settled one; `number` is null for the row of a sender if receivers have rows of their own.
SETTLED = pa.schema(
    [
        ("message_key", pa.int64()),
        ("message_id", pa.string()),
        ("destination", _PATH),
        ("subscription", _PATH),
        ("sends", pa.int64()),
        ("moves", pa.int64()),
        ("scheduled", pa.int64()),
        ("number", pa.int64()),
        ("first_ts", _TIME),
        ("last_ts", _TIME),
        ("accepted_ts", _TIME),
        ("received_ts", _TIME),
        #: Days since the epoch at the end of its day.
        ("day", pa.int32()),
    ]
)


def plain(schema: pa.Schema) -> pa.Schema:
    """The same with paths as texts."""
    return pa.schema([(one.name, pa.string() if one.type == _PATH else one.type) for one in schema])
