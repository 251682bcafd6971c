"""Bounds the opening links and the connections of a client, per namespace."""

from __future__ import annotations

import math
import threading
from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Links of one client that may open to one namespace at the same time. More would only compete for the CPU.
MAX_OPENING = 16


class OpeningWaiter(Protocol):
    """A thread or task that waits to open a link."""

    def give(self, value: None) -> bool: ...


class Evictable(Protocol):
    """A pool of links, as `Connections` sees it."""

    def idle_since(self) -> float | None:
        """Return since when the least recently used idle link is idle; None if there is none."""

    def evict(self) -> None:
        """Close that link."""

    def close_idle(self, now: float) -> None:
        """Close the links that were idle for a while."""

    def grow(self) -> None:
        """Open the links that are needed; a connection may be free now."""


class Connections:
    """The connections of one client to one namespace. Thread-safe; nothing in it waits.

    Its `lock` also guards the state of the pools, so that one pool can close an idle link for another.
    """

    def __init__(self, max_connections: int, max_opening: int = MAX_OPENING) -> None:
        self.lock = threading.RLock()
        self.max_connections = max_connections
        #: When a link of this client was last opened or answered, by the pairing's clock.
        self.answered_at = -math.inf
        self._free = max_opening
        self._open = 0
        self._waiting: deque[OpeningWaiter] = deque()
        self._pools: list[Evictable] = []
        # Pools without a link that found no free connection, and since when.
        self._starved: dict[Evictable, float] = {}

    @property
    def count(self) -> int:
        """The connections that are open or opening."""
        return self._open

    def join(self, pool: Evictable) -> None:
        with self.lock:
            self._pools.append(pool)

    def leave(self, pool: Evictable) -> None:
        with self.lock:
            if pool in self._pools:
                self._pools.remove(pool)
            self._starved.pop(pool, None)

    def pools(self) -> Iterable[Evictable]:
        with self.lock:
            return list(self._pools)

    def reserve(self, pool: Evictable, now: float, *, is_first: bool) -> bool:
        """Reserve one more connection for a pool; return False if none is free.

        A pool without a link gets the connection of the link that has been idle for longest, in any pool, or else the
        first one that becomes free: then its `grow` is called.
        """
        with self.lock:
            if self._open >= self.max_connections:
                if not is_first:
                    return False
                if not self._evict():
                    self._starved.setdefault(pool, now)
                    return False
            self._starved.pop(pool, None)
            self._open += 1
            return True

    def release(self) -> None:
        """Release a connection that is closed, or about to be."""
        with self.lock:
            self._open -= 1
            while self._starved and self._open < self.max_connections:
                pool = next(iter(self._starved))
                del self._starved[pool]  # it asks again if it still needs one
                pool.grow()

    def give_up_place(self, pool: Evictable) -> None:
        """The pool no longer needs a connection."""
        with self.lock:
            self._starved.pop(pool, None)

    def starved_since(self) -> float:
        """Return since when a pool without a link waits for a connection; infinity if none does."""
        return next(iter(self._starved.values()), math.inf) if self._starved else math.inf

    def _evict(self) -> bool:
        idle = [(since, number) for number, pool in enumerate(self._pools) if (since := pool.idle_since()) is not None]
        if not idle:
            return False
        self._pools[min(idle)[1]].evict()
        return self._open < self.max_connections

    def ask_to_open(self, waiter: OpeningWaiter) -> bool:
        """Return whether a link may be opened now; otherwise `waiter` is given None when it may."""
        with self.lock:
            if self._free > 0:
                self._free -= 1
                return True
            self._waiting.append(waiter)
            return False

    def give_up_opening(self, waiter: OpeningWaiter) -> None:
        """Stop waiting for an opening; if it was just granted, pass it on."""
        with self.lock:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            else:
                self.opened()

    def opened(self) -> None:
        """Record the end of an opening, successful or not; the next one may begin."""
        with self.lock:
            while self._waiting:
                if self._waiting.popleft().give(None):
                    return
            self._free += 1
