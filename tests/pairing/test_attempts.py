"""Calls on a link: one after the other, within their time, and none after its end."""

from __future__ import annotations

import asyncio

import pytest

from twinbus.pairing._async.attempts import Calls, Turn, TurnTimeoutError
from twinbus.pairing._sync.attempts import Turn as SyncTurn
from twinbus.pairing._sync.attempts import TurnTimeoutError as SyncTurnTimeoutError
from twinbus.pairing.errors import AttemptTimeoutError

PATIENCE = 10.0
MOMENT = 0.05


async def for_ever() -> None:
    await asyncio.Event().wait()


async def test_calls_are_made_one_after_the_other() -> None:
    calls, seen = Calls("orders"), []

    async def call(number: int) -> int:
        seen.append(("begins", number))
        await asyncio.sleep(0)
        seen.append(("ends", number))
        return number

    made = await asyncio.gather(*(calls.make(call, number, seconds=PATIENCE) for number in range(3)))
    assert made == [0, 1, 2]
    assert seen == [(what, number) for number in range(3) for what in ("begins", "ends")]
    calls.close()


async def test_a_call_that_takes_too_long_is_cancelled_and_one_that_waits_for_it_too() -> None:
    calls = Calls("orders")
    first = asyncio.create_task(calls.make(for_ever, seconds=MOMENT))
    await asyncio.sleep(0)
    with pytest.raises(TurnTimeoutError):
        await calls.make(for_ever, seconds=MOMENT / 2)
    with pytest.raises(AttemptTimeoutError) as raised:
        await first
    assert not isinstance(raised.value, TurnTimeoutError)
    calls.close()


async def test_a_short_time_is_kept_while_a_longer_one_runs() -> None:
    calls = Calls("orders")
    slow = asyncio.create_task(calls.make(asyncio.sleep, MOMENT, "done", seconds=PATIENCE))
    await asyncio.sleep(0)
    with pytest.raises(TurnTimeoutError):
        await calls.make(for_ever, seconds=MOMENT / 5)
    assert await slow == "done"
    calls.close()


async def test_a_cancellation_from_outside_stays_one() -> None:
    calls = Calls("orders")
    task = asyncio.create_task(calls.make(for_ever, seconds=PATIENCE))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # The next one gets its turn.
    assert await calls.make(asyncio.sleep, 0, "done", seconds=PATIENCE) == "done"
    calls.close()


async def test_after_the_end_of_a_link_no_call_is_made() -> None:
    calls = Calls("orders")
    under_way = asyncio.create_task(calls.make(for_ever, seconds=PATIENCE))
    waiting = asyncio.create_task(calls.make(for_ever, seconds=PATIENCE))
    await asyncio.sleep(0)
    calls.close()
    with pytest.raises(AttemptTimeoutError):
        await under_way
    with pytest.raises(TurnTimeoutError):
        await waiting
    with pytest.raises(TurnTimeoutError):
        await calls.make(asyncio.sleep, 0, seconds=PATIENCE)
    await calls.ended()


async def test_a_turn_is_waited_for_no_longer_than_said() -> None:
    turn = Turn()
    async with turn.taken("orders", PATIENCE):
        with pytest.raises(TurnTimeoutError):
            async with turn.taken("orders", MOMENT):
                pass
    async with turn.taken("orders", MOMENT):
        pass


def test_a_turn_of_threads_is_waited_for_no_longer_than_said() -> None:
    turn = SyncTurn()
    with turn.taken("orders", PATIENCE), pytest.raises(SyncTurnTimeoutError), turn.taken("orders", MOMENT):
        pass
    with turn.taken("orders", MOMENT):
        pass
