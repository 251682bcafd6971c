"""Bounds the connections that have not authenticated yet.

They cost memory and file handles before they prove anything. When there are too many, the one without progress for
the longest time is closed, so that idle connections cannot keep active clients out.
"""

from __future__ import annotations

from collections.abc import Callable

MAX_CONNECTIONS = 1000


class UnauthenticatedConnections:
    """Connections without a good token, in the order of their last progress."""

    def __init__(self) -> None:
        self._limit = MAX_CONNECTIONS
        self._close: dict[object, Callable[[], object]] = {}
        #: Connections that were closed to stay below the limit.
        self.closed = 0

    def __len__(self) -> int:
        return len(self._close)

    def add(self, key: object, close: Callable[[], object]) -> None:
        """Add a connection, or record its progress; `close` is called if it must make room."""
        self.remove(key)
        self._close[key] = close
        if len(self._close) > self._limit:
            oldest = next(iter(self._close))
            self.closed += 1
            self._close.pop(oldest)()

    def remove(self, key: object) -> None:
        """Remove a connection that has authenticated, ended, or is tracked under another key now."""
        self._close.pop(key, None)
