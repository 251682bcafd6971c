"""A namespace on the test's own loop with two queues, and SDK clients that stay open from test to test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from typing import Any, Self, TypeVar

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender

from twinbus.broker import Fault, Namespace, QueueDescription
from twinbus.broker.faults import ActiveFault
from twinbus.broker.queue import Activity

STRUCK = "orders"
SPARED = "invoices"
PATIENCE = 10.0  # seconds for something that should come at once
SHORT = 0.5  # seconds after which a client may give up on something that never comes
MANY = 1_000_000
_T = TypeVar("_T")


class Bench:
    """A sender and a receiver for the queue that faults strike, and a sender for one that they do not.

    There are no retries, so that the SDK's first exception shows.
    """

    def __init__(self) -> None:
        self.namespace = Namespace("contoso")
        self.client: ServiceBusClient
        self.sender: ServiceBusSender
        self.receiver: ServiceBusReceiver
        self.spared: ServiceBusSender
        self._opened: list[Any] = []

    async def __aenter__(self) -> Self:
        await self.namespace.start()
        for name in (STRUCK, SPARED):
            await self.namespace.create(QueueDescription(name))
        self.client = ServiceBusClient.from_connection_string(self.namespace.connection_string, retry_total=0)
        self.sender = self.client.get_queue_sender(STRUCK)
        self.receiver = self.client.get_queue_receiver(STRUCK)
        self.spared = self.client.get_queue_sender(SPARED)
        await self.open(self.sender, self.receiver, self.spared)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.namespace.faults.clear()
        await asyncio.gather(*(link.close() for link in self._opened))
        await self.client.close()
        await self.namespace.close()

    async def open(self, *links: Any) -> None:
        """Open links at the same time; they are closed at the end."""
        self._opened += links
        await asyncio.gather(*(link.__aenter__() for link in links))

    def new_sender(self, queue: str = STRUCK) -> ServiceBusSender:
        """A sender that connects when it is first used."""
        sender = self.client.get_queue_sender(queue)
        self._opened.append(sender)
        return sender

    def add(self, *args: Any, **fields: Any) -> ActiveFault:
        """Put a fault in force."""
        return self.namespace.faults.add(Fault(*args, **fields))

    def clear(self) -> None:
        self.namespace.faults.clear()

    async def send(self, text: str = "message", timeout: float = PATIENCE) -> None:
        await self.sender.send_messages(ServiceBusMessage(text), timeout=timeout)

    async def send_elsewhere(self) -> None:
        await self.spared.send_messages(ServiceBusMessage("spared"), timeout=PATIENCE)

    async def schedule(self, timeout: float = PATIENCE) -> list[int]:
        due = datetime.now(UTC) + timedelta(hours=1)
        return await self.sender.schedule_messages(ServiceBusMessage("later"), due, timeout=timeout)

    async def receive(self, wait: float = PATIENCE) -> list[ServiceBusReceivedMessage]:
        return await self.receiver.receive_messages(max_message_count=1, max_wait_time=wait)

    async def receive_one(self) -> ServiceBusReceivedMessage:
        received = await self.receive()
        assert received, "no message came"
        return received[0]

    async def locked(self) -> ServiceBusReceivedMessage:
        """A message that was sent and is locked by the receiver."""
        await self.send()
        return await self.receive_one()

    @property
    def activity(self) -> Activity:
        """What the struck queue has seen; counted there, not by the client."""
        entity = self.namespace.find(STRUCK)
        assert entity is not None
        return entity.queue.activity

    @property
    def scheduled(self) -> int:
        entity = self.namespace.find(STRUCK)
        assert entity is not None
        return entity.counts.scheduled

    async def until(self, condition: Any) -> None:
        """Wait for something that happens inside the namespace."""

        async def poll() -> None:
            while not condition():
                await asyncio.sleep(0.005)

        await asyncio.wait_for(poll(), PATIENCE)


async def unanswered(work: Awaitable[Any]) -> None:
    """What gets no answer: it is given up after a moment."""
    try:
        await asyncio.wait_for(work, SHORT)
    except TimeoutError:
        return
    raise AssertionError("an answer came")
