"""Runs an event loop on its own thread, for the background work of a synchronous client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

_T = TypeVar("_T")

#: Timeouts of closing: for tasks, for a hanging resolver, and for the thread in total.
CLEAN_UP_TIMEOUT = 3.0
WORKERS_TIMEOUT = 0.5
JOIN_TIMEOUT = 4.0
MAX_WORKERS = 4


class PrivateLoop:
    """Runs coroutines for threads without an event loop. The first coroutine starts the thread."""

    def __init__(self, name: str = "twinbus-background") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this loop."""
        return threading.current_thread() is self._thread

    def submit(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Start to await `work` on the loop.

        Raises:
            RuntimeError: the loop was closed.
        """
        try:
            loop = self._running()
        except RuntimeError:
            work.close()
            raise
        return asyncio.run_coroutine_threadsafe(work, loop)

    def run(self, work: Coroutine[Any, Any, _T], seconds: float | None = None) -> _T:
        """Await `work` on the loop and return its result; cancel it after `seconds`.

        Raises:
            TimeoutError: it took longer than that.
            RuntimeError: the loop was closed, or it is the caller's own.
        """
        if self.is_current:
            work.close()
            raise RuntimeError("the background cannot wait for itself")
        future = self.submit(work)
        try:
            return future.result(seconds)
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancel what still runs, and end the thread."""
        with self._lock:
            loop, thread, self._is_closed = self._loop, self._thread, True
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join(JOIN_TIMEOUT)

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the client was closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                # A daemon: a program that forgets to close its client must still be able to end.
                self._thread = threading.Thread(target=_serve, args=(self._loop,), name=self._name, daemon=True)
                self._thread.start()
            return self._loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    # Resolves host names for the loop.
    workers = ThreadPoolExecutor(MAX_WORKERS, "twinbus-worker")
    loop.set_default_executor(workers)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=CLEAN_UP_TIMEOUT))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
        _end_workers(workers)


def _end_workers(workers: ThreadPoolExecutor) -> None:
    """End the idle threads now. A busy one ends with its work; `shutdown` would wait for it."""
    ending = threading.Thread(target=workers.shutdown, kwargs={"cancel_futures": True}, daemon=True)
    try:
        ending.start()
    except RuntimeError:  # in atexit functions, since Python 3.12
        workers.shutdown(wait=False, cancel_futures=True)
    else:
        ending.join(WORKERS_TIMEOUT)
