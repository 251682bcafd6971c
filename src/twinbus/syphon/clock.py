"""What time it is at the broker, told by the locks that it grants."""

from __future__ import annotations

from twinbus.amqp import sections

#: No queue of the service has a longer lock.
MAX_LOCK_MS = 5 * 60_000


#: The lock durations that people choose, in milliseconds. Backlog queues are made with one minute.
USUAL_LOCKS_MS = tuple(seconds * 1000 for seconds in (5, 10, 15, 30, 60, 120, 180, 240, 300))
#: How far our clock may be behind the broker's, as a part of the lock duration, to find the right one.
BEHIND = 1 / 12


def usual_lock_ms(measured: int) -> int:
    """The lock duration of a queue whose locks seem to last so long by our own clock; 0 if it cannot be one.

    Rounded up, so that a clock that is ahead does not make a lock look shorter than it is.
    """
    if not USUAL_LOCKS_MS[0] / 2 <= measured <= MAX_LOCK_MS:
        return 0
    return next(usual for usual in USUAL_LOCKS_MS if usual >= measured * (1 - BEHIND))


class BrokerClock:
    """The clock of the broker that a queue is on.

    A delivery says until when it is locked: the time at the broker, plus the queue's lock duration. So how long a
    message was there can be told without comparing two machines' clocks. Between deliveries the caller's own
    monotonic time, in seconds, goes on.

    Where the lock duration is not known it is estimated by the time of day here, rounded up to a usual duration. That
    is exact for queues with such a duration as long as the clocks differ by little: with locks of a minute, if ours is
    at most 5 s behind and 27 s ahead. (Of a queue with another duration the clock may be fast by a twelfth of it.) If
    the estimate makes no sense the longest duration of all is assumed, and never more than the shortest time between
    a message's enqueuing and the end of its lock. Make a new one if the queue's lock duration may have been raised.
    """

    def __init__(self, lock_ms: int | None = None) -> None:
        if lock_ms is not None and not 0 < lock_ms <= MAX_LOCK_MS:
            raise ValueError(f"lock_ms must be from 1 to {MAX_LOCK_MS}, or None if it is not known, not {lock_ms!r}")
        #: How long a lock lasts: not longer than this.
        self.lock_ms = lock_ms or MAX_LOCK_MS
        self._is_known = lock_ms is not None
        self._estimate = 0
        self._most = self.lock_ms
        self._locked_until: int | None = None
        self._seen_at = 0.0

    def observe(self, payload: bytes, at: float, wall_ms: int | None = None) -> int | None:
        """Read the clock off a message that has just been delivered under a lock, at the time `at`.

        `wall_ms` is the time of day here, for an estimate of the lock duration where that is not known. One message of
        several that came together is enough. Returns until when it is locked, by this clock; None if it does not say.
        Raises `DecodeError` if the bytes are no message.
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
            # A message may have waited for us after its lock began: the longest estimate is the best.
            self._estimate = max(self._estimate, usual_lock_ms(locked_until - wall_ms))
        self.lock_ms = min(self._most, self._estimate or MAX_LOCK_MS)
        self._locked_until, self._seen_at = locked_until, at
        return locked_until

    def now_ms(self, at: float) -> int:
        """The broker's time at the time `at`, in milliseconds since the epoch; 0 as long as no lock has told it.

        That is as slow as a clock can be: by it nothing has expired.
        """
        if self._locked_until is None:
            return 0
        return self._locked_until - self.lock_ms + round((at - self._seen_at) * 1000)
