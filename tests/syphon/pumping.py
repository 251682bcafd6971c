"""What the tests of the syphon need: two namespaces, messages in the backlog, and what has become of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Self

from tests.broker.contract.bus import SettableClock
from tests.syphon.bus import PATIENCE, body_of, connect, eventually, properties_of, send_all

from twinbus.amqp import sections
from twinbus.amqp.encoding import encode
from twinbus.amqp.types import Described, Long, Symbol
from twinbus.broker import Fault, Kind, Namespace, Operation, Profile, QueueDescription, TopicDescription
from twinbus.broker.durations import TICKS_PER_SECOND
from twinbus.broker.faults import ActiveFault
from twinbus.broker.queue import Queue
from twinbus.ledger import MemoryRecorder, OperationKind
from twinbus.pairing import aliases
from twinbus.pairing.options import SyphonOptions
from twinbus.syphon import ACCEPT, Delivery
from twinbus.syphon.connector import Side
from twinbus.syphon.host import SyphonHost
from twinbus.syphon.report import DrainReport
from twinbus.syphon.terms import Terms

BACKLOG = "contoso/x-servicebus-transfer/0"
LOCK_SECONDS = 60
# Fast enough for a test, and still many times what a turn of the event loop takes.
QUICK = {"retry_min": 0.05, "retry_max": 0.4}


def envelope(
    destination: str | None,
    body: bytes = b"x",
    *,
    session: str | None = None,
    seconds: float | None = None,
    id: str = "m",
) -> bytes:
    """A message as a paired sender leaves it in the backlog; without a destination it is none of ours."""
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
        description = QueueDescription(
            BACKLOG, lock_duration=int(self._lock_seconds * TICKS_PER_SECOND), max_delivery_count=2147483647
        )
        await self.secondary.create(description)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.primary.close()
        await self.secondary.close()

    async def create(self, *paths: str, **properties: Any) -> None:
        """Queues in the primary."""
        for path in paths:
            await self.primary.create(QueueDescription(path, **properties))

    async def create_topic(self, path: str) -> None:
        await self.primary.create(TopicDescription(path))

    async def put(self, payloads: Iterable[bytes]) -> None:
        """Bring messages to the backlog."""
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
        """Once, until nothing is left that can be moved."""
        async with asyncio.timeout(PATIENCE * 3):
            return await self.host(**terms).drain()

    @asynccontextmanager
    async def running(self, **terms: Any) -> AsyncIterator[SyphonHost]:
        """A syphon that goes on until the context is left."""
        host = self.host(**terms)
        await host.start()
        try:
            yield host
        finally:
            async with asyncio.timeout(PATIENCE * 2):
                await host.close()

    # ---- what the namespaces say ----

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
        """The bodies of all messages in a queue of the primary, in order. They are gone afterwards."""
        return [body_of(payload) for payload in await take_all(self.primary, path)]

    async def dead_letters(self) -> list[dict[str, Any]]:
        """The application properties of the backlog's dead letters."""
        found = await take_all(self.secondary, f"{BACKLOG}/$DeadLetterQueue")
        return [properties_of(payload) for payload in found]

    def rows(self, kind: OperationKind) -> int:
        """How many messages or operations of a kind the ledger knows of."""
        return sum(1 for row in self.recorder.operations if row.operation is kind)

    async def until(self, path: str, count: int) -> None:
        """Wait until so many messages have arrived at a destination."""
        await eventually(lambda: self.queue(path).activity.received >= count)


async def take_all(namespace: Namespace, path: str) -> list[bytes]:
    """Everything that is available in a queue, completed."""
    found: list[bytes] = []
    # Credit is given back as soon as the window of the session is full, so that may take several turns.
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


def counting(namespace: Namespace, entity: str, *operations: Operation) -> ActiveFault:
    """Counts operations on an entity, where they happen: `fired` says how many."""
    return namespace.faults.add(Fault(Kind.SLOW, entity, frozenset(operations), delay=1e-6))


def numbered(destination: str, numbers: Iterable[int], **options: Any) -> list[bytes]:
    return [envelope(destination, b"%d" % number, id=f"{destination}-{number}", **options) for number in numbers]


def bodies(numbers: Iterable[int]) -> list[bytes]:
    return [b"%d" % number for number in numbers]
