"""Which hours have to be made anew: pure arithmetic on what is known of files, before and now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .files import MOST_INTERVALS, DayFiles, FileFacts
from .overlaps import Interval, at_most
from .tables import HOUR_US

#: A piece of work has at most so many files and about so many rows, so that there is progress to be told, and Spark
#: need not plan with too many files at once.
MOST_FILES, MOST_ROWS = 4_000, 20_000_000


def changed_hours(before: DayFiles | None, now: DayFiles) -> list[Interval]:
    """The hours of a day whose rows are not those of the last run; `before` is None if there was none."""
    if before is None:
        return whole_hours(Interval(one.first_us, one.last_us) for one in now.live)
    old = {one.identity: one for one in before.live}
    new = {one.identity: one for one in now.live}
    gone = {one.name: one for identity, one in old.items() if identity not in new}
    come = [one for identity, one in new.items() if identity not in old]
    for one in list(come):
        if (held := _same_rows(one, gone, before)) is not None:
            come.remove(one)
            for name in held:
                del gone[name]
    return whole_hours(Interval(one.first_us, one.last_us) for one in [*gone.values(), *come])


def _same_rows(compacted: FileFacts, gone: Mapping[str, FileFacts], before: DayFiles) -> list[str] | None:
    """The files whose rows, all of them and no others, a compacted file holds, if they counted before; else None."""
    known = {one.name for one in before.listed}
    if not compacted.replaces or not known.issuperset(compacted.replaces):
        return None
    held = [name for name in compacted.replaces if name in gone]
    # It drops rows that were there twice: then it has fewer, and is read.
    return held if sum(gone[name].rows for name in held) == compacted.rows else None


def whole_hours(times: Iterable[Interval]) -> list[Interval]:
    """The hours that these times touch, as few intervals as a filter should have."""
    hours = (Interval(one.first - one.first % HOUR_US, one.last - one.last % HOUR_US + HOUR_US - 1) for one in times)
    return at_most(hours, MOST_INTERVALS)


def pieces(days: Mapping[str, DayFiles]) -> Iterable[Sequence[str]]:
    """The days in pieces of work of a bounded size, at least one day each."""
    piece: list[str] = []
    files = rows = 0
    for name, day in days.items():
        if piece and (files + len(day.live) > MOST_FILES or rows + day.rows > MOST_ROWS):
            yield piece
            piece, files, rows = [], 0, 0
        piece.append(name)
        files += len(day.live)
        rows += day.rows
    if piece:
        yield piece
