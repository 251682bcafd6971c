"""Makes of a delivery what goes to the primary, by the clock of the backlog's broker; and how long its locks last."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from twinbus.amqp.types import DecodeError
from twinbus.pairing.options import TimeToLive

from .clock import BrokerClock
from .moves import Move
from .restore import Restored, restore

#: Of a backlog queue as we make them. Longer locks are not made use of.
LOCK_SECONDS = 60.0
#: The service's own limit.
LONGEST_LOCK_SECONDS = 300.0
OBSERVE_EVERY = 10.0


class Restorer:
    """Restores messages of one queue.

    `lock_seconds` is the lock duration of the queue, if that is known; else it is estimated. By it the broker's clock
    is told: a message has expired when that says so.
    """

    def __init__(
        self, ttl: TimeToLive, lock_seconds: float | None = None, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._ttl: TimeToLive = ttl
        self._wall_clock = wall_clock
        self.set_lock(lock_seconds)

    def set_lock(self, lock_seconds: float | None) -> None:
        """Set the lock duration of the queue, if it is known now, or has changed."""
        self._clock = BrokerClock(None if lock_seconds is None else int(lock_seconds * 1000))
        self._most = min(LOCK_SECONDS, lock_seconds or LOCK_SECONDS)
        self._observed_at = float("-inf")
        #: For how long a lock can be relied upon: never longer than it lasts.
        self.lock_seconds = self._most
        #: When somebody else's lock is over for sure: never shorter than it lasts, whatever the clocks say.
        self.longest_lock_seconds = LONGEST_LOCK_SECONDS if lock_seconds is None else lock_seconds

    def restore(self, payload: bytes, now: float) -> Restored:
        """What a message was that has just been received. Raises `EnvelopeError`."""
        if now - self._observed_at >= OBSERVE_EVERY:
            self._observe(payload, now)
        return restore(payload, now_ms=self._clock.now_ms(now), ttl=self._ttl)

    def broker_ms(self, now: float) -> int:
        """The time at the broker in milliseconds since the epoch, never ahead of it; 0 if it is not known yet."""
        return self._clock.now_ms(now)

    def _observe(self, payload: bytes, now: float) -> None:
        try:
            wall = self._wall_clock()
            locked_until = self._clock.observe(payload, now, round(wall * 1000))
        except DecodeError:
            return  # restoring it will fail too, and say why
        if locked_until is None:
            return
        self._observed_at = now
        # An owner may have given the queue shorter locks. What is left by our clock is a hint that only makes us
        # hurry: beyond these bounds it is the clocks that differ.
        left = locked_until / 1000 - wall
        self.lock_seconds = min(self._most, self._clock.lock_ms / 1000, left if left >= 1 else self._most)

    # ---- locks ----

    @property
    def seconds_to_move(self) -> float:
        """How long after it was received a message should be at its destination."""
        return self.lock_seconds / 3

    @property
    def seconds_to_send(self) -> float:
        """How long after it was received a message may still be sent."""
        return self.lock_seconds * 2 / 3

    def to_renew(self, moves: Iterable[Move], now: float) -> list[Move]:
        """The messages that are sent and wait for an outcome or the ledger, and whose lock is half over."""
        return [move for move in moves if move.sent_at and now - move.locked_at > self.lock_seconds / 2]
