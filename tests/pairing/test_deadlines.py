"""Shares of the caller's time, pauses, and cutting off what was given up on."""

from __future__ import annotations

import math
import threading

import pytest

from twinbus.pairing import deadlines
from twinbus.pairing.deadlines import Budget, Pauses, Watchdog


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which a test can move on."""
    current = [1000.0]
    monkeypatch.setattr(deadlines.time, "monotonic", lambda: current[0])
    return current


def test_without_a_timeout_every_attempt_has_the_attempt_timeout(now: list[float]) -> None:
    budget = Budget(None, 10.0)
    now[0] += 1e6
    assert (budget.for_primary(), budget.for_backlog()) == (10.0, 10.0)
    assert (budget.left(), budget.before_backlog()) == (math.inf, math.inf)


def test_attempts_on_the_primary_leave_time_for_one_on_the_backlog(now: list[float]) -> None:
    budget = Budget(25.0, 10.0)
    assert (budget.for_primary(), budget.for_backlog()) == (10.0, 10.0)
    now[0] += 10
    assert (budget.for_primary(), budget.for_backlog()) == (5.0, 10.0)
    now[0] += 5
    assert (budget.for_primary(), budget.for_backlog(), budget.left()) == (0.0, 10.0, 10.0)


def test_a_short_time_is_shared_half_and_half(now: list[float]) -> None:
    budget = Budget(3.0, 10.0)
    assert (budget.for_primary(), budget.for_backlog(), budget.before_backlog()) == (1.5, 3.0, 1.5)


def test_pauses_grow_to_a_bound_and_vary() -> None:
    pauses = Pauses()
    taken = [pauses.next(1000.0) for _ in range(40)]
    assert all(one is not None for one in taken)
    for number, pause in enumerate(taken):
        longest = min(10.0, 2.0**number)
        assert longest / 2 <= (pause or 0) <= longest
    assert len(set(taken)) == 40


def test_a_pause_that_is_longer_than_what_is_left_is_not_taken() -> None:
    assert Pauses().next(0.4) is None
    assert Pauses().next(1.1) is not None


def test_with_no_bound_in_time_the_pauses_are_counted() -> None:
    pauses = Pauses()
    assert [pauses.next(math.inf) is None for _ in range(6)] == [False] * 5 + [True]


def test_what_was_given_up_on_is_cut_again_and_again_until_it_is_over() -> None:
    watchdog, cuts, over = Watchdog(), threading.Semaphore(0), threading.Event()
    watchdog.watch(cuts.release, over.is_set)
    for _ in range(3):
        assert cuts.acquire(timeout=10)
    over.set()
    thread = watchdog._thread
    if thread is not None:
        thread.join(10)
    assert watchdog._thread is None


def test_a_cut_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    watchdog, cuts, over = Watchdog(), threading.Semaphore(0), threading.Event()
    calls = []

    def fails_later() -> None:
        calls.append(1)
        if len(calls) > 1:
            raise OSError("no")

    watchdog.watch(fails_later, over.is_set)
    watchdog.watch(cuts.release, over.is_set)
    for _ in range(3):
        assert cuts.acquire(timeout=10)
    over.set()
    thread = watchdog._thread
    if thread is not None:
        thread.join(10)
    assert "could not be cut" in caplog.text
