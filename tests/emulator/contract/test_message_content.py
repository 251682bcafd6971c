"""Messages arrive unchanged: every body, property type, annotation and header field."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType
from azure.servicebus.exceptions import ServiceBusError
from tests.emulator.contract.bus import Bus, EntityUnderTest, QueueUnderTest, SubscriptionUnderTest, receive

from twinbus.emulator.entities.message import Arrival
from twinbus.emulator.storage.schema import MAX_SEQUENCE, message_key

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROPERTIES_SECTION = b"\x00\x53\x73"
NOW_MS = 1_794_000_000_123
IDENTITY = uuid.UUID("12345678-1234-5678-1234-567812345678")


def typed(kind: str, value: Any) -> dict[str, Any]:
    """A value of an exact AMQP type, in the SDK's notation."""
    return {"TYPE": kind, "VALUE": value}


TIMESPAN = typed("DESCRIBED", (typed("SYMBOL", b"com.microsoft:timespan"), typed("LONG", 36_000_000_000)))

# The sent value and what the SDK decodes: its decoder returns text as bytes and times as numbers.
PROPERTY_VALUES: dict[str, tuple[Any, Any]] = {
    "null": (typed("NULL", None), None),
    "boolean": (True, True),
    "ubyte": (typed("UBYTE", 200), 200),
    "ushort": (typed("USHORT", 60_000), 60_000),
    "uint": (typed("UINT", 4_000_000_000), 4_000_000_000),
    "ulong": (typed("ULONG", 2**64 - 1), 2**64 - 1),
    "byte": (typed("BYTE", -100), -100),
    "short": (typed("SHORT", -30_000), -30_000),
    "int": (typed("INT", -(2**31)), -(2**31)),
    "long": (typed("LONG", -(2**63)), -(2**63)),
    "float": (typed("FLOAT", 1.5), 1.5),
    "double": (0.1, 0.1),
    "timestamp": (typed("TIMESTAMP", NOW_MS), NOW_MS),
    "datetime": (datetime.fromtimestamp(NOW_MS // 1000, UTC), NOW_MS // 1000 * 1000),
    "uuid": (IDENTITY, IDENTITY),
    "binary": (typed("BINARY", b"\x00\xff"), b"\x00\xff"),
    "string": ("grüße ✓", "grüße ✓".encode()),
    "empty string": ("", b""),
    "symbol": (typed("SYMBOL", b"symbol"), b"symbol"),
    "timespan": (TIMESPAN, 36_000_000_000),
}

BODIES: dict[str, tuple[dict[str, Any], Any]] = {
    "data": ({"data_body": b"\x00\x01\xff"}, [b"\x00\x01\xff"]),
    "empty data": ({"data_body": b""}, [b""]),
    "several data sections": ({"data_body": [b"one", b"two", b""]}, [b"one", b"two", b""]),
    "long data": ({"data_body": bytes(range(256)) * 800}, [bytes(range(256)) * 800]),
    "text value": ({"value_body": "text"}, b"text"),
    "number value": ({"value_body": -7}, -7),
    "true value": ({"value_body": True}, True),
    "list value": ({"value_body": [1, "two", [3.5]]}, [1, b"two", [3.5]]),
    "map value": ({"value_body": {"a": 1, "b": {"c": None}}}, {b"a": 1, b"b": {b"c": None}}),
    "sequence": ({"sequence_body": [1, "two", None]}, [[1, b"two", None]]),
    "several sequences": ({"sequence_body": [[1, 2], ["three"]]}, [[1, 2], [b"three"]]),
}


def annotated(**sections: Any) -> AmqpAnnotatedMessage:
    """A message with an id, so that the namespace does not change its properties."""
    if not sections.keys() & {"value_body", "sequence_body"}:
        sections.setdefault("data_body", b"body")
    sections["properties"] = {"message_id": "mine", **sections.get("properties", {})}
    return AmqpAnnotatedMessage(**sections)


def sent_bytes(message: AmqpAnnotatedMessage) -> bytes:
    """The bytes that the SDK sends for a message."""
    return bytes(encode_payload(bytearray(), PyamqpTransport.to_outgoing_amqp_message(message)))


def stored_bare(entity: EntityUnderTest) -> list[bytes]:
    """The stored bare messages (properties, application properties, body, footer)."""
    key = entity.queue.key
    rows = entity.bus.namespace.store.reader.execute(
        "SELECT bare FROM messages WHERE id BETWEEN ? AND ? ORDER BY id",
        (message_key(key, 0), message_key(key, MAX_SEQUENCE)),
    )
    return [row[0] for row in rows.fetchall()]


async def sent(
    bus: Bus, message: AmqpAnnotatedMessage, entity: EntityUnderTest | None = None
) -> ServiceBusReceivedMessage:
    """Send a message, check that its bare part is stored byte for byte, and receive it."""
    entity = entity or await bus.spare(QueueUnderTest)
    await entity.sender.send_messages(message)
    [bare] = stored_bare(entity)
    assert bare.startswith(PROPERTIES_SECTION)
    assert sent_bytes(message).endswith(bare)
    return await entity.receive_one()


def body_of(message: ServiceBusReceivedMessage) -> Any:
    return message.body if message.body_type is AmqpMessageBodyType.VALUE else list(message.body)


@pytest.mark.parametrize("name", BODIES)
async def test_a_body_arrives_as_it_was_sent(bus: Bus, name: str) -> None:
    body, expected = BODIES[name]
    received = await sent(bus, annotated(**body))
    kind = next(iter(body)).removesuffix("_body")
    assert received.body_type is AmqpMessageBodyType[kind.upper()]
    assert body_of(received) == expected


async def test_message_without_a_body(bus: Bus) -> None:
    entity = await bus.spare(QueueUnderTest)
    message = annotated(value_body=0)  # the SDK omits a falsy value
    assert not sent_bytes(message).count(b"\x00\x53\x77")
    await entity.sender.send_messages(message)
    assert (await entity.receive_one()).message_id == "mine"


@pytest.mark.parametrize("name", PROPERTY_VALUES)
async def test_an_application_property_keeps_its_type_and_value(bus: Bus, name: str) -> None:
    value, expected = PROPERTY_VALUES[name]
    received = await sent(bus, annotated(application_properties={name: value}))
    assert received.application_properties == {name.encode(): expected}
    assert isinstance(received.application_properties[name.encode()], type(expected))


@pytest.mark.parametrize("text", ["1.2345", "-12.5", "0", "1E+3", "1E-28"])
async def test_a_decimal_comes_back_as_the_same_number(bus: Bus, text: str) -> None:
    entity = await bus.spare(QueueUnderTest)
    await entity.sender.send_messages(annotated(application_properties={"decimal": Decimal(text), "other": "x"}))
    received = await entity.receive_one()
    assert received.application_properties == {b"decimal": Decimal(text), b"other": b"x"}


@pytest.mark.parametrize("text", ["1E-29", "1E+29", "9" * 34])
async def test_decimal_beyond_the_service_type_is_kept_as_sent(bus: Bus, text: str) -> None:
    entity = await bus.spare(QueueUnderTest)
    too_much = annotated(application_properties={"decimal": Decimal(text)})
    await entity.sender.send_messages(too_much)
    [bare] = stored_bare(entity)
    assert sent_bytes(too_much).endswith(bare)


async def test_decimal_in_service_form_is_kept(bus: Bus) -> None:
    entity = await bus.spare(QueueUnderTest)
    await entity.sender.send_messages(annotated(application_properties={"decimal": Decimal("-12.5")}))
    [first] = stored_bare(entity)
    assert Arrival(first).bare == first


async def test_all_application_properties_arrive_together_and_through_a_topic(bus: Bus) -> None:
    properties = {name: value for name, (value, _) in PROPERTY_VALUES.items()}
    message = annotated(application_properties=properties)
    received = await sent(bus, message, await bus.spare(SubscriptionUnderTest))
    assert received.application_properties == {name.encode(): back for name, (_, back) in PROPERTY_VALUES.items()}


async def test_every_property_arrives(bus: Bus) -> None:
    properties = {
        "message_id": "id",
        "user_id": b"user",
        "to": "to",
        "subject": "subject",
        "reply_to": "reply",
        "correlation_id": "correlation",
        "content_type": "application/json",
        "content_encoding": "gzip",
        "creation_time": NOW_MS,
        "absolute_expiry_time": NOW_MS + 3_600_000,
        "group_id": "session",
        "group_sequence": 7,
        "reply_to_group_id": "reply session",
    }
    received = await sent(bus, annotated(properties=properties))
    arrived = received.raw_amqp_message.properties
    as_text = {name: getattr(arrived, name) for name in properties}
    decoded = {
        name: value.decode() if isinstance(value, bytes) and name != "user_id" else value
        for name, value in as_text.items()
    }
    assert decoded == properties


@pytest.mark.parametrize(
    "message_id", [IDENTITY, 2**60, b"\x00\xff", "text"], ids=["uuid", "ulong", "binary", "string"]
)
async def test_a_message_id_keeps_its_type(bus: Bus, message_id: Any) -> None:
    received = await sent(bus, annotated(properties={"message_id": message_id}))
    arrived = received.raw_amqp_message.properties.message_id
    assert arrived == (message_id.encode() if isinstance(message_id, str) else message_id)


async def test_header_fields_arrive(bus: Bus) -> None:
    header = {"durable": True, "priority": 7, "time_to_live": 60_000, "delivery_count": 5}
    entity = await bus.spare(QueueUnderTest)
    await entity.sender.send_messages(annotated(header=header))
    arrived = (await entity.receive_one()).raw_amqp_message.header
    assert (arrived.durable, arrived.priority, arrived.time_to_live) == (True, 7, 60_000)
    assert arrived.delivery_count == 0  # the namespace counts, not the sender


async def test_message_annotations_arrive(bus: Bus) -> None:
    annotations = {"x-opt-partition-key": "key", "x-own": typed("ULONG", 2**63), "x-list": [1, "two"]}
    received = await sent(bus, annotated(annotations=annotations))
    arrived = received.raw_amqp_message.annotations
    assert arrived[b"x-opt-partition-key"] == b"key"
    assert arrived[b"x-own"] == 2**63
    assert arrived[b"x-list"] == [1, b"two"]


async def test_sender_cannot_set_annotations_of_the_service(bus: Bus) -> None:
    forged = {"x-opt-sequence-number": 999, "x-opt-enqueued-time": 1, "x-opt-locked-until": 1}
    received = await sent(bus, annotated(annotations=forged))
    assert received.sequence_number == 1
    assert received.enqueued_time_utc > datetime.now(UTC) - timedelta(minutes=1)
    assert received.locked_until_utc > received.enqueued_time_utc


async def test_many_annotations_arrive(bus: Bus) -> None:
    annotations = {f"x-annotation-{number}": number for number in range(90)}
    received = await sent(bus, annotated(annotations=annotations))
    arrived = received.raw_amqp_message.annotations
    assert {name: arrived[name.encode()] for name in annotations} == annotations


async def test_delivery_annotations_arrive(bus: Bus) -> None:
    entity = await bus.spare(QueueUnderTest)
    await entity.sender.send_messages(annotated(delivery_annotations={"x-own": "value"}))
    received = await entity.receive_one()
    assert received.raw_amqp_message.delivery_annotations[b"x-own"] == b"value"
    await entity.receiver.complete_message(received)
    assert await entity.peek() == []


async def test_the_footer_arrives(bus: Bus) -> None:
    received = await sent(bus, annotated(footer={"x-checksum": b"\x01\x02"}))
    assert received.raw_amqp_message.footer == {b"x-checksum": b"\x01\x02"}


async def test_messages_of_a_batch_arrive_as_they_were_sent(bus: Bus) -> None:
    entity = await bus.spare(QueueUnderTest)
    messages = [annotated(**body, footer={"x-footer": 1}) for body, _ in BODIES.values()]
    batch = await entity.sender.create_message_batch()
    for message in messages[:3] + messages[4:]:
        batch.add_message(message)
    await entity.sender.send_messages(batch)
    for message, bare in zip(messages[:3] + messages[4:], stored_bare(entity), strict=True):
        assert sent_bytes(message).endswith(bare)
    received = await entity.receive(len(batch))
    expected = [back for name, (_, back) in BODIES.items() if name != "long data"]
    assert [body_of(message) for message in received] == expected


async def test_each_subscription_gets_the_same_bytes(bus: Bus) -> None:
    entity = await bus.spare(SubscriptionUnderTest)
    message = annotated(application_properties={"timespan": TIMESPAN}, footer={"x-footer": 1})
    await entity.sender.send_messages(message)
    [bare] = stored_bare(entity)
    assert sent_bytes(message).endswith(bare)


async def test_abandoning_and_deferring_keep_the_bytes(bus: Bus) -> None:
    entity = await bus.spare(QueueUnderTest)
    await entity.sender.send_messages(annotated(application_properties={"timespan": TIMESPAN}))
    before = stored_bare(entity)
    await entity.receiver.abandon_message(await entity.receive_one())
    await entity.receiver.defer_message(await entity.receive_one())
    assert stored_bare(entity) == before


async def test_dead_lettering_adds_the_reason_and_keeps_the_rest(bus: Bus) -> None:
    entity = await bus.spare(QueueUnderTest)
    properties = {name: value for name, (value, _) in PROPERTY_VALUES.items()}
    await entity.sender.send_messages(annotated(application_properties=properties, footer={"x-footer": 1}))
    [before] = stored_bare(entity)
    await entity.receiver.dead_letter_message(await entity.receive_one(), reason="Unreadable")
    dead_letters = await entity.open_dead_letters()
    [dead] = await receive(dead_letters)
    expected = {name.encode(): back for name, (_, back) in PROPERTY_VALUES.items()}
    arrived = dict(dead.application_properties)
    assert arrived.pop(b"DeadLetterReason") == b"Unreadable"
    arrived.pop(b"DeadLetterErrorDescription", None)
    assert arrived == expected
    body = before[before.index(b"\x00\x53\x75") :]
    assert (
        bus.namespace.store.reader.execute(
            "SELECT bare FROM messages WHERE id > ? ORDER BY id LIMIT 1",
            (message_key(entity.dead_letter_queue.key, 0),),
        )
        .fetchone()[0]
        .endswith(body)
    )


async def test_message_larger_than_a_frame_arrives(bus: Bus) -> None:
    body = bytes(range(256)) * 1000  # almost four frames of 64 KB
    received = await sent(bus, annotated(data_body=body))
    assert b"".join(received.body) == body


async def test_a_message_with_too_many_annotations_is_refused(bus: Bus) -> None:
    entity = await bus.spare(QueueUnderTest)
    with pytest.raises(ServiceBusError, match="at most 100 annotations"):
        await entity.sender.send_messages(annotated(annotations={f"x-{number}": number for number in range(101)}))
    assert await entity.peek() == []


async def test_the_properties_of_the_simple_message_arrive(bus: Bus) -> None:
    entity = await bus.spare(QueueUnderTest)
    values = {
        "message_id": "id",
        "session_id": "session",
        "content_type": "text/plain",
        "correlation_id": "correlation",
        "subject": "subject",
        "partition_key": "session",
        "to": "to",
        "reply_to": "reply",
        "reply_to_session_id": "reply session",
    }
    await entity.put(ServiceBusMessage("body", **values))
    received = await entity.receive_one()
    assert {name: getattr(received, name) for name in values} == values
