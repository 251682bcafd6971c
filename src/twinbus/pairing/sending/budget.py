"""How long a call and its attempts may take, and the pauses between attempts while the service is busy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from azure.core.pipeline.policies import RetryMode

from ..checks import check_count, number

#: Unless the client options say otherwise. Pauses of a call without a timeout are counted instead.
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


@dataclass(frozen=True, slots=True)
class Retries:
    """The `retry_*` options of a client, as far as they were given: how often and when a busy namespace is asked again.

    Nothing else is tried again after a pause: what cannot be reached is diverted, or raised.
    """

    total: int | None = None
    backoff_factor: float | None = None
    backoff_max: float | None = None
    is_fixed: bool = False

    @classmethod
    def of(cls, client_options: Mapping[str, Any]) -> Retries:
        """Raises `TypeError` or `ValueError`, which name the option, where the SDK would fail later or never retry."""
        total = client_options.get("retry_total")
        if total is not None:
            check_count("retry_total", total, minimum=0)
        factor = _seconds("retry_backoff_factor", client_options)
        longest = _seconds("retry_backoff_max", client_options)
        mode = client_options.get("retry_mode", RetryMode.Exponential)
        if mode not in tuple(RetryMode):
            raise ValueError(f"retry_mode must be 'exponential' or 'fixed', not {mode!r}")
        return cls(total, factor, longest, is_fixed=mode == RetryMode.Fixed)


#: Of a client that was given none.
NO_RETRY_OPTIONS = Retries()


def _seconds(name: str, client_options: Mapping[str, Any]) -> float | None:
    value = client_options.get(name)
    if value is None:
        return None
    seconds = number(name, value)
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{name} must be at least 0 s, not {value!r}")
    return seconds


class Pauses:
    """How long to wait before the next try where the service is busy: ever longer, and never all at the same time."""

    def __init__(self, random: Random, retries: Retries) -> None:
        self._random = random
        self._retries = retries
        self._taken = 0

    def next(self, left: float) -> float | None:
        """The next pause in seconds, if `left` are left; None: give up."""
        total = self._retries.total
        if total is None and left == math.inf:
            total = MAX_PAUSES
        if total is not None and self._taken >= total:
            return None
        longest = self._longest()
        self._taken += 1
        pause = longest * self._random.uniform(0.5, 1.0)
        return pause if pause < left else None

    def _longest(self) -> float:
        retries = self._retries
        most = LONGEST_PAUSE if retries.backoff_max is None else retries.backoff_max
        # The SDK's first pause is twice the factor, and so on, or always the factor.
        first = FIRST_PAUSE if retries.backoff_factor is None else 2 * retries.backoff_factor
        if retries.is_fixed:
            return min(most, FIRST_PAUSE if retries.backoff_factor is None else retries.backoff_factor)
        return min(most, first * 2.0 ** min(self._taken, 30))
