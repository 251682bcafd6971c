"""Background tasks end on close, even if they lose a cancellation."""

from __future__ import annotations

import asyncio

import pytest

from twinbus.pairing import background_tasks as tasks
from twinbus.pairing.background_tasks import Tasks


def fail(error: Exception) -> None:
    raise AssertionError(error)


async def forever() -> None:
    await asyncio.Event().wait()


async def test_nothing_runs_after_close() -> None:
    before = asyncio.all_tasks()
    running = Tasks(fail)
    running.begin(forever)
    assert asyncio.all_tasks() == before  # it was not opened
    running.open()
    running.begin(forever)
    assert asyncio.all_tasks() > before
    await running.close()
    running.begin(forever)
    assert asyncio.all_tasks() == before


async def test_a_task_that_has_lost_its_cancellation_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "CANCEL_TIMEOUT", 0.05)
    lost: list[str] = []

    async def deaf() -> None:
        try:
            await forever()
        except asyncio.CancelledError:
            lost.append("one")
        await forever()

    before = asyncio.all_tasks()
    running = Tasks(fail)
    running.open()
    running.begin(deaf)
    await asyncio.sleep(0)
    await running.close()
    assert lost == ["one"]
    assert asyncio.all_tasks() == before


async def test_repetition_ends_even_if_a_step_swallows_the_cancellation() -> None:
    steps: list[int] = []

    async def step() -> float:
        steps.append(1)
        try:
            await forever()
        except asyncio.CancelledError:
            return 0.0
        return 0.0

    running = Tasks(fail)
    running.open()
    running.begin(running.repeat, step, 0.0)
    while not steps:  # noqa: ASYNC110
        await asyncio.sleep(0)
    async with asyncio.timeout(tasks.CANCEL_TIMEOUT):
        await running.close()
    assert len(steps) == 1


async def test_step_returns_the_next_delay_or_none() -> None:
    left: list[float | None] = [0.0, 0.01, None]

    async def step() -> float | None:
        return left.pop(0)

    await Tasks(fail).repeat(step, 0.0)
    assert left == []


async def test_task_exceptions_are_passed_on() -> None:
    raised: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    async def broken() -> None:
        raise ZeroDivisionError

    running = Tasks(raised.set_result)
    running.open()
    running.begin(broken)
    assert isinstance(await asyncio.wait_for(raised, 30), ZeroDivisionError)
    await running.close()
