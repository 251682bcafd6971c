"""Classifies failures: is the entity unavailable, or is the message, the caller or its rights at fault?

Only an unavailable entity starts the failover timer: a message that is too large would not fit the backlog either, and
waiting does not fix a wrong key. The SDK's exception class alone is not enough: one class stands for several causes,
and every refusal by `$cbs` looks like an authentication error. So the AMQP condition, the status and the original
exception are inspected too.
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

from ..pairing_errors import EntityNotFoundError, NoFreeLinkError, TwinbusError


class Cause(Enum):
    """The cause of a failure."""

    #: The entity cannot be reached, or its service is failing.
    UNAVAILABLE = "unavailable"
    #: The service asks to slow down.
    BUSY = "busy"
    NOT_FOUND = "not found"
    DISABLED = "disabled"
    #: The entity is full, or another quota is exceeded.
    QUOTA = "quota"
    #: The key, token, rights or certificate are not accepted.
    FORBIDDEN = "forbidden"
    #: The message or the call is wrong: it would fail again, anywhere.
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
_QUEUE_CAUSES = frozenset({Cause.UNAVAILABLE, Cause.QUOTA, Cause.NOT_FOUND, Cause.DISABLED, Cause.FORBIDDEN})

# The modules that encode a message: a failure there is about the message, not the connection.
_ENCODING_MODULES = frozenset(
    {
        "azure.servicebus._pyamqp._encode",
        "azure.servicebus._pyamqp.utils",
        "azure.servicebus._common.message",
        "azure.servicebus._common.utils",
        "azure.servicebus.amqp._amqp_message",
    }
)

# The longest chain of original exceptions to follow; the SDK's are shorter.
_MAX_DEPTH = 20


def cause_of(error: BaseException) -> Cause:
    """Return the cause of a failure of the SDK, of a credential or of twinbus."""
    if not isinstance(error, Exception):
        return Cause.CALLER  # cancelled, or the program ends
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in _with_causes(error)):
        return Cause.FORBIDDEN  # a certificate that is not trusted stays so
    if isinstance(error, ServiceBusError):
        return _of_service_bus(error)
    return _of_other(error)


def is_busy(error: BaseException) -> bool:
    """Return whether the service asks to slow down; twinbus then tries again a little later."""
    return cause_of(error) is Cause.BUSY


def retires_queue(error: BaseException) -> bool:
    """Return whether a failed send retires a backlog queue: the queue is at fault, not the message."""
    return cause_of(error) in _QUEUE_CAUSES


def explained(error: Exception, entity: str, namespace: str) -> Exception:
    """Return the error, or an `EntityNotFoundError` that names entity and namespace if the entity does not exist."""
    if isinstance(error, ServiceBusError) and cause_of(error) is Cause.NOT_FOUND:
        return EntityNotFoundError(entity, namespace, error)
    return error


class FailoverPolicy:
    """Decides which failures of a send to the primary start the failover timer.

    `FailoverPolicy(function)` calls your function with the exception, on a helper thread. If it raises, or takes longer
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
        """The default: only failures that make the entity unavailable count."""
        return _AVAILABILITY

    @classmethod
    def documented(cls) -> FailoverPolicy:
        """As documented for paired namespaces: an entity that is not found, disabled or full counts as well."""
        return _DOCUMENTED

    @property
    def is_own(self) -> bool:
        """Whether this is one of the two built-in policies."""
        return type(self) is FailoverPolicy and self._counts in (_makes_unavailable, _counts_as_documented)

    def counts(self, error: BaseException) -> bool:
        """Return whether this failure counts."""
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
    # The SDK has no public name for the condition, and sets it only for answers of a management node. Check it before
    # the class: a connection closed because of a quota is a connection error with that condition.
    known = _CONDITIONS.get(getattr(error, "_condition", None) or "")
    if known is not None:
        return known
    for kind, cause in _CLASSES:
        if isinstance(error, kind):
            return cause
    if type(error) is ServiceBusError and error.inner_exception is not None:
        return _of_wrapped(error.inner_exception)
    # Connection errors, internal errors, and anything new.
    return Cause.UNAVAILABLE


def _of_authentication(error: ServiceBusError) -> Cause:
    """Classify an authentication error: `$cbs` refused the token, or could not be reached."""
    status = _token_status(error)
    if status is not None:
        return Cause.BUSY if status == 503 else _of_status(status)
    # Over WebSockets the SDK also reports an unreachable host like this. Without an inner error, the service refused
    # the token with a condition that the SDK does not expose.
    return Cause.UNAVAILABLE if getattr(error.inner_exception, "inner_error", None) is not None else Cause.FORBIDDEN


def _token_status(error: ServiceBusError) -> int | None:
    """Return the status in the answer of `$cbs`. With a custom endpoint the SDK turns it into a connection error."""
    inner = error.inner_exception
    status = None if isinstance(inner, AzureError) else getattr(inner, "status_code", None)
    return status if isinstance(status, int) and status else None


def _of_wrapped(inner: BaseException) -> Cause:
    """Classify an unexpected exception that the SDK has wrapped."""
    # The peer sent an AMQP condition for which the SDK has no class.
    if getattr(inner, "condition", None) is not None:
        return Cause.UNAVAILABLE
    if isinstance(inner, (OSError, EOFError, AzureError)):
        return _of_other(inner)
    # The peer is no AMQP server, or the connection broke midway.
    return Cause.UNAVAILABLE if _failed_outside_encoding(inner) else Cause.CALLER


def _of_other(error: BaseException) -> Cause:
    if isinstance(error, FileNotFoundError):
        return Cause.CALLER  # a missing certificate file, not the network
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


def _failed_outside_encoding(inner: BaseException) -> bool:
    """Return whether the SDK itself raised it, outside of encoding a message."""
    innermost = None
    traceback = inner.__traceback__
    while traceback is not None:
        module = traceback.tb_frame.f_globals.get("__name__", "")
        if module.startswith("azure.servicebus."):
            innermost = module
        traceback = traceback.tb_next
    return innermost is not None and innermost not in _ENCODING_MODULES


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its explicit causes."""
    pending, visited = [error], 0
    while pending and visited < _MAX_DEPTH:
        current = pending.pop()
        visited += 1
        yield current
        causes = (getattr(current, "inner_exception", None), getattr(current, "inner_error", None), current.__cause__)
        pending += [cause for cause in causes if isinstance(cause, BaseException) and cause is not current]
