"""An event loop without sockets, threads or waiting: when nothing is left to do now, its clock jumps."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

#: What the clock shows at the beginning.
START = 1000.0
#: The shortest time there is, in seconds.
TICK = 1e-6
#: A run takes some thousands of turns of the loop.
MAX_TURNS = 400_000
#: How often tasks may begin new ones when they are cancelled at the end.
MAX_ENDINGS = 5


class StuckError(Exception):
    """Tasks wait for something that will never happen."""


class _Jumps:
    """Stands where a loop has its selector: to wait is to set the clock to the next timer."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        self._loop.jump(timeout)
        return []


class _NumberedTask(asyncio.Task[Any]):
    """A task that stands in a set where its number says, and not where it happens to be in memory."""

    def __init__(self, coro: Coroutine[Any, Any, Any], number: int, **options: Any) -> None:
        self._number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.base_events.BaseEventLoop):
    """asyncio's own loop with a clock of its own: tasks, timers and callbacks run in the order that they always do."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _Jumps(self)
        self._clock_resolution = 1e-9
        self._now = START
        self._limit = float("inf")
        self._turns = 0
        self._turn_cost = self._starved_until = 0.0
        #: The times during which the loop ran late, each from when to when.
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
        """As always, but some time passes: whoever waits for less than a clock can show would wait for ever."""
        return super().call_at(max(when, self._now + TICK), callback, *args, context=context)

    def starve(self, seconds: float, turn_cost: float) -> None:
        """Let every turn of the loop take `turn_cost` seconds, for `seconds`: whatever is due by then runs late."""
        self._turn_cost, self._starved_until = turn_cost, self._now + seconds
        self.starved.append((self._now, self._now))

    def jump(self, timeout: float | None) -> None:
        """Go on to the next timer. Raises `StuckError` if that leads nowhere: no timer, too late, too many turns."""
        self._turns += 1
        if self._turns > MAX_TURNS:
            raise StuckError(f"it goes round in circles after {self._now - START:.3f} s")
        if self._now < self._starved_until:
            self._now += self._turn_cost
            self.starved[-1] = self.starved[-1][0], self._now
        if timeout is not None and timeout <= 0:
            return
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        if not scheduled:
            raise StuckError(f"nothing will ever happen again after {self._now - START:.3f} s")
        self._now = max(self._now, scheduled[0].when())
        if self._now > self._limit:
            raise StuckError(f"it is not over after {self._now - START:.3f} s")

    def run(self, work: Coroutine[Any, Any, _T], limit: float) -> _T:
        """Run it to its end, at most so many seconds of this clock, then close the loop.

        Raises:
            StuckError: it would never end, or not in time.
        """
        self._limit = self._now + limit
        asyncio.set_event_loop(self)
        try:
            return self.run_until_complete(work)
        finally:
            self._limit, self._turns = float("inf"), 0
            try:
                self._end_tasks()
            finally:
                asyncio.set_event_loop(None)
                self.close()

    def _end_tasks(self) -> None:
        for _ in range(MAX_ENDINGS):
            left = asyncio.all_tasks(self)
            if not left:
                break
            for task in left:
                task.cancel()
            # The clock goes on for them: some take leave of peers that do not answer, in tasks of their own.
            self.run_until_complete(asyncio.gather(*left, return_exceptions=True))

    # ---- what asyncio asks of a loop, and this one has no use for ----

    def _process_events(self, event_list: list[Any]) -> None:
        """Nothing comes from outside."""

    def _write_to_self(self) -> None:
        """Nobody sleeps, so nobody has to be woken."""
