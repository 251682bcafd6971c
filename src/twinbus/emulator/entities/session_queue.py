"""Implements queues with sessions: a receiver locks a session and alone gets its messages, in order."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence
from typing import Any

from ..protocol.error_conditions import (
    ARGUMENT_ERROR,
    NOT_ALLOWED,
    SESSION_CANNOT_BE_LOCKED,
    TIMEOUT,
    BrokerError,
    session_lock_lost,
)
from ..storage.schema import DROP_SESSION_STATE, MAX_SEQUENCE, PUT_SESSION_STATE, Change, message_key
from ..storage.store import StoreError
from .consumer import Receiver
from .inbox import Counters, Done, Environment, store_failure
from .limits import Limits
from .locks import Lock
from .message import Arrival, Message
from .queue import Queue
from .window import Window

MAX_STATE_BYTES = 256 * 1024
GRACE_MS = 1000  # how long after its lock expires a session is taken away: clocks of clients differ


class Session:
    """A session with messages or a receiver."""

    __slots__ = ("id", "locked_until", "locks", "newest", "receiver", "returning", "window")

    def __init__(self, session_id: str, newest: int = 0) -> None:
        self.id = session_id
        self.newest = newest
        self.returning = 0  # messages whose failed delivery count is being stored
        self.receiver: Receiver | None = None
        self.locked_until = 0
        self.locks: dict[bytes, Lock] = {}
        self.window: Window | None = None


class Accept:
    """A receiver waiting for the next free session."""

    __slots__ = ("cancelled", "granted", "receiver", "timer")

    def __init__(self, receiver: Receiver, granted: Callable[[Session | BrokerError], None]) -> None:
        self.receiver = receiver
        self.granted = granted
        self.cancelled = False
        self.timer: asyncio.TimerHandle | None = None


class SessionQueue(Queue):
    """A queue in which every message belongs to a session."""

    def __init__(
        self,
        key: int,
        path: str,
        limits: Limits,
        environment: Environment,
        counters: Counters,
        dead_letter: Queue | None = None,
    ) -> None:
        super().__init__(key, path, limits, environment, counters, dead_letter)
        self._sessions: dict[str, Session] = {}
        self._available: dict[str, None] = {}  # free sessions with active messages, oldest first
        self._accepts: list[Accept] = []
        self._session_times: list[tuple[int, str]] = []
        rows = environment.store.reader.execute(
            "SELECT session, MAX(id) FROM messages INDEXED BY by_session"
            " WHERE session IS NOT NULL AND id BETWEEN ? AND ? AND state = 0 AND NOT removed(id)"
            " GROUP BY session ORDER BY MIN(id)",
            (message_key(key, 0), message_key(key, MAX_SEQUENCE)),
        )
        for session_id, newest in rows:
            self._sessions[session_id] = Session(session_id, newest & MAX_SEQUENCE)
            self._available[session_id] = None

    # ---- arriving ----

    def check(self, arrivals: Sequence[Arrival]) -> None:
        super().check(arrivals)
        for arrival in arrivals:
            if arrival.session is None:
                raise BrokerError(
                    NOT_ALLOWED,
                    f"The SessionId was not set on a message, and it cannot be sent to '{self.path}'."
                    " Entities that have session support enabled can only receive messages that have the SessionId"
                    " set to a valid value.",
                )

    def make_available(self, message: Message) -> None:
        self._newest = message.sequence
        assert message.session is not None
        session = self._sessions.get(message.session)
        if session is None:
            session = self._sessions[message.session] = Session(message.session)
        session.newest = message.sequence
        if session.window is not None:
            session.window.offer(message)
            if session.receiver is not None:
                self._wake_session(session)
        elif session.receiver is None:
            self._available[session.id] = None
            self._grant_waiting()

    def _wake_session(self, session: Session) -> None:
        if session.receiver is not None and session.receiver not in self._waiting:
            self._waiting.append(session.receiver)
        self.schedule_dispatch()

    # ---- receivers ----

    def attach(self, receiver: Receiver) -> None:
        self.receivers.add(receiver)
        self.accessed_at = self.env.now_ms() / 1000

    def detach(self, receiver: Receiver) -> None:
        """Remove a receiver: unlock its session at once, and do not count its deliveries."""
        self.receivers.discard(receiver)
        self.accessed_at = self.env.now_ms() / 1000
        for accept in self._accepts:
            if accept.receiver is receiver:
                self._drop_accept(accept)
                break
        session = self.session_of(receiver)
        if session is not None:
            self._free(session, delivered=False)

    def session_of(self, receiver: Receiver) -> Session | None:
        """The session that a receiver has locked; None if it has none."""
        session_id = getattr(receiver, "session_id", None)
        session = self._sessions.get(session_id) if session_id is not None else None
        return session if session is not None and session.receiver is receiver else None

    def dispatch(self) -> None:
        """Dispatch for each receiver separately: an empty session does not block the others."""
        self._dispatch_scheduled = False
        waiting, self._waiting = self._waiting, type(self._waiting)()
        for receiver in waiting:
            self._waiting.append(receiver)
            super().dispatch()
            self._waiting.clear()

    def next_message(self, receiver: Receiver, now: int) -> Message | None:
        session = self.session_of(receiver)
        # Messages that the last receiver did not settle in time come first: wait until they are back in the queue.
        if session is None or session.window is None or session.returning:
            return None
        return self._take_unexpired(session.window, now)

    def _delete_then_deliver(self, taken: list[tuple[Receiver, Message]]) -> None:
        """As for a queue, and extend the sessions' locks: a receiver that deletes never renews or settles."""
        super()._delete_then_deliver(taken)
        for receiver in {receiver for receiver, _ in taken}:
            session = self.session_of(receiver)
            if session is not None:
                self._extend(session)

    def _window_for(self, message: Message) -> Window:
        session = self._sessions.get(message.session or "")
        return session.window if session is not None and session.window is not None else self._window

    def lock(self, message: Message, holder: Receiver, now: int, deferred: bool = False) -> Lock:
        """Lock a message for as long as its session is locked."""
        session = self._sessions[message.session or ""]
        lock = Lock(self.env.tokens.take(), message, session.locked_until, holder, deferred)
        self._held.add(message.sequence)
        self._locks.add(lock, timed=False)
        session.locks[lock.token] = lock
        return lock

    def restore_lock(self, lock: Lock) -> None:
        session = self._sessions.get(lock.session or "")
        if session is None or session.receiver is not lock.holder:
            self._unlock(lock)
            return
        self._locks.add(lock, timed=False)
        session.locks[lock.token] = lock

    def take_lock(self, token: bytes) -> Lock:
        lock = super().take_lock(token)
        session = self._sessions.get(lock.session or "")
        if session is not None:
            session.locks.pop(token, None)
        return lock

    def give_back(self, sequence: int, session: str | None) -> None:
        self._held.discard(sequence)
        owner = self._sessions.get(session or "")
        if owner is None:
            # The session's last receiver was removed while this message was being settled.
            owner = self._sessions[session or ""] = Session(session or "", self._newest)
        if owner.window is not None:
            owner.window.give_back(sequence)
            self._wake_session(owner)
        elif owner.receiver is None and not self.is_closed:
            self._available[owner.id] = None
            self._grant_waiting()

    # ---- sessions ----

    def accept(
        self,
        session_id: str | None,
        receiver: Receiver,
        timeout: float,
        granted: Callable[[Session | BrokerError], None],
    ) -> None:
        """Lock a session, or the next free one if `session_id` is None; `granted` gets the session or the error."""
        if session_id is not None:
            session = self._sessions.get(session_id)
            if session is not None and session.receiver is not None:
                granted(
                    BrokerError(
                        SESSION_CANNOT_BE_LOCKED,
                        f"The requested session '{session_id}' cannot be accepted. It may be locked by another"
                        " receiver.",
                    )
                )
                return
            if session is None:
                session = self._sessions[session_id] = Session(session_id, self._newest)
            self._lock_session(session, receiver)
            granted(session)
            return
        accept = Accept(receiver, granted)
        self._accepts.append(accept)
        self._grant_waiting()
        if accept in self._accepts:
            accept.timer = self._loop.call_later(timeout, self._accept_timed_out, accept)

    def _accept_timed_out(self, accept: Accept) -> None:
        if accept in self._accepts:
            self._accepts.remove(accept)
            accept.granted(BrokerError(TIMEOUT, f"No session of '{self.path}' became available within the time given."))

    def _drop_accept(self, accept: Accept) -> None:
        self._accepts.remove(accept)
        if accept.timer is not None:
            accept.timer.cancel()

    def _grant_waiting(self) -> None:
        while self._accepts and self._available:
            accept = self._accepts[0]
            session = self._sessions[next(iter(self._available))]
            self._drop_accept(accept)
            self._lock_session(session, accept.receiver)
            accept.granted(session)

    def _lock_session(self, session: Session, receiver: Receiver) -> None:
        self._available.pop(session.id, None)
        session.receiver = receiver
        session.locked_until = self.env.now_ms() + self.limits.lock_ms
        session.window = Window(self.env.store, self.key, self._held, session.id)
        session.window.start(session.newest)
        self._note_session_time(session)

    def _note_session_time(self, session: Session) -> None:
        heapq.heappush(self._session_times, (session.locked_until + GRACE_MS, session.id))
        self._set_timer(self._session_times[0][0])

    def renew_session(self, session_id: str) -> int:
        """Extend a session's lock; returns its new expiry (ms). Raises `BrokerError` if the lock is lost."""
        session = self._locked_session(session_id)
        self._extend(session)
        return session.locked_until

    def _extend(self, session: Session) -> None:
        session.locked_until = self.env.now_ms() + self.limits.lock_ms
        for lock in session.locks.values():
            lock.locked_until = session.locked_until
        self._note_session_time(session)

    def _locked_session(self, session_id: str) -> Session:
        session = self._sessions.get(session_id)
        if session is None or session.receiver is None:
            raise session_lock_lost(session_id)
        return session

    def renew(self, token: bytes) -> int:
        lock = self._locks.get(token)
        if lock is not None:
            raise BrokerError(
                NOT_ALLOWED, "A message of a session is locked with its session: renew the session's lock."
            )
        return super().renew(token)

    def _on_timer(self) -> None:
        super()._on_timer()
        now = self.env.now_ms()
        while self._session_times and self._session_times[0][0] <= now:
            at, session_id = heapq.heappop(self._session_times)
            session = self._sessions.get(session_id)
            if session is None or session.receiver is None or session.locked_until + GRACE_MS != at:
                continue
            receiver = session.receiver
            self._free(session, delivered=True)
            receiver.session_lost()
        if self._session_times:
            self._set_timer(self._session_times[0][0])

    def _free(self, session: Session, delivered: bool) -> None:
        """End a session's lock and give its messages back; `delivered` counts the deliveries, as after an expiry."""
        session.receiver = None
        session.window = None
        locks, session.locks = list(session.locks.values()), {}

        def returned(error: BrokerError | None) -> None:
            session.returning -= 1
            if session.receiver is not None and not session.returning:
                self._wake_session(session)
            self._offer_session(session)

        for lock in locks:
            self._locks.by_token.pop(lock.token, None)
            if delivered:
                session.returning += 1
                self._return(lock, None, returned)
            else:
                self._unlock(lock)
        self._offer_session(session)

    def _offer_session(self, session: Session) -> None:
        """Make a free session available to the next receiver, if it has messages."""
        if session.receiver is not None or self.is_closed:
            return
        if self._has_active(session):
            self._available[session.id] = None
            self._grant_waiting()
        elif not session.returning:
            self._available.pop(session.id, None)
            self._sessions.pop(session.id, None)

    def _has_active(self, session: Session) -> bool:
        rows = self.env.store.reader.execute(
            "SELECT id FROM stored WHERE session = ? AND id BETWEEN ? AND ? AND state = 0 ORDER BY id LIMIT ?",
            (session.id, message_key(self.key, 1), message_key(self.key, MAX_SEQUENCE), len(self._held) + 1),
        )
        return any(row[0] & MAX_SEQUENCE not in self._held for row in rows.fetchall())

    def sessions(self, skip: int, top: int) -> list[str]:
        """Ids of the sessions that have messages or a state, sorted."""
        rows = self.env.store.reader.execute(
            "SELECT session FROM stored WHERE session IS NOT NULL AND id BETWEEN ? AND ?"
            " UNION SELECT session FROM session_states WHERE key = ? ORDER BY session LIMIT ? OFFSET ?",
            (message_key(self.key, 1), message_key(self.key, MAX_SEQUENCE), self.key, top, skip),
        )
        return [row[0] for row in rows.fetchall()]

    def sessions_updated_since(self, since: float, skip: int, top: int) -> list[str]:
        """Ids of the sessions whose state was set after `since` (seconds)."""
        rows = self.env.store.reader.execute(
            "SELECT session FROM session_states WHERE key = ? AND updated_at > ? ORDER BY session LIMIT ? OFFSET ?",
            (self.key, since, top, skip),
        )
        return [row[0] for row in rows.fetchall()]

    def session_state(self, session_id: str) -> bytes | None:
        """The state stored for a session; None if there is none."""
        row = self.env.store.reader.execute(
            "SELECT state FROM session_states WHERE key = ? AND session = ?", (self.key, session_id)
        ).fetchone()
        return row[0] if row else None

    def set_session_state(self, session_id: str, state: bytes | None, done: Done) -> None:
        """Store a session's state; None removes it. Raises `BrokerError` if the session is not locked."""
        self._locked_session(session_id)
        if state is not None and len(state) > MAX_STATE_BYTES:
            raise BrokerError(
                ARGUMENT_ERROR, f"The session state has {len(state)} bytes; the limit is {MAX_STATE_BYTES}."
            )

        def stored(error: StoreError | None) -> None:
            done(None if error is None else store_failure(error))

        parameters: tuple[Any, ...] = (self.key, session_id)
        if state is None:
            change: Change = (DROP_SESSION_STATE, parameters)
        else:
            change = (PUT_SESSION_STATE, (*parameters, state, self.env.now_ms() / 1000))
        self.env.store.submit([change], stored)

    def close(self) -> None:
        super().close()
        for accept in list(self._accepts):
            self._drop_accept(accept)
