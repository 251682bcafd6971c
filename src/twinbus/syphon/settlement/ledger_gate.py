"""Settles messages in the backlog only after the ledger has stored the rows of their moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from twinbus.amqp.client.errors import AnswerTimeoutError
from twinbus.ledger.ledger_errors import NotYetDurableError, RowsDroppedError

from .moves import DuplicateGuard, Move

OnDurable = Callable[[BaseException | None], None]
Flush = Callable[[OnDurable], None]
"""Makes the recorded rows durable, then calls back on the event loop with None or the error.

May call back again after a timeout, when the rows are durable after all."""

# Slightly longer than the ledger's own deadline, so that its own error arrives first.
GRACE = 1.05
# It may still answer after these.
STALL_ERRORS = (AnswerTimeoutError, NotYetDurableError)


class LedgerGate:
    """Holds moves until the ledger has stored their rows. Always open if there is no ledger to wait for.

    A failed flush closes it: waiting and later moves are abandoned. The destinations have those messages, so this
    process remembers them and does not send them again. If the ledger only stalls, `failed` ends too and nothing more
    may be received, but waiting moves are still completed if it answers before `give_up`.
    """

    def __init__(self, flush: Flush | None, guard: DuplicateGuard, deadline: Callable[[], float]) -> None:
        self._flush = flush
        self._guard = guard
        self._deadline = deadline
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Move] = []
        self._flushing: list[Move] = []
        self._has_given_up = False
        self._drops_known = 0
        self.is_open = flush is None
        #: Done when the ledger fails or stalls: nothing more may be received then.
        self.failed: asyncio.Future[BaseException] = self._loop.create_future()

    def submit(self, move: Move) -> None:
        """Settle a move at once, or when its rows are durable. Moves that arrive during a flush share the next one."""
        if self.is_open:
            move.source.settle_now(move)
            return
        if self._has_given_up:
            self._abandon([move])
            return
        self._waiting.append(move)
        if not self._flushing:
            self._start()

    def _start(self) -> None:
        moves = self._flushing = self._waiting
        self._waiting = []
        self._flush_in_time(partial(self._flushed, moves))

    def _flushed(self, moves: list[Move], error: BaseException | None) -> None:
        if self._flushing is not moves:
            return  # given up meanwhile
        if error is not None:
            if not self.failed.done():
                self.failed.set_result(error)
            if not isinstance(error, STALL_ERRORS):
                self.give_up()
                self._on_rows_dropped(error)
            return
        self._flushing = []
        for move in moves:
            move.source.settle_now(move)
        if self._waiting and not self._flushing:
            self._start()

    def give_up(self) -> None:
        """Stop waiting for the ledger: abandon what it has not confirmed."""
        self._has_given_up = True
        moves, self._waiting, self._flushing = [*self._flushing, *self._waiting], [], []
        self._abandon(moves)

    def _abandon(self, moves: list[Move]) -> None:
        for move in moves:
            if not move.reason:
                self._guard.accepted(move.restored.identity)
            move.source.stop_and_abandon(move)

    async def reopen(self) -> bool:
        """After a failure: ask the ledger whether it accepts rows again, and if so reset the gate."""
        self.give_up()
        answer: asyncio.Future[BaseException | None] = self._loop.create_future()
        self._flush_in_time(lambda error: None if answer.done() else answer.set_result(error))
        error = await answer
        if error is not None:
            self._on_rows_dropped(error)
            return False
        self.failed = self._loop.create_future()
        self._has_given_up = False
        return True

    def _flush_in_time(self, on_durable: OnDurable) -> None:
        """Flush. `on_durable` is also called on a timeout, and again if the ledger answers later."""
        assert self._flush is not None
        seconds = self._deadline() * GRACE

        def answer(error: BaseException | None) -> None:
            timer.cancel()
            # Drops that were handled before are no reason to fail again.
            is_old = isinstance(error, RowsDroppedError) and error.count == self._drops_known
            on_durable(None if is_old else error)

        timer = self._loop.call_later(
            seconds, on_durable, AnswerTimeoutError(f"the ledger stored nothing within {seconds:.3g} seconds")
        )
        self._flush(answer)

    def _on_rows_dropped(self, error: BaseException) -> None:
        """It is unknown whose rows were dropped, so forget what was accepted: it is sent again, with a row."""
        if isinstance(error, RowsDroppedError):
            self._drops_known = error.count
            self._guard.forget_accepted()
