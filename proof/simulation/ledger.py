"""Simulates a ledger in memory, with delayed durability, slow flushes and stalls."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from random import Random

from twinbus.ledger.recorder import Operation, prompt

FLUSH = 0.002, 0.2


class SimulatedLedger:
    """The ledger of one process. Implements `DurableRecorder`."""

    unfit_rows = 0
    last_error: BaseException | None = None

    def __init__(self, loop: asyncio.AbstractEventLoop, random: Random) -> None:
        self._loop = loop
        self._random = random
        self._buffer: list[Operation] = []
        self._is_alive = True
        #: No flush ends before this time.
        self.stalled_until = 0.0
        self.durable: list[Operation] = []

    @prompt
    def record(self, operation: Operation) -> None:
        self._buffer.append(operation)

    def offer(self, operation: Operation) -> bool:
        self._buffer.append(operation)
        return True

    def request_flush(self) -> Future[None]:
        future: Future[None] = Future()
        rows = len(self.durable) + len(self._buffer)
        at = max(self._loop.time() + self._random.uniform(*FLUSH), self.stalled_until)
        self._loop.call_at(at, self._flushed, rows, future)
        return future

    def _flushed(self, rows: int, future: Future[None]) -> None:
        if not self._is_alive:
            return
        count = max(0, rows - len(self.durable))
        self.durable += self._buffer[:count]
        del self._buffer[:count]
        if future.set_running_or_notify_cancel():
            future.set_result(None)

    def kill(self) -> None:
        """Kill the process: rows that are not durable are lost."""
        self._is_alive = False
        self._buffer.clear()

    def close(self) -> None:
        """Close normally: all rows become durable."""
        self.durable += self._buffer
        self._buffer.clear()
