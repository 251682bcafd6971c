"""Two namespaces, paired clients of both kinds called in the same way, and what the namespaces have counted."""

from __future__ import annotations

import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from azure.servicebus import ServiceBusMessage
from tests.client.threads import Seen, down, eventually
from tests.pairing.paired import KINDS, Loop

import twinbus
import twinbus.aio
from twinbus import SendAvailabilityOptions, SyphonOptions
from twinbus.broker import (
    AZURE,
    Fault,
    Kind,
    Namespace,
    NamespaceConfig,
    Operation,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.background import NamespaceThread
from twinbus.broker.config import PolicyConfig
from twinbus.broker.faults import ActiveFault
from twinbus.broker.links import OutgoingLink
from twinbus.broker.message import Message
from twinbus.broker.queue import Queue
from twinbus.broker.security import Right, connection_string
from twinbus.ledger.recorder import MemoryRecorder, OperationKind, Stage

__all__ = ["KINDS", "USER", "Client", "House", "Seen", "down", "eventually", "text"]

USER = "user"  # may send and listen, and not manage

_T = TypeVar("_T")


class Waiting:
    """Something asynchronous whose methods wait, so that one test can be written for both kinds."""

    def __init__(self, awaited: Any, loop: Loop) -> None:
        self.awaited = awaited
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.awaited, name)
        if not callable(value):
            return self._wrapped(value)
        return lambda *args, **options: self._wrapped(self._loop.run(called(value, *args, **options)))

    def _wrapped(self, value: Any) -> Any:
        return Waiting(value, self._loop) if hasattr(type(value), "__aexit__") else value

    def __enter__(self) -> Waiting:
        self._loop.run(self.awaited.__aenter__())
        return self

    def __exit__(self, *error: Any) -> None:
        self._loop.run(self.awaited.__aexit__(*error))


async def called(method: Callable[..., Any], *args: Any, **options: Any) -> Any:
    found = method(*args, **options)
    return await found if inspect.isawaitable(found) else found


class Client:
    """A paired client, its events and what its recorder was told."""

    def __init__(self, paired: Any, recorder: MemoryRecorder, name: str) -> None:
        self.paired = paired
        self.recorder = recorder
        self.name = name
        self.seen = Seen(paired)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.paired, name)

    def rows(self, kind: OperationKind, entity: str | None = None) -> int:
        """How many operations of a kind the recorder knows, at one entity or all."""
        rows = self.recorder.operations
        return sum(row.operation is kind and entity in (None, row.entity) for row in rows)

    def stages(self) -> Counter[tuple[Stage, OperationKind]]:
        return Counter((row.stage, row.operation) for row in self.recorder.operations)


class House:
    """A primary and a secondary under the strict profile. Each client has backlog queues of its own."""

    def __init__(self, primary: NamespaceThread, secondary: NamespaceThread, loop: Loop) -> None:
        self.primary = primary
        self.secondary = secondary
        self._loop = loop
        self._numbers = itertools.count(1)

    @classmethod
    @contextmanager
    def open(cls) -> Iterator[House]:
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
        """A client that has started; it is closed in the end."""
        client = self.make(kind, **options)
        with client.paired:
            yield client

    def make(
        self, kind: str, *, signed_by: str | None = None, sides: Sequence[Any] | None = None, **options: Any
    ) -> Client:
        """A client that nobody has started yet; `sides` are a primary and a secondary, if not the usual ones."""
        name = options.setdefault("primary_name", self.a_name("contoso"))
        given = SendAvailabilityOptions(
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
        pair = sides or [self._text(one, signed_by) for one in (self.primary, self.secondary)]
        if kind == "sync":
            return Client(twinbus.PairedServiceBusClient(*pair, given, recorder=recorder), recorder, name)
        made = self._loop.run(called(twinbus.aio.PairedServiceBusClient, *pair, given, recorder=recorder))
        return Client(Waiting(made, self._loop), recorder, name)

    def _text(self, side: NamespaceThread, policy: str | None) -> str:
        namespace = side.namespace
        if policy is None:
            return namespace.connection_string
        return connection_string(namespace.host, namespace.port, namespace.policy(policy))

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Await something on the loop of the asynchronous clients."""
        return self._loop.run(work)

    # ---- entities ----

    def a_name(self, what: str = "orders") -> str:
        return f"{what}-{next(self._numbers)}"

    def queue(self, path: str, **properties: Any) -> Queue:
        return self.primary.run(self.primary.namespace.create(QueueDescription(path, **properties))).queue

    def topic(self, path: str) -> tuple[Queue, Queue]:
        """A topic and its subscription."""
        namespace = self.primary.namespace
        topic = self.primary.run(namespace.create(TopicDescription(path)))
        subscription = self.primary.run(namespace.create_subscription(SubscriptionDescription(path, "all")))
        return topic.queue, subscription.queue

    def backlog(self, client: Client, index: int = 0) -> Queue:
        found = self.secondary.namespace.find(backlog_path(client.name, index))
        assert found is not None
        return found.queue

    def stored(self, client: Client, count: int = 2) -> list[int]:
        """How many messages each backlog queue has taken."""
        return [self.backlog(client, index).activity.received for index in range(count)]

    def messages(self, queue: Queue) -> list[Message]:
        """What is in a queue, as it was stored."""
        side = self.secondary if "/x-servicebus-transfer/" in queue.path else self.primary
        return side.call(queue.peek, 0, 1000)

    def receivers(self, path: str) -> int:
        """How many links lead from a queue of the secondary."""
        namespace = self.secondary.namespace
        links = self.secondary.call(namespace.entity_links)
        return sum(isinstance(link, OutgoingLink) and link.node.path == path for link in links)

    # ---- outages ----

    def strike(self, path: str, kind: Kind = Kind.REJECT, *on: Operation, **fields: Any) -> ActiveFault:
        """Something goes wrong at an entity of the primary."""
        fault = Fault(kind, entity=path, on=frozenset(on or {Operation.SEND}), **fields)
        return self.primary.call(self.primary.namespace.faults.add, fault)

    def counting(self, path: str, *on: Operation) -> ActiveFault:
        """Counts what reaches an entity of the primary: `fired` says how many."""
        return self.strike(path, Kind.SLOW, *on, delay=1e-6)

    def mend(self, fault: ActiveFault) -> None:
        self.primary.call(self.primary.namespace.faults.remove, fault.id)

    def clear(self) -> None:
        for one in (self.primary, self.secondary):
            one.call(one.namespace.faults.clear)


def backlog_path(name: str, index: int) -> str:
    return f"{name}/x-servicebus-transfer/{index}"


def text(body: str = "a message", **properties: Any) -> ServiceBusMessage:
    return ServiceBusMessage(body, **properties)
