"""The production code on a simulated network: nothing is lost, and the same seed is the same run."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys

import pytest

from twinbus.proof.simulation.run import simulate
from twinbus.proof.simulation.summary import simulate_all
from twinbus.proof.simulation.virtual_time import START, StuckError, VirtualLoop

RUNS = int(os.environ.get("TWINBUS_SIMULATED_RUNS", "100"))
SEEDS = (2, 6, 41, 64, 136)


def _run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "twinbus.proof", "simulate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, check=False)


def test_nothing_is_lost_unexpected_altered_or_out_of_order_in_any_run() -> None:
    *_, summary = simulate_all(range(RUNS))
    assert summary.failed == {}, summary.describe()
    assert summary.words["acknowledged"] > 0
    assert summary.outages > RUNS / 3


def test_the_same_seed_is_the_same_run_event_for_event() -> None:
    for seed in SEEDS:
        first, second = simulate(seed, trace=True), simulate(seed, trace=True)
        assert first.trace == second.trace
        assert first.digest == second.digest
        assert len(first.trace) > 20
    assert len({simulate(seed, trace=True).digest for seed in SEEDS}) == len(SEEDS)


def test_a_message_set_aside_without_an_answer_is_not_overtaken_by_what_was_set_aside_behind_it() -> None:
    assert simulate(42292).complaints == ()


def test_what_a_killed_syphon_holds_is_waited_for_though_the_clocks_differ() -> None:
    assert simulate(101782).complaints == ()


def test_a_late_look_does_not_lead_a_session_back_to_the_queue_that_holds_a_copy() -> None:
    assert simulate(100353).complaints == ()


def test_what_is_sent_later_stays_behind_both_of_two_that_were_under_way_at_the_same_time() -> None:
    assert simulate(11499).complaints == ()


def test_the_ledger_knows_of_a_dead_letter_though_its_answer_was_lost() -> None:
    assert simulate(12048).complaints == ()


@pytest.mark.parametrize("seed", [100192, 100502, 100555])
def test_a_copy_is_explained_by_an_answer_that_nobody_waits_for_any_more(seed: int) -> None:
    """It would have come after the end of the run."""
    result = simulate(seed)
    assert result.complaints == ()
    assert result.verdict is not None
    assert result.verdict.duplicated


@pytest.mark.parametrize("seed", [46605, 48587])
def test_the_last_drain_begins_when_nothing_is_on_the_wire_any_more(seed: int) -> None:
    """A copy of a send that was given up came to the backlog when the drain was over."""
    assert simulate(seed).complaints == ()


def test_a_run_does_not_depend_on_whether_somebody_watches_it() -> None:
    watched, unwatched = simulate(6, trace=True), simulate(6)
    assert (watched.seconds, watched.verdict) == (unwatched.seconds, unwatched.verdict)


def test_another_process_replays_the_same_run_by_the_command_that_is_printed() -> None:
    replayed = _run("--seed", "136", "--trace", PYTHONHASHSEED="7")
    assert replayed.returncode == 0, replayed.stderr
    result = simulate(136, trace=True)
    assert f"digest {result.digest}; again: python -m twinbus.proof simulate --seed 136 --trace" in replayed.stdout
    assert result.trace[-1] in replayed.stdout


def test_the_summary_of_many_runs_is_a_json_object() -> None:
    answer = _run("--runs", "3", "--json")
    assert answer.returncode == 0, answer.stderr
    told = json.loads(answer.stdout)
    assert (told["runs"], told["failed"], told["failures"]) == (3, 0, {})
    assert told["messages"]["lost"] == 0


def test_a_trace_is_of_one_run_only() -> None:
    answer = _run("--runs", "3", "--trace")
    assert answer.returncode == 2
    assert "--trace" in answer.stderr


# ---- virtual time ----


def test_an_hour_passes_at_once() -> None:
    loop = VirtualLoop()

    async def wait() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    assert loop.run(wait(), 4000) == START + 3600


@pytest.mark.parametrize(("seconds", "text"), [(None, "nothing will ever happen"), (100.0, "not over after 100")])
def test_a_run_that_would_not_end_is_stuck(seconds: float | None, text: str) -> None:
    async def wait() -> None:
        await (asyncio.get_running_loop().create_future() if seconds is None else asyncio.sleep(seconds))

    with pytest.raises(StuckError, match=text):
        VirtualLoop().run(wait(), 50)


def test_a_run_that_goes_round_in_circles_is_stuck() -> None:
    async def spin() -> None:
        while True:  # noqa: ASYNC110 - that is the point
            await asyncio.sleep(0)

    with pytest.raises(StuckError, match="circles"):
        VirtualLoop().run(spin(), 50)
