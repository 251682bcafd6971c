"""Finds deferred messages by peeking through a queue, and settles those that were fetched."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from twinbus.amqp.client.errors import AmqpError, RequestFailedError
from twinbus.amqp.client.management import Management, Settlement
from twinbus.amqp.codec import sections
from twinbus.amqp.codec.types import DecodeError
from twinbus.envelope import aliases
from twinbus.ledger.recorder import OperationKind

from ..settlement.bookkeeping import OperationLog
from ..settlement.ledger_gate import LedgerGate
from ..settlement.moves import EXPIRED, DuplicateGuard, Move

PAGE_SIZE = 500  # messages per peek
# A scan ends after this many active messages in a row: deferred messages were received before them, and fewer than
# this are received at once.
MAX_ACTIVE_RUN = 4000
DEFERRED_STATE = 1
SCHEDULED_STATE = 2


@dataclass(slots=True)
class QueueScan:
    """The destinations of the messages in a queue, by sequence number. A path is empty if it is unreadable."""

    deferred: dict[int, str] = field(default_factory=dict)
    #: Includes locked ones.
    active: dict[int, str] = field(default_factory=dict)
    #: Whether the scan reached the end of the queue.
    is_complete: bool = False


class PeekedMessage(NamedTuple):
    """A peeked message. Its state is 0 while it is active."""

    number: int
    state: int
    path: str


def parse_peeked(payload: bytes) -> PeekedMessage:
    """Read a peeked message. Raises `DecodeError`."""
    parts = sections.split_sections(payload)
    annotations: dict[Any, bytes] = dict(sections.map_entries(parts.message_annotations))
    properties: dict[Any, bytes] = dict(sections.map_entries(parts.application_properties))
    number, state, path = (
        sections.entry_value(entries[name]) if name in entries else default
        for entries, name, default in (
            (annotations, "x-opt-sequence-number", 0),
            (annotations, "x-opt-message-state", 0),
            (properties, aliases.PATH, ""),
        )
    )
    if not isinstance(number, int) or not isinstance(state, int):
        raise DecodeError("the sequence number and state of a message must be integers")
    return PeekedMessage(number, state, path if isinstance(path, str) else "")


async def scan_queue(
    management: Management, operations: OperationLog, first: int = 0, max_pages: int | None = None
) -> QueueScan:
    """Peek through a queue from a sequence number on, without locks.

    Raises what `Management.peek_messages` raises, and `RequestFailedError` for an unreadable message.
    """
    scan, active_run, pages = QueueScan(), 0, 0
    while active_run < MAX_ACTIVE_RUN and (max_pages is None or pages < max_pages):
        pages += 1
        try:
            page = await management.peek_messages(first, PAGE_SIZE)
        except AmqpError as error:
            operations.peeked(0, 0, error)
            raise
        operations.peeked(len(page), sum(map(len, page)), None)
        if not page:
            scan.is_complete = True
            break
        for payload in page:
            try:
                peeked = parse_peeked(payload)
            except DecodeError as error:
                raise RequestFailedError(f"unreadable peeked message: {error}", "amqp:decode-error", 500) from error
            first, active_run = max(first, peeked.number + 1), active_run + 1
            if peeked.state == DEFERRED_STATE:
                scan.deferred[peeked.number] = peeked.path
                active_run = 0
            elif peeked.state != SCHEDULED_STATE:
                scan.active[peeked.number] = peeked.path
    return scan


class Batch:
    """Deferred messages that were fetched together. Settles them once the fate of each is decided."""

    def __init__(
        self, management: Management, operations: OperationLog, guard: DuplicateGuard, gate: LedgerGate
    ) -> None:
        self._management = management
        self._operations = operations
        self._guard = guard
        self._gate = gate
        self._undecided = 0
        self._decided = asyncio.Event()
        self.moves: list[Move] = []
        #: Sequence numbers that are no longer in the queue.
        self.gone: list[int] = []

    def add(self, move: Move) -> None:
        self.moves.append(move)
        self._undecided += 1
        self._operations.received(move)

    # ---- called by the lane ----

    def complete(self, move: Move) -> None:
        self._gate.submit(move)

    def dead_letter(self, move: Move, reason: str, description: str) -> None:
        move.mark_dead_letter(reason, description)
        if not self._gate.is_open:
            self._operations.planned_dead_letter(move)
        self._gate.submit(move)

    def settle_now(self, move: Move) -> None:
        self._decide(move, OperationKind.DEAD_LETTER if move.reason else OperationKind.COMPLETE)

    def defer(self, move: Move) -> None:
        """Abandon it: a deferred message stays deferred."""
        self._decide(move, OperationKind.ABANDON)

    abandon = stop_and_abandon = defer

    def settled(self, move: Move, error: AmqpError | None) -> None:
        """Not used: a batch is settled by `settle`."""

    def _decide(self, move: Move, kind: OperationKind) -> None:
        move.settlement = kind
        self._undecided -= 1
        if self._undecided == 0:
            self._decided.set()

    # ---- settling ----

    async def settle(self, seconds: float) -> None:
        """Wait until the fate of each message is decided, then settle all of them."""
        if self._undecided:
            await self._decided.wait()
        await self._settle_group(OperationKind.COMPLETE, Settlement.COMPLETED, seconds)
        await self._settle_group(OperationKind.ABANDON, Settlement.ABANDONED, seconds)
        for move in [move for move in self.moves if move.settlement is OperationKind.DEAD_LETTER]:
            error = await self._request([move], Settlement.DEAD_LETTERED, seconds, move.reason, move.description)
            self._operations.settled(move, OperationKind.DEAD_LETTER, error)
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
        error = await self._request(moves, settlement, seconds)
        for move in moves:
            move_error = error
            if isinstance(error, RequestFailedError) and len(moves) > 1:
                # One lost lock fails the whole request, so settle each message on its own.
                move_error = await self._request([move], settlement, seconds)
            self._operations.settled(move, kind, move_error)
            if kind is OperationKind.COMPLETE:
                self._completed(move, move_error)

    async def _request(
        self, moves: list[Move], settlement: Settlement, seconds: float, *texts: str
    ) -> AmqpError | None:
        tokens: list[uuid.UUID] = [move.lock_token for move in moves]
        reason, description = texts if texts else (None, None)
        try:
            await self._management.settle(tokens, settlement, reason=reason, description=description, seconds=seconds)
        except AmqpError as error:
            return error
        return None

    def _completed(self, move: Move, error: AmqpError | None) -> None:
        if error is None:
            move.lane.tally.moved += 1
            move.lane.unannounced += 1
            self.gone.append(move.restored.sequence_number)
            self._guard.completed(move.restored.identity)
        else:
            self._guard.accepted(move.restored.identity)
