"""Measures event-loop lag: a starved process cannot tell whether the service is down.

Pure: the background calls `tick` at every `interval`, by the clock of the pairing.
"""

from __future__ import annotations

import math

#: An attempt is inconclusive if the process was late for more than this share of it.
LATE_SHARE = 0.25


class Lag:
    """Adds up how late the ticks of the event loop were."""

    def __init__(self, attempt_timeout: float) -> None:
        #: Seconds between two ticks.
        self.interval = min(0.5, attempt_timeout / 10)
        #: How late the last tick was.
        self.latest = 0.0
        self._total = 0.0
        self._expected = math.inf

    def tick(self, now: float) -> float:
        """Record a tick; return how many seconds late it was."""
        self.latest = max(0.0, now - self._expected)
        self._total += self.latest
        self._expected = now + self.interval
        return self.latest

    def total(self, now: float) -> float:
        """Return all lag up to `now` in seconds, that of an overdue tick included."""
        return self._total + max(0.0, now - self._expected)

    def stop(self) -> None:
        """Expect no more ticks."""
        self._expected = math.inf
