"""Until empty: when a pump has moved everything that can be moved."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from .deferred import Look

if TYPE_CHECKING:
    from .intake import Intake
    from .lanes import Lane
    from .pump import Pump

STEP = 0.05  # seconds between two looks at the pump
CALM = 0.2  # seconds in which no message came, and none was settled
# Locks that somebody holds run out in time; then the messages come to us.
PATIENCE = 10.0
EXTRA_CALM = 2.0  # seconds; where others are at work on the queue there is no hurry to leave


class Drain:
    """Watches a pump, and finds out whether there is anything left to try."""

    def __init__(self, pump: Pump, is_extra: bool = False) -> None:
        self._pump = pump
        self._is_extra = is_extra
        self._time = asyncio.get_running_loop().time
        self._tried: dict[str, int] = {}
        self._progress: tuple[int, ...] = ()
        self._progress_at = self._time()

    async def run(self, intake: Intake) -> None:
        """Return when nothing is left that can be moved now. Raises what `Pump.look` raises."""
        while True:
            while not self._is_calm(intake):  # noqa: ASYNC110 - nothing happens when it is calm
                await asyncio.sleep(STEP)
            if self._is_extra:
                return
            received = intake.received
            self._pump.is_examined = True
            try:
                intake.pause()
                while not intake.is_quiet:  # noqa: ASYNC110 - it comes of many small things
                    await asyncio.sleep(STEP)
                look = await self._pump.look()
            finally:
                self._pump.is_examined = False
            if intake.received == received and not self._is_anything_left(look):
                self._pump.held = len(look.active)
                return
            await self._pump.ticked()

    def _is_calm(self, intake: Intake) -> bool:
        return (
            not intake.open
            and not intake.is_paused
            and self._pump.retrieval.is_idle
            and not self._pump.is_asking
            and self._time() - intake.busy_at >= (EXTRA_CALM if self._is_extra else CALM)
        )

    def _is_anything_left(self, look: Look) -> bool:
        """Whether it is worth going on: something can be tried, or somebody's locks may yet run out."""
        for lane in self._pump.lanes.values():
            if self._deserves_a_last_try(lane):
                lane.circuit.hurry()
                self._tried[lane.key] = lane.tally.moved
                return True
        waits_for = [lane for lane in self._pump.lanes.values() if lane.deferred and self._is_open(lane)]
        if not look.active and not waits_for:
            return False
        progress = (len(look.active), *(len(lane.deferred) for lane in waits_for))
        if progress != self._progress:
            self._progress, self._progress_at = progress, self._time()
        return self._time() - self._progress_at < self._pump.restorer.lock_seconds + PATIENCE

    def _deserves_a_last_try(self, lane: Lane) -> bool:
        """One more for each destination that is down, and again whenever one has brought something forward."""
        has_news = self._tried.get(lane.key) != lane.tally.moved
        return bool(lane.deferred) and lane.is_allowed and lane.circuit.is_open and has_news

    def _is_open(self, lane: Lane) -> bool:
        return lane.is_allowed and not lane.circuit.is_open
