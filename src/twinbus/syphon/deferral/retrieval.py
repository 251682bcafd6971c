"""Fetches deferred messages once their destination is back: one task per destination, a few at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from twinbus.amqp.client.errors import AmqpError, RequestFailedError
from twinbus.amqp.client.management import LockedMessage, Management
from twinbus.envelope.restoring import EnvelopeError

from ..delivery.destinations import Destinations
from ..delivery.lanes import Lane
from ..delivery.send_failures import MESSAGE_NOT_FOUND
from ..pacing import Backoff
from ..receiving.restorer import Restorer
from ..settlement.bookkeeping import OperationLog
from ..settlement.ledger_gate import LedgerGate
from ..settlement.moves import DuplicateGuard, Move
from .deferred import Batch, scan_queue

logger = logging.getLogger("twinbus.syphon")

MAX_TASKS = 8
MAX_BATCH = 200
MAX_BATCH_BYTES = 16 << 20
REQUEST_TIMEOUT = 30.0


class Retrieval:
    """Fetches deferred messages of one queue and hands them to their lanes."""

    def __init__(
        self,
        operations: OperationLog,
        destinations: Destinations,
        restorer: Restorer,
        guard: DuplicateGuard,
        gate: LedgerGate,
        rate: float | None,
        backoff: Callable[[], Backoff],
        management: Callable[[], Awaitable[Management]],
    ) -> None:
        self._operations = operations
        self._destinations = destinations
        self._restorer = restorer
        self._guard = guard
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
        """The fetched messages that are not settled yet."""
        return [move for batch in self._batches for move in batch.moves]

    def start_due(self, lanes: Iterable[Lane]) -> None:
        """Start tasks for the lanes with deferred messages whose destination may be tried."""
        now = self._time()
        for lane in lanes:
            if len(self._tasks) >= MAX_TASKS or not self._destinations.is_up or self._gate.failed.done():
                return
            if not lane.fetchable(1) or not lane.is_allowed or lane.key in self._tasks:
                continue
            _, not_before = self._pauses.get(lane.key, (None, 0.0))
            if now >= not_before and self._destinations.may_try(lane.path):
                lane.is_fetching = True
                task = self._tasks[lane.key] = asyncio.create_task(self._move_deferred(lane))
                task.add_done_callback(partial(self._ended, lane))

    def _ended(self, lane: Lane, task: asyncio.Task[None]) -> None:
        lane.is_fetching = False
        del self._tasks[lane.key]
        lane.circuit.undecided(self._time())

    async def _move_deferred(self, lane: Lane) -> None:
        size = 1  # the first message decides whether the destination is back
        while lane.fetchable(1) and not self._is_closing:
            try:
                await self._destinations.attached(lane.path)
            except AmqpError:
                return  # its circuit decides when to try again
            try:
                size = await self._move_batch(lane, size)
            except AmqpError as error:
                logger.info("Moving deferred messages for %s failed, they stay deferred: %s", lane.path, error)
                self._pause(lane)
                return
            if lane.circuit.is_open:
                return

    async def _move_batch(self, lane: Lane, size: int) -> int:
        """Move the first `size` messages. Returns how many to try next."""
        numbers = lane.fetchable(size)
        batch = await self._fetch(lane, numbers)
        if batch is None:
            return 1
        if len(batch.gone) < len(numbers) and not lane.circuit.is_open:
            raise RequestFailedError("not all deferred messages were moved and settled", "", 500)
        self._pauses.pop(lane.key, None)
        fits = 2 * sum(move.size for move in batch.moves) <= MAX_BATCH_BYTES
        return min(2 * size, self._max_batch()) if fits else max(1, size // 2)

    def _max_batch(self) -> int:
        """How many messages can be moved while they are locked."""
        return (
            MAX_BATCH
            if self._rate is None
            else max(1, min(MAX_BATCH, int(self._rate * self._restorer.seconds_to_move)))
        )

    def _pause(self, lane: Lane) -> None:
        backoff, _ = self._pauses.get(lane.key, (self._new_backoff(), 0.0))
        self._pauses[lane.key] = backoff, self._time() + backoff.next()

    async def _fetch(self, lane: Lane, numbers: list[int]) -> Batch | None:
        """Fetch messages, move and settle them. None if some were missing: those are forgotten then."""
        management = await self._management()
        try:
            locked = await management.receive_deferred(numbers, seconds=REQUEST_TIMEOUT)
        except RequestFailedError as error:
            self._operations.fetch_failed(len(numbers), error)
            if error.condition == MESSAGE_NOT_FOUND:
                await self._forget_missing(management, lane, numbers)
                return None
            raise
        batch = Batch(management, self._operations, self._guard, self._gate)
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
        moves: list[Move] = []
        for message in locked:
            try:
                restored = self._restorer.restore(message.payload, now)
            except EnvelopeError as error:
                # It was readable before it was deferred, so someone changed it: leave it to a person.
                logger.warning("Restoring a deferred message failed: %s", error)
                continue
            move = Move(batch, lane, restored, message.lock_token, len(message.payload), now)
            batch.add(move)
            moves.append(move)
        for move in moves:
            if self._guard.has_accepted(move.restored.identity):
                batch.complete(move)
            else:
                lane.accept_fetched(move)

    async def _forget_missing(self, management: Management, lane: Lane, numbers: list[int]) -> None:
        """Scan for messages that another client moved, and forget them. Raises if it only holds their locks."""
        scan = await scan_queue(management, self._operations, numbers[0], max_pages=1)
        scanned_to = max([*scan.deferred, *scan.active], default=numbers[-1])
        gone = [number for number in numbers if number <= scanned_to and number not in scan.deferred]
        lane.deferred.remove(gone)
        if not gone:
            raise RequestFailedError("another client holds the locks of these messages", MESSAGE_NOT_FOUND, 404)

    async def close(self, seconds: float, abandon_seconds: float) -> None:
        """Wait at most `seconds` for fetched messages to be settled, then stop.

        The last `abandon_seconds` of these are for abandoning what the ledger has not confirmed.
        """
        self._is_closing = True
        tasks = list(self._tasks.values())
        if tasks:
            _, unfinished = await asyncio.wait(tasks, timeout=max(0.0, seconds - abandon_seconds))
            if unfinished:
                self._gate.give_up()
                await asyncio.wait(unfinished, timeout=min(seconds, abandon_seconds))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
