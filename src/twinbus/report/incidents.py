"""Derive incidents, the states of each entity and the depth of the backlog from outages and events. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from .render.formats import MINUTE, SECOND, iso

if TYPE_CHECKING:
    from twinbus.report.outages import Outage

#: Outages are one incident if the next begins at most this long after the others have recovered.
TOGETHER = 5 * MINUTE
#: Resolution of the backlog's depth.
STEP_US = 5 * SECOND


class State(StrEnum):
    """State of an entity. Between two of these it is healthy, as far as the ledger has rows of it."""

    #: Sends failed, and the failover interval was running.
    SUSPECT = "suspect"
    #: Sends went to the backlog.
    FAILED_OVER = "failed_over"
    #: Sends went to the backlog because the application failed over by hand.
    FORCED = "forced"
    #: Sends went to the primary again, and diverted messages were still in the backlog.
    DRAINING = "draining"


class Interval(NamedTuple):
    state: State
    since: int
    #: None if it has not ended.
    until: int | None

    def to_json(self) -> dict[str, Any]:
        return {"state": self.state.value, "since": iso(self.since), "until": iso(self.until)}


@dataclass(frozen=True, slots=True)
class Timeline:
    """The states of one entity that were not healthy, in order."""

    pairing: str
    entity: str
    intervals: tuple[Interval, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "pairing": self.pairing,
            "entity": self.entity,
            "intervals": [interval.to_json() for interval in self.intervals],
        }


@dataclass(frozen=True, slots=True)
class Incident:
    """Overlapping outages of several entities, which people call one outage; or overlapping forced failovers."""

    outages: tuple[Outage, ...]

    @property
    def began(self) -> int:
        return min(outage.suspected_at for outage in self.outages)

    @property
    def recovered(self) -> int | None:
        """When the last entity was back; None if one is not back."""
        return _last(outage.recovered_at for outage in self.outages)

    @property
    def drained(self) -> int | None:
        """When the last message was moved; None if some are still in the backlog, or if none was diverted."""
        diverted = [outage.drained_at for outage in self.outages if outage.diverted]
        return _last(diverted) if diverted else None

    @property
    def is_forced(self) -> bool:
        """Whether these are forced failovers."""
        return self.outages[0].is_forced

    @property
    def is_over(self) -> bool:
        return self.recovered is not None and all(
            outage.drained_at is not None for outage in self.outages if outage.diverted
        )

    @property
    def entities(self) -> list[str]:
        return sorted({outage.entity for outage in self.outages})

    @property
    def waits(self) -> list[int]:
        """Time from the first failure to the failover, for each entity that failed over."""
        return [
            outage.failed_over_at - outage.suspected_at for outage in self.outages if outage.failed_over_at is not None
        ]

    def total(self, name: str) -> int:
        """Return the sum of a count, such as `diverted`."""
        return sum(getattr(outage, name) for outage in self.outages)

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
    """Number of messages in the backlog from this time on."""

    at: int
    depth: int


@dataclass(frozen=True, slots=True)
class Backlog:
    """Depth of all backlog queues together, computed from the ledger, at a resolution of seconds."""

    series: tuple[Depth, ...]

    @property
    def peak(self) -> Depth | None:
        return max(self.series, key=lambda point: (point.depth, -point.at), default=None)

    @property
    def now(self) -> int:
        """The depth at the end of the period."""
        return self.series[-1].depth if self.series else 0

    def within(self, since: int, until: int) -> Backlog:
        """Return the part in a period. It begins with the depth at `since`."""
        before = [point.depth for point in self.series if point.at <= since]
        inside = tuple(point for point in self.series if since < point.at < until)
        return Backlog((Depth(since, before[-1] if before else 0), *inside))

    def to_json(self) -> dict[str, Any]:
        peak = self.peak
        return {
            "now": self.now,
            "peak": peak.depth if peak else 0,
            "peak_at": iso(peak.at) if peak and peak.depth else None,
            "series": [{"at": iso(point.at), "depth": point.depth} for point in self.series],
        }


def incidents_of(outages: Iterable[Outage]) -> list[Incident]:
    """Group outages that overlap, or follow one another within minutes, into incidents; oldest first."""
    groups: list[list[Outage]] = []
    end: float = float("-inf")
    for outage in sorted(outages, key=lambda outage: (outage.suspected_at, outage.pairing, outage.entity)):
        if not groups or outage.suspected_at > end + TOGETHER:
            groups.append([])
            end = float("-inf")
        groups[-1].append(outage)
        end = max(end, float("inf") if outage.recovered_at is None else outage.recovered_at)
    return [Incident(tuple(group)) for group in groups]


def timelines_of(outages: Iterable[Outage]) -> list[Timeline]:
    """Return the states of each entity that had an outage or a forced failover, by pairing and name."""
    by_entity: defaultdict[tuple[str, str], list[Interval]] = defaultdict(list)
    for outage in sorted(outages, key=lambda outage: outage.suspected_at):
        by_entity[outage.pairing, outage.entity].extend(intervals_of(outage))
    return [Timeline(*key, _without_overlap(intervals)) for key, intervals in sorted(by_entity.items())]


def intervals_of(outage: Outage) -> list[Interval]:
    """Return the states of an entity during one outage or forced failover."""
    over, back = outage.failed_over_at, outage.recovered_at
    intervals = [Interval(State.SUSPECT, outage.suspected_at, back if over is None else over)]
    if over is not None:
        intervals.append(Interval(State.FORCED if outage.is_forced else State.FAILED_OVER, over, back))
    if back is not None and outage.diverted:
        intervals.append(Interval(State.DRAINING, back, outage.drained_at))
    return [interval for interval in intervals if interval.until is None or interval.until > interval.since]


def _without_overlap(intervals: Sequence[Interval]) -> tuple[Interval, ...]:
    """End each interval where the next begins: a drain may go on during the next outage, and the newer state counts."""
    cut = []
    for index, interval in enumerate(intervals):
        until = interval.until
        if index + 1 < len(intervals):
            following = intervals[index + 1].since
            until = following if until is None else min(following, until)
        if until is None or until > interval.since:
            cut.append(interval._replace(until=until))
    return tuple(cut)


def spread(first_us: int, last_us: int, count: int) -> Iterator[tuple[int, int]]:
    """Spread `count` events evenly over the time from the first to the last, in steps of seconds.

    All at the start of the minute would hide a short outage: messages would come and go at the same time. No part lies
    before the first event, for nothing was in the backlog then; it lies up to a second after it.
    """
    begin = -(-first_us // SECOND) * SECOND
    first, last = begin // STEP_US, last_us // STEP_US
    parts = max(1, min(last - first + 1, count))
    share, left = divmod(count, parts)
    yield begin, share + (left > 0)
    for index in range(1, parts):
        yield (first + index) * STEP_US, share + (index < left)


def depth_of(changes: Iterable[tuple[Hashable, int, int]]) -> Backlog:
    """Compute the depth from changes: entity, time, and messages stored (positive) or gone (negative)."""
    by_entity: defaultdict[Hashable, Counter[int]] = defaultdict(Counter)
    for entity, at, change in changes:
        by_entity[entity][at] += change
    steps: Counter[int] = Counter()
    for changes_of_entity in by_entity.values():
        depth = 0
        for at, change in sorted(changes_of_entity.items()):
            # Rows of diverted sends may be missing, rows of moves never are. So more messages may leave than are known
            # to have come; the depth is never negative.
            before, depth = depth, max(0, depth + change)
            steps[at] += depth - before
    known = sorted((at, change) for at, change in steps.items() if change)
    depths = accumulate(change for _, change in known)
    return Backlog(tuple(Depth(at, depth) for (at, _), depth in zip(known, depths, strict=True)))


def states_over_time(intervals: Iterable[Interval], states: Iterable[State]) -> list[Depth]:
    """Return the number of entities in one of the states, at each time at which it changed."""
    wanted = set(states)
    changes: Counter[int] = Counter()
    for interval in intervals:
        if interval.state in wanted:
            changes[interval.since] += 1
            if interval.until is not None:
                changes[interval.until] -= 1
    counts = accumulate(change for _, change in sorted(changes.items()))
    return [Depth(at, count) for at, count in zip(sorted(changes), counts, strict=True)]


def highest(series: Sequence[Depth], since: int, until: int, columns: int) -> list[Depth]:
    """Return the highest depth within each of `columns` equal parts of a period, and when it was reached."""
    times = [point.at for point in series]
    length = max(1, until - since)
    peaks = []
    for column in range(columns):
        begin, end = since + length * column // columns, since + length * (column + 1) // columns
        first, last = bisect_right(times, begin), bisect_right(times, end - 1)
        before = Depth(begin, series[first - 1].depth if first else 0)
        peaks.append(max((before, *series[first:last]), key=lambda point: point.depth))
    return peaks


def _last(times: Iterable[int | None]) -> int | None:
    """Return the latest time; None if one is None, or if there is none."""
    known: list[int] = []
    for at in times:
        if at is None:
            return None
        known.append(at)
    return max(known, default=None)
