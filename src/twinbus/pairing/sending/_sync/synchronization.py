"""Waiting, tasks and time for threads. Written by hand."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

logger = logging.getLogger("twinbus.pairing")

T = TypeVar("T")

sleep = time.sleep


class LoopBinding:
    """Refuses nothing: threads may share everything."""

    __slots__ = ()
    is_current = True

    def check(self) -> None:
        """Do nothing."""


class Waiter(Generic[T]):
    """One thread that waits for one value. `give` and `fail` may be called from any thread, under the same lock."""

    def __init__(self) -> None:
        self._woken = threading.Event()
        self._value: T | None = None
        self._error: BaseException | None = None
        #: Whether it got a value or an error, or stopped waiting.
        self.is_done = False

    def give(self, value: T) -> bool:
        """Hand over the value; return False if no one waits any more."""
        if self.is_done:
            return False
        self._value = value
        self.is_done = True
        self._woken.set()
        return True

    def fail(self, error: BaseException) -> None:
        """Make `wait` raise the error."""
        if not self.is_done:
            self._error = error
            self.is_done = True
            self._woken.set()

    def abandon(self) -> T | None:
        """Stop waiting; return the value if it was given one."""
        self.is_done = True
        return self._value

    def wait(self, seconds: float | None = None) -> T:
        """Wait for the value and return it. After a `TimeoutError` it can be called again.

        Raises:
            TimeoutError: there was none within `seconds`.
            BaseException: what `fail` was given.
        """
        if not self._woken.wait(None if seconds is None else max(0.0, min(seconds, threading.TIMEOUT_MAX))):
            raise TimeoutError
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self._value  # type: ignore[return-value]


class Tasks:
    """Background threads of a sender. As daemons they never keep a program from ending."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()

    def bind(self) -> None:
        """Do nothing: threads need no loop."""

    def start(self, work: Callable[..., None], *arguments: Any) -> None:
        """Start a thread. Its failure is only logged."""
        thread = threading.Thread(target=self._run, args=(work, *arguments), name="twinbus-sender", daemon=True)
        with self._lock:
            self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:  # in atexit functions, since Python 3.12
            with self._lock:
                self._threads.discard(thread)
            self._run(work, *arguments)

    def _run(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except Exception as error:
            logger.error("%s failed", getattr(work, "__qualname__", work), exc_info=error)
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def cancel(self) -> None:
        """Do nothing: threads cannot be cancelled; cut what they wait for."""

    def close(self, seconds: float) -> None:
        """Wait for the threads, at most `seconds` in total."""
        with self._lock:
            threads = list(self._threads)
        _join(threads, seconds)


def in_parallel(calls: Sequence[Callable[[], None]], seconds: float) -> None:
    """Make all calls in parallel, and wait for them for at most `seconds`."""
    threads = []
    for call in calls:
        thread = threading.Thread(target=_quietly, args=(call,), name="twinbus-close", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # in atexit functions, since Python 3.12
            _quietly(call)
        else:
            threads.append(thread)
    _join(threads, seconds)


def _quietly(call: Callable[[], None]) -> None:
    try:
        call()
    except Exception as error:
        logger.debug("Closing failed: %r", error)


def _join(threads: Sequence[threading.Thread], seconds: float) -> None:
    ends = time.monotonic() + seconds
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(max(0.0, ends - time.monotonic()))
