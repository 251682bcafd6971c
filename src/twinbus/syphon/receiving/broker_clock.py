"""Estimates the broker's time from the locks that it grants."""

from __future__ import annotations

from twinbus.amqp.codec import sections

#: The longest lock duration that the service allows.
MAX_LOCK_MS = 5 * 60_000

#: The lock durations that people choose, in milliseconds. Backlog queues are made with one minute.
USUAL_LOCKS_MS = tuple(seconds * 1000 for seconds in (5, 10, 15, 30, 60, 120, 180, 240, 300))
#: How far our clock may be behind the broker's, as a share of the lock duration, and still find the right one.
MAX_LAG = 1 / 12


def usual_lock_ms(measured: int) -> int:
    """The usual lock duration for locks that last `measured` by our clock; 0 if there is none.

    Rounded up, so that a clock that is ahead does not make a lock look shorter.
    """
    if not USUAL_LOCKS_MS[0] / 2 <= measured <= MAX_LOCK_MS:
        return 0
    return next(usual for usual in USUAL_LOCKS_MS if usual >= measured * (1 - MAX_LAG))


class BrokerClock:
    """The clock of the broker of one queue.

    A delivery says when its lock ends: the broker's time plus the queue's lock duration. That gives a message's time in
    the queue without comparing two machines' clocks. Between deliveries the caller's monotonic time, in seconds, is
    added.

    An unknown lock duration is estimated by the local time of day, rounded up to a usual duration. The estimate is
    exact for a usual duration while the clocks differ little: with locks of a minute, if ours is at most 5 s behind and
    27 s ahead. (For other durations the clock may be fast by a twelfth of it.) If the estimate makes no sense, the
    longest duration is assumed. It is never more than the shortest time between a message's enqueuing and the end of
    its lock. Make a new clock if the queue's lock duration may have been raised.
    """

    def __init__(self, lock_ms: int | None = None) -> None:
        if lock_ms is not None and not 0 < lock_ms <= MAX_LOCK_MS:
            raise ValueError(f"lock_ms must be from 1 to {MAX_LOCK_MS}, or None if unknown, got {lock_ms!r}")
        #: How long a lock lasts, at most.
        self.lock_ms = lock_ms or MAX_LOCK_MS
        self._is_known = lock_ms is not None
        self._estimate = 0
        self._most = self.lock_ms
        self._locked_until: int | None = None
        self._seen_at = 0.0

    def observe(self, payload: bytes, at: float, wall_ms: int | None = None) -> int | None:
        """Set the clock by a message that was delivered under a lock at the time `at`.

        `wall_ms` is the local time of day, to estimate an unknown lock duration. One message of several that came
        together is enough. Returns when the lock ends, by the broker's clock; None if the message does not say. Raises
        `DecodeError` for bytes that are not a message.
        """
        times = {}
        for name, raw in sections.map_entries(sections.split_sections(payload).message_annotations):
            if name in ("x-opt-locked-until", "x-opt-enqueued-time"):
                times[name] = sections.entry_value(raw)
        locked_until, enqueued_at = times.get("x-opt-locked-until"), times.get("x-opt-enqueued-time")
        if not isinstance(locked_until, int) or not isinstance(enqueued_at, int):
            return None
        self._most = max(1, min(self._most, locked_until - enqueued_at))
        if not self._is_known and wall_ms is not None:
            # A message may have waited after its lock began, so the longest estimate is the best.
            self._estimate = max(self._estimate, usual_lock_ms(locked_until - wall_ms))
        self.lock_ms = min(self._most, self._estimate or MAX_LOCK_MS)
        self._locked_until, self._seen_at = locked_until, at
        return locked_until

    def now_ms(self, at: float) -> int:
        """The broker's time at `at`, in milliseconds since the epoch; 0 before the first lock.

        With 0 nothing counts as expired.
        """
        if self._locked_until is None:
            return 0
        return self._locked_until - self.lock_ms + round((at - self._seen_at) * 1000)
