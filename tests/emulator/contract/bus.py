"""A namespace on the test's event loop, and entities under test with a sender and a receiver of the unmodified SDK.

An entity under test is a queue, a subscription with its topic, or a dead-letter queue. A behaviour that they share is
tested once and run for each. Every test gets its own entity, so tests cannot see each other's messages.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
import time
from collections import defaultdict, deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage, ServiceBusReceiveMode
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender

from twinbus.emulator import Namespace, NamespaceConfig, QueueDescription, SubscriptionDescription, TopicDescription
from twinbus.emulator.entities.queue import Queue
from twinbus.servicebus.durations import TICKS_PER_SECOND

DELETE = ServiceBusReceiveMode.RECEIVE_AND_DELETE
LOCK_SECONDS = 30
LOCK_OVER = LOCK_SECONDS + 2  # seconds after which every lock has expired, with a margin
PATIENCE = 60.0  # timeout in seconds for messages that should arrive at once
MOMENT = 0.1  # seconds to wait for a message that should not arrive
# The SDK's tokens are valid for an hour of the namespace's clock.
MAX_AHEAD = 3000
_Entity = TypeVar("_Entity", bound="EntityUnderTest")
_TOPIC_PROPERTIES = frozenset({"requires_duplicate_detection", "duplicate_detection_history_time_window"})


class SettableClock:
    """The real time plus an offset that a test sets."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead

    def in_seconds(self, seconds: float) -> datetime:
        """The time this many seconds from now."""
        return datetime.fromtimestamp(self(), UTC) + timedelta(seconds=seconds)


async def let_pass(namespace: Namespace, clock: SettableClock, seconds: float) -> None:
    """Advance the clock and wait until the namespace has stored the resulting changes."""
    clock.ahead += seconds
    assert clock.ahead < MAX_AHEAD, "the SDK's tokens would expire: use shorter times in this module"
    namespace.clock_was_set()
    for _ in range(2):  # a message whose lock expired may also have expired itself, which is stored next
        await namespace.store.commit([])


class Bus:
    """A running namespace and a client for it, without retries so that errors show at once.

    The SDK sleeps for half a second when it opens or closes a link. So links stay open until the end and are closed
    together, and a few entities of each kind are opened ahead of the tests that use them.
    """

    SPARE = 12
    SPECIAL_SPARE = 2

    def __init__(self, config: NamespaceConfig | str = "contoso", data: Path | None = None) -> None:
        self.clock = SettableClock()
        self.namespace = Namespace(config, data=data, clock=self.clock)
        self.client: ServiceBusClient
        self._links: list[ServiceBusSender | ServiceBusReceiver] = []
        self._spare: dict[tuple[type[EntityUnderTest], str], deque[asyncio.Task[Any]]] = defaultdict(deque)
        self._numbers = itertools.count(1)

    async def __aenter__(self) -> Self:
        await self.namespace.start()
        # Without a context the SDK loads all certificate authorities for each connection, even without TLS.
        unused = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        connection = self.namespace.connection_string
        self.client = ServiceBusClient.from_connection_string(connection, retry_total=0, ssl_context=unused)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*itertools.chain(*self._spare.values()))
        await asyncio.gather(*(link.close() for link in self._links))
        await self.client.close()
        await self.namespace.close()

    def new_name(self, kind: str) -> str:
        return f"{kind}-{next(self._numbers)}"

    async def advance(self, seconds: float) -> None:
        """Advance the namespace's clock and wait until it has handled everything that is due."""
        await let_pass(self.namespace, self.clock, seconds)

    async def open(self, *links: Any) -> None:
        """Open links concurrently."""
        self._links += links
        await asyncio.gather(*(link.__aenter__() for link in links))

    async def spare(self, kind: type[_Entity], **options: Any) -> _Entity:
        """A entity of this kind, opened in advance."""
        spare = self._spare[kind, repr(sorted(options.items()))]
        while len(spare) <= (self.SPECIAL_SPARE if options else self.SPARE):
            spare.append(asyncio.create_task(kind.open(self, **options)))
        entity: _Entity = await spare.popleft()
        await entity.begin()
        return entity

    def broker_queue(self, path: str) -> Queue:
        """The namespace's queue object for an address, to inspect its internal state."""
        node = self.namespace.entities.resolve(path)
        assert node is not None, path
        return node.queue


