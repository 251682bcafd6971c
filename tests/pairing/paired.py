"""Sync and async paired senders behind one interface, and counts of what reached the namespaces."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from tests.namespace_internals import Queue
from tests.sdk_connection import client_options, reachable

from twinbus.emulator import (
    DEFAULT,
    ActiveFault,
    Fault,
    FaultKind,
    Namespace,
    NamespaceConfig,
    NamespaceThread,
    Profile,
    QueueDescription,
)
from twinbus.ledger.recorder import Recorder
from twinbus.pairing.events import Event
from twinbus.pairing.options import SendAvailabilityOptions
from twinbus.pairing.pairing_state import Clock, Pairing
from twinbus.pairing.sending._async.sender import PairedSender as AsyncPairedSender
from twinbus.pairing.sending._sync.sender import PairedSender

PATIENCE = 60.0  # seconds for something that should come at once
QUEUES = 3
KINDS = ("sync", "aio")

_E = TypeVar("_E", bound=Event)
_T = TypeVar("_T")


class Loop:
    """An event loop on a thread; `run` awaits a coroutine there."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="test-loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(3 * PATIENCE)

    async def tasks(self) -> set[asyncio.Task[Any]]:
        return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()


class Blocking:
    """Makes an asynchronous sender blocking, so that one test covers both kinds."""

    def __init__(self, sender: AsyncPairedSender, loop: Loop) -> None:
        self.sender = sender
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.sender, name)
        if not asyncio.iscoroutinefunction(value):
            return value
        return lambda *args, **options: self._loop.run(value(*args, **options))


class Seen(list[Event]):
    """The events of a pairing."""

    def all(self, kind: type[_E]) -> list[_E]:
        return [event for event in self if isinstance(event, kind)]


class Stage:
    """Two namespaces; each pairing has its own entities and backlog queues in them."""

    def __init__(self, primary: NamespaceThread, secondary: NamespaceThread, stack: ExitStack) -> None:
        self.primary = primary
        self.secondary = secondary
        self.loop = Loop()
        stack.callback(self.loop.close)
        self._numbers = itertools.count(1)

    @classmethod
    @contextmanager
    def set_up(cls, profile: Profile = DEFAULT, **namespace_options: Any) -> Iterator[Stage]:
        def made(name: str) -> Namespace:
            return reachable(NamespaceConfig(name, port=0), profile=profile, **namespace_options)

        with (
            NamespaceThread(lambda: made("contoso")) as primary,
            NamespaceThread(lambda: made("standby")) as secondary,
            ExitStack() as stack,
        ):
            yield cls(primary, secondary, stack)

    def clear(self) -> None:
        for side in (self.primary, self.secondary):
            side.call(side.namespace.faults.clear)

    @contextmanager
    def pair(self, kind: str, **options: Any) -> Iterator[Pair]:
        """An entity with backlog queues, and a pairing of its own."""
        number = next(self._numbers)
        with ExitStack() as stack:
            yield Pair(self, kind, f"orders-{number}", f"contoso-{number}", stack, **options)

    def wait_until(self, holds: Callable[[], Any]) -> None:
        """Poll until the condition holds."""
        ends = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < ends, "the condition did not hold in time"
            time.sleep(0.01)


