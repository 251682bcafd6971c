"""Tracks message locks: which receiver holds which message, and until when."""

from __future__ import annotations

import heapq
import os
import struct
from typing import Any

_little, _big = struct.Struct("<IHH8s"), struct.Struct(">IHH8s")


class TokenSource:
    """Random lock tokens, generated a page at a time: one system call per token would cost more than the lock."""

    _PAGE = 256

    def __init__(self) -> None:
        self._page: list[bytes] = []

    def take(self) -> bytes:
        """Return 16 random bytes: a token in the byte order of AMQP's uuid type."""
        if not self._page:
            page = os.urandom(16 * self._PAGE)
            self._page = [page[pos : pos + 16] for pos in range(0, len(page), 16)]
        return self._page.pop()


def tag_of(token: bytes) -> bytes:
    """The delivery tag for a token: the same uuid in .NET's little-endian order. The function is its own inverse."""
    return _little.pack(*_big.unpack(token))


class Lock:
    """One message held by a receiver. Holds no body: a message that is given back is read from the store again."""

    __slots__ = (
        "deferred",
        "delivery_count",
        "expires_at",
        "holder",
        "locked_until",
        "sequence",
        "session",
        "size",
        "token",
    )

    def __init__(self, token: bytes, message: Any, locked_until: int, holder: object, deferred: bool) -> None:
        self.token = token
        self.sequence: int = message.sequence
        self.session: str | None = message.session
        self.size: int = message.size
        self.delivery_count: int = message.delivery_count
        self.expires_at: int | None = message.expires_at
        self.locked_until = locked_until
        self.holder = holder
        self.deferred = deferred


class LockTable:
    """The locks of one queue, ordered by expiry."""

    def __init__(self) -> None:
        self.by_token: dict[bytes, Lock] = {}
        self._by_time: list[tuple[int, bytes]] = []

    def __len__(self) -> int:
        return len(self.by_token)

    def get(self, token: bytes) -> Lock | None:
        return self.by_token.get(token)

    def add(self, lock: Lock, timed: bool) -> None:
        """Add a lock. `timed` locks expire by themselves; those of a session expire with the session."""
        self.by_token[lock.token] = lock
        if timed:
            self._note_time(lock)

    def _note_time(self, lock: Lock) -> None:
        heapq.heappush(self._by_time, (lock.locked_until, lock.token))
        if len(self._by_time) > 64 + 4 * len(self.by_token):
            # Settled locks leave stale times in the heap; drop them before they outnumber the live ones.
            self._by_time = [(at, token) for at, token in self._by_time if self._is_current(at, token)]
            heapq.heapify(self._by_time)

    def _is_current(self, at: int, token: bytes) -> bool:
        lock = self.by_token.get(token)
        return lock is not None and lock.locked_until == at

    def renew(self, lock: Lock, until: int) -> None:
        lock.locked_until = until
        self._note_time(lock)

    def next_time(self) -> int | None:
        """When the next lock expires; None without locks."""
        while self._by_time and not self._is_current(*self._by_time[0]):
            heapq.heappop(self._by_time)
        return self._by_time[0][0] if self._by_time else None

    def take_expired(self, now: int) -> list[Lock]:
        """Remove and return the expired locks."""
        expired = []
        while (at := self.next_time()) is not None and at <= now:
            _, token = heapq.heappop(self._by_time)
            expired.append(self.by_token.pop(token))
        return expired

    def clear(self) -> list[Lock]:
        locks = list(self.by_token.values())
        self.by_token.clear()
        self._by_time.clear()
        return locks
