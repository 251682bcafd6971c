"""`twinbus status`: how the two namespaces, the backlog and the entities are, now."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from twinbus.operations.backlog import BacklogQueueView, Contents, look_into, pages_for
from twinbus.operations.states import EntityState, State, states_of
from twinbus.pairing.naming import backlog_path
from twinbus.syphon.connection import Connection
from twinbus.syphon.connector import Side
from twinbus.syphon.errors import AmqpError

from .failing import failing
from .namespaces import JsonOption, Pair, PrimaryNameOption, PrimaryOption, QueuesOption, SecondaryOption, Unanswered
from .text import age, aligned, printable, size

REACH_SECONDS = 15.0
#: Messages that are looked at in each queue to see where they are to go.
LOOK_AT = 2_000
DRAINING_MINUTES = 5
#: Destinations that are listed by name unless all are asked for.
MOST_DESTINATIONS = 10


@dataclass(slots=True)
class QueueStatus:
    """A backlog queue: what administration says, if it may be asked, and what was seen in it."""

    path: str
    view: BacklogQueueView | None = None
    contents: Contents = field(default_factory=Contents)
    #: Why its messages could not be looked at.
    error: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits or lies dead in it, as far as can be told."""
        if self.error is not None or self.contents.oldest_at_ms is not None:
            return False
        return self.view is None or not (self.view.messages or self.view.dead_letters)


@dataclass(slots=True)
class Status:
    """Everything that `twinbus status` found out. An error is None where there was none."""

    primary_error: str | None = None
    secondary_error: str | None = None
    #: Why the queues' sizes are not known, or what they are called.
    administration_error: str | None = None
    is_backlog_known: bool = True
    queues: list[QueueStatus] = field(default_factory=list)
    #: None without a ledger.
    entities: list[EntityState] | None = None
    at: float = field(default_factory=time.time)

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


