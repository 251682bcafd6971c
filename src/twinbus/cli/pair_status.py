"""What `twinbus status` finds out: whether both namespaces answer and take the key, and what is in the backlog."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field

from twinbus.operations.backlog import BacklogQueueView, Contents, look_into, pages_for
from twinbus.operations.dead_letters import CannotReplay, list_dead_letters
from twinbus.operations.states import EntityState
from twinbus.pairing.naming import backlog_path
from twinbus.syphon.connection import Connection
from twinbus.syphon.connector import Side
from twinbus.syphon.errors import AmqpError, AuthenticationFailed
from twinbus.syphon.verdicts import NOT_FOUND

from .namespaces import Pair, Refused, Unanswered

REACH_SECONDS = 15.0
#: Messages that are looked at in each queue to see where they are to go.
LOOK_AT = 2_000
#: Dead letters that are counted in each queue by looking at them, where nobody tells their number.
LOOK_AT_DEAD = 100
#: Queues beyond those in use that are looked for, where nobody tells which there are.
MOST_BEYOND = 100
#: Other primaries that are named.
MOST_NAMES = 10


@dataclass(frozen=True, slots=True)
class Reached:
    """Whether a namespace answers, and what it or the system says if something is wrong."""

    answers: bool = True
    error: str | None = None


@dataclass(slots=True)
class QueueStatus:
    """A backlog queue: what administration says, if it may be asked, and what was seen in it."""

    path: str
    #: Whether the clients' number of queues covers it.
    is_used: bool = True
    view: BacklogQueueView | None = None
    contents: Contents = field(default_factory=Contents)
    #: None if they could not be looked at. Without a view they are counted up to `LOOK_AT_DEAD`.
    dead_letters: int | None = None
    #: Why its messages or dead letters could not be looked at.
    error: str | None = None

    @classmethod
    def of(cls, view: BacklogQueueView) -> QueueStatus:
        return cls(view.path, view.is_used, view, dead_letters=view.dead_letters)

    @property
    def has_more_dead_letters(self) -> bool:
        """Whether there may be more of them than were counted."""
        return self.dead_letters is None or (self.view is None and self.dead_letters >= LOOK_AT_DEAD)

    @property
    def is_refused(self) -> bool:
        """Whether the clients should use it, and do not, because it would lose or refuse messages."""
        return self.is_used and self.view is not None and self.view.configuration_error is not None

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits or lies dead in it."""
        contents = self.contents
        if self.error is not None or contents.oldest_at_ms is not None or contents.destinations or self.dead_letters:
            return False
        return self.view is None or not self.view.messages


@dataclass(slots=True)
class Status:
    """Everything that `twinbus status` found out. An error is None where there was none."""

    primary: Reached = field(default_factory=Reached)
    secondary: Reached = field(default_factory=Reached)
    #: Why the queues' sizes are not known, or what they are called.
    administration_error: str | None = None
    #: Why there is no backlog queue to look into.
    backlog_error: str | None = None
    #: Whether primary and secondary seem to be exchanged; `backlog_error` says what was found.
    is_swapped: bool = False
    queues: list[QueueStatus] = field(default_factory=list)
    #: Queues that the clients' number covers, and that do not exist.
    missing: list[str] = field(default_factory=list)
    #: None without a ledger.
    entities: list[EntityState] | None = None
    at: float = field(default_factory=time.time)

    @property
    def is_well(self) -> bool:
        """Whether nobody has to do anything: all is known, and nothing waits or lies dead. No queue is no backlog."""
        if self.primary.error or self.secondary.error or not self.queues:
            return False
        return all(one.is_empty and not one.is_refused for one in self.queues)

    @property
    def parked(self) -> Counter[str]:
        return sum((one.contents.parked for one in self.queues), Counter())

    @property
    def destinations(self) -> Counter[str]:
        """The messages that were looked at, by where they are to go."""
        return sum((one.contents.destinations for one in self.queues), Counter())

    @property
    def moved_at(self) -> int | None:
        """When the ledger last saw a message go home; 0 for not in its last rows, None without a ledger."""
        if self.entities is None:
            return None
        return max((one.moved_at for one in self.entities), default=0)


async def find_out(pair: Pair, count: int) -> Status:
    """Ask both namespaces, and look into the backlog queues, as many as the clients use and those beyond."""
    found = Status()
    found.primary, found.secondary = await asyncio.gather(
        _reach(pair.primary, pair.primary_namespace.entity_path or ""), _reach(pair.secondary)
    )
    if found.secondary.error is not None:
        return found
    try:
        name = await pair.primary_name()
    except Unanswered as error:
        found.administration_error = str(error)
        return found
    await _look(pair, name, count, found)
    return found


