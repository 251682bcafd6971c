"""How long a call and its attempts may take, and what becomes of those that take longer."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable

logger = logging.getLogger("twinbus.pairing")

#: How often somebody who does not hear is cut off.
CUT_EVERY = 0.2
#: The pauses of somebody who has all the time in the world are counted.
MAX_PAUSES = 5
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 10.0


class Budget:
    """The time of one call, which its caller may have bounded, and the shares of it.

    Each attempt gets at most the option `attempt_timeout`; those on the primary leave as much for the backlog, or half
    of the whole where that is less.
    """

    __slots__ = ("_attempt", "_ends", "_reserve")

    def __init__(self, timeout: float | None, attempt: float) -> None:
        self._attempt = attempt
        self._ends: float | None = None
        if timeout is not None:
            self._ends = time.monotonic() + timeout
            self._reserve = min(attempt, timeout / 2)

    def left(self) -> float:
        """The seconds that are left of the whole."""
        return math.inf if self._ends is None else self._ends - time.monotonic()

    def before_backlog(self) -> float:
        """The seconds that are left without those for the backlog."""
        return math.inf if self._ends is None else self.left() - self._reserve

    def for_primary(self) -> float:
        """The seconds that an attempt on the primary may take now."""
        return self._attempt if self._ends is None else min(self._attempt, self.before_backlog())

    def for_backlog(self) -> float:
        """The seconds that an attempt on a backlog queue may take now."""
        return min(self._attempt, self.left())


class Pauses:
    """How long to wait before the next try where the service is busy: ever longer, and never all at the same time."""

    def __init__(self) -> None:
        self._taken = 0

    def next(self, left: float) -> float | None:
        """The next pause in seconds, if `left` are left; None: give up."""
        if left == math.inf and self._taken >= MAX_PAUSES:
            return None
        longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._taken, 30))
        self._taken += 1
        pause = longest * random.uniform(0.5, 1.0)
        return pause if pause < left else None


class Watchdog:
    """Cuts off what was given up on, again and again until it is over.

    Once is not enough: there are moments at which a connection that is being opened cannot be cut. The thread lives
    only as long as there is something to watch.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: list[tuple[Callable[[], None], Callable[[], bool]]] = []
        self._thread: threading.Thread | None = None

    def watch(self, cut: Callable[[], None], is_over: Callable[[], bool]) -> None:
        """Call `cut` now and then every moment, until `is_over`."""
        cut()
        with self._lock:
            self._watched.append((cut, is_over))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="twinbus-watchdog", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            time.sleep(CUT_EVERY)
            with self._lock:
                self._watched = [one for one in self._watched if not one[1]()]
                if not self._watched:
                    self._thread = None
                    return
                watched = list(self._watched)
            for cut, _ in watched:
                try:
                    cut()
                except Exception:
                    logger.exception("A connection that was given up on could not be cut")


#: One for the process.
watchdog = Watchdog()
