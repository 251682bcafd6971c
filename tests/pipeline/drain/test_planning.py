"""Which pumps run in a slice."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.spark.draining.slice_planning import LEAST_PER_PUMP, MAX_PUMPS, Assignment, Depth, plan, slice_seconds

DEPTHS = st.lists(st.integers(0, 10_000_000), max_size=30).map(
    lambda found: [Depth(f"q{index}", depth) for index, depth in enumerate(found)]
)


def pumps_of(assignments: tuple[Assignment, ...]) -> Counter[str]:
    return Counter(queue for one in assignments for queue in one.queues)


def test_one_huge_queue_gets_the_pumps_that_the_small_ones_do_not_need() -> None:
    found = plan([Depth("huge", 1_000_000), Depth("small", 500), Depth("empty", 0)], pumps=10)
    assert pumps_of(found) == {"huge": 9, "small": 1}
    assert [one.is_extra for one in found if one.queues == ("huge",)] == [False] + 8 * [True]


def test_pumps_are_in_proportion_to_depth() -> None:
    found = plan([Depth("a", 600_000), Depth("b", 300_000), Depth("c", 100_000)], pumps=10)
    assert pumps_of(found) == {"a": 6, "b": 3, "c": 1}


def test_with_an_order_to_keep_a_queue_has_one_pump() -> None:
    found = plan([Depth("huge", 1_000_000), Depth("small", 1)], pumps=10, order="session")
    assert pumps_of(found) == {"huge": 1, "small": 1}
    assert not any(one.is_extra for one in found)


def test_more_queues_than_pumps_are_shared_out_evenly() -> None:
    depths = [Depth(f"q{index}", depth) for index, depth in enumerate([900, 500, 400, 300, 300, 200])]
    found = plan(depths, pumps=3)
    loads = sorted(sum(depths[int(queue[1:])].total for queue in one.queues) for one in found)
    assert loads == [800, 900, 900]


def test_what_is_only_set_aside_is_worth_a_pump_too_but_not_a_second() -> None:
    assert pumps_of(plan([Depth("q", 0, deferred=1_000_000)], pumps=10)) == {"q": 1}


def test_a_few_messages_do_not_get_a_second_pump() -> None:
    assert len(plan([Depth("q", 2 * LEAST_PER_PUMP - 1)], pumps=10)) == 1
    assert len(plan([Depth("q", 2 * LEAST_PER_PUMP)], pumps=10)) == 2


def test_an_empty_backlog_needs_no_pump() -> None:
    assert plan([Depth("q", 0)], pumps=10, rate=5) == ()


@given(DEPTHS, st.integers(1, 40), st.sampled_from([None, "session"]), st.sampled_from([None, 900.0]))
def test_every_queue_with_messages_has_one_pump_in_charge_and_the_rate_is_kept(depths, pumps, order, rate) -> None:  # type: ignore[no-untyped-def]
    found = plan(depths, pumps=pumps, order=order, rate=rate)
    in_charge = Counter(queue for one in found if not one.is_extra for queue in one.queues)
    assert in_charge == {depth.queue: 1 for depth in depths if depth.total}
    assert len(found) <= pumps
    if rate is not None and found:
        assert sum(one.rate or 0 for one in found) == pytest.approx(rate)


@pytest.mark.parametrize("pumps", [0, MAX_PUMPS + 1])
def test_a_number_of_pumps_out_of_bounds_is_refused(pumps: int) -> None:
    with pytest.raises(ValueError, match=f"pumps must be 1 to {MAX_PUMPS}, not {pumps}"):
        plan([], pumps=pumps)


def test_slices_grow_to_their_full_length() -> None:
    assert [slice_seconds(number, 60) for number in (0, 1, 2, 3, 10_000)] == [10, 30, 60, 60, 60]
    assert slice_seconds(0, 5) == 5
