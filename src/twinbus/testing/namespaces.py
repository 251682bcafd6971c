"""Two embedded namespaces on threads of their own, with methods that any test can call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

from twinbus.broker import (
    DEFAULT,
    Fault,
    Kind,
    Namespace,
    Profile,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.background import NamespaceThread
from twinbus.broker.faults import ActiveFault

TICKS_PER_MICROSECOND = 10


class EmbeddedNamespace:
    """A namespace that listens on a free port of this machine for as long as the test runs. Nothing of it is kept.

    Its methods may be called from any thread, and from async code: they return at once or within milliseconds.
    """

    def __init__(self, thread: NamespaceThread) -> None:
        self._thread = thread
        self.name: str = thread.namespace.name
        #: For the SDK or for twinbus, with every right.
        self.connection_string: str = thread.connection_string

    def create_queue(self, path: str, **properties: Any) -> None:
        """Make a queue; `properties` are those of `QueueDescription`, times as `timedelta`.

        Raises `ValueError` for one that cannot be, `TypeError` for a property that does not exist.
        """
        description = QueueDescription(path, **_in_ticks(properties))
        description.validate()
        self._thread.run(self._thread.namespace.create(description))

    def create_topic(self, path: str, *subscriptions: str, **properties: Any) -> None:
        """Make a topic with subscriptions; `properties` and errors as for a queue."""
        namespace, run = self._thread.namespace, self._thread.run
        topic = TopicDescription(path, **_in_ticks(properties))
        topic.validate()
        run(namespace.create(topic))
        for name in subscriptions:
            subscription = SubscriptionDescription(path, name)
            subscription.validate()
            run(namespace.create_subscription(subscription))

    def add_fault(self, fault: Fault) -> ActiveFault:
        """Let something go wrong from now on; `fired` of the result says how often it has."""
        return self._thread.call(self._thread.namespace.faults.add, fault)

    def clear_faults(self) -> None:
        """Everything works again."""
        self._thread.call(self._thread.namespace.faults.clear)

    @contextmanager
    def outage(self, kind: Kind = Kind.REFUSE) -> Iterator[None]:
        """Break the whole namespace for as long as the context is entered.

        REFUSE: its connections are cut and new ones refused, as if the process was killed. BLACKHOLE: it takes
        everything and answers nothing.
        """
        # Refusing is about new connections; those that are there have to be cut as well.
        kinds = (kind, Kind.RESET) if kind is Kind.REFUSE else (kind,)
        faults = [self.add_fault(Fault(one)) for one in kinds]
        try:
            yield
        finally:
            for fault in faults:
                self._thread.call(self._thread.namespace.faults.remove, fault.id)

    def message_count(self, path: str) -> int:
        """How many messages a queue, a subscription (`topic/subscriptions/name`) or a dead-letter queue holds."""

        def count() -> int:
            node = self._thread.namespace.entities.resolve(path)
            if node is None:
                raise ValueError(f"{self.name} has no entity {path!r}")
            counters = node.queue.counters
            return counters.active + counters.deferred + counters.scheduled

        return self._thread.call(count)


def _in_ticks(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value // timedelta(microseconds=1) * TICKS_PER_MICROSECOND if isinstance(value, timedelta) else value
        for name, value in properties.items()
    }


class TwinNamespaces(NamedTuple):
    """A primary and a secondary. Their entities are made by the test; backlog queues by the paired client."""

    primary: EmbeddedNamespace
    secondary: EmbeddedNamespace


@contextmanager
def twin_namespaces(
    primary: str = "contoso", secondary: str = "contoso-standby", *, profile: Profile = DEFAULT
) -> Iterator[TwinNamespaces]:
    """Two namespaces for as long as the context is entered.

    `profile` is `twinbus.broker.AZURE` for one that demands of clients what the service demands.
    """
    with ExitStack() as stack:
        threads = [
            stack.enter_context(NamespaceThread(lambda name=name: Namespace(name, profile=profile)))  # type: ignore[misc]
            for name in (primary, secondary)
        ]
        yield TwinNamespaces(*map(EmbeddedNamespace, threads))