class EntityUnderTest:
    """A queue, subscription or dead-letter queue with a sender and a receiver."""

    def __init__(self, bus: Bus, path: str) -> None:
        self.bus = bus
        self.path = path
        self.sender: ServiceBusSender
        self.receiver: ServiceBusReceiver
        self.dead_letters: ServiceBusReceiver

    @classmethod
    async def create(cls, bus: Bus, **properties: Any) -> Self:
        """Create the entity without opening links."""
        raise NotImplementedError

    @classmethod
    async def open(
        cls, bus: Bus, *, receiver: dict[str, Any] | None = None, dead_letters: bool = False, **properties: Any
    ) -> Self:
        """Create the entity and open a sender and a receiver, optionally also a receiver of its dead letters."""
        entity = await cls.create(bus, **properties)
        opening = [entity.connect(**(receiver or {}))]
        if dead_letters:
            entity.dead_letters = entity.new_receiver(sub_queue="deadletter")
            opening.append(bus.open(entity.dead_letters))
        await asyncio.gather(*opening)
        return entity

    async def begin(self) -> None:
        """Called when the test that uses this entity starts."""

    async def connect(self, **options: Any) -> None:
        self.sender, self.receiver = self.new_sender(), self.new_receiver(**options)
        await self.bus.open(self.sender, self.receiver)

    def new_sender(self) -> ServiceBusSender:
        raise NotImplementedError

    def new_receiver(self, **options: Any) -> ServiceBusReceiver:
        raise NotImplementedError

    async def open_receiver(self, **options: Any) -> ServiceBusReceiver:
        """Open another receiver."""
        receiver = self.new_receiver(**options)
        await self.bus.open(receiver)
        return receiver

    async def open_dead_letters(self, **options: Any) -> ServiceBusReceiver:
        """Open a receiver of this entity's dead-letter queue."""
        return await self.open_receiver(sub_queue="deadletter", **options)

    async def put(self, *messages: ServiceBusMessage | str, **properties: Any) -> None:
        """Send messages in order; a text becomes a message with these properties."""
        await self.sender.send_messages([_message(message, properties) for message in messages])

    async def receive(self, count: int = 1) -> list[ServiceBusReceivedMessage]:
        return await receive(self.receiver, count)

    async def receive_one(self) -> ServiceBusReceivedMessage:
        return (await self.receive())[0]

    async def peek(self, start: int = 1) -> list[ServiceBusReceivedMessage]:
        return await peek(self.receiver, start)

    async def peek_texts(self) -> list[str]:
        return texts(await self.peek())

    @property
    def queue(self) -> Queue:
        return self.bus.broker_queue(self.path)

    @property
    def entry(self) -> Queue:
        """The entity that messages are sent to: the queue, or the topic of a subscription."""
        return self.queue

    @property
    def dead_letter_queue(self) -> Queue:
        return self.bus.broker_queue(self.path + "/$DeadLetterQueue")


class QueueUnderTest(EntityUnderTest):
    @classmethod
    async def create(cls, bus: Bus, **properties: Any) -> Self:
        path = bus.new_name("queue")
        await bus.namespace.create(QueueDescription(path, **_with_lock(properties)))
        return cls(bus, path)

    def new_sender(self) -> ServiceBusSender:
        return self.bus.client.get_queue_sender(self.path)

    def new_receiver(self, **options: Any) -> ServiceBusReceiver:
        return self.bus.client.get_queue_receiver(self.path, **options)


class SubscriptionUnderTest(EntityUnderTest):
    @classmethod
    async def create(cls, bus: Bus, **properties: Any) -> Self:
        topic = bus.new_name("topic")
        of_topic = {name: properties.pop(name) for name in _TOPIC_PROPERTIES & properties.keys()}
        await bus.namespace.create(TopicDescription(topic, **of_topic))
        description = SubscriptionDescription(topic, "all", **_with_lock(properties))
        await bus.namespace.create_subscription(description)
        return cls(bus, description.path)

    @property
    def topic(self) -> str:
        return self.path.partition("/")[0]

    @property
    def entry(self) -> Queue:
        return self.bus.broker_queue(self.topic)

    def new_sender(self) -> ServiceBusSender:
        return self.bus.client.get_topic_sender(self.topic)

    def new_receiver(self, **options: Any) -> ServiceBusReceiver:
        return self.bus.client.get_subscription_receiver(self.topic, "all", **options)


