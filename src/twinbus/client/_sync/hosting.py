"""Runs the runtime of a client on an event loop of its own. Written by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from twinbus.pairing.namespace import Namespace
from twinbus.pairing.private_loop import PrivateLoop
from twinbus.pairing.sending._sync.synchronization import LoopBinding

from ..runtime import Runtime

_T = TypeVar("_T")

#: Seconds to wait for the loop, beyond the timeouts of the work on it.
PATIENCE = 300.0
#: Seconds for the runtime to close, before its loop is stopped.
CLOSING = 4.0


class Host:
    """Starts a runtime when it is first needed, and closes it."""

    def __init__(self, runtime: Runtime, on_failure: Callable[[BaseException], None]) -> None:
        self._runtime = runtime
        self._on_failure = on_failure
        self._loop = PrivateLoop()
        self._lock = threading.Lock()
        self._starting: Future[None] | None = None
        self._is_closed = False
        #: Nothing here belongs to an event loop of the application.
        self.loop = LoopBinding()

    def begin(self) -> None:
        """Start the runtime in the background, unless started; a failure is passed to `on_failure`."""
        with self._lock:
            if self._starting is not None or self._is_closed:
                return
            self._starting = self._loop.submit(self._runtime.start())
        self._starting.add_done_callback(self._started)

    def _started(self, future: Future[None]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self._on_failure(error)

    def start(self) -> None:
        """Start the runtime, or wait until it has started. Raises what `Runtime.start` raises."""
        self.begin()
        if self._starting is not None:
            self._starting.result(PATIENCE)

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Await a coroutine where the runtime runs."""
        return self._loop.run(work, PATIENCE)

    def call(self, function: Callable[[], _T]) -> _T:
        """Call a function where the runtime runs."""
        if self._starting is None or self._is_closed or self._loop.is_current:
            return function()  # nothing runs there, or this is its thread

        async def called() -> _T:
            return function()

        return self.run(called())

    def arguments(self, namespace: Namespace) -> dict[str, Any]:
        """Return the arguments for a client of the SDK."""
        return namespace.sync_arguments(self._loop.run)

    def close(self) -> None:
        """Close the runtime, even one that is still starting, and its thread."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
        if was_closed:
            return
        try:
            if self._starting is not None:
                self._starting.cancel()
                self._loop.run(self._runtime.close(), CLOSING)
        finally:
            self._loop.close()
