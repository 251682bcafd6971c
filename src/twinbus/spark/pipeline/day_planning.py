"""Decide which files of a ledger count and which days have to be computed again. Pure.

A run compares the files that the ledger has now with those that the last run has seen (`_inputs`). A day whose files
have changed is computed again from all of its files. Published history never shrinks by itself: if files of a day are
gone that were read before, the day keeps its rows, and files that come later for it are listed as late.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from enum import StrEnum

from twinbus.ledger import layout

#: No clock that shows an earlier day can be right: twinbus did not exist then.
FIRST_PLAUSIBLE_DAY = date(2026, 1, 1)
#: How far a clock may be ahead of the one of the machine that runs the pipeline.
MOST_AHEAD = timedelta(days=1)


class Status(StrEnum):
    """What a run has made of a file: the column `status` of `_inputs`."""

    #: Its rows are in the tables.
    READ = "read"
    #: It could not be read; the next run tries again.
    UNREADABLE = "unreadable"
    #: Its rows are in a compacted file.
    REPLACED = "replaced"
    #: It came after other files of its day had been removed: its rows are not in the tables.
    LATE = "late"
    #: Its day is outside the time in which clocks are plausible: its rows are not in the tables.
    CLOCK = "clock"
    #: It is no file of a ledger.
    STRAY = "stray"


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file as `_inputs` knows it. `day` is None for files outside of the ledger's day folders."""

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
    #: Writer, lowest and highest id; None if there are too many writers.
    ids: tuple[tuple[int, int, int], ...] | None = ()

    @property
    def content(self) -> tuple[str, int, int]:
        """Changes when the file does."""
        return self.name, self.bytes, self.modified


