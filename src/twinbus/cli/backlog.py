"""`twinbus backlog`: what waits in the secondary, what lies dead there, and sending that on after all."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from twinbus.ledger.recorder import NullRecorder
from twinbus.operations.backlog import BacklogQueueView
from twinbus.operations.dead_letters import CannotReplay, DeadLetter, Replay, Replayed, list_dead_letters
from twinbus.pairing.naming import backlog_path, entity_key
from twinbus.syphon.errors import AmqpError
from twinbus.syphon.verdicts import NOT_FOUND

from .failing import failing
from .namespaces import (
    JsonOption,
    Pair,
    PrimaryNameOption,
    PrimaryOption,
    ProxyOption,
    QueuesOption,
    Refused,
    SecondaryOption,
    Transport,
    TransportOption,
    Unanswered,
)
from .places import check_ledger
from .text import aligned, printable, size

if TYPE_CHECKING:  # it needs libraries of the extra `ledger`
    from twinbus.ledger.writer import LedgerWriter

DEFAULT_LIMIT = 1000
LEDGER_SECONDS = 20.0  # a third of a lock

app = typer.Typer(no_args_is_help=True, help="What waits in the backlog, and what lies dead there.")

LimitOption = Annotated[int, typer.Option(min=1, help="At most so many of each queue, the oldest.")]
DestinationOption = Annotated[
    str | None, typer.Option(metavar="PATH", help="Only those for this queue or topic.", show_default=False)
]
ReasonOption = Annotated[
    str | None, typer.Option(help="Only those with this reason, such as ExpiredInBacklog.", show_default=False)
]
MessageIdOption = Annotated[
    list[str] | None, typer.Option(help="Only the message with this id. May be given again.", show_default=False)
]


@app.command("list")
def list_command(
    primary: PrimaryOption = "",
    secondary: SecondaryOption = "",
    queues: QueuesOption = 10,
    primary_name: PrimaryNameOption = None,
    transport: TransportOption = Transport.AMQP,
    proxy: ProxyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the backlog queues of the primary: messages, dead letters, how full. Needs the right to manage.

    Example: twinbus backlog list
    """
    found, nothing = _queues(primary, secondary, primary_name, queues, transport, proxy)
    _print_queues(found, as_json, nothing)


