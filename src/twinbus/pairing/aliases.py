"""The names that an envelope uses: where it keeps what it took off a message, and what belongs to a broker."""

from __future__ import annotations

from typing import Final

# Application properties, the first four named as the legacy client named them.
PATH: Final = "x-ms-path"
SESSION_ID: Final = "x-ms-sessionid"
TIME_TO_LIVE: Final = "x-ms-timetolive"
SCHEDULED_TIME: Final = "x-ms-scheduledenqueuetimeutc"
EXPIRY: Final = "x-twinbus-expiry"
CREATED: Final = "x-twinbus-created"
ALIASES: Final = frozenset({PATH, SESSION_ID, TIME_TO_LIVE, SCHEDULED_TIME, EXPIRY, CREATED})

#: The descriptor of .NET's TimeSpan, and what it counts in.
TIMESPAN: Final = "com.microsoft:timespan"
TICKS_PER_MS: Final = 10_000

#: What a queue writes on a message that it dead-letters, so that a dead letter of the backlog can be restored too.
DEAD_LETTER_PROPERTIES: Final = frozenset({"DeadLetterReason", "DeadLetterErrorDescription"})

#: In front of a sender's own property whose name is taken in the backlog, or that begins with this itself.
OWN: Final = "x-twinbus-own-"
_TAKEN: Final = ALIASES | DEAD_LETTER_PROPERTIES

#: The annotation that makes a queue hold a message back.
SCHEDULED_ANNOTATION: Final = "x-opt-scheduled-enqueue-time"
#: What a broker writes on each message, whatever its sender wrote there. It means nothing to another broker.
BROKER_ANNOTATIONS: Final = frozenset(
    {
        "x-opt-sequence-number",
        "x-opt-enqueue-sequence-number",
        "x-opt-enqueued-time",
        "x-opt-locked-until",
        "x-opt-lock-token",
        "x-opt-message-state",
        "x-opt-deadletter-source",
        "x-opt-partition-id",
    }
)


def is_taken(name: str) -> bool:
    """Whether a sender's own property of this name needs `OWN` in front of it in the backlog."""
    return name in _TAKEN or name.startswith(OWN)
