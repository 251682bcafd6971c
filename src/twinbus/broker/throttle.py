"""Throttling as the service does it: so many messages a second, then server-busy."""

from __future__ import annotations

from collections.abc import Callable

from .errors import SERVER_BUSY, BrokerError


class Throttle:
    """A bucket of one second's messages for a whole namespace; without a rate it admits everything."""

    def __init__(self, namespace: str, rate: int | None, now: Callable[[], float]) -> None:
        self._namespace = namespace
        self._rate = rate
        self._now = now
        self._left = float(rate or 0)
        self._at = now()

    def admits(self, messages: int) -> bool:
        """Whether this many messages may come in now. A batch larger than the bucket passes when it is full."""
        if self._rate is None:
            return True
        now = self._now()
        self._left = min(float(self._rate), self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < min(messages, self._rate):
            return False
        self._left -= messages
        return True

    def busy(self) -> BrokerError:
        """In the service's words."""
        return BrokerError(
            SERVER_BUSY,
            f"The request was terminated because the namespace {self._namespace} is being throttled."
            " Error code : 50009."
            " Please wait 2 seconds and try again.",
        )
