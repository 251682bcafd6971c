"""What a failed send says: about the message, its destination, the namespace, or nothing at all."""

from __future__ import annotations

from enum import Enum, auto

from .errors import AmqpError, ConnectionLost, LinkDetached, MessageTooLarge, Modified, NoRoom, Rejected

SERVER_BUSY = "com.microsoft:server-busy"
LOCK_LOST = "com.microsoft:message-lock-lost"
MESSAGE_NOT_FOUND = "com.microsoft:message-not-found"
NOT_FOUND = "amqp:not-found"

# The destination cannot take anything now, whatever the message.
_DESTINATION_DOWN = frozenset(
    {
        NOT_FOUND,
        "amqp:unauthorized-access",
        "amqp:resource-limit-exceeded",
        "amqp:internal-error",
        "com.microsoft:auth-failed",
        "com.microsoft:entity-disabled",
        "com.microsoft:operation-cancelled",
        "com.microsoft:timeout",
    }
)


class Verdict(Enum):
    """Who or what a failure is about."""

    #: The namespace has too much to do.
    BUSY = auto()
    #: The destination takes nothing.
    DOWN = auto()
    #: The destination does not take this message; it may take others.
    REFUSED = auto()
    #: The destination will never take this message.
    HOPELESS = auto()
    #: The link ended: the service does that with links it moves or finds idle. Only a fresh one can tell.
    ADRIFT = auto()
    #: The connection is gone, and nobody can tell.
    LOST = auto()


def verdict_on(error: AmqpError) -> Verdict:
    """What the end of a send, or of the attempt to attach a link, says."""
    if error.condition == SERVER_BUSY:
        return Verdict.BUSY
    if isinstance(error, ConnectionLost):
        return Verdict.LOST
    if isinstance(error, MessageTooLarge):
        return Verdict.HOPELESS
    if isinstance(error, NoRoom):
        return Verdict.ADRIFT
    if isinstance(error, LinkDetached):
        return Verdict.DOWN if error.condition in _DESTINATION_DOWN else Verdict.ADRIFT
    if isinstance(error, Modified) or (isinstance(error, Rejected) and error.condition not in _DESTINATION_DOWN):
        return Verdict.REFUSED
    return Verdict.DOWN
