"""Message sizes in the backlog."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pairing.sdk_messages import encoded, sdk_messages

from twinbus.envelope.wrapping import MAX_PROPERTIES_SIZE, Oversize, encoded_size, overhead, oversize, wrap

LIMIT = 256 << 10
PATHS = st.text(min_size=1, max_size=260)


@given(sdk_messages())
@settings(max_examples=200)
def test_measured_size_is_the_encoded_size_and_measuring_changes_nothing(
    message: AmqpAnnotatedMessage,
) -> None:
    before = dict(message.application_properties or {})
    assert encoded_size(message) == len(encoded(message))
    assert (message.application_properties or {}) == before


def test_size_is_exact_where_the_encoding_of_the_batch_changes() -> None:
    for length in (0, *range(200, 300), 70_000):
        message = ServiceBusMessage(b"x" * length, message_id="m")
        assert encoded_size(message) == len(encoded(message.raw_amqp_message))


@given(sdk_messages(), PATHS)
@settings(max_examples=200)
def test_the_envelope_never_adds_more_than_its_overhead(message: AmqpAnnotatedMessage, path: str) -> None:
    assert encoded_size(wrap(message, path)) - encoded_size(message) <= overhead(message, path)


@given(st.lists(sdk_messages(), min_size=1, max_size=4), PATHS)
def test_a_batch_that_leaves_room_for_the_overhead_fits_when_it_is_diverted(
    messages: list[AmqpAnnotatedMessage], path: str
) -> None:
    batch, diverted = ServiceBusMessageBatch(1 << 40), ServiceBusMessageBatch(1 << 40)
    for message in messages:
        batch.add_message(message)
        diverted.add_message(wrap(message, path))
    assert diverted.size_in_bytes <= batch.size_in_bytes + sum(overhead(message, path) for message in messages)


def test_the_overhead_of_a_plain_message_is_small() -> None:
    assert overhead(ServiceBusMessage("x"), "orders") < 40
    full = ServiceBusMessage(
        "x",
        session_id="s",
        time_to_live=timedelta(hours=1),
        scheduled_enqueue_time_utc=datetime.now(UTC),
    )
    assert overhead(full, "orders") < 220


def sized(size: int, **properties: Any) -> ServiceBusMessage:
    """Return a message of `size` bytes without its envelope."""
    message = ServiceBusMessage(b"x" * LIMIT, message_id="m", **properties)
    return ServiceBusMessage(b"x" * (LIMIT + size - encoded_size(message)), message_id="m", **properties)


def test_a_message_that_fits_only_without_its_envelope_is_too_large_for_the_backlog() -> None:
    added = encoded_size(wrap(sized(LIMIT), "orders")) - LIMIT
    assert 0 < added <= overhead(sized(LIMIT), "orders")
    assert oversize(sized(LIMIT), "orders", LIMIT) == Oversize(LIMIT + added, added)
    assert oversize(sized(LIMIT - added + 1), "orders", LIMIT) == Oversize(LIMIT + 1, added)
    assert oversize(sized(LIMIT - added), "orders", LIMIT) is None


def test_non_bytes_body_is_measured() -> None:
    text = "x" * LIMIT
    for body in ({"value_body": text}, {"sequence_body": [text]}, {"value_body": {"a": text}}):
        found = oversize(AmqpAnnotatedMessage(**body), "orders", LIMIT)  # type: ignore[arg-type]
        assert found is not None
        assert found.size > LIMIT + found.overhead
        assert oversize(AmqpAnnotatedMessage(**body), "orders", 2 * LIMIT) is None  # type: ignore[arg-type]


def test_properties_of_any_accepted_size_are_measured() -> None:
    properties = {"p": "x" * (MAX_PROPERTIES_SIZE - 100)}
    message = ServiceBusMessage(b"x" * (LIMIT - MAX_PROPERTIES_SIZE + 80), application_properties=properties)  # type: ignore[arg-type]
    assert oversize(message, "orders", LIMIT) is not None
