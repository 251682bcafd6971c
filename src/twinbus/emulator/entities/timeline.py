"""Activates scheduled messages and expires old ones, with one timer for the whole namespace.

The store indexes both times, so waiting messages take no memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ..storage.schema import State, queue_of, sequence_of
from ..storage.store import Store
from .message import Message
from .queue import MAX_RECHECK, Queue

logger = logging.getLogger("twinbus.emulator.entities.timeline")

SWEEP_LIMIT = 1000  # messages handled per sweep, so that mass expiry does not block the event loop
MIN_INTERVAL = 0.02


class Timeline:
    """Activates messages that are due and expires messages whose time to live has ended."""

    def __init__(self, store: Store, now_ms: Callable[[], int], find: Callable[[int], Queue | None]) -> None:
        self._store = store
        self._now_ms = now_ms
        self._find = find
        self._loop = asyncio.get_running_loop()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0
        # Expiries up to this time were handled; messages that were locked then are checked when they are unlocked.
        self._expired_until = 0
        self._closed = False

    def start(self) -> None:
        """Handle messages that came due while the namespace was stopped."""
        self._sweep()

    def watch(self, message: Message) -> None:
        """Set the timer for a committed message that is scheduled or expires."""
        at = message.due_at if message.state == State.SCHEDULED else message.expires_at
        if at is None:
            return
        if message.state != State.SCHEDULED and at <= self._expired_until:
            self._expired_until = at - 1
        self._set(at)

    def check_clock(self) -> None:
        """Sweep now: the clock was changed, and the timer may be set for much later."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._sweep()

    def _set(self, at: int) -> None:
        if self._closed or (self._alarm is not None and self._alarm_at <= at):
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        delay = max(MIN_INTERVAL, (at - self._now_ms()) / 1000)
        self._alarm = self._loop.call_later(min(delay, MAX_RECHECK), self._sweep)

    def _sweep(self) -> None:
        self._alarm = None
        now = self._now_ms()
        reader = self._store.reader
        due = reader.execute(
            "SELECT id FROM stored WHERE due_at <= ? ORDER BY due_at LIMIT ?", (now, SWEEP_LIMIT)
        ).fetchall()
        for (key,) in due:
            self._act(key, lambda queue, sequence: queue.activate(sequence))
        expired = reader.execute(
            "SELECT id, expires_at FROM stored WHERE expires_at > ? AND expires_at <= ? ORDER BY expires_at LIMIT ?",
            (self._expired_until, now, SWEEP_LIMIT),
        ).fetchall()
        for key, _ in expired:
            self._act(key, lambda queue, sequence: queue.expire(sequence))
        if len(expired) == SWEEP_LIMIT:
            # Repeat the last millisecond, of which there may be more, unless it filled the whole sweep: then skip it.
            last = expired[-1][1]
            self._expired_until = last if expired[0][1] == last else last - 1
        else:
            self._expired_until = now
        self._set_next(now, len(due) == SWEEP_LIMIT or len(expired) == SWEEP_LIMIT)

    def _act(self, key: int, act: Callable[[Queue, int], None]) -> None:
        queue = self._find(queue_of(key))
        if queue is None:
            return
        try:
            act(queue, sequence_of(key))
        except Exception:
            # One bad message must not stop the timer for the others, or keep a namespace from starting.
            logger.exception("activating or expiring a message of %s failed", queue.path)

    def _set_next(self, now: int, has_more: bool) -> None:
        if has_more:
            self._store.submit([], lambda error: self._set(now))  # continue when this sweep is committed
            return
        row = self._store.reader.execute(
            "SELECT MIN(at) FROM (SELECT MIN(due_at) AS at FROM stored WHERE due_at > ?"
            " UNION ALL SELECT MIN(expires_at) FROM stored WHERE expires_at > ?)",
            (now, self._expired_until),
        ).fetchone()
        if row[0] is not None:
            self._set(row[0])

    def close(self) -> None:
        self._closed = True
        if self._alarm is not None:
            self._alarm.cancel()
