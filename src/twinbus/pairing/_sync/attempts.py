"""One SDK sender, and what is done with it within a time. Written by hand: threads cannot be cancelled.

A call that takes too long is ended by cutting the connection, and fails then. While a link is being opened not even
that always helps: the SDK may wait for the name service or for a token. So a link is opened by a thread of its own,
on which the caller can give up. That thread has no message to send, and ends when there is something to cut.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from azure.servicebus import ServiceBusSender

from .. import sdk_seam
from ..deadlines import watchdog
from ..errors import AttemptTimeoutError

logger = logging.getLogger("twinbus.pairing")

#: The longest that good-byes are waited for.
ENDING = 5.0

sleep = time.sleep
#: The time by which everything here is measured.
monotonic = time.monotonic

T = TypeVar("T")


class TurnTimeoutError(AttemptTimeoutError):
    """Others were before us for all of the time; nothing was tried."""


class Turn:
    """One at a time, each with a time to wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def taken(self, path: str, seconds: float) -> Iterator[None]:
        """Raises `TurnTimeoutError` if it takes longer."""
        if not self._lock.acquire(timeout=max(0.0, seconds)):
            raise TurnTimeoutError(path, seconds)
        try:
            yield
        finally:
            self._lock.release()


class Aside:
    """Does something that nobody waits for, one thing at a time. What goes wrong there is only logged."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def begin(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do it, unless something is being done."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._do, args=(work, *arguments), name="twinbus-aside", daemon=True)
            self._thread.start()

    def _do(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except Exception as error:
            logger.debug("Something was not done: %r", error)

    def close(self) -> None:
        """Wait for its end, no longer than a few seconds."""
        if self._thread is not None:
            self._thread.join(ENDING)


class Link:
    """A link to one entity. It is opened once, and thrown away when something is wrong with it.

    It may be used by several threads: each waits for its turn. In the SDK's sender they could wait for ever.
    """

    def __init__(self, sender: ServiceBusSender, path: str) -> None:
        sdk_seam.prepare(sender)
        self.sender = sender
        self.path = path
        #: Found dead while nobody used it.
        self.is_broken = False
        #: When the opening or the call that is under way has to be over.
        self.ends = math.inf
        self._is_overdue = False
        self._is_idle = False
        self._lock = threading.Lock()
        # Held by the thread that uses the SDK's sender.
        self._calling = threading.Lock()
        self._opening: threading.Thread | None = None
        self._opened = threading.Event()
        self._error: BaseException | None = None
        self._is_discarded = False
        self._keep_alive: threading.Thread | None = None
        self._stopped = threading.Event()

    def open(self, seconds: float) -> None:
        """Open it. If that fails the link is no good any more.

        Raises:
            AttemptTimeoutError: it took longer.
            azure.servicebus.exceptions.ServiceBusError: whatever the SDK says.
        """
        self.ends = monotonic() + seconds
        watchdog.watch(self)
        self._opening = threading.Thread(target=self._open, name="twinbus-opening", daemon=True)
        self._opening.start()
        try:
            if not self._opened.wait(seconds) or self._is_overdue:
                raise AttemptTimeoutError(self.path, seconds)
            if self._error is not None:
                raise self._error
        except BaseException:
            self.discard()
            raise
        interval = sdk_seam.opened(self.sender)
        if interval:
            self._keep_alive = threading.Thread(
                target=self._stay, args=(interval,), name="twinbus-keep-alive", daemon=True
            )
            self._keep_alive.start()

    def _open(self) -> None:
        try:
            self.sender.__enter__()
        except BaseException as error:
            self._error = error
        with self._lock:
            self.ends = math.inf
            self._opened.set()
            is_unwanted = self._is_discarded
        if is_unwanted:
            self._end()

    def make(self, call: Callable[..., T], *arguments: Any, seconds: float) -> T:
        """Make a call of its sender, when it is its turn.

        Raises:
            TurnTimeoutError: its turn did not come in time, or never will.
            AttemptTimeoutError: it took longer, or was broken off.
            azure.servicebus.exceptions.ServiceBusError: whatever the SDK says.
        """
        self._is_idle = False
        ends = monotonic() + seconds
        if not self._calling.acquire(False) and not self._calling.acquire(timeout=max(0.0, seconds)):
            raise TurnTimeoutError(self.path, seconds)
        try:
            # The SDK would open a sender that was closed anew, and nobody could give up on that.
            if self._is_discarded:
                raise TurnTimeoutError(self.path, seconds)
            self.ends = ends
            if ends < watchdog.next_look:
                watchdog.hurry()
            return call(*arguments)
        except Exception as error:
            if self._is_overdue:
                raise AttemptTimeoutError(self.path, seconds) from error
            raise
        finally:
            self.ends = math.inf
            self._calling.release()

    def cut(self) -> None:
        """Break off what is under way: its end has come."""
        self._is_overdue = True
        sdk_seam.abort(self.sender)

    def _stay(self, interval: float) -> None:
        """Keep an idle link alive, and find out if it is not."""
        while not self.is_broken:
            self._is_idle = True
            if self._stopped.wait(interval):
                return
            if not self._is_idle or not self._calling.acquire(False):
                continue
            try:
                sdk_seam.listen(self.sender)
                self.is_broken = not sdk_seam.is_open(self.sender)
            except Exception as error:
                logger.debug("An idle link to %s broke: %r", self.path, error)
                self.is_broken = True
            finally:
                self._calling.release()

    # ---- the end ----

    def discard(self) -> None:
        """Cut it off now. An opening that is still under way clears up behind itself."""
        with self._lock:
            if self._is_discarded:
                return
            self._is_discarded = True
            is_opening = not self._opened.is_set()
            if is_opening:
                self.ends = 0.0
        if is_opening:
            watchdog.hurry()
        else:
            sdk_seam.abort(self.sender)
            self._end()

    def close(self) -> None:
        """Take leave of the peer, or wait until the link that was discarded is gone; no longer than a few seconds."""
        with self._lock:
            is_new, self._is_discarded = not self._is_discarded, True
        if is_new:
            self._end()
        for thread in (self._opening, self._keep_alive):
            if thread is not None:
                thread.join(ENDING)

    @property
    def is_gone(self) -> bool:
        """Whether nothing is left of it."""
        threads = (self._opening, self._keep_alive)
        return self._is_discarded and not any(thread is not None and thread.is_alive() for thread in threads)

    def _end(self) -> None:
        watchdog.forget(self)
        self._stopped.set()
        is_alone = self._calling.acquire(timeout=ENDING)
        # What is broken may fail to say good-bye.
        for close in (self.sender.close, partial(sdk_seam.forgotten, self.sender)):
            try:
                close()
            except Exception as error:
                logger.debug("A link to %s did not close: %r", self.path, error)
        if is_alone:
            self._calling.release()
