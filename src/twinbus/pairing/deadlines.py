"""How long a call and its attempts may take, and what becomes of those that take longer."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from random import Random
from typing import Protocol

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

    __slots__ = ("_attempt", "_clock", "_ends", "_reserve")

    def __init__(self, timeout: float | None, attempt: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._attempt = attempt
        self._ends: float | None = None
        if timeout is not None:
            self._ends = clock() + timeout
            self._reserve = min(attempt, timeout / 2)

    def left(self) -> float:
        """The seconds that are left of the whole."""
        return math.inf if self._ends is None else self._ends - self._clock()

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

    def __init__(self, random: Random) -> None:
        self._random = random
        self._taken = 0

    def next(self, left: float) -> float | None:
        """The next pause in seconds, if `left` are left; None: give up."""
        if left == math.inf and self._taken >= MAX_PAUSES:
            return None
        longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._taken, 30))
        self._taken += 1
        pause = longest * self._random.uniform(0.5, 1.0)
        return pause if pause < left else None


class Watched(Protocol):
    """Something that another thread waits for."""

    #: When it has to be over, by `time.monotonic`; infinity while nobody waits.
    ends: float

    def cut(self) -> None:
        """Cut it off: whoever waits for it is told at once."""


class Watchdog:
    """Cuts off what takes too long, again and again until it is over.

    Once is not enough: there are moments at which a connection that is being opened cannot be cut. The thread lives
    as long as there is something to watch, and sleeps until the earliest end that it knows of. So that setting `ends`
    costs next to nothing, only somebody whose end comes before `next_look` has to call `hurry`.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watched: set[Watched] = set()
        self._thread: threading.Thread | None = None
        self.next_look = math.inf

    def watch(self, one: Watched) -> None:
        """Watch it from now on."""
        with self._changed:
            self._watched.add(one)
            # After a fork it is not alive.
            if self._thread is None or not self._thread.is_alive():
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
                # Whoever sets an end from here on will hurry us; those set before are seen below.
                self.next_look = math.inf
                now = time.monotonic()
                ends = [self._cut(one, now) if one.ends <= now else one.ends for one in self._watched]
                self.next_look = min(ends)
                self._changed.wait(None if self.next_look == math.inf else max(0.0, self.next_look - now))
            self._thread, self.next_look = None, math.inf

    @staticmethod
    def _cut(one: Watched, now: float) -> float:
        try:
            one.cut()
        except Exception:
            logger.exception("Something that took too long could not be cut off")
        return now + CUT_EVERY


#: One for the process.
watchdog = Watchdog()
