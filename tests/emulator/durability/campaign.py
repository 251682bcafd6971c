"""Shared state of a crash test's workers: the entities, the ledgers, and a gate that stops them between rounds."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.management import ServiceBusAdministrationClient
from tests.emulator.durability.ledger import DeletingLedger, Ledger
from tests.emulator.raw_client import RawClient

ORDERS = "orders"
FLOOD = "flood"
SESSIONS = "sessions"
LATER = "later"
ONCE = "once"
TOPIC = "news"
SUBSCRIPTIONS = ("north", "south")
SESSION_IDS = tuple(f"session-{number}" for number in range(8))
# Long, so that a lock that survived a restart would keep its message from the final drain.
LOCK = timedelta(minutes=5)
STOP_SECONDS = 60.0


def subscription_path(name: str) -> str:
    """The path of a subscription in the tables."""
    return f"{TOPIC}/{name}"


def subscription_address(name: str) -> str:
    """The AMQP address of a subscription."""
    return f"{TOPIC}/Subscriptions/{name}"


def create_entities(administration: ServiceBusAdministrationClient) -> None:
    """Create the entities that the workers use."""
    options = {"lock_duration": LOCK, "max_delivery_count": 1_000_000}
    for queue in (ORDERS, FLOOD, LATER, ONCE):
        administration.create_queue(queue, **options)
    administration.create_queue(SESSIONS, requires_session=True, **options)
    administration.create_topic(TOPIC)
    for name in SUBSCRIPTIONS:
        administration.create_subscription(TOPIC, name, **options)


class Gate:
    """Stops the workers while the namespace is down or being checked."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._waiting: set[str] = set()
        self._changed = asyncio.Event()

    async def enter(self, worker: str) -> None:
        self._waiting.add(worker)
        self._changed.set()
        await self._open.wait()
        self._waiting.discard(worker)

    def open(self) -> None:
        self._open.set()

    async def close(self, workers: set[str]) -> None:
        """Wait until every worker has stopped at the gate."""
        self._open.clear()
        async with asyncio.timeout(STOP_SECONDS):
            while workers - self._waiting:
                self._changed.clear()
                await self._changed.wait()


@dataclass(slots=True)
class SessionStates:
    """The possible states of each session: the last confirmed one, or any requested since."""

    confirmed: set[str] = field(default_factory=set)
    possible: dict[str, list[bytes]] = field(default_factory=dict)

    def setting(self, session: str, state: bytes) -> None:
        self.possible.setdefault(session, []).append(state)

    def was_set(self, session: str, state: bytes) -> None:
        self.confirmed.add(session)
        self.possible[session] = [state]

    def wrong(self, stored: dict[str, bytes]) -> list[str]:
        """The sessions whose stored state is not possible."""
        return [
            session
            for session in self.confirmed | stored.keys()
            if stored.get(session) not in self.possible.get(session, [])
        ]


class Campaign:
    """One namespace over all rounds of a test."""

    def __init__(self, connection_string: str, seed: int) -> None:
        self.connection_string = connection_string
        self.random = random.Random(seed)
        self.gate = Gate()
        self.states = SessionStates()
        self.once = DeletingLedger()
        self.ledgers: dict[str, Ledger] = {path: Ledger() for path in (ORDERS, FLOOD, SESSIONS, LATER)}
        self.ledgers[ONCE] = self.once
        for name in SUBSCRIPTIONS:
            self.ledgers[subscription_path(name)] = Ledger()
        # No retries in the SDK: the workers must see each error.
        self.client = ServiceBusClient.from_connection_string(connection_string, retry_total=0)
        self._numbers = itertools.count()

    def new_id(self, worker: str) -> str:
        return f"{worker}-{next(self._numbers)}"

    @asynccontextmanager
    async def raw(self, *entities: str) -> AsyncIterator[RawClient]:
        """A raw client with tokens for some entities. The namespace may cut its connection at any time."""
        async with RawClient(self.connection_string) as client:
            for entity in entities:
                await client.put_token(entity)
            try:
                yield client
            finally:
                client.abort()

    def totals(self) -> dict[str, int]:
        """The total counts of all ledgers."""
        names = ("attempted", "acknowledged", "completed", "deferred", "dead_lettered")
        counts = {name: sum(len(getattr(ledger, name)) for ledger in self.ledgers.values()) for name in names}
        return counts | {"deleted": len(self.once.received), "states": len(self.states.confirmed)}
