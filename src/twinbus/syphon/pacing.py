"""Limits speed: back-off, rate limit, throttling and credit. Pure: the time is passed in."""

from __future__ import annotations

MAX_WINDOW = 2000  # messages
MAX_WINDOW_BYTES = 64 << 20
FIRST_WINDOW = 10
WINDOW_GROWTH = 4  # factor from one full window to the next
# Seconds of rate that may leave as one burst: a whole second would crowd out live traffic.
BURST_SECONDS = 0.1
# A busy namespace gets BUSY_SHARE of the rate it accepted, at least MIN_SHARE of the rate it was given; then the rate
# grows by GROWTH every GROWTH_SECONDS.
BUSY_SHARE, MIN_SHARE = 0.8, 0.3
GROWTH, GROWTH_SECONDS = 1.15, 1.0
MIN_SAMPLE = 50  # accepted messages; fewer say little about a rate
FORGET_ABOVE = 20.0  # times the rate that was too high; the limit is dropped then


class Backoff:
    """Pauses in seconds: `shortest`, then doubling up to `longest`."""

    def __init__(self, shortest: float, longest: float) -> None:
        self._shortest = shortest
        self.longest = longest
        self._next = shortest

    def next(self) -> float:
        pause = self._next
        self._next = min(2 * pause, self.longest)
        return pause

    def reset(self) -> None:
        self._next = self._shortest


class TokenBucket:
    """Allows `rate` messages a second, with bursts of a tenth of a second's worth."""

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self._left = 1.0
        self._at = now

    def wait(self, now: float) -> float:
        """Seconds until the next message may be sent; 0 for now."""
        self._left = min(max(1.0, self.rate * BURST_SECONDS), self._left + (now - self._at) * self.rate)
        self._at = now
        return 0.0 if self._left >= 1 else (1 - self._left) / self.rate

    def take(self) -> None:
        self._left -= 1


class Pace:
    """When the next message may go to a namespace: by the configured rate, and by what the namespace can take.

    A busy namespace gets a pause, then somewhat less than it accepted before, then slowly more again. One pace counts
    all messages to the namespace.
    """

    def __init__(self, rate: float | None, retry_min: float, retry_max: float, now: float) -> None:
        self._configured = None if rate is None else TokenBucket(rate, now)
        self._learned: TokenBucket | None = None
        self._grows_at = 0.0
        self._rate_too_high = 0.0
        self._backoff = Backoff(retry_min, retry_max)
        self._resumes_at = now
        self._since = now
        self._accepted = 0
        self._is_free = rate is None

    def delay(self, now: float) -> float:
        """Return 0 if a message may be sent now, and count it; else the seconds until the next call."""
        if self._is_free:
            return 0.0
        if now < self._resumes_at:
            return self._resumes_at - now
        self._grow(now)
        buckets = [bucket for bucket in (self._configured, self._learned) if bucket is not None]
        pause = max((bucket.wait(now) for bucket in buckets), default=0.0)
        if pause == 0.0:
            for bucket in buckets:
                bucket.take()
        return pause

    def is_paused(self, now: float) -> bool:
        """Whether the namespace gets a pause."""
        return now < self._resumes_at

    def accepted(self) -> None:
        """The namespace accepted a message."""
        self._accepted += 1

    def busy(self, now: float) -> None:
        """The namespace throttled a message."""
        if now < self._resumes_at:
            return  # sent before the pause began
        if self._accepted:
            self._backoff.reset()
            self._learn(self._accepted / max(now - self._since, 0.001), now)
        self._resumes_at = now + self._backoff.next()
        # The pause counts: the long-term rate is what matters.
        self._since, self._accepted = now, 0
        self._grows_at = self._resumes_at + GROWTH_SECONDS
        self._is_free = False

    def _learn(self, accepted_rate: float, now: float) -> None:
        """Lower the rate: the namespace accepted this rate since it was last busy, and it was too high."""
        if self._learned is not None:
            self._learned.rate = max(1.0, accepted_rate * BUSY_SHARE, self._learned.rate * MIN_SHARE)
        elif self._accepted >= MIN_SAMPLE:
            self._learned = TokenBucket(accepted_rate * BUSY_SHARE, now)
        if self._learned is not None:
            self._rate_too_high = self._learned.rate / BUSY_SHARE

    def _grow(self, now: float) -> None:
        if self._learned is not None and now >= self._grows_at:
            self._grows_at = now + GROWTH_SECONDS
            self._learned.rate *= GROWTH
            if self._learned.rate > FORGET_ABOVE * self._rate_too_high:
                self._learned = None
        if self._learned is None and self._configured is None:
            self._is_free = True


class CreditWindow:
    """How many messages may be received at once: what can be moved in `seconds` and fits in memory.

    It adapts: it grows while full windows are moved in time, and shrinks when a message was not.
    """

    def __init__(self, seconds: float, rate: float | None, now: float) -> None:
        self._seconds = seconds
        self._most = MAX_WINDOW if rate is None else max(1, min(MAX_WINDOW, int(rate * seconds)))
        self._count = self._bytes = 0
        self._since = now
        self.size = min(FIRST_WINDOW, self._most)

    def start_over(self, now: float) -> None:
        """Shrink to the first size: it is unknown whether anything can be moved."""
        self.size = min(FIRST_WINDOW, self._most)
        self.restart(now)

    def restart(self, now: float) -> None:
        """Start a new measurement: there was nothing to move until now."""
        self._count = self._bytes = 0
        self._since = now

    def moved(self, size: int, now: float) -> None:
        """A message of `size` bytes was settled."""
        self._count += 1
        self._bytes += size
        if self._count >= self.size:
            in_time = int(self._count * self._seconds / max(now - self._since, 0.001))
            in_memory = int(MAX_WINDOW_BYTES * self._count / max(self._bytes, 1))
            self.size = max(1, min(in_time, in_memory, WINDOW_GROWTH * self.size, self._most))
            self.restart(now)

    def missed(self, now: float) -> None:
        """A message was abandoned because it was not moved in time."""
        self.size = max(1, self.size // 2)
        self.restart(now)
