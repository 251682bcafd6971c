"""A namespace on the test's own loop, and places in it to send to and receive from through the unmodified SDK.

A place is a queue, a subscription with its topic, or a dead-letter queue: what holds for all of them is tested once
and run for each. Every test gets a place of its own, so tests cannot see each other's messages.
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

from twinbus.broker import Namespace, NamespaceConfig, QueueDescription, SubscriptionDescription, TopicDescription
from twinbus.broker.durations import TICKS_PER_SECOND
from twinbus.broker.queue import Queue

DELETE = ServiceBusReceiveMode.RECEIVE_AND_DELETE
LOCK_SECONDS = 30
LOCK_OVER = LOCK_SECONDS + 2  # seconds after which every lock has run out, with some grace
PATIENCE = 60.0  # seconds for something that should come at once
MOMENT = 0.1  # seconds for something that should not come
# The SDK's tokens are good for an hour of the namespace's clock.
MAX_AHEAD = 3000
_Place = TypeVar("_Place", bound="Place")
_TOPIC_PROPERTIES = frozenset({"requires_duplicate_detection", "duplicate_detection_history_time_window"})


class SettableClock:
    """The real time, and as much more as a test wants."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead

    def in_seconds(self, seconds: float) -> datetime:
        """The moment so many seconds from now."""
        return datetime.fromtimestamp(self(), UTC) + timedelta(seconds=seconds)


async def let_pass(namespace: Namespace, clock: SettableClock, seconds: float) -> None:
    """Set the clock forward and wait until the namespace has stored what follows from it."""
    clock.ahead += seconds
    assert clock.ahead < MAX_AHEAD, "the SDK's tokens would expire: use shorter times in this module"
    namespace.clock_was_set()
    for _ in range(2):  # a message that comes back may have expired, which is stored after that
        await namespace.store.commit([])


class Bus:
    """A running namespace and a client for it, without retries so that a refusal shows at once.

    The SDK sleeps for half a second over each link that it opens or closes. So links stay open until the end and are
    closed together, and a few places of each kind are always being opened ahead of the tests that want them.
    """

    SPARE = 12
    SPECIAL_SPARE = 2

    def __init__(self, config: NamespaceConfig | str = "contoso", data: Path | None = None) -> None:
        self.clock = SettableClock()
        self.namespace = Namespace(config, data=data, clock=self.clock)
        self.client: ServiceBusClient
        self._links: list[ServiceBusSender | ServiceBusReceiver] = []
        self._spare: dict[tuple[type[Place], str], deque[asyncio.Task[Any]]] = defaultdict(deque)
        self._numbers = itertools.count(1)

    async def __aenter__(self) -> Self:
        await self.namespace.start()
        # Without one the SDK reads all certificate authorities of the machine for each connection, also a plain one.
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
        """Let time pass for the namespace, and let it do what was to be done by then."""
        await let_pass(self.namespace, self.clock, seconds)

    async def open(self, *links: Any) -> None:
        """Open links, all at the same time."""
        self._links += links
        await asyncio.gather(*(link.__aenter__() for link in links))

    async def spare(self, kind: type[_Place], **options: Any) -> _Place:
        """A place of this kind, opened in advance."""
        spare = self._spare[kind, repr(sorted(options.items()))]
        while len(spare) <= (self.SPECIAL_SPARE if options else self.SPARE):
            spare.append(asyncio.create_task(kind.open(self, **options)))
        place: _Place = await spare.popleft()
        await place.begin()
        return place

    def broker_queue(self, path: str) -> Queue:
        """The namespace's own object for an address, to look at what no client sees."""
        node = self.namespace.entities.resolve(path)
        assert node is not None, path
        return node.queue