class _WithSessions:
    """Receives from the session "a", which is also the default session of sent messages."""

    @classmethod
    async def create(cls, bus: Bus, **properties: Any) -> Any:
        return await super().create(bus, requires_session=True, **properties)  # type: ignore[misc]

    async def connect(self, **options: Any) -> None:
        # Other tests advance the clock of the namespace while this entity still waits for its test.
        self.queue.limits.lock_ms = MAX_AHEAD * 1000  # type: ignore[attr-defined]
        await super().connect(**options)  # type: ignore[misc]

    async def begin(self) -> None:
        self.queue.limits.lock_ms = LOCK_SECONDS * 1000  # type: ignore[attr-defined]
        await self.receiver.session.renew_lock()  # type: ignore[attr-defined]

    def new_receiver(self, **options: Any) -> ServiceBusReceiver:
        if "sub_queue" not in options:
            options.setdefault("session_id", "a")
        return super().new_receiver(**options)  # type: ignore[misc]

    async def put(self, *messages: ServiceBusMessage | str, **properties: Any) -> None:
        properties.setdefault("session_id", "a")
        await super().put(*messages, **properties)  # type: ignore[misc]

    async def open_session(self, session_id: Any, **options: Any) -> ServiceBusReceiver:
        """Open another receiver, for a session or NEXT_AVAILABLE_SESSION."""
        return await self.open_receiver(session_id=session_id, **options)  # type: ignore[attr-defined]

    async def sessions(self, **options: Any) -> list[str]:
        """The ids of the sessions, as the SDK lists them."""
        return [session async for session in self._listed(**options)]

    def _listed(self, **options: Any) -> Any:
        raise NotImplementedError


class SessionQueueUnderTest(_WithSessions, QueueUnderTest):
    def _listed(self, **options: Any) -> Any:
        return self.bus.client.list_queue_sessions(self.path, **options)


class SessionSubscriptionUnderTest(_WithSessions, SubscriptionUnderTest):
    def _listed(self, **options: Any) -> Any:
        return self.bus.client.list_subscription_sessions(self.topic, "all", **options)


class DeadLetterQueueUnderTest(EntityUnderTest):
    """The dead-letter queue of a queue; `put` sends to the queue and dead-letters there."""

    of: ClassVar[type[EntityUnderTest]] = QueueUnderTest

    def __init__(self, bus: Bus, above: EntityUnderTest) -> None:
        super().__init__(bus, above.path + "/$DeadLetterQueue")
        self.above = above

    @classmethod
    async def create(cls, bus: Bus, **properties: Any) -> Self:
        return cls(bus, await cls.of.create(bus, **properties))

    async def connect(self, **options: Any) -> None:
        self.receiver = self.new_receiver(**options)
        await asyncio.gather(self.above.connect(), self.bus.open(self.receiver))

    def new_receiver(self, **options: Any) -> ServiceBusReceiver:
        return self.above.new_receiver(sub_queue="deadletter", **options)

    async def put(self, *messages: ServiceBusMessage | str, **properties: Any) -> None:
        await self.above.put(*messages, **properties)
        for message in await self.above.receive(len(messages)):
            await self.above.receiver.dead_letter_message(message, reason="test")


class SubscriptionDeadLetterQueueUnderTest(DeadLetterQueueUnderTest):
    of = SubscriptionUnderTest


def _with_lock(properties: dict[str, Any]) -> dict[str, Any]:
    return {"lock_duration": LOCK_SECONDS * TICKS_PER_SECOND, **properties}


def _message(message: ServiceBusMessage | str, properties: dict[str, Any]) -> ServiceBusMessage:
    return ServiceBusMessage(message, **properties) if isinstance(message, str) else message


async def receive(receiver: ServiceBusReceiver, count: int = 1) -> list[ServiceBusReceivedMessage]:
    """Receive exactly `count` messages, or fail."""
    received: list[ServiceBusReceivedMessage] = []
    while len(received) < count:
        more = await receiver.receive_messages(max_message_count=count - len(received), max_wait_time=PATIENCE)
        assert more, f"expected {count} messages, got {len(received)}: {texts(received)}"
        received += more
    return received


async def peek(receiver: ServiceBusReceiver, start: int = 1) -> list[ServiceBusReceivedMessage]:
    """Peek everything from a sequence number on; by default the SDK continues after the last peek."""
    return await receiver.peek_messages(max_message_count=100, sequence_number=start)


async def nothing_comes(receiver: ServiceBusReceiver) -> bool:
    """Whether a short receive ends without a message."""
    return not await receiver.receive_messages(max_wait_time=MOMENT)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds in the namespace."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - the namespace has no event for it
            await asyncio.sleep(0.01)


def texts(messages: list[ServiceBusReceivedMessage]) -> list[str]:
    return [str(message) for message in messages]
