"""Brings back what was set aside, one task for each destination that is back, and a few of them at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from .bookkeeping import Book
from .deferred import Batch, look_through
from .destinations import Destinations
from .errors import AmqpError, RequestFailed
from .lanes import Lane
from .ledger_gate import LedgerGate
from .management import LockedMessage, Management
from .moves import Memory, Move
from .pacing import Backoff
from .restore import EnvelopeError
from .restorer import Restorer
from .verdicts import MESSAGE_NOT_FOUND

logger = logging.getLogger("twinbus.syphon")

AT_ONCE = 8
MAX_BATCH = 200
MAX_BATCH_BYTES = 16 << 20
REQUEST_TIMEOUT = 30.0


class Retrieval:
    """Fetches deferred messages of one queue and hands them to their lanes."""

    def __init__(
        self,
        book: Book,
        destinations: Destinations,
        restorer: Restorer,
        memory: Memory,
        gate: LedgerGate,
        rate: float | None,
        backoff: Callable[[], Backoff],
        management: Callable[[], Awaitable[Management]],
    ) -> None:
        self._book = book
        self._destinations = destinations
        self._restorer = restorer
        self._memory = memory
        self._gate = gate
        self._rate = rate
        self._new_backoff = backoff
        self._management = management
        self._time = asyncio.get_running_loop().time
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._pauses: dict[str, tuple[Backoff, float]] = {}
        self._batches: set[Batch] = set()
        self._is_closing = False

    @property
    def is_idle(self) -> bool:
        return not self._tasks

    def moves(self) -> Iterable[Move]:
        """What was fetched and is not settled yet."""
        return [move for batch in self._batches for move in batch.moves]

    def start_due(self, lanes: Iterable[Lane]) -> None:
        """Begin with the lanes that have something set aside and whose destination is worth a try."""
        now = self._time()
        for lane in lanes:
            if len(self._tasks) >= AT_ONCE or not self._destinations.is_up or self._gate.failed.done():
                return
            if not lane.fetchable(1) or not lane.is_allowed or lane.key in self._tasks:
                continue
            _, not_before = self._pauses.get(lane.key, (None, 0.0))
            if now >= not_before and self._destinations.may_try(lane.path):
                lane.is_fetching = True
                task = self._tasks[lane.key] = asyncio.create_task(self._bring_back(lane))
                task.add_done_callback(partial(self._ended, lane))

    def _ended(self, lane: Lane, task: asyncio.Task[None]) -> None:
        lane.is_fetching = False
        del self._tasks[lane.key]
        lane.circuit.undecided(self._time())

    async def _bring_back(self, lane: Lane) -> None:
        size = 1  # the first one decides whether the destination is back
        while lane.fetchable(1) and not self._is_closing:
            try:
                await self._destinations.attached(lane.path)
            except AmqpError:
                return  # its circuit knows when to try again
            try:
                size = await self._move_some(lane, size)
            except AmqpError as error:
                logger.info("Messages for %s stay set aside for now: %s", lane.path, error)
                self._pause(lane)
                return
            if lane.circuit.is_open:
                return

    async def _move_some(self, lane: Lane, size: int) -> int:
        """Move the first so many; how many to try next."""
        numbers = lane.fetchable(size)
        batch = await self._fetch(lane, numbers)
        if batch is None:
            return 1
        if len(batch.gone) < len(numbers) and not lane.circuit.is_open:
            raise RequestFailed("not all of them could be moved and settled", "", 500)
        self._pauses.pop(lane.key, None)
        fits = 2 * sum(move.size for move in batch.moves) <= MAX_BATCH_BYTES
        return min(2 * size, self._most()) if fits else max(1, size // 2)

    def _most(self) -> int:
        """As many as can be moved while they are locked."""
        return (
            MAX_BATCH
            if self._rate is None
            else max(1, min(MAX_BATCH, int(self._rate * self._restorer.seconds_to_move)))
        )

    def _pause(self, lane: Lane) -> None:
        backoff, _ = self._pauses.get(lane.key, (self._new_backoff(), 0.0))
        self._pauses[lane.key] = backoff, self._time() + backoff.next()

    async def _fetch(self, lane: Lane, numbers: list[int]) -> Batch | None:
        """Fetch messages and see them off; None if they were not there, and it was found out which."""
        management = await self._management()
        try:
            locked = await management.receive_deferred(numbers, seconds=REQUEST_TIMEOUT)
        except RequestFailed as error:
            self._book.fetch_failed(len(numbers), error)
            if error.condition == MESSAGE_NOT_FOUND:
                await self._look_again(management, lane, numbers)
                return None
            raise
        batch = Batch(management, self._book, self._memory, self._gate)
        self._batches.add(batch)
        try:
            self._hand_over(lane, batch, locked)
            await batch.settle(REQUEST_TIMEOUT)
        finally:
            self._batches.discard(batch)
            lane.deferred.remove(batch.gone)
        return batch

    def _hand_over(self, lane: Lane, batch: Batch, locked: list[LockedMessage]) -> None:
        now = self._time()
        known: list[Move] = []
        for message in locked:
            try:
                restored = self._restorer.restore(message.payload, now)
            except EnvelopeError as error:
                # It was restored before it was set aside; whoever changed it, it can wait for a person.
                logger.warning("A deferred message cannot be moved: %s", error)
                continue
            move = Move(batch, lane, restored, message.lock_token, len(message.payload), now)
            batch.add(move)
            known.append(move)
        for move in known:
            if self._memory.has_accepted(move.restored.sequence_number):
                batch.complete(move)
            else:
                lane.take(move)

    async def _look_again(self, management: Management, lane: Lane, numbers: list[int]) -> None:
        """Somebody else has moved some of them, or has them locked just now: find out which are gone."""
        look = await look_through(management, self._book, numbers[0], most=1)
        seen_to = max([*look.deferred, *look.active], default=numbers[-1])
        gone = [number for number in numbers if number <= seen_to and number not in look.deferred]
        lane.deferred.remove(gone)
        if not gone:
            raise RequestFailed("somebody else has them locked", MESSAGE_NOT_FOUND, 404)

    async def close(self, seconds: float, to_give_back: float) -> None:
        """Let what was fetched be settled, at most so long, and stop.

        The last `to_give_back` seconds are for what the ledger has not confirmed by then.
        """
        self._is_closing = True
        tasks = list(self._tasks.values())
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=max(0.0, seconds - to_give_back))
            if left:
                self._gate.give_up()
                await asyncio.wait(left, timeout=min(seconds, to_give_back))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
