"""The event loop that a synchronous client keeps for its background."""

from __future__ import annotations

import asyncio
import threading

import pytest

from twinbus.pairing.private_loop import PrivateLoop

NAME = "private-loop-of-a-test"


def is_alive() -> bool:
    return any(thread.name == NAME for thread in threading.enumerate())


def test_the_thread_lives_from_the_first_use_to_the_end() -> None:
    loop = PrivateLoop(NAME)
    assert not is_alive()
    assert loop.run(asyncio.sleep(0, "done")) == "done"
    assert is_alive()
    loop.close()
    assert not is_alive()


def test_what_is_awaited_there_raises_here() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    loop = PrivateLoop(NAME)
    with pytest.raises(ZeroDivisionError):
        loop.run(fail())
    loop.close()


def test_what_takes_too_long_is_cancelled() -> None:
    cancelled = threading.Event()

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    loop = PrivateLoop(NAME)
    with pytest.raises(TimeoutError):
        loop.run(wait(), 0.05)
    assert cancelled.wait(5)
    loop.close()


def test_what_still_runs_at_the_end_is_cancelled_and_cleans_up() -> None:
    cleaned: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append("up")

    loop = PrivateLoop(NAME)
    future = loop.submit(wait())
    loop.run(asyncio.sleep(0))
    loop.close()
    assert cleaned == ["up"]
    assert future.cancelled()


def test_a_closed_loop_says_so() -> None:
    loop = PrivateLoop(NAME)
    loop.close()
    loop.close()
    with pytest.raises(RuntimeError, match="closed"):
        loop.run(asyncio.sleep(0))
    assert not is_alive()


def test_the_loop_cannot_wait_for_itself() -> None:
    loop = PrivateLoop(NAME)

    async def inner() -> None:
        loop.run(asyncio.sleep(0))

    with pytest.raises(RuntimeError, match="wait for itself"):
        loop.run(inner())
    loop.close()
