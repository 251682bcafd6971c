"""`twinbus status`: shows the state of both namespaces, the backlog and the entities."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from twinbus.admin_tools.entity_states import EntityState, State, states_of

from ..failures import exit_on_error
from ..options.namespaces import (
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
from ..text import age, aligned, counted, missing_queues_text, printable, size
from .pair_status import MAX_PEEKED, QueueStatus, Reached, Status, collect_status

#: Destinations listed by name without --all.
MAX_DESTINATIONS = 10


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
            envvar="TWINBUS_LEDGER", metavar="PATH_OR_URL", help="Ledger from which to read the states of the entities."
        ),
    ] = None,
    minutes: Annotated[int, typer.Option(min=1, max=1440, help="How far to look back in the ledger.")] = 60,
    show_all: Annotated[
        bool, typer.Option("--all", help="Also show empty queues, healthy entities, and every destination.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show whether both namespaces answer, how large, old and full the backlog is, and where sends go.

    Exit code 0: all is well. 1: a namespace does not answer or refuses the key; the backlog holds messages or dead
    letters, or cannot be read; a queue would lose messages; or there are no backlog queues. 2: bad usage.

    Example: twinbus status --ledger ./ledger
    """
    with exit_on_error("twinbus status"):
        pair = Pair.of(primary, secondary, primary_name, transport, proxy)
        entities = None if ledger is None else _states(ledger, minutes)
    result = asyncio.run(collect_status(pair, queues))
    result.entities = entities
    if as_json:
        typer.echo(json.dumps(as_document(result), ensure_ascii=False))
    else:
        _print(result, show_all)
    if not result.is_well:
        raise typer.Exit(1)


def _states(url: str, minutes: int) -> list[EntityState]:
    from twinbus.ledger.ledger_reader import read_ledger
    from twinbus.ledger.schema import pc, to_operations

    since = datetime.now(UTC) - timedelta(minutes=minutes)
    contents = read_ledger(url, since=since.date().isoformat(), where=pc.field("ts") >= since)
    return states_of(to_operations(contents.table))


