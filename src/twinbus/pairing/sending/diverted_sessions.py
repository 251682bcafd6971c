"""Tracks sessions with messages in the backlog, to keep their order.

After one message of a session was diverted, later ones must follow it even when the primary is back: sent directly they
would overtake it. They follow into the queue with the session's newest message: other queues may hold older ones, or
copies left by a lost acknowledgement. A session is released when a scan of its backlog queues finds none of its
messages, and none was sent there since the scan began. With steady traffic that would never happen: so the session's
next send is held for a while, until the session is released.

Calls of one session take turns, so that at most one is running. Pure and thread-safe.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from twinbus.servicebus.entity_paths import entity_key

#: Hold a send of a diverted session for at most this long.
HOLD_SECONDS = 5.0
#: After holds of that length failed, how long no send of the session is held: first and longest pause.
FIRST_HOLD_PAUSE, LONGEST_HOLD_PAUSE = 1.0, 60.0


class Session(NamedTuple):
    """A session of a destination; `entity` is the key of its path."""

    entity: str
    id: str


class Scan(NamedTuple):
    """A scan of a backlog queue that has begun; pass it to `end_scan`."""

    queue: int
    began: int


class _Newest(NamedTuple):
    """The newest known message of a session in a queue.

    `stored_at` is by the broker's clock, infinity if this client sent the message and it so is the newest; `moment`
    is the moment when this client learned of it.
    """

    stored_at: float
    moment: int


@dataclass(slots=True)
class _SessionQueue:
    """A queue that may hold messages of a session; `touched` is the moment of the last send to it."""

    touched: int
    in_flight: int = 0
    newest: _Newest | None = None


@dataclass(slots=True)
class _DivertedSession:
    """Where a diverted session may have messages."""

    queues: dict[int, _SessionQueue] = field(default_factory=dict)
    #: How long sends were held in vain, how often a hold failed, and when the next send may be held.
    held_in_vain: float = 0.0
    failed_holds: int = 0
    hold_at: float = -math.inf

    @property
    def queue(self) -> int | None:
        """The queue with the newest message."""
        newest = {queue: entry.newest for queue, entry in self.queues.items() if entry.newest is not None}
        return max(newest, key=newest.__getitem__, default=None)


class SessionWaiter(Protocol):
    """A thread or task whose call waits; it is given one value."""

    def give(self, value: bool) -> bool: ...


class SessionTurns:
    """Lets the calls of each session run one at a time, in call order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[Session, deque[SessionWaiter]] = {}

    def enter(self, key: Session, waiter: SessionWaiter) -> bool:
        """Return whether it is this call's turn; otherwise `waiter` is given True when it is."""
        with self._lock:
            waiting = self._waiting.get(key)
            if waiting is None:
                self._waiting[key] = deque()
                return True
            waiting.append(waiter)
            return False

    def leave(self, key: Session) -> None:
        """End the turn of a call."""
        with self._lock:
            waiting = self._waiting[key]
            while waiting:
                if waiting.popleft().give(True):
                    return
            del self._waiting[key]

    def give_up(self, key: Session, waiter: SessionWaiter) -> None:
        """Stop waiting for a turn; if it has just come, pass it on."""
        with self._lock:
            waiting = self._waiting[key]
            if waiter in waiting:
                waiting.remove(waiter)
                return
        self.leave(key)


