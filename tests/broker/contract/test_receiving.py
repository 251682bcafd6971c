"""Receiving from a queue, a subscription and their dead-letter queues: the same behaviour for all of them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import ClassVar

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState
from azure.servicebus.exceptions import MessageLockLostError, MessageNotFoundError
from tests.broker.contract.bus import (
    DELETE,
    LOCK_OVER,
    LOCK_SECONDS,
    PATIENCE,
    Bus,
    DeadLetterPlace,
    Place,
    QueuePlace,
    SubscriptionDeadLetterPlace,
    SubscriptionPlace,
    nothing_comes,
    peek,
    receive,
    texts,
)
from tests.broker.contract.conftest import OpenPlace

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUARTER_OF_AN_HOUR = 15 * 60


class Receiving:
    """What holds for every place that messages are received from."""

    place: ClassVar[type[Place]]

    async def test_messages_come_in_the_order_in_which_they_were_put(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("one", "two", "three")
        received = await place.receive(3)
        assert texts(received) == ["one", "two", "three"]
        numbers = [message.sequence_number for message in received]
        assert numbers == sorted(set(numbers))

    async def test_a_receive_brings_no_more_than_it_asked_for(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("one", "two", "three")
        received = await place.receiver.receive_messages(max_message_count=2, max_wait_time=PATIENCE)
        assert texts(received) == ["one", "two"]

    async def test_a_received_message_is_locked_for_the_lock_duration(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        await place.put("one")
        before = bus.clock.in_seconds(LOCK_SECONDS)
        message = await place.receive_one()
        # The first delivery may have waited for the receiver since it was put.
        assert abs(message.locked_until_utc - before) < timedelta(seconds=5)
        assert message.lock_token is not None

    async def test_a_locked_message_does_not_reach_another_receiver(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("one", "two")
        assert texts(await place.receive(1)) == ["one"]
        other = await place.open_receiver()
        assert texts(await receive(other)) == ["two"]
        assert await nothing_comes(other)

    async def test_a_completed_message_is_gone_for_good(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        await place.put("one", "two")
        await place.receiver.complete_message(await place.receive_one())
        await bus.advance(LOCK_OVER)
        assert await place.peek_texts() == ["two"]
        assert texts(await place.receive()) == ["two"]

    async def test_an_abandoned_message_comes_again_in_its_old_place(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("one", "two", "three")
        first, second = await place.receive(2)
        await place.receiver.abandon_message(first)
        again = await place.receive_one()
        assert str(again) == "one"
        assert again.sequence_number == first.sequence_number
        await place.receiver.complete_message(second)

    async def test_each_abandoning_raises_the_delivery_count(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("one")
        counts = []
        for _ in range(3):
            message = await place.receive_one()
            counts.append(message.delivery_count)
            await place.receiver.abandon_message(message)
        assert counts == [0, 1, 2]

    async def test_a_lock_that_runs_out_gives_the_message_back_with_a_higher_delivery_count(
        self, open_place: OpenPlace, bus: Bus
    ) -> None:
        place = await open_place()
        await place.put("one")
        first = await place.receive_one()
        await bus.advance(LOCK_OVER)
        again = await place.receive_one()
        assert str(again) == "one"
        assert again.delivery_count == first.delivery_count + 1
        assert again.lock_token != first.lock_token

    async def test_a_renewed_lock_lasts_longer(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        await place.put("one")
        message = await place.receive_one()
        await bus.advance(LOCK_SECONDS - 10)
        until = await place.receiver.renew_message_lock(message)
        assert abs(until - bus.clock.in_seconds(LOCK_SECONDS)) < timedelta(seconds=5)
        await bus.advance(LOCK_SECONDS - 10)
        await place.receiver.complete_message(message)
        assert await place.peek() == []

    async def test_a_lost_lock_cannot_be_renewed(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        await place.put("one")
        message = await place.receive_one()
        await bus.advance(LOCK_OVER)
        with pytest.raises(MessageLockLostError):
            await place.receiver.renew_message_lock(message)

    @pytest.mark.parametrize("settle", ["complete_message", "abandon_message", "defer_message", "dead_letter_message"])
    async def test_a_message_whose_lock_is_lost_cannot_be_settled(
        self, open_place: OpenPlace, bus: Bus, settle: str
    ) -> None:
        place = await open_place()
        await place.put("one")
        message = await place.receive_one()
        await bus.advance(LOCK_OVER)
        with pytest.raises(MessageLockLostError):
            await getattr(place.receiver, settle)(message)
        assert str(await place.receive_one()) == "one"

    async def test_a_lock_outlives_its_receiver(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        await place.put("one")
        await place.receive_one()
        await place.receiver.close()
        other = await place.open_receiver()
        assert await nothing_comes(other)
        await bus.advance(LOCK_OVER)
        assert texts(await receive(other)) == ["one"]

    async def test_two_receivers_share_the_messages(self, open_place: OpenPlace) -> None:
        place = await open_place()
        other = await place.open_receiver()
        await place.put(*(str(number) for number in range(20)))
        batches = await asyncio.gather(receive(place.receiver, 10), receive(other, 10))
        assert sorted(texts(batches[0]) + texts(batches[1]), key=int) == [str(number) for number in range(20)]


class Deferring:
    place: ClassVar[type[Place]]

    async def test_a_deferred_message_is_received_by_its_sequence_number_only(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("one", "two")
        message = await place.receive_one()
        await place.receiver.defer_message(message)
        assert str(await place.receive_one()) == "two"
        [deferred] = await place.receiver.receive_deferred_messages(message.sequence_number)
        assert str(deferred) == "one"
        assert deferred.state == ServiceBusMessageState.DEFERRED
        assert deferred.locked_until_utc > datetime.now(UTC)

    async def test_a_deferred_message_is_completed_like_any_other(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("one")
        message = await place.receive_one()
        await place.receiver.defer_message(message)
        [deferred] = await place.receiver.receive_deferred_messages([message.sequence_number])
        await place.receiver.complete_message(deferred)
        assert await place.peek() == []
        with pytest.raises(MessageNotFoundError):
            await place.receiver.receive_deferred_messages(message.sequence_number)

    async def test_an_abandoned_deferred_message_stays_deferred(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("one")
        message = await place.receive_one()
        await place.receiver.defer_message(message)
        [deferred] = await place.receiver.receive_deferred_messages(message.sequence_number)
        await place.receiver.abandon_message(deferred)
        await place.put("marker")
        assert str(await place.receive_one()) == "marker"
        [again] = await place.receiver.receive_deferred_messages(message.sequence_number)
        assert again.delivery_count == deferred.delivery_count + 1

    async def test_a_deferred_message_whose_lock_runs_out_stays_deferred(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        await place.put("one")
        message = await place.receive_one()
        await place.receiver.defer_message(message)
        [deferred] = await place.receiver.receive_deferred_messages(message.sequence_number)
        await bus.advance(LOCK_OVER)
        with pytest.raises(MessageLockLostError):
            await place.receiver.complete_message(deferred)
        [again] = await place.receiver.receive_deferred_messages(message.sequence_number)
        assert again.delivery_count == deferred.delivery_count + 1

    async def test_the_lock_of_a_deferred_message_can_be_renewed(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        await place.put("one")
        message = await place.receive_one()
        await place.receiver.defer_message(message)
        [deferred] = await place.receiver.receive_deferred_messages(message.sequence_number)
        await bus.advance(LOCK_SECONDS - 10)
        await place.receiver.renew_message_lock(deferred)
        await bus.advance(LOCK_SECONDS - 10)
        await place.receiver.complete_message(deferred)
        assert await place.peek() == []

    async def test_a_deferred_message_has_one_receiver_at_a_time(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("one")
        message = await place.receive_one()
        await place.receiver.defer_message(message)
        await place.receiver.receive_deferred_messages(message.sequence_number)
        with pytest.raises(MessageNotFoundError):
            await place.receiver.receive_deferred_messages(message.sequence_number)

    async def test_several_deferred_messages_are_received_at_once(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("one", "two")
        messages = await place.receive(2)
        for message in messages:
            await place.receiver.defer_message(message)
        numbers = [message.sequence_number for message in messages]
        assert texts(await place.receiver.receive_deferred_messages(numbers)) == ["one", "two"]

    async def test_if_one_deferred_message_is_not_there_none_is_locked(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("one")
        message = await place.receive_one()
        await place.receiver.defer_message(message)
        with pytest.raises(MessageNotFoundError):
            await place.receiver.receive_deferred_messages([message.sequence_number, message.sequence_number + 1])
        assert texts(await place.receiver.receive_deferred_messages(message.sequence_number)) == ["one"]

    async def test_an_active_message_is_not_received_as_a_deferred_one(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("one")
        [active] = await place.peek()
        with pytest.raises(MessageNotFoundError):
            await place.receiver.receive_deferred_messages(active.sequence_number)

    async def test_receive_and_delete_removes_a_deferred_message(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("one")
        message = await place.receive_one()
        await place.receiver.defer_message(message)
        deleting = await place.open_receiver(receive_mode=DELETE)
        assert texts(await deleting.receive_deferred_messages(message.sequence_number)) == ["one"]
        assert await place.peek() == []


class ReceivingAndDeleting:
    place: ClassVar[type[Place]]

    async def test_a_message_is_gone_when_it_is_received(self, open_place: OpenPlace) -> None:
        place = await open_place(receiver={"receive_mode": DELETE})
        await place.put("one", "two")
        assert texts(await place.receive(1)) == ["one"]
        assert await place.peek_texts() == ["two"]

    async def test_a_message_has_no_lock(self, open_place: OpenPlace) -> None:
        place = await open_place(receiver={"receive_mode": DELETE})
        await place.put("one")
        message = await place.receive_one()
        assert message.lock_token is None
        assert message.locked_until_utc is None

    async def test_messages_come_in_order(self, open_place: OpenPlace) -> None:
        place = await open_place(receiver={"receive_mode": DELETE})
        await place.put(*(str(number) for number in range(10)))
        assert texts(await place.receive(10)) == [str(number) for number in range(10)]


class Peeking:
    place: ClassVar[type[Place]]

    async def test_peeking_does_not_lock(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("one")
        [peeked] = await place.peek()
        assert peeked.state == ServiceBusMessageState.ACTIVE
        assert peeked.locked_until_utc is None
        received = await place.receive_one()
        assert received.sequence_number == peeked.sequence_number
        assert received.delivery_count == 0

    async def test_a_locked_message_can_be_peeked(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("one")
        await place.receive_one()
        assert await place.peek_texts() == ["one"]

    async def test_a_deferred_message_can_be_peeked(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("one")
        await place.receiver.defer_message(await place.receive_one())
        [peeked] = await place.peek()
        assert str(peeked) == "one"
        assert peeked.state == ServiceBusMessageState.DEFERRED

    async def test_peeking_starts_at_a_sequence_number(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("one", "two", "three")
        second = (await place.peek())[1]
        assert texts(await peek(place.receiver, second.sequence_number)) == ["two", "three"]

    async def test_peeking_goes_on_where_it_ended(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("one", "two", "three")
        pages = [texts(await place.receiver.peek_messages(max_message_count=2)) for _ in range(3)]
        assert pages == [["one", "two"], ["three"], []]

    async def test_peeking_brings_no_more_than_it_asked_for(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("one", "two", "three")
        assert texts(await place.receiver.peek_messages(max_message_count=2)) == ["one", "two"]


class Waiting:
    place: ClassVar[type[Place]]

    async def test_a_receive_of_fifteen_minutes_gets_a_message_as_soon_as_it_arrives(
        self, open_place: OpenPlace
    ) -> None:
        place = await open_place()
        waiting = asyncio.create_task(place.receiver.receive_messages(max_wait_time=QUARTER_OF_AN_HOUR))
        await place.put("one")
        async with asyncio.timeout(PATIENCE):
            assert texts(await waiting) == ["one"]

    async def test_a_receive_that_waits_gets_a_message_whose_lock_runs_out(
        self, open_place: OpenPlace, bus: Bus
    ) -> None:
        place = await open_place()
        await place.put("one")
        await place.receive_one()
        waiting = asyncio.create_task(place.receiver.receive_messages(max_wait_time=QUARTER_OF_AN_HOUR))
        await bus.advance(LOCK_OVER)
        async with asyncio.timeout(PATIENCE):
            assert texts(await waiting) == ["one"]

    async def test_an_iterating_receiver_gets_messages_as_they_arrive(self, open_place: OpenPlace) -> None:
        place = await open_place()
        seen = []
        await place.put("one")
        async with asyncio.timeout(PATIENCE):
            async for message in place.receiver:
                seen.append(str(message))
                await place.receiver.complete_message(message)
                if len(seen) == 3:
                    break
                await place.put(ServiceBusMessage(f"after {message}"))
        assert seen == ["one", "after one", "after after one"]


class TestQueue(Receiving, Deferring, ReceivingAndDeleting, Peeking, Waiting):
    place = QueuePlace


class TestSubscription(Receiving, Deferring, ReceivingAndDeleting, Peeking, Waiting):
    place = SubscriptionPlace


class TestDeadLetterQueue(Receiving, Deferring, ReceivingAndDeleting, Peeking, Waiting):
    place = DeadLetterPlace


class TestDeadLetterQueueOfASubscription(ReceivingAndDeleting, Peeking):
    place = SubscriptionDeadLetterPlace
