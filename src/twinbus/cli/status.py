"""`twinbus status`: how the two namespaces, the backlog and the entities are, now."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, NoReturn

import typer
from azure.core.exceptions import AzureError, ClientAuthenticationError
from rich.console import Console
from rich.table import Table

from twinbus.ledger.errors import LedgerError
from twinbus.operations.backlog import BacklogQueueView, Contents, list_queues, look_into, pages_for
from twinbus.operations.states import EntityState, states_of
from twinbus.pairing.naming import backlog_path
from twinbus.syphon.connection import Connection
from twinbus.syphon.connector import Side
from twinbus.syphon.errors import AmqpError

from .exits import BAD_USAGE
from .namespaces import JsonOption, Pair, PrimaryNameOption, PrimaryOption, QueuesOption, SecondaryOption
from .text import age, printable, size

REACH_SECONDS = 15.0
#: Messages that are looked at in each queue to see where they are to go.
LOOK_AT = 2_000
DRAINING_MINUTES = 5


@dataclass(slots=True)
class QueueStatus:
    """A backlog queue: what administration says, if it may be asked, and what was seen in it."""

    path: str
    view: BacklogQueueView | None = None
    contents: Contents = field(default_factory=Contents)
    #: Why its messages could not be looked at.
    error: str | None = None


@dataclass(slots=True)
class Status:
    """Everything that `twinbus status` found out. An error is None where there was none."""

    primary_error: str | None = None
    secondary_error: str | None = None
    #: Why the queues' sizes are not known.
    administration_error: str | None = None
    queues: list[QueueStatus] = field(default_factory=list)
    #: None without a ledger.
    entities: list[EntityState] | None = None
    at: float = field(default_factory=time.time)

    @property
    def parked(self) -> Counter[str]:
        return sum((one.contents.parked for one in self.queues), Counter())

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
    as_json: JsonOption = False,
) -> None:
    """Show whether both namespaces answer, how deep, old and full the backlog is, and where sends go.

    Exit code 0: everything is well; 1: a namespace does not answer, something waits in the backlog or lies dead there;
    2: bad usage.

    Example: twinbus status --ledger ./ledger
    """
    try:
        pair = Pair.of(primary, secondary, primary_name)
        entities = None if ledger is None else _states(ledger, minutes)
    except ValueError as error:
        _refuse(str(error), BAD_USAGE)
    except (LedgerError, OSError) as error:
        _refuse(str(error), 1)
    found = asyncio.run(_ask(pair, queues))
    found.entities = entities
    if as_json:
        typer.echo(json.dumps(as_document(found), ensure_ascii=False))
    else:
        _print(found)
    if not is_well(found):
        raise typer.Exit(1)


def _refuse(message: str, code: int) -> NoReturn:
    typer.echo(f"twinbus status: {message}", err=True)
    raise typer.Exit(code) from None


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
    name = pair.given_name or pair.primary_namespace.name
    if name is None:
        try:
            name = await pair.primary_name()
        except (AzureError, TimeoutError, OSError):
            found.administration_error = "the primary was not there to be asked for its name: give --primary-name"
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
        async with asyncio.timeout(REACH_SECONDS), pair.secondary_namespace.administration() as administration:
            views = await list_queues(administration, name, count)
        found.queues = [QueueStatus(view.path, view) for view in views]
    except ClientAuthenticationError:
        found.administration_error = "sizes and dead letters are not known: the key has no right to manage"
    except (AzureError, TimeoutError, OSError) as error:
        found.administration_error = f"sizes and dead letters are not known: {type(error).__name__}"
    if found.administration_error is not None:
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
    if found.primary_error or found.secondary_error:
        return False
    views = [one.view for one in found.queues if one.view is not None]
    waits = any(one.contents.oldest_at_ms is not None or one.error for one in found.queues)
    return not waits and not any(view.messages or view.dead_letters for view in views)


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


def _print(found: Status) -> None:
    console = Console(highlight=False, markup=False)
    for name, error in (("primary", found.primary_error), ("secondary", found.secondary_error)):
        console.print(f"{name}: {'answers' if error is None else 'does not answer: ' + printable(error)}")
    if found.administration_error:
        console.print(found.administration_error)
    if found.queues:
        console.print()
        console.print(_queue_table(found))
    elif found.secondary_error is None:
        console.print("there are no backlog queues yet")
    for path, count in sorted(found.parked.items()):
        console.print(f"parked: {count:,} messages for {printable(path)}, which is down")
    if found.entities is not None:
        console.print()
        console.print(_entity_table(found) if found.entities else "the ledger has no rows of that time")
        console.print(_drain_line(found))


def _queue_table(found: Status) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("backlog queue", overflow="fold")
    for name in ("messages", "oldest", "dead letters", "size", "full"):
        table.add_column(name, justify="right")
    table.add_column("for", overflow="fold")
    for one in found.queues:
        view, oldest = one.view, one.contents.oldest_at_ms
        cells = ["?", "?", "?", "?"]
        if view is not None:
            cells = [f"{view.messages:,}", f"{view.dead_letters:,}", size(view.bytes), f"{view.full:.1%}"]
        places = ", ".join(f"{path} {count:,}" for path, count in one.contents.destinations.most_common(3))
        more = len(one.contents.destinations) - 3
        waited = "" if oldest is None else age(found.at - oldest / 1000)
        more_text = f" and {more} more" if more > 0 else ""
        table.add_row(printable(one.path), cells[0], waited, *cells[1:], printable(one.error or places + more_text))
    return table


def _entity_table(found: Status) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("entity", "sends go to"):
        table.add_column(name, overflow="fold")
    for name in ("last send", "last ping", "diverted", "moved home"):
        table.add_column(name, justify="right")
    for one in found.entities or ():
        last = max(one.sent_at, one.diverted_at)
        times = [age(found.at - at / 1e6) + " ago" if at else "" for at in (last, one.pinged_at)]
        table.add_row(printable(one.entity), one.state.value, *times, f"{one.diverted:,}", f"{one.moved:,}")
    return table


def _drain_line(found: Status) -> str:
    moved_at = found.moved_at
    if not moved_at:
        return "nobody has moved anything home in that time"
    seconds = found.at - moved_at / 1e6
    verb = "somebody is draining" if seconds < DRAINING_MINUTES * 60 else "nobody is draining now"
    return f"{verb}: the last message went home {age(seconds)} ago"
