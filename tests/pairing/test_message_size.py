"""The computed size of a message is the number of bytes that the SDK writes for it."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus.amqp import AmqpAnnotatedMessage
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pairing.sdk_messages import PLAIN, encoded, sdk_messages, typed, written_size

from twinbus.envelope.wrapping import encoded_size, wrap
from twinbus.pairing.sdk.version import INSTALLED
from twinbus.servicebus import message_size as module
from twinbus.servicebus.message_size import message_size, received_size, text_size

# The SDK before 7.14 cannot write them.
ENCODES_DECIMALS = INSTALLED >= (7, 14)

MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
UNIQUE = UUID(int=7)


def annotated(**parts: Any) -> AmqpAnnotatedMessage:
    if not any(name.endswith("_body") for name in parts):
        parts["value_body"] = None
    return AmqpAnnotatedMessage(**parts)


# ---- values ----

VALUES: dict[str, tuple[Any, int]] = {
    "null": (None, 1),
    "true": (True, 2),
    "false": (False, 2),
    "zero": (0, 2),
    "small int": (-128, 2),
    "int": (128, 5),
    "lowest int": (-(2**31), 5),
    "float": (1.5, 9),
    "datetime": (MOMENT, 9),
    "uuid": (UNIQUE, 17),
    **({"decimal": (Decimal("1.5"), 17)} if ENCODES_DECIMALS else {}),
    "empty text": ("", 2),
    "ascii": ("abc", 5),
    "umlaut": ("grün", 7),
    "longest short text": ("x" * 255, 257),
    "long text": ("x" * 256, 261),
    "text long in bytes only": ("ü" * 128, 261),
    "bytes": (b"abc", 5),
    "bytearray": (bytearray(300), 305),
    "empty list": ([], 1),
    "list": ([1, "a", None], 3 + 2 + 3 + 1),
    "longest short list": (["x" * 252], 257),
    "long list": (["x" * 253], 264),
    "list of many": ([None] * 256, 9 + 256),
    "empty map": ({}, 3),
    "map": ({"a": 1}, 3 + 3 + 2),
    "map of many": ({str(number): None for number in range(128)}, 9 + sum(3 + len(str(n)) for n in range(128))),
    "nested": ({"a": [{"b": [1]}]}, 3 + 3 + 3 + 3 + 3 + 3 + 2),
    "described": ((1, "a"), 1 + 2 + 3),
    "described by name": (typed("DESCRIBED", (typed("SYMBOL", "a:b"), typed("LONG", 1000))), 1 + 5 + 9),
}
TYPED_VALUES: list[tuple[str, Any, int]] = [
    ("NULL", None, 1),
    ("BOOL", True, 2),
    ("UBYTE", 255, 2),
    ("BYTE", -1, 2),
    ("USHORT", 1, 3),
    ("SHORT", -1, 3),
    ("UINT", 0, 1),
    ("UINT", 255, 2),
    ("UINT", 256, 5),
    ("INT", 127, 2),
    ("INT", 128, 5),
    ("ULONG", 0, 1),
    ("ULONG", 255, 2),
    ("ULONG", 256, 9),
    ("LONG", -128, 2),
    ("LONG", 128, 9),
    ("FLOAT", 1.5, 5),
    ("DOUBLE", 1, 9),
    ("TIMESTAMP", 0, 9),
    ("TIMESTAMP", MOMENT, 9),
    ("UUID", UNIQUE, 17),
    ("BINARY", b"abc", 5),
    ("STRING", "grün", 7),
    ("STRING", b"abc", 5),
    ("SYMBOL", "abc", 5),
    ("LIST", [1, None], 3 + 2 + 1),
    ("LIST", [], 1),
    ("MAP", {"a": 1}, 3 + 3 + 2),
    ("MAP", [(typed("SYMBOL", "a"), 1)], 3 + 3 + 2),
    ("DESCRIBED", (1, "a"), 1 + 2 + 3),
    *([("DECIMAL128", Decimal(1), 17)] if ENCODES_DECIMALS else []),
]


def in_properties(value: Any) -> int:
    """The size of a value in the application properties, measured both ways."""
    message = annotated(application_properties={"k": value})
    size = message_size(message)
    assert size == written_size(message)
    around = 3 + 3 + 3  # the section, its map, the name
    return size - around if size - around + 3 < 255 else size - around - 6


@pytest.mark.parametrize(("value", "size"), VALUES.values(), ids=VALUES)
def test_value_has_the_size_of_its_amqp_encoding(value: Any, size: int) -> None:
    assert in_properties(value) == size


@pytest.mark.parametrize(("kind", "value", "size"), TYPED_VALUES)
def test_typed_dictionary_has_the_size_of_its_type(kind: str, value: Any, size: int) -> None:
    assert in_properties(typed(kind, value)) == size
    annotations = {"x-opt-k": typed(kind, value)}
    message = annotated(annotations=annotations, delivery_annotations=annotations, footer=annotations)
    assert message_size(message) == written_size(message) == 3 * (3 + 3 + 9 + size)


class Color(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 300


@pytest.mark.parametrize(("value", "size"), [(Color.RED, 5), (Level.HIGH, 5)])
def test_instance_of_a_subclass_has_the_size_of_its_base(value: Any, size: int) -> None:
    assert in_properties(value) == size


@pytest.mark.parametrize("value", [{"TYPE": "STRING"}, {"VALUE": 1}, typed(None, typed("INT", 1))])  # type: ignore[arg-type]
def test_dictionary_that_names_no_type_is_a_map(value: Any) -> None:
    in_properties(value)


UNKNOWN = [
    typed("ARRAY", [1, 2]),
    typed("COLOR", "red"),
    typed("UBYTE", b"\x07"),
    typed("LONG", MOMENT),
    typed("UUID", str(UNIQUE)),
    typed("BINARY", "text"),
]


@pytest.mark.parametrize("value", UNKNOWN, ids=str)
def test_size_of_other_values_is_left_to_the_sdk(value: Any) -> None:
    message = annotated(application_properties={"k": value})
    with pytest.raises(TypeError):
        message_size(message)
    assert encoded_size(message) == written_size(message)


def test_user_id_that_is_a_text_is_left_to_the_sdk() -> None:
    message = annotated(properties={"user_id": "me"})
    with pytest.raises(TypeError, match="expected bytes, got str"):
        message_size(message)
    assert encoded_size(message) == written_size(message)


def test_value_that_the_sdk_cannot_encode_raises_the_error_of_the_sdk() -> None:
    for value, error in ((object(), TypeError), ("\ud800", UnicodeEncodeError)):
        with pytest.raises(error):
            encoded_size(annotated(application_properties={"k": value}))


def test_text_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="expected str or bytes, got int"):
        text_size(7)


# ---- sections ----

MESSAGES: dict[str, tuple[AmqpAnnotatedMessage, int]] = {
    "nothing": (annotated(), 0),
    "one data section": (annotated(data_body=b"abc"), 3 + 5),
    "text as data": (annotated(data_body="grün"), 3 + 7),
    "empty data": (annotated(data_body=b""), 3 + 2),
    "several data sections": (annotated(data_body=[b"a", b"x" * 256]), 3 + 3 + 3 + 261),
    "no data sections": (annotated(data_body=[]), 0),
    "value": (annotated(value_body="abc"), 3 + 5),
    "value that is false": (annotated(value_body=0), 0),
    "map that only looks typed": (annotated(value_body=typed("INT", 1)), 3 + 3 + 6 + 5 + 7 + 2),
    "sequence": (annotated(sequence_body=[1, "a"]), 3 + 3 + 2 + 3),
    "several sequences": (annotated(sequence_body=[[1], []]), 3 + 3 + 2 + 3 + 1),
    "header": (annotated(header={"durable": True, "priority": 4, "delivery_count": 0}), 3 + 3 + 2 + 2 + 1 + 1 + 1),
    "empty header": (annotated(header={"durable": None}), 0),
    "time to live": (annotated(header={"time_to_live": 1000}), (3 + 3 + 4 + 5) + (3 + 3 + 11 + 9 + 9)),
    "time to live of 0": (annotated(header={"time_to_live": 0}), 3 + 3 + 5),
    "message id": (annotated(properties={"message_id": "abc"}), 3 + 3 + 12 + 5),
    "numbers as ids": (annotated(properties={"message_id": 0, "correlation_id": 256}), 3 + 3 + 11 + 1 + 9),
    "uuid as id": (annotated(properties={"message_id": UNIQUE}), 3 + 3 + 12 + 17),
    "bytes as id": (annotated(properties={"message_id": b"abc"}), 3 + 3 + 12 + 5),
    "user id": (annotated(properties={"user_id": b"abc"}), 3 + 3 + 12 + 5),
    "times": (annotated(properties={"creation_time": 1, "absolute_expiry_time": 2}), 3 + 3 + 11 + 9 + 9),
    "times of 0": (annotated(properties={"creation_time": 0}), 3 + 3 + 13),
    "group sequence": (annotated(properties={"group_sequence": 256}), 3 + 3 + 12 + 5),
    "longest short properties": (annotated(properties={"subject": "x" * 240}), 3 + 3 + 12 + 242),
    "long properties": (annotated(properties={"subject": "x" * 241}), 3 + 9 + 12 + 243),
    "empty application properties": (annotated(application_properties={}), 0),
    "names of bytes": (annotated(application_properties={b"abc": b"d"}), 3 + 3 + 5 + 3),
    "annotations": (annotated(annotations={"x-opt-a": 1, 7: "b"}), 3 + 3 + 9 + 2 + 2 + 3),
    "delivery annotations": (annotated(delivery_annotations={b"x-opt-a": None}), 3 + 3 + 9 + 1),
    "footer": (annotated(footer={"x-opt-a": MOMENT}), 3 + 3 + 9 + 9),
}


@pytest.mark.parametrize(("message", "size"), MESSAGES.values(), ids=MESSAGES)
def test_message_has_the_size_of_its_sections(message: AmqpAnnotatedMessage, size: int) -> None:
    assert message_size(message) == size == written_size(message)


def service_bus_messages() -> Iterator[ServiceBusMessage]:
    texts = {"session_id": "s", "content_type": "application/json", "correlation_id": "c", "subject": "t"}
    addresses = {"to": "a", "reply_to": "b", "reply_to_session_id": "c", "partition_key": "s"}
    yield ServiceBusMessage(None)
    yield ServiceBusMessage("body")
    yield ServiceBusMessage(b"x" * 70_000, message_id="m", application_properties={"text": "t", "number": 7})
    yield ServiceBusMessage(
        "body",
        application_properties={b"bytes": b"b", "time": MOMENT, "id": UNIQUE, "float": 1.5, "flag": True},
        time_to_live=timedelta(hours=1),
        scheduled_enqueue_time_utc=MOMENT,
        **texts,
        **addresses,  # type: ignore[arg-type]
    )


def test_messages_of_the_usual_form_and_their_envelopes_are_measured() -> None:
    for message in service_bus_messages():
        assert message_size(message.raw_amqp_message) == written_size(message.raw_amqp_message)
        wrapped = wrap(message, "orders")
        assert message_size(wrapped) == written_size(wrapped)


@given(sdk_messages())
@settings(max_examples=200)
def test_any_message_and_its_envelope_have_the_size_of_their_bytes(message: AmqpAnnotatedMessage) -> None:
    assert message_size(message) == written_size(message) == len(encoded(message))
    wrapped = wrap(message, "orders")
    assert message_size(wrapped) == written_size(wrapped)


# Around the lengths and counts at which a text, a list or a map takes its long form.
_LENGTHS = st.integers(0, 3) | st.integers(120, 130) | st.integers(235, 265)
_LEAVES = PLAIN | _LENGTHS.map(lambda length: "x" * length) | _LENGTHS.map(bytes)
_NESTED = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(max_size=5), inner, max_size=5)
        | st.builds(lambda value, count: [value] * count, _LEAVES, _LENGTHS)
    ),
    max_leaves=5,
)


@given(_NESTED)
@settings(max_examples=200)
def test_nested_values_have_the_size_of_their_bytes_everywhere(value: Any) -> None:
    # A property of type bytes is sent as a text of the same length.
    parts = {"application_properties": {"k": value}, "annotations": {"x-opt-k": value}}
    for message in (annotated(value_body=value, **parts), annotated(sequence_body=[value])):
        assert message_size(message) == written_size(message)


# ---- received messages ----


def received(message: AmqpAnnotatedMessage) -> AmqpAnnotatedMessage:
    """The message as a receiver of the SDK has it."""
    decoded: Any = decode_payload(memoryview(encoded(message)))
    return AmqpAnnotatedMessage(message=decoded)


@given(sdk_messages())
@settings(max_examples=200)
def test_any_message_that_the_sdk_has_decoded_can_be_measured(message: AmqpAnnotatedMessage) -> None:
    try:
        decoded = received(message)
    except ValueError:  # the SDK cannot read all decimals that it writes
        return
    assert message_size(decoded) == received_size(decoded)


def test_received_message_has_the_size_that_was_sent() -> None:
    for message in service_bus_messages():
        raw = message.raw_amqp_message
        assert received_size(received(raw)) == written_size(raw)


def test_received_number_may_have_been_wider() -> None:
    sent = annotated(data_body=b"x", application_properties={"long": typed("LONG", 1000)})
    assert received_size(received(sent)) == written_size(sent) - 4
    beyond = annotated(data_body=b"x", application_properties={"long": typed("LONG", 1 << 40)})
    assert received_size(received(beyond)) == written_size(beyond)


def test_invalid_received_message_is_counted_by_its_body() -> None:
    assert received_size(annotated(data_body=[b"abc", b"de"], application_properties={7: "x"})) == 5
    assert received_size(annotated(value_body="abc", application_properties={7: "x"})) == 0
    assert received_size(annotated(data_body=b"abc", header={"delivery_count": b"x"})) == 3


def test_nothing_private_of_the_sdk_is_used() -> None:
    assert module.__file__ is not None
    with open(module.__file__, encoding="utf-8") as source:
        text = source.read()
    assert "azure.servicebus._" not in text
    assert "message._" not in text