def status(
    primary: PrimaryOption = "",
    secondary: SecondaryOption = "",
    queues: QueuesOption = 10,
    primary_name: PrimaryNameOption = None,
    ledger: Annotated[
        str | None,
        typer.Option(
            envvar="TWINBUS_LEDGER", metavar="PATH_OR_URL", help="The ledger that tells the entities' states."
        ),
    ] = None,
    minutes: Annotated[int, typer.Option(min=1, max=1440, help="How far to look back in the ledger.")] = 60,
    show_all: Annotated[
        bool, typer.Option("--all", help="Show empty queues, entities that are well, and every destination.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show whether both namespaces answer, how deep, old and full the backlog is, and where sends go.

    Exit code 0: everything is well; 1: a namespace does not answer, something waits in the backlog or lies dead there;
    2: bad usage.

    Example: twinbus status --ledger ./ledger
    """
    with failing("twinbus status"):
        pair = Pair.of(primary, secondary, primary_name)
        entities = None if ledger is None else _states(ledger, minutes)
    found = asyncio.run(_ask(pair, queues))
    found.entities = entities
    if as_json:
        typer.echo(json.dumps(as_document(found), ensure_ascii=False))
    else:
        _print(found, show_all)
    if not is_well(found):
        raise typer.Exit(1)


# ---- asking ----


def _states(url: str, minutes: int) -> list[EntityState]:
    from twinbus.ledger.reading import read_ledger
    from twinbus.ledger.schema import pc, to_operations

    since = datetime.now(UTC) - timedelta(minutes=minutes)
    found = read_ledger(url, since=since.date().isoformat(), where=pc.field("ts") >= since)
    return states_of(to_operations(found.table))


async def _ask(pair: Pair, count: int) -> Status:
    found = Status()
    found.primary_error, found.secondary_error = await asyncio.gather(_reach(pair.primary), _reach(pair.secondary))
    if found.secondary_error is not None:
        return found
    try:
        name = await pair.primary_name()
    except Unanswered as error:
        found.administration_error, found.is_backlog_known = str(error), False
        return found
    await _look(pair, name, count, found)
    return found


async def _reach(side: Side) -> str | None:
    try:
        async with asyncio.timeout(REACH_SECONDS), side.open():
            return None
    except (AmqpError, TimeoutError, OSError) as error:
        return str(error) or "no answer"


async def _look(pair: Pair, name: str, count: int, found: Status) -> None:
    try:
        found.queues = [QueueStatus(view.path, view) for view in await pair.backlog_queues(name, count)]
    except Unanswered as error:
        found.administration_error = f"sizes and dead letters are not known: {error}"
        found.queues = [QueueStatus(backlog_path(name, index)) for index in range(count)]
    try:
        async with pair.secondary.open() as connection:
            is_there = await asyncio.gather(*(_look_into(connection, one) for one in found.queues))
    except AmqpError as error:
        found.secondary_error = str(error)
        return
    found.queues = [one for one, there in zip(found.queues, is_there, strict=True) if there]


async def _look_into(connection: Connection, queue: QueueStatus) -> bool:
    """Look at a queue's messages; False if there is no such queue."""
    if queue.view is not None and not queue.view.messages:
        queue.contents.is_complete = True
        return True
    try:
        queue.contents = await look_into(connection, queue.path, pages_for(LOOK_AT))
    except AmqpError as error:
        if error.condition == "amqp:not-found":
            return False
        queue.error = error.condition or str(error)
    return True


def is_well(found: Status) -> bool:
    """Whether nobody has to do anything."""
    if found.primary_error or found.secondary_error or not found.is_backlog_known:
        return False
    return all(one.is_empty for one in found.queues)


# ---- telling ----


def as_document(found: Status) -> dict[str, Any]:
    """The status as a JSON object (docs/command-line.md)."""
    return {
        "primary": {"reachable": found.primary_error is None, "error": found.primary_error},
        "secondary": {"reachable": found.secondary_error is None, "error": found.secondary_error},
        "administration_error": found.administration_error,
        "queues": [_queue_document(one, found.at) for one in found.queues],
        "parked": dict(found.parked),
        "entities": None if found.entities is None else [_entity_document(one) for one in found.entities],
        "last_move": _time(found.moved_at),
        "well": is_well(found),
    }


def _queue_document(queue: QueueStatus, now: float) -> dict[str, Any]:
    view, contents = queue.view, queue.contents
    oldest = contents.oldest_at_ms
    return {
        "path": queue.path,
        "used": None if view is None else view.is_used,
        "messages": None if view is None else view.messages,
        "dead_letters": None if view is None else view.dead_letters,
        "bytes": None if view is None else view.bytes,
        "max_bytes": None if view is None else view.max_bytes,
        "oldest_seconds": None if oldest is None else round(max(0.0, now - oldest / 1000), 3),
        "destinations": dict(contents.destinations),
        "parked": dict(contents.parked),
        "seen_all": contents.is_complete,
        "error": queue.error,
    }


def _entity_document(entity: EntityState) -> dict[str, Any]:
    return {
        "entity": entity.entity,
        "state": entity.state.value,
        "last_send": _time(entity.sent_at),
        "last_failure": _time(entity.failed_at),
        "last_diverted": _time(entity.diverted_at),
        "last_ping": _time(entity.pinged_at),
        "last_move": _time(entity.moved_at),
        "diverted": entity.diverted,
        "moved": entity.moved,
    }


def _time(at: int | None) -> str | None:
    return datetime.fromtimestamp(at / 1e6, UTC).isoformat(timespec="milliseconds") if at else None


def _print(found: Status, show_all: bool) -> None:
    for name, error in (("primary", found.primary_error), ("secondary", found.secondary_error)):
        typer.echo(f"{name}: {'answers' if error is None else 'does not answer: ' + printable(error)}")
    if found.administration_error:
        typer.echo(found.administration_error)
    if found.queues:
        typer.echo("\n" + "\n".join(_queue_lines(found, show_all)))
    elif found.secondary_error is None and found.administration_error is None:
        typer.echo("there are no backlog queues yet")
    if destinations := _destination_lines(found, show_all):
        typer.echo("\n" + "\n".join(destinations))
    if found.entities is not None:
        typer.echo("\n" + "\n".join([*_entity_lines(found, show_all), _drain_line(found)]))


def _queue_lines(found: Status, show_all: bool) -> list[str]:
    """A line for each queue that holds something or could not be looked at, and one for all the others."""
    shown = [one for one in found.queues if show_all or not one.is_empty]
    others = len(found.queues) - len(shown)
    if not shown:
        return [f"the backlog is empty: nothing in {_counted(others, 'queue')}"]
    errors = {one.error for one in shown}
    if len(shown) > 1 and len(errors) == 1 and None not in errors:
        return [f"none of {_counted(len(shown), 'backlog queue')} may be looked into: {printable(errors.pop())}"]
    rows = [_queue_cells(one, found.at) for one in shown]
    folder = shown[0].path.rpartition("/")[0]
    lines = [
        f"backlog queues {printable(folder)}/…",
        aligned(("queue", "messages", "oldest", "dead letters", "size", "full", ""), rows),
    ]
    return [*lines, f"{_counted(others, 'more queue is', 'more queues are')} empty"] if others else lines


def _queue_cells(queue: QueueStatus, now: float) -> tuple[str, ...]:
    view, oldest = queue.view, queue.contents.oldest_at_ms
    waited = "" if oldest is None else age(now - oldest / 1000)
    index = queue.path.rpartition("/")[2]
    if view is None:
        return index, "?", waited, "?", "?", "?", queue.error or ""
    note = queue.error or ("" if view.is_used else "not in use")
    return index, f"{view.messages:,}", waited, f"{view.dead_letters:,}", size(view.bytes), f"{view.full:.1%}", note


def _destination_lines(found: Status, show_all: bool) -> list[str]:
    """Where the messages are to go that were looked at, those with most first."""
    counts, parked = found.destinations, found.parked
    most = counts.most_common(None if show_all else MOST_DESTINATIONS)
    if not most:
        return []
    rows = [(f"{count:,}", f"{parked[path]:,}", printable(path)) for path, count in most]
    lines = [aligned(("messages", "parked", "for"), rows)]
    if others := len(counts) - len(most):
        rest = counts.total() - sum(count for _, count in most)
        lines.append(f"{rest:,} for {_counted(others, 'more destination')}")
    if not all(one.contents.is_complete for one in found.queues):
        lines.append(f"(only {LOOK_AT:,} messages of each queue were looked at)")
    if parked:
        lines.append("what is parked waits for a destination that is down, or that its syphon may not send to")
    return lines


def _entity_lines(found: Status, show_all: bool) -> list[str]:
    """A line for each entity whose messages were diverted or failed, and one for all the others."""
    entities = found.entities or []
    if not entities:
        return ["the ledger has no rows of that time"]
    shown = [one for one in entities if show_all or not one.is_quiet]
    lines = []
    if shown:
        rows = [_entity_cells(one, found.at) for one in shown]
        lines.append(aligned(("sends go to", "last send", "last ping", "diverted", "moved home", "entity"), rows))
    if others := len(entities) - len(shown):
        what = _counted(others, "more entity", "more entities")
        lines.append(f"{what}: sends go to the primary, nothing was diverted")
    for one in shown:
        if one.state is State.BACKLOG and not one.pinged_at and not one.failed_at:
            lines.append(f"{printable(one.entity)}: no send failed and no ping was sent: failed over by hand?")
    return lines


def _entity_cells(entity: EntityState, now: float) -> tuple[str, ...]:
    last = max(entity.sent_at, entity.diverted_at)
    times = [age(now - at / 1e6) + " ago" if at else "" for at in (last, entity.pinged_at)]
    return entity.state.value, *times, f"{entity.diverted:,}", f"{entity.moved:,}", printable(entity.entity)


def _counted(count: int, one: str, several: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def _drain_line(found: Status) -> str:
    moved_at = found.moved_at
    if not moved_at:
        return "nobody has moved anything home in that time"
    seconds = found.at - moved_at / 1e6
    verb = "somebody is draining" if seconds < DRAINING_MINUTES * 60 else "nobody is draining now"
    return f"{verb}: the last message went home {age(seconds)} ago"
