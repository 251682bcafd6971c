"""`twinbus backlog`: lists backlog queues, lists and replays their dead letters."""

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

from twinbus.admin_tools.backlog_view import BacklogQueueView
from twinbus.admin_tools.dead_letters import DeadLetter, Replay, Replayed, ReplayError, list_dead_letters
from twinbus.amqp.client.errors import AmqpError
from twinbus.ledger.recorder import NullRecorder
from twinbus.servicebus.entity_paths import backlog_path, entity_key
from twinbus.syphon.delivery.send_failures import NOT_FOUND

from ..failures import exit_on_error
from ..options.namespaces import (
    AccessRefusedError,
    JsonOption,
    NoAnswerError,
    Pair,
    PrimaryNameOption,
    PrimaryOption,
    ProxyOption,
    QueuesOption,
    SecondaryOption,
    Transport,
    TransportOption,
)
from ..options.places import check_ledger
from ..text import aligned, counted, printable, size

if TYPE_CHECKING:  # it needs libraries of the extra `ledger`
    from twinbus.ledger.writer import LedgerWriter

DEFAULT_LIMIT = 1000
LEDGER_SECONDS = 20.0  # a third of a lock

app = typer.Typer(no_args_is_help=True, help="Inspect the backlog queues, and replay their dead letters.")