class Pair:
    """A pairing with one entity. All senders are closed at the end."""

    def __init__(
        self,
        stage: Stage,
        kind: str,
        path: str,
        name: str,
        stack: ExitStack,
        *,
        entity: dict[str, Any] | None = None,
        primary_options: dict[str, Any] | None = None,
        clock: Clock = time.monotonic,
        recorder: Recorder | None = None,
        primary_string: str | None = None,
        **options: Any,
    ) -> None:
        self.stage, self.kind, self.path, self.name = stage, kind, path, name
        self._stack = stack
        defaults = {"backlog_queue_count": QUEUES, "failover_interval": 0, "attempt_timeout": 5, **options}
        self.pairing = Pairing(SendAvailabilityOptions(**defaults), name, clock=clock, recorder=recorder)
        self.events = Seen()
        self.pairing.events.subscribe(self.events.append)
        self.primary, self.secondary = stage.primary, stage.secondary
        self.primary.run(self.primary.namespace.create(QueueDescription(path, **(entity or {}))))
        for index in range(self.pairing.options.backlog_queue_count):
            description = QueueDescription(self.pairing.queue_path(index))
            self.secondary.run(self.secondary.namespace.create(description))
        self._strings = primary_string or self.primary.connection_string, self.secondary.connection_string
        # Without retries, as the paired client makes its clients for senders.
        self._options = (
            {"retry_total": 0, **client_options(self.primary.namespace), **(primary_options or {})},
            {"retry_total": 0, **client_options(self.secondary.namespace)},
        )

    def sender(self, path: str | None = None, **options: Any) -> Any:
        """A sender of the kind under test; an asynchronous one is wrapped in `Blocking`."""
        path = path or self.path
        if self.kind == "sync":
            make = ServiceBusClient.from_connection_string
            clients = [make(string, **more) for string, more in self._targets()]
            sender: Any = PairedSender(self.pairing, path, *clients, **options)
        else:
            sender = Blocking(self.stage.loop.run(self._async_sender(path, options)), self.stage.loop)
        self._stack.callback(sender.close)
        return sender

    async def _async_sender(self, path: str, options: dict[str, Any]) -> AsyncPairedSender:
        make = AsyncServiceBusClient.from_connection_string
        clients = [make(string, **more) for string, more in self._targets()]
        return AsyncPairedSender(self.pairing, path, *clients, **options)

    def _targets(self) -> Iterator[tuple[str, dict[str, Any]]]:
        return zip(self._strings, self._options, strict=True)

    # ---- many callers ----

    def at_once(self, sender: Any, count: int, **options: Any) -> list[Any]:
        """Send `count` messages at the same time through one sender; returns receipts and errors."""
        if self.kind == "sync":
            with ThreadPoolExecutor(count) as threads:
                sends = [threads.submit(sender.send_messages, text(str(number)), **options) for number in range(count)]
                return [send.exception(3 * PATIENCE) or send.result() for send in sends]

        async def send_all() -> list[Any]:
            sends = (sender.sender.send_messages(text(str(number)), **options) for number in range(count))
            return await asyncio.gather(*sends, return_exceptions=True)

        return self.stage.loop.run(send_all())

    # ---- what has arrived ----

    def _queue(self, side: NamespaceThread, path: str) -> Queue:
        entity = side.namespace.find(path)
        assert entity is not None
        return entity.queue

    @property
    def received(self) -> int:
        """The number of messages that the primary entity has ever accepted."""
        return self.primary.call(lambda: self._queue(self.primary, self.path).activity.received)

    @property
    def stored(self) -> list[int]:
        """The number of messages that each backlog queue has accepted."""
        paths = [self.pairing.queue_path(index) for index in range(self.pairing.options.backlog_queue_count)]
        return [self.secondary.call(lambda p=path: self._queue(self.secondary, p).activity.received) for path in paths]

    @property
    def links(self) -> int:
        """The number of links to the primary entity."""
        namespace = self.primary.namespace
        return self.primary.call(lambda: sum(link.node.path == self.path for link in namespace.entity_links()))

    def peek(self, index: int | None = None) -> list[ServiceBusReceivedMessage]:
        """The messages in a backlog queue, or in the primary entity."""
        side = self.primary if index is None else self.secondary
        path = self.path if index is None else self.pairing.queue_path(index)
        options = client_options(side.namespace)
        with ServiceBusClient.from_connection_string(side.connection_string, **options) as client:
            receiver = client.get_queue_receiver(path)
            return receiver.peek_messages(max_message_count=1000, sequence_number=1)

    # ---- outages ----

    def strike(self, kind: FaultKind, **fields: Any) -> ActiveFault:
        """Add a fault at the primary entity."""
        return self.primary.call(self.primary.namespace.faults.add, Fault(kind, entity=self.path, **fields))

    def strike_queue(self, index: int, kind: FaultKind, **fields: Any) -> ActiveFault:
        """Add a fault at a backlog queue."""
        fault = Fault(kind, entity=self.pairing.queue_path(index), **fields)
        return self.secondary.call(self.secondary.namespace.faults.add, fault)

    def take_down(self, side: NamespaceThread | None = None) -> None:
        """Refuse connections to a namespace, and cut existing ones."""
        side = side or self.primary
        for kind in (FaultKind.REFUSE, FaultKind.RESET):
            side.call(side.namespace.faults.add, Fault(kind))

    def freeze(self, side: NamespaceThread | None = None) -> None:
        """Make a namespace accept connections and never answer."""
        side = side or self.primary
        side.call(side.namespace.faults.add, Fault(FaultKind.BLACKHOLE))

    def bring_back(self) -> None:
        self.stage.clear()


def text(body: str = "a message", **options: Any) -> ServiceBusMessage:
    return ServiceBusMessage(body, **options)
