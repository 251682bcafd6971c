"""Wrapping a message for the backlog."""

from __future__ import annotations

import copy
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType
from hypothesis import given, settings
from tests.amqp.amqp_values import same
from tests.pairing.sdk_messages import encoded, sdk_messages, typed

from twinbus.amqp.codec import sections
from twinbus.amqp.codec.types import Described, Long, Symbol, Timestamp
from twinbus.envelope import aliases
from twinbus.envelope.wrapping import MAX_TIME_TO_LIVE_MS, wrap, wrap_all

MAX_LONG = 2**63 - 1


def parts_of(message: AmqpAnnotatedMessage) -> sections.Sections:
    return sections.split_sections(encoded(message))


def aliases_of(message: AmqpAnnotatedMessage) -> dict[str, Any]:
    """Return the aliases as encoded."""
    entries = sections.map_entries(parts_of(message).application_properties)
    return {name: sections.entry_value(raw) for name, raw in entries if name in aliases.ALIASES}


def annotated(**parts: Any) -> AmqpAnnotatedMessage:
    return AmqpAnnotatedMessage(data_body=b"body", **parts)


def everything_of(message: AmqpAnnotatedMessage) -> Any:
    """Return a snapshot of everything that a user can see of a message."""
    body = message.body if message.body_type is AmqpMessageBodyType.VALUE else list(message.body)
    header, properties = message.header, message.properties
    return copy.deepcopy(
        (
            body,
            None if header is None else header.items(),
            None if properties is None else properties.items(),
            message.annotations,
            message.delivery_annotations,
            message.application_properties,
            message.footer,
        )
    )


@given(sdk_messages())
def test_the_users_message_is_never_changed(message: AmqpAnnotatedMessage) -> None:
    before = everything_of(message)
    wrapped = wrap(message, "orders")
    encoded(wrapped)
    wrapped.application_properties["more"] = 1  # type: ignore[index]
    assert everything_of(message) == before


@given(sdk_messages())
@settings(max_examples=200)
def test_envelope_has_no_property_that_the_backlog_would_act_on(message: AmqpAnnotatedMessage) -> None:
    parts = parts_of(wrap(message, "orders"))
    assert sections.list_fields(parts.header, 3)[2] is None
    assert sections.list_fields(parts.properties, 11)[8:] == [None, None, None]
    names = {name for name, _ in sections.map_entries(parts.message_annotations)}
    assert not names & {*aliases.BROKER_ANNOTATIONS, aliases.SCHEDULED_ANNOTATION}


@given(sdk_messages())
@settings(max_examples=200)
def test_other_content_is_the_same_as_for_the_primary(message: AmqpAnnotatedMessage) -> None:
    direct, wrapped = parts_of(message), parts_of(wrap(message, "orders"))
    assert wrapped.body == direct.body
    assert wrapped.delivery_annotations == direct.delivery_annotations
    own = {name: raw for name, raw in sections.map_entries(direct.application_properties) if not aliases.is_taken(name)}
    assert own.items() <= dict(sections.map_entries(wrapped.application_properties)).items()
    fields = sections.raw_fields(direct.properties)
    fields[8:11] = [b"\x40"] * 3
    assert sections.raw_fields(wrapped.properties) == fields


def test_plain_message_gets_only_a_path() -> None:
    for message in (ServiceBusMessage("x"), annotated(), annotated(header={"durable": True}, properties={"to": "x"})):
        assert aliases_of(wrap(message, "some/topic")) == {"x-ms-path": "some/topic"}


def test_the_messages_of_a_batch_are_wrapped_in_order() -> None:
    wrapped = wrap_all((ServiceBusMessage(text, message_id=text) for text in "abc"), "orders")
    assert [message.properties.message_id for message in wrapped] == ["a", "b", "c"]  # type: ignore[union-attr]
    assert wrap_all([], "orders") == []


# ---- session ----


@pytest.mark.parametrize("session", ["s", "", "ü" * 128, b"s", "ü".encode()])
def test_the_session_id_is_kept_as_a_string(session: str | bytes) -> None:
    kept = aliases_of(wrap(annotated(properties={"group_id": session}), "orders"))["x-ms-sessionid"]
    assert type(kept) is str
    assert kept == (session.decode() if isinstance(session, bytes) else session)


