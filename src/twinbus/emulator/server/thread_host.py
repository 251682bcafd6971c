"""Runs a namespace on its own thread, for synchronous programs and tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

from .namespace import Namespace

_T = TypeVar("_T")
START_TIMEOUT = 60.0


class NamespaceThread:
    """Runs a namespace on a private event loop while the context is entered.

    `run` awaits a coroutine there (`thread.run(thread.namespace.create(...))`), `call` calls a function there.
    No other thread may touch the namespace.
    """

    def __init__(self, create: Callable[[], Namespace]) -> None:
        self._create = create
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="twinbus-namespace", daemon=True)
        self.namespace: Namespace

    def __enter__(self) -> NamespaceThread:
        self._thread.start()
        try:
            self.namespace = self.run(self._start())
        except BaseException:
            self._end()
            raise
        return self

    async def _start(self) -> Namespace:
        namespace = self._create()
        await namespace.start()
        return namespace

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.run(self.namespace.close())
        finally:
            self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_TIMEOUT)
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Await `work` on the namespace's loop and return its result.

        Raises `RuntimeError` if the context was left.
        """
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # the loop is closed
            work.close()
            raise RuntimeError("the namespace is closed: its context was left") from None
        return future.result(START_TIMEOUT)

    def call(self, function: Callable[..., _T], *args: Any) -> _T:
        """Call `function` on the namespace's loop and return its result; raises as `run` does."""

        async def call_function() -> _T:
            return function(*args)

        return self.run(call_function())

    @property
    def connection_string(self) -> str:
        """Connection string for the SDK, with every right. It holds the key."""
        return self.namespace.connection_string
