"""Receiving from queues, subscriptions and their dead-letter queues, which all behave the same."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import ClassVar

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState
from azure.servicebus.exceptions import MessageLockLostError, MessageNotFoundError
from tests.emulator.contract.bus import (
    DELETE,
    LOCK_OVER,
    LOCK_SECONDS,
    PATIENCE,
    Bus,
    DeadLetterQueueUnderTest,
    EntityUnderTest,
    QueueUnderTest,
    SubscriptionDeadLetterQueueUnderTest,
    SubscriptionUnderTest,
    nothing_comes,
    peek,
    receive,
    texts,
)
from tests.emulator.contract.conftest import OpenEntity

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUARTER_OF_AN_HOUR = 15 * 60


class Receiving:
    """Behaviour of every entity that messages are received from."""

    entity: ClassVar[type[EntityUnderTest]]

    async def test_messages_are_received_in_order(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("one", "two", "three")
        received = await entity.receive(3)
        assert texts(received) == ["one", "two", "three"]
        numbers = [message.sequence_number for message in received]
        assert numbers == sorted(set(numbers))

    async def test_receive_returns_at_most_the_requested_count(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("one", "two", "three")
        received = await entity.receiver.receive_messages(max_message_count=2, max_wait_time=PATIENCE)
        assert texts(received) == ["one", "two"]

    async def test_a_received_message_is_locked_for_the_lock_duration(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        await entity.put("one")
        before = bus.clock.in_seconds(LOCK_SECONDS)
        message = await entity.receive_one()
        # The message may have been delivered to the receiver when it was sent.
        assert abs(message.locked_until_utc - before) < timedelta(seconds=5)
        assert message.lock_token is not None

    async def test_a_locked_message_does_not_reach_another_receiver(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("one", "two")
        assert texts(await entity.receive(1)) == ["one"]
        other = await entity.open_receiver()
        assert texts(await receive(other)) == ["two"]
        assert await nothing_comes(other)

    async def test_a_completed_message_is_gone_for_good(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        await entity.put("one", "two")
        await entity.receiver.complete_message(await entity.receive_one())
        await bus.advance(LOCK_OVER)
        assert await entity.peek_texts() == ["two"]
        assert texts(await entity.receive()) == ["two"]

    async def test_an_abandoned_message_is_redelivered_in_order(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("one", "two", "three")
        first, second = await entity.receive(2)
        await entity.receiver.abandon_message(first)
        again = await entity.receive_one()
        assert str(again) == "one"
        assert again.sequence_number == first.sequence_number
        await entity.receiver.complete_message(second)

    async def test_each_abandoning_raises_the_delivery_count(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("one")
        counts = []
        for _ in range(3):
            message = await entity.receive_one()
            counts.append(message.delivery_count)
            await entity.receiver.abandon_message(message)
        assert counts == [0, 1, 2]

    async def test_an_expired_lock_returns_the_message_and_counts_the_delivery(
        self, open_entity: OpenEntity, bus: Bus
    ) -> None:
        entity = await open_entity()
        await entity.put("one")
        first = await entity.receive_one()
        await bus.advance(LOCK_OVER)
        again = await entity.receive_one()
        assert str(again) == "one"
        assert again.delivery_count == first.delivery_count + 1
        assert again.lock_token != first.lock_token

    async def test_a_renewed_lock_lasts_longer(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        await entity.put("one")
        message = await entity.receive_one()
        await bus.advance(LOCK_SECONDS - 10)
        until = await entity.receiver.renew_message_lock(message)
        assert abs(until - bus.clock.in_seconds(LOCK_SECONDS)) < timedelta(seconds=5)
        await bus.advance(LOCK_SECONDS - 10)
        await entity.receiver.complete_message(message)
        assert await entity.peek() == []

    async def test_a_lost_lock_cannot_be_renewed(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        await entity.put("one")
        message = await entity.receive_one()
        await bus.advance(LOCK_OVER)
        with pytest.raises(MessageLockLostError):
            await entity.receiver.renew_message_lock(message)

    @pytest.mark.parametrize("settle", ["complete_message", "abandon_message", "defer_message", "dead_letter_message"])
    async def test_a_message_whose_lock_is_lost_cannot_be_settled(
        self, open_entity: OpenEntity, bus: Bus, settle: str
    ) -> None:
        entity = await open_entity()
        await entity.put("one")
        message = await entity.receive_one()
        await bus.advance(LOCK_OVER)
        with pytest.raises(MessageLockLostError):
            await getattr(entity.receiver, settle)(message)
        assert str(await entity.receive_one()) == "one"

    async def test_a_lock_outlives_its_receiver(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        await entity.put("one")
        await entity.receive_one()
        await entity.receiver.close()
        other = await entity.open_receiver()
        assert await nothing_comes(other)
        await bus.advance(LOCK_OVER)
        assert texts(await receive(other)) == ["one"]

    async def test_two_receivers_share_the_messages(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        other = await entity.open_receiver()
        await entity.put(*(str(number) for number in range(20)))
        batches = await asyncio.gather(receive(entity.receiver, 10), receive(other, 10))
        assert sorted(texts(batches[0]) + texts(batches[1]), key=int) == [str(number) for number in range(20)]


class Deferring:
    entity: ClassVar[type[EntityUnderTest]]

    async def test_a_deferred_message_is_received_by_its_sequence_number_only(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("one", "two")
        message = await entity.receive_one()
        await entity.receiver.defer_message(message)
        assert str(await entity.receive_one()) == "two"
        [deferred] = await entity.receiver.receive_deferred_messages(message.sequence_number)
        assert str(deferred) == "one"
        assert deferred.state == ServiceBusMessageState.DEFERRED
        assert deferred.locked_until_utc > datetime.now(UTC)

    async def test_a_deferred_message_is_completed_like_any_other(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("one")
        message = await entity.receive_one()
        await entity.receiver.defer_message(message)
        [deferred] = await entity.receiver.receive_deferred_messages([message.sequence_number])
        await entity.receiver.complete_message(deferred)
        assert await entity.peek() == []
        with pytest.raises(MessageNotFoundError):
            await entity.receiver.receive_deferred_messages(message.sequence_number)

    async def test_an_abandoned_deferred_message_stays_deferred(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("one")
        message = await entity.receive_one()
        await entity.receiver.defer_message(message)
        [deferred] = await entity.receiver.receive_deferred_messages(message.sequence_number)
        await entity.receiver.abandon_message(deferred)
        await entity.put("marker")
        assert str(await entity.receive_one()) == "marker"
        [again] = await entity.receiver.receive_deferred_messages(message.sequence_number)
        assert again.delivery_count == deferred.delivery_count + 1

    async def test_a_deferred_message_whose_lock_expires_stays_deferred(
        self, open_entity: OpenEntity, bus: Bus
    ) -> None:
        entity = await open_entity()
        await entity.put("one")
        message = await entity.receive_one()
        await entity.receiver.defer_message(message)
        [deferred] = await entity.receiver.receive_deferred_messages(message.sequence_number)
        await bus.advance(LOCK_OVER)
        with pytest.raises(MessageLockLostError):
            await entity.receiver.complete_message(deferred)
        [again] = await entity.receiver.receive_deferred_messages(message.sequence_number)
        assert again.delivery_count == deferred.delivery_count + 1

    async def test_the_lock_of_a_deferred_message_can_be_renewed(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        await entity.put("one")
        message = await entity.receive_one()
        await entity.receiver.defer_message(message)
        [deferred] = await entity.receiver.receive_deferred_messages(message.sequence_number)
        await bus.advance(LOCK_SECONDS - 10)
        await entity.receiver.renew_message_lock(deferred)
        await bus.advance(LOCK_SECONDS - 10)
        await entity.receiver.complete_message(deferred)
        assert await entity.peek() == []

    async def test_a_deferred_message_has_one_receiver_at_a_time(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("one")
        message = await entity.receive_one()
        await entity.receiver.defer_message(message)
        await entity.receiver.receive_deferred_messages(message.sequence_number)
        with pytest.raises(MessageNotFoundError):
            await entity.receiver.receive_deferred_messages(message.sequence_number)

    async def test_several_deferred_messages_are_received_at_once(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("one", "two")
        messages = await entity.receive(2)
        for message in messages:
            await entity.receiver.defer_message(message)
        numbers = [message.sequence_number for message in messages]
        assert texts(await entity.receiver.receive_deferred_messages(numbers)) == ["one", "two"]

    async def test_a_missing_deferred_message_fails_the_whole_request(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("one")
        message = await entity.receive_one()
        await entity.receiver.defer_message(message)
        with pytest.raises(MessageNotFoundError):
            await entity.receiver.receive_deferred_messages([message.sequence_number, message.sequence_number + 1])
        assert texts(await entity.receiver.receive_deferred_messages(message.sequence_number)) == ["one"]

    async def test_an_active_message_cannot_be_received_as_deferred(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("one")
        [active] = await entity.peek()
        with pytest.raises(MessageNotFoundError):
            await entity.receiver.receive_deferred_messages(active.sequence_number)

    async def test_receive_and_delete_removes_a_deferred_message(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("one")
        message = await entity.receive_one()
        await entity.receiver.defer_message(message)
        deleting = await entity.open_receiver(receive_mode=DELETE)
        assert texts(await deleting.receive_deferred_messages(message.sequence_number)) == ["one"]
        assert await entity.peek() == []


class ReceivingAndDeleting:
    entity: ClassVar[type[EntityUnderTest]]

    async def test_receive_and_delete_removes_the_message(self, open_entity: OpenEntity) -> None:
        entity = await open_entity(receiver={"receive_mode": DELETE})
        await entity.put("one", "two")
        assert texts(await entity.receive(1)) == ["one"]
        assert await entity.peek_texts() == ["two"]

    async def test_a_message_has_no_lock(self, open_entity: OpenEntity) -> None:
        entity = await open_entity(receiver={"receive_mode": DELETE})
        await entity.put("one")
        message = await entity.receive_one()
        assert message.lock_token is None
        assert message.locked_until_utc is None

    async def test_messages_come_in_order(self, open_entity: OpenEntity) -> None:
        entity = await open_entity(receiver={"receive_mode": DELETE})
        await entity.put(*(str(number) for number in range(10)))
        assert texts(await entity.receive(10)) == [str(number) for number in range(10)]


class Peeking:
    entity: ClassVar[type[EntityUnderTest]]

    async def test_peeking_does_not_lock(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("one")
        [peeked] = await entity.peek()
        assert peeked.state == ServiceBusMessageState.ACTIVE
        assert peeked.locked_until_utc is None
        received = await entity.receive_one()
        assert received.sequence_number == peeked.sequence_number
        assert received.delivery_count == 0

    async def test_a_locked_message_can_be_peeked(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("one")
        await entity.receive_one()
        assert await entity.peek_texts() == ["one"]

    async def test_a_deferred_message_can_be_peeked(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("one")
        await entity.receiver.defer_message(await entity.receive_one())
        [peeked] = await entity.peek()
        assert str(peeked) == "one"
        assert peeked.state == ServiceBusMessageState.DEFERRED

    async def test_peeking_starts_at_a_sequence_number(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("one", "two", "three")
        second = (await entity.peek())[1]
        assert texts(await peek(entity.receiver, second.sequence_number)) == ["two", "three"]

    async def test_peeking_continues_after_the_last_peek(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("one", "two", "three")
        pages = [texts(await entity.receiver.peek_messages(max_message_count=2)) for _ in range(3)]
        assert pages == [["one", "two"], ["three"], []]

    async def test_peek_returns_at_most_the_requested_count(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("one", "two", "three")
        assert texts(await entity.receiver.peek_messages(max_message_count=2)) == ["one", "two"]


class Waiting:
    entity: ClassVar[type[EntityUnderTest]]

    async def test_a_long_receive_gets_a_message_as_soon_as_it_arrives(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        waiting = asyncio.create_task(entity.receiver.receive_messages(max_wait_time=QUARTER_OF_AN_HOUR))
        await entity.put("one")
        async with asyncio.timeout(PATIENCE):
            assert texts(await waiting) == ["one"]

    async def test_a_waiting_receive_gets_a_message_whose_lock_expires(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        await entity.put("one")
        await entity.receive_one()
        waiting = asyncio.create_task(entity.receiver.receive_messages(max_wait_time=QUARTER_OF_AN_HOUR))
        await bus.advance(LOCK_OVER)
        async with asyncio.timeout(PATIENCE):
            assert texts(await waiting) == ["one"]

    async def test_an_iterating_receiver_gets_messages_as_they_arrive(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        seen = []
        await entity.put("one")
        async with asyncio.timeout(PATIENCE):
            async for message in entity.receiver:
                seen.append(str(message))
                await entity.receiver.complete_message(message)
                if len(seen) == 3:
                    break
                await entity.put(ServiceBusMessage(f"after {message}"))
        assert seen == ["one", "after one", "after after one"]


class TestQueue(Receiving, Deferring, ReceivingAndDeleting, Peeking, Waiting):
    entity = QueueUnderTest


class TestSubscription(Receiving, Deferring, ReceivingAndDeleting, Peeking, Waiting):
    entity = SubscriptionUnderTest


class TestDeadLetterQueue(Receiving, Deferring, ReceivingAndDeleting, Peeking, Waiting):
    entity = DeadLetterQueueUnderTest


class TestDeadLetterQueueOfASubscription(ReceivingAndDeleting, Peeking):
    entity = SubscriptionDeadLetterQueueUnderTest