@pytest.mark.parametrize(
    ("session", "error", "text"),
    [
        ("s" * 129, ValueError, "session_id must have 0 to 128 characters, got 129"),
        (b"\xff", ValueError, "session_id must be valid UTF-8"),
        (5, TypeError, "session_id must be a string, got 5"),
    ],
)
def test_a_session_id_that_the_primary_would_refuse_is_refused_at_once(
    session: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        wrap(annotated(properties={"group_id": session}), "orders")


@pytest.mark.parametrize("destination", ["", "p" * 261])
def test_a_destination_that_cannot_be_a_path_is_refused(destination: str) -> None:
    with pytest.raises(ValueError, match="destination must have 1 to 260 characters"):
        wrap(ServiceBusMessage("x"), destination)


# ---- times ----


@pytest.mark.parametrize("milliseconds", [0, 1, 12, 1500, 2**31, MAX_TIME_TO_LIVE_MS])
def test_the_time_to_live_is_kept_in_ticks(milliseconds: int) -> None:
    kept = aliases_of(wrap(annotated(header={"time_to_live": milliseconds}), "orders"))
    assert same(kept["x-ms-timetolive"], Described(Symbol("com.microsoft:timespan"), Long(milliseconds * 10_000)))


@pytest.mark.parametrize("milliseconds", [-1, MAX_TIME_TO_LIVE_MS + 1, float("nan"), float("inf")])
def test_a_time_to_live_that_the_sdk_cannot_send_is_refused_with_its_bounds(milliseconds: float) -> None:
    with pytest.raises(ValueError, match="time_to_live must be from 0 to 4294967295 ms"):
        wrap(annotated(header={"time_to_live": milliseconds}), "orders")
    with pytest.raises(TypeError, match="time_to_live must be a number of milliseconds"):
        wrap(annotated(header={"time_to_live": "5"}), "orders")


@pytest.fixture(params=["UTC", "Asia/Kolkata", "America/New_York"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


def test_creation_and_expiry_are_kept_as_the_sdk_would_send_them(zone: str) -> None:
    for message in (
        ServiceBusMessage("x", time_to_live=timedelta(minutes=1)).raw_amqp_message,
        annotated(header={"time_to_live": 60_000}),
        annotated(header={"time_to_live": 60_000}, properties={"creation_time": 1, "absolute_expiry_time": 2}),
    ):
        kept = aliases_of(wrap(message, "orders"))
        expiry, created = sections.list_fields(parts_of(message).properties, 10)[8:]
        assert type(kept["x-twinbus-expiry"]) is type(kept["x-twinbus-created"]) is Timestamp
        assert 0 <= created - kept["x-twinbus-created"] <= 2000  # the SDK has encoded its own a moment later
        assert kept["x-twinbus-expiry"] - kept["x-twinbus-created"] == expiry - created == 60_000


def test_creation_and_expiry_without_time_to_live_are_kept() -> None:
    kept = aliases_of(wrap(annotated(properties={"creation_time": 7, "absolute_expiry_time": MAX_LONG}), "orders"))
    assert kept["x-twinbus-created"] == 7
    assert kept["x-twinbus-expiry"] == MAX_LONG
    zero = annotated(header={"time_to_live": 0}, properties={"creation_time": 7, "absolute_expiry_time": 0})
    kept = aliases_of(wrap(zero, "orders"))
    assert kept["x-twinbus-created"] == 7
    assert "x-twinbus-expiry" not in kept
    assert sections.list_fields(parts_of(zero).properties, 10)[8:] == [None, 7]


@pytest.mark.parametrize("name", ["creation_time", "absolute_expiry_time"])
def test_time_out_of_range_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be from"):
        wrap(annotated(properties={name: MAX_LONG + 1}), "orders")


MOMENT = datetime(2031, 5, 6, 7, 8, 9, 123_000, tzinfo=UTC)
MOMENT_MS = int(MOMENT.timestamp() * 1000)


@pytest.mark.parametrize("key", ["x-opt-scheduled-enqueue-time", b"x-opt-scheduled-enqueue-time"])
@pytest.mark.parametrize(
    "value",
    [
        MOMENT,
        MOMENT.replace(tzinfo=None),
        typed("TIMESTAMP", MOMENT),
        typed("TIMESTAMP", MOMENT_MS),
        typed("LONG", MOMENT_MS),
        MOMENT_MS,
    ],
)
def test_the_scheduled_time_is_kept_as_a_timestamp(key: Any, value: Any) -> None:
    wrapped = wrap(annotated(annotations={key: value, "x-opt-other": 1}), "orders")
    assert same(aliases_of(wrapped)["x-ms-scheduledenqueuetimeutc"], Timestamp(MOMENT_MS))
    assert wrapped.annotations == {"x-opt-other": 1}


def test_none_is_no_scheduled_time() -> None:
    message = annotated(annotations={b"x-opt-scheduled-enqueue-time": None})
    assert aliases_of(wrap(message, "orders")) == {"x-ms-path": "orders"}


def test_scheduled_time_of_wrong_type_is_refused() -> None:
    with pytest.raises(TypeError, match="scheduled_enqueue_time_utc must be"):
        wrap(annotated(annotations={b"x-opt-scheduled-enqueue-time": "now"}), "orders")


# ---- what a broker wrote ----


def test_broker_properties_of_a_received_message_are_dropped() -> None:
    # More than the SDK can send, for it takes a number for an int.
    written = dict.fromkeys(aliases.BROKER_ANNOTATIONS, 2**40) | {b"x-opt-sequence-number": 2**40}
    wrapped = wrap(annotated(annotations={**written, b"x-opt-partition-key": "p", 7: "seven"}), "orders")
    assert wrapped.annotations == {b"x-opt-partition-key": "p", 7: "seven"}


# ---- the user's own names ----


def test_conflicting_user_property_is_kept_under_another_name() -> None:
    own = {"x-ms-path": 1, b"x-ms-sessionid": 2, "x-twinbus-own-a": 3, "DeadLetterReason": 4, "x-ms-other": 5, b"b": 6}
    wrapped = wrap(annotated(application_properties=own), "orders").application_properties
    assert wrapped == {
        "x-twinbus-own-x-ms-path": 1,
        "x-twinbus-own-x-ms-sessionid": 2,
        "x-twinbus-own-x-twinbus-own-a": 3,
        "x-twinbus-own-DeadLetterReason": 4,
        "x-ms-other": 5,
        b"b": 6,
        "x-ms-path": typed("STRING", "orders"),
    }


# ---- what the SDK can and cannot send ----


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, timedelta(seconds=1), object()])
def test_value_that_the_sdk_cannot_send_cannot_be_diverted(value: Any) -> None:
    message = annotated(application_properties={"x": value})
    for one in (message, wrap(message, "orders")):
        with pytest.raises((TypeError, ValueError)):
            encoded(one)
