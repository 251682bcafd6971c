"""Tests how numbers, times and names are formatted."""

from __future__ import annotations

from decimal import Decimal

import pytest

from twinbus.report.render import formats

SPACE = "\N{NO-BREAK SPACE}"
NOON = 1_793_707_509_000_000  # 2026-11-03 12:05:09 UTC


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0 s"),
        (1, "1 µs"),
        (999, "999 µs"),
        (999.6, "1 ms"),
        (4_200, "4.2 ms"),
        (9_960, "10 ms"),
        (999_600, "1 s"),
        (41_260_000, "41 s"),
        (59_700_000, "1 min"),
        (125_000_000, "2 min 5 s"),
        (59 * 60_000_000 + 31_000_000, "1 h"),
        (7_261_000_000, "2 h 1 min"),
        (47 * 3_600_000_000, "47 h"),
        (76 * 3_600_000_000, "3 days 4 h"),
        (-125_000_000, "-2 min 5 s"),
    ],
)
def test_duration_has_at_most_two_units_and_no_line_break(us: float, text: str) -> None:
    assert formats.duration(us) == text.replace(" ", SPACE)


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        ("0", "0.00"),
        ("12.345", "12.35"),
        ("12345678.9", "12,345,678.90"),
        ("0.0041", "0.0041"),
        ("0.00001234", "0.000012"),
        ("0.0000000000012", "< 0.000000001"),
    ],
)
def test_less_than_a_cent_is_not_shown_as_zero(amount: str, text: str) -> None:
    assert formats.money(Decimal(amount)) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 0, "–"),  # noqa: RUF001 - what is shown
        (0, 5, "0%"),
        (5, 5, "100%"),
        (999_999_999, 1_000_000_000, "99.99%"),
        (1, 1_000_000_000, "< 0.01%"),
        (1, 3, "33.3%"),
    ],
)
def test_only_all_is_100_percent_and_only_none_is_0_percent(part: int, whole: int, text: str) -> None:
    assert formats.percent(part, whole) == text


def test_times_are_utc_and_a_common_day_is_written_once() -> None:
    assert formats.moment(NOON) == "3 Nov 2026 12:05"
    assert formats.moment(NOON, seconds=True) == "3 Nov 2026 12:05:09"
    assert formats.iso(NOON) == "2026-11-03T12:05:09.000000Z"
    assert formats.iso(None) is None
    assert formats.span(NOON, NOON + formats.HOUR) == "3 Nov 2026 12:05–13:05"  # noqa: RUF001 - what is shown
    assert formats.span(NOON, NOON + formats.DAY) == "3 Nov 2026 12:05 – 4 Nov 2026 12:05"  # noqa: RUF001


def test_large_counts_are_short_where_room_is_scarce() -> None:
    counts = (9_999_999, 12_345_678, 4_200_000_000)
    assert [formats.short_number(count) for count in counts] == ["9,999,999", "12.3 million", "4.2 billion"]
    assert [formats.plural(count, "entity", "entities") for count in (1, 2_000)] == ["1 entity", "2,000 entities"]


def test_control_and_direction_characters_are_replaced() -> None:
    assert formats.printable("a\x1b[31mb\u202ec\nd") == "a�[31mb�c�d"


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("/srv/ledger?x", "/srv/ledger?x"),
        ("file:///srv/ledger-results", "file:///srv/ledger-results"),
        ("abfs://container@account.dfs.core.windows.net/l", "abfs://container@account.dfs.core.windows.net/l"),
        ("s3://key:secret@bucket/l", "s3://key@bucket/l"),
        ("https://account.example/l?sv=1&sig=secret#secret", "https://account.example/l"),
    ],
)
def test_url_is_shown_without_its_secrets(url: str, text: str) -> None:
    assert formats.place(url) == text
