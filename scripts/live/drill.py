"""Holds the two namespaces of a drill, their entities, and connections of both clients."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Any, NamedTuple, Self

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus.aio import ServiceBusClient

from twinbus.amqp.client.connection import Opening
from twinbus.pairing.namespace import Namespace
from twinbus.pairing.sdk.version import attempt_bound
from twinbus.servicebus.entity_paths import backlog_path
from twinbus.syphon import ACCEPT, Connection, Delivery, Management, Receiver, Sender
from twinbus.syphon.connector import Side
from twinbus.syphon.credentials import as_credential

from .messages import Raw, encode_message

#: If the drill is killed, the service removes its entities after this time, except backlog queues.
AUTO_DELETE = timedelta(hours=1)
REMOVAL_ROUNDS = 3
PARALLEL_REMOVALS = 4


@dataclass(frozen=True)
class Times:
    """Durations in seconds. Tests shorten them together with those of the namespace."""

    #: Limits of one check, and of one answer within it.
    check: float = 120.0
    answer: float = 30.0
    #: Lifetime of a token in the check of its renewal.
    token: float = 30.0
    #: Range in which an idle link is detached.
    idle: tuple[float, float] = (570.0, 690.0)
    #: Time for which a receiver waits with credit.
    standing: float = 900.0
    #: Limits of the load that should make the service busy.
    load: float = 20.0
    load_messages: int = 20_000


class Counts(NamedTuple):
    """Message counts of the administration API."""

    active: int
    dead: int
    total: int


class Listener:
    """A receiver of our client and its deliveries."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deliveries: deque[Delivery] = deque()
        self._arrived = asyncio.Event()
        self.receiver: Receiver

    def on_delivery(self, delivery: Delivery) -> None:
        self._deliveries.append(delivery)
        self._arrived.set()

    async def take(self) -> Delivery:
        """Wait for the next delivery. Raises `TimeoutError`."""
        async with asyncio.timeout(self._seconds):
            while not self._deliveries:
                self._arrived.clear()
                await self._arrived.wait()
        return self._deliveries.popleft()

    async def settle(self, delivery: Delivery, outcome: Any = ACCEPT) -> None:
        """Settle and wait for the outcome."""
        await self.receiver.settled(delivery, outcome, self._seconds)

    async def take_raw(self) -> Raw:
        """Receive and complete the next message."""
        delivery = await self.take()
        await self.settle(delivery)
        return Raw.of(delivery.payload)


class Exchange:
    """A connection of our client to one entity."""

    def __init__(self, site: Site, connection: Connection, path: str) -> None:
        self.site = site
        self.connection = connection
        self.path = path
        self._seconds = site.times.answer
        self._sender: Sender | None = None

    async def sender(self) -> Sender:
        if self._sender is None:
            self._sender = await self.connection.attach_sender(self.path)
        return self._sender

    async def send(self, payload: bytes | None = None) -> None:
        """Send a message and wait until it is accepted."""
        await (await self.sender()).deliver(encode_message() if payload is None else payload, self._seconds)

    async def listen(self, credit: int = 0, path: str | None = None) -> Listener:
        """Attach a receiver to the entity, or to `path`."""
        listener = Listener(self._seconds)
        listener.receiver = await self.connection.attach_receiver(
            path or self.path, listener.on_delivery, credit=credit
        )
        return listener

    async def management(self, path: str | None = None) -> Management:
        return await self.connection.management(path or self.path, seconds=self._seconds)

    async def peek(self, count: int = 100, path: str | None = None) -> list[Raw]:
        """Peek messages of the entity."""
        management = await self.management(path)
        try:
            return [Raw.of(payload) for payload in await management.peek_messages(0, count)]
        finally:
            await management.close()


