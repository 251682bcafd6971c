"""Scheduled and expiring messages of a whole namespace: one alarm, set for whatever comes first.

The store has the times in two small indexes, so nothing is kept in memory for messages that wait, however many
there are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from .message import Message
from .queue import MAX_RECHECK, Queue
from .schema import State, queue_of, sequence_of
from .store import Store

logger = logging.getLogger("twinbus.broker.timeline")

SWEEP_LIMIT = 1000  # messages handled at once, so that a flood of expiries does not stop the world
MIN_INTERVAL = 0.02


class Timeline:
    """Activates what is due and expires what is over."""

    def __init__(self, store: Store, now_ms: Callable[[], int], find: Callable[[int], Queue | None]) -> None:
        self._store = store
        self._now_ms = now_ms
        self._find = find
        self._loop = asyncio.get_running_loop()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0
        # Everything up to here was looked at; messages that were locked then are looked at when they come back.
        self._expired_until = 0
        self._closed = False

    def start(self) -> None:
        """Handle what came due while nobody was looking."""
        self._sweep()

    def watch(self, message: Message) -> None:
        """A message with a time was committed."""
        at = message.due_at if message.state == State.SCHEDULED else message.expires_at
        if at is None:
            return
        if message.state != State.SCHEDULED and at <= self._expired_until:
            self._expired_until = at - 1
        self._set(at)

    def check_clock(self) -> None:
        """Act on the clock now: it was set, and the alarm may still be far away."""
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
            # Go on with the last instant seen, unless it filled the whole part: then it would fill the next one too.
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
            # One message must not stop the clock for the others, nor a namespace from starting.
            logger.exception("the time of a message of %s has come, and it could not be dealt with", queue.path)

    def _set_next(self, now: int, more: bool) -> None:
        if more:
            self._store.submit([], lambda error: self._set(now))  # go on when this part is stored
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
