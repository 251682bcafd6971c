"""The simulation and the checker find what is wrong: each planted bug is caught within a bounded number of runs."""

from __future__ import annotations

import pytest
from tests.proof.planted import BUGS, Bug

from twinbus.proof.simulation.run import simulate

#: Seeds that are tried for each.
BOUND = 300

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_bug_is_caught(bug: Bug) -> None:
    seeds = range(bug.first_seed, bug.first_seed + BOUND)
    with bug.plant():
        caught = next((seed for seed in seeds if _complains(seed, bug.word)), None)
    assert caught is not None, f"no run out of {BOUND} has said anything of '{bug.word}'"
    assert simulate(caught).is_good, "without the bug the same run must be a good one"


def _complains(seed: int, word: str) -> bool:
    return any(word in complaint for complaint in simulate(seed).complaints)


def test_there_are_at_least_ten_of_them() -> None:
    assert len({bug.name for bug in BUGS}) >= 10