class Site:
    """One of the two namespaces, with the entities created in it."""

    def __init__(self, namespace: Namespace, prefix: str, times: Times) -> None:
        self.namespace = namespace
        self.prefix = prefix
        self.times = times
        #: Keys, which must never be printed.
        self.secrets = _secrets_of(namespace)
        self._created: dict[str, Callable[..., Any]] = {}

    async def __aenter__(self) -> Self:
        self.admin = self.namespace.administration()
        self.client = self.new_client()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.client.close()
        await self.admin.close()

    def new_client(self, **options: Any) -> ServiceBusClient:
        """A client of the SDK without retries, which would hide the service's answers."""
        return self.namespace.async_client(retry_total=0, **attempt_bound(self.times.answer), **options)

    # ---- entities ----

    async def queue(self, name: str, **properties: Any) -> str:
        """Create a queue of this drill; return its path."""
        path = self.register(f"{self.prefix}-{name}")
        await self.admin.create_queue(path, **{"auto_delete_on_idle": AUTO_DELETE, **properties})
        return path

    async def topic(self, name: str, *subscriptions: str) -> str:
        """Create a topic of this drill; return its path."""
        path = f"{self.prefix}-{name}"
        self._created[path] = self.admin.delete_topic
        await self.admin.create_topic(path, auto_delete_on_idle=AUTO_DELETE)
        for subscription in subscriptions:
            await self.admin.create_subscription(path, subscription, dead_lettering_on_message_expiration=True)
        return path

    def register(self, path: str) -> str:
        """Register a queue for removal. Raises `ValueError` if it does not have the drill's prefix."""
        if not path.startswith(self.prefix):
            raise ValueError(f"expected a path that begins with {self.prefix}, got {path}")
        self._created[path] = self.admin.delete_queue
        return path

    def backlog(self, primary_name: str, count: int) -> list[str]:
        """The paths of the backlog queues of a pairing of this drill."""
        return [self.register(backlog_path(primary_name, index)) for index in range(count)]

    async def counts(self, path: str, subscription: str | None = None, least: int = 0) -> Counts:
        """The message counts, once their total is at least `least`: the service updates them late."""
        deadline = time.monotonic() + self.times.answer
        while True:
            if subscription is None:
                properties: Any = await self.admin.get_queue_runtime_properties(path)
            else:
                properties = await self.admin.get_subscription_runtime_properties(path, subscription)
            counts = Counts(
                properties.active_message_count, properties.dead_letter_message_count, properties.total_message_count
            )
            if counts.total >= least or time.monotonic() >= deadline:
                return counts
            await asyncio.sleep(0.5)

    async def remove_all(self) -> list[str]:
        """Remove every entity of the drill; return those that may still exist."""
        left = dict(self._created)
        slots = asyncio.Semaphore(PARALLEL_REMOVALS)

        async def remove(path: str, delete: Callable[..., Any]) -> None:
            async with slots:
                with contextlib.suppress(ResourceNotFoundError):
                    await delete(path)
                del left[path]

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REMOVAL_ROUNDS * self.times.answer):
                for _ in range(REMOVAL_ROUNDS):
                    # Failed removals stay in `left` and are retried.
                    await asyncio.gather(*(remove(*entry) for entry in list(left.items())), return_exceptions=True)
                    if not left:
                        break
                    await asyncio.sleep(1)
        return sorted(left)

    # ---- our client ----

    @property
    def named_key(self) -> tuple[str, str]:
        """Name and key of the access policy. Raises `ValueError` for another kind of credential."""
        if not isinstance(self.namespace.credential, AzureNamedKeyCredential):
            raise ValueError("expected a connection string with SharedAccessKeyName and SharedAccessKey")
        name, key = self.namespace.credential.named_key
        return name, key

    @property
    def side(self) -> Side:
        return Side.of(self.namespace)

    def connect(self, credential: Any = None) -> Opening:
        """Open a connection, optionally with another credential."""
        side = self.side
        return Connection.open(
            side.endpoint,
            as_credential(side.credential if credential is None else credential),
            timeout=self.times.answer,
            outcome_timeout=self.times.answer,
            ssl_context=side.ssl_context,
        )

    @asynccontextmanager
    async def exchange(self, path: str, credential: Any = None) -> AsyncIterator[Exchange]:
        """A connection of our client to one entity."""
        async with self.connect(credential) as connection:
            yield Exchange(self, connection, path)


@dataclass
class Drill:
    """Two namespaces and a unique prefix for entities."""

    primary: Namespace
    secondary: Namespace
    times: Times = field(default_factory=Times)
    prefix: str = field(default_factory=lambda: f"twinbus-live-{secrets.token_hex(4)}")

    def __post_init__(self) -> None:
        self.sites = tuple(Site(namespace, self.prefix, self.times) for namespace in (self.primary, self.secondary))
        self.at_primary, self.at_secondary = self.sites

    def clean(self, text: str) -> str:
        """The text with all keys masked."""
        for site in self.sites:
            for secret in site.secrets:
                text = text.replace(secret, "***")
        return text


def _secrets_of(namespace: Namespace) -> set[str]:
    credential = namespace.credential
    if isinstance(credential, AzureNamedKeyCredential):
        return {credential.named_key.key}
    return {credential.signature} if isinstance(credential, AzureSasCredential) else set()
