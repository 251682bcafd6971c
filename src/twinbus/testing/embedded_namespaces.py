"""Runs embedded namespaces on their own threads, with methods that tests can call."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from twinbus.emulator import (
    DEFAULT,
    ActiveFault,
    Fault,
    FaultKind,
    Namespace,
    NamespaceThread,
    Profile,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.emulator.auth.certificate import Certificate, ensure_certificate
from twinbus.servicebus.durations import InvalidDurationError, parse_duration
from twinbus.servicebus.entity_descriptions import DURATIONS, InvalidDescriptionError
from twinbus.servicebus.entity_paths import parse_backlog_path

from .rule_tables import Rules, rule_descriptions

if TYPE_CHECKING:  # slow to import, and most tests do not use it
    from azure.servicebus.management import ServiceBusAdministrationClient

TICKS_PER_MICROSECOND = 10


class EmbeddedNamespace:
    """A namespace in memory that listens on a free local port while the test runs.

    Its methods may be called from any thread and from async code: they return within milliseconds. After the namespace
    has stopped they raise `RuntimeError`.
    """

    def __init__(self, thread: NamespaceThread, ca_file: Path) -> None:
        self._thread = thread
        self.name: str = thread.namespace.name
        #: For the SDK or twinbus, with all rights.
        self.connection_string: str = thread.connection_string
        #: The certificate authority to trust over TLS, for the SDK's `connection_verify`.
        self.ca_file: str = str(ca_file)

    def administration_client(self) -> ServiceBusAdministrationClient:
        """The SDK's synchronous administration client for this namespace; the caller closes it."""
        from .admin_client import administration_client

        return administration_client(self.connection_string, self.ca_file)

    def create_queue(self, path: str, **properties: Any) -> None:
        """Create a queue; `properties` are those of `QueueDescription`, durations as `timedelta` or ISO 8601 text.

        Raises `ValueError` for an invalid value, `TypeError` for an unknown property.
        """
        description = QueueDescription(path, **_in_ticks(properties))
        description.validate()
        self._thread.run(self._thread.namespace.create(description))

    def create_topic(self, path: str, *subscriptions: str, **properties: Any) -> None:
        """Create a topic with subscriptions that get every message; `properties` and errors as for a queue."""
        topic = TopicDescription(path, **_in_ticks(properties))
        topic.validate()
        self._thread.run(self._thread.namespace.create(topic))
        for name in subscriptions:
            self.create_subscription(path, name)

    def create_subscription(self, topic: str, name: str, *, rules: Rules | None = None, **properties: Any) -> None:
        """Create a subscription of an existing topic; `properties` and errors as for a queue.

        `rules` maps names to rules as in the file of `twinbus serve`: SQL, or a mapping with `sql` or `correlation` and
        optionally an `action`. Without rules the subscription gets every message.
        """
        descriptions = rule_descriptions(rules, time.time())
        description = SubscriptionDescription(topic, name, rules=descriptions, **_in_ticks(properties))
        description.validate()
        self._thread.run(self._thread.namespace.create_subscription(description))

    def add_fault(self, fault: Fault) -> ActiveFault:
        """Activate a fault; `fired` of the result counts how often it struck."""
        return self._thread.call(self._thread.namespace.faults.add, fault)

    def clear_faults(self) -> None:
        """Remove all faults."""
        self._thread.call(self._thread.namespace.faults.clear)

    @contextmanager
    def outage(self, kind: FaultKind = FaultKind.REFUSE) -> Iterator[None]:
        """Make the whole namespace unavailable within the context.

        REFUSE: cuts its connections and refuses new ones, like a killed process. BLACKHOLE: accepts everything and
        answers nothing; the SDK's synchronous client connects without a timeout, so it waits forever unless it was
        connected before.
        """
        # REFUSE affects only new connections; RESET cuts the existing ones.
        kinds = (kind, FaultKind.RESET) if kind == FaultKind.REFUSE else (kind,)
        faults = [self.add_fault(Fault(each)) for each in kinds]
        try:
            yield
        finally:
            for fault in faults:
                self._thread.call(self._thread.namespace.faults.remove, fault.id)

    def message_count(self, path: str) -> int:
        """The number of messages in a queue, a subscription (`topic/subscriptions/name`) or a dead-letter queue.

        Raises `ValueError` if there is no such entity.
        """

        def count() -> int:
            node = self._thread.namespace.entities.resolve(path)
            if node is None:
                raise ValueError(f"{self.name} has no entity {path!r}")
            counters = node.queue.counters
            return counters.active + counters.deferred + counters.scheduled

        return self._thread.call(count)

    def backlog_count(self) -> int:
        """The number of messages in the backlog queues of this namespace; 0 if it has none."""

        def paths() -> list[str]:
            entities = self._thread.namespace.entities
            return [path for entity in entities if parse_backlog_path(path := entity.description.path) is not None]

        return sum(map(self.message_count, self._thread.call(paths)))


def _in_ticks(properties: dict[str, Any]) -> dict[str, Any]:
    return {name: _ticks(name, value) if name in DURATIONS else value for name, value in properties.items()}


def _ticks(name: str, value: Any) -> int:
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1) * TICKS_PER_MICROSECOND
    if not isinstance(value, str):
        message = f"must be a timedelta or ISO 8601 text such as PT30S, not {type(value).__name__}"
        raise InvalidDescriptionError(name, message)
    try:
        return parse_duration(value)
    except InvalidDurationError as error:
        raise InvalidDescriptionError(name, str(error)) from None


@cache
def _certificate() -> Certificate:
    """The TLS certificate for the namespaces of this process, created once and deleted at exit."""
    folder = tempfile.mkdtemp(prefix="twinbus-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return ensure_certificate(Path(folder))


class TwinNamespaces(NamedTuple):
    """A primary and a secondary. The test creates their entities; the paired client creates backlog queues."""

    primary: EmbeddedNamespace
    secondary: EmbeddedNamespace


@contextmanager
def twin_namespaces(
    primary: str = "contoso", secondary: str = "contoso-standby", *, profile: Profile = DEFAULT
) -> Iterator[TwinNamespaces]:
    """Run two namespaces within the context.

    Pass `twinbus.emulator.AZURE` as `profile` to apply the limits of the real service to clients.
    """
    certificate = _certificate()
    assert certificate.ca_file is not None  # created above
    with ExitStack() as stack:
        namespaces = []
        for name in (primary, secondary):
            thread = NamespaceThread(lambda name=name: Namespace(name, profile=profile, certificate=certificate))  # type: ignore[misc]
            namespaces.append(EmbeddedNamespace(stack.enter_context(thread), certificate.ca_file))
        yield TwinNamespaces(*namespaces)
