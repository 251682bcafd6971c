"""What can go wrong between the syphon and a namespace.

AmqpError                 `condition` and `description` are the peer's words; the condition is "" if it gave none
├── ConnectionLost        the connection could not be made, was cut or closed, or the peer fell silent
├── AuthenticationFailed  the peer refused the login or a token; `status` is its answer to the token
├── LinkDetached          the peer refused or ended a link, or the link was closed here
├── TimedOut              an answer did not come in time; also a TimeoutError
├── RequestFailed         a request was answered with a failure; `status` says which
├── DeliveryFailed        the peer's answer to one message or settlement: it was not done
│   ├── Rejected          it will not take it; the condition says why
│   ├── Released          it did not look at it
│   └── Modified          it tried and failed
├── NoRoom                a send without asking for room first; also too many requests at once
└── MessageTooLarge       larger than the peer takes on this link: `size`, `limit`

After a `DeliveryFailed` the peer does not have the message. After any other error nobody knows.
"""

from __future__ import annotations

from typing import Any

from twinbus.amqp import performatives as amqp


class AmqpError(Exception):
    """Something between us and the namespace failed."""

    def __init__(self, description: str, condition: str = "", info: dict[Any, Any] | None = None) -> None:
        super().__init__(f"{condition}: {description}" if condition else description)
        self.description = description
        self.condition = condition
        self.info = info or {}


class ConnectionLost(AmqpError):  # noqa: N818 - what happened
    """The connection could not be made, was cut or closed, or the peer fell silent."""


class AuthenticationFailed(AmqpError):  # noqa: N818 - what happened
    """The peer refused the login or a token, or there was no token to show."""

    def __init__(self, description: str, condition: str = "", status: int | None = None) -> None:
        super().__init__(description, condition)
        self.status = status


class LinkDetached(AmqpError):  # noqa: N818 - what happened
    """The peer refused or ended a link, or the link was closed here."""


class TimedOut(AmqpError, TimeoutError):  # noqa: N818 - what happened
    """An answer did not come in time."""


class RequestFailed(AmqpError):  # noqa: N818 - what happened
    """A request was answered with a failure."""

    def __init__(self, description: str, condition: str, status: int) -> None:
        super().__init__(description, condition)
        self.status = status


class DeliveryFailed(AmqpError):  # noqa: N818 - what happened
    """The peer's answer to one message or settlement: it was not done."""


class Rejected(DeliveryFailed):
    """The peer will not take it; the condition says why."""


class Released(DeliveryFailed):
    """The peer did not look at it."""


class Modified(DeliveryFailed):
    """The peer tried and failed."""


class NoRoom(AmqpError):  # noqa: N818 - what happened
    """There is no credit, no window or no place to wait: ask for room first."""


class MessageTooLarge(AmqpError):  # noqa: N818 - what happened
    """The message is larger than the peer takes on this link."""

    def __init__(self, size: int, limit: int, path: str) -> None:
        super().__init__(
            f"a message of {size} bytes is larger than the {limit} that '{path}' takes",
            "amqp:link:message-size-exceeded",
        )
        self.size = size
        self.limit = limit


def delivery_failure(state: Any) -> DeliveryFailed | None:
    """What an outcome means: None for accepted. Settled without an outcome is as good as not looked at."""
    kind = type(state)
    if kind is amqp.Accepted:
        return None
    if kind is amqp.Rejected:
        error = state.error
        if error is None:
            return Rejected("rejected without a reason")
        return Rejected(error.description or "rejected", error.condition, error.info)
    if kind is amqp.Modified:
        return Modified("the peer could not process the message", info=state.message_annotations)
    return Released("the peer did not process the message")
