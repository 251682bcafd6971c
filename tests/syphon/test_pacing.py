"""How fast the syphon goes: decided without a clock of its own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.syphon.circuits import Circuit
from twinbus.syphon.errors import (
    AmqpError,
    AuthenticationFailed,
    ConnectionLost,
    LinkDetached,
    MessageTooLarge,
    Modified,
    Rejected,
    Released,
    TimedOut,
)
from twinbus.syphon.moves import Memory, Numbers
from twinbus.syphon.pacing import (
    BURST_SECONDS,
    FIRST_WINDOW,
    MAX_WINDOW,
    MAX_WINDOW_BYTES,
    Backoff,
    CreditWindow,
    Pace,
)
from twinbus.syphon.verdicts import Verdict, verdict_on

# ---- pauses ----


def test_pauses_double_up_to_the_longest_and_begin_anew() -> None:
    backoff = Backoff(1, 10)
    assert [backoff.next() for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    backoff.reset()
    assert backoff.next() == 1


# ---- the rate ----


@given(st.floats(0.1, 5000), st.lists(st.floats(0, 3), min_size=1, max_size=200))
def test_no_more_is_sent_than_the_rate_allows(rate: float, steps: list[float]) -> None:
    now, sent = 0.0, 0
    pace = Pace(rate, 1, 120, now)
    for step in steps:
        now += step
        while pace.delay(now) == 0:
            sent += 1
        assert sent <= rate * now + max(1, rate * BURST_SECONDS) + 1e-6


@given(st.floats(0.1, 5000))
def test_whoever_waits_as_long_as_told_may_send(rate: float) -> None:
    now = 0.0
    pace = Pace(rate, 1, 120, now)
    for _ in range(50):
        pause = pace.delay(now)
        if pause:
            now += pause + 1e-9
            assert pace.delay(now) == 0


def test_without_a_rate_nothing_waits() -> None:
    pace = Pace(None, 1, 120, 0)
    assert all(pace.delay(0) == 0 for _ in range(10_000))


# ---- a busy namespace ----


def test_a_busy_namespace_is_left_alone_and_longer_each_time_it_takes_nothing() -> None:
    pace, now = Pace(None, 1, 120, 0), 0.0
    for pause in (1, 2, 4, 8):
        pace.busy(now)
        assert pace.delay(now) == pause
        assert pace.is_paused(now)
        now += pause
        assert not pace.is_paused(now)


def test_refusals_of_one_burst_are_one_pause() -> None:
    pace = Pace(None, 1, 120, 0)
    for _ in range(500):
        pace.busy(0.5)
    assert pace.delay(0.5) == 1


def test_a_busy_namespace_gets_somewhat_less_than_it_took_and_slowly_more_again() -> None:
    pace, now = Pace(None, 1, 120, 0), 1.0
    for _ in range(1000):
        pace.accepted()
    pace.busy(now)  # a thousand in a second was too much

    def sent_in(seconds: float) -> int:
        nonlocal now
        count, end = 0, now + seconds
        while now < end:
            while pace.delay(now) == 0:
                count += 1
            now += 0.01
        return count

    now += 1
    first = sent_in(1)
    assert 700 <= first <= 900
    assert first < sent_in(1) < sent_in(1)
    for _ in range(60):
        now += 1
        pace.delay(now)
    assert all(pace.delay(now) == 0 for _ in range(100_000))  # forgotten


def test_a_namespace_that_takes_a_message_now_and_then_is_tried_again_soon() -> None:
    pace, now = Pace(None, 1, 120, 0), 0.0
    for _ in range(5):
        pace.accepted()
        pace.busy(now)
        assert pace.delay(now) == 1
        now += 1


# ---- the window ----


def fill(window: CreditWindow, seconds_each: float, size: int, count: int, now: float = 0.0) -> float:
    for _ in range(count):
        now += seconds_each
        window.moved(size, now)
    return now


def test_the_window_grows_to_what_can_be_moved_in_time() -> None:
    window = CreditWindow(20, None, 0)
    fill(window, 1 / 50, 1000, 5000)
    assert 900 <= window.size <= 1000


def test_the_window_has_a_bound() -> None:
    window = CreditWindow(20, None, 0)
    fill(window, 1e-5, 1000, 50_000)
    assert window.size == MAX_WINDOW


def test_the_window_shrinks_to_what_can_be_moved_in_time() -> None:
    window = CreditWindow(20, None, 0)
    now = fill(window, 1e-4, 1000, 50_000)
    fill(window, 1, 1000, 5000, now)
    assert window.size == 20


def test_large_messages_make_a_small_window() -> None:
    window = CreditWindow(20, None, 0)
    fill(window, 1e-4, 1 << 20, 5000)
    assert window.size == MAX_WINDOW_BYTES >> 20


@pytest.mark.parametrize(("rate", "most"), [(0.01, 1), (1, 20), (1000, MAX_WINDOW)])
def test_the_window_is_no_more_than_the_rate_moves_in_time(rate: float, most: int) -> None:
    window = CreditWindow(20, rate, 0)
    fill(window, 1e-5, 100, 50_000)
    assert window.size <= most


def test_a_message_that_was_late_halves_the_window() -> None:
    window = CreditWindow(20, None, 0)
    now = fill(window, 1e-4, 1000, 5000)
    size = window.size
    window.missed(now)
    assert window.size == size // 2


def test_the_window_begins_small_again_when_nobody_knows_whether_anything_can_be_moved() -> None:
    window = CreditWindow(20, None, 0)
    now = fill(window, 1e-4, 1000, 5000)
    window.start_over(now)
    assert window.size == FIRST_WINDOW


# ---- circuits ----


def test_a_circuit_lets_everything_through_until_it_fails() -> None:
    circuit = Circuit(1, 8)
    assert all(circuit.may_try(0) for _ in range(5))
    circuit.failed(0)
    assert circuit.is_open
    assert not circuit.may_try(0.99)


def test_after_the_pause_one_try_decides() -> None:
    circuit = Circuit(1, 8)
    circuit.failed(0)
    assert circuit.may_try(1)
    assert not circuit.may_try(1)  # one, not two
    circuit.worked()
    assert not circuit.is_open
    assert circuit.may_try(1)


def test_pauses_of_a_circuit_double_and_many_failures_at_once_are_one() -> None:
    circuit, now, pauses = Circuit(1, 8), 0.0, []
    for _ in range(6):
        for _ in range(100):
            circuit.failed(now)
        began = now
        while not circuit.may_try(now):
            now += 0.5
        pauses.append(now - began)
    assert pauses == [1, 2, 4, 8, 8, 8]


def test_a_try_that_came_to_nothing_can_be_made_again_at_once() -> None:
    circuit = Circuit(1, 8)
    circuit.failed(0)
    assert circuit.may_try(1)
    circuit.undecided(1)
    assert circuit.is_open
    assert circuit.may_try(1)


def test_where_the_connection_was_lost_the_pause_begins_with_the_next_one() -> None:
    circuit = Circuit(1, 8)
    circuit.failed(0, lost_connection=True)
    assert not circuit.may_try(100)
    circuit.connected(100)
    assert not circuit.may_try(100.9)
    circuit.connected(100.9)  # one that was lost by another is no reason to begin anew
    assert circuit.may_try(101)


def test_a_circuit_can_be_hurried_and_fails_no_less_for_it() -> None:
    circuit = Circuit(1, 8)
    circuit.failed(0)
    circuit.hurry()
    assert circuit.may_try(0)
    circuit.failed(0)
    assert not circuit.may_try(1.9)


# ---- verdicts ----


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (Rejected("busy", "com.microsoft:server-busy"), Verdict.BUSY),
        (LinkDetached("busy", "com.microsoft:server-busy"), Verdict.BUSY),
        (Rejected("gone", "amqp:not-found"), Verdict.DOWN),
        (Rejected("off", "com.microsoft:entity-disabled"), Verdict.DOWN),
        (Rejected("full", "amqp:resource-limit-exceeded"), Verdict.DOWN),
        (Rejected("no", "amqp:unauthorized-access"), Verdict.DOWN),
        (Rejected("oops", "amqp:internal-error"), Verdict.DOWN),
        (Rejected("late", "com.microsoft:timeout"), Verdict.DOWN),
        (Rejected("bad", "com.microsoft:argument-error"), Verdict.REFUSED),
        (Rejected("no session", "amqp:not-allowed"), Verdict.REFUSED),
        (Rejected("large", "amqp:link:message-size-exceeded"), Verdict.REFUSED),
        (Rejected("", ""), Verdict.REFUSED),
        (Modified("tried"), Verdict.REFUSED),
        (Released("did not look"), Verdict.DOWN),
        (MessageTooLarge(2, 1, "orders"), Verdict.HOPELESS),
        (TimedOut("late"), Verdict.DOWN),
        (AuthenticationFailed("no", "amqp:not-found", 404), Verdict.DOWN),
        (LinkDetached("idle", "amqp:link:detach-forced"), Verdict.ADRIFT),
        (LinkDetached("gone", "amqp:not-found"), Verdict.DOWN),
        (ConnectionLost("cut"), Verdict.LOST),
    ],
    ids=lambda one: f"{type(one).__name__} {one.condition}" if isinstance(one, AmqpError) else one.name,
)
def test_what_a_failure_is_about(error: AmqpError, verdict: Verdict) -> None:
    assert verdict_on(error) is verdict


# ---- numbers ----


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=60), st.sets(st.integers(0, 50)), st.integers(0, 70))
def test_numbers_are_kept_in_order_and_once(added: list[int], gone: set[int], count: int) -> None:
    numbers = Numbers()
    for number in added:
        numbers.add(number)
    numbers.remove(gone)
    expected = sorted(set(added) - gone)
    assert numbers.first(count) == expected[:count]
    assert len(numbers) == len(expected)


def test_the_memory_of_what_was_accepted_is_bounded() -> None:
    memory = Memory()
    for number in range(20_000):
        memory.accepted(number)
    assert not memory.has_accepted(0)
    assert memory.has_accepted(19_999)
    memory.completed(19_999)
    assert not memory.has_accepted(19_999)
