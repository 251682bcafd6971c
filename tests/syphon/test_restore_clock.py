"""The broker's clock, estimated from its locks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.emulator.contract.bus import SettableClock
from tests.syphon.bus import PATIENCE, connect, message, receive

from twinbus.amqp.codec import sections
from twinbus.amqp.codec.types import DecodeError, Symbol, Timestamp
from twinbus.emulator import Namespace, QueueDescription
from twinbus.syphon import Connection
from twinbus.syphon.receiving.broker_clock import MAX_LOCK_MS, USUAL_LOCKS_MS, BrokerClock

NOW = 1_794_000_000_000
MINUTE = 60_000


def delivered(at: int, lock: int = MINUTE, waited: int = 0) -> bytes:
    """A message delivered at a time of the broker's clock, `waited` after it was enqueued."""
    times = {"x-opt-locked-until": Timestamp(at + lock), "x-opt-enqueued-time": Timestamp(at - waited)}
    entries = [sections.entry(Symbol(name), value) for name, value in times.items()]
    return sections.map_section(sections.MESSAGE_ANNOTATIONS, entries) + message()


def test_lock_gives_the_brokers_time_of_the_delivery() -> None:
    clock = BrokerClock(MINUTE)
    clock.observe(delivered(NOW, waited=10**9), at=100.0)
    assert clock.now_ms(at=100.0) == NOW
    assert clock.now_ms(at=107.5) == NOW + 7_500


def test_a_later_delivery_sets_the_clock() -> None:
    clock = BrokerClock(MINUTE)
    clock.observe(delivered(NOW, waited=10**9), at=0.0)
    clock.observe(delivered(NOW + 5_000, waited=10**9), at=1.0)
    assert clock.now_ms(at=1.0) == NOW + 5_000


@given(st.integers(1, MAX_LOCK_MS), st.lists(st.integers(0, 10**9), min_size=1, max_size=5))
def test_unknown_lock_duration_makes_the_clock_at_most_five_minutes_slow(lock: int, waited: list[int]) -> None:
    clock = BrokerClock()
    for one in waited:
        clock.observe(delivered(NOW, lock, one), at=0.0)
    assert NOW - MAX_LOCK_MS < clock.now_ms(at=0.0) <= NOW
    assert NOW - clock.now_ms(at=0.0) <= min(waited)


@given(st.sampled_from(USUAL_LOCKS_MS), st.floats(-1, 1), st.lists(st.integers(10**6, 10**9), min_size=1, max_size=5))
def test_lock_duration_is_estimated_by_a_nearly_correct_clock(lock: int, wrong: float, waited: list[int]) -> None:
    ours = NOW + round(wrong * lock / 13)
    clock = BrokerClock()
    for one in waited:
        clock.observe(delivered(NOW, lock, one), at=0.0, wall_ms=ours)
    assert clock.now_ms(at=0.0) == NOW


@given(st.integers(5_000, MAX_LOCK_MS), st.integers(0, 2_000))
def test_clock_is_not_fast_if_the_local_clock_is_correct(lock: int, late: int) -> None:
    clock = BrokerClock()
    clock.observe(delivered(NOW, lock, 10**9), at=0.0, wall_ms=NOW)
    clock.observe(delivered(NOW, lock, 10**9), at=0.0, wall_ms=NOW + late)
    assert NOW - MAX_LOCK_MS < clock.now_ms(at=0.0) <= NOW + lock / 12


@pytest.mark.parametrize("ahead", [-3600, -300, 58, 3600])
def test_wrong_local_clock_does_not_expire_messages_early(ahead: int) -> None:
    clock = BrokerClock()
    clock.observe(delivered(NOW, MINUTE, 10**9), at=0.0, wall_ms=NOW + ahead * 1000)
    assert clock.now_ms(at=0.0) == NOW + MINUTE - MAX_LOCK_MS


def test_message_without_a_lock_does_not_set_the_clock() -> None:
    clock = BrokerClock(MINUTE)
    clock.observe(message(), at=0.0)
    assert clock.now_ms(at=0.0) == 0
    with pytest.raises(DecodeError):
        clock.observe(b"no message", at=0.0)


@pytest.mark.parametrize("lock_ms", [0, -1, MAX_LOCK_MS + 1])
def test_lock_duration_out_of_bounds_is_refused(lock_ms: int) -> None:
    with pytest.raises(ValueError, match=f"lock_ms must be from 1 to {MAX_LOCK_MS}"):
        BrokerClock(lock_ms)


@pytest.fixture
async def ahead() -> AsyncIterator[tuple[SettableClock, Connection]]:
    """A namespace whose clock is a quarter of an hour ahead of ours, with the queue `orders`."""
    time = SettableClock()
    time.ahead = 900.0
    async with Namespace("contoso", clock=time) as namespace:
        await namespace.create(QueueDescription("orders", lock_duration=45 * 10_000_000))
        async with connect(namespace) as connection:
            yield time, connection


async def test_clock_of_a_real_namespace_is_read_without_the_local_clock(
    ahead: tuple[SettableClock, Connection],
) -> None:
    time, connection = ahead
    sender = await connection.attach_sender("orders")
    for clock in (BrokerClock(45_000), BrokerClock()):
        receiver, inbox = await receive(connection, "orders", 1)
        await sender.deliver(message(), PATIENCE)
        payload = (await inbox.take_one()).payload
        now = asyncio.get_running_loop().time()
        clock.observe(payload, now)
        assert abs(clock.now_ms(now) - time() * 1000) < 1000
        await receiver.close(PATIENCE)
