"""Time to live: expired messages are dropped, or dead-lettered if the entity is configured so."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageLockLostError, MessageNotFoundError
from tests.emulator.contract.bus import (
    LOCK_OVER,
    Bus,
    EntityUnderTest,
    QueueUnderTest,
    SubscriptionUnderTest,
    receive,
    texts,
    until,
)
from tests.emulator.contract.conftest import OpenEntity

from twinbus.servicebus.durations import TICKS_PER_SECOND

pytestmark = pytest.mark.asyncio(loop_scope="module")

FARTHEST = (1 << 63) // 1000 - 1001  # seconds; a little more does not fit an AMQP timestamp
KEEPS_EXPIRED = {"dead_lettering_on_message_expiration": True, "dead_letters": True}


def short_lived(text: str, seconds: int = 10, **properties: Any) -> ServiceBusMessage:
    return ServiceBusMessage(text, time_to_live=timedelta(seconds=seconds), **properties)


def living_until(text: str, seconds: int) -> AmqpAnnotatedMessage:
    """A message with an expiry time instead of a header's time to live, as clients send long times."""
    times = {"creation_time": 1_000_000, "absolute_expiry_time": 1_000_000 + seconds * 1000}
    return AmqpAnnotatedMessage(data_body=text.encode(), properties=times)


async def deferred(entity: EntityUnderTest) -> ServiceBusReceivedMessage:
    """A deferred message that expires after ten seconds."""
    await entity.put(short_lived("short"))
    message = await entity.receive_one()
    await entity.receiver.defer_message(message)
    return message


