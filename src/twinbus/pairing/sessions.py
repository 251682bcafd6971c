"""Which sessions have messages under way through the backlog, where order within a session is kept.

Once one message of a session was diverted, the next ones have to follow it, also when the primary is back: sent
directly they would overtake it. The session is released when a look through its backlog queue has found none of its
messages, and none was sent there since the look began. Pure, and safe to use from several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from .naming import entity_key


class Session(NamedTuple):
    """A session of a destination; `entity` is the key of its path."""

    entity: str
    id: str


class Scan(NamedTuple):
    """A look through a backlog queue that has begun, to be handed to `end_scan`."""

    queue: int
    began: int


@dataclass(slots=True)
class _UnderWay:
    """The queues in which a session may have messages, each with the moment of the last one; the newest comes last."""

    queues: dict[int, int] = field(default_factory=dict)
    in_flight: int = 0


class DivertedSessions:
    """The sessions that must go through the backlog. Entities are paths or their keys, queues are indexes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: dict[Session, _UnderWay] = {}
        # Counts what happens, so that "since" needs no clock.
        self._moment = 0

    @property
    def count(self) -> int:
        """How many sessions are diverted."""
        return len(self._sessions)

    def is_diverted(self, entity: str, session: str) -> int | None:
        """The backlog queue to which the session's next message has to follow the others; None: send it directly."""
        if not self._sessions:
            return None  # the usual case, asked by every send
        with self._lock:
            under_way = self._sessions.get(Session(entity_key(entity), session))
            return None if under_way is None else next(reversed(under_way.queues))

    @contextmanager
    def diverting(self, entity: str, sessions: Iterable[str], queue: int) -> Iterator[None]:
        """Around an attempt to send messages of these sessions to a backlog queue.

        The sessions count as diverted from the beginning of the attempt, and are not released while it lasts: what
        is still on its way no look into the queue can find.
        """
        keys = {Session(entity_key(entity), session) for session in sessions}
        with self._lock:
            for key in keys:
                self._mark(key, queue).in_flight += 1
        try:
            yield
        finally:
            with self._lock:
                for key in keys:
                    self._mark(key, queue).in_flight -= 1

    def divert(self, entity: str, session: str, queue: int) -> None:
        """A message of the session is in that backlog queue."""
        with self._lock:
            self._mark(Session(entity_key(entity), session), queue)

    def queues(self, entities: Collection[str] | None = None) -> list[int]:
        """The backlog queues to look through, for the sessions of all entities or of these."""
        wanted = None if entities is None else set(map(entity_key, entities))
        with self._lock:
            found = (one.queues for key, one in self._sessions.items() if wanted is None or key.entity in wanted)
            return sorted(set().union(*found))

    def begin_scan(self, queue: int) -> Scan:
        """A look through a backlog queue begins now."""
        with self._lock:
            return Scan(queue, self._moment)

    def is_awaited(self, scan: Scan, seen: Collection[Session]) -> bool:
        """Whether the look can still release a session; false as soon as all of the queue have been seen."""
        with self._lock:
            return any(scan.queue in one.queues and key not in seen for key, one in self._sessions.items())

    def end_scan(self, scan: Scan, seen: Collection[Session]) -> list[Session]:
        """The whole queue was looked through, and held messages of the sessions `seen`; returns those released."""
        released = []
        with self._lock:
            for key, under_way in list(self._sessions.items()):
                last = under_way.queues.get(scan.queue)
                if last is None or last > scan.began or under_way.in_flight or key in seen:
                    continue
                del under_way.queues[scan.queue]
                if not under_way.queues:
                    del self._sessions[key]
                    released.append(key)
        return released

    def _mark(self, key: Session, queue: int) -> _UnderWay:
        self._moment += 1
        under_way = self._sessions.setdefault(key, _UnderWay())
        under_way.queues.pop(queue, None)
        under_way.queues[queue] = self._moment
        return under_way
