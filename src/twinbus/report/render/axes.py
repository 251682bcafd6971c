"""Map times and counts to positions on a plot, with ticks at round values. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import MAXYEAR, UTC, datetime
from typing import NamedTuple

from .formats import DAY, HOUR, MINUTE, SECOND, at, clock, day, month

#: Steps between ticks that divide minutes, hours and days evenly; months are used beyond these.
_STEPS = (
    *(count * SECOND for count in (1, 2, 5, 10, 15, 30)),
    *(count * MINUTE for count in (1, 2, 5, 10, 15, 30)),
    *(count * HOUR for count in (1, 2, 3, 6, 12)),
    *(count * DAY for count in (1, 2, 4, 7, 14)),
)
_MONTH = 30 * DAY
_MONTH_STEPS = (1, 2, 3, 6, 12, 24, 60, 120, 600)


class Tick(NamedTuple):
    """A mark of an axis: its place in percent, and its text."""

    place: float
    text: str


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """A period, drawn from left to right."""

    since: int
    until: int

    def place(self, moment: int) -> float:
        """Return percent from the left, within the plot."""
        share = (moment - self.since) / max(1, self.until - self.since)
        return round(100 * min(1.0, max(0.0, share)), 3)

    def ticks(self, most: int = 8) -> list[Tick]:
        """Return about `most` ticks at round times; midnights show the day, the others the time."""
        return [Tick(self.place(moment), text) for moment, text in self._marks(most)]

    def _marks(self, most: int) -> Iterator[tuple[int, str]]:
        length = self.until - self.since
        step = next((step for step in _STEPS if length // step <= most), None)
        if step is None:
            yield from self._months(most)
            return
        first = -(-self.since // step) * step
        for moment in range(first, self.until + 1, step):
            yield moment, _text(moment, step)

    def _months(self, most: int) -> Iterator[tuple[int, str]]:
        months = (self.until - self.since) // _MONTH
        every = next((step for step in _MONTH_STEPS if months // step <= most), _MONTH_STEPS[-1])
        start = at(self.since)
        first = -(-(start.year * 12 + start.month - 1) // every) * every
        for number in range(first, MAXYEAR * 12, every):
            year, index = divmod(number, 12)
            moment = int(datetime(year, index + 1, 1, tzinfo=UTC).timestamp()) * SECOND
            if moment > self.until:
                return
            if moment >= self.since:
                yield moment, month(year, index + 1) if index == 0 else day(moment)


def _text(moment: int, step: int) -> str:
    if moment % DAY == 0:
        return day(moment)
    return clock(moment, seconds=step < MINUTE)


def padded(since: int, until: int, share: float = 0.04) -> TimeAxis:
    """Return the axis of a period with some room on both sides."""
    room = max(SECOND, int((until - since) * share))
    return TimeAxis(since - room, until + room)


def count_ticks(most: int, count: int = 3) -> list[int]:
    """Return round numbers from 0 to the first that is at least `most`."""
    if most <= 0:
        return [0, 1]
    step = _round_up(most / count)
    return [step * index for index in range(-(-most // step) + 1)]


def _round_up(value: float) -> int:
    """Return the next of 1, 2, 5, 10, 20, 50, …"""
    if value <= 1:
        return 1
    power = 10 ** math.floor(math.log10(value))
    return int(next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value))


@dataclass(frozen=True, slots=True)
class LogAxis:
    """A logarithmic axis for lengths of time."""

    least: int
    most: int

    @classmethod
    def around(cls, values: list[int]) -> LogAxis:
        """Return the axis between powers of ten around the values."""
        known = [value for value in values if value > 0] or [1_000]
        low = 10 ** math.floor(math.log10(min(known)))
        high = 10 ** math.ceil(math.log10(max(known)))
        return cls(low, max(high, 10 * low))

    def place(self, value: int) -> float:
        """Return percent from the left, within the plot."""
        share = (math.log10(max(value, self.least)) - math.log10(self.least)) / self._decades
        return round(100 * min(1.0, share), 3)

    @property
    def _decades(self) -> float:
        return math.log10(self.most) - math.log10(self.least)

    def marks(self) -> list[int]:
        return [self.least * 10**power for power in range(round(self._decades) + 1)]
