"""Runs with many callers are drawn from the seed like everything else, and plain ones stay frequent."""

from __future__ import annotations

import math

from twinbus.proof.simulation.callers import MAX_LATENCY, QUEUE_STATES, scenario_of
from twinbus.proof.simulation.scenario import PRIMARY, Deed, Scenario, plain_scenario

SCENARIOS = [scenario_of(seed) for seed in range(400)]


def _bursts(scenario: Scenario) -> set[int]:
    """How many callers each burst has."""
    names = [send.message_ids[0].rsplit("-", 1)[0] for send in scenario.sends if send.is_in_burst]
    return {names.count(name) for name in names}


def _share(scenarios: list[Scenario]) -> float:
    return len(scenarios) / len(SCENARIOS)


def test_a_scenario_is_the_same_for_the_same_seed() -> None:
    assert [scenario_of(seed) for seed in range(50)] == SCENARIOS[:50]


def test_plain_runs_stay_frequent() -> None:
    assert 0.3 < _share([one for one in SCENARIOS if one == plain_scenario(one.seed)]) < 0.5


def test_bursts_have_8_or_64_callers() -> None:
    assert set().union(*map(_bursts, SCENARIOS)) == {8, 64}
    assert _share([one for one in SCENARIOS if 64 in _bursts(one)]) > 0.1


def test_callers_have_timeouts_from_a_millisecond_and_cancel() -> None:
    sends = [send for one in SCENARIOS for send in one.sends if send.is_in_burst]
    timeouts = [send.timeout for send in sends if send.timeout is not None]
    assert 0.001 <= min(timeouts) < 0.002
    assert max(timeouts) > 5.0
    assert any(send.timeout is None for send in sends)
    assert 0.1 < sum(send.cancelled_after is not None for send in sends) / len(sends) < 0.6


def test_requests_take_up_to_200_ms() -> None:
    latencies = [most for one in SCENARIOS for _, most in one.latencies]
    assert 0.08 < max(latencies) <= MAX_LATENCY


def test_some_processes_are_starved() -> None:
    assert _share([one for one in SCENARIOS if any(deed.deed is Deed.STARVE for deed in one.deeds)]) > 0.1


def test_backlog_queues_are_in_every_state_for_a_while_or_for_good() -> None:
    faults = [fault for one in SCENARIOS for fault in one.faults if fault.namespace != PRIMARY and fault.entity]
    assert {fault.weather for fault in faults} >= set(QUEUE_STATES)
    assert any(fault.end == math.inf for fault in faults)
    assert any(fault.end < math.inf for fault in faults)


def test_some_sessions_are_busy_where_order_is_kept() -> None:
    busy = [one for one in SCENARIOS if one.busy_sessions]
    assert _share(busy) > 0.05
    assert {one.options.order for one in busy} == {"session"}
