"""The columns of the rollups: a contract with everything that reads results (docs/pipeline.md).

Times are whole microseconds since the epoch, UTC. Codes are those of the ledger (docs/ledger.md); a later release may
have more of them.
"""

from __future__ import annotations

import math
from enum import IntEnum, unique

from twinbus.ledger.schema import pa

HOUR_US, MINUTE_US = 3_600_000_000, 60_000_000


@unique
class Happening(IntEnum):
    """What outages are made of: the `kind` of `activity`. Codes are never used again for something else."""

    #: A send to the primary that failed, or got no answer.
    FAILED_SEND = 1
    #: A message stored in the backlog, and one that could not be, or perhaps not.
    DIVERTED = 2
    FAILED_DIVERT = 3
    #: A ping that got through, and one that did not.
    PING = 4
    FAILED_PING = 5
    #: The syphon's send to the primary: accepted, or not, or no answer.
    MOVED = 6
    FAILED_MOVE = 7
    #: A message that left the backlog: completed after its move, or dead-lettered there because its time was over, or
    #: because it could not be moved.
    COMPLETED = 8
    EXPIRED = 9
    POISON = 10
    #: Set aside in the backlog, because the destination was down.
    DEFERRED = 11
    #: A lock started anew.
    RENEWED = 12


USAGE = pa.schema(
    [
        ("hour_us", pa.int64()),
        ("pairing", pa.string()),
        ("client", pa.string()),
        ("namespace", pa.int8()),
        ("entity", pa.string()),
        ("operation", pa.int8()),
        ("stage", pa.int8()),
        ("outcome", pa.int8()),
        ("rows", pa.int64()),
        ("count", pa.int64()),
        ("units", pa.int64()),
        ("bytes", pa.int64()),
        ("transferred", pa.int64()),
    ]
)

LATENCY = pa.schema(
    [
        ("hour_us", pa.int64()),
        ("entity", pa.string()),
        ("stage", pa.int8()),
        ("operation", pa.int8()),
        ("bucket", pa.int16()),
        ("count", pa.int64()),
        ("max_us", pa.int64()),
    ]
)

ACTIVITY = pa.schema(
    [
        ("minute_us", pa.int64()),
        ("pairing", pa.string()),
        ("entity", pa.string()),
        ("kind", pa.int8()),
        ("count", pa.int64()),
        ("first_us", pa.int64()),
        ("last_us", pa.int64()),
    ]
)

WAITS = pa.schema(
    [
        ("hour_us", pa.int64()),
        ("entity", pa.string()),
        ("bucket", pa.int16()),
        ("count", pa.int64()),
        ("max_us", pa.int64()),
    ]
)

#: The rollups by name.
ROLLUP_SCHEMAS = {"usage": USAGE, "latency": LATENCY, "activity": ACTIVITY, "waits": WAITS}

#: A bucket ends where the next one begins, this many times further up. What is read from a bucket's middle is wrong by
#: at most the half of that: 4.9 %.
GROWTH = 1.1
#: Of messages that are still in the backlog, as far as rows tell, and of those that became dead letters there.
OPEN_BUCKET, DEAD_BUCKET = -1, -2


def bucket_of(us: int) -> int:
    """The bucket of a duration; less than a microsecond counts as one."""
    return math.floor(math.log(max(1, us)) / math.log(GROWTH))


def middle_of(bucket: int) -> float:
    """The duration that stands for a bucket, in microseconds: off by the same factor from both its ends."""
    return float(GROWTH ** (bucket + 0.5))
