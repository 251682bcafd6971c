"""Which files of a ledger count, and which days are computed again: decisions without Spark."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.ledger.layout import FileName
from twinbus.spark.pipeline.day_planning import (
    InputFile,
    Listing,
    Status,
    changed_days,
    days_to_reconcile,
    plan,
    whole_days,
)

TODAY = date(2026, 11, 18)
DAY = date(2026, 11, 16)


def a_file(number: int, day: date = DAY, *, compacted: bool = False, size: int = 100) -> InputFile:
    name = FileName(1_000_000 * number, "00000000000000aa", 1, number, is_compacted=compacted)
    return InputFile(day, str(name), size, modified=5)


def planned(
    files: list[InputFile], before: list[InputFile], **options: object
) -> tuple[list[str], dict[str, Status], set[date]]:
    """The files to survey, the status of the others, and the days that change if all can be read."""
    claims = options.pop("claims", {})
    expired = options.pop("expired_before", None)
    new, settled = plan(Listing(files, claims, expired), before, today=TODAY, **options)  # type: ignore[arg-type]
    changed = changed_days([*new, *settled], before)
    return [one.name for one in new], {one.name: one.status for one in settled}, changed


def test_new_files_are_surveyed_and_known_ones_are_not() -> None:
    old, new = a_file(1), a_file(2)
    assert planned([old], []) == ([old.name], {}, {DAY})
    assert planned([old], [old]) == ([], {old.name: Status.READ}, set())
    assert planned([old, new], [old]) == ([new.name], {old.name: Status.READ}, {DAY})


def test_a_file_whose_content_has_changed_is_read_again() -> None:
    old = a_file(1)
    assert planned([replace(old, bytes=101)], [old]) == ([old.name], {}, {DAY})


def test_a_compacted_file_replaces_others_before_and_after_they_are_gone() -> None:
    first, second, both = a_file(1), a_file(2), a_file(3, compacted=True)
    claims = {DAY: {both.name: [first.name, second.name]}}
    names, statuses, changed = planned([first, second, both], [first, second], claims=claims)
    assert names == [both.name]
    assert statuses == {first.name: Status.REPLACED, second.name: Status.REPLACED}
    assert changed == {DAY}
    assert planned([both], [first, second], claims=claims)[0] == [both.name]
    assert planned([both], [both], claims=claims) == ([], {both.name: Status.READ}, set())


def test_a_claim_counts_only_with_its_file() -> None:
    first, both = a_file(1), a_file(3, compacted=True)
    claims = {DAY: {both.name: [first.name]}}
    assert planned([first], [first], claims=claims) == ([], {first.name: Status.READ}, set())


def test_a_day_that_lost_files_keeps_its_rows_and_takes_no_new_ones() -> None:
    first, second, late = a_file(1), a_file(2), a_file(3)
    names, statuses, changed = planned([second, late], [first, second])
    assert (names, changed) == ([], set())
    assert statuses == {first.name: Status.READ, second.name: Status.READ, late.name: Status.LATE}
    names, statuses, changed = planned([second, late], [first, second], allow_shrink=True)
    assert (names, statuses, changed) == ([late.name], {second.name: Status.READ}, {DAY})


def test_a_day_without_any_files_keeps_its_rows() -> None:
    old = a_file(1)
    assert planned([], [old]) == ([], {old.name: Status.READ}, set())


def test_files_of_an_expired_day_are_late() -> None:
    old, late = a_file(1), a_file(2)
    expired = DAY + timedelta(days=1)
    names, statuses, changed = planned([late], [old], expired_before=expired)
    assert (names, statuses, changed) == ([], {old.name: Status.READ, late.name: Status.LATE}, set())
    assert planned([late], [], expired_before=expired) == ([], {late.name: Status.LATE}, set())


@pytest.mark.parametrize("day", [date(1970, 1, 1), date(2025, 12, 31), TODAY + timedelta(days=2)])
def test_days_of_impossible_clocks_are_left_out(day: date) -> None:
    one = a_file(1, day)
    assert planned([one], []) == ([], {one.name: Status.CLOCK}, set())


def test_a_clock_may_be_a_day_ahead() -> None:
    one = a_file(1, TODAY + timedelta(days=1))
    assert planned([one], [])[0] == [one.name]


def test_a_clock_that_is_set_back_takes_nothing_away() -> None:
    one = a_file(1, TODAY + timedelta(days=2))
    assert planned([one], [one]) == ([], {one.name: Status.READ}, set())


def test_days_are_whole_while_all_their_files_are_there() -> None:
    first, second, other = a_file(1), a_file(2), a_file(3, TODAY)
    assert whole_days(Listing([first, second, other]), [first, second, other]) == {DAY, TODAY}
    assert whole_days(Listing([second, other]), [first, second, other]) == {TODAY}


def test_what_is_no_file_of_a_ledger_is_listed() -> None:
    inside, outside = InputFile(DAY, "notes.txt", 1, 1), InputFile(None, "ledger/notes.txt", 1, 1)
    assert planned([inside, outside], []) == (
        [],
        {"notes.txt": Status.STRAY, "ledger/notes.txt": Status.STRAY},
        set(),
    )


def test_an_unreadable_file_is_tried_again_and_its_day_changes_when_it_is_read() -> None:
    old, damaged = a_file(1), a_file(2)
    before = [old, replace(damaged, status=Status.UNREADABLE, reason="no Parquet file")]
    names, statuses, changed = planned([old, damaged], before)
    assert (names, statuses, changed) == ([damaged.name], {old.name: Status.READ}, {DAY})
    new, settled = plan(Listing([old, damaged]), before, today=TODAY)
    still = [replace(one, status=Status.UNREADABLE) for one in new]
    assert changed_days([*still, *settled], before) == set()


# ---- days to reconcile ----

DAYS = st.sets(st.integers(0, 120), min_size=1, max_size=40)
HORIZONS = st.integers(1, 20)


def day_of(number: int) -> date:
    return date(2026, 11, 1) + timedelta(days=number)


@given(known=DAYS, changed=st.sets(st.integers(0, 120), max_size=5), horizon=HORIZONS)
def test_every_day_whose_messages_may_have_changed_is_reconciled_with_all_it_takes(
    known: set[int], changed: set[int], horizon: int
) -> None:
    found = days_to_reconcile(map(day_of, known), map(day_of, changed), horizon)
    publish, scan = ({(day - day_of(0)).days for day in some} for some in found)
    newest = max(known)
    for day in known:
        # Its messages have operations on the days of its horizon, other verdicts while time goes by, and may have begun
        # on a day that came late.
        is_concerned = day > newest - horizon or any(one < day + horizon for one in changed)
        assert (day in publish) == is_concerned
    for day in publish:
        # A first day is known by the horizon before it, late operations by that of the day they would belong to.
        needed = {other for other in known if day - 2 * horizon + 2 <= other < day + horizon}
        assert needed <= scan
    assert scan <= known


def test_without_days_there_is_nothing_to_reconcile() -> None:
    assert days_to_reconcile([], [], 14) == ((), ())
