"""Reference model of one entity's failover as in SPEC, computed from its history.

It keeps every success and failure, and computes from them when messages had to leave the primary. It is slow, and
shares no code with the machine that it checks.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import NamedTuple

HALF_AN_HOUR = 1800.0


class Moment(NamedTuple):
    """The time of an event, and its order among events of the same time."""

    time: float
    order: int


@dataclass(eq=False)
class Stay:
    """A period in which messages go to the primary."""

    probation_ends: float | None = None
    failures: list[Moment] = field(default_factory=list)
    successes: list[Moment] = field(default_factory=list)

    def relapses(self) -> list[float]:
        """After recovery, probation: one failure goes straight back to failover."""
        return [
            failure.time
            for failure in self.failures
            if self.probation_ends is not None and failure.time < self.probation_ends
        ]

    def ends(self, interval: float) -> float | None:
        """Return when `interval` has passed since a failure without a success in between."""
        unanswered = [
            failure.time + interval
            for failure in self.failures
            if not any(failure < success and success.time < failure.time + interval for success in self.successes)
        ]
        return min([*unanswered, *self.relapses()], default=None)

    def is_suspect(self) -> bool:
        """Whether a failure has had no success since."""
        return any(not any(failure < success for success in self.successes) for failure in self.failures)


@dataclass(eq=False)
class Absence:
    """A period in which messages go to the backlog, and only pings to the primary."""

    next_ping: float
    forced: bool = False
    ping: object | None = None


class Model:
    """One entity; give it the same events as the machine."""

    def __init__(self, interval: float, ping_interval: float) -> None:
        self._interval = interval
        self._ping_interval = ping_interval
        self.wait = ping_interval  # between two pings
        self._orders = itertools.count()
        self._period: Stay | Absence = Stay()

    # ---- what SPEC says about now ----

    def state(self, now: float) -> str:
        period = self._at(now)
        if isinstance(period, Absence):
            return "failed over"
        return "suspect" if period.is_suspect() else "healthy"

    def next_time(self, now: float) -> float | None:
        period = self._at(now)
        if isinstance(period, Stay):
            return period.ends(self._interval)
        return None if period.forced or period.ping else period.next_ping

    def ping_due(self, now: float) -> bool:
        period = self._at(now)
        if isinstance(period, Stay) or period.forced or period.ping:
            return False
        return now >= period.next_ping

    def is_on_probation(self, now: float) -> bool:
        period = self._at(now)
        return isinstance(period, Stay) and period.probation_ends is not None and now < period.probation_ends

    def _at(self, now: float) -> Stay | Absence:
        """Return the current period: an interval ends by the clock."""
        if isinstance(self._period, Stay):
            end = self._period.ends(self._interval)
            if end is not None and end <= now:
                self._leave(self._period, end)
        return self._period

    def _leave(self, stay: Stay, at: float, forced: bool = False) -> None:
        if stay.relapses():
            self.wait = min(2 * self.wait, HALF_AN_HOUR)
            self._period = Absence(at + self.wait)
            return
        if stay.probation_ends is None or at >= stay.probation_ends:
            self.wait = self._ping_interval
        self._period = Absence(at, forced)

    # ---- the story ----

    def send_begins(self, now: float) -> Stay | None:
        """Return the token to report the result with; None if the message goes to the backlog."""
        period = self._at(now)
        return period if isinstance(period, Stay) else None

    def send_succeeds(self, now: float) -> None:
        period = self._at(now)
        if isinstance(period, Stay):
            period.successes.append(Moment(now, next(self._orders)))

    def send_fails(self, now: float, began_in: Stay) -> None:
        if self._at(now) is began_in:
            began_in.failures.append(Moment(now, next(self._orders)))

    def ping_begins(self, now: float) -> object:
        period = self._at(now)
        assert isinstance(period, Absence)
        period.ping = object()
        return period.ping

    def ping_succeeds(self, now: float, ping: object) -> None:
        period = self._at(now)
        if isinstance(period, Absence) and period.ping is ping:
            self._come_back(now)

    def ping_fails(self, now: float, ping: object) -> None:
        period = self._at(now)
        if isinstance(period, Absence) and period.ping is ping:
            period.ping, period.next_ping = None, now + self.wait

    def force_over(self, now: float) -> None:
        period = self._at(now)
        if isinstance(period, Stay):
            self._leave(period, now, forced=True)
        else:
            period.forced, period.ping = True, None

    def force_back(self, now: float) -> None:
        period = self._at(now)
        if isinstance(period, Absence):
            self._come_back(now)
        elif period.is_suspect():
            self._period = Stay()

    def _come_back(self, now: float) -> None:
        self._period = Stay(probation_ends=now + max(self._interval, self.wait))
