"""Tests how outages are found in events by minute."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pipeline.report.sample_tables import moment
from tests.tables.result_files import table_of

from twinbus.ledger.schema import pa
from twinbus.report.outages import HOUR_US, MINUTE_US, Outage, outages_and_forced_failovers, outages_of
from twinbus.tables.activity import ActivityKind
from twinbus.tables.histogram import bucket_of
from twinbus.tables.table_schemas import ACTIVITY, BACKLOG_TIME

NOON = 1_800_000_000 * 1_000_000 // HOUR_US * HOUR_US
SECOND = 1_000_000
H = ActivityKind


def _activity(
    *events: tuple[float, ActivityKind] | tuple[float, ActivityKind, int], entity: str = "orders"
) -> pa.Table:
    """Return events at minutes after noon; each counts once unless a number is given."""
    rows: dict[tuple[int, str], dict[str, object]] = {}
    for minute, kind, *number in events:
        at = NOON + round(minute * MINUTE_US)
        count = number[0] if number else 1
        key = (at // MINUTE_US, kind)
        row = rows.setdefault(
            key,
            {
                "pairing": "p",
                "entity": entity,
                "kind": kind.value,
                "count": 0,
                "first_us": at,
                "last_us": at,
            },
        )
        row["count"] += count  # type: ignore[operator]
        row["first_us"], row["last_us"] = min(at, row["first_us"]), max(at, row["last_us"])  # type: ignore[type-var]
    times = {key: (moment(row.pop("first_us")), moment(row.pop("last_us"))) for key, row in rows.items()}  # type: ignore[arg-type]
    return table_of(
        ACTIVITY, [{**row, "first_time": times[key][0], "last_time": times[key][1]} for key, row in rows.items()]
    )


def _only(found: Iterable[Outage]) -> Outage:
    (one,) = found
    return one


def _at(minute: float) -> int:
    return NOON + round(minute * MINUTE_US)


def test_an_outage_is_suspected_failed_over_recovered_and_drained() -> None:
    found = _only(
        outages_of(
            _activity(
                (0.1, H.FAILED_SEND),
                (0.2, H.DIVERTED),
                (0.7, H.FAILED_SEND),
                (0.8, H.DIVERTED),
                (1.1, H.FAILED_PING),
                (1.5, H.DIVERTED, 3),
                (2.1, H.FAILED_PING),
                (3.1, H.PING),
                (3.5, H.MOVED, 5),
                (3.6, H.COMPLETED, 5),
            )
        )
    )
    assert (found.suspected_at, found.failed_over_at) == (_at(0.1), _at(1.1))
    assert (found.recovered_at, found.drained_at) == (_at(3.1), _at(3.6))
    assert (found.diverted, found.moved, found.pings, found.failed_sends) == (5, 5, 3, 2)


def test_failure_without_diversion_or_ping_is_not_an_outage() -> None:
    assert outages_of(_activity((0, H.FAILED_SEND), (30, H.FAILED_SEND, 4))) == []


def test_failure_long_before_the_first_diversion_does_not_begin_the_outage() -> None:
    found = outages_of(_activity((0, H.FAILED_SEND), (9.5, H.FAILED_SEND), (9.6, H.DIVERTED), (10, H.PING)))
    assert _only(found).suspected_at == _at(9.5)


def test_without_diversion_consecutive_failures_begin_the_outage() -> None:
    events = [(0.0, H.FAILED_SEND), (20.0, H.FAILED_SEND), (22.0, H.FAILED_SEND), (23.0, H.FAILED_PING), (24.0, H.PING)]
    found = _only(outages_of(_activity(*events)))
    assert (found.suspected_at, found.failed_over_at) == (_at(20), _at(23))


def test_outage_ends_when_the_last_client_recovers() -> None:
    found = outages_of(_activity((0, H.FAILED_PING), (1, H.PING), (1.5, H.DIVERTED), (1.9, H.PING)))
    assert _only(found).recovered_at == _at(1.9)


def test_signs_after_calm_are_another_outage() -> None:
    found = outages_of(
        _activity((0, H.FAILED_PING), (1, H.PING), (2, H.MOVED), (20, H.FAILED_PING), (21, H.PING), (22, H.MOVED))
    )
    assert [outage.suspected_at for outage in found] == [_at(0), _at(20)]
    assert [outage.pings for outage in found] == [2, 2]


def test_failed_pings_half_an_hour_apart_are_one_outage() -> None:
    found = outages_of(_activity((0, H.FAILED_PING), (30, H.FAILED_PING), (60, H.FAILED_PING), (90, H.PING)))
    assert _only(found).recovered_at == _at(90)


def test_outage_without_a_successful_ping_is_not_over() -> None:
    assert _only(outages_of(_activity((0, H.FAILED_PING), (1, H.DIVERTED)))).recovered_at is None


def test_drain_is_open_while_messages_are_left() -> None:
    found = _only(outages_of(_activity((0, H.DIVERTED, 3), (1, H.PING), (2, H.COMPLETED, 2))))
    assert (found.moved, found.drained_at) == (2, None)


def test_dead_letters_leave_the_backlog_without_being_moved() -> None:
    events = [(0.0, H.DIVERTED, 4), (1.0, H.PING), (2.0, H.COMPLETED, 1), (2.5, H.EXPIRED, 2), (3.0, H.POISON, 1)]
    found = _only(outages_of(_activity(*events)))  # type: ignore[arg-type]
    assert (found.moved, found.expired, found.poison, found.drained_at) == (1, 2, 1, _at(3))


def test_lost_rows_of_completes_do_not_keep_a_drain_open() -> None:
    found = _only(outages_of(_activity((0, H.DIVERTED, 3), (1, H.PING), (2, H.MOVED, 4), (2.1, H.COMPLETED, 1))))
    assert (found.moved, found.drained_at) == (3, _at(2.1))


def test_with_link_probes_failover_follows_the_last_attempt_and_recovery_the_last_diversion() -> None:
    found = _only(outages_of(_activity((0, H.FAILED_SEND), (0.1, H.DIVERTED), (1, H.FAILED_SEND), (9, H.DIVERTED))))
    assert (found.failed_over_at, found.recovered_at) == (_at(1), _at(9))


def test_suspicion_that_passed_has_no_failover() -> None:
    found = _only(outages_of(_activity((0, H.FAILED_SEND), (0.1, H.DIVERTED), (0.2, H.MOVED), (0.3, H.COMPLETED))))
    assert (found.failed_over_at, found.drained_at) == (None, _at(0.3))


def test_each_entity_has_its_own_outages() -> None:
    table = pa.concat_tables(
        [_activity((0, H.PING), entity="orders"), _activity((1, H.PING), (2, H.DIVERTED), entity="bills")]
    )
    assert [(outage.entity, outage.diverted) for outage in outages_of(table)] == [("orders", 0), ("bills", 1)]


def test_time_in_the_backlog_counts_moved_messages_only() -> None:
    wait = 90 * SECOND
    noon, orders, moved = moment(NOON), {"entity": "orders"}, {"state": "moved"}
    rows = [
        {"hour": noon, **orders, **moved, "bucket": bucket_of(wait), "count": 9, "max_us": wait},
        {"hour": noon, **orders, "state": "waiting", "bucket": None, "count": 100, "max_us": 0},
        {"hour": noon, **orders, "state": "dead_lettered", "bucket": None, "count": 100, "max_us": 5 * wait},
        {"hour": moment(NOON + 9 * HOUR_US), **orders, **moved, "bucket": 1, "count": 100, "max_us": 2},
        {"hour": noon, "entity": "bills", **moved, "bucket": 1, "count": 100, "max_us": 2},
    ]
    found = _only(outages_of(_activity((0, H.DIVERTED), (1, H.PING)), table_of(BACKLOG_TIME, rows)))
    assert found.backlog_seconds_p50 == pytest.approx(90, rel=0.05)
    assert found.backlog_seconds_max == 90
    assert found.to_json()["backlog_seconds_max"] == 90


def test_kinds_of_a_later_release_are_ignored() -> None:
    table = _activity((0, H.DIVERTED), (1, H.PING))
    kinds = pa.array(["code_25" if kind == "ping" else kind for kind in table["kind"].to_pylist()])
    later = table.set_column(table.schema.get_field_index("kind"), "kind", kinds)
    assert _only(outages_and_forced_failovers(later)).pings == 0


events = st.tuples(
    st.integers(0, 600).map(lambda tenth: tenth / 2), st.sampled_from(list(ActivityKind)), st.integers(1, 5)
)


@given(given_events=st.lists(events, max_size=40))
def test_outages_are_disjoint_and_sorted_and_count_every_event_once(
    given_events: list[tuple[float, ActivityKind, int]],
) -> None:
    table = _activity(*given_events)
    found = outages_and_forced_failovers(table)
    assert outages_of(table) == [outage for outage in found if not outage.is_forced]
    assert sum(outage.diverted for outage in found) == sum(n for _, kind, n in given_events if kind is H.DIVERTED)
    pings = sum(n for _, kind, n in given_events if kind in (H.PING, H.FAILED_PING))
    assert sum(outage.pings for outage in found) == pings
    for outage, after in itertools.pairwise(found):
        assert outage.suspected_at < after.suspected_at
        assert outage.recovered_at is None or outage.recovered_at <= after.suspected_at
    for outage in found:
        assert outage.failed_over_at is None or outage.suspected_at <= outage.failed_over_at
        assert outage.recovered_at is None or outage.suspected_at <= outage.recovered_at
