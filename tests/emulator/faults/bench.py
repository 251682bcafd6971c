"""A namespace on the test's event loop, with queues and SDK clients without retries."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import ServiceBusError

from twinbus.emulator import Fault, Namespace, QueueDescription
from twinbus.emulator.entities.entity_directory import AnyEntity
from twinbus.emulator.faults.fault_plan import ActiveFault

PATIENCE = 60.0  # seconds to wait for something expected at once
SHORT = 0.5  # seconds to wait for something that never happens
MANY = 1_000_000


class Place:
    """A queue with a sender and a receiver, which connect on first use."""

    def __init__(self, bench: Bench, path: str) -> None:
        self.path = path
        self._bench = bench
        self.sender: ServiceBusSender = bench.client.get_queue_sender(path)
        self.receiver: ServiceBusReceiver = bench.client.get_queue_receiver(path)

    async def send(self, text: str = "message", patience: float = PATIENCE) -> None:
        await self.sender.send_messages(ServiceBusMessage(text), timeout=patience)

    async def schedule(self, patience: float = PATIENCE) -> None:
        due = datetime.now(UTC) + timedelta(hours=1)
        await self.sender.schedule_messages(ServiceBusMessage("later"), due, timeout=patience)

    async def receive(self, patience: float = PATIENCE) -> list[ServiceBusReceivedMessage]:
        return await self.receiver.receive_messages(max_message_count=1, max_wait_time=patience)

    async def receive_one(self) -> ServiceBusReceivedMessage:
        received = await self.receive()
        assert received, "no message received"
        return received[0]

    async def locked(self) -> ServiceBusReceivedMessage:
        """Send a message and receive it, so that it is locked."""
        await self.send()
        return await self.receive_one()

    async def complete_one(self) -> None:
        """Receive and complete a message. Retries once, as the SDK may first notice that its link is gone."""
        try:
            message = await self.receive_one()
        except ServiceBusError:
            message = await self.receive_one()
        await self.receiver.complete_message(message)

    async def peek_texts(self) -> list[str]:
        peeked = await self.receiver.peek_messages(max_message_count=100, sequence_number=1)
        return [str(message) for message in peeked]

    @property
    def entity(self) -> AnyEntity:
        """The namespace's entity, to check counts at the server."""
        entity = self._bench.namespace.find(self.path)
        assert entity is not None
        return entity

    @property
    def received(self) -> int:
        return self.entity.queue.activity.received

    @property
    def completed(self) -> int:
        return self.entity.queue.activity.completed

    @property
    def scheduled(self) -> int:
        return self.entity.counts.scheduled

    @property
    def locks(self) -> int:
        return self.entity.queue.locked


class Bench:
    """A running namespace and an SDK client. `shared` is a queue for tests that leave it unchanged."""

    def __init__(self) -> None:
        self.namespace = Namespace("contoso")
        self.client: ServiceBusClient
        self.shared: Place
        self._places: list[Place] = []
        self._numbers = itertools.count(1)

    async def __aenter__(self) -> Self:
        await self.namespace.start()
        self.client = ServiceBusClient.from_connection_string(self.namespace.connection_string, retry_total=0)
        self.shared = await self.place()
        await asyncio.gather(self.shared.sender.__aenter__(), self.shared.receiver.__aenter__())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.namespace.faults.clear()
        links = [link for place in self._places for link in (place.sender, place.receiver)]
        await asyncio.gather(*(link.close() for link in links))
        await self.client.close()
        await self.namespace.close()

    async def place(self) -> Place:
        """Create a new queue."""
        path = f"orders-{next(self._numbers)}"
        await self.namespace.create(QueueDescription(path))
        place = Place(self, path)
        self._places.append(place)
        return place

    def add(self, *args: Any, **fields: Any) -> ActiveFault:
        """Put a fault in force."""
        return self.namespace.faults.add(Fault(*args, **fields))

    def clear(self) -> None:
        self.namespace.faults.clear()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition inside the namespace is true."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - the namespace has no event for this
            await asyncio.sleep(0.005)


async def unanswered(work: Awaitable[Any]) -> None:
    """Assert that `work` does not finish within `SHORT` seconds."""
    try:
        await asyncio.wait_for(work, SHORT)
    except TimeoutError:
        return
    raise AssertionError("expected no answer")
