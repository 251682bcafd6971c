"""Time budgets of a call, pauses between retries, and the watchdog."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from random import Random

import pytest

from twinbus.pairing.sending._sync.watchdog import Watchdog
from twinbus.pairing.sending.call_budget import Budget, Pauses, Retries


@pytest.fixture
def now() -> list[float]:
    """A clock that a test can advance."""
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


def test_short_timeout_is_split_in_half(now: list[float]) -> None:
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


def test_pause_longer_than_the_remaining_time_is_skipped() -> None:
    assert Pauses(Random(), Retries()).next(0.4) is None
    assert Pauses(Random(), Retries()).next(1.1) is not None


def test_without_a_timeout_pauses_are_counted() -> None:
    pauses = Pauses(Random(), Retries())
    assert [pauses.next(math.inf) is None for _ in range(6)] == [False] * 5 + [True]


def test_client_retry_options_set_count_and_pauses() -> None:
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
    """A call that another thread waits for."""

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


def test_overdue_call_is_cut_until_it_ends(watchdog: Watchdog) -> None:
    late = Waiting(time.monotonic() + 0.05)
    watchdog.watch(late)
    for _ in range(3):
        assert late.cuts.acquire(timeout=10)
    assert time.monotonic() >= late.ends


def test_call_within_its_time_is_not_cut_and_wakes_no_thread(watchdog: Watchdog) -> None:
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


def test_earlier_deadline_is_met_after_a_hurry(watchdog: Watchdog) -> None:
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
    assert "Ending an overdue call failed" in caplog.text


def until(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.005)
