"""Runs the runtime of a client on the application's event loop. The version for threads has its own thread."""

# unasync: by hand

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from twinbus.pairing.namespace import Namespace
from twinbus.pairing.sending._async.synchronization import LoopBinding

from ..runtime import Runtime

_T = TypeVar("_T")


class Host:
    """Starts a runtime when it is first needed, and closes it."""

    def __init__(self, runtime: Runtime, on_failure: Callable[[BaseException], None]) -> None:
        self._runtime = runtime
        self._on_failure = on_failure
        self._starting: asyncio.Task[None] | None = None
        self._is_closed = False
        #: The event loop of the client and of its senders.
        self.loop = LoopBinding()

    def begin(self) -> None:
        """Start the runtime in the background, unless started; a failure is passed to `on_failure`."""
        if self._starting is not None or self._is_closed:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # not yet: a sender will run on a loop
        self.loop.check()
        self._starting = loop.create_task(self._runtime.start())
        self._starting.add_done_callback(self._started)

    def _started(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_failure(error)

    async def start(self) -> None:
        """Start the runtime, or wait until it has started. Raises what `Runtime.start` raises."""
        self.begin()
        if self._starting is not None:
            await asyncio.shield(self._starting)

    async def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Await a coroutine where the runtime runs."""
        return await work

    def call(self, function: Callable[[], _T]) -> _T:
        """Call a function where the runtime runs."""
        return function()

    def arguments(self, namespace: Namespace) -> dict[str, Any]:
        """Return the arguments for a client of the SDK."""
        return namespace.async_arguments()

    async def close(self) -> None:
        """Close the runtime, even one that is still starting."""
        self._is_closed = True
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait({self._starting})
        await self._runtime.close()
