"""Helpers for tests of the AMQP client: messages, inboxes, outcomes, connections."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from twinbus.amqp.client.connection import Opening
from twinbus.amqp.codec import sections
from twinbus.amqp.codec.encoding import encode
from twinbus.emulator import Namespace
from twinbus.syphon import AmqpError, Connection, Delivery, Receiver, Sender, from_connection_string

PATIENCE = 60.0  # seconds for something that should happen at once
MOMENT = 0.1  # seconds for something that should not happen


def message(body: bytes = b"x", message_id: str = "m") -> bytes:
    """An encoded message."""
    return sections.list_section(sections.PROPERTIES, [encode(message_id)]) + b"\x00\x53\x75" + encode(body)


def body_of(payload: bytes) -> bytes:
    return sections.data_sections(sections.split_sections(payload).body)[0]


def annotations_of(payload: bytes) -> dict[str, Any]:
    section = sections.split_sections(payload).message_annotations
    return {key: sections.entry_value(raw) for key, raw in sections.map_entries(section)}


def properties_of(payload: bytes) -> dict[str, Any]:
    section = sections.split_sections(payload).application_properties
    return {key: sections.entry_value(raw) for key, raw in sections.map_entries(section)}


def sequence_number(payload: bytes) -> int:
    return int(annotations_of(payload)["x-opt-sequence-number"])


def connect(namespace: Namespace, **options: Any) -> Opening:
    """A connection with all rights."""
    endpoint, credential = from_connection_string(namespace.connection_string)
    return Connection.open(endpoint, credential, **{"timeout": PATIENCE, **options})


async def eventually(holds: Callable[[], Any]) -> None:
    """Poll until a condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class Inbox:
    """Collects deliveries; `await inbox.take(3)` returns the next three."""

    def __init__(self) -> None:
        self._deliveries: deque[Delivery] = deque()
        self._arrived = asyncio.Event()

    def __call__(self, delivery: Delivery) -> None:
        self._deliveries.append(delivery)
        self._arrived.set()

    def __len__(self) -> int:
        return len(self._deliveries)

    async def take(self, count: int = 1) -> list[Delivery]:
        async with asyncio.timeout(PATIENCE):
            while len(self._deliveries) < count:
                self._arrived.clear()
                await self._arrived.wait()
        return [self._deliveries.popleft() for _ in range(count)]

    async def take_one(self) -> Delivery:
        return (await self.take())[0]


class Outcomes:
    """Collects outcomes in order of arrival; `on(key)` returns a callback."""

    def __init__(self) -> None:
        self.seen: dict[Any, AmqpError | None] = {}
        self._arrived = asyncio.Event()

    def on(self, key: Any) -> Callable[[AmqpError | None], None]:
        def tell(error: AmqpError | None) -> None:
            assert key not in self.seen, f"a second outcome for {key}"
            self.seen[key] = error
            self._arrived.set()

        return tell

    async def all(self, count: int) -> dict[Any, AmqpError | None]:
        async with asyncio.timeout(PATIENCE):
            while len(self.seen) < count:
                self._arrived.clear()
                await self._arrived.wait()
        return self.seen


async def send_all(sender: Sender, payloads: list[bytes]) -> dict[Any, AmqpError | None]:
    """Send messages pipelined, as credit allows. Returns the outcomes by index."""
    outcomes = Outcomes()
    for index, payload in enumerate(payloads):
        await sender.wait_for_credit(PATIENCE)
        sender.send(payload, outcomes.on(index))
    return await outcomes.all(len(payloads))


async def receive(connection: Connection, path: str, credit: int) -> tuple[Receiver, Inbox]:
    inbox = Inbox()
    return await connection.attach_receiver(path, inbox, credit=credit), inbox
