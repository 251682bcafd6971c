"""Cutting days into slices: nothing is left out, nothing is in two slices, and slices are of about the same size."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from twinbus.ledger.layout import DAY_US, end_of_day_us
from twinbus.pipeline.files import DayFiles, FileFacts
from twinbus.pipeline.slices import cuts, slices_of
from twinbus.pipeline.tasks import bundles

DAY = "2026-11-16"
START = end_of_day_us(DAY) - DAY_US


def file(number: int, rows: int, first: int, last: int) -> FileFacts:
    return FileFacts(f"{number}.parquet", 1, "", rows, START + first, START + last)


@st.composite
def files(draw: st.DrawFn) -> list[FileFacts]:
    times = st.integers(0, DAY_US - 1)
    found = draw(st.lists(st.tuples(st.integers(0, 1_000), times, times), min_size=1, max_size=8))
    return [file(number, rows, min(ends), max(ends)) for number, (rows, *ends) in enumerate(found)]


@given(files(), st.integers(1, 500))
def test_slices_are_the_whole_day_in_order_and_have_all_files_that_touch_them(live: list[FileFacts], most: int) -> None:
    found = list(slices_of(DAY, DayFiles("day", live, live), most))
    times = [one.times for one in found]
    assert all(earlier.last < later.first for earlier, later in pairwise(times))
    for one in live:
        holding = [part for part in found if one.name in part.files]
        assert holding[0].times.first <= one.first_us
        assert one.last_us <= holding[-1].times.last
        # Between them there is no time that nobody has.
        assert all(earlier.times.last + 1 == later.times.first for earlier, later in pairwise(holding))


@given(files(), st.integers(1, 20))
def test_there_are_never_more_parts_than_asked_for(live: list[FileFacts], parts: int) -> None:
    found = cuts(live, parts)
    assert len(found) < parts
    assert found == sorted(set(found))


def test_parts_have_about_as_many_rows_each() -> None:
    # Nine tenths of the rows lie in the first hundredth of the time.
    busy, quiet = file(1, 9_000, 0, 999), file(2, 1_000, 1_000, 99_999)
    ends = [at + 1 - START for at in cuts([busy, quiet], 10)]
    rows = [9 * end if end <= 1_000 else 9_000 + (end - 1_000) / 99 for end in (*ends, 100_000)]
    assert len(rows) == 10
    assert all(900 <= later - earlier <= 1_100 for earlier, later in pairwise([0, *rows]))


def test_rows_of_one_moment_cannot_be_cut() -> None:
    assert len(list(slices_of(DAY, DayFiles("day", [], [file(1, 10_000, 5, 5)]), 100))) <= 2


def test_a_small_day_is_one_slice_and_a_day_without_files_none() -> None:
    [only] = slices_of(DAY, DayFiles("day", [], [file(1, 10, 0, 100)]))
    assert only.times == (START, START + DAY_US - 1)
    assert list(slices_of(DAY, DayFiles("day", [], []))) == []


@given(st.lists(st.integers(0, 100)), st.integers(1, 150))
def test_bundles_have_every_part_once_and_never_too_many_rows(rows: list[int], most: int) -> None:
    starts = bundles(rows, most)
    found = [rows[start:end] for start, end in pairwise([*starts, len(rows)])]
    assert [one for bundle in found for one in bundle] == rows
    assert all(bundle and (len(bundle) == 1 or sum(bundle) <= most) for bundle in found)
    # Nor could two neighbours have gone together.
    assert all(sum(one) + other[0] > most for one, other in pairwise(found))
