"""Bounds how many links a client opens at once, and how many connections it has, per namespace."""

from __future__ import annotations

import math
import threading
from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Links of one client that open to one namespace at the same time. More would only take turns for the CPU.
MAX_OPENING = 16


class Grant(Protocol):
    """Someone who waits to be let in, thread or task."""

    def give(self, value: None) -> bool: ...


class Evictable(Protocol):
    """A pool of links, as far as others need to know."""

    def idle_since(self) -> float | None:
        """Since when its least recently used idle link is idle; None if it has none."""

    def evict(self) -> None:
        """Close that link."""

    def close_idle(self, now: float) -> None:
        """Close the links that were not needed for a while."""

    def grow(self) -> None:
        """Open links that are wanted: there may be a place now."""


class Connections:
    """The connections of one client to one namespace. Thread-safe; nothing in it waits.

    Its `lock` also guards the state of the pools, so that one pool can give up an idle link for another.
    """

    def __init__(self, max_connections: int, max_opening: int = MAX_OPENING) -> None:
        self.lock = threading.RLock()
        self.max_connections = max_connections
        #: When a link of this client was last opened or answered, by the clock of the pairing.
        self.answered_at = -math.inf
        self._free = max_opening
        self._open = 0
        self._waiting: deque[Grant] = deque()
        self._pools: list[Evictable] = []
        # Pools without any link that found no place, and since when.
        self._starved: dict[Evictable, float] = {}

    @property
    def count(self) -> int:
        """How many connections are open or being opened."""
        return self._open

    # ---- connections ----

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
        """Take a place for one more connection of a pool; false if there is none.

        A pool without any link gets the place of the link that has been idle for longest, in whichever pool, or else
        the first place that becomes free: then its `grow` is called.
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
        """A connection is gone, or about to go."""
        with self.lock:
            self._open -= 1
            while self._starved and self._open < self.max_connections:
                pool = next(iter(self._starved))
                del self._starved[pool]  # it asks again if it still needs a place
                pool.grow()

    def give_up_place(self, pool: Evictable) -> None:
        """The pool does not need a place any more."""
        with self.lock:
            self._starved.pop(pool, None)

    def starved_since(self) -> float:
        """Since when a pool without any link waits for a place; infinity if none does."""
        return next(iter(self._starved.values()), math.inf) if self._starved else math.inf

    def _evict(self) -> bool:
        idle = [(since, number) for number, pool in enumerate(self._pools) if (since := pool.idle_since()) is not None]
        if not idle:
            return False
        self._pools[min(idle)[1]].evict()
        return self._open < self.max_connections

    # ---- openings ----

    def ask_to_open(self, waiter: Grant) -> bool:
        """Whether a link may be opened now; otherwise `waiter` is given None when its turn has come."""
        with self.lock:
            if self._free > 0:
                self._free -= 1
                return True
            self._waiting.append(waiter)
            return False

    def give_up_opening(self, waiter: Grant) -> None:
        """The waiter does not want its turn any more; it is passed on if it has just come."""
        with self.lock:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            else:
                self.opened()

    def opened(self) -> None:
        """An opening has ended, in whatever way: the next one may begin."""
        with self.lock:
            while self._waiting:
                if self._waiting.popleft().give(None):
                    return
            self._free += 1
