"""Sending to a queue and to a topic."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusQuotaExceededError
from tests.broker.contract.bus import PATIENCE, Bus, Place, QueuePlace, SubscriptionPlace, receive, texts
from tests.broker.contract.conftest import OpenPlace

from twinbus.broker import SubscriptionDescription
from twinbus.broker.durations import TICKS_PER_SECOND

pytestmark = pytest.mark.asyncio(loop_scope="module")

DETECTS_DUPLICATES = {
    "requires_duplicate_detection": True,
    "duplicate_detection_history_time_window": 20 * TICKS_PER_SECOND,
}


def without_id(text: str) -> AmqpAnnotatedMessage:
    """The SDK's simple message always has an id."""
    return AmqpAnnotatedMessage(data_body=text.encode())


class Sending:
    place: ClassVar[type[Place]]

    async def test_one_message_is_sent(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.sender.send_messages(ServiceBusMessage("one"))
        assert texts(await place.receive()) == ["one"]

    async def test_a_list_arrives_in_its_order(self, open_place: OpenPlace) -> None:
        place = await open_place()
        sent = [str(number) for number in range(50)]
        await place.sender.send_messages([ServiceBusMessage(text) for text in sent])
        assert texts(await place.receive(50)) == sent

    async def test_a_batch_arrives_in_its_order(self, open_place: OpenPlace) -> None:
        place = await open_place()
        batch = await place.sender.create_message_batch()
        sent = [str(number) for number in range(50)]
        for text in sent:
            batch.add_message(ServiceBusMessage(text))
        await place.sender.send_messages(batch)
        assert texts(await place.receive(50)) == sent

    async def test_single_messages_and_batches_keep_their_order(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("one")
        await place.sender.send_messages([ServiceBusMessage("two"), ServiceBusMessage("three")])
        await place.sender.send_messages(ServiceBusMessage("four"))
        assert texts(await place.receive(4)) == ["one", "two", "three", "four"]

    async def test_a_message_carries_when_it_was_enqueued(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        now = bus.clock.in_seconds(0)
        await place.put("one")
        message = await place.receive_one()
        assert abs(message.enqueued_time_utc - now) < timedelta(seconds=5)

    async def test_a_message_without_an_id_is_given_one(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.sender.send_messages([without_id("one"), without_id("two")])
        first, second = await place.receive(2)
        assert first.message_id
        assert second.message_id
        assert first.message_id != second.message_id

    async def test_a_message_keeps_its_own_id(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("one", message_id="mine")
        assert (await place.receive_one()).message_id == "mine"

    async def test_senders_at_the_same_time_lose_nothing(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        other = place.new_sender()
        await bus.open(other)
        await asyncio.gather(
            *(
                sender.send_messages([ServiceBusMessage(f"{name}{number}") for number in range(20)])
                for name, sender in (("a", place.sender), ("b", other))
            )
        )
        received = texts(await place.receive(40))
        for name in "ab":
            assert [text for text in received if text[0] == name] == [f"{name}{number}" for number in range(20)]


class Scheduling:
    place: ClassVar[type[Place]]

    async def test_a_scheduled_message_arrives_when_it_is_due(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        await place.sender.schedule_messages(ServiceBusMessage("later"), bus.clock.in_seconds(20))
        await place.put("now")
        assert texts(await place.receive()) == ["now"]
        await bus.advance(21)
        assert texts(await place.receive()) == ["later"]

    async def test_a_receive_that_waits_gets_a_message_that_becomes_due(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        await place.sender.schedule_messages(ServiceBusMessage("later"), bus.clock.in_seconds(20))
        waiting = asyncio.create_task(place.receiver.receive_messages(max_wait_time=900))
        await bus.advance(21)
        async with asyncio.timeout(PATIENCE):
            assert texts(await waiting) == ["later"]

    async def test_the_enqueued_time_is_not_before_the_scheduled_time(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        due = bus.clock.in_seconds(20)
        await place.sender.schedule_messages(ServiceBusMessage("later"), due)
        await bus.advance(21)
        message = await place.receive_one()
        assert message.scheduled_enqueue_time_utc == due.replace(microsecond=due.microsecond // 1000 * 1000)
        assert message.enqueued_time_utc >= message.scheduled_enqueue_time_utc

    async def test_a_message_sent_with_a_scheduled_time_waits_for_it(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        await place.put(ServiceBusMessage("later", scheduled_enqueue_time_utc=bus.clock.in_seconds(20)), "now")
        assert texts(await place.receive()) == ["now"]
        await bus.advance(21)
        assert texts(await place.receive()) == ["later"]

    async def test_a_scheduled_time_that_is_over_means_now(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        await place.sender.schedule_messages(ServiceBusMessage("one"), bus.clock.in_seconds(-20))
        await place.put(ServiceBusMessage("two", scheduled_enqueue_time_utc=bus.clock.in_seconds(-20)))
        assert sorted(texts(await place.receive(2))) == ["one", "two"]

    async def test_scheduled_messages_arrive_in_the_order_of_their_times(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        await place.sender.schedule_messages(ServiceBusMessage("last"), bus.clock.in_seconds(20))
        await place.sender.schedule_messages(ServiceBusMessage("first"), bus.clock.in_seconds(10))
        await bus.advance(21)
        assert texts(await place.receive(2)) == ["first", "last"]

    async def test_several_messages_are_scheduled_at_once(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        messages = [ServiceBusMessage("one"), ServiceBusMessage("two")]
        numbers = await place.sender.schedule_messages(messages, bus.clock.in_seconds(20))
        assert len(set(numbers)) == 2
        await bus.advance(21)
        assert texts(await place.receive(2)) == ["one", "two"]

    async def test_a_cancelled_message_never_arrives(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        messages = [ServiceBusMessage("one"), ServiceBusMessage("two"), ServiceBusMessage("three")]
        numbers = await place.sender.schedule_messages(messages, bus.clock.in_seconds(20))
        await place.sender.cancel_scheduled_messages(numbers[:2])
        await bus.advance(21)
        assert texts(await place.receive()) == ["three"]
        assert await place.peek_texts() == ["three"]

    async def test_what_is_already_due_or_cancelled_cannot_be_cancelled(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        [cancelled] = await place.sender.schedule_messages(ServiceBusMessage("one"), bus.clock.in_seconds(20))
        await place.sender.cancel_scheduled_messages(cancelled)
        [due] = await place.sender.schedule_messages(ServiceBusMessage("two"), bus.clock.in_seconds(20))
        await bus.advance(21)
        await place.receive()
        for number in (cancelled, due, 1 << 50):
            with pytest.raises(Exception, match="message-not-found"):
                await place.sender.cancel_scheduled_messages(number)

    async def test_cancelling_an_active_message_is_refused_and_leaves_it(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        await place.put("one")
        message = await place.receive_one()
        with pytest.raises(Exception, match="message-not-found"):
            await place.sender.cancel_scheduled_messages(message.sequence_number)
        assert await place.peek_texts() == ["one"]


class DetectingDuplicates:
    place: ClassVar[type[Place]]

    async def test_a_second_message_with_the_same_id_is_dropped_and_its_send_succeeds(
        self, open_place: OpenPlace
    ) -> None:
        place = await open_place(**DETECTS_DUPLICATES)
        await place.put("one", message_id="a")
        await place.put("again", message_id="a")
        await place.put("other", message_id="b")
        assert texts(await place.receive(2)) == ["one", "other"]
        assert await place.peek_texts() == ["one", "other"]

    async def test_duplicates_within_one_batch_are_dropped(self, open_place: OpenPlace) -> None:
        place = await open_place(**DETECTS_DUPLICATES)
        await place.put("one", "again", message_id="a")
        await place.put("other", message_id="b")
        assert texts(await place.receive(2)) == ["one", "other"]

    async def test_duplicates_are_dropped_even_after_the_first_was_completed(self, open_place: OpenPlace) -> None:
        place = await open_place(**DETECTS_DUPLICATES)
        await place.put("one", message_id="a")
        await place.receiver.complete_message(await place.receive_one())
        await place.put("again", message_id="a")
        assert await place.peek() == []

    async def test_after_the_window_the_same_id_is_taken_again(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place(**DETECTS_DUPLICATES)
        await place.put("one", message_id="a")
        await bus.advance(21)
        await place.put("again", message_id="a")
        assert texts(await place.receive(2)) == ["one", "again"]

    async def test_messages_without_an_id_are_never_duplicates(self, open_place: OpenPlace) -> None:
        place = await open_place(**DETECTS_DUPLICATES)
        await place.sender.send_messages(without_id("one"))
        await place.sender.send_messages(without_id("two"))
        assert texts(await place.receive(2)) == ["one", "two"]

    async def test_a_scheduled_message_takes_part_in_it(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place(**DETECTS_DUPLICATES)
        await place.sender.schedule_messages(ServiceBusMessage("later", message_id="a"), bus.clock.in_seconds(10))
        await place.put("now", message_id="a")
        await place.put("other", message_id="b")
        await place.sender.schedule_messages(ServiceBusMessage("other later", message_id="b"), bus.clock.in_seconds(10))
        await bus.advance(11)
        assert sorted(texts(await place.receive(2))) == ["later", "other"]
        assert len(await place.peek()) == 2

    async def test_without_it_the_same_id_is_taken_twice(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("one", message_id="a")
        await place.put("again", message_id="a")
        assert texts(await place.receive(2)) == ["one", "again"]


class Limits:
    place: ClassVar[type[Place]]

    async def test_a_message_over_the_size_limit_is_refused(self, open_place: OpenPlace) -> None:
        place = await open_place()
        place.entry.limits.max_message_bytes = 2000
        with pytest.raises(MessageSizeExceededError):
            await place.sender.send_messages(ServiceBusMessage(b"x" * 2000))
        await place.sender.send_messages(ServiceBusMessage(b"x" * 1500))
        assert len(await place.peek()) == 1

    async def test_a_batch_with_a_message_over_the_size_limit_is_refused_as_a_whole(
        self, open_place: OpenPlace
    ) -> None:
        place = await open_place()
        place.entry.limits.max_message_bytes = 2000
        with pytest.raises(MessageSizeExceededError):
            await place.sender.send_messages([ServiceBusMessage("small"), ServiceBusMessage(b"x" * 2000)])
        assert await place.peek() == []

    async def test_the_default_limit_is_256_kilobytes(self, open_place: OpenPlace) -> None:
        place = await open_place()
        with pytest.raises(MessageSizeExceededError):
            await place.sender.send_messages(ServiceBusMessage(b"x" * 256 * 1024))
        await place.sender.send_messages(ServiceBusMessage(b"x" * 255 * 1024))
        [message] = await place.receive()
        assert sum(map(len, message.body)) == 255 * 1024

    async def test_the_client_learns_the_limit_for_its_batches(self, open_place: OpenPlace) -> None:
        place = await open_place()
        batch = await place.sender.create_message_batch()
        assert batch.max_size_in_bytes == 256 * 1024
        with pytest.raises(MessageSizeExceededError):
            batch.add_message(ServiceBusMessage(b"x" * 256 * 1024))

    async def test_a_scheduled_message_over_the_size_limit_is_refused(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        place.entry.limits.max_message_bytes = 2000
        with pytest.raises(MessageSizeExceededError):
            await place.sender.schedule_messages(ServiceBusMessage(b"x" * 2000), bus.clock.in_seconds(20))
        assert place.entry.counters.scheduled == 0

    async def test_a_full_entity_refuses_messages_until_there_is_room(self, open_place: OpenPlace) -> None:
        place = await open_place()
        place.entry.limits.max_bytes = 3000
        await place.sender.send_messages(ServiceBusMessage(b"x" * 2000))
        with pytest.raises(ServiceBusQuotaExceededError):
            await place.sender.send_messages(ServiceBusMessage(b"x" * 1500))
        await place.receiver.complete_message(await place.receive_one())
        await place.sender.send_messages(ServiceBusMessage(b"x" * 1500))
        assert len(await place.peek()) == 1

    async def test_a_batch_that_does_not_fit_is_refused_as_a_whole(self, open_place: OpenPlace) -> None:
        place = await open_place()
        place.entry.limits.max_bytes = 3000
        with pytest.raises(ServiceBusQuotaExceededError):
            await place.sender.send_messages([ServiceBusMessage(b"x" * 1200) for _ in range(3)])
        assert await place.peek() == []

    async def test_dead_letters_count_towards_the_size(self, open_place: OpenPlace) -> None:
        place = await open_place()
        place.entry.limits.max_bytes = 3000
        await place.sender.send_messages(ServiceBusMessage(b"x" * 2000))
        await place.receiver.dead_letter_message(await place.receive_one())
        with pytest.raises(ServiceBusQuotaExceededError):
            await place.sender.send_messages(ServiceBusMessage(b"x" * 1500))

    async def test_too_long_a_message_id_is_refused(self, open_place: OpenPlace) -> None:
        place = await open_place()
        # The SDK itself allows 128 characters at most when the property is set, but not in the raw message.
        message = ServiceBusMessage("one", message_id="fits")
        message.raw_amqp_message.properties.message_id = "x" * 129
        with pytest.raises(Exception, match="message id has 129 characters; the limit is 128"):
            await place.sender.send_messages(message)


class TestQueue(Sending, Scheduling, DetectingDuplicates, Limits):
    place = QueuePlace

    async def test_a_scheduled_message_can_be_peeked(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        [number] = await place.sender.schedule_messages(ServiceBusMessage("later"), bus.clock.in_seconds(20))
        [peeked] = await place.peek()
        assert str(peeked) == "later"
        assert peeked.sequence_number == number
        assert peeked.state == ServiceBusMessageState.SCHEDULED

    async def test_a_due_message_has_a_new_sequence_number(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        [number] = await place.sender.schedule_messages(ServiceBusMessage("later"), bus.clock.in_seconds(20))
        await place.put("now")
        await bus.advance(21)
        now, later = await place.receive(2)
        assert number < now.sequence_number < later.sequence_number


class TestTopic(Sending, Scheduling, DetectingDuplicates, Limits):
    place = SubscriptionPlace

    async def _second(self, place: Any) -> Any:
        """One more subscription of the place's topic."""
        bus: Bus = place.bus
        await bus.namespace.create_subscription(SubscriptionDescription(place.topic, "second"))
        receiver = bus.client.get_subscription_receiver(place.topic, "second")
        await bus.open(receiver)
        return receiver

    async def test_each_subscription_gets_every_message(self, open_place: OpenPlace) -> None:
        place = await open_place()
        second = await self._second(place)
        await place.put("one", "two")
        assert texts(await place.receive(2)) == ["one", "two"]
        assert texts(await receive(second, 2)) == ["one", "two"]

    async def test_what_one_subscription_does_with_a_message_does_not_touch_the_others(
        self, open_place: OpenPlace
    ) -> None:
        place = await open_place()
        second = await self._second(place)
        await place.put("one", "two")
        first, other = await place.receive(2)
        await place.receiver.complete_message(first)
        await place.receiver.dead_letter_message(other)
        assert texts(await receive(second, 2)) == ["one", "two"]

    async def test_each_subscription_gets_a_scheduled_message(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        second = await self._second(place)
        await place.sender.schedule_messages(ServiceBusMessage("later"), bus.clock.in_seconds(20))
        await bus.advance(21)
        assert texts(await place.receive()) == ["later"]
        assert texts(await receive(second)) == ["later"]

    async def test_a_subscription_gets_only_what_is_sent_after_it_was_made(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("before")
        second = await self._second(place)
        await place.put("after")
        assert texts(await receive(second)) == ["after"]
        assert texts(await place.receive(2)) == ["before", "after"]

    async def test_a_topic_without_subscriptions_takes_messages(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        await bus.namespace.delete_subscription(place.topic, "all")
        await place.put("one")
        assert place.entry.activity.received == 1
