"""What happened, told from outages: incidents, the states of each entity, the depth of the backlog. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from .render.formats import MINUTE, iso

if TYPE_CHECKING:
    from twinbus.report.outages import Outage

#: Outages of several entities belong together if the next begins within this time after the others have recovered.
TOGETHER = 5 * MINUTE
STEP_US = 5_000_000  # of the backlog's depth


class State(StrEnum):
    """What an entity was like; healthy in the time between."""

    #: Sends failed, and the failover interval was running.
    SUSPECT = "suspect"
    #: Sends went to the backlog.
    FAILED_OVER = "failed_over"
    #: The primary was back, and messages of the outage were still in the backlog.
    DRAINING = "draining"


class Interval(NamedTuple):
    state: State
    since: int
    #: None: it has not ended.
    until: int | None

    def to_json(self) -> dict[str, Any]:
        return {"state": self.state.value, "since": iso(self.since), "until": iso(self.until)}


@dataclass(frozen=True, slots=True)
class Timeline:
    """The times in which an entity was not healthy, in order."""

    pairing: str
    entity: str
    intervals: tuple[Interval, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "pairing": self.pairing,
            "entity": self.entity,
            "intervals": [one.to_json() for one in self.intervals],
        }


@dataclass(frozen=True, slots=True)
class Incident:
    """Outages of entities that overlap: what people would call one outage."""

    outages: tuple[Outage, ...]

    @property
    def began(self) -> int:
        return min(one.suspected_at for one in self.outages)

    @property
    def recovered(self) -> int | None:
        """When the last entity was back; None if one is still away."""
        return _last(one.recovered_at for one in self.outages)

    @property
    def drained(self) -> int | None:
        """When the last message was brought home; None if some are still in the backlog, or if none was diverted."""
        diverted = [one.drained_at for one in self.outages if one.diverted]
        return _last(diverted) if diverted else None

    @property
    def is_over(self) -> bool:
        return self.recovered is not None and all(one.drained_at is not None for one in self.outages if one.diverted)

    @property
    def entities(self) -> list[str]:
        return sorted({one.entity for one in self.outages})

    @property
    def waits(self) -> list[int]:
        """From the first failure to the failover, of each entity that was failed over."""
        return [one.failed_over_at - one.suspected_at for one in self.outages if one.failed_over_at is not None]

    def total(self, name: str) -> int:
        """The sum of a count, such as `diverted`."""
        return sum(getattr(one, name) for one in self.outages)

    def to_json(self) -> dict[str, Any]:
        counts = ("diverted", "moved", "expired", "poison", "pings", "failed_sends")
        return {
            "began": iso(self.began),
            "recovered": iso(self.recovered),
            "drained": iso(self.drained),
            "is_over": self.is_over,
            "entities": self.entities,
            **{name: self.total(name) for name in counts},
        }


class Depth(NamedTuple):
    """How many messages were in the backlog from this moment on."""

    at: int
    depth: int


@dataclass(frozen=True, slots=True)
class Backlog:
    """The depth of all backlog queues together, as the ledger tells it, in steps of seconds."""

    series: tuple[Depth, ...]

    @property
    def peak(self) -> Depth | None:
        return max(self.series, key=lambda one: (one.depth, -one.at), default=None)

    @property
    def now(self) -> int:
        """At the end of the period."""
        return self.series[-1].depth if self.series else 0

    def within(self, since: int, until: int) -> Backlog:
        """The part of a period; it begins with the depth that was there already."""
        before = [one.depth for one in self.series if one.at <= since]
        inside = tuple(one for one in self.series if since < one.at < until)
        return Backlog((Depth(since, before[-1] if before else 0), *inside))

    def to_json(self) -> dict[str, Any]:
        peak = self.peak
        return {
            "now": self.now,
            "peak": peak.depth if peak else 0,
            "peak_at": iso(peak.at) if peak and peak.depth else None,
            "series": [{"at": iso(one.at), "depth": one.depth} for one in self.series],
        }


def incidents_of(outages: Iterable[Outage]) -> list[Incident]:
    """Outages that overlap, or follow one another within minutes, are one incident. Oldest first."""
    found: list[list[Outage]] = []
    end: float = float("-inf")
    for one in sorted(outages, key=lambda one: (one.suspected_at, one.pairing, one.entity)):
        if not found or one.suspected_at > end + TOGETHER:
            found.append([])
            end = float("-inf")
        found[-1].append(one)
        end = max(end, float("inf") if one.recovered_at is None else one.recovered_at)
    return [Incident(tuple(group)) for group in found]


def timelines_of(outages: Iterable[Outage]) -> list[Timeline]:
    """The states of each entity that had an outage, by pairing and name."""
    by_entity: defaultdict[tuple[str, str], list[Interval]] = defaultdict(list)
    for one in sorted(outages, key=lambda one: one.suspected_at):
        by_entity[one.pairing, one.entity].extend(intervals_of(one))
    return [Timeline(*key, _without_overlap(intervals)) for key, intervals in sorted(by_entity.items())]


def intervals_of(outage: Outage) -> list[Interval]:
    """The states that an entity went through in one outage."""
    over, back = outage.failed_over_at, outage.recovered_at
    found = [Interval(State.SUSPECT, outage.suspected_at, back if over is None else over)]
    if over is not None:
        found.append(Interval(State.FAILED_OVER, over, back))
    if back is not None and outage.diverted:
        found.append(Interval(State.DRAINING, back, outage.drained_at))
    return [one for one in found if one.until is None or one.until > one.since]


def _without_overlap(intervals: Sequence[Interval]) -> tuple[Interval, ...]:
    """A drain may go on while the next outage begins: an entity is then shown in its newer state."""
    found = []
    for number, one in enumerate(intervals):
        following = intervals[number + 1].since if number + 1 < len(intervals) else None
        until = one.until if following is None else min(following, one.until if one.until is not None else following)
        if until is None or until > one.since:
            found.append(one._replace(until=until))
    return tuple(found)


def spread(first_us: int, last_us: int, count: int) -> Iterator[tuple[int, int]]:
    """What happened between two moments of a minute, as if evenly: so many at the beginning of each few seconds.

    At the beginning of the minute all of it, a short outage would not be seen: what came would have gone at once.
    """
    first, last = first_us // STEP_US, last_us // STEP_US
    parts = max(1, min(last - first + 1, count))
    share, left = divmod(count, parts)
    for number in range(parts):
        yield (first + number) * STEP_US, share + (number < left)


def depth_of(changes: Iterable[tuple[Hashable, int, int]]) -> Backlog:
    """The depth from changes: whose messages, when, and how many came (or, negative, went)."""
    by_entity: defaultdict[Hashable, Counter[int]] = defaultdict(Counter)
    for who, moment, change in changes:
        by_entity[who][moment] += change
    steps: Counter[int] = Counter()
    for mine in by_entity.values():
        depth = 0
        for moment, change in sorted(mine.items()):
            # Rows of sends may be missing, those of moves never are: what went may be more than what is known to
            # have come, but less than nothing is nothing.
            before, depth = depth, max(0, depth + change)
            steps[moment] += depth - before
    known = sorted((moment, change) for moment, change in steps.items() if change)
    depths = accumulate(change for _, change in known)
    return Backlog(tuple(Depth(moment, depth) for (moment, _), depth in zip(known, depths, strict=True)))


def states_over_time(intervals: Iterable[Interval], states: Iterable[State]) -> list[Depth]:
    """How many entities were in one of the states, at each moment in which that changed."""
    wanted = set(states)
    changes: Counter[int] = Counter()
    for one in intervals:
        if one.state in wanted:
            changes[one.since] += 1
            if one.until is not None:
                changes[one.until] -= 1
    found, count = [], 0
    for when, change in sorted(changes.items()):
        count += change
        found.append(Depth(when, count))
    return found


def highest(series: Sequence[Depth], since: int, until: int, columns: int) -> list[Depth]:
    """The highest value within each of so many equal parts of a period, and when it was reached."""
    moments = [one.at for one in series]
    length = max(1, until - since)
    found = []
    for column in range(columns):
        begin, end = since + length * column // columns, since + length * (column + 1) // columns
        first, last = bisect_right(moments, begin), bisect_right(moments, end - 1)
        before = Depth(begin, series[first - 1].depth if first else 0)
        found.append(max((before, *series[first:last]), key=lambda one: one.depth))
    return found


def _last(moments: Iterable[int | None]) -> int | None:
    """The latest; None if one of them is not there."""
    found = list(moments)
    known = [one for one in found if one is not None]
    return max(known) if known and len(known) == len(found) else None
