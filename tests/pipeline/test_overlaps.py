"""Where rows may be in two files."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from twinbus.pipeline import overlaps
from twinbus.pipeline.overlaps import Extent, Interval, at_most, find_overlaps, merged

points = st.tuples(st.integers(0, 12), st.integers(0, 12))
intervals = st.builds(lambda a, b: Interval(min(a, b), max(a, b)), st.integers(0, 60), st.integers(0, 60))


def _extent(rows: list[tuple[int, int]]) -> Extent:
    times, ids = [row[0] for row in rows], [f"{row[1]:032x}" for row in rows]
    return Extent(Interval(min(times), max(times)), min(ids), max(ids))


@given(files=st.lists(st.lists(points, min_size=1, max_size=5), max_size=8), most=st.integers(1, 500))
def test_a_row_that_is_in_two_files_is_in_files_and_times_that_overlap(
    files: list[list[tuple[int, int]]], most: int
) -> None:
    before, overlaps.MOST_COMPARED = overlaps.MOST_COMPARED, most
    try:
        found = find_overlaps([_extent(rows) for rows in files])
    finally:
        overlaps.MOST_COMPARED = before
    for at, rows in enumerate(files):
        for there, others in enumerate(files):
            for time, _ in set(rows) & set(others) if at != there else ():
                assert {at, there} <= found.files
                assert any(one.first <= time <= one.last for one in found.times)


def test_files_of_two_writers_or_of_one_have_nothing_in_common() -> None:
    day = Interval(0, 86_400)
    one, other = "5f0c9a1b2d3e4f60", "0123456789abcdef"
    files = [
        Extent(day, f"{one}1000000000000000", f"{one}1000000000000999"),
        Extent(day, f"{one}1000000000001000", f"{one}1000000000001999"),
        Extent(day, f"{other}1000000000000000", f"{other}1000000000000999"),
    ]
    assert find_overlaps(files).files == frozenset()


def test_compacted_files_have_only_the_times_in_common_at_which_one_follows_the_other() -> None:
    files = [Extent(Interval(0, 1_000), "0" * 32, "f" * 32), Extent(Interval(990, 2_000), "0" * 32, "f" * 32)]
    assert find_overlaps(files).times == (Interval(990, 1_000),)


@given(some=st.lists(intervals, max_size=12))
def test_merged_intervals_are_the_same_times_apart_and_in_order(some: list[Interval]) -> None:
    found = merged(some)
    assert {time for one in found for time in range(one.first, one.last + 1)} == {
        time for one in some for time in range(one.first, one.last + 1)
    }
    assert all(earlier.last + 1 < later.first for earlier, later in itertools.pairwise(found))


@given(some=st.lists(intervals, max_size=12), number=st.integers(1, 5))
def test_fewer_intervals_cover_the_same_times_and_more(some: list[Interval], number: int) -> None:
    found = at_most(some, number)
    assert len(found) <= number
    assert all(any(one.first <= part.first and part.last <= one.last for one in found) for part in some)
