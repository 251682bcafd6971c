"""Missing backlog queues are created when a message has to be diverted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage
from tests.pairing.twins import Twins, down, eventually

from twinbus import PairedServiceBusClient as SyncClient
from twinbus import Route, SendAvailabilityOptions
from twinbus.aio import PairedServiceBusClient
from twinbus.pairing.events import BacklogQueueRestored, BacklogQueueRetired, Event

PATH = "contoso/x-servicebus-transfer/{}"


@pytest_asyncio.fixture
async def twins() -> AsyncIterator[Twins]:
    async with Twins.running() as running:
        await running.queue("orders")
        yield running


def options(count: int) -> SendAvailabilityOptions:
    return SendAvailabilityOptions(backlog_queue_count=count, primary_name="contoso", attempt_timeout=5)


def of_kind(events: list[Event], kind: type[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, kind)]


@pytest.mark.parametrize("count", [1, 3])
async def test_deleted_queue_is_created_again_and_the_send_is_accepted(twins: Twins, count: int) -> None:
    async with PairedServiceBusClient(*twins.sides(), options(count)) as client:
        events: list[Event] = []
        client.on_event(events.append)
        client.fail_over("orders")
        async with client.get_queue_sender("orders") as sender:
            first = await sender.send_messages(ServiceBusMessage("1"))
            assert first.queue is not None
            await twins.secondary.delete(first.queue)
            assert (await sender.send_messages(ServiceBusMessage("2"))).route is Route.BACKLOG
            await eventually(lambda: twins.secondary.find(first.queue or "") is not None)
            await eventually(lambda: of_kind(events, BacklogQueueRestored))
        assert len(of_kind(events, BacklogQueueRetired)) == 1
        assert sum(twins.backlog(index).counters.active for index in range(count)) == 1  # the other went with its queue


async def test_deleted_queue_is_created_again_for_threads(twins: Twins) -> None:
    with SyncClient(*twins.sides(), options(1)) as client:

        def send(text: str) -> Route:
            with client.get_queue_sender("orders") as sender:
                return sender.send_messages(ServiceBusMessage(text)).route

        await asyncio.to_thread(client.fail_over, "orders")
        assert await asyncio.to_thread(send, "1") is Route.BACKLOG
        await twins.secondary.delete(PATH.format(0))
        assert await asyncio.to_thread(send, "2") is Route.BACKLOG
        assert twins.backlog(0).counters.active == 1
        await asyncio.to_thread(client.close)


async def test_queues_are_created_as_soon_as_a_secondary_that_was_down_answers(twins: Twins) -> None:
    down(twins.secondary)
    async with PairedServiceBusClient(*twins.sides(), options(2)) as client:
        assert not client.status().backlog_is_ready
        client.fail_over("orders")
        twins.secondary.faults.clear()
        async with client.get_queue_sender("orders") as sender:
            assert (await sender.send_messages(ServiceBusMessage("1"))).route is Route.BACKLOG
        await eventually(lambda: client.status().backlog_is_ready)
        assert [twins.secondary.find(PATH.format(index)) is not None for index in range(2)] == [True, True]