class Place:
    """Something to receive from, with a sender and a receiver."""

    def __init__(self, bus: Bus, path: str) -> None:
        self.bus = bus
        self.path = path
        self.sender: ServiceBusSender
        self.receiver: ServiceBusReceiver
        self.dead_letters: ServiceBusReceiver

    @classmethod
    async def create(cls, bus: Bus, **properties: Any) -> Self:
        """Make the entity; nothing is opened."""
        raise NotImplementedError

    @classmethod
    async def open(
        cls, bus: Bus, *, receiver: dict[str, Any] | None = None, dead_letters: bool = False, **properties: Any
    ) -> Self:
        """Make the entity, and open a sender and a receiver with the given options; one of dead letters if wanted."""
        place = await cls.create(bus, **properties)
        opening = [place.connect(**(receiver or {}))]
        if dead_letters:
            place.dead_letters = place.new_receiver(sub_queue="deadletter")
            opening.append(bus.open(place.dead_letters))
        await asyncio.gather(*opening)
        return place

    async def begin(self) -> None:
        """The test that this place was opened for begins."""

    async def connect(self, **options: Any) -> None:
        self.sender, self.receiver = self.new_sender(), self.new_receiver(**options)
        await self.bus.open(self.sender, self.receiver)

    def new_sender(self) -> ServiceBusSender:
        raise NotImplementedError

    def new_receiver(self, **options: Any) -> ServiceBusReceiver:
        raise NotImplementedError

    async def open_receiver(self, **options: Any) -> ServiceBusReceiver:
        """One more receiver."""
        receiver = self.new_receiver(**options)
        await self.bus.open(receiver)
        return receiver

    async def open_dead_letters(self, **options: Any) -> ServiceBusReceiver:
        """A receiver of this place's dead-letter queue."""
        return await self.open_receiver(sub_queue="deadletter", **options)

    async def put(self, *messages: ServiceBusMessage | str, **properties: Any) -> None:
        """Bring messages here, in order; a text becomes a message with these properties."""
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
        """What takes in the messages that are sent: the queue, or the topic of a subscription."""
        return self.queue

    @property
    def dead_letter_queue(self) -> Queue:
        return self.bus.broker_queue(self.path + "/$DeadLetterQueue")


class QueuePlace(Place):
    @classmethod
    async def create(cls, bus: Bus, **properties: Any) -> Self:
        path = bus.new_name("queue")
        await bus.namespace.create(QueueDescription(path, **_with_lock(properties)))
        return cls(bus, path)

    def new_sender(self) -> ServiceBusSender:
        return self.bus.client.get_queue_sender(self.path)

    def new_receiver(self, **options: Any) -> ServiceBusReceiver:
        return self.bus.client.get_queue_receiver(self.path, **options)


class SubscriptionPlace(Place):
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
    """Its receiver holds the session "a", which is also the session of what is put without naming one."""

    @classmethod
    async def create(cls, bus: Bus, **properties: Any) -> Any:
        return await super().create(bus, requires_session=True, **properties)  # type: ignore[misc]

    async def connect(self, **options: Any) -> None:
        # Tests let time pass for the whole namespace, also while this place still waits for its own test.
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
        """One more receiver, for a session or NEXT_AVAILABLE_SESSION."""
        return await self.open_receiver(session_id=session_id, **options)  # type: ignore[attr-defined]

    async def sessions(self, **options: Any) -> list[str]:
        """The ids of the sessions, as the SDK lists them."""
        return [session async for session in self._listed(**options)]

    def _listed(self, **options: Any) -> Any:
        raise NotImplementedError


class SessionQueuePlace(_WithSessions, QueuePlace):
    def _listed(self, **options: Any) -> Any:
        return self.bus.client.list_queue_sessions(self.path, **options)


class SessionSubscriptionPlace(_WithSessions, SubscriptionPlace):
    def _listed(self, **options: Any) -> Any:
        return self.bus.client.list_subscription_sessions(self.topic, "all", **options)


class DeadLetterPlace(Place):
    """The dead-letter queue of a queue; what is put here is sent to the queue and dead-lettered there."""

    of: ClassVar[type[Place]] = QueuePlace

    def __init__(self, bus: Bus, above: Place) -> None:
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


class SubscriptionDeadLetterPlace(DeadLetterPlace):
    of = SubscriptionPlace


def _with_lock(properties: dict[str, Any]) -> dict[str, Any]:
    return {"lock_duration": LOCK_SECONDS * TICKS_PER_SECOND, **properties}


def _message(message: ServiceBusMessage | str, properties: dict[str, Any]) -> ServiceBusMessage:
    return ServiceBusMessage(message, **properties) if isinstance(message, str) else message


async def receive(receiver: ServiceBusReceiver, count: int = 1) -> list[ServiceBusReceivedMessage]:
    """Exactly so many messages, or the test fails."""
    received: list[ServiceBusReceivedMessage] = []
    while len(received) < count:
        more = await receiver.receive_messages(max_message_count=count - len(received), max_wait_time=PATIENCE)
        assert more, f"{len(received)} messages came, not {count}: {texts(received)}"
        received += more
    return received


async def peek(receiver: ServiceBusReceiver, start: int = 1) -> list[ServiceBusReceivedMessage]:
    """Everything from a sequence number on; the SDK would go on where the last peek ended."""
    return await receiver.peek_messages(max_message_count=100, sequence_number=start)


async def nothing_comes(receiver: ServiceBusReceiver) -> bool:
    """Whether a short receive ends without a message."""
    return not await receiver.receive_messages(max_wait_time=MOMENT)


async def until(condition: Callable[[], bool]) -> None:
    """Let the namespace work until something holds there."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - the namespace has no event for what only a test wants to know
            await asyncio.sleep(0.01)


def texts(messages: list[ServiceBusReceivedMessage]) -> list[str]:
    return [str(message) for message in messages]
