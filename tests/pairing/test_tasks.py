"""Background tasks end when they are told to, also those that did not hear it."""

from __future__ import annotations

import asyncio

import pytest

from twinbus.pairing import tasks
from twinbus.pairing.tasks import Tasks


def fail(error: Exception) -> None:
    raise AssertionError(error)


async def forever() -> None:
    await asyncio.Event().wait()


async def test_nothing_runs_after_the_end() -> None:
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
    monkeypatch.setattr(tasks, "PATIENCE", 0.05)
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


async def test_what_is_repeated_ends_also_if_a_step_has_swallowed_the_cancellation() -> None:
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
    async with asyncio.timeout(tasks.PATIENCE):
        await running.close()
    assert len(steps) == 1


async def test_a_step_says_when_the_next_one_is_due_or_that_there_is_none() -> None:
    left: list[float | None] = [0.0, 0.01, None]

    async def step() -> float | None:
        return left.pop(0)

    await Tasks(fail).repeat(step, 0.0)
    assert left == []


async def test_what_a_task_raises_is_handed_over() -> None:
    raised: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    async def broken() -> None:
        raise ZeroDivisionError

    running = Tasks(raised.set_result)
    running.open()
    running.begin(broken)
    assert isinstance(await asyncio.wait_for(raised, 30), ZeroDivisionError)
    await running.close()