LimitOption = Annotated[int, typer.Option(min=1, help="Number of dead letters per queue, oldest first.")]
DestinationOption = Annotated[
    str | None, typer.Option(metavar="PATH", help="Only dead letters for this queue or topic.", show_default=False)
]
ReasonOption = Annotated[
    str | None, typer.Option(help="Only dead letters with this reason, such as ExpiredInBacklog.", show_default=False)
]
MessageIdOption = Annotated[
    list[str] | None, typer.Option(help="Only the message with this id (repeatable).", show_default=False)
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
    """List the primary's backlog queues with messages, dead letters and size. Needs the Manage right.

    Example: twinbus backlog list
    """
    views, message_if_none = _queues(primary, secondary, primary_name, queues, transport, proxy)
    _print_queues(views, as_json, message_if_none)


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
    """List the backlog queues beyond --queues. Once empty, they can be deleted. Needs the Manage right.

    Example: twinbus backlog unused --queues 5
    """
    views, message_if_none = _queues(primary, secondary, primary_name, queues, transport, proxy)
    unused = [view for view in views if not view.is_used]
    _print_queues(unused, as_json, f"all backlog queues are among the {queues} in use" if views else message_if_none)


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
    """List the backlog's dead letters: messages that could not be moved, and why. Locks and changes nothing.

    Example: twinbus backlog dead-letters --reason RefusedByDestination
    """
    matches = _filter(destination, reason, message_id)
    with _exit_on_error():
        pair = Pair.of(primary, secondary, primary_name, transport, proxy)
        letters = [letter for letter in asyncio.run(_dead_letters(pair, queues, limit)) if matches(letter)]
    if as_json:
        typer.echo(json.dumps({"dead_letters": [letter._asdict() for letter in letters]}, ensure_ascii=False))
    else:
        typer.echo(_letters_table(letters) if letters else "no dead letters")


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
        typer.Option(
            envvar="TWINBUS_LEDGER", metavar="PATH_OR_URL", help="Record the replay in this ledger: a folder or URL."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Send the backlog's dead letters to their destinations. Their time to live restarts.

    A dead letter is removed only when its destination has it. Exit code 1 if any is left, for instance because its
    destination refused it again.

    Example: twinbus backlog replay --destination orders --reason ExpiredInBacklog
    """
    matches = _filter(destination, reason, message_id)
    with _exit_on_error():
        pair = Pair.of(primary, secondary, primary_name, transport, proxy)
        letters = [letter for letter in asyncio.run(_dead_letters(pair, queues, limit)) if matches(letter)]
        if letters and not yes:
            _confirm(letters)
        with _open_ledger(ledger) as writer:
            result = asyncio.run(_replay(pair, letters, writer))
    if as_json:
        left = [{"queue": queue, "sequence_number": number, "why": why} for (queue, number), why in result.left.items()]
        counts = {"chosen": len(letters), "moved": result.moved, "not_completed": result.not_completed}
        typer.echo(json.dumps({**counts, "missing": result.missing, "left": left}, ensure_ascii=False))
    else:
        _print_replayed(result)
    if result.left or result.missing or result.not_completed:
        raise typer.Exit(1)


def _queues(
    primary: str, secondary: str, name: str | None, used: int, transport: Transport, proxy: str | None
) -> tuple[list[BacklogQueueView], str]:
    """Return the queues, and the message to print if there are none."""

    async def fetch() -> tuple[list[BacklogQueueView], str]:
        known_name = await pair.primary_name()
        message = f"there are no backlog queues of {known_name} in {pair.secondary.endpoint}"
        return await pair.backlog_queues(known_name, used), message

    with _exit_on_error():
        pair = Pair.of(primary, secondary, name, transport, proxy)
        return asyncio.run(fetch())


async def _dead_letters(pair: Pair, queues: int, limit: int) -> list[DeadLetter]:
    letters: list[DeadLetter] = []
    paths = await _queues_with_dead_letters(pair, queues)
    async with pair.secondary.open() as connection:
        for path in paths:
            try:
                letters += await list_dead_letters(connection, path, limit)
            except AmqpError as error:
                if error.condition != NOT_FOUND:
                    raise
    return letters


async def _queues_with_dead_letters(pair: Pair, queues: int) -> list[str]:
    """Return the queues with dead letters; without the Manage right, all that the clients use."""
    name = await pair.primary_name()
    try:
        return [view.path for view in await pair.backlog_queues(name, queues) if view.dead_letters]
    except AccessRefusedError:
        return [backlog_path(name, index) for index in range(queues)]


async def _replay(pair: Pair, letters: list[DeadLetter], writer: LedgerWriter | None) -> Replayed:
    if not letters:
        return Replayed()
    async with pair.primary.open() as primary, pair.secondary.open() as secondary:
        if writer is None:
            return await Replay(primary, secondary, NullRecorder()).run(letters)
        from twinbus.ledger.durable_rows import Proof

        proof = Proof(writer, deadline=LEDGER_SECONDS)
        name, client = await pair.primary_name(), f"replay-{socket.gethostname()}-{os.getpid()}"
        replay = Replay(primary, secondary, proof, pairing=name, client=client, flush=proof.flush_async)
        return await replay.run(letters)


@contextmanager
def _open_ledger(url: str | None) -> Iterator[LedgerWriter | None]:
    if url is None:
        yield None
        return
    from twinbus.ledger.writer import LedgerWriter

    check_ledger(url)
    with LedgerWriter(url) as writer:
        yield writer


def _filter(destination: str | None, reason: str | None, ids: list[str] | None) -> Callable[[DeadLetter], bool]:
    key = None if destination is None else entity_key(destination)

    def matches(letter: DeadLetter) -> bool:
        return (
            (key is None or (letter.destination is not None and entity_key(letter.destination) == key))
            and (reason is None or letter.reason == reason)
            and (not ids or letter.message_id in ids)
        )

    return matches


def _confirm(letters: list[DeadLetter]) -> None:
    destinations = {letter.destination or "no destination" for letter in letters}
    question = f"Send {counted(len(letters), 'dead letter')} to {counted(len(destinations), 'destination')}?"
    if not sys.stdin.isatty():
        raise ValueError("--yes is missing: there is no terminal to ask for confirmation")
    typer.confirm(question, abort=True)


def _print_queues(queues: list[BacklogQueueView], as_json: bool, message_if_none: str) -> None:
    if as_json:
        rows = [
            {
                "index": queue.index,
                "path": queue.path,
                "used": queue.is_used,
                "messages": queue.messages,
                "dead_letters": queue.dead_letters,
                "bytes": queue.bytes,
                "max_bytes": queue.max_bytes,
            }
            for queue in queues
        ]
        typer.echo(json.dumps({"queues": rows}))
        return
    cells = [
        (f"{queue.messages:,}", f"{queue.dead_letters:,}", size(queue.bytes), f"{queue.full:.1%}", _label(queue))
        for queue in queues
    ]
    typer.echo(aligned(("messages", "dead letters", "size", "full", "queue"), cells) if queues else message_if_none)


def _label(queue: BacklogQueueView) -> str:
    return printable(queue.path) if queue.is_used else f"{printable(queue.path)} (not in use)"


def _letters_table(letters: list[DeadLetter]) -> str:
    headings = ("enqueued (UTC)", "reason", "destination", "message id", "description")
    return aligned(headings, [_letter_cells(letter) for letter in letters], left=4)


def _letter_cells(letter: DeadLetter) -> tuple[str, ...]:
    at = ""
    if letter.enqueued_at_ms is not None:
        at = datetime.fromtimestamp(letter.enqueued_at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    texts = letter.reason, letter.destination, letter.message_id, letter.description
    return at, *(printable(text or "") for text in texts)


def _print_replayed(result: Replayed) -> None:
    for (queue, number), why in result.left.items():
        typer.echo(printable(f"{queue} {number}: {why}"), err=True)
    typer.echo(f"{result.moved:,} moved, {len(result.left):,} left in the dead-letter queues")
    if result.not_completed:
        typer.echo(
            f"{result.not_completed:,} of the moved ones are still dead letters too, because their locks had expired:"
            " another replay would send them twice"
        )
    if result.missing:
        typer.echo(f"{result.missing:,} could not be received: another receiver has them")


def _exit_on_error() -> AbstractContextManager[None]:
    return exit_on_error("twinbus backlog", AmqpError, ReplayError, NoAnswerError)