@dataclass(frozen=True, slots=True)
class Listing:
    """The files that a ledger has."""

    files: Sequence[InputFile]
    #: The files that each compacted file replaces, by day and its name.
    claims: Mapping[tuple[date, str], Sequence[str]] = field(default_factory=dict)
    #: Days before this one were removed on purpose (`twinbus ledger expire`).
    expired_before: date | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run has to do."""

    #: Files whose rows have to be looked at before the days that changed are known.
    to_survey: Sequence[InputFile]
    #: All other files, as `_inputs` is to have them.
    settled: Sequence[InputFile]


def plan(listing: Listing, before: Iterable[InputFile], *, today: date, allow_shrink: bool = False) -> Plan:
    """Compare the ledger's files with those of the last run.

    Args:
        before: `_inputs` of the last run.
        allow_shrink: Compute days again whose files are gone, from those that are left.
    """
    to_survey: list[InputFile] = []
    settled: list[InputFile] = []
    known_by_day: dict[date | None, list[InputFile]] = {}
    for one in before:
        known_by_day.setdefault(one.day, []).append(one)
    listed_by_day: dict[date | None, list[InputFile]] = {}
    for one in listing.files:
        listed_by_day.setdefault(one.day, []).append(one)
    for day in sorted({*known_by_day, *listed_by_day}, key=lambda day: day or date.min):
        known, listed = known_by_day.get(day, []), listed_by_day.get(day, [])
        if day is None:
            settled += [_with(one, Status.STRAY, "not in a day folder of a ledger") for one in listed]
            continue
        new, old = _plan_day(day, known, listed, listing, today, allow_shrink)
        to_survey += new
        settled += old
    return Plan(to_survey, settled)


def _plan_day(
    day: date,
    known: Sequence[InputFile],
    listed: Sequence[InputFile],
    listing: Listing,
    today: date,
    allow_shrink: bool,
) -> tuple[list[InputFile], list[InputFile]]:
    """The files of a day that have to be surveyed, and the others."""
    strays = [_with(one, Status.STRAY, "not the name of a ledger's file") for one in listed if not _is_ours(one.name)]
    files = {one.name: one for one in listed if _is_ours(one.name)}
    read_before = {one.name: one for one in known if one.status is Status.READ}
    # What was plausible once stays so, or a clock that is set back would make published history shrink.
    if not read_before and not FIRST_PLAUSIBLE_DAY <= day <= today + MOST_AHEAD:
        reason = f"its clock shows {day}; plausible are days from {FIRST_PLAUSIBLE_DAY} to {today + MOST_AHEAD}"
        return [], strays + [_with(one, Status.CLOCK, reason) for one in files.values()]
    claims = {name: listing.claims.get((day, name), ()) for name in files if layout.is_compacted(name)}
    selection = layout.select(files, {name: names for name, names in claims.items() if names})
    replaced = [
        _with(files[name], Status.REPLACED, f"its rows are in {by}") for name, by in selection.replaced.items()
    ] + [_with(files[name], Status.REPLACED, "its rows are in other files") for name in selection.void]
    held_elsewhere = {name for one in selection.live for name in claims.get(one, ())}
    gone = [one for name, one in read_before.items() if name not in files and name not in held_elsewhere]
    is_expired = listing.expired_before is not None and day < listing.expired_before
    if (gone or (is_expired and read_before)) and not allow_shrink:
        reason = (
            "its day was removed by `twinbus ledger expire`"
            if is_expired
            else f"{len(gone)} files of its day were removed; --allow-shrink computes the day from what is left"
        )
        late = [_with(one, Status.LATE, reason) for name, one in files.items() if name not in read_before]
        return [], [*strays, *read_before.values(), *late]
    if is_expired:
        late = [_with(one, Status.LATE, "its day was removed by `twinbus ledger expire`") for one in files.values()]
        return [], strays + late
    same = {name for name in selection.live if name in read_before and read_before[name].content == files[name].content}
    new = [files[name] for name in selection.live if name not in same]
    return new, [*strays, *replaced, *(read_before[name] for name in sorted(same))]


def changed_days(surveyed: Iterable[InputFile], settled: Iterable[InputFile], before: Iterable[InputFile]) -> set[date]:
    """The days whose readable files are not those of the last run."""
    now, then = _read_files([*surveyed, *settled]), _read_files(before)
    return {day for day in {*now, *then} if now.get(day) != then.get(day)}


def whole_days(listing: Listing, read: Iterable[InputFile]) -> set[date]:
    """The days whose files are all there, of files that are read or were when their day was published."""
    listed = {(one.day, one.name) for one in listing.files}
    there: dict[date, bool] = {}
    for one in read:
        if one.day is not None:
            there[one.day] = there.get(one.day, True) and (one.day, one.name) in listed
    return {day for day, is_whole in there.items() if is_whole}


def _read_files(files: Iterable[InputFile]) -> dict[date, set[tuple[str, int, int]]]:
    found: dict[date, set[tuple[str, int, int]]] = {}
    for one in files:
        if one.status is Status.READ and one.day is not None:
            found.setdefault(one.day, set()).add(one.content)
    return found


def _is_ours(name: str) -> bool:
    return layout.FileName.parse(name) is not None


def _with(one: InputFile, status: Status, reason: str) -> InputFile:
    return replace(one, status=status, reason=reason, rows=0, first_time=None, last_time=None, ids=())


# ---- days to judge ----


@dataclass(frozen=True, slots=True)
class Judging:
    """Which days of `verdicts` are to be replaced, and which days of `message_days` that takes."""

    publish: Sequence[date]
    scan: Sequence[date]


def judging(days: Iterable[date], changed: Iterable[date], horizon: int) -> Judging:
    """The days whose messages have to be judged again after some days have changed.

    Args:
        days: All days that `message_days` has.
        changed: Those of them that were computed again, or lost their rows.
        horizon: Days within which operations of a message belong together.
    """
    known = sorted(days)
    if not known:
        return Judging((), ())
    # Verdicts of the newest days change while time goes by. A day that comes late can be the first of messages that
    # were published under any day after it, and the first on which receivers report.
    first = min([known[-1], *changed]) - timedelta(days=horizon - 1)
    publish = [day for day in known if day >= first]
    # Whether a day is the first of a message shows in the horizon before it; whether operations on it are late, in
    # that of the day which would be their first.
    around = {day + timedelta(days=shift) for day in publish for shift in range(2 - 2 * horizon, horizon)}
    return Judging(publish, [day for day in known if day in around])
