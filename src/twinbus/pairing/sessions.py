"""Which sessions have messages under way through the backlog, where order within a session is kept.

Once one message of a session was diverted, the next ones have to follow it, also when the primary is back: sent
directly they would overtake it. They follow into the queue where its newest message lies: others may hold older ones,
or copies of which nobody knows since an acknowledgement was lost. The session is released when a look through its
backlog queues has found none of its messages, and none was sent there since the look began. Pure, and safe to use from
several threads.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Iterator
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


class _Newest(NamedTuple):
    """The newest message of a session that is known to be in a queue: when it was stored by the broker's clock,
    infinity for one that was sent by ourselves and so came after all that was there before; and the moment when we
    learnt of it."""

    stored_at: float
    moment: int


@dataclass(slots=True)
class _Place:
    """A queue in which a session may have messages; `touched` is the moment when one was last on its way there."""

    touched: int
    in_flight: int = 0
    newest: _Newest | None = None


@dataclass(slots=True)
class _UnderWay:
    """Where a session may have messages."""

    places: dict[int, _Place] = field(default_factory=dict)

    @property
    def queue(self) -> int | None:
        """The queue that holds the newest."""
        newest = {queue: place.newest for queue, place in self.places.items() if place.newest is not None}
        return max(newest, key=newest.__getitem__, default=None)

    def may_go_to(self, queue: int) -> bool:
        """Whether a message in that queue is sure to stay behind the others."""
        others = any(place.in_flight for index, place in self.places.items() if index != queue)
        return not others and self.queue in (None, queue)


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

    def is_diverted(self, entity: str, session: str) -> bool:
        """Whether the session's next message has to go through the backlog."""
        # Usually there are none, and every send asks.
        return bool(self._sessions) and Session(entity_key(entity), session) in self._sessions

    def queue_of(self, entity: str, session: str) -> int | None:
        """The backlog queue to which the session's next message has to follow the others; None: to any.

        A queue to which one was sent in vain does not count: if it is there after all, nobody was told so.
        """
        with self._lock:
            under_way = self._sessions.get(Session(entity_key(entity), session))
            return None if under_way is None else under_way.queue

    @contextmanager
    def diverting(self, entity: str, session: str, queue: int) -> Iterator[bool]:
        """Around an attempt to send a message of a session to a backlog queue; false: it must not be made now.

        That is so while others of the session are in another queue, or on their way there: who comes after both could
        not follow both. The session counts as diverted from the beginning of the attempt, and is not released while
        it lasts: what is still on its way no look into the queue can find.
        """
        key = Session(entity_key(entity), session)
        with self._lock:
            may_go = key not in self._sessions or self._sessions[key].may_go_to(queue)
            if may_go:
                self._touch(key, queue).in_flight += 1
        if not may_go:
            yield False
            return
        is_accepted = False
        try:
            yield True
            is_accepted = True
        finally:
            with self._lock:
                place = self._touch(key, queue)
                place.in_flight -= 1
                if is_accepted:
                    place.newest = _Newest(math.inf, place.touched)

    def found(self, entity: str, session: str, queue: int, stored_at: float) -> None:
        """A look has found messages of the session in that backlog queue, the newest of them stored at that time.

        Where the next one has to go is for the newest of all to say, not for the look that came last.
        """
        with self._lock:
            place = self._touch(Session(entity_key(entity), session), queue)
            if place.newest is None or place.newest.stored_at < stored_at:
                place.newest = _Newest(stored_at, place.touched)

    def queues(self, entities: Collection[str] | None = None) -> list[int]:
        """The backlog queues to look through, for the sessions of all entities or of these."""
        wanted = None if entities is None else set(map(entity_key, entities))
        with self._lock:
            found = (one.places for key, one in self._sessions.items() if wanted is None or key.entity in wanted)
            return sorted(set().union(*found))

    def begin_scan(self, queue: int) -> Scan:
        """A look through a backlog queue begins now."""
        with self._lock:
            return Scan(queue, self._moment)

    def is_awaited(self, scan: Scan, seen: Collection[Session]) -> bool:
        """Whether the look can still release a session; false as soon as all of the queue have been seen."""
        with self._lock:
            return any(scan.queue in one.places and key not in seen for key, one in self._sessions.items())

    def end_scan(self, scan: Scan, seen: Collection[Session]) -> list[Session]:
        """The whole queue was looked through, and held messages of the sessions `seen`; returns those released."""
        released = []
        with self._lock:
            for key, under_way in list(self._sessions.items()):
                place = under_way.places.get(scan.queue)
                if place is None or place.touched > scan.began or place.in_flight or key in seen:
                    continue
                del under_way.places[scan.queue]
                if not under_way.places:
                    del self._sessions[key]
                    released.append(key)
        return released

    def _touch(self, key: Session, queue: int) -> _Place:
        self._moment += 1
        place = self._sessions.setdefault(key, _UnderWay()).places.setdefault(queue, _Place(self._moment))
        place.touched = self._moment
        return place
