"""How messages get into the dead-letter queue of a queue or a subscription."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState
from azure.servicebus.exceptions import ServiceBusError
from tests.broker.contract.bus import LOCK_OVER, Bus, Place, QueuePlace, SubscriptionPlace, peek, receive, texts
from tests.broker.contract.conftest import OpenPlace

pytestmark = pytest.mark.asyncio(loop_scope="module")


class DeadLettering:
    place: ClassVar[type[Place]]

    async def test_a_dead_lettered_message_is_in_the_dead_letter_queue_only(self, open_place: OpenPlace) -> None:
        place = await open_place(dead_letters=True)
        await place.put("bad", "good")
        await place.receiver.dead_letter_message(await place.receive_one())
        assert texts(await receive(place.dead_letters)) == ["bad"]
        assert await place.peek_texts() == ["good"]

    async def test_a_dead_letter_tells_reason_and_description(self, open_place: OpenPlace) -> None:
        place = await open_place(dead_letters=True)
        await place.put("bad")
        message = await place.receive_one()
        await place.receiver.dead_letter_message(message, reason="Unreadable", error_description="It is not JSON.")
        [dead] = await receive(place.dead_letters)
        assert dead.dead_letter_reason == "Unreadable"
        assert dead.dead_letter_error_description == "It is not JSON."

    async def test_a_dead_letter_is_otherwise_what_was_sent(self, open_place: OpenPlace) -> None:
        place = await open_place(dead_letters=True)
        sent = ServiceBusMessage(
            b"\x00\x01", message_id="a", subject="s", application_properties={"number": 7, "text": "t"}
        )
        await place.put(sent)
        await place.receiver.dead_letter_message(await place.receive_one(), reason="Unreadable")
        [dead] = await receive(place.dead_letters)
        assert b"".join(dead.body) == b"\x00\x01"
        assert (dead.message_id, dead.subject) == ("a", "s")
        assert dead.application_properties[b"number"] == 7
        assert dead.application_properties[b"text"] == b"t"
        assert dead.enqueued_time_utc is not None

    async def test_a_dead_letter_can_be_peeked(self, open_place: OpenPlace) -> None:
        place = await open_place(dead_letters=True)
        await place.put("bad")
        await place.receiver.dead_letter_message(await place.receive_one(), reason="Unreadable")
        [dead] = await peek(place.dead_letters)
        assert str(dead) == "bad"
        assert dead.dead_letter_reason == "Unreadable"
        assert dead.state == ServiceBusMessageState.ACTIVE

    async def test_a_completed_dead_letter_is_gone(self, open_place: OpenPlace) -> None:
        place = await open_place(dead_letters=True)
        await place.put("bad")
        await place.receiver.dead_letter_message(await place.receive_one())
        await place.dead_letters.complete_message((await receive(place.dead_letters))[0])
        assert await peek(place.dead_letters) == []

    async def test_a_deferred_message_can_be_dead_lettered(self, open_place: OpenPlace) -> None:
        place = await open_place(dead_letters=True)
        await place.put("bad")
        message = await place.receive_one()
        await place.receiver.defer_message(message)
        [deferred] = await place.receiver.receive_deferred_messages(message.sequence_number)
        await place.receiver.dead_letter_message(deferred, reason="Unreadable", error_description="It is not JSON.")
        [dead] = await receive(place.dead_letters)
        assert (dead.dead_letter_reason, dead.dead_letter_error_description) == ("Unreadable", "It is not JSON.")
        assert await place.peek() == []

    async def test_nothing_can_be_sent_to_a_dead_letter_queue(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        sender = bus.client.get_queue_sender(place.path + "/$DeadLetterQueue")
        with pytest.raises(ServiceBusError, match="cannot be sent to a dead-letter queue"):
            await bus.open(sender)
        assert place.dead_letter_queue.counters.active == 0


class CountingDeliveries:
    place: ClassVar[type[Place]]

    async def test_a_message_abandoned_too_often_is_dead_lettered(self, open_place: OpenPlace) -> None:
        place = await open_place(dead_letters=True, max_delivery_count=2)
        await place.put("bad")
        for _ in range(2):
            await place.receiver.abandon_message(await place.receive_one())
        [dead] = await receive(place.dead_letters)
        assert str(dead) == "bad"
        assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"
        assert dead.delivery_count == 2
        assert await place.peek() == []

    async def test_a_message_below_the_maximum_is_not_dead_lettered(self, open_place: OpenPlace) -> None:
        place = await open_place(max_delivery_count=3)
        await place.put("bad")
        for _ in range(2):
            await place.receiver.abandon_message(await place.receive_one())
        assert (await place.receive_one()).delivery_count == 2
        assert place.dead_letter_queue.counters.active == 0

    async def test_a_message_whose_lock_ran_out_too_often_is_dead_lettered(
        self, open_place: OpenPlace, bus: Bus
    ) -> None:
        place = await open_place(dead_letters=True, max_delivery_count=2)
        await place.put("bad")
        for _ in range(2):
            await place.receive_one()
            await bus.advance(LOCK_OVER)
        [dead] = await receive(place.dead_letters)
        assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"
        assert await place.peek() == []

    async def test_a_dead_letter_is_never_moved_on(self, open_place: OpenPlace) -> None:
        place = await open_place(dead_letters=True, max_delivery_count=1)
        await place.put("bad")
        await place.receiver.abandon_message(await place.receive_one())
        counts = []
        for _ in range(3):
            [dead] = await receive(place.dead_letters)
            counts.append(dead.delivery_count)
            await place.dead_letters.abandon_message(dead)
        assert counts == [1, 2, 3]

    async def test_a_deferred_message_abandoned_too_often_is_dead_lettered(self, open_place: OpenPlace) -> None:
        place = await open_place(dead_letters=True, max_delivery_count=1)
        await place.put("bad")
        message = await place.receive_one()
        await place.receiver.defer_message(message)
        [deferred] = await place.receiver.receive_deferred_messages(message.sequence_number)
        await place.receiver.abandon_message(deferred)
        [dead] = await receive(place.dead_letters)
        assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"
        assert await place.peek() == []

    async def test_a_message_that_was_only_released_is_not_one_delivery_poorer(self, open_place: OpenPlace) -> None:
        place = await open_place(max_delivery_count=1)
        await place.put("one")
        # Opening gave the service one credit, so the message is under way: closing hands it back unused.
        await place.receiver.close()
        other: Any = await place.open_receiver()
        [message] = await receive(other)
        assert message.delivery_count == 0


class TestQueue(DeadLettering, CountingDeliveries):
    place = QueuePlace


class TestSubscription(DeadLettering, CountingDeliveries):
    place = SubscriptionPlace
