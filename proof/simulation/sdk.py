"""Simulates the SDK's clients, which `twinbus.pairing` gets instead of the real ones.

Only what the pairing uses is implemented. A simulated sender has the attributes that `twinbus.pairing.sdk.internals`
reads, so that cutting a connection is simulated, too.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError, ServiceRequestError
from azure.servicebus import ServiceBusMessageBatch, exceptions
from azure.servicebus.aio import ServiceBusReceiver, ServiceBusSender

from twinbus.amqp.codec import sections
from twinbus.emulator.entities.message import Arrival
from twinbus.emulator.protocol.error_conditions import (
    ENTITY_DISABLED,
    NOT_FOUND,
    QUOTA_EXCEEDED,
    SERVER_BUSY,
    UNAUTHORIZED,
)
from twinbus.servicebus.entity_paths import parse_backlog_path

from .entities import RefusedError, SimulatedQueue
from .network import CutError, DetachedError, Process, Request, SilentError, SimulatedNamespace, Wire
from .scenario import PRIMARY

MAX_SIZE = 256 * 1024
#: Properties of every queue, unless it was created with others.
_PROPERTIES = {
    "requires_session": False,
    "enable_partitioning": False,
    "enable_express": False,
    "forward_to": None,
    "forward_dead_lettered_messages_to": None,
    "status": "Active",
}
_ERRORS: dict[str, type[exceptions.ServiceBusError]] = {
    SERVER_BUSY: exceptions.ServiceBusServerBusyError,
    QUOTA_EXCEEDED: exceptions.ServiceBusQuotaExceededError,
    ENTITY_DISABLED: exceptions.MessagingEntityDisabledError,
    NOT_FOUND: exceptions.MessagingEntityNotFoundError,
    UNAUTHORIZED: exceptions.ServiceBusAuthorizationError,
}


def sdk_error(error: Exception) -> exceptions.ServiceBusError:
    """The exception that the SDK raises for a network error."""
    if isinstance(error, RefusedError):
        kind = _ERRORS.get(error.condition, exceptions.ServiceBusError)
        return kind(message="refused", condition=error.condition)
    if isinstance(error, DetachedError):
        return exceptions.ServiceBusError(message="the link was detached")
    return exceptions.ServiceBusConnectionError(message=str(error))


def encode(payload: Any) -> list[bytes]:
    """The bytes of each message as the SDK encodes it."""
    if not isinstance(payload, ServiceBusMessageBatch):
        batch = ServiceBusMessageBatch(1 << 62)
        for message in payload if isinstance(payload, list) else [payload]:
            batch.add_message(message)
        payload = batch
    encoded: Any = payload._message
    return [bytes(message) for message in encoded[5]]


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
        # Does not call the SDK's __init__, which creates connections and credentials.
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
            raise sdk_error(error) from None
        wire.links.append(self._handler)
        wire.on_cut = lambda error: self._handler.detached()
        return self

    async def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        return ServiceBusMessageBatch(MAX_SIZE)

    async def send_messages(self, message: Any, **kwargs: Any) -> None:
        await self._put(encode(message))

    async def schedule_messages(self, messages: Any, schedule_time_utc: Any, **kwargs: Any) -> list[int]:
        numbers: list[int] = await self._put([payload for message in messages for payload in encode(message)])
        return numbers

    async def _put(self, payloads: Sequence[bytes]) -> Any:
        assert self._wire is not None
        if not self._handler.is_attached:
            raise sdk_error(self._wire.error or DetachedError())
        arrivals = [Arrival(payload) for payload in payloads]
        subjects = [arrival.message_id or "" for arrival in arrivals if not arrival.is_ping]
        queue = self._namespace.queue(self._path)
        for message_id in subjects:
            self._namespace.on_send(message_id)
        answer = self._wire.ask(Request.SEND, self._path, lambda: queue.put(arrivals), subjects)
        try:
            return await answer
        except asyncio.CancelledError:
            # The answer may have arrived at the same time, unseen by the cancelled caller.
            if not answer.cancelled():
                for message_id in subjects:
                    self._namespace.doubt(message_id)
            raise
        except (RefusedError, CutError, DetachedError) as error:
            if isinstance(error, DetachedError):
                self._handler.detached()
            raise sdk_error(error) from None

    async def close(self) -> None:
        if self._wire is not None:
            await asyncio.sleep(self._namespace.latency(self._path))
            self._wire.abort()


class _Peeked(SimpleNamespace):
    """A peeked message."""

    application_properties: dict[bytes, Any]
    sequence_number: int
    enqueued_time_utc: datetime


class SimulatedReceiver(ServiceBusReceiver):
    """A receiver that peeks into a backlog queue."""

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
            raise sdk_error(error) from None
        return [_peeked(payload) for payload in page]

    async def close(self) -> None:
        if self._wire is not None:
            self._wire.abort()


@functools.lru_cache(maxsize=4096)
def _peeked(payload: bytes) -> _Peeked:
    """Cached: waiting sessions peek the same messages again and again."""
    parts = sections.split_sections(payload)
    annotations = dict(sections.map_entries(parts.message_annotations))
    properties = {
        str(name).encode(): value.encode() if isinstance(value, str) else value
        for name, raw in sections.map_entries(parts.application_properties)
        for value in (sections.entry_value(raw),)
    }
    number = sections.entry_value(annotations["x-opt-sequence-number"])
    enqueued = datetime.fromtimestamp(int(sections.entry_value(annotations["x-opt-enqueued-time"])) / 1000, UTC)
    return _Peeked(application_properties=properties, sequence_number=number, enqueued_time_utc=enqueued)


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
        """Does nothing: senders and receivers have their own connections."""


class SimulatedAdministration:
    """Creates and describes queues."""

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
            # The check for swapped namespaces is not simulated: it takes no time and no random number.
            raise ResourceNotFoundError(path)
        queue = await self._ask(lambda: self._find(path))
        if queue is None:
            raise ResourceNotFoundError(path)
        window = queue.duplicate_window
        return SimpleNamespace(
            **_PROPERTIES
            | queue.properties
            | {
                "requires_duplicate_detection": window is not None,
                "duplicate_detection_history_time_window": None if window is None else timedelta(seconds=window),
            }
        )

    def _find(self, path: str) -> SimulatedQueue | None:
        return None if self._namespace.is_deleted(path) else self._namespace.queues.get(path.lower())

    async def get_topic(self, path: str) -> Any:
        raise ResourceNotFoundError(path)

    async def create_queue(self, path: str, **properties: Any) -> None:
        if not await self._ask(lambda: self._create(path, properties)):
            raise ResourceExistsError(path)

    def _create(self, path: str, properties: dict[str, Any]) -> bool:
        """Create a queue unless it exists or its deletion goes on: the service answers 409 to both."""
        if self._namespace.is_deleted(path) or path.lower() in self._namespace.queues:
            return False
        lock = properties["lock_duration"].total_seconds()
        self._namespace.add_queue(path, lock_seconds=lock, properties=properties)
        return True

    def close(self) -> None:
        if self._wire is not None:
            self._wire.abort()


class SimulatedSite:
    """A namespace as the application's pairing reaches it. Replaces `twinbus.pairing.namespace.Namespace`."""

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
