"""Collects what `twinbus status` shows: reachability, keys, and the contents of the backlog."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field

from twinbus.admin_tools.backlog_view import BacklogQueueView, Contents, inspect_queue, pages_needed
from twinbus.admin_tools.dead_letters import ReplayError, list_dead_letters
from twinbus.admin_tools.entity_states import EntityState
from twinbus.amqp.client.connection import Connection
from twinbus.amqp.client.errors import AmqpError, AuthenticationFailedError
from twinbus.servicebus.entity_paths import backlog_path
from twinbus.syphon.connector import Side
from twinbus.syphon.delivery.send_failures import NOT_FOUND

from ..options.namespaces import AccessRefusedError, NoAnswerError, Pair

REACH_SECONDS = 15.0
#: Messages peeked per queue to find their destinations.
MAX_PEEKED = 2_000
#: Dead letters peeked per queue to count them, without the Manage right.
MAX_PEEKED_DEAD = 100
#: Queues beyond those in use that are probed, without the Manage right.
MAX_BEYOND = 100
#: Other primaries that a message names.
MAX_NAMES = 10


@dataclass(frozen=True, slots=True)
class Reached:
    """Whether a namespace answers; `error` is its error, or the system's."""

    answers: bool = True
    error: str | None = None


@dataclass(slots=True)
class QueueStatus:
    """A backlog queue: its description, if the key has the Manage right, and its peeked contents."""

    path: str
    #: Whether the clients' number of queues covers it.
    is_used: bool = True
    view: BacklogQueueView | None = None
    contents: Contents = field(default_factory=Contents)
    #: None if they could not be peeked. Without a view they are counted up to `MAX_PEEKED_DEAD`.
    dead_letters: int | None = None
    #: Why its messages or dead letters could not be peeked.
    error: str | None = None

    @classmethod
    def of(cls, view: BacklogQueueView) -> QueueStatus:
        return cls(view.path, view.is_used, view, dead_letters=view.dead_letters)

    @property
    def has_more_dead_letters(self) -> bool:
        """Whether there may be more dead letters than were counted."""
        return self.dead_letters is None or (self.view is None and self.dead_letters >= MAX_PEEKED_DEAD)

    @property
    def is_refused(self) -> bool:
        """Whether clients skip it although it is in use, because it would lose or refuse messages."""
        return self.is_used and self.view is not None and self.view.configuration_error is not None

    @property
    def is_empty(self) -> bool:
        """Whether it holds neither messages nor dead letters."""
        contents = self.contents
        if self.error is not None or contents.oldest_at_ms is not None or contents.destinations or self.dead_letters:
            return False
        return self.view is None or not self.view.messages


@dataclass(slots=True)
class Status:
    """Everything that `twinbus status` shows. Errors are None if there was none."""

    primary: Reached = field(default_factory=Reached)
    secondary: Reached = field(default_factory=Reached)
    #: Why the queues' sizes, or their names, are not known.
    administration_error: str | None = None
    #: Why no backlog queue was found.
    backlog_error: str | None = None
    #: Whether primary and secondary look swapped; `backlog_error` has the details.
    is_swapped: bool = False
    queues: list[QueueStatus] = field(default_factory=list)
    #: Queues covered by the clients' queue count that do not exist.
    missing: list[str] = field(default_factory=list)
    #: None without a ledger.
    entities: list[EntityState] | None = None
    at: float = field(default_factory=time.time)

    @property
    def is_well(self) -> bool:
        """Whether nothing needs attention: all is known, and there are queues, all of them empty."""
        if self.primary.error or self.secondary.error or not self.queues:
            return False
        return all(queue.is_empty and not queue.is_refused for queue in self.queues)

    @property
    def deferred(self) -> Counter[str]:
        return sum((one.contents.deferred for one in self.queues), Counter())

    @property
    def destinations(self) -> Counter[str]:
        """The peeked messages by destination."""
        return sum((queue.contents.destinations for queue in self.queues), Counter())

    @property
    def moved_at(self) -> int | None:
        """When a message was last moved, by the ledger; 0 if not in the period, None without a ledger."""
        if self.entities is None:
            return None
        return max((entity.moved_at for entity in self.entities), default=0)


async def collect_status(pair: Pair, count: int) -> Status:
    """Ask both namespaces, and peek at the `count` backlog queues that the clients use and those beyond."""
    status = Status()
    status.primary, status.secondary = await asyncio.gather(
        reach(pair.primary, pair.primary_namespace.entity_path or ""), reach(pair.secondary)
    )
    if status.secondary.error is not None:
        return status
    try:
        name = await pair.primary_name()
    except NoAnswerError as error:
        status.administration_error = str(error)
        return status
    await _inspect_backlog(pair, name, count, status)
    return status


