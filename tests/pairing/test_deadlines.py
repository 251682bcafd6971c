"""Shares of the caller's time, pauses, and cutting off what was given up on."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from random import Random

import pytest

from twinbus.pairing.sending._sync.watchdog import Watchdog
from twinbus.pairing.sending.budget import Budget, Pauses, Retries


@pytest.fixture
def now() -> list[float]:
    """The time, which a test can move on."""
    return [1000.0]


def test_without_a_timeout_every_attempt_has_the_attempt_timeout(now: list[float]) -> None:
    budget = Budget(None, 10.0, lambda: now[0])
    now[0] += 1e6
    assert (budget.for_primary(), budget.for_backlog()) == (10.0, 10.0)
    assert (budget.left(), budget.before_backlog()) == (math.inf, math.inf)


def test_attempts_on_the_primary_leave_time_for_one_on_the_backlog(now: list[float]) -> None:
    budget = Budget(25.0, 10.0, lambda: now[0])
    assert (budget.for_primary(), budget.for_backlog()) == (10.0, 10.0)
    now[0] += 10
    assert (budget.for_primary(), budget.for_backlog()) == (5.0, 10.0)
    now[0] += 5
    assert (budget.for_primary(), budget.for_backlog(), budget.left()) == (0.0, 10.0, 10.0)


def test_a_short_time_is_shared_half_and_half(now: list[float]) -> None:
    budget = Budget(3.0, 10.0, lambda: now[0])
    assert (budget.for_primary(), budget.for_backlog(), budget.before_backlog()) == (1.5, 3.0, 1.5)


def test_pauses_grow_to_a_bound_and_vary() -> None:
    pauses = Pauses(Random(), Retries())
    taken = [pauses.next(1000.0) for _ in range(40)]
    assert all(one is not None for one in taken)
    for number, pause in enumerate(taken):
        longest = min(10.0, 2.0**number)
        assert longest / 2 <= (pause or 0) <= longest
    assert len(set(taken)) == 40


def test_a_pause_that_is_longer_than_what_is_left_is_not_taken() -> None:
    assert Pauses(Random(), Retries()).next(0.4) is None
    assert Pauses(Random(), Retries()).next(1.1) is not None


def test_with_no_bound_in_time_the_pauses_are_counted() -> None:
    pauses = Pauses(Random(), Retries())
    assert [pauses.next(math.inf) is None for _ in range(6)] == [False] * 5 + [True]


def test_the_retry_options_of_a_client_say_how_often_and_when() -> None:
    pauses = Pauses(Random(), Retries.of({"retry_total": 3, "retry_backoff_factor": 0.5, "retry_backoff_max": 1.5}))
    taken = [pauses.next(1000.0) for _ in range(4)]
    assert taken[3] is None  # also where there would be time
    for pause, longest in zip(taken[:3], (1.0, 1.5, 1.5), strict=True):
        assert longest / 2 <= (pause or 0) <= longest


def test_pauses_of_the_mode_fixed_do_not_grow() -> None:
    pauses = Pauses(Random(), Retries.of({"retry_mode": "fixed", "retry_backoff_factor": 4}))
    assert all(2 <= (pauses.next(1000.0) or 0) <= 4 for _ in range(10))


def test_with_retry_total_0_there_is_no_pause() -> None:
    assert Pauses(Random(), Retries.of({"retry_total": 0})).next(math.inf) is None


class Waiting:
    """Something that another thread waits for."""

    def __init__(self, ends: float = math.inf) -> None:
        self.ends = ends
        self.cuts = threading.Semaphore(0)

    def cut_overdue(self) -> None:
        self.cuts.release()


@pytest.fixture
def watchdog() -> Iterator[Watchdog]:
    running = Watchdog()
    yield running
    for one in list(running._watched):
        running.forget(one)
    if (thread := running._thread) is not None:
        thread.join(10)
    assert running._thread is None


def test_what_takes_too_long_is_cut_again_and_again_until_it_is_over(watchdog: Watchdog) -> None:
    late = Waiting(time.monotonic() + 0.05)
    watchdog.watch(late)
    for _ in range(3):
        assert late.cuts.acquire(timeout=10)
    assert time.monotonic() >= late.ends


def test_what_has_time_is_left_alone_and_nobody_is_woken_for_a_later_end(watchdog: Watchdog) -> None:
    one, other = Waiting(time.monotonic() + 0.3), Waiting()
    watchdog.watch(one)
    watchdog.watch(other)
    watchdog.hurry()
    until(lambda: watchdog.next_look == one.ends)
    other.ends = one.ends + 100
    assert not one.cuts.acquire(timeout=0.1)
    one.ends = math.inf
    # It looks when it meant to, finds the other one, and knows its end.
    until(lambda: watchdog.next_look == other.ends)
    assert not one.cuts.acquire(blocking=False)
    assert not other.cuts.acquire(blocking=False)


def test_an_earlier_end_is_met_after_a_hurry(watchdog: Watchdog) -> None:
    one = Waiting(time.monotonic() + 100)
    watchdog.watch(one)
    watchdog.hurry()
    until(lambda: watchdog.next_look == one.ends)
    one.ends = time.monotonic()
    watchdog.hurry()
    assert one.cuts.acquire(timeout=10)


def test_a_cut_that_fails_does_not_stop_the_others(watchdog: Watchdog, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Waiting):
        def cut_overdue(self) -> None:
            super().cut_overdue()
            raise OSError("no")

    failing, other = Failing(0.0), Waiting(0.0)
    watchdog.watch(failing)
    watchdog.watch(other)
    for one in (failing, other) * 2:
        assert one.cuts.acquire(timeout=10)
    assert "An overdue call could not be ended" in caplog.text


def until(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.005)
