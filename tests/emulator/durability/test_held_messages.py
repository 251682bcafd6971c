"""Locked messages, and messages being settled at a disconnect, do not hide others and are not lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.emulator.raw_client import NEXT_SESSION, Delivery, RawClient, encoded_message

from twinbus.amqp.codec import sections
from twinbus.amqp.codec.encoding import encode
from twinbus.amqp.codec.performatives import Modified
from twinbus.amqp.codec.types import Timestamp
from twinbus.emulator.entities.window import LOAD_MESSAGES
from twinbus.emulator.server.namespace import Namespace
from twinbus.servicebus.entity_descriptions import QueueDescription

SECONDS = 60.0
BEHIND = 10


@pytest.fixture
async def namespace() -> AsyncIterator[Namespace]:
    async with Namespace("contoso") as running:
        await running.create(QueueDescription("orders"))
        await running.create(QueueDescription("sessions", requires_session=True))
        yield running


async def _gone(namespace: Namespace) -> None:
    """Wait until the namespace has noticed that its clients disconnected."""
    await asyncio.wait_for(namespace._wait_for_connections(), SECONDS)


async def test_locked_messages_do_not_hide_those_behind_them(namespace: Namespace) -> None:
    locked = 2 * LOAD_MESSAGES
    arrived: asyncio.Queue[Delivery] = asyncio.Queue()
    async with RawClient(namespace.connection_string) as client:
        await client.put_token("orders")
        sender = await client.sender("orders")
        await asyncio.gather(*(sender.send(encoded_message(f"{number:04}")) for number in range(locked + BEHIND)))
        receiver = await client.receiver("orders", arrived.put_nowait)
        receiver.grant(locked)
        for _ in range(locked):
            await asyncio.wait_for(arrived.get(), SECONDS)
        client.abort()
    await _gone(namespace)
    async with RawClient(namespace.connection_string) as client:
        await client.put_token("orders")
        receiver = await client.receiver("orders", arrived.put_nowait)
        receiver.grant(locked)
        received = [(await asyncio.wait_for(arrived.get(), SECONDS)).message_id for _ in range(BEHIND)]
        assert received == [f"{number:04}" for number in range(locked, locked + BEHIND)]


async def test_message_abandoned_by_a_disconnected_session_receiver_can_be_received(namespace: Namespace) -> None:
    arrived: asyncio.Queue[Delivery] = asyncio.Queue()
    async with RawClient(namespace.connection_string) as client:
        await client.put_token("sessions")
        sender = await client.sender("sessions")
        await sender.send(encoded_message("one", session="a"))
        receiver = await client.receiver("sessions", arrived.put_nowait, session=NEXT_SESSION)
        receiver.grant(1)
        delivery = await asyncio.wait_for(arrived.get(), SECONDS)
        receiver.settle(delivery, lambda error: None, Modified(True))
        # Closed at once: the session ends before the abandonment is stored.
    await _gone(namespace)
    async with RawClient(namespace.connection_string) as client:
        await client.put_token("sessions")
        receiver = await asyncio.wait_for(
            client.receiver("sessions", arrived.put_nowait, session=NEXT_SESSION), SECONDS
        )
        receiver.grant(1)
        again = await asyncio.wait_for(arrived.get(), SECONDS)
    assert (receiver.session, again.message_id) == ("a", "one")


async def test_extreme_times_are_stored(namespace: Namespace) -> None:
    null, last = encode(None), (1 << 63) - 1
    expiry, creation = encode(Timestamp(last)), encode(Timestamp(-last))
    fields = [encode("far"), *[null] * 7, expiry, creation]
    message = sections.list_section(sections.PROPERTIES, fields) + b"\x00\x53\x75" + encode(b"x")
    async with RawClient(namespace.connection_string) as client:
        await client.put_token("orders")
        sender = await client.sender("orders")
        await asyncio.wait_for(sender.send(message), SECONDS)
        await asyncio.wait_for(sender.send(encoded_message("near", due_at=last / 1000 - 10_000)), SECONDS)
        answer = await client.manage("orders", "peek-message", {"from-sequence-number": 0, "message-count": 10})
        assert len(answer["messages"]) == 2
