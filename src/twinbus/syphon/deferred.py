"""Messages that were set aside in a backlog queue: found by looking through it, fetched by number, in order."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from twinbus.amqp import sections
from twinbus.amqp.types import DecodeError
from twinbus.ledger.recorder import OperationKind
from twinbus.pairing import aliases

from .bookkeeping import Book
from .errors import AmqpError, RequestFailed
from .ledger_gate import LedgerGate
from .management import Management, Settlement
from .moves import EXPIRED, Memory, Move

PAGE = 500  # messages a look
# Behind so many active messages in a row nothing is deferred: what is set aside was received first, and so many at
# once are not received.
MAX_ACTIVE_RUN = 4000
DEFERRED_STATE = 1
SCHEDULED_STATE = 2


@dataclass(slots=True)
class Look:
    """What was seen in a queue: where each message is to go, by number. A path is empty if it cannot be read."""

    deferred: dict[int, str] = field(default_factory=dict)
    #: Locked or not.
    active: dict[int, str] = field(default_factory=dict)
    #: Whether it went to the end of the queue.
    is_complete: bool = False


class Seen(NamedTuple):
    """A message in a look: its state is 0 while it is active."""

    number: int
    state: int
    path: str


def seen_in(payload: bytes) -> Seen:
    """What a look shows of a message. Raises `DecodeError`."""
    parts = sections.split_sections(payload)
    facts: dict[Any, bytes] = dict(sections.map_entries(parts.message_annotations))
    own: dict[Any, bytes] = dict(sections.map_entries(parts.application_properties))
    number, state, path = (
        sections.entry_value(found[name]) if name in found else default
        for found, name, default in (
            (facts, "x-opt-sequence-number", 0),
            (facts, "x-opt-message-state", 0),
            (own, aliases.PATH, ""),
        )
    )
    if not isinstance(number, int) or not isinstance(state, int):
        raise DecodeError("the broker's annotations are of the wrong type")
    return Seen(number, state, path if isinstance(path, str) else "")


async def look_through(management: Management, book: Book, first: int = 0, most: int | None = None) -> Look:
    """Look through a queue from a number on, without locking anything, at most so many pages.

    Raises as `Management.peek_messages`, and `RequestFailed` for messages that cannot be read.
    """
    look, run, pages = Look(), 0, 0
    while run < MAX_ACTIVE_RUN and (most is None or pages < most):
        pages += 1
        try:
            page = await management.peek_messages(first, PAGE)
        except AmqpError as error:
            book.peeked(0, 0, error)
            raise
        book.peeked(len(page), sum(map(len, page)), None)
        if not page:
            look.is_complete = True
            break
        for payload in page:
            try:
                seen = seen_in(payload)
            except DecodeError as error:
                raise RequestFailed(f"a peeked message cannot be read: {error}", "amqp:decode-error", 500) from error
            first, run = max(first, seen.number + 1), run + 1
            if seen.state == DEFERRED_STATE:
                look.deferred[seen.number] = seen.path
                run = 0
            elif seen.state != SCHEDULED_STATE:
                look.active[seen.number] = seen.path
    return look


class Batch:
    """Deferred messages that were fetched together, until each of them is settled."""

    def __init__(self, management: Management, book: Book, memory: Memory, gate: LedgerGate) -> None:
        self._management = management
        self._book = book
        self._memory = memory
        self._gate = gate
        self._undecided = 0
        self._decided = asyncio.Event()
        self.moves: list[Move] = []
        #: The numbers that are no longer in the queue.
        self.gone: list[int] = []

    def add(self, move: Move) -> None:
        self.moves.append(move)
        self._undecided += 1
        self._book.received(move)

    # ---- what the lane says ----

    def complete(self, move: Move) -> None:
        self._gate.pass_on(move)

    def dead_letter(self, move: Move, reason: str, description: str) -> None:
        move.condemn(reason, description)
        if not self._gate.is_open:
            self._book.condemned(move)
        self._gate.pass_on(move)

    def settle_now(self, move: Move) -> None:
        self._decide(move, OperationKind.DEAD_LETTER if move.reason else OperationKind.COMPLETE)

    def defer(self, move: Move) -> None:
        """It is deferred: given back it stays so."""
        self._decide(move, OperationKind.ABANDON)

    give_back = strand = defer

    def settled(self, move: Move, error: AmqpError | None) -> None:
        """Nobody settles these one by one."""

    def _decide(self, move: Move, kind: OperationKind) -> None:
        move.settlement = kind
        self._undecided -= 1
        if self._undecided == 0:
            self._decided.set()

    # ---- settling ----

    async def settle(self, seconds: float) -> None:
        """Wait until each message's fate is known, then tell the queue."""
        if self._undecided:
            await self._decided.wait()
        await self._settle_group(OperationKind.COMPLETE, Settlement.COMPLETED, seconds)
        await self._settle_group(OperationKind.ABANDON, Settlement.ABANDONED, seconds)
        for move in [move for move in self.moves if move.settlement is OperationKind.DEAD_LETTER]:
            error = await self._tell([move], Settlement.DEAD_LETTERED, seconds, move.reason, move.description)
            self._book.settled(move, OperationKind.DEAD_LETTER, error)
            if error is None:
                self.gone.append(move.restored.sequence_number)
                if move.reason == EXPIRED:
                    move.lane.tally.expired += 1
                else:
                    move.lane.tally.poison += 1

    async def _settle_group(self, kind: OperationKind, settlement: Settlement, seconds: float) -> None:
        moves = [move for move in self.moves if move.settlement is kind]
        if not moves:
            return
        error = await self._tell(moves, settlement, seconds)
        for move in moves:
            one = error
            if isinstance(error, RequestFailed) and len(moves) > 1:
                # One lock that was lost fails the request, wherever the node has stopped.
                one = await self._tell([move], settlement, seconds)
            self._book.settled(move, kind, one)
            if kind is OperationKind.COMPLETE:
                self._completed(move, one)

    async def _tell(self, moves: list[Move], settlement: Settlement, seconds: float, *texts: str) -> AmqpError | None:
        tokens: list[uuid.UUID] = [move.lock_token for move in moves]
        reason, description = texts if texts else (None, None)
        try:
            await self._management.settle(tokens, settlement, reason=reason, description=description, seconds=seconds)
        except AmqpError as error:
            return error
        return None

    def _completed(self, move: Move, error: AmqpError | None) -> None:
        number = move.restored.sequence_number
        if error is None:
            move.lane.tally.moved += 1
            move.lane.unannounced += 1
            self.gone.append(number)
            self._memory.completed(number)
        else:
            self._memory.accepted(number)
