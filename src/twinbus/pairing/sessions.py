"""Tracks sessions with messages in the backlog, where order within a session is kept.

Once one message of a session was diverted, the next ones have to follow it, also when the primary is back: sent
directly they would overtake it. They follow into the queue where its newest message is stored: others may hold older
ones, or copies that no one knows of since an acknowledgement was lost. The session is released when a look through its
backlog queues has found none of its messages, and none was sent there since the look began. A session with steady
traffic would never get there by itself: so its next send is held until the session is released, for a while.

Calls of one session take turns, so that at most one is under way. Pure, and safe to use from several threads.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from .naming import entity_key

#: The longest that a send of a diverted session is held until the session is out of the backlog.
HOLD_SECONDS = 5.0
#: After a send was held in vain, how long none of its session is held, the first time and at most.
FIRST_HOLD_PAUSE, LONGEST_HOLD_PAUSE = 1.0, 60.0


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
    #: How often in a row a held send was not released in time, and when the next one may be held.
    failed_holds: int = 0
    hold_at: float = -math.inf

    @property
    def queue(self) -> int | None:
        """The queue that holds the newest."""
        newest = {queue: place.newest for queue, place in self.places.items() if place.newest is not None}
        return max(newest, key=newest.__getitem__, default=None)


class Waiting(Protocol):
    """A call that waits, thread or task; it is told once."""

    def give(self, value: bool) -> bool: ...


class SessionTurns:
    """Lets the calls of each session through one after the other, in call order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[Session, deque[Waiting]] = {}

    def enter(self, key: Session, waiter: Waiting) -> bool:
        """Whether it is this call's turn; otherwise `waiter` is given True when it is."""
        with self._lock:
            line = self._lines.get(key)
            if line is None:
                self._lines[key] = deque()
                return True
            line.append(waiter)
            return False

    def leave(self, key: Session) -> None:
        """A call whose turn it was has ended."""
        with self._lock:
            line = self._lines[key]
            while line:
                if line.popleft().give(True):
                    return
            del self._lines[key]

    def give_up(self, key: Session, waiter: Waiting) -> None:
        """A call does not wait for its turn any more; if it has just come, the next one gets it."""
        with self._lock:
            line = self._lines[key]
            if waiter in line:
                line.remove(waiter)
                return
        self.leave(key)


class DivertedSessions:
    """The sessions that must go through the backlog. Entities are paths or their keys, queues are indexes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: dict[Session, _UnderWay] = {}
        self._held: dict[Session, list[Waiting]] = {}
        #: Called, in any thread, when a send is held: the backlog should be looked through soon.
        self.on_hold: Callable[[], None] = lambda: None
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
    def diverting(self, entity: str, session: str, queue: int) -> Iterator[None]:
        """Around an attempt to send a message of a session to a backlog queue.

        The session counts as diverted from the beginning of the attempt, and is not released while it lasts: a look
        into the queue cannot find what is still on its way.
        """
        key = Session(entity_key(entity), session)
        with self._lock:
            self._touch(key, queue).in_flight += 1
        is_accepted = False
        try:
            yield
            is_accepted = True
        finally:
            with self._lock:
                place = self._touch(key, queue)
                place.in_flight -= 1
                if is_accepted:
                    place.newest = _Newest(math.inf, place.touched)

    # ---- held sends ----

    def hold(self, key: Session, waiter: Waiting, now: float) -> bool:
        """Hold a send of a diverted session; `waiter` is given True when the session is released, False when the send
        has to be diverted after all. False: it must not be held now, since a send was held in vain not long ago."""
        with self._lock:
            under_way = self._sessions.get(key)
            if under_way is None or now < under_way.hold_at:
                return False
            self._held.setdefault(key, []).append(waiter)
        self.on_hold()
        return True

    def end_hold(self, key: Session, waiter: Waiting, now: float, *, is_released: bool) -> None:
        """A send is not held any more; in vain if the session was not released."""
        with self._lock:
            waiters = self._held.get(key, [])
            if waiter in waiters:
                waiters.remove(waiter)
            if not waiters:
                self._held.pop(key, None)
            under_way = self._sessions.get(key)
            if under_way is not None and not is_released:
                under_way.failed_holds += 1
                pause = FIRST_HOLD_PAUSE * 2.0 ** min(under_way.failed_holds - 1, 30)
                under_way.hold_at = now + min(pause, LONGEST_HOLD_PAUSE)

    def end_holds(self, entity: str) -> None:
        """The entity has failed over: what is held has to be diverted."""
        with self._lock:
            for key, waiters in self._held.items():
                if key.entity == entity_key(entity):
                    for waiter in waiters:
                        waiter.give(False)

    def held(self) -> dict[int, set[Session]]:
        """The sessions with a held send, by the backlog queues that have to be looked through for them."""
        found: dict[int, set[Session]] = {}
        with self._lock:
            for key in self._held:
                for queue in self._sessions[key].places if key in self._sessions else ():
                    found.setdefault(queue, set()).add(key)
        return found

    # ---- looks through the backlog ----

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

    def is_awaited(self, scan: Scan, seen: Collection[Session], wanted: Collection[Session] | None = None) -> bool:
        """Whether the look can still release a session, or one of `wanted`; false as soon as all have been seen."""
        with self._lock:
            keys = self._sessions if wanted is None else wanted
            return any(
                key not in seen and scan.queue in self._sessions[key].places for key in keys if key in self._sessions
            )

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
                    for waiter in self._held.get(key, ()):
                        waiter.give(True)
        return released

    def _touch(self, key: Session, queue: int) -> _Place:
        self._moment += 1
        place = self._sessions.setdefault(key, _UnderWay()).places.setdefault(queue, _Place(self._moment))
        place.touched = self._moment
        return place
