"""Computes how long a call and its attempts may take, and the pauses while the service is busy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from azure.core.pipeline.policies import RetryMode

from ..argument_checks import check_choice, check_count, number

#: Defaults, where client options set none. A call without a timeout gets at most `MAX_PAUSES` pauses.
MAX_PAUSES = 5
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 10.0


class Budget:
    """The time of one call, bounded by its caller's timeout if there is one, and how it is shared.

    Each attempt gets at most the option `attempt_timeout`. Attempts on the primary leave as much for the backlog, or
    half of the timeout where that is less.
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
        """Return the seconds left of the timeout."""
        return math.inf if self._ends is None else self._ends - self._clock()

    def before_backlog(self) -> float:
        """Return the seconds left, without those reserved for the backlog."""
        return math.inf if self._ends is None else self.left() - self._reserve

    def for_primary(self) -> float:
        """Return the seconds for an attempt on the primary, including the wait for a link."""
        return self._attempt if self._ends is None else min(self._attempt, self.before_backlog())

    def after_waiting(self) -> float:
        """The same once the call has a link: a call that waited into the backlog's time gets that, too."""
        if self._ends is None:
            return self._attempt
        share = self.before_backlog()
        return min(self._attempt, share if share > 0 else self.left())

    def for_backlog(self) -> float:
        """Return the seconds for an attempt on a backlog queue."""
        return min(self._attempt, self.left())

    def rest(self) -> float:
        """Return the seconds that a call may go on waiting once its share is over."""
        return self._attempt if self._ends is None else self.left()


_RETRY_OPTIONS = ("retry_total", "retry_backoff_factor", "retry_backoff_max", "retry_mode")


@dataclass(frozen=True, slots=True)
class Retries:
    """The `retry_*` options of a client that were set: how often and when to retry a busy namespace.

    Nothing else is retried after a pause: a message for an unreachable namespace is diverted, or the error raised.
    """

    total: int | None = None
    backoff_factor: float | None = None
    backoff_max: float | None = None
    is_fixed: bool = False

    @classmethod
    def of(cls, client_options: Mapping[str, Any]) -> Retries:
        """Raise `TypeError` or `ValueError`, naming the option, where the SDK would fail later or ignore it."""
        for name in client_options:
            if name.startswith("retry_") and name not in _RETRY_OPTIONS:
                raise TypeError(f"{name} is not an option of the client: expected {', '.join(_RETRY_OPTIONS)}")
        total = client_options.get("retry_total")
        if total is not None:
            check_count("retry_total", total, minimum=0)
        factor = _seconds("retry_backoff_factor", client_options)
        longest = _seconds("retry_backoff_max", client_options)
        mode = client_options.get("retry_mode", RetryMode.Exponential)
        check_choice("retry_mode", mode, tuple(retry_mode.value for retry_mode in RetryMode))
        return cls(total, factor, longest, is_fixed=mode == RetryMode.Fixed)


#: For a client without retry options.
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
    """Pauses between retries while the service is busy: exponential with jitter."""

    def __init__(self, random: Random, retries: Retries) -> None:
        self._random = random
        self._retries = retries
        self._taken = 0

    def next(self, left: float) -> float | None:
        """Return the next pause in seconds; None to give up, also if it would not end within `left` seconds."""
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
        # The SDK's first pause is twice the factor and then doubles; in fixed mode it is always the factor.
        first = FIRST_PAUSE if retries.backoff_factor is None else 2 * retries.backoff_factor
        if retries.is_fixed:
            return min(most, FIRST_PAUSE if retries.backoff_factor is None else retries.backoff_factor)
        return min(most, first * 2.0 ** min(self._taken, 30))
