"""Cuts days of a ledger into slices of time that fit the memory of a task: pure arithmetic on what footers tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from twinbus.ledger.layout import DAY_US, end_of_day_us

from .files import DayFiles, FileFacts
from .overlaps import Interval

#: A slice has about so many rows, unless more of them share a microsecond. A task takes some 300 bytes for each.
MOST_ROWS = 2_000_000


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a day, and the files that have rows of it."""

    #: As 2026-11-16.
    day: str
    folder: str
    files: tuple[str, ...]
    times: Interval
    #: About as many.
    rows: int


def slices_of(day: str, files: DayFiles, most: int = MOST_ROWS) -> Iterator[Slice]:
    """The slices of a day, in order; together they have all its times."""
    last = end_of_day_us(day) - 1
    first = last - DAY_US + 1
    ends = [*cuts(files.live, -(-files.rows // most)), last]
    for end in ends:
        names = tuple(one.name for one in files.live if one.first_us <= end and first <= one.last_us)
        if names:
            yield Slice(day, files.folder, names, Interval(first, end), files.rows // len(ends))
        first = end + 1


def cuts(files: Sequence[FileFacts], parts: int) -> list[int]:
    """The last times of all parts but the last one, for parts with about as many rows each.

    Nothing is known of a file but its first and last time, so its rows are taken to lie evenly between them.
    """
    if parts < 2:
        return []
    # Between two neighbours of these times the number of rows grows evenly.
    times = sorted({one for file in files for one in (file.first_us, file.last_us + 1)})
    found: list[int] = []
    total, seen = sum(one.rows for one in files), 0.0
    for start, end in pairwise(times):
        rate = sum(
            one.rows / (one.last_us + 1 - one.first_us)
            for one in files
            if one.first_us <= start and end <= one.last_us + 1
        )
        rows = rate * (end - start)
        while len(found) < parts - 1 and seen + rows >= total * (len(found) + 1) / parts > seen:
            at = start + int((total * (len(found) + 1) / parts - seen) / rate)
            found.append(min(max(at, start), end - 1))
        seen += rows
    return sorted(set(found))
