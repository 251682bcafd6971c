"""Tracks background tasks and cancels them on close."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

logger = logging.getLogger("twinbus.pairing")

#: Seconds that a cancelled task may take to close its connections.
CANCEL_TIMEOUT = 6.0
#: How often to cancel a task: the SDK can lose a cancellation (`asyncio.wait_for` before Python 3.12).
CANCEL_ATTEMPTS = 3

Work = Callable[..., Coroutine[Any, Any, None]]


class Tasks:
    """Tasks on one event loop. Their exceptions go to `on_error`."""

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self._on_error = on_error
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def open(self) -> None:
        """Run tasks on the running event loop."""
        self._loop = asyncio.get_running_loop()

    def begin(self, work: Work, *args: Any) -> None:
        """Start a task; ignored before `open` and after `close`."""
        if self._loop is not None and not self._is_closed:
            task = self._loop.create_task(self._run(work, *args))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def call_from_any_thread(self, function: Callable[..., None], *args: Any) -> None:
        """Call a function on the event loop, soon."""
        if self._loop is not None:
            # The loop may have been closed a moment ago.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(function, *args)

    async def repeat(self, step: Callable[[], Awaitable[float | None]], delay: float) -> None:
        """Run `step` after `delay` seconds, then again after as many seconds as it returns, until it returns None."""
        pause: float | None = delay
        while pause is not None and not self._is_closed:
            await asyncio.sleep(pause)
            pause = await step()

    async def close(self) -> None:
        """Cancel all tasks and wait for their end."""
        self._is_closed = True
        running: set[asyncio.Task[None]] = set(self._tasks)
        for _ in range(CANCEL_ATTEMPTS):
            if not running:
                return
            for task in running:
                task.cancel()
            _, running = await asyncio.wait(running, timeout=CANCEL_TIMEOUT)
        logger.error("%d background tasks did not end after being cancelled", len(running))

    async def _run(self, work: Work, *args: Any) -> None:
        try:
            await work(*args)
        except Exception as error:
            self._on_error(error)
