"""Decide which files of a ledger count and which days have to be computed again. Pure.

A run compares the files that the ledger has now with those that the last run has seen (`_inputs`). A day whose files
have changed is computed again from all of its files. Published history never shrinks by itself: if files of a day are
gone that were read before, the day keeps its rows, and files that come later for it are listed as late.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from enum import StrEnum
from itertools import groupby

from twinbus.ledger import layout

#: No clock that shows an earlier day can be right: twinbus did not exist then.
FIRST_PLAUSIBLE_DAY = date(2026, 1, 1)
#: How far a clock may be ahead of the one of the machine that runs the pipeline.
MOST_AHEAD = timedelta(days=1)


class Status(StrEnum):
    """What a run has made of a file: the column `status` of `_inputs`."""

    READ = "read"  # its rows are in the tables
    UNREADABLE = "unreadable"  # the next run tries it again
    REPLACED = "replaced"  # its rows are in a compacted file
    LATE = "late"  # it came after its day was expired, or after other files of its day were removed
    CLOCK = "clock"  # its day is outside the time in which clocks are plausible
    STRAY = "stray"  # it is not a file of a ledger


@dataclass(frozen=True, slots=True)
class IdRange:
    """Ids of one writer that a file holds; `writer` is a hash of the ids' random half, the others are counters."""

    writer: int
    lowest: int
    highest: int


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file as `_inputs` has it. `day` is None for files outside of the ledger's day folders."""

    day: date | None
    name: str
    bytes: int
    #: Times are microseconds since the epoch.
    modified: int
    status: Status = Status.READ
    reason: str | None = None
    rows: int = 0
    first_time: int | None = None
    last_time: int | None = None
    #: None if there are too many writers.
    ids: tuple[IdRange, ...] | None = ()

    @property
    def content(self) -> tuple[str, int, int]:
        """Changes when the file does."""
        return self.name, self.bytes, self.modified

    def left_out(self, status: Status, reason: str) -> InputFile:
        """The file, if its rows are not in the tables."""
        return InputFile(self.day, self.name, self.bytes, self.modified, status, reason)


