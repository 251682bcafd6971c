"""Starts locks anew, of the few messages whose outcome takes long. Each is an operation on the bill."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from .bookkeeping import Book
from .errors import AmqpError, RequestFailed
from .management import Management
from .moves import Move

logger = logging.getLogger("twinbus.syphon")

MAX_RENEWED = 500  # locks a request


class Renewal:
    """Renews locks of one queue, one request at a time."""

    def __init__(self, queue: str, book: Book, management: Callable[[], Awaitable[Management]]) -> None:
        self._queue = queue
        self._book = book
        self._management = management
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    def start(self, moves: list[Move]) -> None:
        """Renew the locks of these messages, unless others are being renewed."""
        if moves and (self._task is None or self._task.done()):
            self._task = self._loop.create_task(self._renew(moves[:MAX_RENEWED]))

    async def _renew(self, moves: list[Move]) -> None:
        try:
            management = await self._management()
            failure = await self._ask(management, moves)
            if failure is not None and len(moves) > 1:
                # One lock that is lost fails the request, so then each is asked for alone.
                for move in moves:
                    await self._ask(management, [move])
        except AmqpError as error:
            logger.info("Locks in %s were not renewed: %s", self._queue, error)

    async def _ask(self, management: Management, moves: list[Move]) -> RequestFailed | None:
        # Also if it fails: nothing is gained by asking for a lost lock every second.
        now = self._loop.time()
        for move in moves:
            move.locked_at = now
        failure = None
        try:
            await management.renew_locks([move.lock_token for move in moves])
        except RequestFailed as error:
            failure = error
        self._book.renewed(moves, failure)
        return failure

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
