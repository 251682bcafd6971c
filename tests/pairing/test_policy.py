"""Which failures count: SPEC section 7, with constructed and really provoked exceptions."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import ssl
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.servicebus import exceptions as sdk
from azure.servicebus.exceptions import ServiceBusError
from tests.pairing.provoked import SITUATIONS, Raised, Scene, Situation, provoke_async, provoke_sync
from tests.sdk_connection import OLDEST, needs_sdk

from twinbus.pairing.failover.error_classification import Cause, FailoverPolicy, cause_of, is_busy, retires_queue
from twinbus.pairing.pairing_errors import AttemptTimeoutError, BacklogUnavailableError, EnvelopeTooLargeError

AVAILABILITY = FailoverPolicy.availability()
DOCUMENTED = FailoverPolicy.documented()


class Verdict(NamedTuple):
    """The consequences of a failure."""

    availability: bool
    documented: bool
    busy: bool
    retires: bool


# SPEC 7, "what starts the timer", "server-busy" and "queue leaving the rotation".
VERDICTS = {
    Cause.UNAVAILABLE: Verdict(availability=True, documented=True, busy=False, retires=True),
    Cause.NOT_FOUND: Verdict(availability=False, documented=True, busy=False, retires=True),
    Cause.DISABLED: Verdict(availability=False, documented=True, busy=False, retires=True),
    Cause.QUOTA: Verdict(availability=False, documented=True, busy=False, retires=True),
    Cause.BUSY: Verdict(availability=False, documented=False, busy=True, retires=False),
    Cause.FORBIDDEN: Verdict(availability=False, documented=False, busy=False, retires=True),
    Cause.CALLER: Verdict(availability=False, documented=False, busy=False, retires=False),
}


def verdict_on(error: BaseException) -> Verdict:
    return Verdict(AVAILABILITY.counts(error), DOCUMENTED.counts(error), is_busy(error), retires_queue(error))


# ---- what a namespace really makes the SDK raise ----


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with Scene.set_up(tmp_path_factory.mktemp("certificates")) as scene:
        yield scene


class Judged(NamedTuple):
    """The classification of an error."""

    kind: type
    cause: Cause
    verdict: Verdict
    text: str


def judge(raised: Raised) -> dict[str, Judged | None]:
    return {
        name: None if error is None else Judged(type(error), cause_of(error), verdict_on(error), repr(error))
        for name, error in raised.items()
    }


@pytest.fixture(scope="module")
def judged(scene: Scene) -> dict[str, dict[str, Judged | None]]:
    with sockets_left_to_the_collector():
        return {"sync": judge(provoke_sync(scene)), "aio": judge(asyncio.run(provoke_async(scene)))}


@contextlib.contextmanager
def sockets_left_to_the_collector() -> Iterator[None]:
    """After a failure the SDK forgets to close some sockets: let them be found here, and not in another test."""
    logger = logging.getLogger("azure.servicebus")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # a captured record would keep the exception, and that the socket
    try:
        yield
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
    finally:
        logger.setLevel(level)


@pytest.mark.parametrize(
    ("situation", "mode"),
    [
        pytest.param(one, mode, id=f"{one}-{mode}", marks=needs_sdk(since, "a send into this waits for ever before"))
        for one in SITUATIONS
        for mode in ("sync", "aio")
        for since in [one.ends_since.get(mode, OLDEST)]
    ],
)
def test_a_failure_on_the_wire_counts_if_the_entity_is_unavailable(
    judged: dict[str, dict[str, Judged | None]], situation: Situation, mode: str
) -> None:
    error = judged[mode][situation.name]
    assert error is not None, "the send succeeded"
    assert error.kind is situation.error, error.text
    assert error.cause is situation.cause, error.text
    assert error.verdict == VERDICTS[situation.cause]


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_was_provoked_on_the_wire(cause: Cause) -> None:
    assert any(situation.cause is cause for situation in SITUATIONS)


# ---- what the SDK's exceptions say by themselves ----


def said(condition: str, kind: type[ServiceBusError] = ServiceBusError) -> ServiceBusError:
    """Return an error with an AMQP condition, as the SDK decodes it."""
    return kind(message="The service says so.", condition=condition.encode())


BY_CLASS = {
    sdk.OperationTimeoutError: Cause.UNAVAILABLE,
    sdk.ServiceBusConnectionError: Cause.UNAVAILABLE,
    sdk.ServiceBusCommunicationError: Cause.UNAVAILABLE,
    sdk.ServiceBusServerBusyError: Cause.BUSY,
    sdk.MessagingEntityNotFoundError: Cause.NOT_FOUND,
    sdk.MessagingEntityDisabledError: Cause.DISABLED,
    sdk.ServiceBusQuotaExceededError: Cause.QUOTA,
    sdk.ServiceBusAuthenticationError: Cause.FORBIDDEN,
    sdk.ServiceBusAuthorizationError: Cause.FORBIDDEN,
    sdk.MessageSizeExceededError: Cause.CALLER,
    sdk.MessagingEntityAlreadyExistsError: Cause.CALLER,
    sdk.MessageNotFoundError: Cause.CALLER,
    sdk.MessageLockLostError: Cause.CALLER,
    sdk.SessionLockLostError: Cause.CALLER,
    sdk.SessionCannotBeLockedError: Cause.CALLER,
}
# Raised by the renewal of locks, never by a send.
NOT_FROM_SENDS = {sdk.AutoLockRenewFailed, sdk.AutoLockRenewTimeout}


@pytest.mark.parametrize("kind", BY_CLASS, ids=lambda kind: kind.__name__)
def test_error_without_a_condition_is_classified_by_its_class(kind: Any) -> None:
    assert cause_of(kind()) is BY_CLASS[kind]
    assert verdict_on(kind()) == VERDICTS[BY_CLASS[kind]]


def test_every_error_of_the_installed_sdk_is_classified() -> None:
    known = {*BY_CLASS, *NOT_FROM_SENDS, ServiceBusError}
    every = {one for one in vars(sdk).values() if isinstance(one, type) and issubclass(one, ServiceBusError)}
    assert every == known


@pytest.mark.parametrize(
    ("condition", "cause"),
    [
        ("amqp:internal-error", Cause.UNAVAILABLE),
        ("amqp:connection:forced", Cause.UNAVAILABLE),
        ("amqp:link:detach-forced", Cause.UNAVAILABLE),
        ("com.microsoft:operation-cancelled", Cause.UNAVAILABLE),
        ("com.microsoft:something-new", Cause.UNAVAILABLE),
        ("com.microsoft:server-busy", Cause.BUSY),
        ("amqp:not-found", Cause.NOT_FOUND),
        ("amqp:resource-deleted", Cause.NOT_FOUND),
        ("com.microsoft:entity-disabled", Cause.DISABLED),
        ("amqp:resource-limit-exceeded", Cause.QUOTA),
        ("com.microsoft:argument-error", Cause.CALLER),
        ("com.microsoft:argument-out-of-range", Cause.CALLER),
        ("com.microsoft:precondition-failed", Cause.CALLER),
        ("amqp:precondition-failed", Cause.CALLER),
        ("amqp:unauthorized-access", Cause.FORBIDDEN),
        ("com.microsoft:auth-failed", Cause.FORBIDDEN),
        ("amqp:not-allowed", Cause.CALLER),
    ],
)
def test_plain_error_is_classified_by_its_condition(condition: str, cause: Cause) -> None:
    assert cause_of(said(condition)) is cause


@pytest.mark.parametrize(
    ("condition", "cause"),
    [
        ("amqp:unauthorized-access", Cause.FORBIDDEN),
        ("amqp:resource-limit-exceeded", Cause.QUOTA),
        ("com.microsoft:server-busy", Cause.BUSY),
        ("amqp:connection:forced", Cause.UNAVAILABLE),
        ("amqp:unknown-error", Cause.UNAVAILABLE),
    ],
)
def test_closed_connection_is_classified_by_its_reason(condition: str, cause: Cause) -> None:
    assert cause_of(said(condition, sdk.ServiceBusConnectionError)) is cause


def test_a_namespace_that_is_not_found_is_a_communication_error_and_counts() -> None:
    assert cause_of(said("amqp:not-found", sdk.ServiceBusCommunicationError)) is Cause.UNAVAILABLE


def test_an_unknown_error_of_the_service_counts() -> None:
    assert AVAILABILITY.counts(ServiceBusError("Service Bus has encountered an error."))


class TokenRefusedError(Exception):
    """What the SDK raises inside when `$cbs` has refused a token."""

    def __init__(self, status_code: Any) -> None:
        self.status_code = status_code
        self.inner_error = None


TOKEN_STATUSES = {
    401: Cause.FORBIDDEN,
    403: Cause.FORBIDDEN,
    404: Cause.NOT_FOUND,
    408: Cause.UNAVAILABLE,
    500: Cause.UNAVAILABLE,
    503: Cause.BUSY,
}


@pytest.mark.parametrize("status", TOKEN_STATUSES)
@pytest.mark.parametrize("kind", [sdk.ServiceBusAuthenticationError, sdk.ServiceBusConnectionError])
def test_refused_token_is_classified_by_its_status(kind: Any, status: int) -> None:
    """With a custom endpoint the SDK makes a connection error of it."""
    error = kind(error=TokenRefusedError(status), condition=b"amqp:client-error")
    assert cause_of(error) is TOKEN_STATUSES[status]


@pytest.mark.parametrize("status", [None, 0])
def test_token_refused_without_a_status_is_the_callers_fault(status: Any) -> None:
    """The real service refuses with an error condition, and then the SDK drops the status."""
    assert cause_of(sdk.ServiceBusAuthenticationError(error=TokenRefusedError(status))) is Cause.FORBIDDEN


def test_authentication_error_of_an_unreachable_host_counts() -> None:
    """Over WebSockets the SDK reports a host that has no address as a failed authentication."""
    inner = TokenRefusedError(None)
    inner.inner_error = OSError("no address")  # type: ignore[assignment]
    assert cause_of(sdk.ServiceBusAuthenticationError(error=inner)) is Cause.UNAVAILABLE


# ---- what did not come from the service ----


@pytest.mark.parametrize(
    "error",
    [
        socket.gaierror(-2, "Name or service not known"),
        ConnectionRefusedError(),
        ConnectionResetError(),
        BrokenPipeError(),
        OSError(113, "No route to host"),
        TimeoutError(),
        asyncio.IncompleteReadError(b"", 8),
        ssl.SSLError("wrong version number"),
        ServiceRequestError("the login host is out of reach"),
        ServiceResponseError("the login host is gone"),
    ],
    ids=repr,
)
def test_errors_of_dns_and_sockets_count_bare_or_wrapped(error: Exception) -> None:
    assert cause_of(error) is Cause.UNAVAILABLE
    assert cause_of(ServiceBusError("Handler failed.", error=error)) is Cause.UNAVAILABLE


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad"),
        TypeError("bad"),
        KeyError("bad"),
        FileNotFoundError(2, "no such file of certificates"),
        ClientAuthenticationError("the credential is wrong"),
    ],
    ids=repr,
)
def test_errors_of_the_caller_do_not_count_bare_or_wrapped(error: Exception) -> None:
    assert cause_of(error) is Cause.CALLER
    assert cause_of(ServiceBusError("Handler failed.", error=error)) is Cause.CALLER


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit()], ids=repr)
def test_cancellation_does_not_count(error: BaseException) -> None:
    assert verdict_on(error) == VERDICTS[Cause.CALLER]


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        (401, Cause.FORBIDDEN),
        (404, Cause.NOT_FOUND),
        (408, Cause.UNAVAILABLE),
        (429, Cause.BUSY),
        (500, Cause.UNAVAILABLE),
        (503, Cause.UNAVAILABLE),
    ],
)
def test_http_answer_is_classified_by_its_status(status: int, cause: Cause) -> None:
    error = HttpResponseError("The administration API says so.")
    error.status_code = status
    assert cause_of(error) is cause


def test_untrusted_certificate_does_not_count_at_any_depth() -> None:
    certificate = ssl.SSLCertVerificationError("self-signed certificate")
    middle = ConnectionError("the handshake failed")
    middle.__cause__ = certificate
    assert cause_of(certificate) is Cause.FORBIDDEN
    assert cause_of(sdk.ServiceBusConnectionError(error=middle)) is Cause.FORBIDDEN


def test_exception_context_does_not_change_the_cause() -> None:
    error = ConnectionResetError()
    error.__context__ = ssl.SSLCertVerificationError("of something else")
    assert cause_of(error) is Cause.UNAVAILABLE


def test_circular_error_causes_are_classified() -> None:
    one, other = OSError("one"), OSError("other")
    one.__cause__, other.__cause__ = other, one
    assert cause_of(one) is Cause.UNAVAILABLE


# ---- our own errors ----


def test_our_own_deadline_counts() -> None:
    assert AVAILABILITY.counts(AttemptTimeoutError("orders", 10.0))
    assert retires_queue(AttemptTimeoutError("orders", 10.0))


@pytest.mark.parametrize(
    "error",
    [EnvelopeTooLargeError("orders", 300_000, 262_144, 200), BacklogUnavailableError("orders", OSError(), {})],
    ids=lambda error: type(error).__name__,
)
def test_our_other_errors_do_not_count(error: Exception) -> None:
    assert verdict_on(error) == VERDICTS[Cause.CALLER]


# ---- the policy object ----


def test_custom_policy_is_used() -> None:
    policy = FailoverPolicy(lambda error: "maintenance" in str(error))
    assert policy.counts(RuntimeError("down for maintenance"))
    assert not policy.counts(TimeoutError())


def test_policy_repr_names_it() -> None:
    def only_timeouts(error: BaseException) -> bool:
        return isinstance(error, TimeoutError)

    assert repr(AVAILABILITY) == "FailoverPolicy(availability)"
    assert repr(DOCUMENTED) == "FailoverPolicy(documented)"
    assert repr(FailoverPolicy(only_timeouts)) == "FailoverPolicy(only_timeouts)"


def test_policies_with_the_same_function_are_equal() -> None:
    assert FailoverPolicy(callable) == FailoverPolicy(callable)
    assert len({AVAILABILITY, DOCUMENTED, FailoverPolicy.availability()}) == 2
    assert AVAILABILITY != DOCUMENTED


def test_a_policy_needs_a_function() -> None:
    with pytest.raises(TypeError, match="counts must be a function that takes an exception, not 'timeouts'"):
        FailoverPolicy("timeouts")  # type: ignore[arg-type]
