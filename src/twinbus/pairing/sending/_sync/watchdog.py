"""Ends SDK calls that take too long, for threads: it cuts their connection, because threads cannot be cancelled."""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import Protocol

from ...forks import watch_forks

logger = logging.getLogger("twinbus.pairing")

#: Seconds between two cuts of the same connection.
CUT_EVERY = 0.2


class Watched(Protocol):
    """A call that a thread waits for."""

    #: When it must end, by `time.monotonic`; infinity while there is no call.
    ends: float

    def cut_overdue(self) -> None:
        """End the call."""


class Watchdog:
    """Ends overdue calls, repeatedly until they have ended.

    Once is not enough: at some moments an opening connection cannot be cut. The thread lives while there is something
    to watch, and sleeps until the earliest known end. To keep setting `ends` cheap, only a call that ends before
    `next_look` has to call `hurry`.
    """

    def __init__(self) -> None:
        self.forked()
        watch_forks(self)

    def forked(self) -> None:
        """Reset in a forked child: it must not cut the connections of its parent."""
        self._changed = threading.Condition()
        self._watched: set[Watched] = set()
        self._thread: threading.Thread | None = None
        self.next_look = math.inf

    def watch(self, watched: Watched) -> None:
        """Start to watch a link."""
        with self._changed:
            self._watched.add(watched)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="twinbus-watchdog", daemon=True)
                self._thread.start()
            self._changed.notify()

    def forget(self, watched: Watched) -> None:
        """Stop watching a link."""
        with self._changed:
            self._watched.discard(watched)
            self._changed.notify()

    def hurry(self) -> None:
        """Recompute at once when to look next."""
        with self._changed:
            self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while self._watched:
                # A call that sets its end from here on calls `hurry`; earlier ones are seen below.
                self.next_look = math.inf
                now = time.monotonic()
                ends = [self._cut(watched, now) if watched.ends <= now else watched.ends for watched in self._watched]
                self.next_look = min(ends)
                self._changed.wait(None if self.next_look == math.inf else max(0.0, self.next_look - now))
            self._thread, self.next_look = None, math.inf

    @staticmethod
    def _cut(watched: Watched, now: float) -> float:
        try:
            watched.cut_overdue()
        except Exception:
            logger.exception("Ending an overdue call failed")
        return now + CUT_EVERY


#: The watchdog of the process.
watchdog = Watchdog()
