"""What the primary has accepted is completed in the backlog, and what nobody takes dead-lettered, only when the ledger
has it for good."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from twinbus.ledger.errors import NotDurableYet, RowsDropped

from .errors import TimedOut
from .moves import Memory, Move

OnDurable = Callable[[BaseException | None], None]
Flush = Callable[[OnDurable], None]
"""Makes durable what was recorded so far, then calls back, on the event loop: with None, or with what went wrong.

It may call back a second time: if it took too long and all is durable after all."""

# A ledger that has the same deadline can say what is wrong with it, so it is given a little longer.
GRACE = 1.05
# It did not answer in time, but may still do so.
STALLS = (TimedOut, NotDurableYet)


class LedgerGate:
    """Holds moves until the ledger has their rows. Without a ledger that has to be waited for it is always open.

    A flush that fails closes it: what waits, and what comes later, is given back to the queue. The destinations have
    those messages, so they are remembered, and not sent again by this process. If the ledger only stalls, `failed` ends
    too, and nothing more is to be received; but what waits here is still completed if the ledger answers before
    somebody calls `give_up`.
    """

    def __init__(self, flush: Flush | None, memory: Memory, deadline: Callable[[], float]) -> None:
        self._flush = flush
        self._memory = memory
        self._deadline = deadline
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Move] = []
        self._flushing: list[Move] = []
        self._has_given_up = False
        self._drops_known = 0
        self.is_open = flush is None
        #: Ends when the ledger fails or stalls: nothing more may be received then.
        self.failed: asyncio.Future[BaseException] = self._loop.create_future()

    def pass_on(self, move: Move) -> None:
        """Have a move settled: at once, or when its rows are durable. Those that come meanwhile go together."""
        if self.is_open:
            move.source.settle_now(move)
            return
        if self._has_given_up:
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
        if self._flushing is not moves:
            return  # it was given up
        if error is not None:
            if not self.failed.done():
                self.failed.set_result(error)
            if not isinstance(error, STALLS):
                self.give_up()
                self._heed_drops(error)
            return
        self._flushing = []
        for move in moves:
            move.source.settle_now(move)
        if self._waiting and not self._flushing:
            self._start()

    def give_up(self) -> None:
        """Wait for the ledger no longer: what it has not confirmed goes back to the queue."""
        self._has_given_up = True
        moves, self._waiting, self._flushing = [*self._flushing, *self._waiting], [], []
        self._turn_away(moves)

    def _turn_away(self, moves: list[Move]) -> None:
        for move in moves:
            if not move.reason:
                self._memory.accepted(move.restored.sequence_number)
            move.source.strand(move)

    async def reopen(self) -> bool:
        """After a failure: ask the ledger whether it takes rows again. If it does, the gate is as good as new."""
        self.give_up()
        answer: asyncio.Future[BaseException | None] = self._loop.create_future()
        self._ask(lambda error: None if answer.done() else answer.set_result(error))
        error = await answer
        if error is not None:
            self._heed_drops(error)
            return False
        self.failed = self._loop.create_future()
        self._has_given_up = False
        return True

    def _ask(self, tell: OnDurable) -> None:
        """Flush; `tell` is called also if the ledger does not answer in time, and then again if it answers later."""
        assert self._flush is not None
        seconds = self._deadline() * GRACE

        def answer(error: BaseException | None) -> None:
            timer.cancel()
            # What was dropped before everything here was given up is no reason to do so again.
            is_old = isinstance(error, RowsDropped) and error.count == self._drops_known
            tell(None if is_old else error)

        timer = self._loop.call_later(seconds, tell, TimedOut(f"nothing was durable within {seconds:.3g} seconds"))
        self._flush(answer)

    def _heed_drops(self, error: BaseException) -> None:
        """Nobody knows whose rows were dropped: what may have been moved without one is moved again, with one."""
        if isinstance(error, RowsDropped):
            self._drops_known = error.count
            self._memory.forget_accepted()
