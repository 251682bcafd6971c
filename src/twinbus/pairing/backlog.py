"""The backlog queues in the secondary namespace: made if they are missing, checked if they are there, never changed."""

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

from .administration import FOR_EVER
from .core import Pairing
from .errors import BacklogConfigurationError
from .events import BacklogWarning
from .naming import parse_backlog_path
from .policy import Cause, cause_of
from .recording import record, recorded

if TYPE_CHECKING:
    from azure.servicebus.aio.management import ServiceBusAdministrationClient
    from azure.servicebus.management import QueueProperties

logger = logging.getLogger("twinbus.pairing")

MAX_DELIVERY_COUNT = 2147483647
LOCK_DURATION = timedelta(minutes=1)
MAX_LOCK = timedelta(minutes=5)  # of the service

#: What a backlog queue is made with; everything else is the service's default.
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

# Read back it has lost its last digit: whatever reaches this is for ever.
_FOR_EVER = timedelta(days=10675199)
# What is a matter of taste in a queue that somebody else made, and deserves no more than a warning.
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
# Requests under way at the same time.
_AT_ONCE = 4

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class BacklogQueue:
    """A backlog queue that is there; `is_new` if it was made just now."""

    index: int
    path: str
    is_new: bool
    lock_duration: timedelta = LOCK_DURATION


@dataclass(frozen=True, slots=True)
class ListedQueue:
    """A queue of the secondary with the path of a backlog queue. One that is not used can be removed by its owner."""

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
    """Create the backlog queues that are missing and check those that are there, which may be restored.

    Several clients may do so at the same time. `done` holds the queues to leave out, and receives those that are in
    order, for a caller that has to try again. `before_creating` is awaited before the first queue is created, unless
    another one is known to exist; what it raises is raised, and nothing is created.

    Raises:
        BacklogConfigurationError: a queue would lose or refuse messages. All such queues leave the rotation.
        azure.core.exceptions.AzureError: the namespace could not be asked, or refused.
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
            failures.insert(0, result)  # what the owner has to correct comes before what may pass
        else:
            failures.append(result)
    if failures:
        raise work.objection or failures[0]
    return queues


def _restore(pairing: Pairing, queue: BacklogQueue) -> None:
    """Put a queue that is in order back into the rotation, if it left that because it was not.

    One that is full or did not answer has to wait for its cool-down.
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
        self._asking = asyncio.Lock()
        #: What `before_creating` has raised.
        self.objection: Exception | None = None

    async def ensure(self, index: int) -> BacklogQueue:
        """The queue, created if there is none. Raises what `provision` raises."""
        found = await self._check(index)
        if found is None:
            await self._ask_before_creating()
            found = await self._create(index)
        return found

    async def _ask_before_creating(self) -> None:
        """Ask once, on behalf of all queues, and raise its objection for each of them."""
        async with self._asking:
            if self._before_creating is not None:
                try:
                    await self._before_creating()
                except Exception as error:
                    self.objection = error
                self._before_creating = None
        if self.objection is not None:
            raise self.objection

    async def _check(self, index: int) -> BacklogQueue | None:
        """The queue if it exists and is in order, None if there is none. Raises `BacklogConfigurationError`."""
        path = self._pairing.queue_path(index)
        found = await find_queue(self._admin, self._pairing, NamespaceRole.SECONDARY, path)
        if found is None:
            return None
        self._before_creating = None
        for name, value, why in refused_properties(found):
            raise BacklogConfigurationError(path, name, value, why)
        for name, value, expected in unexpected_properties(found):
            message = f"{name} of the backlog queue is {value!r} where a new one would have {expected!r}; it is left so"
            logger.warning("%s: %s", path, message)
            self._pairing.publish(BacklogWarning(queue=path, message=message))
        lock = found.lock_duration
        return BacklogQueue(index, path, is_new=False, lock_duration=lock if isinstance(lock, timedelta) else MAX_LOCK)

    async def _create(self, index: int) -> BacklogQueue:
        path = self._pairing.queue_path(index)
        try:
            with recorded(self._pairing, OperationKind.CREATE, Stage.MANAGE, NamespaceRole.SECONDARY, path):
                await self._admin.create_queue(path, **PROPERTIES)
        except ResourceExistsError:
            # Another client was faster: it is checked like any queue that was there before.
            queue = await self._check(index)
            if queue is None:
                raise
            return queue
        logger.info("Backlog queue %s was created", path)
        return BacklogQueue(index, path, is_new=True)


