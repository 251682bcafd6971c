"""The tasks of something that comes to an end, and then has none."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

logger = logging.getLogger("twinbus.pairing")

#: A task that is cancelled may have to take leave of a peer; longer than that nobody takes.
PATIENCE = 6.0
#: How often a task is cancelled: what waits inside the SDK can lose a cancellation (`asyncio.wait_for` before 3.12).
ROUNDS = 3

Work = Callable[..., Coroutine[Any, Any, None]]


class Tasks:
    """Tasks on one event loop. What one of them raises is handed to `on_error`."""

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self._on_error = on_error
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def open(self) -> None:
        """Tasks will run on the running event loop."""
        self._loop = asyncio.get_running_loop()

    def begin(self, work: Work, *args: Any) -> None:
        """Begin something. Before `open` and after `close` it is left undone."""
        if self._loop is not None and not self._is_closed:
            task = self._loop.create_task(self._run(work, *args))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def call_from_any_thread(self, function: Callable[..., None], *args: Any) -> None:
        """Call something on the event loop, soon."""
        if self._loop is not None:
            # The loop may have been closed a moment ago.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(function, *args)

    async def repeat(self, step: Callable[[], Awaitable[float | None]], delay: float) -> None:
        """Wait, do a step, wait for as many seconds as it has returned, and so on until that is None."""
        following: float | None = delay
        while following is not None and not self._is_closed:
            await asyncio.sleep(following)
            following = await step()

    async def close(self) -> None:
        """Cancel all tasks and wait for their end."""
        self._is_closed = True
        left: set[asyncio.Task[None]] = set(self._tasks)
        for _ in range(ROUNDS):
            if not left:
                return
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=PATIENCE)
        logger.error("%d tasks of the background did not end", len(left))

    async def _run(self, work: Work, *args: Any) -> None:
        try:
            await work(*args)
        except Exception as error:
            self._on_error(error)
