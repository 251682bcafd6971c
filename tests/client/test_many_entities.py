"""One client with many entities on busy cores: openings take turns, and starvation is not an outage."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage
from tests.pairing.twins import Twins, eventually

from twinbus import PairedServiceBusClient as SyncClient
from twinbus import Route, SendAvailabilityOptions
from twinbus.aio import PairedServiceBusClient
from twinbus.client.pairing_status import EntityState
from twinbus.pairing.events import BacklogQueueRetired, Event, FailedOver, Recovered, Suspected

pytestmark = pytest.mark.slow

ENTITIES = 80
OPTIONS = SendAvailabilityOptions(
    primary_name="contoso", failover_interval=1, ping_primary_interval=2, attempt_timeout=5, max_connections=60
)

SendAll = Callable[[], Awaitable[Counter[Route]]]


@pytest.fixture(autouse=True)
def busy_cores() -> Iterator[None]:
    burning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    yield
    for process in burning:
        process.kill()
        process.wait()


@pytest_asyncio.fixture
async def twins() -> AsyncIterator[Twins]:
    async with Twins.running() as running:
        for number in range(ENTITIES):
            await running.queue(f"q{number}")
        yield running


async def go_through_an_outage(twins: Twins, client: Any, events: list[Event], send_all: SendAll) -> None:
    """Send to more entities than connections, before, during and after an outage."""
    assert await send_all() == {Route.PRIMARY: ENTITIES}
    assert not {type(event) for event in events} & {Suspected, FailedOver, BacklogQueueRetired}
    twins.primary_down()
    assert await send_all() == {Route.BACKLOG: ENTITIES}
    await eventually(lambda: sum(isinstance(event, FailedOver) for event in events) == ENTITIES)
    assert await send_all() == {Route.BACKLOG: ENTITIES}
    twins.primary_up()
    await eventually(lambda: sum(isinstance(event, Recovered) for event in events) == ENTITIES)
    assert all(entity.state is not EntityState.FAILED_OVER for entity in client.status().entities)
    assert await send_all() == {Route.PRIMARY: ENTITIES}
    assert not any(isinstance(event, BacklogQueueRetired) for event in events)


async def test_outage_of_many_entities_with_tasks(twins: Twins) -> None:
    async with PairedServiceBusClient(*twins.sides(), OPTIONS) as client:
        events: list[Event] = []
        client.on_event(events.append)
        senders = [client.get_queue_sender(f"q{number}") for number in range(ENTITIES)]

        async def send_all() -> Counter[Route]:
            receipts = await asyncio.gather(*(sender.send_messages(ServiceBusMessage("x")) for sender in senders))
            return Counter(receipt.route for receipt in receipts)

        await go_through_an_outage(twins, client, events, send_all)


async def test_outage_of_many_entities_with_threads(twins: Twins) -> None:
    client = await asyncio.to_thread(SyncClient, *twins.sides(), OPTIONS)
    events: list[Event] = []
    client.on_event(events.append)
    senders = [client.get_queue_sender(f"q{number}") for number in range(ENTITIES)]
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(ENTITIES) as threads:

        async def send_all() -> Counter[Route]:
            sends = [loop.run_in_executor(threads, one.send_messages, ServiceBusMessage("x")) for one in senders]
            return Counter(receipt.route for receipt in await asyncio.gather(*sends))

        try:
            await asyncio.to_thread(client.start)
            await go_through_an_outage(twins, client, events, send_all)
        finally:
            await asyncio.to_thread(client.close)
