"""Where rows may be in two files: pure arithmetic on the ranges that Parquet footers tell.

A row that is in two files has one `op_id` and one `ts`, so both files' ranges of both hold it. Files of one writer have
ranges of ids that lie apart, for ids are counted (`twinbus.ledger.recorder`), and writers differ in the first half of
their ids. So in a ledger that nobody has meddled with next to nothing overlaps, and no row has to be compared with
others. A compacted file has the ids of many writers, but only a part of the day.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

#: More files than this that hold the same id by their ranges are not compared one by one.
MOST_COMPARED = 500


class Interval(NamedTuple):
    """Times from `first` to `last`, both included, in microseconds."""

    first: int
    last: int


class Extent(NamedTuple):
    """What the rows of a file range over; ids as hexadecimal digits; all ends included."""

    ts: Interval
    first_id: str
    last_id: str


@dataclass(frozen=True, slots=True)
class Overlaps:
    """Which of some files, by number, may have rows in common, and at what times."""

    files: frozenset[int]
    times: tuple[Interval, ...]


def find_overlaps(extents: Sequence[Extent]) -> Overlaps:
    """What may be there twice, of files with these extents."""
    files: set[int] = set()
    times: list[Interval] = []
    order = sorted(range(len(extents)), key=lambda at: extents[at].first_id)
    active: list[tuple[str, int]] = []  # a heap of those whose ids have not ended yet, by their last id
    for at in order:
        extent = extents[at]
        while active and active[0][0] < extent.first_id:
            heapq.heappop(active)
        if len(active) < MOST_COMPARED:
            found = [(there, common_times(extent, extents[there])) for _, there in active]
            overlapping = [(there, common) for there, common in found if common is not None]
            files |= {at, *(there for there, _ in overlapping)} if overlapping else set()
            times += [common for _, common in overlapping]
        else:
            # Whatever it has in common with anybody lies within its own time.
            files |= {at, *(there for _, there in active)} if len(active) == MOST_COMPARED else {at}
            times.append(extent.ts)
        heapq.heappush(active, (extent.last_id, at))
    return Overlaps(frozenset(files), tuple(merged(times)))


def common_times(one: Extent, other: Extent) -> Interval | None:
    """The times that two files have in common; None if there are none."""
    common = Interval(max(one.ts.first, other.ts.first), min(one.ts.last, other.ts.last))
    return common if common.first <= common.last else None


def merged(intervals: Iterable[Interval], gap: int = 1) -> list[Interval]:
    """The same times in as few intervals as possible, in order; those less than `gap` apart become one."""
    found: list[Interval] = []
    for one in sorted(intervals):
        if found and one.first <= found[-1].last + gap:
            found[-1] = Interval(found[-1].first, max(found[-1].last, one.last))
        else:
            found.append(one)
    return found


def at_most(intervals: Iterable[Interval], number: int) -> list[Interval]:
    """At most so many intervals that cover these: the smallest gaps are covered, too."""
    found = merged(intervals)
    if len(found) <= number:
        return found
    gaps = sorted(later.first - earlier.last for earlier, later in pairwise(found))
    return merged(found, gaps[len(found) - number - 1])
