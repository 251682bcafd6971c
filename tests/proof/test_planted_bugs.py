"""Tests that simulation and checker detect each planted bug within a bounded number of runs."""

from __future__ import annotations

import pytest
from proof.simulation.run import simulate
from tests.proof.planted import BUGS, Bug

#: Seeds to try per bug.
BOUND = 300

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_bug_is_detected(bug: Bug) -> None:
    seeds = range(bug.first_seed, bug.first_seed + BOUND)
    with bug.plant():
        seed = next((number for number in seeds if _complains(number, bug.word)), None)
    assert seed is not None, f"no complaint with '{bug.word}' in {BOUND} runs"
    assert simulate(seed).is_good, f"seed {seed} fails without the bug, too"


def _complains(seed: int, word: str) -> bool:
    return any(word in complaint for complaint in simulate(seed).complaints)


def test_there_are_at_least_ten_bugs() -> None:
    assert len({bug.name for bug in BUGS}) >= 10
