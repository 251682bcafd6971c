"""Tests when the writer stores its next file."""

from __future__ import annotations

from typing import Any

import pytest

from twinbus.ledger.file_rotation import FIRST_RETRY, LAST_RETRY, URGENT_RETRY, Pace, Rotation

NOW = 1000.0


def new_pace(buffer_rows: int = 1_000_000, **changes: Any) -> Pace:
    return Pace(Rotation(**{"rows": 100, "bytes": 1 << 30, "seconds": 60.0, **changes}), buffer_rows, NOW)


def test_file_is_due_at_row_limit() -> None:
    pace = new_pace()
    assert pace.due_at(99, urgent=False) == NOW + 60
    assert pace.due_at(100, urgent=False) <= NOW


def test_file_is_due_at_byte_limit() -> None:
    pace = new_pace(bytes=10_000)
    pace.measured(10, 5_000)
    assert pace.rows_due == 20
    assert pace.due_at(20, urgent=False) <= NOW


def test_file_is_due_before_buffer_is_full() -> None:
    assert new_pace(buffer_rows=50).rows_due == 25
    assert new_pace(buffer_rows=1).rows_due == 1


def test_file_is_due_after_rotation_seconds() -> None:
    pace = new_pace()
    pace.wrote(NOW + 60, urgent=False)
    assert pace.due_at(1, urgent=False) == NOW + 120


def test_flush_delay_grows_during_a_series_of_flushes() -> None:
    pace = new_pace(flush_seconds=0.25)
    assert pace.due_at(1, urgent=True) <= NOW
    delays = []
    for second in range(10):
        pace.wrote(NOW + second, urgent=True)
        delays.append(pace.due_at(1, urgent=True) - NOW - second)
    assert delays == pytest.approx([0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.25, 0.25, 0.25, 0.25])
    pace.wrote(NOW + 20, urgent=True)
    assert pace.due_at(1, urgent=True) == NOW + 20
    assert pace.due_at(1, urgent=False) == NOW + 80


def test_regular_file_does_not_delay_next_flush() -> None:
    pace = new_pace(flush_seconds=0.25)
    pace.wrote(NOW, urgent=False)
    assert pace.due_at(1, urgent=True) <= NOW


def test_retry_delay_doubles_up_to_limit() -> None:
    pace = new_pace()
    seconds = []
    for _ in range(10):
        pace.failed(NOW)
        seconds.append(pace.due_at(10_000, urgent=False) - NOW)
    assert seconds[:3] == [FIRST_RETRY, 2 * FIRST_RETRY, 4 * FIRST_RETRY]
    assert seconds[-1] == LAST_RETRY
    assert pace.is_failing
    assert pace.due_at(1, urgent=True) == NOW + URGENT_RETRY
    pace.wrote(NOW, urgent=False)
    assert not pace.is_failing
    pace.failed(NOW)
    assert pace.due_at(1, urgent=False) == NOW + FIRST_RETRY


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": 0}, "rows must be at least 1, not 0"),
        ({"bytes": 0}, "bytes must be at least 1, not 0"),
        ({"seconds": 0.0}, "seconds must be more than 0 and finite, not 0.0"),
        ({"seconds": float("inf")}, "seconds must be more than 0 and finite, not inf"),
        ({"seconds": float("nan")}, "seconds must be more than 0 and finite, not nan"),
        ({"flush_seconds": -1.0}, r"flush_seconds must be from 0 to seconds \(60.0\), not -1.0"),
        ({"flush_seconds": 61.0}, r"flush_seconds must be from 0 to seconds \(60.0\), not 61.0"),
    ],
)
def test_rotation_rejects_values_out_of_bounds(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rotation(**changes)
