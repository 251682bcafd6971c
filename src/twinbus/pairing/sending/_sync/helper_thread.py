"""Makes calls in a separate thread, so that callers can abandon calls that take too long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from ...sdk import deadline

T = TypeVar("T")


class HelperCall(Generic[T]):
    """One call and its result or error."""

    def __init__(self, function: Callable[..., T], arguments: tuple[Any, ...], seconds: float) -> None:
        self.ends = time.monotonic() + seconds
        self._function = function
        self._arguments = arguments
        self._is_over = threading.Event()
        self._result: list[T] = []
        self._error: BaseException | None = None

    @property
    def is_running(self) -> bool:
        """Whether the call has not ended yet."""
        return not self._is_over.is_set()

    def run(self) -> None:
        """Make the call."""
        try:
            self._result.append(self._function(*self._arguments))
        except BaseException as error:
            self._error = error
        finally:
            self._is_over.set()

    def wait(self) -> bool:
        """Wait until the call ends or its time is up; return whether it has ended."""
        return self._is_over.wait(max(0.0, self.ends - time.monotonic()))

    def result(self) -> T:
        """Return the result of the call, or raise its error."""
        if self._error is not None:
            raise self._error
        return self._result[0]


class Helper:
    """A thread that makes submitted calls one after another."""

    def __init__(self, given_up: threading.Event) -> None:
        self._given_up = given_up
        self._calls: SimpleQueue[HelperCall[Any] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="twinbus-link", daemon=True)
        self._thread.start()

    def submit(self, call: HelperCall[Any]) -> None:
        """Make a call after those that were submitted before it."""
        self._calls.put(call)

    def end(self, *, wait: bool = False) -> None:
        """End the thread after the submitted calls."""
        self._calls.put(None)
        if wait:
            self._thread.join()

    def _run(self) -> None:
        deadline.call.given_up = self._given_up
        while (call := self._calls.get()) is not None:
            deadline.call.ends = call.ends
            call.run()
