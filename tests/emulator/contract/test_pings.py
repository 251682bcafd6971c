"""Pings: accepted, counted and never delivered, unless the namespace is configured to deliver them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, ClassVar

import pytest
import pytest_asyncio
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.exceptions import OperationTimeoutError
from tests.emulator.contract.bus import (
    DELETE,
    Bus,
    EntityUnderTest,
    QueueUnderTest,
    SessionQueueUnderTest,
    SessionSubscriptionUnderTest,
    SubscriptionUnderTest,
    texts,
)
from tests.emulator.contract.conftest import OpenEntity

from twinbus.emulator import NamespaceConfig

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

CONTENT_TYPE = "application/vnd.ms-servicebus-ping"


def ping(**properties: Any) -> ServiceBusMessage:
    return ServiceBusMessage(b"", content_type=CONTENT_TYPE, time_to_live=timedelta(seconds=1), **properties)


class Pinging:
    entity: ClassVar[type[EntityUnderTest]]

    async def test_a_ping_is_accepted_and_counted(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.sender.send_messages(ping())
        await entity.sender.send_messages(ping())
        assert entity.entry.activity.pings == 2
        assert entity.entry.activity.received == 0

    async def test_a_ping_is_not_received(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.sender.send_messages(ping())
        await entity.put("marker")
        assert texts(await entity.receive()) == ["marker"]

    async def test_a_ping_is_not_received_and_deleted(self, open_entity: OpenEntity) -> None:
        entity = await open_entity(receiver={"receive_mode": DELETE})
        await entity.sender.send_messages(ping())
        await entity.put("marker")
        assert texts(await entity.receive()) == ["marker"]

    async def test_a_ping_is_not_peeked(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.sender.send_messages(ping())
        assert await entity.peek() == []
        assert entity.queue.counters.active == 0

    async def test_the_other_messages_of_a_batch_arrive(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("one", ping(), "two", ping())
        assert texts(await entity.receive(2)) == ["one", "two"]
        assert await entity.peek_texts() == ["one", "two"]
        assert entity.entry.activity.pings == 2

    async def test_a_scheduled_ping_never_arrives(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        [number] = await entity.sender.schedule_messages(ping(), bus.clock.in_seconds(10))
        assert number > 0
        await entity.sender.send_messages(ping(scheduled_enqueue_time_utc=bus.clock.in_seconds(10)))
        assert await entity.peek() == []
        assert entity.entry.counters.scheduled == 0
        await bus.advance(10.5)
        await entity.put("marker")
        assert texts(await entity.receive()) == ["marker"]
        assert entity.entry.activity.pings == 2

    async def test_a_ping_is_not_dead_lettered_when_it_expires(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity(dead_lettering_on_message_expiration=True)
        await entity.sender.send_messages(ping())
        await bus.advance(2)
        await entity.put("marker")
        assert texts(await entity.receive()) == ["marker"]
        assert entity.dead_letter_queue.counters.active == 0

    async def test_a_ping_does_not_hide_a_message_with_its_id(self, open_entity: OpenEntity) -> None:
        entity = await open_entity(requires_duplicate_detection=True)
        await entity.sender.send_messages(ping(message_id="a"))
        await entity.put("one", message_id="a")
        assert texts(await entity.receive()) == ["one"]


class TestQueue(Pinging):
    entity = QueueUnderTest


class TestTopic(Pinging):
    entity = SubscriptionUnderTest


class PingingSessions:
    entity: ClassVar[type[EntityUnderTest]]

    async def test_a_ping_is_not_received(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.sender.send_messages(ping(session_id="a"))
        await entity.put("marker")
        assert texts(await entity.receive()) == ["marker"]
        assert await entity.peek_texts() == ["marker"]
        assert entity.entry.activity.pings == 1

    async def test_a_ping_does_not_create_a_session(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.sender.send_messages(ping(session_id="b"))
        assert await entity.sessions() == []
        with pytest.raises(OperationTimeoutError):
            await entity.open_session(NEXT_AVAILABLE_SESSION, max_wait_time=0.5)


class TestQueueWithSessions(PingingSessions):
    entity = SessionQueueUnderTest


class TestTopicWithSessions(PingingSessions):
    entity = SessionSubscriptionUnderTest


class Delivering:
    """A namespace that delivers pings, like a service that does not know them."""

    entity: ClassVar[type[EntityUnderTest]]

    async def test_a_ping_is_received(self, delivering: Bus) -> None:
        entity = await self.entity.open(delivering)
        await entity.sender.send_messages(ping())
        received = await entity.receive_one()
        assert received.content_type == CONTENT_TYPE
        assert entity.entry.activity.pings == 0

    async def test_a_ping_expires_like_any_message(self, delivering: Bus) -> None:
        entity = await self.entity.open(delivering)
        await entity.sender.send_messages(ping())
        await delivering.advance(2)
        assert await entity.peek() == []

    async def test_deliver_pings_can_be_switched_at_run_time(self, delivering: Bus) -> None:
        entity = await self.entity.open(delivering)
        delivering.namespace.deliver_pings = False
        try:
            await entity.sender.send_messages(ping())
        finally:
            delivering.namespace.deliver_pings = True
        assert await entity.peek() == []
        assert entity.entry.activity.pings == 1


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def delivering() -> AsyncIterator[Bus]:
    async with Bus(NamespaceConfig("contoso", port=0, deliver_pings=True)) as running:
        yield running


class TestQueueDelivering(Delivering):
    entity = QueueUnderTest


class TestTopicDelivering(Delivering):
    entity = SubscriptionUnderTest
