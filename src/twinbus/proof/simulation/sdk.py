"""The SDK's clients on the simulated network: what `twinbus.pairing` is given instead of the real ones.

Only what the pairing uses is here. A simulated sender has what `twinbus.pairing.sdk.internals` looks at, so that
cutting a connection is simulated, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from azure.core.exceptions import ResourceNotFoundError, ServiceRequestError
from azure.servicebus import ServiceBusMessageBatch, exceptions
from azure.servicebus.aio import ServiceBusReceiver, ServiceBusSender

from twinbus.amqp import sections
from twinbus.broker.errors import ENTITY_DISABLED, NOT_FOUND, QUOTA_EXCEEDED, SERVER_BUSY, UNAUTHORIZED
from twinbus.broker.message import Arrival
from twinbus.pairing.naming import parse_backlog_path

from .entities import RefusedError
from .network import CutError, DetachedError, Process, Request, SilentError, SimulatedNamespace, Wire
from .scenario import PRIMARY

MAX_SIZE = 256 * 1024
_ERRORS: dict[str, type[exceptions.ServiceBusError]] = {
    SERVER_BUSY: exceptions.ServiceBusServerBusyError,
    QUOTA_EXCEEDED: exceptions.ServiceBusQuotaExceededError,
    ENTITY_DISABLED: exceptions.MessagingEntityDisabledError,
    NOT_FOUND: exceptions.MessagingEntityNotFoundError,
    UNAUTHORIZED: exceptions.ServiceBusAuthorizationError,
}


def as_the_sdk_says(error: Exception) -> exceptions.ServiceBusError:
    """The exception that the SDK raises for what happened on the network."""
    if isinstance(error, RefusedError):
        kind = _ERRORS.get(error.condition, exceptions.ServiceBusError)
        return kind(message="refused", condition=error.condition)
    if isinstance(error, DetachedError):
        return exceptions.ServiceBusError(message="the link was detached")
    return exceptions.ServiceBusConnectionError(message=str(error))


def encoded(payload: Any) -> list[bytes]:
    """The bytes of each message that the SDK would write."""
    if not isinstance(payload, ServiceBusMessageBatch):
        batch = ServiceBusMessageBatch(1 << 62)
        for message in payload if isinstance(payload, list) else [payload]:
            batch.add_message(message)
        payload = batch
    written: Any = payload._message
    return [bytes(one) for one in written[5]]


class _Handler:
    """Stands for the SDK's AMQP client of one sender: its connection can be aborted, its link detached."""

    def __init__(self, wire: Wire, path: str) -> None:
        self.path = path
        self._connection = SimpleNamespace(_transport=SimpleNamespace(writer=SimpleNamespace(transport=wire)))
        self.is_attached = True

    def detached(self) -> None:
        self.is_attached = False


class SimulatedSender(ServiceBusSender):
    """A sender to one entity."""

    def __init__(self, namespace: SimulatedNamespace, process: Process, path: str) -> None:
        # Not the SDK's own beginning: it would make connections and credentials.
        self.fully_qualified_namespace = namespace.host
        self._namespace = namespace
        self._process = process
        self._path = path
        self._handler: Any = None
        self._wire: Wire | None = None

    async def __aenter__(self) -> SimulatedSender:
        try:
            wire = self._wire = await self._namespace.connect(self._process)
            self._handler = _Handler(wire, self._path)
            await wire.ask(Request.ATTACH, self._path, lambda: self._namespace.queue(self._path))
        except (CutError, RefusedError) as error:
            if self._wire is not None:
                self._wire.abort()
            raise as_the_sdk_says(error) from None
        wire.links.append(self._handler)
        wire.on_cut = lambda error: self._handler.detached()
        return self

    async def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        return ServiceBusMessageBatch(MAX_SIZE)

    async def send_messages(self, message: Any, **kwargs: Any) -> None:
        await self._put(encoded(message))

    async def schedule_messages(self, messages: Any, schedule_time_utc: Any, **kwargs: Any) -> list[int]:
        numbers: list[int] = await self._put([one for message in messages for one in encoded(message)])
        return numbers

    async def _put(self, payloads: Sequence[bytes]) -> Any:
        assert self._wire is not None
        if not self._handler.is_attached:
            raise as_the_sdk_says(self._wire.error or DetachedError())
        arrivals = [Arrival(payload) for payload in payloads]
        subjects = [arrival.message_id or "" for arrival in arrivals if not arrival.is_ping]
        queue = self._namespace.queue(self._path)
        for message_id in subjects:
            self._namespace.on_send(message_id)
        answer = self._wire.ask(Request.SEND, self._path, lambda: queue.put(arrivals), subjects)
        try:
            return await answer
        except asyncio.CancelledError:
            # The answer may have come in the same moment, to a caller that did not wait for it any more.
            if not answer.cancelled():
                for message_id in subjects:
                    self._namespace.doubt(message_id)
            raise
        except (RefusedError, CutError, DetachedError) as error:
            if isinstance(error, DetachedError):
                self._handler.detached()
            raise as_the_sdk_says(error) from None

    async def close(self) -> None:
        if self._wire is not None:
            await asyncio.sleep(self._namespace.latency(self._path))
            self._wire.abort()