class DivertedSessions:
    """The sessions that must go through the backlog. Entities are paths or their keys, queues are indexes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: dict[Session, _DivertedSession] = {}
        self._held: dict[Session, list[SessionWaiter]] = {}
        #: Called, from any thread, when a send is held: the backlog should be scanned soon.
        self.on_hold: Callable[[], None] = lambda: None
        # Counts changes, so that "since" needs no clock.
        self._moment = 0

    @property
    def count(self) -> int:
        """The number of diverted sessions."""
        return len(self._sessions)

    def is_diverted(self, entity: str, session: str) -> bool:
        """Return whether the session's next message has to go through the backlog."""
        # Usually there are none, and every send asks.
        return bool(self._sessions) and Session(entity_key(entity), session) in self._sessions

    def queue_of(self, entity: str, session: str) -> int | None:
        """Return the backlog queue that the session's next message must go to; None for any.

        A queue where a send failed does not count: even if the message was stored, its caller knows of a failure.
        """
        with self._lock:
            diverted = self._sessions.get(Session(entity_key(entity), session))
            return None if diverted is None else diverted.queue

    @contextmanager
    def diverting(self, entity: str, session: str, queue: int) -> Iterator[None]:
        """Wrap an attempt to send a message of a session to a backlog queue.

        The session counts as diverted from the beginning of the attempt, and is not released during it: a scan cannot
        find a message that is still in flight.
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
                entry = self._touch(key, queue)
                entry.in_flight -= 1
                if is_accepted:
                    entry.newest = _Newest(math.inf, entry.touched)

    def hold(self, key: Session, waiter: SessionWaiter, now: float) -> bool:
        """Hold a send of a diverted session; return False if a recent hold failed and it must not be held now."""
        with self._lock:
            diverted = self._sessions.get(key)
            if diverted is None or now < diverted.hold_at:
                return False
            self._held.setdefault(key, []).append(waiter)
        self.on_hold()
        return True

    def end_hold(self, key: Session, waiter: SessionWaiter, began: float, now: float, *, is_released: bool) -> None:
        """End the hold of a send; the hold failed if the session was not released.

        If its caller cut the hold short, the next send is held again at once: short timeouts must not keep a session in
        the backlog.
        """
        with self._lock:
            waiters = self._held.get(key, [])
            if waiter in waiters:
                waiters.remove(waiter)
            if not waiters:
                self._held.pop(key, None)
            diverted = self._sessions.get(key)
            if diverted is None or is_released:
                return
            diverted.held_in_vain += now - began
            if diverted.held_in_vain >= 0.9 * HOLD_SECONDS:  # a timer may be early
                diverted.held_in_vain = 0.0
                diverted.failed_holds += 1
                pause = FIRST_HOLD_PAUSE * 2.0 ** min(diverted.failed_holds - 1, 30)
                diverted.hold_at = now + min(pause, LONGEST_HOLD_PAUSE)

    def end_holds(self, entity: str) -> None:
        """Divert all held sends: the entity has failed over."""
        with self._lock:
            for key, waiters in self._held.items():
                if key.entity == entity_key(entity):
                    for waiter in waiters:
                        waiter.give(False)

    def held(self) -> dict[int, set[Session]]:
        """Return the sessions with a held send, by backlog queue to scan for them."""
        held_by_queue: dict[int, set[Session]] = {}
        with self._lock:
            for key in self._held:
                for queue in self._sessions[key].queues if key in self._sessions else ():
                    held_by_queue.setdefault(queue, set()).add(key)
        return held_by_queue

    def record_found(self, entity: str, session: str, queue: int, stored_at: float) -> None:
        """Record that a scan found messages of the session in that backlog queue, the newest stored at that time.

        The newest message of all queues decides where the next one goes, not the last scan.
        """
        with self._lock:
            entry = self._touch(Session(entity_key(entity), session), queue)
            if entry.newest is None or entry.newest.stored_at < stored_at:
                entry.newest = _Newest(stored_at, entry.touched)

    def queues(self, entities: Collection[str] | None = None) -> list[int]:
        """Return the backlog queues to scan for the sessions of all entities, or of these."""
        keys = None if entities is None else set(map(entity_key, entities))
        with self._lock:
            queues = (
                diverted.queues
                for session, diverted in self._sessions.items()
                if keys is None or session.entity in keys
            )
            return sorted(set().union(*queues))

    def begin_scan(self, queue: int) -> Scan:
        """Begin a scan of a backlog queue."""
        with self._lock:
            return Scan(queue, self._moment)

    def is_awaited(self, scan: Scan, seen: Collection[Session], candidates: Collection[Session] | None = None) -> bool:
        """Return whether the scan can still release a session, or one of `candidates`."""
        with self._lock:
            keys = self._sessions if candidates is None else candidates
            return any(
                key not in seen and scan.queue in self._sessions[key].queues for key in keys if key in self._sessions
            )

    def end_scan(self, scan: Scan, seen: Collection[Session]) -> list[Session]:
        """End a complete scan that found messages of the sessions `seen`; return the released sessions."""
        released = []
        with self._lock:
            for key, diverted in list(self._sessions.items()):
                entry = diverted.queues.get(scan.queue)
                if entry is None or entry.touched > scan.began or entry.in_flight or key in seen:
                    continue
                del diverted.queues[scan.queue]
                if not diverted.queues:
                    del self._sessions[key]
                    released.append(key)
                    for waiter in self._held.get(key, ()):
                        waiter.give(True)
        return released

    def _touch(self, key: Session, queue: int) -> _SessionQueue:
        self._moment += 1
        entry = self._sessions.setdefault(key, _DivertedSession()).queues.setdefault(queue, _SessionQueue(self._moment))
        entry.touched = self._moment
        return entry
