"""Provisions the backlog queues in the secondary: creates missing ones, checks existing ones, changes none."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError

from twinbus.ledger.recorder import NamespaceRole, OperationKind, Stage
from twinbus.servicebus.entity_paths import parse_backlog_path

from ..events import BacklogWarning
from ..failover.error_classification import Cause, cause_of
from ..operation_recording import record, recorded
from ..pairing_errors import BacklogConfigurationError
from ..pairing_state import Pairing
from .administration import FOR_EVER

if TYPE_CHECKING:
    from azure.servicebus.aio.management import ServiceBusAdministrationClient
    from azure.servicebus.management import QueueProperties

logger = logging.getLogger("twinbus.pairing")

MAX_DELIVERY_COUNT = 2147483647
LOCK_DURATION = timedelta(minutes=1)
MAX_LOCK = timedelta(minutes=5)  # the service's limit

#: Properties of a new backlog queue; all others are the service's defaults.
PROPERTIES: Mapping[str, Any] = MappingProxyType(
    {
        "max_size_in_megabytes": 5120,
        "max_delivery_count": MAX_DELIVERY_COUNT,
        "default_message_time_to_live": FOR_EVER,
        "auto_delete_on_idle": FOR_EVER,
        "lock_duration": LOCK_DURATION,
        "dead_lettering_on_message_expiration": True,
        "enable_batched_operations": True,
    }
)

# Read back, the value has lost its last digit: treat anything from here on as for ever.
_FOR_EVER = timedelta(days=10675199)
# Preferences: in an existing queue, a difference is only worth a warning.
_EXPECTED = MappingProxyType(
    {
        "max_size_in_megabytes": 5120,
        "lock_duration": LOCK_DURATION,
        "dead_lettering_on_message_expiration": True,
        "enable_batched_operations": True,
        "enable_partitioning": False,
        "enable_express": False,
        "forward_dead_lettered_messages_to": None,
        "status": "Active",
    }
)
_CLOSED_TO_SENDERS = ("Disabled", "SendDisabled")
# Parallel requests.
_AT_ONCE = 4

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class BacklogQueue:
    """An existing backlog queue; `is_new` if it was just created."""

    index: int
    path: str
    is_new: bool
    lock_duration: timedelta = LOCK_DURATION


@dataclass(frozen=True, slots=True)
class ListedQueue:
    """A queue of the secondary with a backlog path. Its owner may delete one that is not used."""

    index: int
    path: str
    is_used: bool
    messages: int
    dead_letters: int


async def provision(
    admin: ServiceBusAdministrationClient,
    pairing: Pairing,
    done: dict[int, BacklogQueue] | None = None,
    before_creating: Callable[[], Awaitable[None]] | None = None,
) -> list[BacklogQueue]:
    """Create missing backlog queues and check existing ones; those that are fine may be restored.

    Several clients may do this at the same time. `done` has the queues to skip, and receives those that are fine, so
    that a caller can try again. `before_creating` is awaited before the first queue is created, unless another one is
    known to exist; if it raises, nothing is created.

    Raises:
        BacklogConfigurationError: a queue would lose or refuse messages. All such queues leave the rotation.
        azure.core.exceptions.AzureError: the namespace did not answer, or refused.
    """
    done = {} if done is None else done
    indexes = [index for index in range(pairing.options.backlog_queue_count) if index not in done]
    work = _Provisioning(admin, pairing, None if done else before_creating)
    results = await gather_in_turn(work.ensure, indexes)
    queues: list[BacklogQueue] = []
    failures: list[BaseException] = []
    for index, result in zip(indexes, results, strict=True):
        if isinstance(result, BacklogQueue):
            queues.append(result)
            done[index] = result
            _restore(pairing, result)
        elif isinstance(result, BacklogConfigurationError):
            pairing.queue_unusable(index, result)
            failures.insert(0, result)  # what the owner has to fix comes before what may pass
        else:
            failures.append(result)
    if failures:
        raise work.objection or failures[0]
    return queues


def _restore(pairing: Pairing, queue: BacklogQueue) -> None:
    """Restore a queue that was retired because it was missing or misconfigured, and now is fine.

    A queue that was full or did not answer has to wait for its cool-down.
    """
    error = pairing.retired_queues().get(queue.path)
    is_over = queue.is_new or isinstance(error, BacklogConfigurationError)
    if error is not None and (is_over or cause_of(error) is Cause.NOT_FOUND):
        pairing.queue_restored(queue.index)


class _Provisioning:
    """One pass over the backlog queues."""

    def __init__(
        self,
        admin: ServiceBusAdministrationClient,
        pairing: Pairing,
        before_creating: Callable[[], Awaitable[None]] | None,
    ) -> None:
        self._admin = admin
        self._pairing = pairing
        self._before_creating = before_creating
        self._before_creating_lock = asyncio.Lock()
        #: The exception of `before_creating`.
        self.objection: Exception | None = None

    async def ensure(self, index: int) -> BacklogQueue:
        """Return the queue, created if it is missing. Raises what `provision` raises."""
        queue = await self._check(index)
        if queue is None:
            await self._run_before_creating()
            queue = await self._create(index)
        return queue

    async def _run_before_creating(self) -> None:
        """Call `before_creating` once for all queues, and raise its exception for each of them."""
        async with self._before_creating_lock:
            if self._before_creating is not None:
                try:
                    await self._before_creating()
                except Exception as error:
                    self.objection = error
                self._before_creating = None
        if self.objection is not None:
            raise self.objection

    async def _check(self, index: int) -> BacklogQueue | None:
        """Return the queue if it exists and is usable, None if missing. Raises `BacklogConfigurationError`."""
        path = self._pairing.queue_path(index)
        properties = await find_queue(self._admin, self._pairing, NamespaceRole.SECONDARY, path)
        if properties is None:
            return None
        self._before_creating = None
        for name, value, why in refused_properties(properties):
            raise BacklogConfigurationError(path, name, value, why)
        for name, value, expected in unexpected_properties(properties):
            message = f"{name} of the backlog queue is {value!r}, expected {expected!r}; it is left unchanged"
            logger.warning("%s: %s", path, message)
            self._pairing.publish(BacklogWarning(queue=path, message=message))
        lock = properties.lock_duration
        return BacklogQueue(index, path, is_new=False, lock_duration=lock if isinstance(lock, timedelta) else MAX_LOCK)

    async def _create(self, index: int) -> BacklogQueue:
        path = self._pairing.queue_path(index)
        try:
            with recorded(self._pairing, OperationKind.CREATE, Stage.MANAGE, NamespaceRole.SECONDARY, path):
                await self._admin.create_queue(path, **PROPERTIES)
        except ResourceExistsError:
            # Another client was faster: check its queue like any other.
            queue = await self._check(index)
            if queue is None:
                raise
            return queue
        logger.info("Backlog queue %s was created", path)
        return BacklogQueue(index, path, is_new=True)


async def gather_in_turn(
    step: Callable[[_T], Awaitable[_R]], items: Iterable[_T], at_once: int = _AT_ONCE
) -> list[_R | BaseException]:
    """Return the result or exception of `step` for each item; at most `at_once` run at a time."""
    turns = asyncio.Semaphore(at_once)

    async def in_turn(item: _T) -> _R:
        async with turns:
            return await step(item)

    return await asyncio.gather(*map(in_turn, items), return_exceptions=True)


async def list_backlog(admin: ServiceBusAdministrationClient, pairing: Pairing) -> list[ListedQueue]:
    """Return all backlog queues of this primary in the secondary, also unused ones beyond the count."""
    backlog: list[ListedQueue] = []
    for name, messages, dead_letters in await _list_queues(admin, pairing):
        path = parse_backlog_path(name)
        if path is not None and path.primary_name.lower() == pairing.primary_name.lower():
            is_used = path.index < pairing.options.backlog_queue_count
            backlog.append(ListedQueue(path.index, name, is_used, messages, dead_letters))
    return sorted(backlog, key=lambda queue: queue.index)


async def _list_queues(admin: ServiceBusAdministrationClient, pairing: Pairing) -> list[tuple[str, int, int]]:
    """Return name, message count and dead-letter count of every queue."""
    listed = []
    operation = OperationKind.LIST, Stage.MANAGE, NamespaceRole.SECONDARY, "$Resources/queues"
    started = time.perf_counter()
    try:
        async for page in admin.list_queues_runtime_properties().by_page():
            queues = [queue async for queue in page]
            record(pairing, *operation, started)
            listed += [
                (queue.name or "", queue.total_message_count or 0, queue.dead_letter_message_count or 0)
                for queue in queues
            ]
            started = time.perf_counter()
    except Exception as error:
        record(pairing, *operation, started, error)
        raise
    return listed


async def find_queue(
    admin: ServiceBusAdministrationClient, pairing: Pairing, role: NamespaceRole, path: str
) -> QueueProperties | None:
    """Return the queue with this path, None if missing. Raises `azure.core.exceptions.AzureError`."""
    with recorded(pairing, OperationKind.GET, Stage.MANAGE, role, path):
        try:
            return await admin.get_queue(path)
        except ResourceNotFoundError:
            return None


def refused_properties(queue: QueueProperties) -> Iterator[tuple[str, Any, str]]:
    """Yield name, value and reason of each property that would lose or refuse messages of the backlog."""
    if queue.requires_session:
        yield "requires_session", True, "messages are stored without a session"
    if queue.requires_duplicate_detection:
        yield "requires_duplicate_detection", True, "messages to different entities may have the same id"
    if queue.forward_to:
        yield "forward_to", queue.forward_to, "messages would not stay in it"
    if queue.status in _CLOSED_TO_SENDERS:
        yield "status", queue.status, "it accepts no messages"
    for name in ("default_message_time_to_live", "auto_delete_on_idle"):
        value = getattr(queue, name)
        if value is not None and value < _FOR_EVER:
            is_ttl = name.startswith("default")
            what = "messages would expire in it" if is_ttl else "it would be deleted with its messages"
            yield name, value, f"{what}; it must be {FOR_EVER}"
    count = queue.max_delivery_count
    if count is not None and count < MAX_DELIVERY_COUNT:
        why = f"messages would be dead-lettered after that many deliveries; it must be {MAX_DELIVERY_COUNT}"
        yield "max_delivery_count", count, why


def unexpected_properties(queue: QueueProperties) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, value and expected value of each other property that differs from a new backlog queue."""
    for name, expected in _EXPECTED.items():
        value = getattr(queue, name)
        if (value or None) != (expected or None):
            yield name, value, expected
