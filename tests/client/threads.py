"""Two embedded namespaces on threads of their own, for the synchronous client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from tests.namespace_internals import Queue
from tests.sdk_connection import client_options, reachable

from twinbus import Event, PairedServiceBusClient, SendAvailabilityOptions
from twinbus.emulator import (
    ActiveFault,
    Fault,
    FaultKind,
    Namespace,
    NamespaceConfig,
    NamespaceThread,
    Profile,
    QueueDescription,
)

PATIENCE = 60.0

_E = TypeVar("_E", bound=Event)


class ThreadedTwins:
    """A primary called contoso and a secondary."""

    def __init__(self, primary: NamespaceThread, secondary: NamespaceThread) -> None:
        self.primary = primary
        self.secondary = secondary

    @classmethod
    @contextmanager
    def running(cls, profile: Profile) -> Iterator[ThreadedTwins]:
        def make(name: str) -> Callable[[], Namespace]:
            return lambda: reachable(NamespaceConfig(name, port=0), profile=profile)

        with NamespaceThread(make("contoso")) as primary, NamespaceThread(make("standby")) as secondary:
            yield cls(primary, secondary)

    def client(self, **options: Any) -> PairedServiceBusClient:
        given = {
            "backlog_queue_count": 2,
            "failover_interval": 0,
            "ping_primary_interval": 1,
            "attempt_timeout": 5,
            "primary_name": "contoso",
            **options,
        }
        return PairedServiceBusClient.from_connection_strings(
            *self.texts, options=SendAvailabilityOptions(**given), **self.client_options
        )

    @property
    def texts(self) -> tuple[str, str]:
        """The connection strings."""
        return self.primary.connection_string, self.secondary.connection_string

    @property
    def client_options(self) -> dict[str, Any]:
        """Return further client options; with TLS both namespaces have the same authority."""
        return client_options(self.primary.namespace)

    def queue(self, path: str, **properties: Any) -> Queue:
        return self.primary.run(self.primary.namespace.create(QueueDescription(path, **properties))).queue

    def strike(self, fault: Fault) -> ActiveFault:
        return self.primary.call(self.primary.namespace.faults.add, fault)

    def clear(self) -> None:
        for one in (self.primary, self.secondary):
            one.call(one.namespace.faults.clear)

    @property
    def connections(self) -> int:
        return len(self.primary.namespace.connections) + len(self.secondary.namespace.connections)


def down(one: NamespaceThread) -> None:
    for kind in (FaultKind.REFUSE, FaultKind.RESET):
        one.call(one.namespace.faults.add, Fault(kind))


class Seen:
    """The events of a client; `seen.next(Recovered)` waits for the next one of a kind."""

    def __init__(self, client: Any) -> None:
        self.events: list[Event] = []
        self._taken: dict[type[Event], int] = {}
        self._changed = threading.Condition()
        client.on_event(self._take)

    def _take(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def all(self, kind: type[_E]) -> list[_E]:
        """Those that came so far. Events come in order: wait for a later one before saying that one did not come."""
        return [event for event in self.events if isinstance(event, kind)]

    def first(self, count: int, kind: type[_E], seconds: float = PATIENCE) -> list[_E]:
        """All of a kind, as soon as there are this many."""
        with self._changed:
            has_come = self._changed.wait_for(lambda: len(self.all(kind)) >= count, seconds)
        assert has_come, f"fewer than {count} {kind.__name__} came"
        return self.all(kind)

    def next(self, kind: type[_E], seconds: float = PATIENCE) -> _E:
        number = self._taken.get(kind, 0)
        self._taken[kind] = number + 1
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.all(kind)) > number, seconds), f"no {kind.__name__} came"
        return self.all(kind)[number]


def eventually(holds: Callable[[], Any], seconds: float = PATIENCE) -> None:
    """Poll until the condition holds."""
    ends = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends, "it did not come about in time"
        time.sleep(0.01)
