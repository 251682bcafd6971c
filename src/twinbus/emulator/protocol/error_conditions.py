"""Defines AMQP error conditions, their status codes and the service's error texts."""

from __future__ import annotations

from twinbus.amqp.codec.performatives import Error

NOT_FOUND = "amqp:not-found"
UNAUTHORIZED = "amqp:unauthorized-access"
NOT_ALLOWED = "amqp:not-allowed"
NOT_IMPLEMENTED = "amqp:not-implemented"
INTERNAL_ERROR = "amqp:internal-error"
DECODE_ERROR = "amqp:decode-error"
INVALID_FIELD = "amqp:invalid-field"
ILLEGAL_STATE = "amqp:illegal-state"
QUOTA_EXCEEDED = "amqp:resource-limit-exceeded"
FRAMING_ERROR = "amqp:connection:framing-error"
CONNECTION_FORCED = "amqp:connection:forced"
WINDOW_VIOLATION = "amqp:session:window-violation"
UNATTACHED_HANDLE = "amqp:session:unattached-handle"
HANDLE_IN_USE = "amqp:session:handle-in-use"
DETACH_FORCED = "amqp:link:detach-forced"
TRANSFER_LIMIT = "amqp:link:transfer-limit-exceeded"
MESSAGE_TOO_LARGE = "amqp:link:message-size-exceeded"
STOLEN = "amqp:link:stolen"
UNKNOWN_TRANSACTION = "amqp:transaction:unknown-id"
ROLLED_BACK = "amqp:transaction:rollback"
SERVER_BUSY = "com.microsoft:server-busy"
TIMEOUT = "com.microsoft:timeout"
ENTITY_DISABLED = "com.microsoft:entity-disabled"
ENTITY_EXISTS = "com.microsoft:entity-already-exists"
MESSAGE_LOCK_LOST = "com.microsoft:message-lock-lost"
MESSAGE_NOT_FOUND = "com.microsoft:message-not-found"
SESSION_LOCK_LOST = "com.microsoft:session-lock-lost"
SESSION_CANNOT_BE_LOCKED = "com.microsoft:session-cannot-be-locked"
SESSION_NOT_FOUND = "com.microsoft:session-not-found"
ARGUMENT_ERROR = "com.microsoft:argument-error"
OUT_OF_RANGE = "com.microsoft:argument-out-of-range"
DEAD_LETTER = "com.microsoft:dead-letter"

# The status code of a $management or $cbs response for each condition.
STATUS = {
    NOT_FOUND: 404,
    MESSAGE_NOT_FOUND: 404,
    SESSION_NOT_FOUND: 404,
    UNAUTHORIZED: 401,
    ARGUMENT_ERROR: 400,
    OUT_OF_RANGE: 400,
    DECODE_ERROR: 400,
    NOT_ALLOWED: 400,
    NOT_IMPLEMENTED: 501,
    MESSAGE_LOCK_LOST: 410,
    SESSION_LOCK_LOST: 410,
    SESSION_CANNOT_BE_LOCKED: 409,
    ENTITY_EXISTS: 409,
    MESSAGE_TOO_LARGE: 413,
    QUOTA_EXCEEDED: 403,
    ENTITY_DISABLED: 403,
    SERVER_BUSY: 503,
    TIMEOUT: 408,
}


class BrokerError(Exception):
    """A request is refused; the client gets this AMQP error."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(f"{condition}: {description}")
        self.condition = condition
        self.description = description

    @property
    def status(self) -> int:
        return STATUS.get(self.condition, 500)

    def performative(self) -> Error:
        """The error for a detach, close or rejected. It always has an info map, which some clients require."""
        return Error(self.condition, self.description, {"twinbus": "embedded"})


def not_found(path: str) -> BrokerError:
    return BrokerError(NOT_FOUND, f"The messaging entity '{path}' could not be found.")


def message_lock_lost() -> BrokerError:
    return BrokerError(
        MESSAGE_LOCK_LOST,
        "The lock supplied is invalid. Either the lock expired, or the message has already been removed"
        " from the queue.",
    )


def session_lock_lost(session: str) -> BrokerError:
    return BrokerError(
        SESSION_LOCK_LOST, f"The session lock has expired on the session {session!r}. Accept a new session."
    )
