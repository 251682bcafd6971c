"""Inspects backlog queues: size, age and the destinations of their messages."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from twinbus.amqp.client.connection import Connection
from twinbus.amqp.codec import sections
from twinbus.amqp.codec.types import DecodeError
from twinbus.ledger.recorder import NullRecorder
from twinbus.pairing.backlog.provisioning import refused_properties
from twinbus.servicebus.entity_paths import BacklogPath, parse_backlog_path
from twinbus.syphon.deferral.deferred import PAGE_SIZE, scan_queue
from twinbus.syphon.settlement.bookkeeping import OperationLog

if TYPE_CHECKING:
    from azure.servicebus.aio.management import ServiceBusAdministrationClient

SECONDS = 30.0
MEGABYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class BacklogQueueView:
    """A backlog queue as the secondary's administration API describes it.

    `is_used` is true if the clients' queue count covers it. `configuration_error` says why they skip it all the same:
    it would lose or refuse messages.
    """

    index: int
    path: str
    is_used: bool
    messages: int
    dead_letters: int
    bytes: int
    max_bytes: int
    configuration_error: str | None = None

    @property
    def full(self) -> float:
        """The used fraction of the queue's size, from 0 to 1."""
        return self.bytes / self.max_bytes if self.max_bytes else 0.0


@dataclass(slots=True)
class Contents:
    """What peeking at some of a queue's messages showed."""

    oldest_at_ms: int | None = None
    #: Messages for each destination; those deferred because it is down count in `deferred` too.
    destinations: Counter[str] = field(default_factory=Counter)
    deferred: Counter[str] = field(default_factory=Counter)
    #: Whether every message was seen.
    is_complete: bool = False


async def list_queues(
    administration: ServiceBusAdministrationClient, primary_name: str, used: int
) -> list[BacklogQueueView]:
    """Return all backlog queues of this primary in the secondary, by index. Needs the Manage right.

    Raises `azure.core.exceptions.AzureError`.
    """
    sizes: dict[str, int] = {}
    errors: dict[str, str | None] = {}
    async for queue in administration.list_queues():
        if _index_of(queue.name, primary_name) is not None:
            sizes[queue.name] = queue.max_size_in_megabytes or 0
            refused = next(refused_properties(queue), None)
            errors[queue.name] = None if refused is None else "{} is {!r}: {}".format(*refused)
    views = []
    async for runtime in administration.list_queues_runtime_properties():
        index = _index_of(runtime.name, primary_name)
        if index is not None:
            views.append(
                BacklogQueueView(
                    index=index,
                    path=runtime.name,
                    is_used=index < used,
                    messages=(runtime.total_message_count or 0) - (runtime.dead_letter_message_count or 0),
                    dead_letters=runtime.dead_letter_message_count or 0,
                    bytes=runtime.size_in_bytes or 0,
                    max_bytes=sizes.get(runtime.name, 0) * MEGABYTE,
                    configuration_error=errors.get(runtime.name),
                )
            )
    return sorted(views, key=lambda view: view.index)


async def paired_names(administration: ServiceBusAdministrationClient) -> list[str]:
    """Return the names of all primaries with backlog queues in the secondary. Needs the Manage right.

    Raises `azure.core.exceptions.AzureError`.
    """
    names = {path.primary_name async for queue in administration.list_queues() if (path := _parts_of(queue.name))}
    return sorted(names)


def _parts_of(name: str | None) -> BacklogPath | None:
    return parse_backlog_path(name or "")


def _index_of(name: str | None, primary_name: str) -> int | None:
    path = _parts_of(name)
    return path.index if path is not None and path.primary_name.lower() == primary_name.lower() else None


async def inspect_queue(connection: Connection, queue: str, pages: int) -> Contents:
    """QueueScan at up to `pages` pages of a queue's messages; locks none.

    Raises what `Connection.management` and `Management.peek_messages` raise.
    """
    management = await connection.management(queue, seconds=SECONDS)
    contents = Contents()
    try:
        first = await management.peek_messages(0, 1, seconds=SECONDS)
        if first:
            contents.oldest_at_ms = _enqueued_at(first[0])
        # An operator's peek is not part of the pairing: it leaves no row in a ledger.
        book = OperationLog(NullRecorder(), "", "", queue)
        look = await scan_queue(management, book, max_pages=pages)
    finally:
        await management.close()
    contents.destinations.update(look.active.values())
    contents.destinations.update(look.deferred.values())
    contents.deferred.update(look.deferred.values())
    contents.is_complete = look.is_complete
    return contents


def pages_needed(messages: int) -> int:
    """Return how many pages hold this many messages, plus the empty one that ends them."""
    return messages // PAGE_SIZE + 2


def _enqueued_at(payload: bytes) -> int | None:
    try:
        annotations: dict[Any, bytes] = dict(sections.map_entries(sections.split_sections(payload).message_annotations))
        value = sections.entry_value(annotations["x-opt-enqueued-time"])
    except (DecodeError, KeyError):
        return None
    return value if isinstance(value, int) else None