async def reach(side: Side, audience: str | None = None) -> Reached:
    """Connect, and put a token for the audience if one is given: only then is the key checked."""
    try:
        async with asyncio.timeout(REACH_SECONDS), side.open() as connection:
            if audience is not None:
                await connection.put_token(audience)
            return Reached()
    except AuthenticationFailedError as error:
        # Any other answer is not about the key: who knows what audiences a service takes.
        return Reached(error=f"the key is wrong: {error.description}") if error.status in (401, 403) else Reached()
    except (AmqpError, TimeoutError, OSError) as error:
        return Reached(answers=False, error=str(error) or "no answer")


async def _inspect_backlog(pair: Pair, name: str, count: int, status: Status) -> None:
    refusal: NoAnswerError | None = None
    try:
        queues = [QueueStatus.of(view) for view in await pair.backlog_queues(name, count)]
    except NoAnswerError as error:
        refusal = error
        queues = [QueueStatus(backlog_path(name, index)) for index in range(count)]
    try:
        async with pair.secondary.open() as connection:
            status.queues = await _inspect_existing(connection, queues)
            if refusal is not None:
                status.queues += await _inspect_beyond(connection, name, count)
    except AmqpError as error:
        status.secondary = Reached(answers=False, error=str(error))
        return
    existing = {queue.path.lower() for queue in status.queues}
    expected = (backlog_path(name, index) for index in range(count))
    status.missing = [path for path in expected if path.lower() not in existing]
    if refusal is not None:
        is_key_good = isinstance(refusal, AccessRefusedError) and any(queue.error is None for queue in status.queues)
        why = "the key lacks the Manage right" if is_key_good else str(refusal)
        status.administration_error = f"sizes are not known: {why}"
    if not status.queues:
        await _explain_empty(pair, name, status, may_list=refusal is None)


async def _inspect_existing(connection: Connection, queues: list[QueueStatus]) -> list[QueueStatus]:
    """Peek at these queues; return those that exist."""
    exist = await asyncio.gather(*(_inspect(connection, queue) for queue in queues))
    return [queue for queue, exists in zip(queues, exist, strict=True) if exists]


async def _inspect_beyond(connection: Connection, name: str, count: int) -> list[QueueStatus]:
    """Peek at the queues beyond those in use, until one does not exist or cannot be peeked."""
    queues: list[QueueStatus] = []
    for index in range(count, count + MAX_BEYOND):
        queue = QueueStatus(backlog_path(name, index), is_used=False)
        if not await _inspect(connection, queue) or queue.error is not None:
            break
        queues.append(queue)
    return queues


async def _inspect(connection: Connection, queue: QueueStatus) -> bool:
    """Peek at a queue's messages, and at its dead letters if their number is unknown; False if it does not exist."""
    if queue.view is not None and not queue.view.messages:
        queue.contents.is_complete = True
        return True
    try:
        queue.contents = await inspect_queue(connection, queue.path, pages_needed(MAX_PEEKED))
        if queue.view is None:
            queue.dead_letters = len(await list_dead_letters(connection, queue.path, MAX_PEEKED_DEAD))
    except AmqpError as error:
        if error.condition == NOT_FOUND:
            return False
        queue.error = error.condition or str(error)
    except ReplayError as error:
        queue.error = str(error)
    return True


async def _explain_empty(pair: Pair, name: str, status: Status, may_list: bool) -> None:
    """Set the reason why the secondary has no backlog queue of this primary."""
    swapped = await pair.find_swapped(name) if status.primary.error is None else None
    status.is_swapped = swapped is not None
    status.backlog_error = str(swapped) if swapped is not None else await _missing_message(pair, name, may_list)


async def _missing_message(pair: Pair, name: str, may_list: bool) -> str:
    """Return the message for a secondary without queues of this primary; it names the other primaries if known."""
    message = f"there are no backlog queues of {name} in {pair.secondary.endpoint}"
    if may_list:
        try:
            others = await pair.paired_names()
        except NoAnswerError:
            others = []
        if others:
            more = f" and {len(others) - MAX_NAMES} more" if len(others) > MAX_NAMES else ""
            return f"{message}, but there are some of {', '.join(others[:MAX_NAMES])}{more}: is --primary-name right?"
    return f"{message}: is this the right pair? A client creates them when it starts"
