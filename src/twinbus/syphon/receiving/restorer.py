"""Restores received messages by the broker's clock, and knows how long locks last."""

from __future__ import annotations

import time
from collections.abc import Callable

from twinbus.amqp.codec.types import DecodeError
from twinbus.envelope.restoring import Restored, restore
from twinbus.pairing.options import TimeToLive

from .broker_clock import BrokerClock

#: The lock duration of the backlog queues that we create. Longer locks are not used in full.
LOCK_SECONDS = 60.0
#: The service's limit.
LONGEST_LOCK_SECONDS = 300.0
OBSERVE_EVERY = 10.0


class Restorer:
    """Restores messages of one queue.

    `lock_seconds` is the lock duration of the queue; it is estimated if None. It sets the broker's clock, which decides
    whether a message has expired.
    """

    def __init__(
        self, ttl: TimeToLive, lock_seconds: float | None = None, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._ttl: TimeToLive = ttl
        self._wall_clock = wall_clock
        self.set_lock(lock_seconds)

    def set_lock(self, lock_seconds: float | None) -> None:
        """Set the lock duration of the queue when it becomes known or changes."""
        self._clock = BrokerClock(None if lock_seconds is None else int(lock_seconds * 1000))
        self._max_lock = min(LOCK_SECONDS, lock_seconds or LOCK_SECONDS)
        self._observed_at = float("-inf")
        #: How long a lock is reliable: never longer than it lasts.
        self.lock_seconds = self._max_lock
        #: When another client's lock is over for certain: never shorter than it lasts.
        self.longest_lock_seconds = LONGEST_LOCK_SECONDS if lock_seconds is None else lock_seconds

    def restore(self, payload: bytes, now: float) -> Restored:
        """Restore a message that was just received. Raises `EnvelopeError`."""
        if now - self._observed_at >= OBSERVE_EVERY:
            self._observe(payload, now)
        return restore(payload, now_ms=self._clock.now_ms(now), ttl=self._ttl)

    def broker_ms(self, now: float) -> int:
        """The broker's time in milliseconds since the epoch, never ahead of it; 0 while unknown."""
        return self._clock.now_ms(now)

    def _observe(self, payload: bytes, now: float) -> None:
        try:
            wall = self._wall_clock()
            locked_until = self._clock.observe(payload, now, round(wall * 1000))
        except DecodeError:
            return  # restoring it fails, too, with the reason
        if locked_until is None:
            return
        self._observed_at = now
        # The owner may have shortened the locks. The time left by our clock can only shorten the estimate; an odd
        # value means that the clocks differ.
        left = locked_until / 1000 - wall
        self.lock_seconds = min(self._max_lock, self._clock.lock_ms / 1000, left if left >= 1 else self._max_lock)

    # ---- locks ----

    @property
    def seconds_to_move(self) -> float:
        """Seconds after receiving a message within which it should be at its destination."""
        return self.lock_seconds / 3

    @property
    def seconds_to_send(self) -> float:
        """Seconds after receiving a message within which it may still be sent."""
        return self.lock_seconds * 2 / 3
