"""What time it is at the broker, told by the locks that it grants."""

from __future__ import annotations

from twinbus.amqp import sections

#: No queue of the service has a longer lock.
MAX_LOCK_MS = 5 * 60_000


class BrokerClock:
    """The clock of the broker that a queue is on.

    A delivery says until when it is locked: the time at the broker, plus the queue's lock duration. So how long a
    message was there can be told without comparing two machines' clocks. Between deliveries the caller's own
    monotonic time, in seconds, goes on.

    Where the lock duration is not known the longest that a queue can have is assumed, and no more than the shortest
    time between a message's enqueuing and the end of its lock. So the clock may be slow, by up to four minutes with
    locks of one minute until a fresh message was seen, but not fast: no message is taken for expired that is not.
    Make a new one if the queue's lock duration may have been raised.
    """

    def __init__(self, lock_ms: int | None = None) -> None:
        if lock_ms is not None and not 0 < lock_ms <= MAX_LOCK_MS:
            raise ValueError(f"lock_ms must be from 1 to {MAX_LOCK_MS}, or None if it is not known, not {lock_ms!r}")
        #: How long a lock lasts: not longer than this.
        self.lock_ms = lock_ms or MAX_LOCK_MS
        self._locked_until: int | None = None
        self._seen_at = 0.0

    def observe(self, payload: bytes, at: float) -> int | None:
        """Read the clock off a message that has just been delivered under a lock, at the time `at`.

        One message of several that came together is enough. Returns until when it is locked, by this clock; None if it
        does not say. Raises `DecodeError` if the bytes are no message.
        """
        times = {}
        for name, raw in sections.map_entries(sections.split_sections(payload).message_annotations):
            if name in ("x-opt-locked-until", "x-opt-enqueued-time"):
                times[name] = sections.entry_value(raw)
        locked_until, enqueued_at = times.get("x-opt-locked-until"), times.get("x-opt-enqueued-time")
        if not isinstance(locked_until, int) or not isinstance(enqueued_at, int):
            return None
        self.lock_ms = max(1, min(self.lock_ms, locked_until - enqueued_at))
        self._locked_until, self._seen_at = locked_until, at
        return locked_until

    def now_ms(self, at: float) -> int:
        """The broker's time at the time `at`, in milliseconds since the epoch; 0 as long as no lock has told it.

        That is as slow as a clock can be: by it nothing has expired.
        """
        if self._locked_until is None:
            return 0
        return self._locked_until - self.lock_ms + round((at - self._seen_at) * 1000)
