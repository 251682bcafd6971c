"""Error texts: what happened, to which entity, and what to do."""

from __future__ import annotations

import re

import pytest
from azure.servicebus.exceptions import MessageSizeExceededError, OperationTimeoutError, ServiceBusError

from twinbus.pairing import pairing_errors as errors
from twinbus.pairing.pairing_errors import (
    AttemptTimeoutError,
    BacklogConfigurationError,
    BacklogNotReadyError,
    BacklogUnavailableError,
    EntityFailedOverError,
    EntityNotFoundError,
    EnvelopeTooLargeError,
    ForkedClientError,
    HungCallsError,
    NamespacesSwappedError,
    NoFreeLinkError,
    PairedClientFaultedError,
    ScheduledInBacklogError,
    TwinbusError,
)

QUEUE = "contoso/x-servicebus-transfer/0"
ERRORS = [
    PairedClientFaultedError("the secondary client was closed"),
    ForkedClientError(made_in=4711, process=4712),
    BacklogUnavailableError("orders", OSError("refused"), {QUEUE: OSError("unreachable")}),
    BacklogConfigurationError(QUEUE, "requires_session", True, "diverted messages have no session"),
    BacklogNotReadyError("the queues could not be checked", OSError("unreachable")),
    NamespacesSwappedError("standby.example", "contoso.example", QUEUE, "standby/x-servicebus-transfer/0"),
    ScheduledInBacklogError("orders", [-7]),
    EntityFailedOverError("orders", "cancel scheduled messages"),
    EntityNotFoundError("orders", "contoso.servicebus.windows.net", ServiceBusError("Error condition: not found")),
    AttemptTimeoutError("orders", 10.0),
    NoFreeLinkError("orders", 16, 2.0),
    NoFreeLinkError("orders", 16, 2.0, is_in_use=False),
    HungCallsError("orders", 16),
    EnvelopeTooLargeError("orders", size=262_300, limit=262_144, overhead=200),
]


def test_documented_error_tree_matches_the_classes() -> None:
    """Every class of the module stands in the tree of its docstring, under its first base."""
    tree: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"([ │]*)([├└]── )?(\w+Error)\b(?:  +also an? (\w+))?", line)
        if found is None or not line.startswith("    "):
            continue
        depth = len(found[1]) + len(found[2] or "")
        above = [one for one in above if one[0] < depth]
        if above:
            tree[found[3]] = above[-1][1]
        above.append((depth, found[3]))
        if found[4]:
            assert found[4] in {base.__name__ for base in vars(errors)[found[3]].__bases__}
    defined = {
        name: one.__bases__[0].__name__
        for name, one in vars(errors).items()
        if isinstance(one, type) and one.__module__ == errors.__name__
    }
    assert tree == defined


def test_every_error_has_an_example_in_this_file() -> None:
    kinds = {one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, TwinbusError)}
    assert {type(one) for one in ERRORS} == kinds - {TwinbusError}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_code_that_catches_the_errors_of_the_sdk_catches_ours(error: TwinbusError) -> None:
    assert isinstance(error, ServiceBusError)
    assert str(error)
    assert ".." not in str(error)


def test_a_faulted_client_says_why() -> None:
    cause = RuntimeError("not closed within 5 seconds")
    error = PairedClientFaultedError("the primary client was closed and its partner was not", cause)
    assert error.cause is error.__cause__ is cause
    assert "the primary client was closed and its partner was not" in str(error)
    assert "RuntimeError: not closed within 5 seconds" in str(error)


def test_rejected_message_error_has_the_causes_of_both_namespaces() -> None:
    """SPEC 7: `BacklogUnavailableError`, with the primary's and the backlog's causes."""
    primary, backlog = OSError("refused"), TimeoutError("too late")
    error = BacklogUnavailableError("orders", primary, {QUEUE: backlog})
    assert error.entity == "orders"
    assert error.primary_error is primary
    assert error.backlog_errors == {QUEUE: backlog}
    assert error.__cause__ is backlog
    for text in ("orders", "OSError: refused", f"{QUEUE}: TimeoutError: too late"):
        assert text in str(error)


def test_a_forced_failover_has_no_cause_of_the_primary() -> None:
    error = BacklogUnavailableError("orders", None, {})
    assert error.primary_error is None
    assert error.__cause__ is None
    assert "Primary: not tried (failed over by hand, or earlier messages of the session" in str(error)
    assert "Backlog: no queue was tried." in str(error)


@pytest.mark.parametrize(
    ("may_be_accepted", "others"),
    [(False, "the others were not"), (True, "the others may have been: an attempt")],
)
def test_error_lists_accepted_ids_of_partly_stored_messages(may_be_accepted: bool, others: str) -> None:
    ids = ("a", "b", "c")
    error = BacklogUnavailableError("orders", None, {}, may_be_accepted=may_be_accepted, message_ids=ids, accepted=2)
    assert str(error).startswith(f"The first 2 of 3 messages for 'orders' were accepted by the backlog, {others}")
    assert error.accepted_ids == ("a", "b")
    assert BacklogUnavailableError("orders", None, {}, message_ids=ids).accepted_ids == ()


def test_a_refused_backlog_queue_is_named_with_the_property() -> None:
    """SPEC 2: that is an error which names queue and property."""
    error = BacklogConfigurationError(QUEUE, "requires_session", True, "diverted messages have no session")
    assert (error.queue, error.property_name, error.value) == (QUEUE, "requires_session", True)
    assert f"'{QUEUE}'" in str(error)
    assert "requires_session is True, and diverted messages have no session" in str(error)


def test_negative_numbers_cannot_be_cancelled() -> None:
    """SPEC 8: cancelling those is refused with a clear error."""
    error = ScheduledInBacklogError("orders", [-7, -8])
    assert error.sequence_numbers == (-7, -8)
    assert "-7, -8 of 'orders'" in str(error)


def test_an_attempt_without_an_answer_is_a_timeout_of_the_sdk_too() -> None:
    error = AttemptTimeoutError("orders", 0.5)
    assert isinstance(error, OperationTimeoutError)
    assert (error.entity, error.seconds) == ("orders", 0.5)
    assert str(error) == "'orders' did not answer within 0.5 s."
    assert str(AttemptTimeoutError("orders", 0.5, is_unsent=True)) == "No link to 'orders' was open within 0.5 s."


def test_a_message_too_large_once_modified_is_a_clear_error_with_size_limit_and_overhead() -> None:
    """SPEC 3."""
    error = EnvelopeTooLargeError("orders", size=262_300, limit=262_144, overhead=200)
    assert isinstance(error, MessageSizeExceededError)
    assert isinstance(error, ValueError)
    assert (error.size, error.limit, error.overhead) == (262_300, 262_144, 200)
    for number in ("262300", "262144", "200"):
        assert number in str(error)
