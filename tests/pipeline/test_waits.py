"""Which hours of diverting have to be made anew. No Spark."""

from __future__ import annotations

from twinbus.ledger.schema import pa
from twinbus.pipeline.tables import ACTIVITY, DEAD_BUCKET, HOUR_US, OPEN_BUCKET, WAITS, Happening
from twinbus.pipeline.waits import Plan, plan

MINUTES = 60_000_000


def _activity(*happened: tuple[int, Happening]) -> pa.Table:
    rows = [
        {
            "minute_us": hour * HOUR_US + 7 * MINUTES,
            "pairing": "p",
            "entity": "orders",
            "kind": int(kind),
            "count": 1,
            "first_us": 0,
            "last_us": 0,
        }
        for hour, kind in happened
    ]
    return pa.Table.from_pylist(rows, schema=ACTIVITY)


def _waits(*known: tuple[int, int, int]) -> pa.Table:
    rows = [
        {"hour_us": hour * HOUR_US, "entity": "orders", "bucket": bucket, "count": 1, "max_us": longest}
        for hour, bucket, longest in known
    ]
    return pa.Table.from_pylist(rows, schema=WAITS)


def _hours(*hours: int) -> set[int]:
    return {hour * HOUR_US for hour in hours}


def _plan(hours: list[int], ends: list[int]) -> Plan:
    return Plan([hour * HOUR_US for hour in hours], [hour * HOUR_US for hour in ends])


OUTAGE = _activity((3, Happening.DIVERTED), (4, Happening.DIVERTED), (4, Happening.MOVED), (6, Happening.MOVED))


def test_everything_is_made_the_first_time() -> None:
    assert plan(_hours(*range(24)), OUTAGE, _waits()) == _plan([3, 4], [4, 6])


def test_where_nobody_was_diverted_nothing_is_made() -> None:
    assert plan(_hours(1, 2), _activity((1, Happening.FAILED_SEND)), _waits()) == _plan([], [])
    assert plan(_hours(9), OUTAGE, _waits((3, 100, 1), (4, 100, 1))) == _plan([], [])


def test_an_hour_that_has_changed_is_made_anew_also_if_nobody_is_diverted_there_any_more() -> None:
    assert plan(_hours(3), OUTAGE, _waits((3, 100, 1), (4, 100, 1))) == _plan([3], [4, 6])
    assert plan(_hours(2), OUTAGE, _waits((2, 100, 1), (3, 100, 1), (4, 100, 1))) == _plan([2], [4, 6])


def test_moves_that_come_later_concern_the_hours_of_which_something_is_left() -> None:
    assert plan(_hours(6), OUTAGE, _waits((3, 100, 1), (4, OPEN_BUCKET, 0))) == _plan([4], [4, 6])


def test_moves_that_come_later_do_not_concern_hours_whose_messages_have_all_left() -> None:
    assert plan(_hours(6), OUTAGE, _waits((3, 100, 1), (4, DEAD_BUCKET, 1))) == _plan([], [])


def test_moves_of_a_late_file_may_be_earlier_than_those_that_are_known() -> None:
    assert plan(_hours(4), OUTAGE, _waits((3, 100, 3 * HOUR_US), (4, 100, 1))) == _plan([3, 4], [4, 6])


def test_moves_before_a_message_was_diverted_are_not_its_own() -> None:
    activity = _activity((2, Happening.MOVED), (3, Happening.DIVERTED), (5, Happening.EXPIRED))
    assert plan(_hours(2), activity, _waits((3, OPEN_BUCKET, 0))) == _plan([], [])
    assert plan(_hours(5), activity, _waits((3, OPEN_BUCKET, 0))) == _plan([3], [5])
