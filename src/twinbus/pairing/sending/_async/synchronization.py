"""Waiting, tasks and time for asyncio. The version for threads is written by hand."""

# unasync: by hand

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

logger = logging.getLogger("twinbus.pairing")

T = TypeVar("T")

sleep = asyncio.sleep

#: Seconds between two cancellations of a task: the SDK can lose one (`asyncio.wait_for` before Python 3.12).
CANCEL_AGAIN = 0.2


class LoopBinding:
    """Refuses any event loop but the first: connections belong to the loop they were opened on."""

    __slots__ = ("_loop",)

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_current(self) -> bool:
        """Whether it is bound to the running event loop."""
        return asyncio.get_running_loop() is self._loop

    def check(self) -> None:
        """Bind to the running event loop.

        Raises:
            RuntimeError: it was used on another one before.
        """
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        elif not self.is_current:
            raise RuntimeError(
                "The client was used on another event loop before, and belongs to it. Make a client for each event"
                " loop: inside the coroutine that asyncio.run is given, not outside."
            )


class Waiter(Generic[T]):
    """One task that waits for one value. `give` and `fail` may be called from any thread, under the same lock."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._value: T | None = None
        self._error: BaseException | None = None
        #: Whether it got a value or an error, or stopped waiting.
        self.is_done = False

    def give(self, value: T) -> bool:
        """Hand over the value; return False if no one waits any more."""
        if self.is_done:
            return False
        self._value = value
        self._wake()
        return True

    def fail(self, error: BaseException) -> None:
        """Make `wait` raise the error."""
        if not self.is_done:
            self._error = error
            self._wake()

    def abandon(self) -> T | None:
        """Stop waiting; return the value if it was given one."""
        self.is_done = True
        return self._value

    def _wake(self) -> None:
        self.is_done = True
        if _running_loop() is self._loop:
            self._woken.set()
        else:
            with contextlib.suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(self._woken.set)

    async def wait(self, seconds: float | None = None) -> T:
        """Wait for the value and return it. After a `TimeoutError` it can be called again.

        Raises:
            TimeoutError: there was none within `seconds`.
            BaseException: what `fail` was given.
        """
        if not self.is_done:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self._value  # type: ignore[return-value]


class Tasks:
    """Background tasks of a sender, on the event loop on which it is used."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def bind(self) -> None:
        """Run tasks on the running event loop from now on."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()

    def start(self, work: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Start a task, from any thread. Its failure is only logged."""
        if self._loop is None or self._loop.is_closed():
            return
        if _running_loop() is self._loop:
            self._start(work, *arguments)
        else:
            self._loop.call_soon_threadsafe(self._start, work, *arguments)

    def _start(self, work: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        task = asyncio.ensure_future(self._run(work, *arguments))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, work: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        try:
            await work(*arguments)
        except Exception as error:
            logger.error("%s failed", getattr(work, "__qualname__", work), exc_info=error)

    def cancel(self) -> None:
        """Cancel all tasks, repeatedly until they have ended: the SDK's cleanup can be slow."""
        for task in self._tasks:
            task.cancel()
        if self._tasks and self._loop is not None:
            self._loop.call_later(CANCEL_AGAIN, self.cancel)

    async def close(self, seconds: float) -> None:
        """Wait for the tasks, and cancel those still running after `seconds`."""
        left = self._tasks - {asyncio.current_task()}
        if left:
            _, left = await asyncio.wait(left, timeout=seconds)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=1.0)


async def in_parallel(calls: Sequence[Callable[[], Awaitable[None]]], seconds: float) -> None:
    """Await all calls in parallel, for at most `seconds`; then cancel the rest."""
    tasks = {asyncio.ensure_future(call()) for call in calls}
    if not tasks:
        return
    done, left = await asyncio.wait(tasks, timeout=seconds)
    for task in left:
        task.add_done_callback(_log_failure)
        task.cancel()
    for task in done:
        _log_failure(task)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.debug("Closing failed: %r", task.exception())


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
