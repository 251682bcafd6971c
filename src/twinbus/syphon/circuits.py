"""Whether a destination is worth a try: one circuit for each. Pure, the time is passed in."""

from __future__ import annotations

import math

from .pacing import Backoff


class Circuit:
    """Closed while a destination works. A failure opens it for a pause, then one try decides, and so on.

    Pauses double from `retry_min` to `retry_max`, and begin anew when the destination has accepted something. Held
    open by hand there are no tries until it is released.

    A failure without an answer leaves it open whether the message has arrived. Then the destination is *silent*: until
    it has answered something that may be lost (`answered`), no message should be sent to it again.

    A failure that was the end of the connection may be the fault of another destination. The pause then begins when
    there is a connection again, so that those who have waited for theirs go first.
    """

    __slots__ = ("_backoff", "_is_down", "_pause", "_retry_at", "is_held", "is_probing", "is_silent", "lost_connection")

    def __init__(self, retry_min: float, retry_max: float) -> None:
        self._backoff = Backoff(retry_min, retry_max)
        self._retry_at = 0.0
        self._pause = 0.0
        self._is_down = False
        self.is_held = False
        #: Whether the try that decides is under way.
        self.is_probing = False
        #: Whether nobody knows what has become of the messages that were sent last.
        self.is_silent = False
        #: Whether the last failure was the end of the connection.
        self.lost_connection = False

    @property
    def is_open(self) -> bool:
        return self._is_down or self.is_held

    def may_try(self, now: float) -> bool:
        """Whether to send now. On an open circuit the one who is told yes makes the try that decides."""
        if not self.is_open:
            return True
        if self.is_held or self.is_probing or now < self._retry_at:
            return False
        self.is_probing = True
        return True

    def failed(self, now: float, *, lost_connection: bool = False, is_silent: bool = False) -> None:
        """The destination failed, or did not answer. What was under way when that became known changes nothing more."""
        self.is_silent = self.is_silent or is_silent
        if self._is_down and not self.is_probing:
            return
        self._is_down, self.is_probing = True, False
        self.lost_connection = lost_connection
        self._pause = self._backoff.next()
        self._retry_at = math.inf if lost_connection else now + self._pause

    def connected(self, now: float) -> None:
        """There is a new connection."""
        if self._retry_at == math.inf:
            self._retry_at = now + self._pause

    def worked(self) -> None:
        """The destination accepted a message."""
        self._is_down = self.is_probing = self.is_silent = self.lost_connection = False
        self._backoff.reset()

    def answered(self, now: float) -> None:
        """The destination has answered something; a message may decide now whether it works."""
        self.is_silent = self.is_probing = False
        self._retry_at = now

    def undecided(self, now: float) -> None:
        """The try that was to decide came to nothing, through no fault of the destination."""
        if self.is_probing:
            self.is_probing = False
            self._retry_at = now

    def hold(self) -> None:
        """Allow nothing until `release`."""
        self.is_held = True

    def release(self) -> None:
        """Go on where it was before `hold`; what was down may be tried at once."""
        self.is_held = False
        self.hurry()

    def hurry(self) -> None:
        """Allow the next try now."""
        self._retry_at = 0.0