class _Peeked(SimpleNamespace):
    """A message as a look shows it."""

    application_properties: dict[bytes, Any]
    sequence_number: int
    enqueued_time_utc: datetime


class SimulatedReceiver(ServiceBusReceiver):
    """Looks through a backlog queue."""

    def __init__(self, namespace: SimulatedNamespace, process: Process, path: str) -> None:
        self._namespace = namespace
        self._process = process
        self._path = path
        self._wire: Wire | None = None
        self._handler: Any = None

    async def peek_messages(self, max_message_count: int = 1, **kwargs: Any) -> list[Any]:
        first = kwargs["sequence_number"]
        try:
            if self._wire is None:
                self._wire = await self._namespace.connect(self._process)
            queue = self._namespace.queue(self._path)
            page = await self._wire.ask(Request.MANAGE, self._path, lambda: queue.peek(first, max_message_count))
        except (CutError, RefusedError, DetachedError, SilentError) as error:
            raise as_the_sdk_says(error) from None
        return [_peeked(payload) for payload in page]

    async def close(self) -> None:
        if self._wire is not None:
            self._wire.abort()


def _peeked(payload: bytes) -> _Peeked:
    parts = sections.split_sections(payload)
    facts = dict(sections.map_entries(parts.message_annotations))
    own = {
        str(name).encode(): value.encode() if isinstance(value, str) else value
        for name, raw in sections.map_entries(parts.application_properties)
        for value in (sections.entry_value(raw),)
    }
    number = sections.entry_value(facts["x-opt-sequence-number"])
    stored = datetime.fromtimestamp(int(sections.entry_value(facts["x-opt-enqueued-time"])) / 1000, UTC)
    return _Peeked(application_properties=own, sequence_number=number, enqueued_time_utc=stored)


class SimulatedClient:
    """The SDK's client of one namespace."""

    def __init__(self, namespace: SimulatedNamespace, process: Process) -> None:
        self._namespace = namespace
        self._process = process
        self.fully_qualified_namespace = namespace.host

    def get_queue_sender(self, path: str, **options: Any) -> SimulatedSender:
        return SimulatedSender(self._namespace, self._process, path)

    def get_queue_receiver(self, path: str, **options: Any) -> SimulatedReceiver:
        return SimulatedReceiver(self._namespace, self._process, path)

    async def close(self) -> None:
        """Its senders and receivers have connections of their own."""


class SimulatedAdministration:
    """Makes and describes queues."""

    def __init__(self, namespace: SimulatedNamespace, process: Process) -> None:
        self._namespace = namespace
        self._process = process
        self._wire: Wire | None = None

    async def _ask(self, act: Any) -> Any:
        try:
            if self._wire is None:
                self._wire = await self._namespace.connect(self._process)
            return await self._wire.ask(Request.MANAGE, "", act)
        except (CutError, RefusedError, DetachedError) as error:
            raise ServiceRequestError(str(error)) from None

    async def get_queue(self, path: str) -> Any:
        if self._namespace.name == PRIMARY and parse_backlog_path(path) is not None:
            # Whether the namespaces are swapped is not what a run is about: asking takes no time and no random number.
            raise ResourceNotFoundError(path)
        found = await self._ask(lambda: self._namespace.queues.get(path.lower()))
        if found is None:
            raise ResourceNotFoundError(path)
        window = found.duplicate_window
        return SimpleNamespace(
            **found.properties,
            requires_duplicate_detection=window is not None,
            duplicate_detection_history_time_window=None if window is None else timedelta(seconds=window),
        )

    async def get_topic(self, path: str) -> Any:
        raise ResourceNotFoundError(path)

    async def create_queue(self, path: str, **properties: Any) -> None:
        lock = properties["lock_duration"].total_seconds()
        await self._ask(lambda: self._namespace.add_queue(path, lock_seconds=lock, properties=properties))

    def close(self) -> None:
        if self._wire is not None:
            self._wire.abort()


class SimulatedSite:
    """A namespace as a process of the application reaches it: what the pairing's background is given."""

    def __init__(self, namespace: SimulatedNamespace, process: Process) -> None:
        self._namespace = namespace
        self._process = process
        self.fully_qualified_namespace = namespace.host
        self.name = namespace.name

    def async_client(self, **options: Any) -> SimulatedClient:
        return SimulatedClient(self._namespace, self._process)

    @asynccontextmanager
    async def administration(self) -> Any:
        admin = SimulatedAdministration(self._namespace, self._process)
        try:
            yield admin
        finally:
            admin.close()
