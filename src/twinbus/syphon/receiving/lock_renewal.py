"""Renews the locks of the few messages whose outcome takes long. Each renewal is billed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from twinbus.amqp.client.errors import AmqpError, RequestFailedError
from twinbus.amqp.client.management import Management

from ..settlement.bookkeeping import OperationLog
from ..settlement.moves import Move

logger = logging.getLogger("twinbus.syphon")

MAX_RENEWED = 500  # locks per request


def due_for_renewal(moves: Iterable[Move], lock_seconds: float, now: float) -> list[Move]:
    """Return the sent messages that wait for an outcome or the ledger, and whose lock is half over."""
    return [move for move in moves if move.sent_at and now - move.locked_at > lock_seconds / 2]


class LockRenewal:
    """Renews locks of one queue, one request at a time."""

    def __init__(self, queue: str, operations: OperationLog, management: Callable[[], Awaitable[Management]]) -> None:
        self._queue = queue
        self._operations = operations
        self._management = management
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    def start(self, moves: list[Move]) -> None:
        """Renew the locks of these messages, unless a renewal is running."""
        if moves and (self._task is None or self._task.done()):
            self._task = self._loop.create_task(self._renew(moves[:MAX_RENEWED]))

    async def _renew(self, moves: list[Move]) -> None:
        try:
            management = await self._management()
            failure = await self._request(management, moves)
            if failure is not None and len(moves) > 1:
                # One lost lock fails the whole request, so renew each on its own.
                for move in moves:
                    await self._request(management, [move])
        except AmqpError as error:
            logger.info("Renewing locks in %s failed: %s", self._queue, error)

    async def _request(self, management: Management, moves: list[Move]) -> RequestFailedError | None:
        # Even if it fails: asking for a lost lock every second gains nothing.
        now = self._loop.time()
        for move in moves:
            move.locked_at = now
        failure = None
        try:
            await management.renew_locks([move.lock_token for move in moves])
        except RequestFailedError as error:
            failure = error
        self._operations.renewed(moves, failure)
        return failure

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
