"""Names of the envelope's properties, and of the annotations that a broker writes."""

from __future__ import annotations

from typing import Final

# Application properties. The first four have the names of the legacy client.
PATH: Final = "x-ms-path"
SESSION_ID: Final = "x-ms-sessionid"
TIME_TO_LIVE: Final = "x-ms-timetolive"
SCHEDULED_TIME: Final = "x-ms-scheduledenqueuetimeutc"
EXPIRY: Final = "x-twinbus-expiry"
CREATED: Final = "x-twinbus-created"
ALIASES: Final = frozenset({PATH, SESSION_ID, TIME_TO_LIVE, SCHEDULED_TIME, EXPIRY, CREATED})

#: The descriptor and unit of .NET's TimeSpan.
TIMESPAN: Final = "com.microsoft:timespan"
TICKS_PER_MS: Final = 10_000

#: What a queue writes on a dead letter. Removed on restoring, so that dead letters of the backlog can be restored, too.
DEAD_LETTER_PROPERTIES: Final = frozenset({"DeadLetterReason", "DeadLetterErrorDescription"})

#: Prefix for a sender's own property whose name the envelope uses, or that starts with this prefix.
OWN: Final = "x-twinbus-own-"
_TAKEN: Final = ALIASES | DEAD_LETTER_PROPERTIES

#: The annotation that schedules a message.
SCHEDULED_ANNOTATION: Final = "x-opt-scheduled-enqueue-time"
#: What a broker writes on each message, over anything the sender wrote. It means nothing to another broker.
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
    """Whether a sender's own property of this name needs the prefix `OWN` in the backlog."""
    return name in _TAKEN or name.startswith(OWN)
