"""Tests positions on a plot and the ticks of its axes."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.report.render import plots
from twinbus.report.render.axes import LogAxis, TimeAxis, count_ticks, padded
from twinbus.report.render.formats import DAY, HOUR, MINUTE, SECOND

START = int(datetime(2026, 11, 1, tzinfo=UTC).timestamp()) * SECOND


@pytest.mark.parametrize(
    ("since", "length", "texts"),
    [
        (12 * HOUR + 3 * SECOND, 40 * SECOND, ["12:00:05", "12:00:10", "12:00:15", "12:00:20", "12:00:25", "12:00:30"]),
        (12 * HOUR, 50 * MINUTE, ["12:00", "12:10", "12:20", "12:30", "12:40", "12:50"]),
        (22 * HOUR, 4 * HOUR, ["22:00", "22:30", "23:00", "23:30", "2 Nov", "00:30"]),
        (0, 7 * DAY, ["1 Nov", "2 Nov", "3 Nov", "4 Nov", "5 Nov", "6 Nov"]),
        (0, 365 * DAY, ["1 Nov", "Jan 2027", "1 Mar", "1 May", "1 Jul", "1 Sep", "1 Nov"]),
        (0, 4 * 365 * DAY, ["Jan 2027", "1 Jul", "Jan 2028", "1 Jul", "Jan 2029", "1 Jul", "Jan 2030", "1 Jul"]),
    ],
)
def test_ticks_are_at_round_times_and_midnights_show_the_day(since: int, length: int, texts: list[str]) -> None:
    found = [tick.text for tick in TimeAxis(START + since, START + since + length).ticks()]
    assert found[: len(texts)] == texts


@given(st.integers(SECOND, 4_000 * DAY), st.integers(0, 4_000 * DAY))
def test_number_of_ticks_is_bounded_for_any_length_and_all_are_inside(length: int, since: int) -> None:
    ticks = TimeAxis(since, since + length).ticks()
    assert len(ticks) <= 14
    assert all(0 <= tick.place <= 100 for tick in ticks)
    assert [tick.place for tick in ticks] == sorted(tick.place for tick in ticks)


def test_times_outside_the_axis_are_placed_at_its_edge() -> None:
    axis = TimeAxis(START, START + DAY)
    assert [axis.place(START + offset) for offset in (-DAY, 0, DAY // 2, DAY, 9 * DAY)] == [0, 0, 50, 100, 100]


@given(st.integers(0, 10**12))
def test_count_ticks_are_round_and_reach_the_maximum(most: int) -> None:
    ticks = count_ticks(most)
    assert ticks[0] == 0
    assert most <= ticks[-1] <= max(1, 2.5 * most)
    assert 2 <= len(ticks) <= 4


def test_latency_axis_has_a_mark_for_each_power_of_ten() -> None:
    axis = LogAxis.around([4_200, 9_000_000, 0])
    assert axis.marks() == [1_000, 10_000, 100_000, 1_000_000, 10_000_000]
    assert [axis.place(tick) for tick in axis.marks()] == [0, 25, 50, 75, 100]
    assert axis.place(1) == 0
    assert LogAxis.around([]).marks() == [1_000, 10_000]


@pytest.mark.parametrize("letter", [plots._WIDE_LETTER, plots._NARROW_LETTER])
@pytest.mark.parametrize("length", [37, 61, 68, 76, 80, 3_650, 7_300, 90_000])
def test_texts_of_a_time_axis_do_not_overlap(length: int, letter: float) -> None:
    drawn = str(plots._time_axis(padded(START + HOUR, START + HOUR + length * SECOND).ticks()))
    texts = re.findall(r'<text x="([\d.]+)%"[^>]*text-anchor="(\w+)" class="([\w ]+)"[^>]*>([^<]+)', drawn)
    shown = [text for text in texts if letter == plots._WIDE_LETTER or "spare" not in text[2]]
    assert len(shown) > 1
    end = -100.0
    for place, anchor, _, text in shown:
        width = letter * len(text)
        begin = float(place) - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
        assert begin >= end
        end = begin + width + letter  # room for a space
