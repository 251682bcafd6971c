"""Sends a message both directly and through the backlog, and compares the results."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Literal, NamedTuple, Self

from azure.servicebus.aio import ServiceBusClient
from tests.amqp.amqp_values import same
from tests.emulator.contract.bus import SettableClock, let_pass
from tests.syphon.bus import PATIENCE, Inbox, connect

from twinbus.amqp.codec import sections
from twinbus.amqp.codec.types import Timestamp
from twinbus.emulator import AZURE, Namespace, QueueDescription
from twinbus.envelope import aliases
from twinbus.envelope.restoring import Restored, restore
from twinbus.envelope.wrapping import Message, wrap
from twinbus.syphon import ACCEPT, Connection, Receiver, Sender
from twinbus.syphon.receiving.broker_clock import BrokerClock

BACKLOG = "contoso/x-servicebus-transfer/0"
LOCK_MS = 60_000
SLACK_MS = 5_000  # between two sends of the same message, on a slow machine
# Throttling has tests of its own; the strict profile keeps its other demands.
STRICT = replace(AZURE, throttle=None)


class Ways(NamedTuple):
    """The bytes that a receiver got: sent directly, in the backlog, and after the move."""

    direct: bytes
    backlog: bytes
    restored: Restored
    moved: bytes


class TwoNamespaces:
    """A primary with the queues `direct` and `moved`, a secondary with a backlog queue, and links to all of them."""

    def __init__(self) -> None:
        self.clock = SettableClock()
        self.primary = Namespace("contoso", profile=STRICT)
        self.secondary = Namespace("fabrikam", profile=STRICT, clock=self.clock)
        self._stack = AsyncExitStack()
        self._inboxes: dict[str, tuple[Receiver, Inbox]] = {}
        self.to_primary: Connection
        self.to_secondary: Connection
        self.mover: Sender

    async def __aenter__(self) -> Self:
        enter = self._stack.enter_async_context
        await enter(self.primary)
        await enter(self.secondary)
        for path in ("direct", "moved"):
            await self.primary.create(QueueDescription(path))
        await self.secondary.create(QueueDescription(BACKLOG, lock_duration=LOCK_MS * aliases.TICKS_PER_MS))
        unused = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.sdk = [
            await enter(ServiceBusClient.from_connection_string(name, retry_total=0, ssl_context=unused))
            for name in (self.primary.connection_string, self.secondary.connection_string)
        ]
        self.direct_sender = await enter(self.sdk[0].get_queue_sender("direct"))
        self.backlog_sender = await enter(self.sdk[1].get_queue_sender(BACKLOG))
        self.to_primary = await enter(connect(self.primary))
        self.to_secondary = await enter(connect(self.secondary))
        self.mover = await self.to_primary.attach_sender("moved")
        for connection, path in (
            (self.to_primary, "direct"),
            (self.to_primary, "moved"),
            (self.to_secondary, BACKLOG),
        ):
            inbox = Inbox()
            self._inboxes[path] = await connection.attach_receiver(path, inbox), inbox
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stack.__aexit__(*error)

    async def take(self, path: str) -> bytes:
        """Receive and complete the next message of a queue."""
        receiver, inbox = self._inboxes[path]
        receiver.add_credit(1)
        delivery = await inbox.take_one()
        await receiver.settled(delivery, ACCEPT, PATIENCE)
        return delivery.payload

    async def let_pass(self, seconds: float) -> None:
        """Advance the secondary's clock only."""
        await let_pass(self.secondary, self.clock, seconds)

    async def divert(self, message: Message, destination: str = "moved", wait: float = 0.0) -> bytes:
        """Divert a message and receive it from the backlog after `wait` seconds."""
        await self.backlog_sender.send_messages(wrap(message, destination))
        if wait:
            await self.let_pass(wait)
        return await self.take(BACKLOG)

    def restored(self, payload: bytes, ttl: Literal["remaining", "restart"] = "remaining") -> Restored:
        """Restore a delivery as the pump does."""
        clock, now = BrokerClock(LOCK_MS), asyncio.get_running_loop().time()
        clock.observe(payload, now)
        return restore(payload, now_ms=clock.now_ms(now), ttl=ttl)

    async def both(self, message: Message, ttl: Literal["remaining", "restart"] = "remaining") -> Ways:
        """Send a message directly and through the backlog."""
        await self.direct_sender.send_messages(message)
        direct = await self.take("direct")
        backlog = await self.divert(message)
        restored = self.restored(backlog, ttl)
        assert restored.destination == self.mover.path == "moved"
        await self.mover.deliver(restored.payload, PATIENCE)
        return Ways(direct, backlog, restored, await self.take("moved"))


def entries_of(section: bytes) -> dict[Any, Any]:
    """The raw entries of a map section without the broker's, by the type and value of their key."""
    found = {}
    for name, raw in sections.map_entries(section):
        if name not in aliases.BROKER_ANNOTATIONS:
            found[type(name), name] = raw
    return found


def header_of(payload: bytes) -> list[Any]:
    return sections.list_fields(sections.split_sections(payload).header, 5)


def properties_of(payload: bytes) -> list[Any]:
    """The properties section with exact types, all 13 fields."""
    fields = sections.section_value(sections.split_sections(payload).properties) or []
    return fields + [None] * (13 - len(fields))


def assert_equal(ways: Ways, ttl: Literal["remaining", "restart"] = "remaining") -> None:
    """Both messages are equal: byte for byte where nothing was rewritten, else in values and types."""
    direct, moved = sections.split_sections(ways.direct), sections.split_sections(ways.moved)
    assert moved.body == direct.body
    assert moved.application_properties == direct.application_properties
    assert entries_of(moved.message_annotations) == entries_of(direct.message_annotations)
    assert entries_of(moved.delivery_annotations) == entries_of(direct.delivery_annotations)
    _assert_equal_headers(header_of(ways.direct), header_of(ways.moved), ttl)
    sent, arrived = properties_of(ways.direct), properties_of(ways.moved)
    if sent[8:11] == [None, None, None]:
        assert moved.properties == direct.properties
    if header_of(ways.direct)[2]:
        # The SDK writes the time of each send.
        for place in (9, 8):
            ours, theirs = arrived.pop(place), sent.pop(place)
            assert type(ours) is type(theirs) is Timestamp
            assert abs(ours - theirs) <= SLACK_MS
    assert same(sent, arrived)


def _assert_equal_headers(direct: list[Any], moved: list[Any], ttl: str) -> None:
    sent, arrived = direct.pop(2), moved.pop(2)
    assert same(direct, moved)
    assert type(sent) is type(arrived)
    if ttl == "restart" or sent is None:
        assert sent == arrived
    else:
        assert 0 <= sent - arrived <= SLACK_MS
