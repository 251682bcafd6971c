"""Tests incidents, states of entities and the depth of the backlog."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from twinbus.report.incidents import (
    Backlog,
    Depth,
    Interval,
    State,
    depth_of,
    highest,
    incidents_of,
    spread,
    states_over_time,
    timelines_of,
)
from twinbus.report.outages import Outage
from twinbus.report.render.formats import DAY, HOUR, MINUTE, SECOND
from twinbus.report.stories import incident_story

NOON = 20_000 * DAY + 12 * HOUR


def outage(entity: str = "orders", began: int = NOON, minutes: int = 30, **given: Any) -> Outage:
    """Return an outage of half an hour with a failover after one minute, and ten minutes of draining."""
    facts: dict[str, Any] = {
        "failed_over_at": began + MINUTE,
        "recovered_at": began + minutes * MINUTE,
        "drained_at": began + (minutes + 10) * MINUTE,
        "diverted": 100,
        "moved": 100,
        **given,
    }
    counts = dict.fromkeys(("expired", "poison", "pings", "failed_sends"), 0)
    times = dict.fromkeys(("backlog_seconds_p50", "backlog_seconds_p99", "backlog_seconds_max"), None)
    return Outage(pairing="contoso", entity=entity, suspected_at=began, **{**counts, **times, **facts})


def test_outages_of_entities_that_overlap_are_one_incident() -> None:
    found = incidents_of([outage("mail", NOON + 20 * MINUTE), outage("orders"), outage("orders", NOON + DAY)])
    assert [(incident.entities, incident.began) for incident in found] == [
        (["mail", "orders"], NOON),
        (["orders"], NOON + DAY),
    ]
    assert found[0].recovered == NOON + 50 * MINUTE
    assert found[0].drained == NOON + 60 * MINUTE
    assert found[0].total("diverted") == 200


def test_outages_within_minutes_are_one_incident_and_later_ones_are_not() -> None:
    apart = [30 * MINUTE + 4 * MINUTE, 30 * MINUTE + 6 * MINUTE]
    assert [len(incidents_of([outage(), outage("mail", NOON + offset)])) for offset in apart] == [1, 2]


def test_outages_that_begin_during_an_open_outage_are_the_same_incident() -> None:
    (found,) = incidents_of([outage(recovered_at=None, drained_at=None), outage("mail", NOON + 9 * DAY)])
    assert found.recovered is None
    assert not found.is_over


def test_incident_is_over_when_all_entities_recovered_and_the_backlog_is_empty() -> None:
    assert incidents_of([outage()])[0].is_over
    assert not incidents_of([outage(drained_at=None, moved=3)])[0].is_over
    assert incidents_of([outage(diverted=0, moved=0, drained_at=None)])[0].is_over


def test_an_entity_is_suspect_then_failed_over_then_draining() -> None:
    (timeline,) = timelines_of([outage()])
    assert timeline.intervals == (
        Interval(State.SUSPECT, NOON, NOON + MINUTE),
        Interval(State.FAILED_OVER, NOON + MINUTE, NOON + 30 * MINUTE),
        Interval(State.DRAINING, NOON + 30 * MINUTE, NOON + 40 * MINUTE),
    )


def test_entity_without_failover_was_only_suspect() -> None:
    (timeline,) = timelines_of([outage(failed_over_at=None, diverted=0, moved=0)])
    assert timeline.intervals == (Interval(State.SUSPECT, NOON, NOON + 30 * MINUTE),)


def test_open_outage_has_no_end_time() -> None:
    (away,) = timelines_of([outage(recovered_at=None, drained_at=None)])
    assert away.intervals[-1] == Interval(State.FAILED_OVER, NOON + MINUTE, None)
    (left,) = timelines_of([outage(drained_at=None, moved=3)])
    assert left.intervals[-1] == Interval(State.DRAINING, NOON + 30 * MINUTE, None)


def test_a_new_outage_ends_the_drain_of_the_last_one() -> None:
    (timeline,) = timelines_of([outage(drained_at=None, moved=3), outage(began=NOON + HOUR)])
    assert timeline.intervals[2] == Interval(State.DRAINING, NOON + 30 * MINUTE, NOON + HOUR)
    assert [interval.state for interval in timeline.intervals[3:]] == [State.SUSPECT, State.FAILED_OVER, State.DRAINING]


def test_depth_is_stored_minus_gone_messages() -> None:
    found = depth_of([("a", 10, 5), ("b", 10, 2), ("a", 20, -3), ("b", 30, -2), ("a", 30, -2)])
    assert found.series == (Depth(10, 7), Depth(20, 4), Depth(30, 0))
    assert (found.peak, found.now) == (Depth(10, 7), 0)


def test_missing_rows_never_make_the_depth_negative_or_hide_other_entities() -> None:
    # Of "a" only the move is known: its send was never recorded.
    assert depth_of([("b", 10, 4), ("a", 20, -9), ("a", 30, 2)]).series == (Depth(10, 4), Depth(30, 6))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50), st.integers(-9, 9))))
def test_a_depth_is_never_negative_and_changes_with_every_step(changes: list[tuple[str, int, int]]) -> None:
    depths = [point.depth for point in depth_of(changes).series]
    assert all(depth >= 0 for depth in depths)
    assert all(before != after for before, after in zip([0, *depths], depths, strict=False))


def test_period_begins_with_the_depth_at_its_start() -> None:
    whole = Backlog((Depth(10, 7), Depth(20, 4), Depth(30, 0)))
    assert whole.within(15, 25).series == (Depth(15, 7), Depth(20, 4))
    assert whole.within(0, 5).series == (Depth(0, 0),)
    assert whole.within(40, 50).now == 0


def test_no_peak_is_lost_when_a_history_is_drawn_in_few_columns() -> None:
    series = [Depth(100, 1), Depth(101, 900), Depth(102, 2)]
    assert highest(series, 0, 1_000, 4) == [Depth(101, 900), Depth(250, 2), Depth(500, 2), Depth(750, 2)]


def test_states_are_counted_over_time() -> None:
    intervals = [interval for timeline in timelines_of([outage(), outage("mail")]) for interval in timeline.intervals]
    assert states_over_time(intervals, [State.FAILED_OVER]) == [Depth(NOON + MINUTE, 2), Depth(NOON + 30 * MINUTE, 0)]


def story(*outages: Outage) -> str:
    (found,) = incidents_of(outages)
    return " ".join(incident_story(found)).replace("\N{NO-BREAK SPACE}", " ")


def test_story_goes_from_the_first_failure_to_the_empty_backlog() -> None:
    assert story(outage(failed_sends=9), outage("mail", failed_over_at=NOON + 61 * SECOND)) == (
        "At 12:00:00 sends to 2 entities began to fail (9 sends in all). Failover came 1 min to 1 min 1 s after the"
        " first failure. 200 messages went to the backlog instead. The last entity was back 30 min after the first"
        " failure. The backlog was empty 10 min later."
    )


def test_story_names_messages_that_are_left_or_dead_lettered() -> None:
    told = story(outage(drained_at=None, moved=90, expired=2, poison=1))
    assert "7 messages are still in the backlog." in told
    assert "3 messages were dead-lettered in the backlog: 2 expired, 1 refused." in told
    assert "1 entity is not back yet." in story(outage(recovered_at=None, drained_at=None))


@given(st.integers(0, 10**15), st.integers(0, 59_999_999), st.integers(1, 10_000))
def test_events_within_a_minute_are_spread_over_it(first: int, length: int, count: int) -> None:
    found = list(spread(first, first + length, count))
    assert sum(part for _, part in found) == count
    assert all(part > 0 for _, part in found)
    moments = [moment for moment, _ in found]
    assert moments == sorted(set(moments))
    assert first <= moments[0] <= moments[-1] < first + length + SECOND


def test_backlog_that_fills_and_drains_within_a_minute_is_visible() -> None:
    came = [("a", moment, part) for moment, part in spread(0, 15_000_000, 700)]
    went = [("a", moment, -part) for moment, part in spread(20_000_000, 55_000_000, 700)]
    found = depth_of([*came, *went])
    assert found.peak == Depth(15_000_000, 700)
    assert found.now == 0
