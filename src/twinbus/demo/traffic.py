"""Sends and receives continuously, through failures, and records everything in the tally."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from twinbus.aio import PairedServiceBusClient

from .tally import Tally

PAUSE = 0.5  # seconds before a receiver tries again
BATCH = 50


@dataclass(frozen=True, slots=True)
class Destination:
    """A queue, a topic with subscriptions, or a queue whose messages belong to one of these sessions."""

    path: str
    subscriptions: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()

    @property
    def receiving_paths(self) -> tuple[str, ...]:
        return tuple(f"{self.path}/{name}" for name in self.subscriptions) or (self.path,)

    def toml(self, namespace: str) -> str:
        """Return its configuration for `twinbus serve`. Duplicate detection is on, so no receiver should see one."""
        detection = "requires_duplicate_detection = true\n"
        if not self.subscriptions:
            sessions = "requires_session = true\n" if self.sessions else ""
            return f"[namespaces.{namespace}.queues.{self.path}]\n{detection}{sessions}"
        tables = "".join(
            f"[namespaces.{namespace}.topics.{self.path}.subscriptions.{name}]\n" for name in self.subscriptions
        )
        return f"[namespaces.{namespace}.topics.{self.path}]\n{detection}{tables}"


class Traffic:
    """Sends to all destinations at a steady rate, and receives what arrives."""

    def __init__(
        self,
        client: PairedServiceBusClient,
        destinations: tuple[Destination, ...],
        tally: Tally,
        rate: float,
        seed: int,
        now: Callable[[], float],
    ) -> None:
        self._client = client
        self._destinations = destinations
        self._tally = tally
        self._pause = 1 / rate
        self._random = random.Random(seed)
        self._now = now
        self._sending = asyncio.Event()
        self._sending.set()
        self._senders: list[asyncio.Task[None]] = []
        self._receivers: list[asyncio.Task[None]] = []
        self.slowest = 0.0
        self.refused = 0
        #: When a message first went to the backlog.
        self.diverted_at: float | None = None

    def start(self) -> None:
        create = asyncio.get_running_loop().create_task
        self._senders = [create(self._send(destination, self._random.random())) for destination in self._destinations]
        self._receivers = [
            create(self._receive(path, make_receiver))
            for destination in self._destinations
            for path, make_receiver in self._sources(destination)
        ]

    def _sources(self, destination: Destination) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Yield each path where messages of a destination are received, with a factory for its receiver."""
        client, path = self._client, destination.path
        for name in destination.subscriptions:
            yield f"{path}/{name}", partial(client.get_subscription_receiver, path, name)
        for session in destination.sessions:
            yield path, partial(client.get_queue_receiver, path, session_id=session)
        if not destination.subscriptions and not destination.sessions:
            yield path, partial(client.get_queue_receiver, path)

    async def _send(self, destination: Destination, offset: float) -> None:
        sender = (
            self._client.get_topic_sender(destination.path)
            if destination.subscriptions
            else self._client.get_queue_sender(destination.path)
        )
        await asyncio.sleep(offset * self._pause)
        async with sender:
            number = 0
            while self._sending.is_set():
                number += 1
                await self._send_one(sender, destination, number)
                await asyncio.sleep(self._pause)

    async def _send_one(self, sender: Any, destination: Destination, number: int) -> None:
        message_id = str(uuid.UUID(int=self._random.getrandbits(128), version=4))
        session = destination.sessions[number % len(destination.sessions)] if destination.sessions else None
        message = ServiceBusMessage(f"{destination.path} {number}", message_id=message_id, session_id=session)
        self._tally.attempt(destination.path, message_id)
        started = self._now()
        try:
            receipt = await sender.send_messages(message)
        except ServiceBusError:
            self.refused += 1
            return
        ended = self._now()
        self.slowest = max(self.slowest, ended - started)
        if receipt.route.value == "backlog" and self.diverted_at is None:
            self.diverted_at = ended
        self._tally.acknowledge(destination.path, message_id, receipt.route.value)

    async def _receive(self, path: str, make_receiver: Callable[[], Any]) -> None:
        """Receive until cancelled; reconnect after errors, such as while the primary is down."""
        while True:
            try:
                async with make_receiver() as receiver:
                    while True:
                        for message in await receiver.receive_messages(max_message_count=BATCH, max_wait_time=1):
                            self._tally.receive(path, str(message.message_id), message.sequence_number or 0)
                            await receiver.complete_message(message)
            except (ServiceBusError, OSError, ValueError):
                await asyncio.sleep(PAUSE)

    async def stop_sending(self) -> None:
        self._sending.clear()
        await asyncio.gather(*self._senders)

    async def close(self) -> None:
        """Cancel all senders and receivers."""
        tasks = [*self._senders, *self._receivers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
