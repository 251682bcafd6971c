"""Ends calls of the SDK that take too long, for threads: they cannot be cancelled, but their connection can be cut."""

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

    #: When it has to be over, by `time.monotonic`; infinity while there is no call.
    ends: float

    def cut_overdue(self) -> None:
        """End the call."""


class Watchdog:
    """Ends overdue calls, again and again until they are over.

    Once is not enough: there are moments at which a connection that is being opened cannot be cut. The thread lives
    as long as there is something to watch, and sleeps until the earliest end that it knows of. So that setting `ends`
    costs next to nothing, only a call that ends before `next_look` has to call `hurry`.
    """

    def __init__(self) -> None:
        self.forked()
        watch_forks(self)

    def forked(self) -> None:
        """A forked child has no thread and watches nothing: it must not cut the connections of its parent."""
        self._changed = threading.Condition()
        self._watched: set[Watched] = set()
        self._thread: threading.Thread | None = None
        self.next_look = math.inf

    def watch(self, one: Watched) -> None:
        """Watch it from now on."""
        with self._changed:
            self._watched.add(one)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="twinbus-watchdog", daemon=True)
                self._thread.start()
            self._changed.notify()

    def forget(self, one: Watched) -> None:
        """Watch it no longer."""
        with self._changed:
            self._watched.discard(one)
            self._changed.notify()

    def hurry(self) -> None:
        """Look at once when to look next."""
        with self._changed:
            self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while self._watched:
                # A call that sets its end from here on will hurry us; those set before are seen below.
                self.next_look = math.inf
                now = time.monotonic()
                ends = [self._cut(one, now) if one.ends <= now else one.ends for one in self._watched]
                self.next_look = min(ends)
                self._changed.wait(None if self.next_look == math.inf else max(0.0, self.next_look - now))
            self._thread, self.next_look = None, math.inf

    @staticmethod
    def _cut(one: Watched, now: float) -> float:
        try:
            one.cut_overdue()
        except Exception:
            logger.exception("An overdue call could not be ended")
        return now + CUT_EVERY


#: One for the process.
watchdog = Watchdog()
