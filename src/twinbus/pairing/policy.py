"""Which failures mean that an entity cannot be reached, and which are about the message, the caller or its rights.

Only the first kind starts the failover timer: a message that is too large would be too large for the backlog as well,
and a wrong key is not mended by waiting. The SDK's exception class alone does not tell: one class stands for several
causes, and what `$cbs` refuses always looks like an authentication error. So the AMQP condition, the status and the
original exception are looked at too.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from enum import Enum
from types import MappingProxyType

from azure.core.exceptions import AzureError, HttpResponseError, ServiceRequestError, ServiceResponseError
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityAlreadyExistsError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusCommunicationError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from .errors import EntityNotFoundError, NoFreeLinkError, TwinbusError


class Cause(Enum):
    """What is behind a failure."""

    #: The entity could not be reached, or its service is out of order.
    UNAVAILABLE = "unavailable"
    #: The service asks to slow down.
    BUSY = "busy"
    NOT_FOUND = "not found"
    DISABLED = "disabled"
    #: The entity is full, or some other quota is used up.
    QUOTA = "quota"
    #: The key, the token, the rights or the certificate are not accepted.
    FORBIDDEN = "forbidden"
    #: The message, or how it was sent: the same would happen elsewhere and later.
    CALLER = "caller"


_CONDITIONS = MappingProxyType(
    {
        "com.microsoft:server-busy": Cause.BUSY,
        "amqp:not-found": Cause.NOT_FOUND,
        "amqp:resource-deleted": Cause.NOT_FOUND,
        "com.microsoft:entity-disabled": Cause.DISABLED,
        "amqp:resource-limit-exceeded": Cause.QUOTA,
        "amqp:unauthorized-access": Cause.FORBIDDEN,
        "com.microsoft:auth-failed": Cause.FORBIDDEN,
        "amqp:link:message-size-exceeded": Cause.CALLER,
        "com.microsoft:argument-error": Cause.CALLER,
        "com.microsoft:argument-out-of-range": Cause.CALLER,
        "com.microsoft:precondition-failed": Cause.CALLER,
        "amqp:precondition-failed": Cause.CALLER,
        "amqp:not-allowed": Cause.CALLER,
        "amqp:not-implemented": Cause.CALLER,
        "amqp:invalid-field": Cause.CALLER,
        "amqp:decode-error": Cause.CALLER,
        "amqp:frame-size-too-small": Cause.CALLER,
    }
)

_CLASSES: tuple[tuple[type[ServiceBusError], Cause], ...] = (
    (ServiceBusServerBusyError, Cause.BUSY),
    (MessagingEntityNotFoundError, Cause.NOT_FOUND),
    (MessagingEntityDisabledError, Cause.DISABLED),
    (ServiceBusQuotaExceededError, Cause.QUOTA),
    (ServiceBusAuthorizationError, Cause.FORBIDDEN),
    (MessageSizeExceededError, Cause.CALLER),
    (MessagingEntityAlreadyExistsError, Cause.CALLER),
    (MessageNotFoundError, Cause.CALLER),
    (MessageLockLostError, Cause.CALLER),
    (SessionLockLostError, Cause.CALLER),
    (SessionCannotBeLockedError, Cause.CALLER),
)

# Unreachable, full, deleted, disabled, not authorised.
_OF_THE_QUEUE = frozenset({Cause.UNAVAILABLE, Cause.QUOTA, Cause.NOT_FOUND, Cause.DISABLED, Cause.FORBIDDEN})

# Where the SDK turns a message into bytes: what fails there is the message, not the wire.
_ENCODING_MODULES = frozenset(
    {
        "azure.servicebus._pyamqp._encode",
        "azure.servicebus._pyamqp.utils",
        "azure.servicebus._common.message",
        "azure.servicebus._common.utils",
        "azure.servicebus.amqp._amqp_message",
    }
)

# An exception refers to others; nothing of the SDK goes this deep.
_MAX_DEPTH = 20


def cause_of(error: BaseException) -> Cause:
    """What is behind a failure of the SDK, of one of its credentials, or of ours."""
    if not isinstance(error, Exception):
        return Cause.CALLER  # cancelled, or the program ends
    if any(isinstance(one, ssl.SSLCertVerificationError) for one in _with_origins(error)):
        return Cause.FORBIDDEN  # a certificate that is not trusted stays so
    if isinstance(error, ServiceBusError):
        return _of_service_bus(error)
    return _of_other(error)


def is_busy(error: BaseException) -> bool:
    """Whether the service asks to slow down: to be tried again by us, a little later."""
    return cause_of(error) is Cause.BUSY


def retires_queue(error: BaseException) -> bool:
    """Whether a failed send takes a backlog queue out of the rotation: the queue is to blame, not the message."""
    return cause_of(error) in _OF_THE_QUEUE


def explained(error: Exception, entity: str, namespace: str) -> Exception:
    """The error, or a clear one if it means that `namespace` has no such entity: the SDK's names neither."""
    if isinstance(error, ServiceBusError) and cause_of(error) is Cause.NOT_FOUND:
        return EntityNotFoundError(entity, namespace, error)
    return error


