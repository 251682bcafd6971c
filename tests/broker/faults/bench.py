"""A namespace on the test's own loop, and queues in it with SDK clients that have no retries."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import ServiceBusError

from twinbus.broker import Fault, Namespace, QueueDescription
from twinbus.broker.entities import AnyEntity
from twinbus.broker.faults import ActiveFault

PATIENCE = 60.0  # seconds for something that should come at once
SHORT = 0.5  # seconds after which a client may give up on something that never comes
MANY = 1_000_000


class Place:
    """A queue with a sender and a receiver, which connect when they are first used."""

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
        assert received, "no message came"
        return received[0]

    async def locked(self) -> ServiceBusReceivedMessage:
        """A message that was sent and is locked by the receiver."""
        await self.send()
        return await self.receive_one()

    async def complete_one(self) -> None:
        """Receive and complete a message; the SDK may first have to find out that its link is gone."""
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
        """The namespace's own object, to count what arrived there and not what the client says."""
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
    """A running namespace and an SDK client; `shared` is a place for tests that leave it as they found it."""

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
        """A queue of its own."""
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
    """Wait for something that happens inside the namespace."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - the namespace has no event for what tests look at
            await asyncio.sleep(0.005)


async def unanswered(work: Awaitable[Any]) -> None:
    """What gets no answer: it is given up after a moment."""
    try:
        await asyncio.wait_for(work, SHORT)
    except TimeoutError:
        return
    raise AssertionError("an answer came")
