"""Confirms that rows are durable, so that messages are settled only when their proof is stored."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Literal

from .ledger_errors import NotDurableError, NotYetDurableError, RowsDroppedError, reason_of
from .recorder import DurableRecorder, Operation, Recorder, prompt

#: Default seconds for a flush: a third of the lock duration of a backlog queue.
DEADLINE = 20.0

OnDurable = Callable[[BaseException | None], None]
Flush = Callable[[OnDurable], None]
#: What the syphon does when the ledger takes no rows: stop, or go on without proof.
LedgerMode = Literal["required", "best_effort"]


class Proof:
    """A recorder for rows that serve as proof, on a writer that other recorders may share.

    A successful flush means that everything recorded here so far is durable. After a row is dropped every later flush
    fails: create a new `Proof` to start again.

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
        """Record a row. Never raises and never waits; if the row is dropped, the next flush fails."""
        try:
            is_kept = self._writer.offer(operation)
        except Exception:  # the writer may be custom
            is_kept = False
        if not is_kept:
            self._dropped += 1

    def flush(self) -> None:
        """Wait until everything recorded so far is durable.

        Raises:
            NotDurableError: It is not known to be durable.
        """
        future = self._writer.request_flush()
        wait([future], self._deadline)
        future.cancel()
        _raise_if_error(self._error_of(future))

    async def flush_async(self) -> None:
        """Flush as `flush` does, without blocking the event loop."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[BaseException | None] = loop.create_future()
        self.on_loop(loop)(lambda error: None if ended.done() else ended.set_result(error))
        _raise_if_error(await ended)

    def on_loop(self, loop: asyncio.AbstractEventLoop) -> Flush:
        """Return a flush for the syphon, which calls back on `loop` with None or a `NotDurableError`.

        After a `NotYetDurableError` it calls back a second time if the rows are stored within another deadline.
        """

        def flush(on_durable: OnDurable) -> None:
            future = self._writer.request_flush()
            is_late = False
            timer: asyncio.TimerHandle

            def report_late() -> None:
                nonlocal is_late, timer
                is_late, timer = True, loop.call_later(self._deadline, future.cancel)
                on_durable(self._not_yet_durable())

            timer = loop.call_later(self._deadline, report_late)

            def report_result() -> None:
                timer.cancel()
                if not (is_late and future.cancelled()):
                    on_durable(self._error_of(future))

            def report_from_any_thread(_: Future[None]) -> None:
                with suppress(RuntimeError):  # the loop is closed: nothing waits for the result
                    loop.call_soon_threadsafe(report_result)

            future.add_done_callback(report_from_any_thread)

        return flush

    def _error_of(self, future: Future[None]) -> NotDurableError | None:
        """Return the error of a flush that has ended; None if the rows are durable."""
        if future.cancelled():
            return self._not_yet_durable()
        error = future.exception()
        if error is not None:
            return _with_cause(NotDurableError(f"the rows are not durable: {error}"), error)
        dropped = self._dropped + self._writer.unfit_rows - self._unfit_before
        return RowsDroppedError(dropped, _name_of(self._writer)) if dropped else None

    def _not_yet_durable(self) -> NotDurableError:
        """Return the error of a flush that reached its deadline."""
        cause = self._writer.last_error
        reason = "the store did not answer" if cause is None else reason_of(cause)
        message = f"{_name_of(self._writer)} is not durable after {self._deadline:g} s: {reason}"
        return _with_cause(NotYetDurableError(message), cause)


def _name_of(writer: DurableRecorder) -> str:
    """Return how error texts name the writer's ledger. A custom writer need not say where its ledger is."""
    place = getattr(writer, "place", None)
    return f"the ledger at {place}" if isinstance(place, str) else "the ledger"


def _raise_if_error(error: BaseException | None) -> None:
    if error is not None:
        raise error


def _with_cause(error: NotDurableError, cause: BaseException | None) -> NotDurableError:
    error.__cause__ = cause
    return error


def for_syphon(
    writer: DurableRecorder,
    loop: asyncio.AbstractEventLoop,
    *,
    ledger: LedgerMode = "required",
    deadline: float = DEADLINE,
) -> tuple[Recorder, Flush | None]:
    """Return the recorder and the flush of a syphon; the flush is None with "best_effort".

    Raises:
        ValueError: `ledger` is neither "required" nor "best_effort", or `deadline` is not more than 0.
    """
    if ledger not in ("required", "best_effort"):
        raise ValueError(f'ledger must be "required" or "best_effort", not {ledger!r}')
    if ledger == "best_effort":
        return writer, None
    proof = Proof(writer, deadline=deadline)
    return proof, proof.on_loop(loop)