@app.command()
def unused(
    primary: PrimaryOption = "",
    secondary: SecondaryOption = "",
    queues: QueuesOption = 10,
    primary_name: PrimaryNameOption = None,
    transport: TransportOption = Transport.AMQP,
    proxy: ProxyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the backlog queues beyond the number in use: drained, they can be deleted by their owner.

    Example: twinbus backlog unused --queues 5
    """
    found, nothing = _queues(primary, secondary, primary_name, queues, transport, proxy)
    unused = [one for one in found if not one.is_used]
    _print_queues(unused, as_json, f"all backlog queues are among the {queues} in use" if found else nothing)


@app.command("dead-letters")
def dead_letters(
    primary: PrimaryOption = "",
    secondary: SecondaryOption = "",
    queues: QueuesOption = 10,
    primary_name: PrimaryNameOption = None,
    transport: TransportOption = Transport.AMQP,
    proxy: ProxyOption = None,
    destination: DestinationOption = None,
    reason: ReasonOption = None,
    message_id: MessageIdOption = None,
    limit: LimitOption = DEFAULT_LIMIT,
    as_json: JsonOption = False,
) -> None:
    """List the dead letters of the backlog: what could not be moved, and why. Nothing is locked or changed.

    Example: twinbus backlog dead-letters --reason RefusedByDestination
    """
    is_wanted = _filter(destination, reason, message_id)
    with _failing():
        pair = Pair.of(primary, secondary, primary_name, transport, proxy)
        found = [one for one in asyncio.run(_dead_letters(pair, queues, limit)) if is_wanted(one)]
    if as_json:
        typer.echo(json.dumps({"dead_letters": [one._asdict() for one in found]}, ensure_ascii=False))
    else:
        typer.echo(_letters_table(found) if found else "no dead letters")


@app.command()
def replay(
    primary: PrimaryOption = "",
    secondary: SecondaryOption = "",
    queues: QueuesOption = 10,
    primary_name: PrimaryNameOption = None,
    transport: TransportOption = Transport.AMQP,
    proxy: ProxyOption = None,
    destination: DestinationOption = None,
    reason: ReasonOption = None,
    message_id: MessageIdOption = None,
    limit: LimitOption = DEFAULT_LIMIT,
    ledger: Annotated[
        str | None,
        typer.Option(envvar="TWINBUS_LEDGER", metavar="PATH_OR_URL", help="Keep a ledger of it here."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Send dead letters of the backlog on to where they were to go. Their time to live starts anew.

    A dead letter is removed only when its destination has it; what is refused again stays. Exit code 1 if something
    stays.

    Example: twinbus backlog replay --destination orders --reason ExpiredInBacklog
    """
    is_wanted = _filter(destination, reason, message_id)
    with _failing():
        pair = Pair.of(primary, secondary, primary_name, transport, proxy)
        found = [one for one in asyncio.run(_dead_letters(pair, queues, limit)) if is_wanted(one)]
        if found and not yes:
            _ask(found)
        with _ledger(ledger) as writer:
            done = asyncio.run(_replay(pair, found, writer))
    if as_json:
        left = [{"queue": queue, "sequence_number": number, "why": why} for (queue, number), why in done.left.items()]
        counts = {"chosen": len(found), "moved": done.moved, "not_completed": done.not_completed}
        typer.echo(json.dumps({**counts, "missing": done.missing, "left": left}, ensure_ascii=False))
    else:
        _print_replayed(done)
    if done.left or done.missing or done.not_completed:
        raise typer.Exit(1)


# ---- what is asked of the namespaces ----


def _queues(
    primary: str, secondary: str, name: str | None, used: int, transport: Transport, proxy: str | None
) -> tuple[list[BacklogQueueView], str]:
    """The queues, and what to say if there are none."""

    async def ask() -> tuple[list[BacklogQueueView], str]:
        known = await pair.primary_name()
        nothing = f"there are no backlog queues of {known} in {pair.secondary.endpoint}"
        return await pair.backlog_queues(known, used), nothing

    with _failing():
        pair = Pair.of(primary, secondary, name, transport, proxy)
        return asyncio.run(ask())


async def _dead_letters(pair: Pair, queues: int, limit: int) -> list[DeadLetter]:
    found: list[DeadLetter] = []
    paths = await _with_dead_letters(pair, queues)
    async with pair.secondary.open() as connection:
        for path in paths:
            try:
                found += await list_dead_letters(connection, path, limit)
            except AmqpError as error:
                if error.condition != NOT_FOUND:
                    raise
    return found


async def _with_dead_letters(pair: Pair, queues: int) -> list[str]:
    """The queues to look into. Who may not manage, and so not be told, looks into as many as the clients use."""
    name = await pair.primary_name()
    try:
        return [one.path for one in await pair.backlog_queues(name, queues) if one.dead_letters]
    except Refused:
        return [backlog_path(name, index) for index in range(queues)]


async def _replay(pair: Pair, letters: list[DeadLetter], writer: LedgerWriter | None) -> Replayed:
    if not letters:
        return Replayed()
    async with pair.primary.open() as primary, pair.secondary.open() as secondary:
        if writer is None:
            return await Replay(primary, secondary, NullRecorder()).run(letters)
        from twinbus.ledger.proof import Proof

        proof = Proof(writer, deadline=LEDGER_SECONDS)
        name, client = await pair.primary_name(), f"replay-{socket.gethostname()}-{os.getpid()}"
        work = Replay(primary, secondary, proof, pairing=name, client=client, flush=proof.flush_async)
        return await work.run(letters)


@contextmanager
def _ledger(url: str | None) -> Iterator[LedgerWriter | None]:
    if url is None:
        yield None
        return
    from twinbus.ledger.writer import LedgerWriter

    check_ledger(url)
    with LedgerWriter(url) as writer:
        yield writer


def _filter(destination: str | None, reason: str | None, ids: list[str] | None) -> Callable[[DeadLetter], bool]:
    key = None if destination is None else entity_key(destination)

    def is_wanted(letter: DeadLetter) -> bool:
        return (
            (key is None or (letter.destination is not None and entity_key(letter.destination) == key))
            and (reason is None or letter.reason == reason)
            and (not ids or letter.message_id in ids)
        )

    return is_wanted


# ---- what is printed ----


def _ask(letters: list[DeadLetter]) -> None:
    places = {letter.destination or "no destination" for letter in letters}
    what = f"Send {len(letters):,} dead letters on to {len(places):,} destinations?"
    if not sys.stdin.isatty():
        raise ValueError("--yes is missing: nobody is there to be asked")
    typer.confirm(what, abort=True)


def _print_queues(queues: list[BacklogQueueView], as_json: bool, nothing: str) -> None:
    if as_json:
        rows = [
            {
                "index": one.index,
                "path": one.path,
                "used": one.is_used,
                "messages": one.messages,
                "dead_letters": one.dead_letters,
                "bytes": one.bytes,
                "max_bytes": one.max_bytes,
            }
            for one in queues
        ]
        typer.echo(json.dumps({"queues": rows}))
        return
    cells = [
        (f"{one.messages:,}", f"{one.dead_letters:,}", size(one.bytes), f"{one.full:.1%}", _named(one))
        for one in queues
    ]
    typer.echo(aligned(("messages", "dead letters", "size", "full", "queue"), cells) if queues else nothing)


def _named(queue: BacklogQueueView) -> str:
    return printable(queue.path) if queue.is_used else f"{printable(queue.path)} (not in use)"


def _letters_table(letters: list[DeadLetter]) -> str:
    headings = ("enqueued (UTC)", "reason", "destination", "message id", "description")
    return aligned(headings, [_letter_cells(one) for one in letters], left=4)


def _letter_cells(letter: DeadLetter) -> tuple[str, ...]:
    at = ""
    if letter.enqueued_at_ms is not None:
        at = datetime.fromtimestamp(letter.enqueued_at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    texts = letter.reason, letter.destination, letter.message_id, letter.description
    return at, *(printable(text or "") for text in texts)


def _print_replayed(done: Replayed) -> None:
    for (queue, number), why in done.left.items():
        typer.echo(printable(f"{queue} {number}: {why}"), err=True)
    typer.echo(f"{done.moved:,} moved, {len(done.left):,} left where they are")
    if done.not_completed:
        typer.echo(f"{done.not_completed:,} of them are among the dead letters still: their locks had run out")
    if done.missing:
        typer.echo(f"{done.missing:,} were not seen again: somebody else has them")


def _failing() -> AbstractContextManager[None]:
    return failing("twinbus backlog", AmqpError, CannotReplay, Unanswered)
