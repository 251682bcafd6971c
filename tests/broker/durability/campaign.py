"""What the workers of a crash test share: the entities, the ledgers, and a gate that holds them between rounds."""

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
from tests.broker.durability.ledger import DeletingLedger, Ledger
from tests.broker.raw_client import RawClient

ORDERS = "orders"
FLOOD = "flood"
SESSIONS = "sessions"
LATER = "later"
ONCE = "once"
TOPIC = "news"
SUBSCRIPTIONS = ("north", "south")
SESSION_IDS = tuple(f"session-{number}" for number in range(8))
# A lock that outlived a restart would keep its message from the final drain.
LOCK = timedelta(minutes=5)
PARK_SECONDS = 60.0


def subscription_path(name: str) -> str:
    """As the tables spell it."""
    return f"{TOPIC}/{name}"


def subscription_address(name: str) -> str:
    """As AMQP spells it."""
    return f"{TOPIC}/Subscriptions/{name}"


def create_entities(administration: ServiceBusAdministrationClient) -> None:
    """Everything the workers use."""
    options = {"lock_duration": LOCK, "max_delivery_count": 1_000_000}
    for queue in (ORDERS, FLOOD, LATER, ONCE):
        administration.create_queue(queue, **options)
    administration.create_queue(SESSIONS, requires_session=True, **options)
    administration.create_topic(TOPIC)
    for name in SUBSCRIPTIONS:
        administration.create_subscription(TOPIC, name, **options)


class Gate:
    """Holds the workers while the namespace is down or being checked."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._parked: set[str] = set()
        self._changed = asyncio.Event()

    async def enter(self, worker: str) -> None:
        self._parked.add(worker)
        self._changed.set()
        await self._open.wait()
        self._parked.discard(worker)

    def open(self) -> None:
        self._open.set()

    async def close(self, workers: set[str]) -> None:
        """Wait until every worker has noticed that the namespace is gone."""
        self._open.clear()
        async with asyncio.timeout(PARK_SECONDS):
            while workers - self._parked:
                self._changed.clear()
                await self._changed.wait()


@dataclass(slots=True)
class SessionStates:
    """What each session's state may be: what was confirmed last, or anything asked for since."""

    confirmed: set[str] = field(default_factory=set)
    possible: dict[str, list[bytes]] = field(default_factory=dict)

    def setting(self, session: str, state: bytes) -> None:
        self.possible.setdefault(session, []).append(state)

    def was_set(self, session: str, state: bytes) -> None:
        self.confirmed.add(session)
        self.possible[session] = [state]

    def wrong(self, stored: dict[str, bytes]) -> list[str]:
        """The sessions whose stored state is none of those."""
        return [
            session
            for session in self.confirmed | stored.keys()
            if stored.get(session) not in self.possible.get(session, [])
        ]


class Campaign:
    """One namespace through all its rounds."""

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
        # Retries belong to the workers: an error must be seen, not waited out.
        self.client = ServiceBusClient.from_connection_string(connection_string, retry_total=0)
        self._numbers = itertools.count()

    def new_id(self, worker: str) -> str:
        return f"{worker}-{next(self._numbers)}"

    @asynccontextmanager
    async def raw(self, *entities: str) -> AsyncIterator[RawClient]:
        """A raw client with tokens for some entities. It may be gone by the end: that is what workers expect."""
        async with RawClient(self.connection_string) as client:
            for entity in entities:
                await client.put_token(entity)
            try:
                yield client
            finally:
                client.abort()

    def totals(self) -> dict[str, int]:
        """How much the ledgers hold in all."""
        names = ("attempted", "acknowledged", "completed", "deferred", "dead_lettered")
        found = {name: sum(len(getattr(one, name)) for one in self.ledgers.values()) for name in names}
        return found | {"deleted": len(self.once.received), "states": len(self.states.confirmed)}
