"""Two embedded namespaces on threads of their own, with methods that any test can call."""

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
from twinbus.broker.certificate import Certificate, ensure_certificate
from twinbus.broker.descriptions import DURATIONS, InvalidDescription
from twinbus.broker.durations import InvalidDuration, parse_duration
from twinbus.broker.faults import ActiveFault

from .rules import Rules, made_rules

if TYPE_CHECKING:  # loaded by those who administer: most tests do not
    from azure.servicebus.management import ServiceBusAdministrationClient

TICKS_PER_MICROSECOND = 10


class EmbeddedNamespace:
    """A namespace that listens on a free port of this machine for as long as the test runs. Nothing of it is kept.

    Its methods may be called from any thread, and from async code: they return at once or within milliseconds.
    After the end of the namespace they raise `RuntimeError`.
    """

    def __init__(self, thread: NamespaceThread, ca_file: Path) -> None:
        self._thread = thread
        self.name: str = thread.namespace.name
        #: For the SDK or for twinbus, with every right.
        self.connection_string: str = thread.connection_string
        #: The authority to trust over TLS, for the SDK's `connection_verify`.
        self.ca_file: str = str(ca_file)

    def administration_client(self) -> ServiceBusAdministrationClient:
        """The SDK's synchronous administration client for this namespace, to be closed by the caller."""
        from .administration import administration_client

        return administration_client(self.connection_string, self.ca_file)

    def create_queue(self, path: str, **properties: Any) -> None:
        """Make a queue; `properties` are those of `QueueDescription`, durations as `timedelta` or ISO 8601 text.

        Raises `ValueError` for one that cannot be, `TypeError` for a property that does not exist.
        """
        description = QueueDescription(path, **_in_ticks(properties))
        description.validate()
        self._thread.run(self._thread.namespace.create(description))

    def create_topic(self, path: str, *subscriptions: str, **properties: Any) -> None:
        """Make a topic with subscriptions that get every message; `properties` and errors as for a queue."""
        topic = TopicDescription(path, **_in_ticks(properties))
        topic.validate()
        self._thread.run(self._thread.namespace.create(topic))
        for name in subscriptions:
            self.create_subscription(path, name)

    def create_subscription(self, topic: str, name: str, *, rules: Rules | None = None, **properties: Any) -> None:
        """Make a subscription of a topic that is there; `properties` and errors as for a queue.

        `rules` are named, and written as in the file of `twinbus serve`: SQL, or a mapping with `sql` or
        `correlation`, and perhaps an `action`. If they are left out it gets every message.
        """
        made = made_rules(rules, time.time())
        description = SubscriptionDescription(topic, name, rules=made, **_in_ticks(properties))
        description.validate()
        self._thread.run(self._thread.namespace.create_subscription(description))

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
        everything and answers nothing; the SDK's synchronous client, which connects without a deadline, would wait
        for ever if it were not connected before.
        """
        # Refusing is about new connections; those that are there have to be cut as well.
        kinds = (kind, Kind.RESET) if kind == Kind.REFUSE else (kind,)
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
    return {name: _ticks(name, value) if name in DURATIONS else value for name, value in properties.items()}


def _ticks(name: str, value: Any) -> int:
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1) * TICKS_PER_MICROSECOND
    if not isinstance(value, str):
        message = f"must be a timedelta or ISO 8601 text such as PT30S, not {type(value).__name__}"
        raise InvalidDescription(name, message)
    try:
        return parse_duration(value)
    except InvalidDuration as error:
        raise InvalidDescription(name, str(error)) from None


@cache
def _certificate() -> Certificate:
    """What the namespaces of this process speak TLS with, made once and gone with the process."""
    folder = tempfile.mkdtemp(prefix="twinbus-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return ensure_certificate(Path(folder))


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
    certificate = _certificate()
    assert certificate.ca_file is not None  # it was made here
    with ExitStack() as stack:
        made = []
        for name in (primary, secondary):
            thread = NamespaceThread(lambda name=name: Namespace(name, profile=profile, certificate=certificate))  # type: ignore[misc]
            made.append(EmbeddedNamespace(stack.enter_context(thread), certificate.ca_file))
        yield TwinNamespaces(*made)
