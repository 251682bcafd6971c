"""The private event loop of a synchronous client's background."""

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


def test_exceptions_reach_the_calling_thread() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    loop = PrivateLoop(NAME)
    with pytest.raises(ZeroDivisionError):
        loop.run(fail())
    loop.close()


def test_slow_coroutine_is_cancelled() -> None:
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


def test_close_cancels_running_coroutines_which_clean_up() -> None:
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


def test_closed_loop_raises() -> None:
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
