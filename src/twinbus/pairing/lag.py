"""Measures how late the process runs: an attempt that it was too busy to make says nothing about the service.

Pure: the background calls `tick` at every `interval`, by the clock of the pairing.
"""

from __future__ import annotations

import math

#: An attempt during which the process was late for more than this share of it is inconclusive.
LATE_SHARE = 0.25


class Lag:
    """Adds up by how much the ticks of the event loop were late."""

    def __init__(self, attempt_timeout: float) -> None:
        #: Seconds between two ticks.
        self.interval = min(0.5, attempt_timeout / 10)
        #: How late the last tick was.
        self.latest = 0.0
        self._total = 0.0
        self._expected = math.inf

    def tick(self, now: float) -> float:
        """A tick was made; returns how many seconds late it was."""
        self.latest = max(0.0, now - self._expected)
        self._total += self.latest
        self._expected = now + self.interval
        return self.latest

    def total(self, now: float) -> float:
        """All seconds of lag up to now, those of a tick that is overdue included."""
        return self._total + max(0.0, now - self._expected)

    def stop(self) -> None:
        """No more ticks are to be expected."""
        self._expected = math.inf