async def _reach(side: Side, audience: str | None = None) -> Reached:
    """Connect, and show a token for an audience if there is one: no key is looked at before."""
    try:
        async with asyncio.timeout(REACH_SECONDS), side.open() as connection:
            if audience is not None:
                await connection.show_token(audience)
            return Reached()
    except AuthenticationFailed as error:
        # Any other answer is not about the key: who knows what audiences a service takes.
        return Reached(error=f"the key is wrong: {error.description}") if error.status in (401, 403) else Reached()
    except (AmqpError, TimeoutError, OSError) as error:
        return Reached(answers=False, error=str(error) or "no answer")


async def _look(pair: Pair, name: str, count: int, found: Status) -> None:
    refusal: Unanswered | None = None
    try:
        queues = [QueueStatus.of(view) for view in await pair.backlog_queues(name, count)]
    except Unanswered as error:
        refusal = error
        queues = [QueueStatus(backlog_path(name, index)) for index in range(count)]
    try:
        async with pair.secondary.open() as connection:
            found.queues = await _those_there(connection, queues)
            if refusal is not None:
                found.queues += await _beyond(connection, name, count)
    except AmqpError as error:
        found.secondary = Reached(answers=False, error=str(error))
        return
    there = {one.path.lower() for one in found.queues}
    expected = (backlog_path(name, index) for index in range(count))
    found.missing = [path for path in expected if path.lower() not in there]
    if refusal is not None:
        is_key_good = isinstance(refusal, Refused) and any(one.error is None for one in found.queues)
        why = "the key has no right to manage" if is_key_good else str(refusal)
        found.administration_error = f"sizes are not known: {why}"
    if not found.queues:
        await _explain_empty(pair, name, found, may_list=refusal is None)


async def _those_there(connection: Connection, queues: list[QueueStatus]) -> list[QueueStatus]:
    """Look into these queues; returns those that exist."""
    is_there = await asyncio.gather(*(_look_into(connection, one) for one in queues))
    return [one for one, there in zip(queues, is_there, strict=True) if there]


async def _beyond(connection: Connection, name: str, count: int) -> list[QueueStatus]:
    """The queues beyond those in use, one after the other until one does not exist or may not be looked into."""
    found: list[QueueStatus] = []
    for index in range(count, count + MOST_BEYOND):
        queue = QueueStatus(backlog_path(name, index), is_used=False)
        if not await _look_into(connection, queue) or queue.error is not None:
            break
        found.append(queue)
    return found


async def _look_into(connection: Connection, queue: QueueStatus) -> bool:
    """Look at a queue's messages, and count its dead letters if nobody did; False if there is no such queue."""
    if queue.view is not None and not queue.view.messages:
        queue.contents.is_complete = True
        return True
    try:
        queue.contents = await look_into(connection, queue.path, pages_for(LOOK_AT))
        if queue.view is None:
            queue.dead_letters = len(await list_dead_letters(connection, queue.path, LOOK_AT_DEAD))
    except AmqpError as error:
        if error.condition == NOT_FOUND:
            return False
        queue.error = error.condition or str(error)
    except CannotReplay as error:
        queue.error = str(error)
    return True


async def _explain_empty(pair: Pair, name: str, found: Status, may_list: bool) -> None:
    """Say why the secondary has no backlog queue of this primary."""
    swapped = await pair.find_swapped(name) if found.primary.error is None else None
    found.is_swapped = swapped is not None
    found.backlog_error = str(swapped) if swapped is not None else await _why_none(pair, name, may_list)


async def _why_none(pair: Pair, name: str, may_list: bool) -> str:
    """What to say of a secondary without a queue of this primary; the other primaries are named if they are known."""
    nothing = f"there are no backlog queues of {name} in {pair.secondary.endpoint}"
    if may_list:
        try:
            others = await pair.paired_names()
        except Unanswered:  # it has just answered: what is known is that none is of this name
            others = []
        if others:
            more = f" and {len(others) - MOST_NAMES} more" if len(others) > MOST_NAMES else ""
            return f"{nothing}, but of {', '.join(others[:MOST_NAMES])}{more}: is --primary-name right?"
    return f"{nothing}: is it the right pair? A client makes them when it starts"
