"""Test helpers: two namespaces, and paired clients of both kinds with the same calls."""

from __future__ import annotations

import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from azure.servicebus import ServiceBusMessage
from tests.client.threads import Seen, down, eventually
from tests.namespace_internals import Message, Queue, receiving_links
from tests.pairing.paired import KINDS, Loop

import twinbus
import twinbus.aio
from twinbus import SendAvailabilityOptions, SyphonOptions
from twinbus.emulator import (
    AZURE,
    ActiveFault,
    Fault,
    FaultKind,
    FaultPoint,
    Namespace,
    NamespaceConfig,
    NamespaceThread,
    PolicyConfig,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.ledger.recorder import MemoryRecorder, OperationKind, Stage
from twinbus.servicebus.access_rights import Right

__all__ = ["KINDS", "USER", "Client", "NamespacePair", "Seen", "down", "eventually", "new_message"]

USER = "user"  # may send and listen, but not manage

_T = TypeVar("_T")


class BlockingProxy:
    """Calls the methods of an asynchronous object synchronously, so that one test covers both kinds."""

    def __init__(self, awaited: Any, loop: Loop) -> None:
        self.awaited = awaited
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.awaited, name)
        if not callable(value):
            return self._wrapped(value)
        return lambda *args, **options: self._wrapped(self._loop.run(call(value, *args, **options)))

    def _wrapped(self, value: Any) -> Any:
        return BlockingProxy(value, self._loop) if hasattr(type(value), "__aexit__") else value

    def __enter__(self) -> BlockingProxy:
        self._loop.run(self.awaited.__aenter__())
        return self

    def __exit__(self, *error: Any) -> None:
        self._loop.run(self.awaited.__aexit__(*error))


async def call(method: Callable[..., Any], *args: Any, **options: Any) -> Any:
    result = method(*args, **options)
    return await result if inspect.isawaitable(result) else result


class Client:
    """A paired client, its events and its recorded operations."""

    def __init__(self, paired: Any, recorder: MemoryRecorder, name: str) -> None:
        self.paired = paired
        self.recorder = recorder
        self.name = name
        self.seen = Seen(paired)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.paired, name)

    def rows(self, kind: OperationKind, entity: str | None = None) -> int:
        """Number of recorded operations of a kind, at one entity or all."""
        rows = self.recorder.operations
        return sum(row.operation is kind and entity in (None, row.entity) for row in rows)

    def stages(self) -> Counter[tuple[Stage, OperationKind]]:
        return Counter((row.stage, row.operation) for row in self.recorder.operations)


class NamespacePair:
    """A primary and a secondary with the Azure profile. Each client has its own backlog queues."""

    def __init__(self, primary: NamespaceThread, secondary: NamespaceThread, loop: Loop) -> None:
        self.primary = primary
        self.secondary = secondary
        self._loop = loop
        self._numbers = itertools.count(1)

    @classmethod
    @contextmanager
    def open(cls) -> Iterator[NamespacePair]:
        def make(name: str) -> Callable[[], Namespace]:
            policies = (PolicyConfig(USER, frozenset({Right.SEND, Right.LISTEN})),)
            return lambda: Namespace(NamespaceConfig(name, port=0, policies=policies), profile=AZURE)

        with NamespaceThread(make("contoso")) as primary, NamespaceThread(make("standby")) as secondary:
            loop = Loop()
            try:
                yield cls(primary, secondary, loop)
            finally:
                loop.close()

    # ---- clients ----

    @contextmanager
    def client(self, kind: str, **options: Any) -> Iterator[Client]:
        """A started client, closed at the end."""
        client = self.make(kind, **options)
        with client.paired:
            yield client

    def make(
        self, kind: str, *, signed_by: str | None = None, sides: Sequence[Any] | None = None, **options: Any
    ) -> Client:
        """A client that is not started; `sides` are a primary and a secondary other than the default ones."""
        name = options.setdefault("primary_name", self.new_name("contoso"))
        pairing_options = SendAvailabilityOptions(
            **{
                "backlog_queue_count": 2,
                "failover_interval": 0,
                "ping_primary_interval": 1,
                "attempt_timeout": 5,
                "syphon": SyphonOptions(retry_min=0.1),
                **options,
            }
        )
        recorder = MemoryRecorder()
        pair = sides or [self._connection_string(side, signed_by) for side in (self.primary, self.secondary)]
        if kind == "sync":
            return Client(twinbus.PairedServiceBusClient(*pair, pairing_options, recorder=recorder), recorder, name)
        made = self._loop.run(call(twinbus.aio.PairedServiceBusClient, *pair, pairing_options, recorder=recorder))
        return Client(BlockingProxy(made, self._loop), recorder, name)

    def _connection_string(self, side: NamespaceThread, policy: str | None) -> str:
        namespace = side.namespace
        if policy is None:
            return namespace.connection_string
        return namespace.connection_string_for(policy)

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the loop of the asynchronous clients."""
        return self._loop.run(work)

    # ---- entities ----

    def new_name(self, prefix: str = "orders") -> str:
        return f"{prefix}-{next(self._numbers)}"

    def queue(self, path: str, **properties: Any) -> Queue:
        return self.primary.run(self.primary.namespace.create(QueueDescription(path, **properties))).queue

    def topic(self, path: str) -> tuple[Queue, Queue]:
        """A topic and its subscription."""
        namespace = self.primary.namespace
        topic = self.primary.run(namespace.create(TopicDescription(path)))
        subscription = self.primary.run(namespace.create_subscription(SubscriptionDescription(path, "all")))
        return topic.queue, subscription.queue

    def backlog(self, client: Client, index: int = 0) -> Queue:
        entity = self.secondary.namespace.find(backlog_path(client.name, index))
        assert entity is not None
        return entity.queue

    def stored(self, client: Client, count: int = 2) -> list[int]:
        """Number of messages that each backlog queue has received."""
        return [self.backlog(client, index).activity.received for index in range(count)]

    def messages(self, queue: Queue) -> list[Message]:
        """The messages stored in a queue."""
        side = self.secondary if "/x-servicebus-transfer/" in queue.path else self.primary
        return side.call(queue.peek, 0, 1000)

    def receivers(self, path: str) -> int:
        """Number of receiving links from a queue in the secondary."""
        return self.secondary.call(receiving_links, self.secondary.namespace, path)

    # ---- outages ----

    def add_fault(self, path: str, kind: FaultKind = FaultKind.REJECT, *on: FaultPoint, **fields: Any) -> ActiveFault:
        """Add a fault to an entity of the primary."""
        fault = Fault(kind, entity=path, on=frozenset(on or {FaultPoint.SEND}), **fields)
        return self.primary.call(self.primary.namespace.faults.add, fault)

    def count_operations(self, path: str, *on: FaultPoint) -> ActiveFault:
        """Count operations that reach an entity of the primary, in `fired`."""
        return self.add_fault(path, FaultKind.SLOW, *on, delay=1e-6)

    def repair(self, fault: ActiveFault) -> None:
        self.primary.call(self.primary.namespace.faults.remove, fault.id)

    def clear(self) -> None:
        for side in (self.primary, self.secondary):
            side.call(side.namespace.faults.clear)


def backlog_path(name: str, index: int) -> str:
    return f"{name}/x-servicebus-transfer/{index}"


def new_message(body: str = "a message", **properties: Any) -> ServiceBusMessage:
    return ServiceBusMessage(body, **properties)
