"""How long a call and its attempts may take, and the pauses between attempts while the service is busy."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

#: Pauses of a call without a timeout are counted instead.
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
        """The seconds that an attempt on the primary may take now, waiting for a link included."""
        return self._attempt if self._ends is None else min(self._attempt, self.before_backlog())

    def after_waiting(self) -> float:
        """The same for a call that has a link: one that had to wait into the time for the backlog gets that, too."""
        if self._ends is None:
            return self._attempt
        share = self.before_backlog()
        return min(self._attempt, share if share > 0 else self.left())

    def for_backlog(self) -> float:
        """The seconds that an attempt on a backlog queue may take now."""
        return min(self._attempt, self.left())

    def rest(self) -> float:
        """The seconds for which a call may go on waiting once its share is over."""
        return self._attempt if self._ends is None else self.left()


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
