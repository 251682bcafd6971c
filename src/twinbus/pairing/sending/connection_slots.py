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
#: After this many seconds an opening only waits for the network, and no longer holds up those of other entities.
OPENING_SECONDS = 2.0


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
        self._max_opening = max_opening
        # Links that are opening, and how long, not counting time in which this process ran late.
        self._opening: dict[OpeningWaiter, float] = {}
        # Links that wait to open: the first link of a pool goes before those of pools that only grow.
        self._first_links: deque[OpeningWaiter] = deque()
        self._more_links: deque[OpeningWaiter] = deque()
        self._open = 0
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

    def ask_to_open(self, waiter: OpeningWaiter, *, is_first: bool) -> bool:
        """Return whether a link may be opened now; otherwise `waiter` is given None when it may.

        Args:
            is_first: The pool has no link yet. Its opening goes before those of pools that only grow.
        """
        with self.lock:
            if len(self._opening) < self._max_opening:
                self._opening[waiter] = 0.0
                return True
            (self._first_links if is_first else self._more_links).append(waiter)
            return False

    def opened(self, waiter: OpeningWaiter) -> None:
        """Record the end of an opening, successful or not, or that it is no longer wanted; the next one may begin."""
        with self.lock:
            for queue in (self._first_links, self._more_links):
                if waiter in queue:
                    queue.remove(waiter)
            self._opening.pop(waiter, None)
            self._let_next_open()

    def tick(self, seconds: float) -> None:
        """Record that time has passed in which this process was not late: long openings make room for others."""
        with self.lock:
            for waiter in list(self._opening):
                self._opening[waiter] += seconds
                if self._opening[waiter] >= OPENING_SECONDS:
                    del self._opening[waiter]
            self._let_next_open()

    def _let_next_open(self) -> None:
        while len(self._opening) < self._max_opening:
            queue = self._first_links or self._more_links
            if not queue:
                return
            waiter = queue.popleft()
            if waiter.give(None):
                self._opening[waiter] = 0.0
