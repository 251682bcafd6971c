"""The sender in normal operation: it looks and behaves like the SDK's."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import azure.servicebus
import azure.servicebus.aio
import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties
from azure.servicebus.exceptions import MessageSizeExceededError
from tests.pairing.paired import KINDS, Pair, Stage, text

from twinbus.emulator import DEFAULT, FaultKind
from twinbus.pairing.failover.entity_failover import Route
from twinbus.pairing.pairing_errors import EntityNotFoundError, PairedClientFaultedError
from twinbus.pairing.sending._async.sender import PairedSender as AsyncPairedSender
from twinbus.pairing.sending._sync.sender import PairedSender

CLASSES = {
    "sync": (PairedSender, azure.servicebus.ServiceBusSender),
    "aio": (AsyncPairedSender, azure.servicebus.aio.ServiceBusSender),
}


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage.set_up() as running:
        yield running


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pair(stage: Stage, kind: str) -> Iterator[Pair]:
    with stage.pair(kind) as made:
        yield made
        stage.clear()


# ---- the looks ----


def parameters(function: Any) -> dict[str, tuple[Any, Any]]:
    return {one.name: (one.kind, one.default) for one in inspect.signature(function).parameters.values()}


def test_every_public_method_of_the_sdks_sender_is_there_with_the_same_parameters(kind: str) -> None:
    ours, theirs = CLASSES[kind]
    names = [name for name, _ in inspect.getmembers(theirs, inspect.isfunction) if not name.startswith("_")]
    assert {"send_messages", "schedule_messages", "cancel_scheduled_messages", "create_message_batch", "close"} <= set(
        names
    )
    for name in names:
        own, sdk = getattr(ours, name), getattr(theirs, name)
        assert parameters(own) == parameters(sdk), name
        assert inspect.iscoroutinefunction(own) == inspect.iscoroutinefunction(sdk), name


def test_properties_and_the_context_manager_are_those_of_the_sdks_sender(kind: str) -> None:
    ours, theirs = CLASSES[kind]
    for name, _ in inspect.getmembers(theirs, lambda member: isinstance(member, property)):
        assert isinstance(getattr(ours, name), property), name
    for name in ("__enter__", "__exit__", "__aenter__", "__aexit__"):
        assert hasattr(ours, name) == hasattr(theirs, name), name


def test_sender_has_identifier_and_namespace(pair: Pair) -> None:
    sender = pair.sender(client_identifier="mine")
    assert sender.entity_name == pair.path
    namespace = pair.primary.namespace
    assert sender.fully_qualified_namespace == f"{namespace.host}:{namespace.port}"
    assert sender.client_identifier == "mine"
    named = getattr(sender, "sender", sender)
    assert str(named) == f"Sender client id: mine, entity: {pair.path}"


# ---- sending ----


def test_healthy_messages_go_unchanged_to_the_primary_only(pair: Pair) -> None:
    sender = pair.sender()
    receipt = sender.send_messages(text("hello", message_id="one", application_properties={"a": 1}))
    assert receipt == (Route.PRIMARY, pair.path, None, ("one",), 1)
    (arrived,) = pair.peek()
    assert (str(arrived), arrived.message_id, arrived.application_properties) == ("hello", "one", {b"a": 1})
    assert (pair.received, pair.stored) == (1, [0, 0, 0])
    assert not pair.events


def test_every_message_type_of_the_sdk_is_accepted(pair: Pair) -> None:
    sender = pair.sender()
    annotated = AmqpAnnotatedMessage(data_body=b"two", properties=AmqpMessageProperties(message_id="2"))
    batch = sender.create_message_batch()
    batch.add_message(text("four", message_id="4"))
    for message, ids in (
        ({"body": "one", "message_id": "1"}, ("1",)),
        (annotated, ("2",)),
        ([text("three", message_id="3")], ("3",)),
        (batch, ("4",)),
        (iter([text("five", message_id="5"), {"body": "six", "message_id": "6"}]), ("5", "6")),
    ):
        assert sender.send_messages(message).message_ids == ids
    assert [str(one) for one in pair.peek()] == ["one", "two", "three", "four", "five", "six"]


def test_non_message_is_refused(pair: Pair) -> None:
    sender = pair.sender()
    for nonsense in (7, [7]):
        with pytest.raises(TypeError, match="got int"):
            sender.send_messages(nonsense)


def test_empty_list_sends_nothing(pair: Pair) -> None:
    sender = pair.sender()
    assert sender.send_messages([]).message_ids == ()
    assert sender.schedule_messages([], datetime.now(UTC)) == []
    assert sender.cancel_scheduled_messages([]) is None
    assert pair.links == 0
    assert sender.send_messages(sender.create_message_batch()).attempts == 0
    assert pair.received == 0


def test_a_list_arrives_as_one_batch_in_order(pair: Pair) -> None:
    receipt = pair.sender().send_messages([text(str(number)) for number in range(50)])
    assert len(set(receipt.message_ids)) == 50
    assert [str(one) for one in pair.peek()] == [str(number) for number in range(50)]


def test_a_list_that_no_batch_can_hold_is_refused_as_the_sdk_does(pair: Pair) -> None:
    sender = pair.sender()
    with pytest.raises(MessageSizeExceededError):
        sender.send_messages([text("x" * 100_000) for _ in range(3)])
    assert pair.received == 0
    assert sender.send_messages(text()).route is Route.PRIMARY


def without_id() -> AmqpAnnotatedMessage:
    return AmqpAnnotatedMessage(data_body=b"no id")


def test_a_missing_message_id_is_filled_in_for_one_send(pair: Pair) -> None:
    sender, message = pair.sender(), without_id()
    ids = {sender.send_messages(message).message_ids[0] for _ in range(2)}
    ids |= set(sender.send_messages([message]).message_ids)
    assert len(ids) == 3
    assert {one.message_id for one in pair.peek()} == ids
    assert message.properties is None or message.properties.message_id is None


def test_a_message_that_failed_keeps_its_id_so_that_trying_again_sends_the_same_message(pair: Pair) -> None:
    sender, message = pair.sender(), without_id()
    pair.strike(FaultKind.REJECT, condition="com.microsoft:argument-error", count=1)
    with pytest.raises(azure.servicebus.exceptions.ServiceBusError):
        sender.send_messages(message)
    assert message.properties is not None
    kept = message.properties.message_id
    assert kept is not None
    assert sender.send_messages(message).message_ids == (kept,)


# ---- opening and closing ----


def test_sender_opens_on_first_use(pair: Pair) -> None:
    sender = pair.sender()
    entered = sender.__aenter__() if pair.kind == "aio" else sender.__enter__()
    assert entered is getattr(sender, "sender", sender)
    assert pair.links == 0
    for _ in range(3):
        sender.send_messages(text())
    assert (pair.links, connections(pair)) == (1, 1)


def connections(pair: Pair) -> int:
    return pair.primary.call(lambda: len(pair.primary.namespace.connections))


def test_a_closed_sender_refuses_everything_and_leaves_no_link(pair: Pair) -> None:
    sender = pair.sender()
    sender.send_messages(text())
    sender.close()
    pair.stage.wait_until(lambda: pair.links == 0)
    for call in (
        lambda: sender.send_messages(text()),
        lambda: sender.schedule_messages(text(), None),
        lambda: sender.cancel_scheduled_messages(1),
        sender.create_message_batch,
        sender.open_standby,
    ):
        with pytest.raises(ValueError, match="closed"):
            call()
    sender.close()


def test_an_idle_link_is_kept_alive(kind: str) -> None:
    """By the SDK itself, where the service wants to hear something."""
    with Stage.set_up(replace(DEFAULT, idle_timeout=4.0)) as strict, strict.pair(kind) as pair:
        kept, left_alone = pair.sender(keep_alive=1), pair.sender(keep_alive=0)
        kept.send_messages(text())
        left_alone.send_messages(text())
        # The one that was used last is gone: the other one has been idle for even longer.
        strict.wait_until(lambda: pair.links == 1)
        assert kept.send_messages(text()).attempts == 1
        assert pair.received == 3


def test_a_link_that_died_while_it_was_idle_is_replaced_at_once(pair: Pair) -> None:
    sender = pair.sender()
    sender.send_messages(text())
    pair.strike(FaultKind.DETACH, seconds=0.05)
    pair.stage.wait_until(lambda: pair.links == 0)
    assert sender.send_messages(text()).route is Route.PRIMARY
    assert (pair.received, pair.links, pair.events) == (2, 1, [])


# ---- arguments and errors ----


def test_a_timeout_that_is_not_above_0_is_refused(pair: Pair) -> None:
    sender = pair.sender()
    for call in (sender.send_messages, lambda given, timeout: sender.schedule_messages(given, None, timeout=timeout)):
        with pytest.raises(ValueError, match="timeout must be greater than 0, not 0"):
            call(text(), timeout=0)
    assert pair.links == 0


def test_an_unknown_keyword_is_a_warning_as_with_the_sdk(pair: Pair) -> None:
    with pytest.warns(UserWarning, match="Unsupported keyword args"):
        pair.sender().send_messages(text(), colour="blue")


def test_non_availability_error_reaches_the_caller_and_nothing_is_diverted(pair: Pair) -> None:
    with pytest.raises(EntityNotFoundError, match="no-such-queue"):
        pair.sender("no-such-queue").send_messages(text())
    sender = pair.sender()
    for kind, fields in (
        (FaultKind.REJECT, {"condition": "com.microsoft:argument-error"}),
        (FaultKind.REJECT, {"condition": "amqp:unauthorized-access"}),
        (FaultKind.FILL, {}),
    ):
        fault = pair.strike(kind, count=1, **fields)
        with pytest.raises(azure.servicebus.exceptions.ServiceBusError):
            sender.send_messages(text())
        assert fault.fired == 1
    with pytest.raises(MessageSizeExceededError):
        sender.send_messages(text("x" * 300_000))
    assert (pair.received, pair.stored, pair.events) == (0, [0, 0, 0], [])
    assert sender.send_messages(text()).route is Route.PRIMARY


def test_a_faulted_pairing_refuses_every_call(pair: Pair) -> None:
    sender = pair.sender()
    sender.send_messages(text())
    pair.pairing.set_fault("the other side was closed")
    for call in (
        lambda: sender.send_messages(text()),
        lambda: sender.send_messages([]),
        lambda: sender.schedule_messages(text(), None),
        lambda: sender.schedule_messages([], None),
        lambda: sender.cancel_scheduled_messages(1),
        lambda: sender.cancel_scheduled_messages([]),
        sender.create_message_batch,
        sender.open_standby,
    ):
        with pytest.raises(PairedClientFaultedError, match="the other side was closed"):
            call()
    assert pair.received == 1


def test_the_users_message_is_not_changed(pair: Pair) -> None:
    message = ServiceBusMessage("hello", application_properties={"a": 1}, session_id="s", message_id="one")
    before = repr(message)
    sender = pair.sender()
    sender.send_messages(message)
    pair.pairing.fail_over(pair.path)
    sender.send_messages(message)
    sender.send_messages([message, message])
    assert repr(message) == before
