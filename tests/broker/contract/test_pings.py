"""Pings: accepted, counted, and never seen by anyone, unless the namespace is told to deliver them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, ClassVar

import pytest
import pytest_asyncio
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.exceptions import OperationTimeoutError
from tests.broker.contract.bus import (
    DELETE,
    Bus,
    Place,
    QueuePlace,
    SessionQueuePlace,
    SessionSubscriptionPlace,
    SubscriptionPlace,
    texts,
)
from tests.broker.contract.conftest import OpenPlace

from twinbus.broker import NamespaceConfig

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

CONTENT_TYPE = "application/vnd.ms-servicebus-ping"


def ping(**properties: Any) -> ServiceBusMessage:
    return ServiceBusMessage(b"", content_type=CONTENT_TYPE, time_to_live=timedelta(seconds=1), **properties)


class Pinging:
    place: ClassVar[type[Place]]

    async def test_a_ping_is_accepted_and_counted(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.sender.send_messages(ping())
        await place.sender.send_messages(ping())
        assert place.entry.activity.pings == 2
        assert place.entry.activity.received == 0

    async def test_a_ping_is_not_received(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.sender.send_messages(ping())
        await place.put("marker")
        assert texts(await place.receive()) == ["marker"]

    async def test_a_ping_is_not_received_and_deleted(self, open_place: OpenPlace) -> None:
        place = await open_place(receiver={"receive_mode": DELETE})
        await place.sender.send_messages(ping())
        await place.put("marker")
        assert texts(await place.receive()) == ["marker"]

    async def test_a_ping_is_not_peeked(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.sender.send_messages(ping())
        assert await place.peek() == []
        assert place.queue.counters.active == 0

    async def test_the_other_messages_of_a_batch_arrive(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("one", ping(), "two", ping())
        assert texts(await place.receive(2)) == ["one", "two"]
        assert await place.peek_texts() == ["one", "two"]
        assert place.entry.activity.pings == 2

    async def test_a_scheduled_ping_never_arrives(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        [number] = await place.sender.schedule_messages(ping(), bus.clock.in_seconds(10))
        assert number > 0
        await place.sender.send_messages(ping(scheduled_enqueue_time_utc=bus.clock.in_seconds(10)))
        assert await place.peek() == []
        assert place.entry.counters.scheduled == 0
        await bus.advance(10.5)
        await place.put("marker")
        assert texts(await place.receive()) == ["marker"]
        assert place.entry.activity.pings == 2

    async def test_a_ping_is_not_dead_lettered_when_it_expires(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place(dead_lettering_on_message_expiration=True)
        await place.sender.send_messages(ping())
        await bus.advance(2)
        await place.put("marker")
        assert texts(await place.receive()) == ["marker"]
        assert place.dead_letter_queue.counters.active == 0

    async def test_a_ping_does_not_hide_a_message_with_its_id(self, open_place: OpenPlace) -> None:
        place = await open_place(requires_duplicate_detection=True)
        await place.sender.send_messages(ping(message_id="a"))
        await place.put("one", message_id="a")
        assert texts(await place.receive()) == ["one"]


class TestQueue(Pinging):
    place = QueuePlace


class TestTopic(Pinging):
    place = SubscriptionPlace


class PingingSessions:
    place: ClassVar[type[Place]]

    async def test_a_ping_is_not_received(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.sender.send_messages(ping(session_id="a"))
        await place.put("marker")
        assert texts(await place.receive()) == ["marker"]
        assert await place.peek_texts() == ["marker"]
        assert place.entry.activity.pings == 1

    async def test_a_ping_makes_no_session(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.sender.send_messages(ping(session_id="b"))
        assert await place.sessions() == []
        with pytest.raises(OperationTimeoutError):
            await place.open_session(NEXT_AVAILABLE_SESSION, max_wait_time=0.5)


class TestQueueWithSessions(PingingSessions):
    place = SessionQueuePlace


class TestTopicWithSessions(PingingSessions):
    place = SessionSubscriptionPlace


class Delivering:
    """A namespace that delivers pings, as a service might that no longer hides them."""

    place: ClassVar[type[Place]]

    async def test_a_ping_is_received(self, delivering: Bus) -> None:
        place = await self.place.open(delivering)
        await place.sender.send_messages(ping())
        received = await place.receive_one()
        assert received.content_type == CONTENT_TYPE
        assert place.entry.activity.pings == 0

    async def test_a_ping_expires_like_any_message(self, delivering: Bus) -> None:
        place = await self.place.open(delivering)
        await place.sender.send_messages(ping())
        await delivering.advance(2)
        assert await place.peek() == []

    async def test_the_switch_can_be_turned_while_it_runs(self, delivering: Bus) -> None:
        place = await self.place.open(delivering)
        delivering.namespace.deliver_pings = False
        try:
            await place.sender.send_messages(ping())
        finally:
            delivering.namespace.deliver_pings = True
        assert await place.peek() == []
        assert place.entry.activity.pings == 1


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def delivering() -> AsyncIterator[Bus]:
    async with Bus(NamespaceConfig("contoso", port=0, deliver_pings=True)) as running:
        yield running


class TestQueueDelivering(Delivering):
    place = QueuePlace


class TestTopicDelivering(Delivering):
    place = SubscriptionPlace
