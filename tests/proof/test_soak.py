"""The soak in its short form, and how it tells what grows."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from twinbus.proof.__main__ import app
from twinbus.proof.soak_faults import spates
from twinbus.proof.soak_samples import MEGABYTE, Sample, courses_of, look_at

#: Long enough for links that are not needed any more to be closed, which takes a minute.
SECONDS = 100


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nothing_is_lost_and_nothing_grows_while_things_go_wrong() -> None:
    command = [sys.executable, "-m", "twinbus.proof", "soak", "--seconds", str(SECONDS), "--seed", "1"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    *table, last = run.stdout.splitlines()
    found = json.loads(last)["soak"]
    assert found["acknowledged"] > 0
    assert found["lost"] == found["unexpected"] == found["altered"] == found["order_violations"] == 0
    assert found["fired"] > 0
    assert found["diverted"] > 0
    assert {one["process"] for one in found["courses"]} == {"application", "primary", "secondary"}
    assert len(table) == 2 + len(found["courses"])


def _samples(*memory: float, sockets: int = 5) -> list[Sample]:
    return [Sample(one, 7, sockets, 9) for one in memory]


def test_what_grows_in_the_last_third_is_not_flat() -> None:
    flat = courses_of("primary", _samples(50, 60, 80, 80, 80, 81))
    assert [one.measure for one in flat] == ["memory", "threads", "sockets", "files"]
    assert all(one.is_flat for one in flat)
    assert (flat[0].first, flat[0].middle, flat[0].last, flat[0].most) == (55, 80, 80.5, 81)
    memory, *others = courses_of("primary", _samples(50, 60, 80, 80, 95, 99))
    assert not memory.is_flat
    assert all(one.is_flat for one in others)
    sockets = [*_samples(1, 1, 1, 1), *_samples(1, 1, sockets=10)]
    assert [one.measure for one in courses_of("primary", sockets) if not one.is_flat] == ["sockets"]


def test_what_comes_and_goes_is_flat() -> None:
    assert all(one.is_flat for one in courses_of("primary", _samples(1, 1, 1, 1, 1, 1, 1, 1, 900)))


def test_a_course_takes_a_sample_of_each_third() -> None:
    with pytest.raises(ValueError, match="2 samples are too few"):
        courses_of("primary", _samples(1, 2))


def test_a_process_is_looked_at_as_it_is() -> None:
    before = look_at(os.getpid())
    left, right = os.pipe()
    held = bytearray(os.urandom(1)) * (50 * MEGABYTE)
    try:
        after = look_at(os.getpid())
    finally:
        os.close(left)
        os.close(right)
    assert after.files == before.files + 2
    assert after.memory > before.memory + 40
    assert after.threads >= 1
    del held


def test_the_same_seed_draws_the_same_faults() -> None:
    first, again, other = (
        [
            (spate.seconds, spate.calm, [(side, type(strike).__name__) for side, strike in spate.strikes])
            for spate in itertools.islice(spates(seed), 50)
        ]
        for seed in (3, 3, 4)
    )
    assert first == again != other
    sides = {side for *_, strikes in first for side, _ in strikes}
    assert sides == {"primary", "secondary"}


def test_a_soak_that_is_too_short_is_bad_usage() -> None:
    run = CliRunner().invoke(app, ["soak", "--seconds", "1"])
    assert run.exit_code == 2


def test_what_a_fault_took_away_for_a_while_has_not_grown() -> None:
    sockets = [*_samples(1, 1, sockets=30), *_samples(1, 1, sockets=5), *_samples(1, 1, sockets=31)]
    assert all(one.is_flat for one in courses_of("primary", sockets))