def as_document(found: Status) -> dict[str, Any]:
    """Return the status as a JSON object (docs/reference/status.md)."""
    return {
        "primary": {"reachable": found.primary.answers, "error": found.primary.error},
        "secondary": {"reachable": found.secondary.answers, "error": found.secondary.error},
        "administration_error": found.administration_error,
        "backlog_error": found.backlog_error,
        "swapped": found.is_swapped,
        "queues": [_queue_document(one, found.at) for one in found.queues],
        "missing": found.missing,
        "deferred": dict(found.deferred),
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
        "deferred": dict(contents.deferred),
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
        typer.echo(f"{name}: {_reached_text(reached)}")
    for error in (found.administration_error, found.backlog_error):
        if error is not None:
            typer.echo(printable(error))
    if found.queues:
        typer.echo("\n" + "\n".join(_queue_lines(found, show_all)))
    if destinations := _destination_lines(found, show_all):
        typer.echo("\n" + "\n".join(destinations))
    if found.entities is not None:
        typer.echo("\n" + "\n".join([*_entity_lines(found, show_all), _drain_line(found)]))


def _reached_text(reached: Reached) -> str:
    if reached.error is None:
        return "answers"
    return f"{'refuses' if reached.answers else 'does not answer'}: {printable(reached.error)}"


def _queue_lines(found: Status, show_all: bool) -> list[str]:
    """Format one line per queue that holds something or could not be peeked, and one for all the others."""
    shown = [queue for queue in found.queues if show_all or not queue.is_empty or queue.is_refused]
    others = len(found.queues) - len(shown)
    errors = {queue.error for queue in shown}
    if not shown:
        lines = [f"the backlog is empty: nothing in {counted(others, 'queue')}"]
    elif not others and len(shown) > 1 and len(errors) == 1 and None not in errors:
        lines = [f"none of {counted(len(shown), 'backlog queue')} can be read: {printable(errors.pop())}"]
    else:
        folder = shown[0].path.rpartition("/")[0]
        headings = ("queue", "messages", "oldest", "dead letters", "size", "full", "")
        rows = [_queue_cells(queue, found.at) for queue in shown]
        lines = [f"backlog queues {printable(folder)}/…", aligned(headings, rows)]
        if others:
            lines.append(f"{counted(others, 'more queue is', 'more queues are')} empty")
    if missing := len(found.missing):
        expected = missing + sum(queue.is_used for queue in found.queues)
        lines.append(missing_queues_text(missing, expected))
    return lines


def _queue_cells(queue: QueueStatus, now: float) -> tuple[str, ...]:
    view, oldest = queue.view, queue.contents.oldest_at_ms
    oldest_age = "" if oldest is None else age(now - oldest / 1000)
    index = queue.path.rpartition("/")[2]
    note = printable(queue.error or _configuration_note(queue) or ("" if queue.is_used else "not in use"))
    dead = "?" if queue.dead_letters is None else f"{queue.dead_letters:,}"
    if view is None:
        dead = f"at least {dead}" if queue.dead_letters and queue.has_more_dead_letters else dead
        return index, _peeked_count(queue), oldest_age, dead, "?", "?", note
    return index, f"{view.messages:,}", oldest_age, dead, size(view.bytes), f"{view.full:.1%}", note


def _configuration_note(queue: QueueStatus) -> str:
    return f"not used: {queue.view.configuration_error}" if queue.is_refused and queue.view is not None else ""


def _peeked_count(queue: QueueStatus) -> str:
    """Return the number of peeked messages, for want of the queue's own count."""
    if queue.error is not None:
        return "?"
    count = f"{queue.contents.destinations.total():,}"
    return count if queue.contents.is_complete else f"at least {count}"


def _destination_lines(found: Status, show_all: bool) -> list[str]:
    """Format the peeked messages per destination, the most frequent first."""
    counts, deferred = found.destinations, found.deferred
    most = counts.most_common(None if show_all else MAX_DESTINATIONS)
    if not most:
        return []
    rows = [(f"{count:,}", f"{deferred[path]:,}", printable(path)) for path, count in most]
    lines = [aligned(("messages", "deferred", "for"), rows)]
    if others := len(counts) - len(most):
        rest = counts.total() - sum(count for _, count in most)
        lines.append(f"{rest:,} for {counted(others, 'more destination')}")
    if not all(queue.contents.is_complete or queue.error for queue in found.queues):
        lines.append(f"(only {MAX_PEEKED:,} messages of each queue were counted)")
    if deferred:
        lines.append("what is deferred waits for a destination that is down, or that its syphon may not send to")
    return lines


def _entity_lines(found: Status, show_all: bool) -> list[str]:
    """Format one line per entity whose sends failed or were diverted, and one for all the others."""
    entities = found.entities or []
    if not entities:
        return ["the ledger has no rows of this period"]
    shown = [entity for entity in entities if show_all or not entity.is_quiet]
    lines = []
    if shown:
        rows = [_entity_cells(entity, found.at) for entity in shown]
        lines.append(aligned(("sends go to", "last send", "last ping", "diverted", "moved", "entity"), rows))
    if others := len(entities) - len(shown):
        others_text = counted(others, "more entity", "more entities")
        lines.append(f"{others_text}: sends go to the primary, nothing was diverted")
    for entity in shown:
        if entity.state is State.BACKLOG and not entity.pinged_at and not entity.failed_at:
            lines.append(f"{printable(entity.entity)}: no send failed and no ping was sent: failed over by hand?")
    return lines


def _entity_cells(entity: EntityState, now: float) -> tuple[str, ...]:
    last = max(entity.sent_at, entity.diverted_at)
    times = [age(now - at / 1e6) + " ago" if at else "" for at in (last, entity.pinged_at)]
    return entity.state.value, *times, f"{entity.diverted:,}", f"{entity.moved:,}", printable(entity.entity)


def _drain_line(found: Status) -> str:
    """Say when a message was last moved. The ledger does not tell whether a syphon runs now."""
    if not found.moved_at:
        return "no message was moved to the primary in this period"
    return f"the last message was moved {age(found.at - found.moved_at / 1e6)} ago"
