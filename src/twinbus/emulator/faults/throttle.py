"""Throttles a namespace as the service does: N messages a second, then server-busy."""

from __future__ import annotations

from collections.abc import Callable

from ..protocol.error_conditions import SERVER_BUSY, BrokerError


class Throttle:
    """A token bucket of one second's messages; without a rate it admits everything."""

    def __init__(self, namespace: str, rate: int | None, now: Callable[[], float]) -> None:
        self._namespace = namespace
        self._rate = rate
        self._now = now
        self._available = float(rate or 0)
        self._updated_at = now()

    def admits(self, messages: int) -> bool:
        """Whether N messages may come in now. A batch larger than the bucket passes when the bucket is full."""
        if self._rate is None:
            return True
        now = self._now()
        self._available = min(float(self._rate), self._available + (now - self._updated_at) * self._rate)
        self._updated_at = now
        if self._available < min(messages, self._rate):
            return False
        self._available -= messages
        return True

    def busy(self) -> BrokerError:
        """The service's server-busy error."""
        return BrokerError(
            SERVER_BUSY,
            f"The request was terminated because the namespace {self._namespace} is being throttled."
            " Error code : 50009."
            " Please wait 2 seconds and try again.",
        )
