"""Classifies a failed send: is it about the message, its destination, the namespace or the connection?"""

from __future__ import annotations

from enum import Enum, auto

from twinbus.amqp.client.errors import (
    AmqpError,
    ConnectionLostError,
    LinkDetachedError,
    MessageTooLargeError,
    ModifiedError,
    NoCreditError,
    RejectedError,
)

SERVER_BUSY = "com.microsoft:server-busy"
LOCK_LOST = "com.microsoft:message-lock-lost"
MESSAGE_NOT_FOUND = "com.microsoft:message-not-found"
NOT_FOUND = "amqp:not-found"

# The destination accepts no message at all.
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


class SendFailure(Enum):
    """What a failed send is about."""

    #: The namespace throttles.
    BUSY = auto()
    #: The destination accepts nothing.
    DOWN = auto()
    #: The destination refused this message; it may accept others.
    REFUSED = auto()
    #: The destination will never accept this message.
    UNACCEPTABLE = auto()
    #: The link ended, as the service does with moved or idle links. Only a new link can tell.
    LINK_ENDED = auto()
    #: The connection is lost; the cause is unknown.
    CONNECTION_LOST = auto()


def classify(error: AmqpError) -> SendFailure:
    """Classify the error of a send or of attaching a sender."""
    if error.condition == SERVER_BUSY:
        return SendFailure.BUSY
    if isinstance(error, ConnectionLostError):
        return SendFailure.CONNECTION_LOST
    if isinstance(error, MessageTooLargeError):
        return SendFailure.UNACCEPTABLE
    if isinstance(error, NoCreditError):
        return SendFailure.LINK_ENDED
    if isinstance(error, LinkDetachedError):
        return SendFailure.DOWN if error.condition in _DESTINATION_DOWN else SendFailure.LINK_ENDED
    if isinstance(error, ModifiedError) or (
        isinstance(error, RejectedError) and error.condition not in _DESTINATION_DOWN
    ):
        return SendFailure.REFUSED
    return SendFailure.DOWN
