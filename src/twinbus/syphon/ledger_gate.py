"""What the primary has accepted is completed in the backlog only when the ledger has it for good."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from .errors import TimedOut
from .moves import Memory, Move

OnDurable = Callable[[BaseException | None], None]
Flush = Callable[[OnDurable], None]
"""Makes durable what was recorded so far, then calls back, on the event loop: with None, or with what went wrong."""

# A ledger that has the same deadline can say what is wrong with it, so it is given a little longer.
GRACE = 1.05


class LedgerGate:
    """Holds moves until the ledger has their rows. Without a ledger that has to be waited for it is always open.

    A flush that fails, or takes longer than `deadline` says, closes it: what waits, and what comes later, is given back
    to the queue. The destinations have those messages, so they are remembered, and not sent again by this process.
    """

    def __init__(self, flush: Flush | None, memory: Memory, deadline: Callable[[], float]) -> None:
        self._flush = flush
        self._memory = memory
        self._deadline = deadline
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Move] = []
        self._flushing: list[Move] = []
        self.is_open = flush is None
        #: Ends when the ledger fails: nothing more may be completed then.
        self.failed: asyncio.Future[BaseException] = self._loop.create_future()

    def add(self, move: Move) -> None:
        """Have a move completed when its rows are durable. Those that come meanwhile go together."""
        if self.failed.done():
            self._turn_away([move])
            return
        self._waiting.append(move)
        if not self._flushing:
            self._start()

    def _start(self) -> None:
        moves = self._flushing = self._waiting
        self._waiting = []
        self._ask(partial(self._flushed, moves))

    def _flushed(self, moves: list[Move], error: BaseException | None) -> None:
        if error is not None:
            self.failed.set_result(error)
            waiting, self._waiting, self._flushing = [*moves, *self._waiting], [], []
            self._turn_away(waiting)
            return
        self._flushing = []
        for move in moves:
            move.source.complete_now(move)
        if self._waiting and not self._flushing:
            self._start()

    def _turn_away(self, moves: list[Move]) -> None:
        for move in moves:
            self._memory.accepted(move.restored.sequence_number)
            move.source.strand(move)

    async def reopen(self) -> bool:
        """After a failure: ask the ledger whether it takes rows again. If it does, the gate is as good as new."""
        answer: asyncio.Future[BaseException | None] = self._loop.create_future()
        self._ask(lambda error: None if answer.done() else answer.set_result(error))
        if await answer is not None:
            return False
        self.failed = self._loop.create_future()
        return True

    def _ask(self, tell: OnDurable) -> None:
        """Flush; `tell` is called once, also if the ledger does not answer in time."""
        assert self._flush is not None
        seconds = self._deadline() * GRACE
        is_answered = False

        def answer(error: BaseException | None) -> None:
            nonlocal is_answered
            if not is_answered:
                is_answered = True
                timer.cancel()
                tell(error)

        timer = self._loop.call_later(seconds, answer, TimedOut(f"nothing was durable within {seconds:.3g} seconds"))
        self._flush(answer)
