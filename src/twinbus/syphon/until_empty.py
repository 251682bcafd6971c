"""Decides when a drain is done: everything movable has been moved."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from .deferral.deferred import QueueScan

if TYPE_CHECKING:
    from .delivery.lanes import Lane
    from .pump import Pump
    from .receiving.intake import Intake

CHECK_INTERVAL = 0.05  # seconds
QUIET_SECONDS = 0.2  # without a message received or settled
EXTRA_QUIET_SECONDS = 2.0  # for an extra pump: others work on the queue, so there is no hurry to leave
# Seconds beyond a lock duration to wait for messages that other clients have locked.
LOCK_MARGIN = 10.0


class Drain:
    """Watches a pump until nothing movable is left."""

    def __init__(self, pump: Pump, is_extra: bool = False) -> None:
        self._pump = pump
        self._is_extra = is_extra
        self._time = asyncio.get_running_loop().time
        #: Messages moved by each lane at its last retry.
        self._moved_at_retry: dict[str, int] = {}
        self._progress: tuple[int, ...] = ()
        self._progress_at = self._time()

    async def run(self, intake: Intake) -> None:
        """Return when nothing movable is left. Raises what `Pump.scan` raises."""
        while True:
            while not self._is_quiet(intake):  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(CHECK_INTERVAL)
            if self._is_extra:
                return
            received = intake.received
            self._pump.is_being_scanned = True
            try:
                intake.pause()
                while not intake.is_quiet:  # noqa: ASYNC110 - there is no event for it
                    await asyncio.sleep(CHECK_INTERVAL)
                scan = await self._pump.scan()
            finally:
                self._pump.is_being_scanned = False
            if intake.received == received and not self._is_anything_left(scan):
                self._pump.held = len(scan.active)
                return
            await self._pump.ticked()

    def _is_quiet(self, intake: Intake) -> bool:
        return (
            not intake.open
            and not intake.is_paused
            and self._pump.retrieval.is_idle
            and not self._pump.is_pinging
            and self._time() - intake.busy_at >= (EXTRA_QUIET_SECONDS if self._is_extra else QUIET_SECONDS)
        )

    def _is_anything_left(self, scan: QueueScan) -> bool:
        """Whether to go on: a destination can be retried, or locks of other clients may expire."""
        for lane in self._pump.lanes.values():
            if self._deserves_another_try(lane):
                lane.circuit.retry_now()
                self._moved_at_retry[lane.key] = lane.tally.moved
                return True
        waiting = [lane for lane in self._pump.lanes.values() if lane.deferred and self._is_open(lane)]
        if not scan.active and not waiting:
            return False
        progress = (len(scan.active), *(len(lane.deferred) for lane in waiting))
        if progress != self._progress:
            self._progress, self._progress_at = progress, self._time()
        return self._time() - self._progress_at < self._pump.restorer.lock_seconds + LOCK_MARGIN

    def _deserves_another_try(self, lane: Lane) -> bool:
        """A destination that is down gets one retry, and another one after each retry that moved something."""
        has_news = self._moved_at_retry.get(lane.key) != lane.tally.moved
        return bool(lane.deferred) and lane.is_allowed and lane.circuit.is_open and has_news

    def _is_open(self, lane: Lane) -> bool:
        return lane.is_allowed and not lane.circuit.is_open
