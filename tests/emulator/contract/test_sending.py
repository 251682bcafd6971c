"""Sending to a queue and to a topic."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusQuotaExceededError
from tests.emulator.contract.bus import (
    PATIENCE,
    Bus,
    EntityUnderTest,
    QueueUnderTest,
    SubscriptionUnderTest,
    receive,
    texts,
)
from tests.emulator.contract.conftest import OpenEntity

from twinbus.emulator import SubscriptionDescription
from twinbus.servicebus.durations import TICKS_PER_SECOND

pytestmark = pytest.mark.asyncio(loop_scope="module")

DETECTS_DUPLICATES = {
    "requires_duplicate_detection": True,
    "duplicate_detection_history_time_window": 20 * TICKS_PER_SECOND,
}


def without_id(text: str) -> AmqpAnnotatedMessage:
    """A message without an id, which the SDK's `ServiceBusMessage` always has."""
    return AmqpAnnotatedMessage(data_body=text.encode())


class Sending:
    entity: ClassVar[type[EntityUnderTest]]

    async def test_one_message_is_sent(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.sender.send_messages(ServiceBusMessage("one"))
        assert texts(await entity.receive()) == ["one"]

    async def test_a_list_arrives_in_its_order(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        sent = [str(number) for number in range(50)]
        await entity.sender.send_messages([ServiceBusMessage(text) for text in sent])
        assert texts(await entity.receive(50)) == sent

    async def test_a_batch_arrives_in_its_order(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        batch = await entity.sender.create_message_batch()
        sent = [str(number) for number in range(50)]
        for text in sent:
            batch.add_message(ServiceBusMessage(text))
        await entity.sender.send_messages(batch)
        assert texts(await entity.receive(50)) == sent

    async def test_single_messages_and_batches_keep_their_order(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("one")
        await entity.sender.send_messages([ServiceBusMessage("two"), ServiceBusMessage("three")])
        await entity.sender.send_messages(ServiceBusMessage("four"))
        assert texts(await entity.receive(4)) == ["one", "two", "three", "four"]

    async def test_a_message_has_its_enqueued_time(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        now = bus.clock.in_seconds(0)
        await entity.put("one")
        message = await entity.receive_one()
        assert abs(message.enqueued_time_utc - now) < timedelta(seconds=5)

    async def test_a_message_without_an_id_gets_one(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.sender.send_messages([without_id("one"), without_id("two")])
        first, second = await entity.receive(2)
        assert first.message_id
        assert second.message_id
        assert first.message_id != second.message_id

    async def test_a_message_keeps_its_own_id(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("one", message_id="mine")
        assert (await entity.receive_one()).message_id == "mine"

    async def test_concurrent_senders_lose_nothing(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        other = entity.new_sender()
        await bus.open(other)
        await asyncio.gather(
            *(
                sender.send_messages([ServiceBusMessage(f"{name}{number}") for number in range(20)])
                for name, sender in (("a", entity.sender), ("b", other))
            )
        )
        received = texts(await entity.receive(40))
        for name in "ab":
            assert [text for text in received if text[0] == name] == [f"{name}{number}" for number in range(20)]


class Scheduling:
    entity: ClassVar[type[EntityUnderTest]]

    async def test_a_scheduled_message_arrives_when_it_is_due(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        await entity.sender.schedule_messages(ServiceBusMessage("later"), bus.clock.in_seconds(20))
        await entity.put("now")
        assert texts(await entity.receive()) == ["now"]
        await bus.advance(21)
        assert texts(await entity.receive()) == ["later"]

    async def test_a_waiting_receive_gets_a_message_that_becomes_due(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        await entity.sender.schedule_messages(ServiceBusMessage("later"), bus.clock.in_seconds(20))
        waiting = asyncio.create_task(entity.receiver.receive_messages(max_wait_time=900))
        await bus.advance(21)
        async with asyncio.timeout(PATIENCE):
            assert texts(await waiting) == ["later"]

    async def test_the_enqueued_time_is_not_before_the_scheduled_time(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        due = bus.clock.in_seconds(20)
        await entity.sender.schedule_messages(ServiceBusMessage("later"), due)
        await bus.advance(21)
        message = await entity.receive_one()
        assert message.scheduled_enqueue_time_utc == due.replace(microsecond=due.microsecond // 1000 * 1000)
        assert message.enqueued_time_utc >= message.scheduled_enqueue_time_utc

    async def test_a_message_sent_with_a_scheduled_time_waits_for_it(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        await entity.put(ServiceBusMessage("later", scheduled_enqueue_time_utc=bus.clock.in_seconds(20)), "now")
        assert texts(await entity.receive()) == ["now"]
        await bus.advance(21)
        assert texts(await entity.receive()) == ["later"]

    async def test_a_scheduled_time_in_the_past_means_now(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        await entity.sender.schedule_messages(ServiceBusMessage("one"), bus.clock.in_seconds(-20))
        await entity.put(ServiceBusMessage("two", scheduled_enqueue_time_utc=bus.clock.in_seconds(-20)))
        assert sorted(texts(await entity.receive(2))) == ["one", "two"]

    async def test_scheduled_messages_arrive_in_the_order_of_their_times(
        self, open_entity: OpenEntity, bus: Bus
    ) -> None:
        entity = await open_entity()
        await entity.sender.schedule_messages(ServiceBusMessage("last"), bus.clock.in_seconds(20))
        await entity.sender.schedule_messages(ServiceBusMessage("first"), bus.clock.in_seconds(10))
        await bus.advance(21)
        assert texts(await entity.receive(2)) == ["first", "last"]

    async def test_several_messages_are_scheduled_at_once(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        messages = [ServiceBusMessage("one"), ServiceBusMessage("two")]
        numbers = await entity.sender.schedule_messages(messages, bus.clock.in_seconds(20))
        assert len(set(numbers)) == 2
        await bus.advance(21)
        assert texts(await entity.receive(2)) == ["one", "two"]

    async def test_a_cancelled_message_never_arrives(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        messages = [ServiceBusMessage("one"), ServiceBusMessage("two"), ServiceBusMessage("three")]
        numbers = await entity.sender.schedule_messages(messages, bus.clock.in_seconds(20))
        await entity.sender.cancel_scheduled_messages(numbers[:2])
        await bus.advance(21)
        assert texts(await entity.receive()) == ["three"]
        assert await entity.peek_texts() == ["three"]

    async def test_a_due_or_cancelled_message_cannot_be_cancelled(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        [cancelled] = await entity.sender.schedule_messages(ServiceBusMessage("one"), bus.clock.in_seconds(20))
        await entity.sender.cancel_scheduled_messages(cancelled)
        [due] = await entity.sender.schedule_messages(ServiceBusMessage("two"), bus.clock.in_seconds(20))
        await bus.advance(21)
        await entity.receive()
        for number in (cancelled, due, 1 << 50):
            with pytest.raises(Exception, match="message-not-found"):
                await entity.sender.cancel_scheduled_messages(number)

    async def test_cancelling_an_active_message_is_refused_and_leaves_it(
        self, open_entity: OpenEntity, bus: Bus
    ) -> None:
        entity = await open_entity()
        await entity.put("one")
        message = await entity.receive_one()
        with pytest.raises(Exception, match="message-not-found"):
            await entity.sender.cancel_scheduled_messages(message.sequence_number)
        assert await entity.peek_texts() == ["one"]


class DetectingDuplicates:
    entity: ClassVar[type[EntityUnderTest]]

    async def test_a_second_message_with_the_same_id_is_dropped_and_its_send_succeeds(
        self, open_entity: OpenEntity
    ) -> None:
        entity = await open_entity(**DETECTS_DUPLICATES)
        await entity.put("one", message_id="a")
        await entity.put("again", message_id="a")
        await entity.put("other", message_id="b")
        assert texts(await entity.receive(2)) == ["one", "other"]
        assert await entity.peek_texts() == ["one", "other"]

    async def test_duplicates_within_one_batch_are_dropped(self, open_entity: OpenEntity) -> None:
        entity = await open_entity(**DETECTS_DUPLICATES)
        await entity.put("one", "again", message_id="a")
        await entity.put("other", message_id="b")
        assert texts(await entity.receive(2)) == ["one", "other"]

    async def test_duplicates_are_dropped_even_after_the_first_was_completed(self, open_entity: OpenEntity) -> None:
        entity = await open_entity(**DETECTS_DUPLICATES)
        await entity.put("one", message_id="a")
        await entity.receiver.complete_message(await entity.receive_one())
        await entity.put("again", message_id="a")
        assert await entity.peek() == []

    async def test_after_the_window_the_same_id_is_accepted_again(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity(**DETECTS_DUPLICATES)
        await entity.put("one", message_id="a")
        await bus.advance(21)
        await entity.put("again", message_id="a")
        assert texts(await entity.receive(2)) == ["one", "again"]

    async def test_messages_without_an_id_are_never_duplicates(self, open_entity: OpenEntity) -> None:
        entity = await open_entity(**DETECTS_DUPLICATES)
        await entity.sender.send_messages(without_id("one"))
        await entity.sender.send_messages(without_id("two"))
        assert texts(await entity.receive(2)) == ["one", "two"]

    async def test_duplicate_detection_includes_scheduled_messages(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity(**DETECTS_DUPLICATES)
        await entity.sender.schedule_messages(ServiceBusMessage("later", message_id="a"), bus.clock.in_seconds(10))
        await entity.put("now", message_id="a")
        await entity.put("other", message_id="b")
        await entity.sender.schedule_messages(
            ServiceBusMessage("other later", message_id="b"), bus.clock.in_seconds(10)
        )
        await bus.advance(11)
        assert sorted(texts(await entity.receive(2))) == ["later", "other"]
        assert len(await entity.peek()) == 2

    async def test_without_duplicate_detection_the_same_id_is_accepted_twice(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("one", message_id="a")
        await entity.put("again", message_id="a")
        assert texts(await entity.receive(2)) == ["one", "again"]


class Limits:
    entity: ClassVar[type[EntityUnderTest]]

    async def test_a_message_over_the_size_limit_is_refused(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        entity.entry.limits.max_message_bytes = 2000
        with pytest.raises(MessageSizeExceededError):
            await entity.sender.send_messages(ServiceBusMessage(b"x" * 2000))
        await entity.sender.send_messages(ServiceBusMessage(b"x" * 1500))
        assert len(await entity.peek()) == 1

    async def test_a_batch_with_a_message_over_the_size_limit_is_refused_as_a_whole(
        self, open_entity: OpenEntity
    ) -> None:
        entity = await open_entity()
        entity.entry.limits.max_message_bytes = 2000
        with pytest.raises(MessageSizeExceededError):
            await entity.sender.send_messages([ServiceBusMessage("small"), ServiceBusMessage(b"x" * 2000)])
        assert await entity.peek() == []

    async def test_the_default_limit_is_256_kilobytes(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        with pytest.raises(MessageSizeExceededError):
            await entity.sender.send_messages(ServiceBusMessage(b"x" * 256 * 1024))
        await entity.sender.send_messages(ServiceBusMessage(b"x" * 255 * 1024))
        [message] = await entity.receive()
        assert sum(map(len, message.body)) == 255 * 1024

    async def test_client_gets_the_size_limit_for_batches(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        batch = await entity.sender.create_message_batch()
        assert batch.max_size_in_bytes == 256 * 1024
        with pytest.raises(MessageSizeExceededError):
            batch.add_message(ServiceBusMessage(b"x" * 256 * 1024))

    async def test_a_scheduled_message_over_the_size_limit_is_refused(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        entity.entry.limits.max_message_bytes = 2000
        with pytest.raises(MessageSizeExceededError):
            await entity.sender.schedule_messages(ServiceBusMessage(b"x" * 2000), bus.clock.in_seconds(20))
        assert entity.entry.counters.scheduled == 0

    async def test_a_full_entity_refuses_messages_until_there_is_room(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        entity.entry.limits.max_bytes = 3000
        await entity.sender.send_messages(ServiceBusMessage(b"x" * 2000))
        with pytest.raises(ServiceBusQuotaExceededError):
            await entity.sender.send_messages(ServiceBusMessage(b"x" * 1500))
        await entity.receiver.complete_message(await entity.receive_one())
        await entity.sender.send_messages(ServiceBusMessage(b"x" * 1500))
        assert len(await entity.peek()) == 1

    async def test_a_batch_that_does_not_fit_is_refused_as_a_whole(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        entity.entry.limits.max_bytes = 3000
        with pytest.raises(ServiceBusQuotaExceededError):
            await entity.sender.send_messages([ServiceBusMessage(b"x" * 1200) for _ in range(3)])
        assert await entity.peek() == []

    async def test_dead_letters_count_towards_the_size(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        entity.entry.limits.max_bytes = 3000
        await entity.sender.send_messages(ServiceBusMessage(b"x" * 2000))
        await entity.receiver.dead_letter_message(await entity.receive_one())
        with pytest.raises(ServiceBusQuotaExceededError):
            await entity.sender.send_messages(ServiceBusMessage(b"x" * 1500))

    async def test_too_long_a_message_id_is_refused(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        # The SDK limits the property to 128 characters, but not the raw message.
        message = ServiceBusMessage("one", message_id="fits")
        message.raw_amqp_message.properties.message_id = "x" * 129
        with pytest.raises(Exception, match="message id has 129 characters; the limit is 128"):
            await entity.sender.send_messages(message)


class TestQueue(Sending, Scheduling, DetectingDuplicates, Limits):
    entity = QueueUnderTest

    async def test_a_scheduled_message_can_be_peeked(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        [number] = await entity.sender.schedule_messages(ServiceBusMessage("later"), bus.clock.in_seconds(20))
        [peeked] = await entity.peek()
        assert str(peeked) == "later"
        assert peeked.sequence_number == number
        assert peeked.state == ServiceBusMessageState.SCHEDULED

    async def test_a_due_message_has_a_new_sequence_number(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        [number] = await entity.sender.schedule_messages(ServiceBusMessage("later"), bus.clock.in_seconds(20))
        await entity.put("now")
        await bus.advance(21)
        now, later = await entity.receive(2)
        assert number < now.sequence_number < later.sequence_number


class TestTopic(Sending, Scheduling, DetectingDuplicates, Limits):
    entity = SubscriptionUnderTest

    async def _second(self, entity: Any) -> Any:
        """Open another subscription of the entity's topic."""
        bus: Bus = entity.bus
        await bus.namespace.create_subscription(SubscriptionDescription(entity.topic, "second"))
        receiver = bus.client.get_subscription_receiver(entity.topic, "second")
        await bus.open(receiver)
        return receiver

    async def test_each_subscription_gets_every_message(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        second = await self._second(entity)
        await entity.put("one", "two")
        assert texts(await entity.receive(2)) == ["one", "two"]
        assert texts(await receive(second, 2)) == ["one", "two"]

    async def test_subscriptions_settle_their_copies_independently(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        second = await self._second(entity)
        await entity.put("one", "two")
        first, other = await entity.receive(2)
        await entity.receiver.complete_message(first)
        await entity.receiver.dead_letter_message(other)
        assert texts(await receive(second, 2)) == ["one", "two"]

    async def test_each_subscription_gets_a_scheduled_message(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        second = await self._second(entity)
        await entity.sender.schedule_messages(ServiceBusMessage("later"), bus.clock.in_seconds(20))
        await bus.advance(21)
        assert texts(await entity.receive()) == ["later"]
        assert texts(await receive(second)) == ["later"]

    async def test_a_subscription_gets_only_what_is_sent_after_it_was_made(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("before")
        second = await self._second(entity)
        await entity.put("after")
        assert texts(await receive(second)) == ["after"]
        assert texts(await entity.receive(2)) == ["before", "after"]

    async def test_a_topic_without_subscriptions_takes_messages(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        await bus.namespace.delete_subscription(entity.topic, "all")
        await entity.put("one")
        assert entity.entry.activity.received == 1
