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
    """Look at the backlog queues, then create those that are missing. Queues retired because of that are restored.

    Several clients may do so at the same time. `done` holds the queues to leave out, and receives those that are in
    order, for a caller that has to try again. `before_creating` is awaited if no backlog queue exists at all; what it
    raises is raised, and nothing is created.

    Raises:
        BacklogConfigurationError: a queue would lose or refuse messages. All such queues leave the rotation.
        azure.core.exceptions.AzureError: the namespace could not be asked, or refused.
    """
    work = _Provisioning(admin, pairing, {} if done is None else done)
    missing = await work.look()
    if missing and before_creating is not None and not work.has_found_any:
        await before_creating()
    await work.create(missing)
    if work.failures:
        raise work.failures[0]
    return [work.done[index] for index in sorted(work.in_order)]


class _Provisioning:
    """One pass over the backlog queues that are not known to be in order."""

    def __init__(self, admin: ServiceBusAdministrationClient, pairing: Pairing, done: dict[int, BacklogQueue]) -> None:
        self._admin = admin
        self._pairing = pairing
        self.done = done
        self.in_order: list[int] = []
        #: What the owner has to correct comes before what may pass.
        self.failures: list[BaseException] = []

    @property
    def has_found_any(self) -> bool:
        """Whether any backlog queue of this primary is known to exist, in order or not."""
        return bool(self.done) or any(isinstance(error, BacklogConfigurationError) for error in self.failures)

    async def look(self) -> list[int]:
        """Check the queues that exist; returns the indexes of those that do not."""
        indexes = [index for index in range(self._pairing.options.backlog_queue_count) if index not in self.done]
        return await self._each(indexes, self._check)

    async def create(self, missing: list[int]) -> None:
        await self._each(missing, self._create)

    async def _each(self, indexes: list[int], step: Callable[[int], Awaitable[BacklogQueue | None]]) -> list[int]:
        """Do a step for each queue, a few at a time; returns the indexes for which it found no queue."""
        results = await gather_in_turn(step, indexes)
        missing = []
        for index, result in zip(indexes, results, strict=True):
            if isinstance(result, BacklogQueue):
                self._note(result)
            elif result is None:
                missing.append(index)
            elif isinstance(result, BacklogConfigurationError):
                self._pairing.queue_unusable(index, result)
                self.failures.insert(0, result)
            else:
                self.failures.append(result)
        return missing

    def _note(self, queue: BacklogQueue) -> None:
        self.done[queue.index] = queue
        self.in_order.append(queue.index)
        error = self._pairing.retired_queues().get(queue.path)
        # A queue that was retired because it is full or does not answer has to wait for its cool-down.
        if isinstance(error, BacklogConfigurationError) or (
            error is not None and (queue.is_new or cause_of(error) is Cause.NOT_FOUND)
        ):
            self._pairing.queue_restored(queue.index)

    async def _check(self, index: int) -> BacklogQueue | None:
        """The queue if it exists and is in order, None if there is none. Raises `BacklogConfigurationError`."""
        path = self._pairing.queue_path(index)
        found = await find_queue(self._admin, self._pairing, NamespaceRole.SECONDARY, path)
        if found is None:
            return None
        for name, value, why in refused_properties(found):
            raise BacklogConfigurationError(path, name, value, why)
        for name, value, expected in unexpected_properties(found):
            message = f"{name} of the backlog queue is {value!r} where a new one would have {expected!r}; it is left so"
            logger.warning("%s: %s", path, message)
            self._pairing.publish(BacklogWarning(queue=path, message=message))
        lock = found.lock_duration
        return BacklogQueue(index, path, is_new=False, lock_duration=lock if isinstance(lock, timedelta) else MAX_LOCK)

    async def _create(self, index: int) -> BacklogQueue | None:
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
