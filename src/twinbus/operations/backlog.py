"""How the backlog is: its queues, how full they are, how old, and where their messages are to go."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from twinbus.amqp import sections
from twinbus.amqp.types import DecodeError
from twinbus.ledger.recorder import NullRecorder
from twinbus.pairing.backlog import refused_properties
from twinbus.pairing.naming import BacklogPath, parse_backlog_path
from twinbus.syphon.bookkeeping import Book
from twinbus.syphon.connection import Connection
from twinbus.syphon.deferred import PAGE, look_through

if TYPE_CHECKING:
    from azure.servicebus.aio.management import ServiceBusAdministrationClient

SECONDS = 30.0
MEGABYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class BacklogQueueView:
    """A backlog queue as the secondary describes it.

    `is_used` says whether the clients' number of queues covers it, `configuration_error` why they do not use it all the
    same: it would lose or refuse messages.
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
        """What part of the queue's size is used, from 0 to 1."""
        return self.bytes / self.max_bytes if self.max_bytes else 0.0


@dataclass(slots=True)
class Contents:
    """What was seen in a queue by looking at its messages, at most so many."""

    oldest_at_ms: int | None = None
    #: Messages for each destination; those set aside because it is down are counted in `parked` as well.
    destinations: Counter[str] = field(default_factory=Counter)
    parked: Counter[str] = field(default_factory=Counter)
    #: Whether everything was seen.
    is_complete: bool = False


async def list_queues(
    administration: ServiceBusAdministrationClient, primary_name: str, used: int
) -> list[BacklogQueueView]:
    """All backlog queues of this primary in the secondary, by index. Needs the right to manage.

    Raises `azure.core.exceptions.AzureError`.
    """
    sizes: dict[str, int] = {}
    errors: dict[str, str | None] = {}
    async for queue in administration.list_queues():
        if _index_of(queue.name, primary_name) is not None:
            sizes[queue.name] = queue.max_size_in_megabytes or 0
            refused = next(refused_properties(queue), None)
            errors[queue.name] = None if refused is None else "{} is {!r}: {}".format(*refused)
    found = []
    async for one in administration.list_queues_runtime_properties():
        index = _index_of(one.name, primary_name)
        if index is not None:
            found.append(
                BacklogQueueView(
                    index=index,
                    path=one.name,
                    is_used=index < used,
                    messages=(one.total_message_count or 0) - (one.dead_letter_message_count or 0),
                    dead_letters=one.dead_letter_message_count or 0,
                    bytes=one.size_in_bytes or 0,
                    max_bytes=sizes.get(one.name, 0) * MEGABYTE,
                    configuration_error=errors.get(one.name),
                )
            )
    return sorted(found, key=lambda queue: queue.index)


async def paired_names(administration: ServiceBusAdministrationClient) -> list[str]:
    """The names of all primaries that have backlog queues in the secondary. Needs the right to manage.

    Raises `azure.core.exceptions.AzureError`.
    """
    found = {path.primary_name async for queue in administration.list_queues() if (path := _parts_of(queue.name))}
    return sorted(found)


def _parts_of(name: str | None) -> BacklogPath | None:
    return parse_backlog_path(name or "")


def _index_of(name: str | None, primary_name: str) -> int | None:
    path = _parts_of(name)
    return path.index if path is not None and path.primary_name.lower() == primary_name.lower() else None


async def look_into(connection: Connection, queue: str, pages: int) -> Contents:
    """Look at the messages of a queue without locking any, at most so many pages of them.

    Raises what `Connection.management` and `Management.peek_messages` raise.
    """
    management = await connection.management(queue, seconds=SECONDS)
    contents = Contents()
    try:
        first = await management.peek_messages(0, 1, seconds=SECONDS)
        if first:
            contents.oldest_at_ms = _enqueued_at(first[0])
        # Who looks is an operator, not a part of the pairing: no ledger has a row of it.
        book = Book(NullRecorder(), "", "", queue)
        look = await look_through(management, book, most=pages)
    finally:
        await management.close()
    contents.destinations.update(look.active.values())
    contents.destinations.update(look.deferred.values())
    contents.parked.update(look.deferred.values())
    contents.is_complete = look.is_complete
    return contents


def pages_for(messages: int) -> int:
    """How many pages hold so many messages, and the end after them."""
    return messages // PAGE + 2


def _enqueued_at(payload: bytes) -> int | None:
    try:
        facts: dict[Any, bytes] = dict(sections.map_entries(sections.split_sections(payload).message_annotations))
        value = sections.entry_value(facts["x-opt-enqueued-time"])
    except (DecodeError, KeyError):
        return None
    return value if isinstance(value, int) else None
