"""Makes of a delivery what goes to the primary, by the clock of the backlog's broker; and how long its locks last."""

from __future__ import annotations

import time
from collections.abc import Iterable

from twinbus.amqp import sections
from twinbus.amqp.types import DecodeError
from twinbus.pairing.options import TimeToLive

from .clock import BrokerClock
from .moves import Move
from .restore import Restored, restore

LOCK_SECONDS = 60.0  # of a backlog queue, as we make them
OBSERVE_EVERY = 10.0


class Restorer:
    """Restores messages of one queue."""

    def __init__(self, ttl: TimeToLive, lock_seconds: float = LOCK_SECONDS) -> None:
        self._ttl: TimeToLive = ttl
        self._clock = BrokerClock(int(lock_seconds * 1000))
        self._most = lock_seconds
        self._observed_at = float("-inf")
        #: The lock duration of the queue, as far as it can be told: never longer than it should be.
        self.lock_seconds = lock_seconds

    def restore(self, payload: bytes, now: float) -> Restored:
        """What a message was that has just been received. Raises `EnvelopeError`."""
        if now - self._observed_at >= OBSERVE_EVERY:
            self._observe(payload, now)
        try:
            now_ms = self._clock.now_ms(now)
        except RuntimeError:
            now_ms = int(time.time() * 1000)  # the broker says nothing of its locks
        return restore(payload, now_ms=now_ms, ttl=self._ttl)

    def _observe(self, payload: bytes, now: float) -> None:
        try:
            self._clock.observe(payload, now)
            for name, raw in sections.map_entries(sections.split_sections(payload).message_annotations):
                if name == "x-opt-locked-until":
                    # An owner may have given the queue shorter locks. Beyond these bounds it is the clocks that differ.
                    left = sections.entry_value(raw) / 1000 - time.time()
                    self.lock_seconds = left if 1 <= left < self._most else self._most
        except DecodeError:
            return  # restoring it will fail too, and say why
        self._observed_at = now

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
