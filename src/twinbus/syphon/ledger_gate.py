"""What the primary has accepted is completed in the backlog only when the ledger has it for good."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from .moves import Move

OnDurable = Callable[[BaseException | None], None]
Flush = Callable[[OnDurable], None]
"""Makes durable what was recorded so far, then calls back, on the event loop: with None, or with what went wrong."""


class LedgerGate:
    """Holds moves until the ledger has their rows. Without a ledger that has to be waited for it is always open."""

    def __init__(self, flush: Flush | None) -> None:
        self._flush = flush
        self._waiting: list[Move] = []
        self._is_flushing = False
        self.is_open = flush is None
        #: Ends when the ledger fails: nothing more may be completed then.
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    def add(self, move: Move) -> None:
        """Have a move completed when its rows are durable. Those that come meanwhile go together."""
        self._waiting.append(move)
        if not self._is_flushing:
            self._start()

    def _start(self) -> None:
        assert self._flush is not None
        moves, self._waiting = self._waiting, []
        self._is_flushing = True
        self._flush(partial(self._flushed, moves))

    def _flushed(self, moves: list[Move], error: BaseException | None) -> None:
        self._is_flushing = False
        if error is not None:
            if not self.failed.done():
                self.failed.set_result(error)
            return
        for move in moves:
            move.source.complete_now(move)
        if self._waiting:
            self._start()
