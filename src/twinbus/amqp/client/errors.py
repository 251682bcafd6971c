"""Defines the errors of the AMQP client.

AmqpError                      `condition` and `description` come from the peer; `condition` is "" if it gave none
├── ConnectionLostError        the connection could not be made, was closed or cut, or the peer fell silent
├── AuthenticationFailedError  the peer refused the login or a token; `status` is its answer to the token
├── LinkDetachedError          the peer refused or ended a link, or the link was closed here
├── AnswerTimeoutError         an answer did not come in time; also a TimeoutError
├── RequestFailedError         a management request failed; `status` is the peer's status code
├── DeliveryFailedError        the peer did not accept one message or settlement
│   ├── RejectedError          it refused the message; `condition` says why
│   ├── ReleasedError          it did not process the message
│   └── ModifiedError          it tried to process the message and failed
├── NoCreditError              a send without credit, or too many callers already waiting
└── MessageTooLargeError       larger than the link allows: `size`, `limit`

After a `DeliveryFailedError` the peer does not have the message. After any other error the outcome is unknown.
"""

from __future__ import annotations

from typing import Any

from twinbus.amqp.codec import performatives as amqp


class AmqpError(Exception):
    """Base of all errors of the AMQP client."""

    def __init__(self, description: str, condition: str = "", info: dict[Any, Any] | None = None) -> None:
        super().__init__(f"{condition}: {description}" if condition else description)
        self.description = description
        self.condition = condition
        self.info = info or {}


class ConnectionLostError(AmqpError):
    """The connection could not be made, was closed or cut, or the peer fell silent."""


class AuthenticationFailedError(AmqpError):
    """The peer refused the login or a token, or the credential gave no token."""

    def __init__(self, description: str, condition: str = "", status: int | None = None) -> None:
        super().__init__(description, condition)
        self.status = status


class LinkDetachedError(AmqpError):
    """The peer refused or ended a link, or the link was closed here."""


class AnswerTimeoutError(AmqpError, TimeoutError):
    """An answer did not come in time."""


class RequestFailedError(AmqpError):
    """The peer answered a request with a failure."""

    def __init__(self, description: str, condition: str, status: int) -> None:
        super().__init__(description, condition)
        self.status = status


class DeliveryFailedError(AmqpError):
    """The peer did not accept one message or settlement."""


class RejectedError(DeliveryFailedError):
    """The peer refused the message; `condition` says why."""


class ReleasedError(DeliveryFailedError):
    """The peer did not process the message."""


class ModifiedError(DeliveryFailedError):
    """The peer tried to process the message and failed."""


class NoCreditError(AmqpError):
    """There is no credit or session window, or too many callers wait already: await `wait_for_credit` first."""


class MessageTooLargeError(AmqpError):
    """The message is larger than the link allows."""

    def __init__(self, size: int, limit: int, path: str) -> None:
        super().__init__(
            f"'{path}' takes messages of at most {limit} bytes, got {size}",
            "amqp:link:message-size-exceeded",
        )
        self.size = size
        self.limit = limit


def delivery_failure(state: Any) -> DeliveryFailedError | None:
    """The error for an outcome; None if accepted. Settled without an outcome counts as released."""
    kind = type(state)
    if kind is amqp.Accepted:
        return None
    if kind is amqp.Rejected:
        error = state.error
        if error is None:
            return RejectedError("rejected without a reason")
        return RejectedError(error.description or "rejected", error.condition, error.info)
    if kind is amqp.Modified:
        return ModifiedError("the peer could not process the message", info=state.message_annotations)
    return ReleasedError("the peer did not process the message")