async def gather_in_turn(
    step: Callable[[_T], Awaitable[_R]], items: Iterable[_T], at_once: int = _AT_ONCE
) -> list[_R | BaseException]:
    """What `step` returns or raises for each item; at most `at_once` of them run at a time."""
    turns = asyncio.Semaphore(at_once)

    async def in_turn(item: _T) -> _R:
        async with turns:
            return await step(item)

    return await asyncio.gather(*map(in_turn, items), return_exceptions=True)


async def list_backlog(admin: ServiceBusAdministrationClient, pairing: Pairing) -> list[ListedQueue]:
    """All backlog queues of this primary in the secondary, also those beyond the count, which nobody uses."""
    found: list[ListedQueue] = []
    for name, messages, dead_letters in await _list_queues(admin, pairing):
        path = parse_backlog_path(name)
        if path is not None and path.primary_name.lower() == pairing.primary_name.lower():
            is_used = path.index < pairing.options.backlog_queue_count
            found.append(ListedQueue(path.index, name, is_used, messages, dead_letters))
    return sorted(found, key=lambda queue: queue.index)


async def _list_queues(admin: ServiceBusAdministrationClient, pairing: Pairing) -> list[tuple[str, int, int]]:
    """The names of all queues, how many messages each holds, and how many dead letters."""
    found = []
    asked = OperationKind.LIST, Stage.MANAGE, NamespaceRole.SECONDARY, "$Resources/queues"
    started = time.perf_counter()
    try:
        async for page in admin.list_queues_runtime_properties().by_page():
            queues = [queue async for queue in page]
            record(pairing, *asked, started)
            found += [
                (one.name or "", one.total_message_count or 0, one.dead_letter_message_count or 0) for one in queues
            ]
            started = time.perf_counter()
    except Exception as error:
        record(pairing, *asked, started, error)
        raise
    return found


async def find_queue(
    admin: ServiceBusAdministrationClient, pairing: Pairing, role: NamespaceRole, path: str
) -> QueueProperties | None:
    """The queue with this path, None if there is none. Raises `azure.core.exceptions.AzureError`."""
    with recorded(pairing, OperationKind.GET, Stage.MANAGE, role, path):
        try:
            return await admin.get_queue(path)
        except ResourceNotFoundError:
            return None


def refused_properties(queue: QueueProperties) -> Iterator[tuple[str, Any, str]]:
    """The properties, with value and reason, through which a queue would lose or refuse messages of the backlog."""
    if queue.requires_session:
        yield "requires_session", True, "messages are stored without a session"
    if queue.requires_duplicate_detection:
        yield "requires_duplicate_detection", True, "messages to different entities may have the same id"
    if queue.forward_to:
        yield "forward_to", queue.forward_to, "messages would not stay in it"
    if queue.status in _CLOSED_TO_SENDERS:
        yield "status", queue.status, "it takes no messages"
    for name in ("default_message_time_to_live", "auto_delete_on_idle"):
        value = getattr(queue, name)
        if value is not None and value < _FOR_EVER:
            what = "messages would expire in it" if name.startswith("default") else "it would vanish with its messages"
            yield name, value, f"{what}; it must be {FOR_EVER}"
    count = queue.max_delivery_count
    if count is not None and count < MAX_DELIVERY_COUNT:
        why = f"messages would be given up after so many tries; it must be {MAX_DELIVERY_COUNT}"
        yield "max_delivery_count", count, why


def unexpected_properties(queue: QueueProperties) -> Iterator[tuple[str, Any, Any]]:
    """The other properties, with value and expected value, in which a queue differs from one made by us."""
    for name, expected in _EXPECTED.items():
        value = getattr(queue, name)
        if (value or None) != (expected or None):
            yield name, value, expected
