"""Rows that prove something: what they tell of may be made final only when they are stored for good."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Literal

from .ledger_errors import NotDurableError, NotYetDurableError, RowsDroppedError, reason_of
from .recorder import DurableRecorder, Operation, Recorder, prompt

#: A third of the lock of a backlog queue's messages.
DEADLINE = 20.0

OnDurable = Callable[[BaseException | None], None]
Flush = Callable[[OnDurable], None]
#: What the syphon does when the ledger takes no rows: stop, or go on without a proof.
LedgerMode = Literal["required", "best_effort"]


class Proof:
    """A recorder for rows that are proof, on a writer that others may use too.

    A flush that succeeds says: everything recorded here so far is durable. Once a row was dropped no later flush
    succeeds: make a new one to start again.

    Args:
        writer: Writes the rows.
        deadline: Seconds after which a flush fails.
    """

    def __init__(self, writer: DurableRecorder, *, deadline: float = DEADLINE) -> None:
        if not 0 < deadline < math.inf:
            raise ValueError(f"deadline must be more than 0 and finite, not {deadline!r}")
        self._writer = writer
        self._deadline = deadline
        self._unfit_before = writer.unfit_rows
        self._dropped = 0

    @prompt
    def record(self, operation: Operation) -> None:
        """Take note of it. Never raises and never waits; the next flush does if there was no room."""
        try:
            is_kept = self._writer.offer(operation)
        except Exception:  # of a writer that is not ours
            is_kept = False
        if not is_kept:
            self._dropped += 1

    def flush(self) -> None:
        """Wait until everything recorded so far is durable.

        Raises:
            NotDurableError: It is not, or not surely.
        """
        future = self._writer.request_flush()
        wait([future], self._deadline)
        future.cancel()
        self._raise(self._verdict(future))

    async def flush_async(self) -> None:
        """The same without blocking the event loop."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[BaseException | None] = loop.create_future()
        self.on_loop(loop)(lambda error: None if ended.done() else ended.set_result(error))
        self._raise(await ended)

    def on_loop(self, loop: asyncio.AbstractEventLoop) -> Flush:
        """The flush that the syphon takes: it calls back on the event loop, with None or with a `NotDurableError`.

        After a `NotYetDurableError` it calls back once more, if within as much time again it is durable after all.
        """

        def flush(done: OnDurable) -> None:
            future = self._writer.request_flush()
            is_late = False
            timer: asyncio.TimerHandle

            def be_late() -> None:
                nonlocal is_late, timer
                is_late, timer = True, loop.call_later(self._deadline, future.cancel)
                done(self._not_yet())

            timer = loop.call_later(self._deadline, be_late)

            def finish() -> None:
                timer.cancel()
                if not (is_late and future.cancelled()):
                    done(self._verdict(future))

            def tell(_: Future[None]) -> None:
                with suppress(RuntimeError):  # the loop is closed, and with it everybody who could be told
                    loop.call_soon_threadsafe(finish)

            future.add_done_callback(tell)

        return flush

    @staticmethod
    def _raise(verdict: BaseException | None) -> None:
        if verdict is not None:
            raise verdict

    def _verdict(self, future: Future[None]) -> NotDurableError | None:
        """What a flush that has ended was worth."""
        if future.cancelled():
            return self._not_yet()
        error = future.exception()
        if error is not None:
            return _because(NotDurableError(f"the ledger is not durable: {error}"), error)
        dropped = self._dropped + self._writer.unfit_rows - self._unfit_before
        return RowsDroppedError(dropped) if dropped else None

    def _not_yet(self) -> NotDurableError:
        cause = self._writer.last_error
        why = "the store did not answer" if cause is None else reason_of(cause)
        return _because(NotYetDurableError(f"the ledger is not durable after {self._deadline:g} s: {why}"), cause)


def _because(error: NotDurableError, cause: BaseException | None) -> NotDurableError:
    error.__cause__ = cause
    return error


def for_syphon(
    writer: DurableRecorder,
    loop: asyncio.AbstractEventLoop,
    *,
    ledger: LedgerMode = "required",
    deadline: float = DEADLINE,
) -> tuple[Recorder, Flush | None]:
    """The recorder and the flush of a syphon: with "best_effort" there is nothing to wait for.

    Raises:
        ValueError: `ledger` is neither "required" nor "best_effort", or `deadline` is not more than 0.
    """
    if ledger not in ("required", "best_effort"):
        raise ValueError(f'ledger must be "required" or "best_effort", not {ledger!r}')
    if ledger == "best_effort":
        return writer, None
    proof = Proof(writer, deadline=deadline)
    return proof, proof.on_loop(loop)
