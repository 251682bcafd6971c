"""Circuit breaker of one destination. Pure: the time is passed in."""

from __future__ import annotations

import math

from ..pacing import Backoff


class Circuit:
    """Closed while a destination works. A failure opens it for a pause; then one probe decides.

    Pauses double from `retry_min` to `retry_max`, and reset when the destination accepts a message. A circuit that is
    held open by hand allows no probes until it is released.

    After a failure without an answer it is unknown whether the message arrived. The destination is then *silent*: no
    message should be sent until it has answered a ping (`answered`), which may arrive twice without harm.

    A lost connection may be the fault of another destination. The pause then starts with the next connection, so that
    destinations that have waited longer go first.
    """

    __slots__ = ("_backoff", "_is_down", "_pause", "_retry_at", "is_held", "is_probing", "is_silent", "lost_connection")

    def __init__(self, retry_min: float, retry_max: float) -> None:
        self._backoff = Backoff(retry_min, retry_max)
        self._retry_at = 0.0
        self._pause = 0.0
        self._is_down = False
        self.is_held = False
        #: Whether the probe that decides is in flight.
        self.is_probing = False
        #: Whether the outcome of the last messages is unknown.
        self.is_silent = False
        #: Whether the last failure was a lost connection.
        self.lost_connection = False

    @property
    def is_open(self) -> bool:
        return self._is_down or self.is_held

    def may_try(self, now: float) -> bool:
        """Whether to send now. On an open circuit, True makes the caller's message the probe."""
        if not self.is_open:
            return True
        if self.is_held or self.is_probing or now < self._retry_at:
            return False
        self.is_probing = True
        return True

    def failed(self, now: float, *, lost_connection: bool = False, is_silent: bool = False) -> None:
        """Open the circuit. Later failures of messages that were in flight change nothing."""
        self.is_silent = self.is_silent or is_silent
        if self._is_down and not self.is_probing:
            return
        self._is_down, self.is_probing = True, False
        self.lost_connection = lost_connection
        self._pause = self._backoff.next()
        self._retry_at = math.inf if lost_connection else now + self._pause

    def connected(self, now: float) -> None:
        """A new connection was made: a pause that waited for it starts."""
        if self._retry_at == math.inf:
            self._retry_at = now + self._pause

    def worked(self) -> None:
        """The destination accepted a message: close the circuit."""
        self._is_down = self.is_probing = self.is_silent = self.lost_connection = False
        self._backoff.reset()

    def answered(self, now: float) -> None:
        """The destination answered a ping: the next message may be the probe."""
        self.is_silent = self.is_probing = False
        self._retry_at = now

    def undecided(self, now: float) -> None:
        """The probe had no result, through no fault of the destination: allow another one."""
        if self.is_probing:
            self.is_probing = False
            self._retry_at = now

    def hold(self) -> None:
        """Allow no sends until `release`."""
        self.is_held = True

    def release(self) -> None:
        """Undo `hold`. A destination that is down may be tried at once."""
        self.is_held = False
        self.retry_now()

    def retry_now(self) -> None:
        """Allow the next probe now."""
        self._retry_at = 0.0