class Expiring:
    entity: ClassVar[type[EntityUnderTest]]

    async def test_an_expired_message_is_dropped(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        await entity.put(short_lived("short"), "long")
        await bus.advance(11)
        assert texts(await entity.receive()) == ["long"]
        assert await entity.peek_texts() == ["long"]
        assert entity.dead_letter_queue.counters.active == 0

    async def test_a_message_can_be_received_until_it_expires(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        await entity.put(short_lived("short", 20))
        await bus.advance(5)
        message = await entity.receive_one()
        assert str(message) == "short"
        assert message.time_to_live == timedelta(seconds=20)
        assert message.expires_at_utc == message.enqueued_time_utc + timedelta(seconds=20)

    async def test_an_expired_message_is_dead_lettered_with_a_reason(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity(**KEEPS_EXPIRED)
        await entity.put(short_lived("short"))
        await bus.advance(11)
        [dead] = await receive(entity.dead_letters)
        assert str(dead) == "short"
        assert dead.dead_letter_reason == "TTLExpiredException"
        assert await entity.peek() == []

    async def test_a_message_expires_without_a_receiver(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity(**KEEPS_EXPIRED)
        await entity.receiver.close()
        await entity.put(short_lived("short"))
        await bus.advance(11)
        [dead] = await receive(entity.dead_letters)
        assert str(dead) == "short"

    async def test_the_default_of_the_entity_holds_for_messages_without_a_time(
        self, open_entity: OpenEntity, bus: Bus
    ) -> None:
        entity = await open_entity(default_message_time_to_live=10 * TICKS_PER_SECOND, **KEEPS_EXPIRED)
        await entity.put("short")
        await bus.advance(11)
        assert texts(await receive(entity.dead_letters)) == ["short"]

    async def test_the_default_of_the_entity_wins_over_a_longer_time_of_the_message(
        self, open_entity: OpenEntity, bus: Bus
    ) -> None:
        entity = await open_entity(default_message_time_to_live=10 * TICKS_PER_SECOND, **KEEPS_EXPIRED)
        await entity.put(short_lived("short", 1000))
        await bus.advance(11)
        assert texts(await receive(entity.dead_letters)) == ["short"]

    async def test_a_shorter_time_of_the_message_wins_over_the_default_of_the_entity(
        self, open_entity: OpenEntity, bus: Bus
    ) -> None:
        entity = await open_entity(default_message_time_to_live=1000 * TICKS_PER_SECOND, **KEEPS_EXPIRED)
        await entity.put(short_lived("short"), "long")
        await bus.advance(11)
        assert texts(await receive(entity.dead_letters)) == ["short"]
        assert await entity.peek_texts() == ["long"]

    async def test_a_locked_message_can_be_completed_after_its_time(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity(**KEEPS_EXPIRED)
        await entity.put(short_lived("short"))
        message = await entity.receive_one()
        await bus.advance(11)
        await entity.receiver.complete_message(message)
        assert entity.dead_letter_queue.counters.active == 0
        assert entity.queue.counters.active == 0

    async def test_an_expired_message_that_is_abandoned_is_not_redelivered(
        self, open_entity: OpenEntity, bus: Bus
    ) -> None:
        entity = await open_entity(**KEEPS_EXPIRED)
        await entity.put(short_lived("short"))
        message = await entity.receive_one()
        await bus.advance(11)
        await entity.receiver.abandon_message(message)
        [dead] = await receive(entity.dead_letters)
        assert dead.dead_letter_reason == "TTLExpiredException"
        assert await entity.peek() == []

    async def test_an_expired_message_whose_lock_expires_is_not_redelivered(
        self, open_entity: OpenEntity, bus: Bus
    ) -> None:
        entity = await open_entity(**KEEPS_EXPIRED)
        await entity.put(short_lived("short"))
        message = await entity.receive_one()
        await bus.advance(LOCK_OVER)
        with pytest.raises(MessageLockLostError):
            await entity.receiver.complete_message(message)
        assert texts(await receive(entity.dead_letters)) == ["short"]
        assert await entity.peek() == []

    async def test_a_deferred_message_expires_only_when_requested(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        message = await deferred(entity)
        await bus.advance(11)
        assert (await entity.peek_texts(), entity.queue.counters.deferred) == (["short"], 1)
        with pytest.raises(MessageNotFoundError):
            await entity.receiver.receive_deferred_messages(message.sequence_number)
        await until(lambda: entity.queue.counters.deferred == 0)
        assert await entity.peek() == []
        assert entity.queue.counters.bytes == 0

    async def test_an_expired_deferred_message_is_dead_lettered_when_requested(
        self, open_entity: OpenEntity, bus: Bus
    ) -> None:
        entity = await open_entity(**KEEPS_EXPIRED)
        message = await deferred(entity)
        await bus.advance(11)
        assert entity.dead_letter_queue.counters.active == 0
        with pytest.raises(MessageNotFoundError):
            await entity.receiver.receive_deferred_messages(message.sequence_number)
        [dead] = await receive(entity.dead_letters)
        assert dead.dead_letter_reason == "TTLExpiredException"
        assert await entity.peek() == []

    async def test_a_deferred_message_that_expires_while_it_is_locked_stays_deferred(
        self, open_entity: OpenEntity, bus: Bus
    ) -> None:
        entity = await open_entity(**KEEPS_EXPIRED)
        message = await deferred(entity)
        [again] = await entity.receiver.receive_deferred_messages(message.sequence_number)
        await bus.advance(11)
        await entity.receiver.abandon_message(again)
        assert (await entity.peek_texts(), entity.queue.counters.deferred) == (["short"], 1)
        assert entity.dead_letter_queue.counters.active == 0

    async def test_peek_skips_an_expired_message_that_is_still_locked(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        await entity.put(short_lived("short"), "long")
        await entity.receive_one()
        await bus.advance(11)
        assert texts(await entity.receiver.peek_messages(max_message_count=1)) == ["long"]

    async def test_time_to_live_of_a_scheduled_message_starts_when_it_is_due(
        self, open_entity: OpenEntity, bus: Bus
    ) -> None:
        entity = await open_entity()
        await entity.sender.schedule_messages(short_lived("short", 15), bus.clock.in_seconds(20))
        await bus.advance(21)
        await bus.advance(10)
        assert await entity.peek_texts() == ["short"]
        await bus.advance(6)
        assert await entity.peek() == []

    async def test_the_default_of_the_entity_holds_for_scheduled_messages(
        self, open_entity: OpenEntity, bus: Bus
    ) -> None:
        entity = await open_entity(default_message_time_to_live=10 * TICKS_PER_SECOND)
        await entity.sender.schedule_messages(ServiceBusMessage("short"), bus.clock.in_seconds(20))
        await bus.advance(21)
        assert await entity.peek_texts() == ["short"]
        await bus.advance(11)
        assert await entity.peek() == []

    async def test_a_dead_letter_does_not_expire(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity(**KEEPS_EXPIRED)
        await entity.put(short_lived("short"))
        await bus.advance(11)
        await bus.advance(60)
        assert texts(await receive(entity.dead_letters)) == ["short"]

    async def test_a_message_with_only_an_expiry_time_expires(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        await entity.sender.send_messages([living_until("short", 10), living_until("long", 3000)])
        await bus.advance(11)
        assert await entity.peek_texts() == ["long"]

    async def test_a_message_may_expire_at_the_maximum_time(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        await entity.sender.send_messages(living_until("sent", FARTHEST))
        due = {"TYPE": "TIMESTAMP", "VALUE": int(bus.clock() * 1000) + 10_000}
        scheduled = living_until("scheduled", FARTHEST)
        scheduled.annotations = {"x-opt-scheduled-enqueue-time": due}
        await entity.sender.send_messages(scheduled)
        await bus.advance(11)
        assert texts(await entity.receive(2)) == ["sent", "scheduled"]


class TestQueue(Expiring):
    entity = QueueUnderTest


class TestSubscription(Expiring):
    entity = SubscriptionUnderTest
