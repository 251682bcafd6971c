"""`twinbus backlog`: what waits in the secondary, what lies dead there, and sending that on after all."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer
from azure.core.exceptions import AzureError
from rich.console import Console
from rich.table import Table

from twinbus.ledger.errors import LedgerError
from twinbus.ledger.recorder import NullRecorder
from twinbus.operations.backlog import BacklogQueueView, list_queues
from twinbus.operations.dead_letters import CannotReplay, DeadLetter, Replay, Replayed, list_dead_letters
from twinbus.pairing.naming import entity_key
from twinbus.syphon.errors import AmqpError

from .exits import BAD_USAGE
from .namespaces import JsonOption, Pair, PrimaryNameOption, PrimaryOption, QueuesOption, SecondaryOption
from .text import printable, size

if TYPE_CHECKING:  # it needs libraries of the extra `ledger`
    from twinbus.ledger.writer import LedgerWriter

DEFAULT_LIMIT = 1000
LEDGER_SECONDS = 20.0  # a third of a lock
_Result = TypeVar("_Result")

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
    as_json: JsonOption = False,
) -> None:
    """List the backlog queues of the primary: messages, dead letters, how full. Needs the right to manage.

    Example: twinbus backlog list
    """
    _print_queues(_queues(primary, secondary, primary_name, queues), as_json, "there are no backlog queues")


@app.command()
def unused(
    primary: PrimaryOption = "",
    secondary: SecondaryOption = "",
    queues: QueuesOption = 10,
    primary_name: PrimaryNameOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the backlog queues beyond the number in use: drained, they can be deleted by their owner.

    Example: twinbus backlog unused --queues 5
    """
    found = [one for one in _queues(primary, secondary, primary_name, queues) if not one.is_used]
    _print_queues(found, as_json, f"all backlog queues are among the {queues} in use")


@app.command("dead-letters")
def dead_letters(
    primary: PrimaryOption = "",
    secondary: SecondaryOption = "",
    queues: QueuesOption = 10,
    primary_name: PrimaryNameOption = None,
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
    with _errors_in_a_line():
        pair = Pair.of(primary, secondary, primary_name)
        found = [one for one in _run(_dead_letters(pair, queues, limit)) if is_wanted(one)]
    if as_json:
        typer.echo(json.dumps({"dead_letters": [one._asdict() for one in found]}, ensure_ascii=False))
    else:
        Console(highlight=False, markup=False).print(_letters_table(found) if found else "no dead letters")


@app.command()
def replay(
    primary: PrimaryOption = "",
    secondary: SecondaryOption = "",
    queues: QueuesOption = 10,
    primary_name: PrimaryNameOption = None,
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
    with _errors_in_a_line():
        pair = Pair.of(primary, secondary, primary_name)
        found = [one for one in _run(_dead_letters(pair, queues, limit)) if is_wanted(one)]
        if found and not yes:
            _ask(found)
        with _ledger(ledger) as writer:
            done = _run(_replay(pair, found, writer))
    if as_json:
        left = [{"queue": queue, "sequence_number": number, "why": why} for (queue, number), why in done.left.items()]
        counts = {"chosen": len(found), "moved": done.moved, "not_completed": done.not_completed}
        typer.echo(json.dumps({**counts, "missing": done.missing, "left": left}, ensure_ascii=False))
    else:
        _print_replayed(done)
    if done.left or done.missing or done.not_completed:
        raise typer.Exit(1)


# ---- what is asked of the namespaces ----


def _queues(primary: str, secondary: str, name: str | None, used: int) -> list[BacklogQueueView]:
    async def ask() -> list[BacklogQueueView]:
        async with pair.secondary_namespace.administration() as administration:
            return await list_queues(administration, await pair.primary_name(), used)

    with _errors_in_a_line():
        pair = Pair.of(primary, secondary, name)
        return _run(ask())


async def _dead_letters(pair: Pair, queues: int, limit: int) -> list[DeadLetter]:
    name = await pair.primary_name()
    found: list[DeadLetter] = []
    async with pair.secondary_namespace.administration() as administration:
        listed = await list_queues(administration, name, queues)
    async with pair.secondary.open() as connection:
        for queue in listed:
            if queue.dead_letters:
                found += await list_dead_letters(connection, queue.path, limit)
    return found


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


def _run(work: Coroutine[Any, Any, _Result]) -> _Result:
    return asyncio.run(work)


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
    table = Table(box=None, pad_edge=False)
    table.add_column("queue", overflow="fold")
    for name in ("messages", "dead letters", "size", "full"):
        table.add_column(name, justify="right")
    table.add_column("")
    for one in queues:
        note = "" if one.is_used else "not in use"
        cells = [f"{one.messages:,}", f"{one.dead_letters:,}", size(one.bytes), f"{one.full:.1%}", note]
        table.add_row(printable(one.path), *cells)
    Console(highlight=False, markup=False).print(table if queues else nothing)


def _letters_table(letters: list[DeadLetter]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("enqueued (UTC)", "destination", "message id", "reason", "description"):
        table.add_column(name, overflow="fold")
    for one in letters:
        at = ""
        if one.enqueued_at_ms is not None:
            at = datetime.fromtimestamp(one.enqueued_at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        cells = (at, one.destination or "", one.message_id or "", one.reason or "", one.description or "")
        table.add_row(*map(printable, cells))
    return table


def _print_replayed(done: Replayed) -> None:
    for (queue, number), why in done.left.items():
        typer.echo(printable(f"{queue} {number}: {why}"), err=True)
    typer.echo(f"{done.moved:,} moved, {len(done.left):,} left where they are")
    if done.not_completed:
        typer.echo(f"{done.not_completed:,} of them are among the dead letters still: their locks had run out")
    if done.missing:
        typer.echo(f"{done.missing:,} were not seen again: somebody else has them")


@contextmanager
def _errors_in_a_line() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        _end(str(error), BAD_USAGE)
    except TimeoutError:
        _end("the namespace did not answer in time", 1)
    except (AmqpError, AzureError, CannotReplay, LedgerError, OSError) as error:
        _end(str(error).splitlines()[0] if str(error) else type(error).__name__, 1)


def _end(message: str, code: int) -> NoReturn:
    typer.echo(f"twinbus backlog: {message}", err=True)
    raise typer.Exit(code) from None
