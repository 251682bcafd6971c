"""Durations: ISO 8601 text and ticks of 100 ns."""

from __future__ import annotations

import math
from datetime import timedelta

import isodate
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.servicebus.durations import (
    MAX_TICKS,
    TICKS_PER_DAY,
    TICKS_PER_SECOND,
    InvalidDurationError,
    format_duration,
    parse_duration,
    seconds_from_ticks,
    ticks_from_seconds,
)


@given(st.integers(0, MAX_TICKS))
def test_duration_round_trips(ticks: int) -> None:
    assert parse_duration(format_duration(ticks)) == ticks


@given(st.timedeltas(timedelta(0), timedelta(days=10_000_000)))
def test_sdk_durations_are_parsed_to_the_microsecond(duration: timedelta) -> None:
    assert parse_duration(isodate.duration_isoformat(duration)) == duration // timedelta(microseconds=1) * 10


@given(st.timedeltas(timedelta(0), timedelta(days=10_000_000)))
def test_sdk_parses_formatted_durations(duration: timedelta) -> None:
    ticks = duration // timedelta(microseconds=1) * 10
    assert isodate.parse_duration(format_duration(ticks)) == duration


@pytest.mark.parametrize(
    ("text", "ticks"),
    [
        ("PT0S", 0),
        ("PT1M", 60 * TICKS_PER_SECOND),
        ("PT1M30.5S", 905_000_000),
        ("P14D", 14 * TICKS_PER_DAY),
        ("PT0.0000001S", 1),
        ("P10675199DT2H48M5.4775807S", MAX_TICKS),
    ],
)
def test_durations_are_written_as_the_service_writes_them(text: str, ticks: int) -> None:
    assert format_duration(ticks) == text
    assert parse_duration(text) == ticks


@pytest.mark.parametrize(
    ("text", "ticks"),
    [
        ("PT60M0S", 3600 * TICKS_PER_SECOND),
        ("PT256204778H48M5.4775807S", MAX_TICKS),
        ("P1Y", 365 * TICKS_PER_DAY),
        ("P2M", 60 * TICKS_PER_DAY),
        ("PT0.00000019S", 1),
    ],
)
def test_other_spellings_are_understood(text: str, ticks: int) -> None:
    assert parse_duration(text) == ticks


@pytest.mark.parametrize(
    "text",
    ["", "P", "PT", "P1DT", "PT5", "5", "P1W", "-PT1S", "PT1S ", "pt1s", "PT1,5S", "P" + "0" * 80 + "D"],
)
def test_invalid_text_is_not_a_duration(text: str) -> None:
    with pytest.raises(InvalidDurationError, match="is not an ISO 8601 duration"):
        parse_duration(text)


def test_rounded_maximum_timedelta_is_too_long() -> None:
    with pytest.raises(InvalidDurationError, match="longer than the maximum"):
        parse_duration("P10675199DT2H48M5.477581S")


@given(st.text(max_size=80))
def test_any_text_is_either_a_duration_or_refused(text: str) -> None:
    try:
        ticks = parse_duration(text)
    except InvalidDurationError:
        return
    assert 0 <= ticks <= MAX_TICKS


@pytest.mark.parametrize("ticks", [-1, MAX_TICKS + 1])
def test_out_of_bounds_ticks_are_not_formatted(ticks: int) -> None:
    with pytest.raises(ValueError, match="a duration must have"):
        format_duration(ticks)


def test_seconds_convert_to_ticks_and_back() -> None:
    assert ticks_from_seconds(1.5) == 15_000_000
    assert seconds_from_ticks(15_000_000) == 1.5
    assert ticks_from_seconds(math.inf) == MAX_TICKS


@pytest.mark.parametrize("seconds", [-0.1, math.nan])
def test_a_negative_number_of_seconds_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        ticks_from_seconds(seconds)
