"""Tests the scenarios with many callers that seeds draw."""

from __future__ import annotations

import math

from proof.simulation.callers import MAX_LATENCY, QUEUE_STATES, scenario_of
from proof.simulation.scenario import PRIMARY, Action, Scenario, plain_scenario

SCENARIOS = [scenario_of(seed) for seed in range(400)]


def _bursts(scenario: Scenario) -> set[int]:
    """The number of callers of each burst."""
    names = [send.message_ids[0].rsplit("-", 1)[0] for send in scenario.sends if send.is_in_burst]
    return {names.count(name) for name in names}


def _share(scenarios: list[Scenario]) -> float:
    return len(scenarios) / len(SCENARIOS)


def test_same_seed_draws_same_scenario() -> None:
    assert [scenario_of(seed) for seed in range(50)] == SCENARIOS[:50]


def test_plain_scenarios_stay_frequent() -> None:
    assert 0.3 < _share([scenario for scenario in SCENARIOS if scenario == plain_scenario(scenario.seed)]) < 0.5


def test_bursts_have_8_or_64_callers() -> None:
    assert set().union(*map(_bursts, SCENARIOS)) == {8, 64}
    assert _share([scenario for scenario in SCENARIOS if 64 in _bursts(scenario)]) > 0.1


def test_callers_have_timeouts_from_a_millisecond_and_cancel() -> None:
    sends = [send for scenario in SCENARIOS for send in scenario.sends if send.is_in_burst]
    timeouts = [send.timeout for send in sends if send.timeout is not None]
    assert 0.001 <= min(timeouts) < 0.002
    assert max(timeouts) > 5.0
    assert any(send.timeout is None for send in sends)
    assert 0.1 < sum(send.cancelled_after is not None for send in sends) / len(sends) < 0.6


def test_requests_take_up_to_200_ms() -> None:
    latencies = [most for scenario in SCENARIOS for _, most in scenario.latencies]
    assert 0.08 < max(latencies) <= MAX_LATENCY


def test_some_scenarios_starve_the_process() -> None:
    assert (
        _share(
            [scenario for scenario in SCENARIOS if any(action.action is Action.STARVE for action in scenario.actions)]
        )
        > 0.1
    )


def test_backlog_queues_have_temporary_and_permanent_faults() -> None:
    faults = [
        fault for scenario in SCENARIOS for fault in scenario.faults if fault.namespace != PRIMARY and fault.entity
    ]
    assert {fault.kind for fault in faults} >= set(QUEUE_STATES)
    assert any(fault.end == math.inf for fault in faults)
    assert any(fault.end < math.inf for fault in faults)


def test_busy_sessions_are_ordered() -> None:
    busy = [scenario for scenario in SCENARIOS if scenario.busy_sessions]
    assert _share(busy) > 0.05
    assert {scenario.options.order for scenario in busy} == {"session"}
