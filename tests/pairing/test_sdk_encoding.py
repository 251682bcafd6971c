"""The bytes that we make of a message are those that the SDK makes of it."""

from __future__ import annotations

from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage
from hypothesis import given
from hypothesis import strategies as st
from tests.pairing.sdk_messages import NAMES, VALUES, sdk_messages

from twinbus.pairing import sdk_encoding
from twinbus.pairing.envelope import wrap
from twinbus.pairing.sdk_encoding import encoded

# Around the lengths where a text, a list or a map takes its long form.
TEXTS = st.text(max_size=20) | st.integers(180, 270).map(lambda size: "x" * size)
FIELDS = ["message_id", "to", "subject", "reply_to", "correlation_id", "content_type", "content_encoding"]
PLAIN_MESSAGES = st.builds(
    lambda body, properties, own: AmqpAnnotatedMessage(
        data_body=body, properties=properties or None, application_properties=own or None
    ),
    st.lists(st.binary(max_size=300), min_size=1, max_size=3) | st.integers(250, 260).map(bytes),
    st.dictionaries(st.sampled_from(FIELDS), TEXTS),
    st.dictionaries(NAMES | TEXTS, VALUES | TEXTS, max_size=4),
)


def outgoing(message: AmqpAnnotatedMessage) -> Any:
    return PyamqpTransport.to_outgoing_amqp_message(message)


def as_the_sdk_writes(message: Any) -> bytes:
    return bytes(encode_payload(bytearray(), message))


@given(sdk_messages())
def test_any_message_is_written_as_the_sdk_writes_it(message: AmqpAnnotatedMessage) -> None:
    made = outgoing(message)
    assert encoded(made) == as_the_sdk_writes(made)


@given(PLAIN_MESSAGES)
def test_a_plain_message_is_written_without_the_sdk_and_the_same(message: AmqpAnnotatedMessage) -> None:
    made = outgoing(message)
    assert sdk_encoding._plain(made) == as_the_sdk_writes(made)


@given(PLAIN_MESSAGES, st.text(min_size=1, max_size=260))
def test_an_envelope_is_written_without_the_sdk_and_the_same(message: AmqpAnnotatedMessage, destination: str) -> None:
    made = outgoing(wrap(message, destination))
    assert sdk_encoding._plain(made) == as_the_sdk_writes(made)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_batch_is_written_without_the_sdk_and_the_same(count: int) -> None:
    batch = ServiceBusMessageBatch(1 << 20)
    for size in range(count):
        batch.add_message(ServiceBusMessage(b"x" * (100 * size), message_id=str(size)))
    assert sdk_encoding._plain(batch._message) == as_the_sdk_writes(batch._message)


def test_what_cannot_be_encoded_is_refused_as_the_sdk_does() -> None:
    made = outgoing(AmqpAnnotatedMessage(data_body=b"x", application_properties={"odd": object()}))
    with pytest.raises(TypeError) as theirs:
        as_the_sdk_writes(made)
    with pytest.raises(TypeError) as ours:
        encoded(made)
    assert str(ours.value) == str(theirs.value)
