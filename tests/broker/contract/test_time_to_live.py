"""Time to live: messages that nobody received in time are dropped, or dead-lettered if the entity says so."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageLockLostError, MessageNotFoundError
from tests.broker.contract.bus import LOCK_OVER, Bus, Place, QueuePlace, SubscriptionPlace, receive, texts, until
from tests.broker.contract.conftest import OpenPlace

from twinbus.broker.durations import TICKS_PER_SECOND

pytestmark = pytest.mark.asyncio(loop_scope="module")

FARTHEST = (1 << 63) // 1000 - 1001  # seconds; a little more does not fit an AMQP timestamp
KEEPS_EXPIRED = {"dead_lettering_on_message_expiration": True, "dead_letters": True}


def short_lived(text: str, seconds: int = 10, **properties: Any) -> ServiceBusMessage:
    return ServiceBusMessage(text, time_to_live=timedelta(seconds=seconds), **properties)


def living_until(text: str, seconds: int) -> AmqpAnnotatedMessage:
    """A message without a time to live in its header, as some clients send what does not fit there."""
    times = {"creation_time": 1_000_000, "absolute_expiry_time": 1_000_000 + seconds * 1000}
    return AmqpAnnotatedMessage(data_body=text.encode(), properties=times)


async def deferred(place: Place) -> ServiceBusReceivedMessage:
    """A message that lives for ten seconds and was set aside."""
    await place.put(short_lived("short"))
    message = await place.receive_one()
    await place.receiver.defer_message(message)
    return message


class Expiring:
    place: ClassVar[type[Place]]

    async def test_an_expired_message_is_dropped(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        await place.put(short_lived("short"), "long")
        await bus.advance(11)
        assert texts(await place.receive()) == ["long"]
        assert await place.peek_texts() == ["long"]
        assert place.dead_letter_queue.counters.active == 0

    async def test_a_message_is_there_until_it_expires(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        await place.put(short_lived("short", 20))
        await bus.advance(5)
        message = await place.receive_one()
        assert str(message) == "short"
        assert message.time_to_live == timedelta(seconds=20)
        assert message.expires_at_utc == message.enqueued_time_utc + timedelta(seconds=20)

    async def test_an_expired_message_is_dead_lettered_with_a_reason(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place(**KEEPS_EXPIRED)
        await place.put(short_lived("short"))
        await bus.advance(11)
        [dead] = await receive(place.dead_letters)
        assert str(dead) == "short"
        assert dead.dead_letter_reason == "TTLExpiredException"
        assert await place.peek() == []

    async def test_a_message_expires_though_nobody_receives(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place(**KEEPS_EXPIRED)
        await place.receiver.close()
        await place.put(short_lived("short"))
        await bus.advance(11)
        [dead] = await receive(place.dead_letters)
        assert str(dead) == "short"

    async def test_the_default_of_the_entity_holds_for_messages_without_a_time(
        self, open_place: OpenPlace, bus: Bus
    ) -> None:
        place = await open_place(default_message_time_to_live=10 * TICKS_PER_SECOND, **KEEPS_EXPIRED)
        await place.put("short")
        await bus.advance(11)
        assert texts(await receive(place.dead_letters)) == ["short"]

    async def test_the_default_of_the_entity_wins_over_a_longer_time_of_the_message(
        self, open_place: OpenPlace, bus: Bus
    ) -> None:
        place = await open_place(default_message_time_to_live=10 * TICKS_PER_SECOND, **KEEPS_EXPIRED)
        await place.put(short_lived("short", 1000))
        await bus.advance(11)
        assert texts(await receive(place.dead_letters)) == ["short"]

    async def test_a_shorter_time_of_the_message_wins_over_the_default_of_the_entity(
        self, open_place: OpenPlace, bus: Bus
    ) -> None:
        place = await open_place(default_message_time_to_live=1000 * TICKS_PER_SECOND, **KEEPS_EXPIRED)
        await place.put(short_lived("short"), "long")
        await bus.advance(11)
        assert texts(await receive(place.dead_letters)) == ["short"]
        assert await place.peek_texts() == ["long"]

    async def test_a_locked_message_can_be_completed_after_its_time(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place(**KEEPS_EXPIRED)
        await place.put(short_lived("short"))
        message = await place.receive_one()
        await bus.advance(11)
        await place.receiver.complete_message(message)
        assert place.dead_letter_queue.counters.active == 0
        assert place.queue.counters.active == 0

    async def test_an_expired_message_that_is_abandoned_does_not_come_again(
        self, open_place: OpenPlace, bus: Bus
    ) -> None:
        place = await open_place(**KEEPS_EXPIRED)
        await place.put(short_lived("short"))
        message = await place.receive_one()
        await bus.advance(11)
        await place.receiver.abandon_message(message)
        [dead] = await receive(place.dead_letters)
        assert dead.dead_letter_reason == "TTLExpiredException"
        assert await place.peek() == []

    async def test_an_expired_message_whose_lock_runs_out_does_not_come_again(
        self, open_place: OpenPlace, bus: Bus
    ) -> None:
        place = await open_place(**KEEPS_EXPIRED)
        await place.put(short_lived("short"))
        message = await place.receive_one()
        await bus.advance(LOCK_OVER)
        with pytest.raises(MessageLockLostError):
            await place.receiver.complete_message(message)
        assert texts(await receive(place.dead_letters)) == ["short"]
        assert await place.peek() == []

    async def test_a_deferred_message_expires_when_it_is_asked_for_and_not_before(
        self, open_place: OpenPlace, bus: Bus
    ) -> None:
        place = await open_place()
        message = await deferred(place)
        await bus.advance(11)
        assert (await place.peek_texts(), place.queue.counters.deferred) == (["short"], 1)
        with pytest.raises(MessageNotFoundError):
            await place.receiver.receive_deferred_messages(message.sequence_number)
        await until(lambda: place.queue.counters.deferred == 0)
        assert await place.peek() == []
        assert place.queue.counters.bytes == 0

    async def test_an_expired_deferred_message_that_is_asked_for_is_dead_lettered(
        self, open_place: OpenPlace, bus: Bus
    ) -> None:
        place = await open_place(**KEEPS_EXPIRED)
        message = await deferred(place)
        await bus.advance(11)
        assert place.dead_letter_queue.counters.active == 0
        with pytest.raises(MessageNotFoundError):
            await place.receiver.receive_deferred_messages(message.sequence_number)
        [dead] = await receive(place.dead_letters)
        assert dead.dead_letter_reason == "TTLExpiredException"
        assert await place.peek() == []

    async def test_a_deferred_message_that_expires_while_it_is_locked_stays_deferred(
        self, open_place: OpenPlace, bus: Bus
    ) -> None:
        place = await open_place(**KEEPS_EXPIRED)
        message = await deferred(place)
        [again] = await place.receiver.receive_deferred_messages(message.sequence_number)
        await bus.advance(11)
        await place.receiver.abandon_message(again)
        assert (await place.peek_texts(), place.queue.counters.deferred) == (["short"], 1)
        assert place.dead_letter_queue.counters.active == 0

    async def test_a_peek_looks_past_an_expired_message_that_is_still_locked(
        self, open_place: OpenPlace, bus: Bus
    ) -> None:
        place = await open_place()
        await place.put(short_lived("short"), "long")
        await place.receive_one()
        await bus.advance(11)
        assert texts(await place.receiver.peek_messages(max_message_count=1)) == ["long"]

    async def test_the_time_of_a_scheduled_message_begins_when_it_is_due(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        await place.sender.schedule_messages(short_lived("short", 15), bus.clock.in_seconds(20))
        await bus.advance(21)
        await bus.advance(10)
        assert await place.peek_texts() == ["short"]
        await bus.advance(6)
        assert await place.peek() == []

    async def test_the_default_of_the_entity_holds_for_scheduled_messages(
        self, open_place: OpenPlace, bus: Bus
    ) -> None:
        place = await open_place(default_message_time_to_live=10 * TICKS_PER_SECOND)
        await place.sender.schedule_messages(ServiceBusMessage("short"), bus.clock.in_seconds(20))
        await bus.advance(21)
        assert await place.peek_texts() == ["short"]
        await bus.advance(11)
        assert await place.peek() == []

    async def test_a_dead_letter_does_not_expire(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place(**KEEPS_EXPIRED)
        await place.put(short_lived("short"))
        await bus.advance(11)
        await bus.advance(60)
        assert texts(await receive(place.dead_letters)) == ["short"]

    async def test_a_message_that_only_says_when_it_expires_does_so(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        await place.sender.send_messages([living_until("short", 10), living_until("long", 3000)])
        await bus.advance(11)
        assert await place.peek_texts() == ["long"]

    async def test_a_message_may_expire_in_the_farthest_future(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        await place.sender.send_messages(living_until("sent", FARTHEST))
        due = {"TYPE": "TIMESTAMP", "VALUE": int(bus.clock() * 1000) + 10_000}
        scheduled = living_until("scheduled", FARTHEST)
        scheduled.annotations = {"x-opt-scheduled-enqueue-time": due}
        await place.sender.send_messages(scheduled)
        await bus.advance(11)
        assert texts(await place.receive(2)) == ["sent", "scheduled"]


class TestQueue(Expiring):
    place = QueuePlace


class TestSubscription(Expiring):
    place = SubscriptionPlace
