"""Helpers for tests of the syphon: two namespaces, backlog messages, and where they ended up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Self

from tests.emulator.contract.bus import SettableClock
from tests.namespace_internals import Queue
from tests.syphon.bus import PATIENCE, body_of, connect, eventually, properties_of, send_all

from twinbus.amqp.codec import sections
from twinbus.amqp.codec.encoding import encode
from twinbus.amqp.codec.types import Described, Long, Symbol
from twinbus.emulator import (
    ActiveFault,
    Fault,
    FaultKind,
    FaultPoint,
    Namespace,
    Profile,
    QueueDescription,
    TopicDescription,
)
from twinbus.envelope import aliases
from twinbus.ledger import MemoryRecorder, OperationKind
from twinbus.pairing.options import SyphonOptions
from twinbus.servicebus.durations import TICKS_PER_SECOND
from twinbus.syphon import ACCEPT, Delivery
from twinbus.syphon.connector import Side
from twinbus.syphon.drain_report import DrainReport
from twinbus.syphon.host import SyphonHost
from twinbus.syphon.terms import Terms

BACKLOG = "contoso/x-servicebus-transfer/0"
LOCK_SECONDS = 60
# Fast enough for a test, and much longer than a turn of the event loop.
QUICK = {"retry_min": 0.05, "retry_max": 0.4}


def envelope(
    destination: str | None,
    body: bytes = b"x",
    *,
    session: str | None = None,
    seconds: float | None = None,
    id: str = "m",
) -> bytes:
    """A diverted message; without an envelope if there is no destination."""
    entries = []
    if destination is not None:
        entries.append(sections.entry(aliases.PATH, destination))
    if session is not None:
        entries.append(sections.entry(aliases.SESSION_ID, session))
    if seconds is not None:
        ticks = Long(int(seconds * TICKS_PER_SECOND))
        entries.append(sections.entry(aliases.TIME_TO_LIVE, Described(Symbol(aliases.TIMESPAN), ticks)))
    return (
        sections.list_section(sections.PROPERTIES, [encode(id)])
        + sections.map_section(sections.APPLICATION_PROPERTIES, entries)
        + b"\x00\x53\x75"
        + encode(body)
    )


class Pair:
    """A primary and a secondary with one backlog queue."""

    def __init__(self, profile: Profile, lock_seconds: float = LOCK_SECONDS) -> None:
        self.clock = SettableClock()
        self.primary = Namespace("contoso", profile=profile)
        self.secondary = Namespace("fabrikam", profile=profile, clock=self.clock)
        self.recorder = MemoryRecorder(1_000_000)
        self._lock_seconds = lock_seconds

    async def __aenter__(self) -> Self:
        await self.primary.start()
        await self.secondary.start()
        await self.create_backlog()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.primary.close()
        await self.secondary.close()

    async def create_backlog(self) -> None:
        description = QueueDescription(
            BACKLOG, lock_duration=int(self._lock_seconds * TICKS_PER_SECOND), max_delivery_count=2147483647
        )
        await self.secondary.create(description)

    async def create(self, *paths: str, **properties: Any) -> None:
        """Create queues in the primary."""
        for path in paths:
            await self.primary.create(QueueDescription(path, **properties))

    async def create_topic(self, path: str) -> None:
        await self.primary.create(TopicDescription(path))

    async def put(self, payloads: Iterable[bytes]) -> None:
        """Send messages to the backlog queue."""
        async with connect(self.secondary) as connection:
            sender = await connection.attach_sender(BACKLOG)
            outcomes = await send_all(sender, list(payloads))
        assert set(outcomes.values()) <= {None}

    # ---- the syphon ----

    def host(
        self, *, queues: tuple[str, ...] = (BACKLOG,), options: dict[str, Any] | None = None, **terms: Any
    ) -> SyphonHost:
        sides = (Side.from_connection_string(one.connection_string) for one in (self.primary, self.secondary))
        facts = {"pairing": "contoso", "client": "test", "recorder": self.recorder, "lock_seconds": self._lock_seconds}
        return SyphonHost(
            *sides, queues, Terms(options=SyphonOptions(**{**QUICK, **(options or {})}), **{**facts, **terms})
        )

    async def drain(self, **terms: Any) -> DrainReport:
        """Drain until nothing movable is left."""
        async with asyncio.timeout(PATIENCE * 3):
            return await self.host(**terms).drain()

    @asynccontextmanager
    async def running(self, **terms: Any) -> AsyncIterator[SyphonHost]:
        """Run a syphon for the duration of the context."""
        host = self.host(**terms)
        await host.start()
        try:
            yield host
        finally:
            async with asyncio.timeout(PATIENCE * 2):
                await host.close()

    # ---- results ----

    @property
    def backlog(self) -> Queue:
        node = self.secondary.entities.resolve(BACKLOG)
        assert node is not None
        return node.queue

    def queue(self, path: str) -> Queue:
        node = self.primary.entities.resolve(path)
        assert node is not None
        return node.queue

    @property
    def is_backlog_empty(self) -> bool:
        counters = self.backlog.counters
        return counters.active == counters.deferred == 0

    async def arrived(self, path: str) -> list[bytes]:
        """Receive and complete all messages of a queue of the primary. Returns their bodies."""
        return [body_of(payload) for payload in await take_all(self.primary, path)]

    async def dead_letters(self) -> list[dict[str, Any]]:
        """Receive and complete the backlog's dead letters. Returns their application properties."""
        found = await take_all(self.secondary, f"{BACKLOG}/$DeadLetterQueue")
        return [properties_of(payload) for payload in found]

    def rows(self, kind: OperationKind) -> int:
        """The number of ledger rows of a kind."""
        return sum(1 for row in self.recorder.operations if row.operation is kind)

    async def until(self, path: str, count: int) -> None:
        """Wait until `count` messages have arrived at a destination."""
        await eventually(lambda: self.queue(path).activity.received >= count)


async def take_all(namespace: Namespace, path: str) -> list[bytes]:
    """Receive and complete everything available in a queue."""
    found: list[bytes] = []
    # Credit is returned when the session's window is full, so it may take several rounds.
    while some := await _take_some(namespace, path):
        found += some
    return found


async def _take_some(namespace: Namespace, path: str) -> list[bytes]:
    found: list[Delivery] = []
    async with connect(namespace) as connection:
        receiver = await connection.attach_receiver(path, found.append, credit=100_000)
        await receiver.stop(PATIENCE)
        for delivery in found:
            await receiver.settled(delivery, ACCEPT, PATIENCE)
    return [delivery.payload for delivery in found]


def counting(namespace: Namespace, entity: str, *operations: FaultPoint) -> ActiveFault:
    """A fault that only counts operations on an entity: `fired` is the number."""
    return namespace.faults.add(Fault(FaultKind.SLOW, entity, frozenset(operations), delay=1e-6))


def numbered(destination: str, numbers: Iterable[int], **options: Any) -> list[bytes]:
    return [envelope(destination, b"%d" % number, id=f"{destination}-{number}", **options) for number in numbers]


def bodies(numbers: Iterable[int]) -> list[bytes]:
    return [b"%d" % number for number in numbers]
