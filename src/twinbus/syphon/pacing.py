"""How fast: pauses that grow, so many messages a second, and as many at once as can be moved in time. All pure."""

from __future__ import annotations

MAX_WINDOW = 2000  # messages
MAX_WINDOW_BYTES = 64 << 20
FIRST_WINDOW = 10
WINDOW_GROWTH = 4  # times, from one windowful to the next
# A bucket holds what comes in so many seconds: a burst of a whole second would crowd out live traffic.
BURST_SECONDS = 0.1
# What a namespace that is busy gets of the rate it took before, at least of the rate it was given, and how fast that
# grows again.
BUSY_SHARE, LEAST_SHARE = 0.8, 0.3
GROWTH, GROWTH_SECONDS = 1.15, 1.0
SAMPLE = 50  # messages; what fewer of them took says little
FORGET_ABOVE = 20.0  # times the rate that was too much


class Backoff:
    """Pauses in seconds: `least`, then twice as long each time, up to `most`."""

    def __init__(self, least: float, most: float) -> None:
        self._least = least
        self.most = most
        self._next = least

    def next(self) -> float:
        pause = self._next
        self._next = min(2 * pause, self.most)
        return pause

    def reset(self) -> None:
        self._next = self._least


class TokenBucket:
    """So many a second, and a tenth of a second's worth at once."""

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self._left = 1.0
        self._at = now

    def wait(self, now: float) -> float:
        """In how many seconds the next one may come; 0 if now."""
        self._left = min(max(1.0, self.rate * BURST_SECONDS), self._left + (now - self._at) * self.rate)
        self._at = now
        return 0.0 if self._left >= 1 else (1 - self._left) / self.rate

    def take(self) -> None:
        self._left -= 1


class Pace:
    """When the next message may go to a namespace: by the rate that was asked for, and by what it can take.

    A namespace that says it is busy is left alone for a while, then gets somewhat less than it took before, and
    slowly more again. One pace is for all messages to the namespace: it counts them together, too.
    """

    def __init__(self, rate: float | None, retry_min: float, retry_max: float, now: float) -> None:
        self._asked = None if rate is None else TokenBucket(rate, now)
        self._learned: TokenBucket | None = None
        self._grows_at = 0.0
        self._too_much = 0.0
        self._backoff = Backoff(retry_min, retry_max)
        self._resumes_at = now
        self._since = now
        self._accepted = 0
        self._is_free = rate is None

    def delay(self, now: float) -> float:
        """0: a message may be sent now, and is counted. Otherwise in how many seconds to ask again."""
        if self._is_free:
            return 0.0
        if now < self._resumes_at:
            return self._resumes_at - now
        self._grow(now)
        buckets = [bucket for bucket in (self._asked, self._learned) if bucket is not None]
        pause = max((bucket.wait(now) for bucket in buckets), default=0.0)
        if pause == 0.0:
            for bucket in buckets:
                bucket.take()
        return pause

    def is_paused(self, now: float) -> bool:
        """Whether the namespace is being left alone."""
        return now < self._resumes_at

    def accepted(self) -> None:
        """The namespace took a message."""
        self._accepted += 1

    def busy(self, now: float) -> None:
        """The namespace refused a message because it has too much to do."""
        if now < self._resumes_at:
            return  # sent before the pause began
        if self._accepted:
            self._backoff.reset()
            self._learn(self._accepted / max(now - self._since, 0.001), now)
        self._resumes_at = now + self._backoff.next()
        # The pause counts: what it takes in the long run is what matters.
        self._since, self._accepted = now, 0
        self._grows_at = self._resumes_at + GROWTH_SECONDS
        self._is_free = False

    def _learn(self, taken: float, now: float) -> None:
        """So many a second were taken since the namespace was last busy, and that was too much."""
        if self._learned is not None:
            self._learned.rate = max(1.0, taken * BUSY_SHARE, self._learned.rate * LEAST_SHARE)
        elif self._accepted >= SAMPLE:
            self._learned = TokenBucket(taken * BUSY_SHARE, now)
        if self._learned is not None:
            self._too_much = self._learned.rate / BUSY_SHARE

    def _grow(self, now: float) -> None:
        if self._learned is not None and now >= self._grows_at:
            self._grows_at = now + GROWTH_SECONDS
            self._learned.rate *= GROWTH
            if self._learned.rate > FORGET_ABOVE * self._too_much:
                self._learned = None
        if self._learned is None and self._asked is None:
            self._is_free = True


class CreditWindow:
    """How many messages may be here at once: as many as can be moved in so many seconds, and fit in memory.

    It is found by doing: it grows while windowfuls are moved in time, and shrinks when one was not.
    """

    def __init__(self, seconds: float, rate: float | None, now: float) -> None:
        self._seconds = seconds
        self._most = MAX_WINDOW if rate is None else max(1, min(MAX_WINDOW, int(rate * seconds)))
        self._count = self._bytes = 0
        self._since = now
        self.size = min(FIRST_WINDOW, self._most)

    def start_over(self, now: float) -> None:
        """Begin small again: nobody knows whether anything can be moved."""
        self.size = min(FIRST_WINDOW, self._most)
        self.restart(now)

    def restart(self, now: float) -> None:
        """Measure anew: there was nothing to move until now."""
        self._count = self._bytes = 0
        self._since = now

    def moved(self, size: int, now: float) -> None:
        """A message of so many bytes has been dealt with."""
        self._count += 1
        self._bytes += size
        if self._count >= self.size:
            in_time = int(self._count * self._seconds / max(now - self._since, 0.001))
            in_memory = int(MAX_WINDOW_BYTES * self._count / max(self._bytes, 1))
            self.size = max(1, min(in_time, in_memory, WINDOW_GROWTH * self.size, self._most))
            self.restart(now)

    def missed(self, now: float) -> None:
        """A message had to be given back because it was not moved in time."""
        self.size = max(1, self.size // 2)
        self.restart(now)
