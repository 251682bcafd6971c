"""Decides which attempts show that an entity or a backlog queue does not answer.

One attempt proves little: its caller may have been impatient, the link stale, the client starved. So an attempt counts
only if it was conclusive (a fresh link answered with an availability error, or had the whole attempt timeout) and no
other link to the same place was answered since it began. Attempts that were cut short only start a silence: when that
has lasted for the attempt timeout, the pairing opens a link of its own, and what comes of this probe counts.

Pure: the time is passed in. Not thread-safe: the caller holds a lock.
"""

from __future__ import annotations

import math


class Evidence:
    """What the attempts on one place have shown so far; times are seconds of a clock that never goes back."""

    __slots__ = ("_attempt_timeout", "_probe_not_before", "answered_at", "is_probing", "silent_since")

    def __init__(self, attempt_timeout: float) -> None:
        self._attempt_timeout = attempt_timeout
        self._probe_not_before = -math.inf
        #: When a link was last answered, whatever the answer was.
        self.answered_at = -math.inf
        #: When the first attempt began that got no answer and whose caller did not wait for one.
        self.silent_since: float | None = None
        self.is_probing = False

    def answered(self, now: float) -> None:
        """A link to the place was opened, or a call on it got an answer."""
        self.answered_at = max(now, self.answered_at)
        self.silent_since = None

    def convicts(self, began: float) -> bool:
        """Whether a conclusive attempt that began then and failed is evidence: nothing was answered since."""
        return began >= self.answered_at

    def unclear(self, began: float) -> bool:
        """An attempt that began then was cut short; true if a silence begins with it."""
        if self.silent_since is not None or not self.convicts(began):
            return False
        self.silent_since = began
        return True

    def forget(self) -> None:
        """What was seen so far says nothing about what comes now: the route has changed."""
        self.silent_since = None
        self.is_probing = False
        self._probe_not_before = -math.inf

    # ---- the probe ----

    def probe_at(self) -> float | None:
        """When a probe is due; None while there is no silence, or a probe is under way."""
        if self.silent_since is None or self.is_probing:
            return None
        return max(self.silent_since + self._attempt_timeout, self._probe_not_before)

    def probe_started(self) -> None:
        self.is_probing = True

    def probe_ended(self, now: float) -> float | None:
        """A probe has ended: with an answer, which was reported before, or without. Returns since when it is silent."""
        self.is_probing = False
        self._probe_not_before = now + self._attempt_timeout
        return self.silent_since
