"""How messages get into the dead-letter queue of a queue or a subscription."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState
from azure.servicebus.exceptions import ServiceBusError
from tests.emulator.contract.bus import (
    LOCK_OVER,
    Bus,
    EntityUnderTest,
    QueueUnderTest,
    SubscriptionUnderTest,
    peek,
    receive,
    texts,
)
from tests.emulator.contract.conftest import OpenEntity

pytestmark = pytest.mark.asyncio(loop_scope="module")


class DeadLettering:
    entity: ClassVar[type[EntityUnderTest]]

    async def test_a_dead_lettered_message_is_in_the_dead_letter_queue_only(self, open_entity: OpenEntity) -> None:
        entity = await open_entity(dead_letters=True)
        await entity.put("bad", "good")
        await entity.receiver.dead_letter_message(await entity.receive_one())
        assert texts(await receive(entity.dead_letters)) == ["bad"]
        assert await entity.peek_texts() == ["good"]

    async def test_a_dead_letter_has_reason_and_description(self, open_entity: OpenEntity) -> None:
        entity = await open_entity(dead_letters=True)
        await entity.put("bad")
        message = await entity.receive_one()
        await entity.receiver.dead_letter_message(message, reason="Unreadable", error_description="It is not JSON.")
        [dead] = await receive(entity.dead_letters)
        assert dead.dead_letter_reason == "Unreadable"
        assert dead.dead_letter_error_description == "It is not JSON."

    async def test_a_dead_letter_keeps_the_sent_properties(self, open_entity: OpenEntity) -> None:
        entity = await open_entity(dead_letters=True)
        sent = ServiceBusMessage(
            b"\x00\x01", message_id="a", subject="s", application_properties={"number": 7, "text": "t"}
        )
        await entity.put(sent)
        await entity.receiver.dead_letter_message(await entity.receive_one(), reason="Unreadable")
        [dead] = await receive(entity.dead_letters)
        assert b"".join(dead.body) == b"\x00\x01"
        assert (dead.message_id, dead.subject) == ("a", "s")
        assert dead.application_properties[b"number"] == 7
        assert dead.application_properties[b"text"] == b"t"
        assert dead.enqueued_time_utc is not None

    async def test_a_dead_letter_can_be_peeked(self, open_entity: OpenEntity) -> None:
        entity = await open_entity(dead_letters=True)
        await entity.put("bad")
        await entity.receiver.dead_letter_message(await entity.receive_one(), reason="Unreadable")
        [dead] = await peek(entity.dead_letters)
        assert str(dead) == "bad"
        assert dead.dead_letter_reason == "Unreadable"
        assert dead.state == ServiceBusMessageState.ACTIVE

    async def test_a_completed_dead_letter_is_gone(self, open_entity: OpenEntity) -> None:
        entity = await open_entity(dead_letters=True)
        await entity.put("bad")
        await entity.receiver.dead_letter_message(await entity.receive_one())
        await entity.dead_letters.complete_message((await receive(entity.dead_letters))[0])
        assert await peek(entity.dead_letters) == []

    async def test_a_deferred_message_can_be_dead_lettered(self, open_entity: OpenEntity) -> None:
        entity = await open_entity(dead_letters=True)
        await entity.put("bad")
        message = await entity.receive_one()
        await entity.receiver.defer_message(message)
        [deferred] = await entity.receiver.receive_deferred_messages(message.sequence_number)
        await entity.receiver.dead_letter_message(deferred, reason="Unreadable", error_description="It is not JSON.")
        [dead] = await receive(entity.dead_letters)
        assert (dead.dead_letter_reason, dead.dead_letter_error_description) == ("Unreadable", "It is not JSON.")
        assert await entity.peek() == []

    async def test_nothing_can_be_sent_to_a_dead_letter_queue(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        sender = bus.client.get_queue_sender(entity.path + "/$DeadLetterQueue")
        with pytest.raises(ServiceBusError, match="cannot be sent to a dead-letter queue"):
            await bus.open(sender)
        assert entity.dead_letter_queue.counters.active == 0


class CountingDeliveries:
    entity: ClassVar[type[EntityUnderTest]]

    async def test_a_message_abandoned_too_often_is_dead_lettered(self, open_entity: OpenEntity) -> None:
        entity = await open_entity(dead_letters=True, max_delivery_count=2)
        await entity.put("bad")
        for _ in range(2):
            await entity.receiver.abandon_message(await entity.receive_one())
        [dead] = await receive(entity.dead_letters)
        assert str(dead) == "bad"
        assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"
        assert dead.delivery_count == 2
        assert await entity.peek() == []

    async def test_a_message_below_the_maximum_is_not_dead_lettered(self, open_entity: OpenEntity) -> None:
        entity = await open_entity(max_delivery_count=3)
        await entity.put("bad")
        for _ in range(2):
            await entity.receiver.abandon_message(await entity.receive_one())
        assert (await entity.receive_one()).delivery_count == 2
        assert entity.dead_letter_queue.counters.active == 0

    async def test_a_message_whose_lock_expired_too_often_is_dead_lettered(
        self, open_entity: OpenEntity, bus: Bus
    ) -> None:
        entity = await open_entity(dead_letters=True, max_delivery_count=2)
        await entity.put("bad")
        for _ in range(2):
            await entity.receive_one()
            await bus.advance(LOCK_OVER)
        [dead] = await receive(entity.dead_letters)
        assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"
        assert await entity.peek() == []

    async def test_a_dead_letter_is_never_dead_lettered_again(self, open_entity: OpenEntity) -> None:
        entity = await open_entity(dead_letters=True, max_delivery_count=1)
        await entity.put("bad")
        await entity.receiver.abandon_message(await entity.receive_one())
        counts = []
        for _ in range(3):
            [dead] = await receive(entity.dead_letters)
            counts.append(dead.delivery_count)
            await entity.dead_letters.abandon_message(dead)
        assert counts == [1, 2, 3]

    async def test_a_deferred_message_abandoned_too_often_is_dead_lettered(self, open_entity: OpenEntity) -> None:
        entity = await open_entity(dead_letters=True, max_delivery_count=1)
        await entity.put("bad")
        message = await entity.receive_one()
        await entity.receiver.defer_message(message)
        [deferred] = await entity.receiver.receive_deferred_messages(message.sequence_number)
        await entity.receiver.abandon_message(deferred)
        [dead] = await receive(entity.dead_letters)
        assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"
        assert await entity.peek() == []

    async def test_releasing_a_message_does_not_count_a_delivery(self, open_entity: OpenEntity) -> None:
        entity = await open_entity(max_delivery_count=1)
        await entity.put("one")
        # Opening granted one credit, so the message is on its way; closing releases it.
        await entity.receiver.close()
        other: Any = await entity.open_receiver()
        [message] = await receive(other)
        assert message.delivery_count == 0


class TestQueue(DeadLettering, CountingDeliveries):
    entity = QueueUnderTest


class TestSubscription(DeadLettering, CountingDeliveries):
    entity = SubscriptionUnderTest
