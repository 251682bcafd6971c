"""The pure decisions: back-off, pace, credit window, circuits, failure classification."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.amqp.client.errors import (
    AmqpError,
    AnswerTimeoutError,
    AuthenticationFailedError,
    ConnectionLostError,
    LinkDetachedError,
    MessageTooLargeError,
    ModifiedError,
    RejectedError,
    ReleasedError,
)
from twinbus.syphon.delivery.circuits import Circuit
from twinbus.syphon.delivery.send_failures import SendFailure, classify
from twinbus.syphon.pacing import (
    BURST_SECONDS,
    FIRST_WINDOW,
    MAX_WINDOW,
    MAX_WINDOW_BYTES,
    Backoff,
    CreditWindow,
    Pace,
)
from twinbus.syphon.settlement.moves import DuplicateGuard, SequenceNumbers

# ---- pauses ----


def test_backoff_doubles_up_to_the_longest_pause_and_resets() -> None:
    backoff = Backoff(1, 10)
    assert [backoff.next() for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    backoff.reset()
    assert backoff.next() == 1


# ---- the rate ----


@given(st.floats(0.1, 5000), st.lists(st.floats(0, 3), min_size=1, max_size=200))
def test_pace_keeps_the_rate(rate: float, steps: list[float]) -> None:
    now, sent = 0.0, 0
    pace = Pace(rate, 1, 120, now)
    for step in steps:
        now += step
        while pace.delay(now) == 0:
            sent += 1
        assert sent <= rate * now + max(1, rate * BURST_SECONDS) + 1e-6


@given(st.floats(0.1, 5000))
def test_send_is_allowed_after_the_returned_delay(rate: float) -> None:
    now = 0.0
    pace = Pace(rate, 1, 120, now)
    for _ in range(50):
        pause = pace.delay(now)
        if pause:
            now += pause + 1e-9
            assert pace.delay(now) == 0


def test_without_a_rate_there_is_no_delay() -> None:
    pace = Pace(None, 1, 120, 0)
    assert all(pace.delay(0) == 0 for _ in range(10_000))


# ---- a busy namespace ----


def test_busy_namespace_gets_growing_pauses_while_it_accepts_nothing() -> None:
    pace, now = Pace(None, 1, 120, 0), 0.0
    for pause in (1, 2, 4, 8):
        pace.busy(now)
        assert pace.delay(now) == pause
        assert pace.is_paused(now)
        now += pause
        assert not pace.is_paused(now)


def test_throttled_burst_causes_one_pause() -> None:
    pace = Pace(None, 1, 120, 0)
    for _ in range(500):
        pace.busy(0.5)
    assert pace.delay(0.5) == 1


def test_rate_drops_after_throttling_and_grows_slowly() -> None:
    pace, now = Pace(None, 1, 120, 0), 1.0
    for _ in range(1000):
        pace.accepted()
    pace.busy(now)  # a thousand a second was too fast

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
    assert all(pace.delay(now) == 0 for _ in range(100_000))  # the limit was dropped


def test_namespace_that_accepts_some_messages_is_retried_soon() -> None:
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


def test_window_grows_to_what_can_be_moved_in_time() -> None:
    window = CreditWindow(20, None, 0)
    fill(window, 1 / 50, 1000, 5000)
    assert 900 <= window.size <= 1000


def test_window_is_bounded() -> None:
    window = CreditWindow(20, None, 0)
    fill(window, 1e-5, 1000, 50_000)
    assert window.size == MAX_WINDOW


def test_window_shrinks_to_what_can_be_moved_in_time() -> None:
    window = CreditWindow(20, None, 0)
    now = fill(window, 1e-4, 1000, 50_000)
    fill(window, 1, 1000, 5000, now)
    assert window.size == 20


def test_large_messages_shrink_the_window() -> None:
    window = CreditWindow(20, None, 0)
    fill(window, 1e-4, 1 << 20, 5000)
    assert window.size == MAX_WINDOW_BYTES >> 20


@pytest.mark.parametrize(("rate", "most"), [(0.01, 1), (1, 20), (1000, MAX_WINDOW)])
def test_window_is_bounded_by_the_rate(rate: float, most: int) -> None:
    window = CreditWindow(20, rate, 0)
    fill(window, 1e-5, 100, 50_000)
    assert window.size <= most


def test_late_message_halves_the_window() -> None:
    window = CreditWindow(20, None, 0)
    now = fill(window, 1e-4, 1000, 5000)
    size = window.size
    window.missed(now)
    assert window.size == size // 2


def test_window_starts_over_at_its_first_size() -> None:
    window = CreditWindow(20, None, 0)
    now = fill(window, 1e-4, 1000, 5000)
    window.start_over(now)
    assert window.size == FIRST_WINDOW


# ---- circuits ----


def test_closed_circuit_allows_all_sends() -> None:
    circuit = Circuit(1, 8)
    assert all(circuit.may_try(0) for _ in range(5))
    circuit.failed(0)
    assert circuit.is_open
    assert not circuit.may_try(0.99)


def test_one_probe_decides_after_the_pause() -> None:
    circuit = Circuit(1, 8)
    circuit.failed(0)
    assert circuit.may_try(1)
    assert not circuit.may_try(1)  # one, not two
    circuit.worked()
    assert not circuit.is_open
    assert circuit.may_try(1)


def test_circuit_pauses_double_and_simultaneous_failures_count_once() -> None:
    circuit, now, pauses = Circuit(1, 8), 0.0, []
    for _ in range(6):
        for _ in range(100):
            circuit.failed(now)
        began = now
        while not circuit.may_try(now):
            now += 0.5
        pauses.append(now - began)
    assert pauses == [1, 2, 4, 8, 8, 8]


def test_undecided_probe_can_be_repeated_at_once() -> None:
    circuit = Circuit(1, 8)
    circuit.failed(0)
    assert circuit.may_try(1)
    circuit.undecided(1)
    assert circuit.is_open
    assert circuit.may_try(1)


def test_pause_after_a_lost_connection_starts_with_the_next_connection() -> None:
    circuit = Circuit(1, 8)
    circuit.failed(0, lost_connection=True)
    assert not circuit.may_try(100)
    circuit.connected(100)
    assert not circuit.may_try(100.9)
    circuit.connected(100.9)  # a connection lost by another destination does not restart the pause
    assert circuit.may_try(101)


def test_retry_now_allows_a_probe_which_may_fail() -> None:
    circuit = Circuit(1, 8)
    circuit.failed(0)
    circuit.retry_now()
    assert circuit.may_try(0)
    circuit.failed(0)
    assert not circuit.may_try(1.9)


# ---- verdicts ----


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (RejectedError("busy", "com.microsoft:server-busy"), SendFailure.BUSY),
        (LinkDetachedError("busy", "com.microsoft:server-busy"), SendFailure.BUSY),
        (RejectedError("gone", "amqp:not-found"), SendFailure.DOWN),
        (RejectedError("off", "com.microsoft:entity-disabled"), SendFailure.DOWN),
        (RejectedError("full", "amqp:resource-limit-exceeded"), SendFailure.DOWN),
        (RejectedError("no", "amqp:unauthorized-access"), SendFailure.DOWN),
        (RejectedError("oops", "amqp:internal-error"), SendFailure.DOWN),
        (RejectedError("late", "com.microsoft:timeout"), SendFailure.DOWN),
        (RejectedError("bad", "com.microsoft:argument-error"), SendFailure.REFUSED),
        (RejectedError("no session", "amqp:not-allowed"), SendFailure.REFUSED),
        (RejectedError("large", "amqp:link:message-size-exceeded"), SendFailure.REFUSED),
        (RejectedError("", ""), SendFailure.REFUSED),
        (ModifiedError("tried"), SendFailure.REFUSED),
        (ReleasedError("did not look"), SendFailure.DOWN),
        (MessageTooLargeError(2, 1, "orders"), SendFailure.UNACCEPTABLE),
        (AnswerTimeoutError("late"), SendFailure.DOWN),
        (AuthenticationFailedError("no", "amqp:not-found", 404), SendFailure.DOWN),
        (LinkDetachedError("idle", "amqp:link:detach-forced"), SendFailure.LINK_ENDED),
        (LinkDetachedError("gone", "amqp:not-found"), SendFailure.DOWN),
        (ConnectionLostError("cut"), SendFailure.CONNECTION_LOST),
    ],
    ids=lambda one: f"{type(one).__name__} {one.condition}" if isinstance(one, AmqpError) else one.name,
)
def test_failed_send_is_classified(error: AmqpError, verdict: SendFailure) -> None:
    assert classify(error) is verdict


# ---- numbers ----


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=60), st.sets(st.integers(0, 50)), st.integers(0, 70))
def test_sequence_numbers_are_sorted_and_unique(added: list[int], gone: set[int], count: int) -> None:
    numbers = SequenceNumbers()
    for number in added:
        numbers.add(number)
    numbers.remove(gone)
    expected = sorted(set(added) - gone)
    assert numbers.first(count) == expected[:count]
    assert len(numbers) == len(expected)


def test_memory_of_accepted_messages_is_bounded() -> None:
    guard = DuplicateGuard()
    for number in range(20_000):
        guard.accepted((number, 0))
    assert not guard.has_accepted((0, 0))
    assert guard.has_accepted((19_999, 0))
    guard.completed((19_999, 0))
    assert not guard.has_accepted((19_999, 0))
