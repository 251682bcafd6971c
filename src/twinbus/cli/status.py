"""`twinbus status`: how the two namespaces, the backlog and the entities are, now."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from twinbus.operations.states import EntityState, State, states_of

from .failing import failing
from .namespaces import (
    JsonOption,
    Pair,
    PrimaryNameOption,
    PrimaryOption,
    ProxyOption,
    QueuesOption,
    SecondaryOption,
    Transport,
    TransportOption,
)
from .pair_status import LOOK_AT, QueueStatus, Reached, Status, find_out
from .text import age, aligned, printable, size

#: Destinations that are listed by name unless all are asked for.
MOST_DESTINATIONS = 10


def status(
    primary: PrimaryOption = "",
    secondary: SecondaryOption = "",
    queues: QueuesOption = 10,
    primary_name: PrimaryNameOption = None,
    transport: TransportOption = Transport.AMQP,
    proxy: ProxyOption = None,
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

    Exit code 0: everything is well; 1: a namespace does not answer or refuses the key, something waits in the backlog
    or lies dead there, it may not be looked into, a queue would lose messages, or there is none; 2: bad usage.

    Example: twinbus status --ledger ./ledger
    """
    with failing("twinbus status"):
        pair = Pair.of(primary, secondary, primary_name, transport, proxy)
        entities = None if ledger is None else _states(ledger, minutes)
    found = asyncio.run(find_out(pair, queues))
    found.entities = entities
    if as_json:
        typer.echo(json.dumps(as_document(found), ensure_ascii=False))
    else:
        _print(found, show_all)
    if not found.is_well:
        raise typer.Exit(1)


def _states(url: str, minutes: int) -> list[EntityState]:
    from twinbus.ledger.reading import read_ledger
    from twinbus.ledger.schema import pc, to_operations

    since = datetime.now(UTC) - timedelta(minutes=minutes)
    found = read_ledger(url, since=since.date().isoformat(), where=pc.field("ts") >= since)
    return states_of(to_operations(found.table))


# ---- telling ----


def as_document(found: Status) -> dict[str, Any]:
    """The status as a JSON object (docs/command-line.md)."""
    return {
        "primary": {"reachable": found.primary.answers, "error": found.primary.error},
        "secondary": {"reachable": found.secondary.answers, "error": found.secondary.error},
        "administration_error": found.administration_error,
        "backlog_error": found.backlog_error,
        "swapped": found.is_swapped,
        "queues": [_queue_document(one, found.at) for one in found.queues],
        "missing": found.missing,
        "parked": dict(found.parked),
        "entities": None if found.entities is None else [_entity_document(one) for one in found.entities],
        "last_move": _time(found.moved_at),
        "well": found.is_well,
    }


def _queue_document(queue: QueueStatus, now: float) -> dict[str, Any]:
    view, contents = queue.view, queue.contents
    oldest = contents.oldest_at_ms
    return {
        "path": queue.path,
        "used": queue.is_used,
        "messages": None if view is None else view.messages,
        "dead_letters": queue.dead_letters,
        "more_dead_letters": queue.has_more_dead_letters,
        "bytes": None if view is None else view.bytes,
        "max_bytes": None if view is None else view.max_bytes,
        "oldest_seconds": None if oldest is None else round(max(0.0, now - oldest / 1000), 3),
        "destinations": dict(contents.destinations),
        "parked": dict(contents.parked),
        "seen_all": contents.is_complete,
        "error": queue.error,
        "configuration_error": None if view is None else view.configuration_error,
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
    for name, reached in (("primary", found.primary), ("secondary", found.secondary)):
        typer.echo(f"{name}: {_in_words(reached)}")
    for error in (found.administration_error, found.backlog_error):
        if error is not None:
            typer.echo(printable(error))
    if found.queues:
        typer.echo("\n" + "\n".join(_queue_lines(found, show_all)))
    if destinations := _destination_lines(found, show_all):
        typer.echo("\n" + "\n".join(destinations))
    if found.entities is not None:
        typer.echo("\n" + "\n".join([*_entity_lines(found, show_all), _drain_line(found)]))


def _in_words(reached: Reached) -> str:
    if reached.error is None:
        return "answers"
    return f"{'refuses' if reached.answers else 'does not answer'}: {printable(reached.error)}"


def _queue_lines(found: Status, show_all: bool) -> list[str]:
    """A line for each queue that holds something or could not be looked at, and one for all the others."""
    shown = [one for one in found.queues if show_all or not one.is_empty or one.is_refused]
    others = len(found.queues) - len(shown)
    errors = {one.error for one in shown}
    if not shown:
        lines = [f"the backlog is empty: nothing in {_counted(others, 'queue')}"]
    elif not others and len(shown) > 1 and len(errors) == 1 and None not in errors:
        lines = [f"none of {_counted(len(shown), 'backlog queue')} may be looked into: {printable(errors.pop())}"]
    else:
        folder = shown[0].path.rpartition("/")[0]
        headings = ("queue", "messages", "oldest", "dead letters", "size", "full", "")
        rows = [_queue_cells(one, found.at) for one in shown]
        lines = [f"backlog queues {printable(folder)}/…", aligned(headings, rows)]
        if others:
            lines.append(f"{_counted(others, 'more queue is', 'more queues are')} empty")
    if gone := len(found.missing):
        used = gone + sum(one.is_used for one in found.queues)
        lines.append(f"{gone:,} of the {used:,} queues that --queues says {'does' if gone == 1 else 'do'} not exist")
    return lines


def _queue_cells(queue: QueueStatus, now: float) -> tuple[str, ...]:
    view, oldest = queue.view, queue.contents.oldest_at_ms
    waited = "" if oldest is None else age(now - oldest / 1000)
    index = queue.path.rpartition("/")[2]
    note = printable(queue.error or _configuration_note(queue) or ("" if queue.is_used else "not in use"))
    dead = "?" if queue.dead_letters is None else f"{queue.dead_letters:,}"
    if view is None:
        dead = f"at least {dead}" if queue.dead_letters and queue.has_more_dead_letters else dead
        return index, _seen(queue), waited, dead, "?", "?", note
    return index, f"{view.messages:,}", waited, dead, size(view.bytes), f"{view.full:.1%}", note


def _configuration_note(queue: QueueStatus) -> str:
    return f"not used: {queue.view.configuration_error}" if queue.is_refused and queue.view is not None else ""


def _seen(queue: QueueStatus) -> str:
    """How many messages were seen in a queue, where nobody says how many there are."""
    if queue.error is not None:
        return "?"
    seen = f"{queue.contents.destinations.total():,}"
    return seen if queue.contents.is_complete else f"at least {seen}"


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
    if not all(one.contents.is_complete or one.error for one in found.queues):
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
    """When something last went home. Whether anybody drains now the ledger cannot tell."""
    if not found.moved_at:
        return "nobody has moved anything home in that time"
    return f"the last message went home {age(found.at - found.moved_at / 1e6)} ago"
