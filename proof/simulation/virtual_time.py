"""An event loop with virtual time: when idle, its clock jumps to the next timer."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

#: Clock reading at the start.
START = 1000.0
#: The smallest time step, in seconds.
TICK = 1e-6
#: A normal run takes some thousands of loop iterations.
MAX_TURNS = 400_000
#: Rounds of cancellation at the end: cancelled tasks may start new ones.
MAX_CANCEL_ROUNDS = 5


class StuckError(Exception):
    """The run cannot finish: tasks wait for something that will never happen."""


class _ClockSelector:
    """Replaces the loop's selector: waiting sets the clock to the next timer."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        self._loop.jump(timeout)
        return []


class _NumberedTask(asyncio.Task[Any]):
    """A task whose hash is a sequence number, so that the order of a set of tasks is reproducible."""

    def __init__(self, coro: Coroutine[Any, Any, Any], number: int, **options: Any) -> None:
        self._number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.base_events.BaseEventLoop):
    """asyncio's own loop with a virtual clock: tasks, timers and callbacks run in their usual order."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _ClockSelector(self)
        self._clock_resolution = 1e-9
        self._now = START
        self._limit = float("inf")
        self._turns = 0
        self._turn_cost = self._starved_until = 0.0
        #: Periods in which the loop ran late, as (start, end).
        self.starved: list[tuple[float, float]] = []
        self._numbers = itertools.count()
        self.set_task_factory(self._new_task)

    def _new_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        return _NumberedTask(coro, next(self._numbers), loop=loop, **options)

    def time(self) -> float:
        return self._now

    def call_at(
        self, when: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As in asyncio, but at least one tick ahead: a shorter delay would never elapse on this clock."""
        return super().call_at(max(when, self._now + TICK), callback, *args, context=context)

    def starve(self, seconds: float, turn_cost: float) -> None:
        """For `seconds`, let every loop iteration take `turn_cost` seconds, so that timers run late."""
        self._turn_cost, self._starved_until = turn_cost, self._now + seconds
        self.starved.append((self._now, self._now))

    def jump(self, timeout: float | None) -> None:
        """Move the clock to the next timer. Raises `StuckError` on no timer, past the limit, or too many iterations."""
        self._turns += 1
        if self._turns > MAX_TURNS:
            raise StuckError(f"livelock: more than {MAX_TURNS:,} loop iterations after {self._now - START:.3f} s")
        if self._now < self._starved_until:
            self._now += self._turn_cost
            self.starved[-1] = self.starved[-1][0], self._now
        if timeout is not None and timeout <= 0:
            return
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        if not scheduled:
            raise StuckError(f"deadlock: no timer and no ready task after {self._now - START:.3f} s")
        self._now = max(self._now, scheduled[0].when())
        if self._now > self._limit:
            raise StuckError(f"time limit: still running after {self._now - START:.3f} s")

    def run(self, work: Coroutine[Any, Any, _T], limit: float) -> _T:
        """Run `work` for at most `limit` seconds of virtual time, then close the loop.

        Raises:
            StuckError: it would never end, or not within the limit.
        """
        self._limit = self._now + limit
        asyncio.set_event_loop(self)
        try:
            return self.run_until_complete(work)
        finally:
            self._limit, self._turns = float("inf"), 0
            try:
                self._cancel_tasks()
            finally:
                asyncio.set_event_loop(None)
                self.close()

    def _cancel_tasks(self) -> None:
        for _ in range(MAX_CANCEL_ROUNDS):
            left = asyncio.all_tasks(self)
            if not left:
                break
            for task in left:
                task.cancel()
            # Virtual time goes on: some wait for peers that do not answer, in tasks of their own.
            self.run_until_complete(asyncio.gather(*left, return_exceptions=True))

    # ---- required by asyncio, unused here ----

    def _process_events(self, event_list: list[Any]) -> None:
        """No I/O events."""

    def _write_to_self(self) -> None:
        """The loop never sleeps, so it need not be woken."""
