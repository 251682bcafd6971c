"""Whether a destination is worth a try: one circuit for each. Pure, the time is passed in."""

from __future__ import annotations

from .pacing import Backoff


class Circuit:
    """Closed while a destination works. A failure opens it for a pause, then one try decides, and so on.

    Pauses double from `retry_min` to `retry_max`, and begin anew when the destination has accepted something. Held
    open by hand there are no tries until it is released.
    """

    __slots__ = ("_backoff", "_is_down", "_probing", "_retry_at", "is_held")

    def __init__(self, retry_min: float, retry_max: float) -> None:
        self._backoff = Backoff(retry_min, retry_max)
        self._retry_at = 0.0
        self._probing = False
        self._is_down = False
        self.is_held = False

    @property
    def is_open(self) -> bool:
        return self._is_down or self.is_held

    def may_try(self, now: float) -> bool:
        """Whether to send now. On an open circuit the one who is told yes makes the try that decides."""
        if not self.is_open:
            return True
        if self.is_held or self._probing or now < self._retry_at:
            return False
        self._probing = True
        return True

    def failed(self, now: float) -> None:
        """The destination failed. What was under way when that became known changes nothing more."""
        if self._is_down and not self._probing:
            return
        self._is_down, self._probing = True, False
        self._retry_at = now + self._backoff.next()

    def worked(self) -> None:
        """The destination accepted a message."""
        self._is_down = self._probing = False
        self._backoff.reset()

    def undecided(self, now: float) -> None:
        """The try that was to decide came to nothing, through no fault of the destination."""
        if self._probing:
            self._probing = False
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