@dataclass(frozen=True, slots=True)
class Listing:
    """The files that a ledger has."""

    files: Sequence[InputFile]
    #: By day, the files that each compacted file replaces.
    claims: Mapping[date, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    #: Days before this one were removed on purpose (`twinbus ledger expire`).
    expired_before: date | None = None


def plan(
    listing: Listing, before: Iterable[InputFile], *, today: date, allow_shrink: bool = False
) -> tuple[list[InputFile], list[InputFile]]:
    """Compare the ledger's files with those of the last run.

    Args:
        before: `_inputs` of the last run.
        allow_shrink: Compute days again whose files are gone, from those that are left.

    Returns:
        Files whose rows have to be looked at, and all others as `_inputs` is to have them.
    """
    known, listed = _by_day(before), _by_day(listing.files)
    new: list[InputFile] = []
    outside = (file for file in listing.files if file.day is None)
    settled = [file.left_out(Status.STRAY, "not in a day folder of a ledger") for file in outside]
    for day in sorted({*known, *listed}):
        read_before = {file.name: file for file in known[day] if file.status is Status.READ}
        files = {file.name: file for file in listed[day] if layout.FileName.parse(file.name) is not None}
        strays = (file for file in listed[day] if file.name not in files)
        settled += [file.left_out(Status.STRAY, "not the name of a ledger's file") for file in strays]
        # What was plausible once stays so, or a clock that is set back would make published history shrink.
        if not read_before and not FIRST_PLAUSIBLE_DAY <= day <= today + MOST_AHEAD:
            reason = f"its clock shows {day}; plausible are days from {FIRST_PLAUSIBLE_DAY} to {today + MOST_AHEAD}"
            settled += [file.left_out(Status.CLOCK, reason) for file in files.values()]
            continue
        claims = {name: names for name, names in listing.claims.get(day, {}).items() if name in files}
        selection = layout.select(files, claims)
        replaced = {name for live in selection.live for name in claims.get(live, ())}
        gone = read_before.keys() - files.keys() - replaced
        is_expired = listing.expired_before is not None and day < listing.expired_before
        if is_expired or (gone and not allow_shrink):
            reason = (
                "its day was removed by `twinbus ledger expire`"
                if is_expired
                else f"{len(gone)} files of its day were removed; --allow-shrink computes the day from what is left"
            )
            kept = {} if allow_shrink else read_before
            late = (file for name, file in files.items() if name not in kept)
            settled += [*kept.values(), *(file.left_out(Status.LATE, reason) for file in late)]
            continue
        places = {**selection.replaced, **dict.fromkeys(selection.void, "other files")}
        settled += [files[name].left_out(Status.REPLACED, f"its rows are in {by}") for name, by in places.items()]
        for name in selection.live:
            old = read_before.get(name)
            if old is not None and old.content == files[name].content:
                settled.append(old)
            else:
                new.append(files[name])
    return new, settled


def changed_days(now: Iterable[InputFile], before: Iterable[InputFile]) -> set[date]:
    """The days whose readable files are not those of the last run."""
    current, last = ({(day, file.content) for day, file in _read(files)} for files in (now, before))
    return {day for day, _ in current ^ last}


def whole_days(listing: Listing, inputs: Iterable[InputFile]) -> set[date]:
    """The days of which the ledger has all files that are read or were when the day was published."""
    listed = {(file.day, file.name) for file in listing.files}
    read = list(_read(inputs))
    return {day for day, _ in read} - {day for day, file in read if (day, file.name) not in listed}


def _read(files: Iterable[InputFile]) -> Iterator[tuple[date, InputFile]]:
    """The files whose rows are in the tables, with their day."""
    return ((file.day, file) for file in files if file.day is not None and file.status is Status.READ)


def _by_day(files: Iterable[InputFile]) -> defaultdict[date, list[InputFile]]:
    """Files by day, without those outside the day folders."""
    days: defaultdict[date, list[InputFile]] = defaultdict(list)
    for file in files:
        if file.day is not None:
            days[file.day].append(file)
    return days


def files_to_compare(files: Collection[InputFile]) -> set[str]:
    """The files of one day whose ids overlap with those of another. A file without ranges is compared with all."""
    if len(files) > 1 and any(file.ids is None for file in files):
        return {file.name for file in files}
    ranges = sorted((ids.writer, ids.lowest, ids.highest, file.name) for file in files for ids in file.ids or ())
    overlapping: set[str] = set()
    for _, ranges_of_writer in groupby(ranges, key=lambda entry: entry[0]):
        reached, by = -1, ""
        for _, lowest, highest, name in ranges_of_writer:
            if lowest <= reached:
                overlapping |= {name, by}
            if highest > reached:
                reached, by = highest, name
    return overlapping


def days_to_reconcile(
    days: Iterable[date], changed: Iterable[date], horizon: int
) -> tuple[Sequence[date], Sequence[date]]:
    """The days whose verdicts to replace after some days have changed, and the days of `message_days` that it takes.

    Args:
        days: All days that `message_days` has.
        changed: Those of them that were computed again, or lost their rows.
        horizon: Days within which operations of a message belong together.
    """
    known = sorted(days)
    if not known:
        return (), ()
    # Verdicts of the newest days change while time goes by. A day that comes late can be the first of messages that
    # were published under any day after it, and the first on which receivers report.
    first = min([known[-1], *changed]) - timedelta(days=horizon - 1)
    publish = [day for day in known if day >= first]
    # Whether a day is the first of a message shows in the horizon before it; whether operations on it are late, in
    # that of the day which would be their first.
    start = publish[0] - timedelta(days=2 * horizon - 2)
    return publish, [day for day in known if day >= start]
