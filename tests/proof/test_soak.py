"""The soak test in a short form, and its detection of growth."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys

import pytest
from proof.__main__ import app
from proof.soak.soak_faults import fault_groups
from proof.soak.soak_samples import MEGABYTE, Sample, courses_of, take_sample
from typer.testing import CliRunner

#: Long enough to close unused links, which takes a minute.
SECONDS = 100


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_short_soak_loses_nothing_and_does_not_grow() -> None:
    command = [sys.executable, "-m", "proof", "soak", "--seconds", str(SECONDS), "--seed", "1"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    *table, last = run.stdout.splitlines()
    report = json.loads(last)["soak"]
    assert report["acknowledged"] > 0
    assert report["lost"] == report["unexpected"] == report["altered"] == report["order_violations"] == 0
    assert report["fired"] > 0
    assert report["diverted"] > 0
    assert {course["process"] for course in report["courses"]} == {"application", "primary", "secondary"}
    assert len(table) == 2 + len(report["courses"])


def _samples(*memory: float, sockets: int = 5) -> list[Sample]:
    return [Sample(megabytes, 7, sockets, 9) for megabytes in memory]


def test_growth_in_last_third_is_not_flat() -> None:
    flat = courses_of("primary", _samples(50, 60, 80, 80, 80, 81))
    assert [course.measure for course in flat] == ["memory", "threads", "sockets", "files"]
    assert all(course.is_flat for course in flat)
    assert (flat[0].first, flat[0].middle, flat[0].last, flat[0].most) == (55, 80, 80.5, 81)
    memory, *others = courses_of("primary", _samples(50, 60, 80, 80, 95, 99))
    assert not memory.is_flat
    assert all(course.is_flat for course in others)
    sockets = [*_samples(1, 1, 1, 1), *_samples(1, 1, sockets=10)]
    assert [course.measure for course in courses_of("primary", sockets) if not course.is_flat] == ["sockets"]


def test_temporary_peak_is_flat() -> None:
    assert all(course.is_flat for course in courses_of("primary", _samples(1, 1, 1, 1, 1, 1, 1, 1, 900)))


def test_fewer_than_three_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="expected at least 3 samples, got 2"):
        courses_of("primary", _samples(1, 2))


def test_sample_counts_files_and_memory() -> None:
    before = take_sample(os.getpid())
    left, right = os.pipe()
    held = bytearray(os.urandom(1)) * (50 * MEGABYTE)
    try:
        after = take_sample(os.getpid())
    finally:
        os.close(left)
        os.close(right)
    assert after.files == before.files + 2
    assert after.memory > before.memory + 40
    assert after.threads >= 1
    del held


def test_same_seed_draws_same_faults() -> None:
    first, again, other = (
        [
            (group.seconds, group.pause, [(side, type(fault).__name__) for side, fault in group.faults])
            for group in itertools.islice(fault_groups(seed), 50)
        ]
        for seed in (3, 3, 4)
    )
    assert first == again != other
    sides = {side for *_, faults in first for side, _ in faults}
    assert sides == {"primary", "secondary"}


def test_too_short_soak_is_bad_usage() -> None:
    run = CliRunner().invoke(app, ["soak", "--seconds", "1"])
    assert run.exit_code == 2


def test_recovery_from_temporary_loss_is_flat() -> None:
    sockets = [*_samples(1, 1, sockets=30), *_samples(1, 1, sockets=5), *_samples(1, 1, sockets=31)]
    assert all(course.is_flat for course in courses_of("primary", sockets))
