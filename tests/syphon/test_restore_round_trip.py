"""A diverted message arrives as if sent directly: over the real wire, byte for byte."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import ServiceBusError
from hypothesis import HealthCheck, given, settings
from tests.amqp.amqp_values import same
from tests.pairing.sdk_messages import sdk_messages, typed
from tests.syphon.bus import PATIENCE, Inbox, annotations_of, body_of
from tests.syphon.diverted import BACKLOG, SLACK_MS, TwoNamespaces, assert_equal, header_of, properties_of

from twinbus.amqp.codec import sections
from twinbus.amqp.codec.types import Described, Long, Symbol, Timestamp
from twinbus.envelope import aliases
from twinbus.envelope.wrapping import wrap_all
from twinbus.syphon import dead_letter

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

Mode = Literal["remaining", "restart"]
PAST = datetime(2020, 2, 29, 12, 30, 1, 250_000, tzinfo=UTC)
PAST_MS = 1_582_979_401_250
EXPIRY, CREATED, SESSION = 8, 9, 10  # in the properties section


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bus() -> AsyncIterator[TwoNamespaces]:
    async with TwoNamespaces() as running:
        yield running


def application_properties(payload: bytes) -> dict[str, Any]:
    section = sections.split_sections(payload).application_properties
    return {name: sections.entry_value(raw) for name, raw in sections.map_entries(section)}


@pytest.mark.parametrize("ttl", ["remaining", "restart"])
@given(message=sdk_messages())
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
async def test_diverted_message_arrives_as_if_sent_directly(
    bus: TwoNamespaces, ttl: Mode, message: AmqpAnnotatedMessage
) -> None:
    assert_equal(await bus.both(message, ttl), ttl)


def everything() -> ServiceBusMessage:
    return ServiceBusMessage(
        "body",
        message_id="m",
        session_id="grüße",
        partition_key="grüße",
        reply_to_session_id="replies",
        time_to_live=timedelta(minutes=20),
        scheduled_enqueue_time_utc=PAST,
        application_properties={"n": typed("LONG", 2**40), "x-ms-path": "mine", "DeadLetterReason": "mine too"},
    )


async def test_backlog_message_has_cleared_originals_and_typed_aliases(bus: TwoNamespaces) -> None:
    message = everything()
    before = message.raw_amqp_message.properties.creation_time  # type: ignore[union-attr]
    payload = await bus.divert(message, "some/topic")
    assert header_of(payload)[2] is None
    fields = properties_of(payload)
    assert fields[EXPIRY] is fields[CREATED] is fields[SESSION] is None
    assert fields[12] == "replies"
    annotations = annotations_of(payload)
    assert aliases.SCHEDULED_ANNOTATION not in annotations
    assert annotations["x-opt-partition-key"] == "grüße"

    found = application_properties(payload)
    created, expiry = found.pop("x-twinbus-created"), found.pop("x-twinbus-expiry")
    assert type(created) is type(expiry) is Timestamp
    assert expiry - created == 20 * 60_000
    assert 0 <= created - before <= SLACK_MS
    assert same(
        found,
        {
            "n": Long(2**40),
            "x-twinbus-own-x-ms-path": "mine",
            "x-twinbus-own-DeadLetterReason": "mine too",
            "x-ms-path": "some/topic",
            "x-ms-timetolive": Described(Symbol("com.microsoft:timespan"), Long(20 * 60 * 10_000_000)),
            "x-ms-sessionid": "grüße",
            "x-ms-scheduledenqueuetimeutc": Timestamp(PAST_MS),
        },
    )


async def test_service_bus_message_arrives_with_all_its_properties(bus: TwoNamespaces) -> None:
    ways = await bus.both(everything())
    assert_equal(ways)
    assert application_properties(ways.moved) == {"n": 2**40, "x-ms-path": "mine", "DeadLetterReason": "mine too"}
    assert properties_of(ways.moved)[SESSION] == ways.restored.session == "grüße"
    assert same(annotations_of(ways.moved)[aliases.SCHEDULED_ANNOTATION], Timestamp(PAST_MS))
    assert ways.restored.message_id == "m"


async def test_empty_message_arrives_empty(bus: TwoNamespaces) -> None:
    ways = await bus.both(ServiceBusMessage(None, message_id="m"))
    assert_equal(ways)
    parts = sections.split_sections(ways.restored.payload)
    assert parts == sections.Sections(properties=sections.split_sections(ways.direct).properties)


async def received(bus: TwoNamespaces, message: ServiceBusMessage) -> ServiceBusReceivedMessage:
    """A message that the SDK has sent and received."""
    await bus.direct_sender.send_messages(message)
    async with bus.sdk[0].get_queue_receiver("direct") as receiver:
        [one] = await receiver.receive_messages(max_wait_time=PATIENCE)
        await receiver.complete_message(one)
    return one


async def test_received_message_can_be_sent_again(bus: TwoNamespaces) -> None:
    message = everything()
    message.scheduled_enqueue_time_utc = None
    message.application_properties = {"x-ms-path": "mine", "n": 1}
    again = await received(bus, message)
    assert again.raw_amqp_message.annotations[b"x-opt-sequence-number"]  # type: ignore[index]
    ways = await bus.both(again)
    assert_equal(ways)
    assert properties_of(ways.moved)[SESSION] == "grüße"
    assert annotations_of(ways.backlog)["x-opt-sequence-number"] == ways.restored.sequence_number


async def test_received_message_keeps_its_scheduled_time(bus: TwoNamespaces) -> None:
    again = await received(bus, ServiceBusMessage("x", scheduled_enqueue_time_utc=PAST))
    with pytest.raises(ServiceBusError, match=str(PAST_MS)):
        await bus.direct_sender.send_messages(again)
    restored = bus.restored(await bus.divert(again))
    assert same(annotations_of(restored.payload)[aliases.SCHEDULED_ANNOTATION], Timestamp(PAST_MS))


async def test_the_messages_of_a_batch_keep_their_order(bus: TwoNamespaces) -> None:
    batch = [ServiceBusMessage(f"{number}", session_id=f"s{number % 3}") for number in range(20)]
    await bus.backlog_sender.send_messages(wrap_all(batch, "moved"))
    restored = [bus.restored(await bus.take(BACKLOG)) for _ in batch]
    assert [body_of(one.payload) for one in restored] == [str(number).encode() for number in range(20)]
    assert [one.session for one in restored] == [message.session_id for message in batch]
    numbers = [one.sequence_number for one in restored]
    assert numbers == list(range(numbers[0], numbers[0] + 20))


async def test_time_in_the_backlog_counts_by_the_brokers_clock(bus: TwoNamespaces) -> None:
    payload = await bus.divert(ServiceBusMessage("x", time_to_live=timedelta(seconds=100)), wait=60)
    restored = bus.restored(payload)
    assert not restored.expired
    assert 40_000 - SLACK_MS <= header_of(restored.payload)[2] <= 40_000
    kept = application_properties(payload)
    assert properties_of(restored.payload)[EXPIRY] == kept["x-twinbus-expiry"]
    assert properties_of(restored.payload)[CREATED] == kept["x-twinbus-created"]


async def test_message_expired_in_the_backlog_is_reported_and_not_deleted(bus: TwoNamespaces) -> None:
    payload = await bus.divert(ServiceBusMessage("x", time_to_live=timedelta(seconds=100)), wait=101)
    restored = bus.restored(payload)
    assert restored.expired
    assert restored.payload == b""
    assert restored.destination == "moved"


async def test_restarted_time_to_live_has_its_original_length(bus: TwoNamespaces) -> None:
    payload = await bus.divert(ServiceBusMessage("x", time_to_live=timedelta(seconds=100)), wait=200)
    restored = bus.restored(payload, "restart")
    assert not restored.expired
    assert header_of(restored.payload)[2] == 100_000
    kept, fields = application_properties(payload), properties_of(restored.payload)
    assert fields[EXPIRY] - fields[CREATED] == 100_000
    assert 200_000 <= fields[EXPIRY] - kept["x-twinbus-expiry"] <= 200_000 + SLACK_MS


async def test_time_to_live_does_not_start_before_the_scheduled_time(bus: TwoNamespaces) -> None:
    message = ServiceBusMessage("x", time_to_live=timedelta(seconds=100))
    message.scheduled_enqueue_time_utc = bus.clock.in_seconds(150)
    restored = bus.restored(await bus.divert(message, wait=120))
    assert header_of(restored.payload)[2] == 100_000
    message.scheduled_enqueue_time_utc = bus.clock.in_seconds(60)
    restored = bus.restored(await bus.divert(message, wait=120))
    assert 40_000 - SLACK_MS <= header_of(restored.payload)[2] <= 40_000
    message.scheduled_enqueue_time_utc = bus.clock.in_seconds(20)
    assert bus.restored(await bus.divert(message, wait=121)).expired


async def test_scheduled_message_waits_at_the_destination_not_in_the_backlog(bus: TwoNamespaces) -> None:
    later = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    message = ServiceBusMessage("x", scheduled_enqueue_time_utc=later)
    restored = bus.restored(await bus.divert(message))
    await bus.mover.deliver(restored.payload, PATIENCE)
    management = await bus.to_primary.management("moved")
    [waiting] = await management.peek_messages(1, 10)
    annotations = annotations_of(waiting)
    assert annotations["x-opt-message-state"] == 2
    assert same(annotations[aliases.SCHEDULED_ANNOTATION], Timestamp(int(later.timestamp() * 1000)))


async def test_dead_letter_is_restored_without_the_queues_properties(bus: TwoNamespaces) -> None:
    own = {"DeadLetterReason": "mine", "x-twinbus-own-DeadLetterReason": "mine too", "other": 1}
    await bus.direct_sender.send_messages(ServiceBusMessage("x", message_id="m", application_properties=dict(own)))
    direct = await bus.take("direct")
    inbox = Inbox()
    receiver = await bus.to_secondary.attach_receiver(BACKLOG, inbox, credit=1)
    message = ServiceBusMessage("x", message_id="m", application_properties=dict(own))
    await bus.backlog_sender.send_messages(wrap_all([message], "moved"))
    await receiver.settled(await inbox.take_one(), dead_letter("Refused", "why"), PATIENCE)
    await receiver.close(PATIENCE)
    receiver = await bus.to_secondary.attach_receiver(f"{BACKLOG}/$DeadLetterQueue", inbox, credit=1)
    payload = (await inbox.take_one()).payload
    await receiver.close(PATIENCE)
    assert application_properties(payload)["DeadLetterReason"] == "Refused"
    restored = sections.split_sections(bus.restored(payload).payload)
    assert restored.application_properties == sections.split_sections(direct).application_properties


async def test_the_senders_clock_does_not_matter(bus: TwoNamespaces) -> None:
    # Its creation time and expiry are long past, but only the time in the backlog counts.
    properties = {"message_id": "m", "creation_time": PAST_MS, "absolute_expiry_time": PAST_MS + 900_000}
    message = AmqpAnnotatedMessage(data_body=b"x", properties=properties)
    ways = await bus.both(message)
    assert_equal(ways)
    assert properties_of(ways.moved)[EXPIRY] == PAST_MS + 900_000
