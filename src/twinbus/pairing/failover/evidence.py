"""Decides which attempts show that an entity or a backlog queue does not answer.

One failed attempt proves little: the caller may have been impatient, the link stale, the client starved. So an attempt
counts only if it was conclusive (a fresh link got an availability error, or had the whole attempt timeout) and no other
link to the same entity or queue was answered since it began. An opened link answers openings only: an entity that opens
links and answers no send is unavailable. Attempts that were cut short only start a silence. When
the silence has lasted for the attempt timeout, the pairing opens a link of its own as a probe, and the result of the
probe counts.

Pure: the time is passed in. Not thread-safe: the caller holds a lock.
"""

from __future__ import annotations

import math


class Evidence:
    """What the attempts on one entity or queue have shown so far; times are in seconds of a monotonic clock."""

    __slots__ = ("_attempt_timeout", "_probe_not_before", "answered_at", "is_probing", "opened_at", "silent_since")

    def __init__(self, attempt_timeout: float) -> None:
        self._attempt_timeout = attempt_timeout
        self._probe_not_before = -math.inf
        #: When a call on a link was last answered, with success or an error.
        self.answered_at = -math.inf
        #: When a link was last opened, or its opening was answered with an error.
        self.opened_at = -math.inf
        #: When the first attempt began that was cut short before it got an answer.
        self.silent_since: float | None = None
        self.is_probing = False

    def answered(self, now: float) -> None:
        """Record that a call on a link got an answer."""
        self.answered_at = max(now, self.answered_at)
        self.silent_since = None

    def opened(self, now: float) -> None:
        """Record that a link was opened, or that its opening got an answer."""
        self.opened_at = max(now, self.opened_at)
        self.silent_since = None

    def convicts(self, began: float, *, is_opening: bool = False) -> bool:
        """Return whether a conclusive failure of an attempt that began then counts: nothing was answered since."""
        return began >= self.answered_at and not (is_opening and began < self.opened_at)

    def unclear(self, began: float) -> bool:
        """Record that an attempt that began then was cut short; return whether this starts a silence."""
        if self.silent_since is not None or not self.convicts(began, is_opening=True):
            return False
        self.silent_since = began
        return True

    def forget(self) -> None:
        """Forget everything: the route has changed."""
        self.silent_since = None
        self.is_probing = False
        self._probe_not_before = -math.inf

    def probe_at(self) -> float | None:
        """Return when a probe is due; None if there is no silence or a probe is running."""
        if self.silent_since is None or self.is_probing:
            return None
        return max(self.silent_since + self._attempt_timeout, self._probe_not_before)

    def probe_started(self) -> None:
        self.is_probing = True

    def probe_ended(self, now: float) -> float | None:
        """Record the end of a probe (an answer was reported before); return when the silence began, if it lasts."""
        self.is_probing = False
        self._probe_not_before = now + self._attempt_timeout
        return self.silent_since