class FailoverPolicy:
    """Decides which failures of a send to the primary count, that is, start the failover timer.

    `FailoverPolicy(function)` asks your function, with the exception, on a helper thread. If it raises, or takes longer
    than a second, `availability()` decides.

    Raises:
        TypeError: what is given is not a function.
    """

    def __init__(self, counts: Callable[[BaseException], bool], name: str | None = None) -> None:
        if not callable(counts):
            raise TypeError(f"counts must be a function that takes an exception, not {counts!r}")
        self._counts = counts
        self._name = name or getattr(counts, "__name__", type(counts).__name__)

    @classmethod
    def availability(cls) -> FailoverPolicy:
        """The default: everything that makes the entity unavailable, and nothing else."""
        return _AVAILABILITY

    @classmethod
    def documented(cls) -> FailoverPolicy:
        """What the documents of paired namespaces say: also an entity that is not found, disabled or full."""
        return _DOCUMENTED

    @property
    def is_own(self) -> bool:
        """Whether no function of the application is asked."""
        return type(self) is FailoverPolicy and self._counts in (_makes_unavailable, _counts_as_documented)

    def counts(self, error: BaseException) -> bool:
        """Whether this failure counts."""
        return bool(self._counts(error))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FailoverPolicy) and self._counts == other._counts

    def __hash__(self) -> int:
        return hash(self._counts)

    def __repr__(self) -> str:
        return f"FailoverPolicy({self._name})"


def _makes_unavailable(error: BaseException) -> bool:
    return cause_of(error) is Cause.UNAVAILABLE


def _counts_as_documented(error: BaseException) -> bool:
    return cause_of(error) in (Cause.UNAVAILABLE, Cause.NOT_FOUND, Cause.DISABLED, Cause.QUOTA)


_AVAILABILITY = FailoverPolicy(_makes_unavailable, "availability")
_DOCUMENTED = FailoverPolicy(_counts_as_documented, "documented")


def _of_service_bus(error: ServiceBusError) -> Cause:
    if isinstance(error, NoFreeLinkError):
        return Cause.CALLER
    if isinstance(error, (OperationTimeoutError, ServiceBusCommunicationError)):
        return Cause.UNAVAILABLE
    if isinstance(error, EntityNotFoundError):
        return Cause.NOT_FOUND
    if isinstance(error, TwinbusError):
        return Cause.CALLER
    if isinstance(error, ServiceBusAuthenticationError) or _token_status(error) is not None:
        return _of_authentication(error)
    # The condition has no public name on the exception, and only there for answers of a management node. It goes
    # before the class: a connection that was closed because of a quota is a connection error with that condition.
    known = _CONDITIONS.get(getattr(error, "_condition", None) or "")
    if known is not None:
        return known
    for kind, cause in _CLASSES:
        if isinstance(error, kind):
            return cause
    if type(error) is ServiceBusError and error.inner_exception is not None:
        return _of_wrapped(error.inner_exception)
    # Connection errors, internal errors, and whatever else the service may say one day.
    return Cause.UNAVAILABLE


def _of_authentication(error: ServiceBusError) -> Cause:
    """`$cbs` has refused a token, or could not be asked."""
    status = _token_status(error)
    if status is not None:
        return Cause.BUSY if status == 503 else _of_status(status)
    # Over WebSockets the SDK reports a host that it cannot resolve or reach like this, too. If there is nothing
    # behind it, the service has refused the token with a condition that the SDK keeps to itself.
    return Cause.UNAVAILABLE if getattr(error.inner_exception, "inner_error", None) is not None else Cause.FORBIDDEN


def _token_status(error: ServiceBusError) -> int | None:
    """What `$cbs` has answered. With a custom endpoint the SDK makes a connection error of it."""
    inner = error.inner_exception
    status = None if isinstance(inner, AzureError) else getattr(inner, "status_code", None)
    return status if isinstance(status, int) and status else None


def _of_wrapped(inner: BaseException) -> Cause:
    """The SDK wraps what it did not expect, and that is what counts."""
    # What the peer said has an AMQP condition; the SDK found no class of its own for it.
    if getattr(inner, "condition", None) is not None:
        return Cause.UNAVAILABLE
    if isinstance(inner, (OSError, EOFError, AzureError)):
        return _of_other(inner)
    # Something that is no AMQP server has answered, or the connection broke in the middle of something.
    return Cause.UNAVAILABLE if _stumbled_over_the_wire(inner) else Cause.CALLER


def _of_other(error: BaseException) -> Cause:
    if isinstance(error, FileNotFoundError):
        return Cause.CALLER  # the file of certificates, not the network
    if isinstance(error, HttpResponseError) and error.status_code:
        return _of_status(error.status_code)
    if isinstance(error, (OSError, EOFError, ServiceRequestError, ServiceResponseError)):
        return Cause.UNAVAILABLE
    return Cause.CALLER


def _of_status(status: int) -> Cause:
    if status == 404:
        return Cause.NOT_FOUND
    if status == 429:
        return Cause.BUSY
    if status == 408 or status >= 500:
        return Cause.UNAVAILABLE
    return Cause.FORBIDDEN if status in (401, 403) else Cause.CALLER


def _stumbled_over_the_wire(inner: BaseException) -> bool:
    """Whether it was raised by the SDK itself while it was not encoding a message."""
    innermost = None
    traceback = inner.__traceback__
    while traceback is not None:
        module = traceback.tb_frame.f_globals.get("__name__", "")
        if module.startswith("azure.servicebus."):
            innermost = module
        traceback = traceback.tb_next
    return innermost is not None and innermost not in _ENCODING_MODULES


def _with_origins(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came from, as far as somebody said so on purpose."""
    left, seen = [error], 0
    while left and seen < _MAX_DEPTH:
        one = left.pop()
        seen += 1
        yield one
        origins = (getattr(one, "inner_exception", None), getattr(one, "inner_error", None), one.__cause__)
        left += [origin for origin in origins if isinstance(origin, BaseException) and origin is not one]
