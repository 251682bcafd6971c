# Generated from pairing/sending/_async/handover.py by `make generate`: change it there.
"""Keeps order within sessions: calls take turns, and diverted sessions return to the primary."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from twinbus.servicebus.entity_paths import entity_key

from ...failover.entity_failover import Healthy
from ...pairing_errors import NoFreeLinkError
from ...pairing_state import Pairing
from ..call_budget import Budget
from ..diverted_sessions import HOLD_SECONDS, Session
from .synchronization import Waiter


class Handover:
    """Orders the sessions of one sender."""

    def __init__(self, pairing: Pairing, path: str) -> None:
        self._pairing = pairing
        self._sessions = pairing.diverted_sessions
        self._path = path
        self._key = entity_key(path)

    @contextmanager
    def turn(self, session: str, budget: Budget) -> Iterator[None]:
        """Wait until the earlier calls of the session have ended.

        Raises:
            NoFreeLinkError: they took all of the call's time; nothing was tried.
        """
        key, turns = Session(self._key, session), self._pairing.session_turns
        waiter: Waiter[bool] = Waiter()
        started = self._pairing.clock()
        if not turns.enter(key, waiter):
            left = budget.left()
            try:
                waiter.wait(None if left == float("inf") else left)
            except TimeoutError:
                turns.give_up(key, waiter)
                raise NoFreeLinkError.for_session(self._path, session, self._pairing.clock() - started) from None
            except BaseException:
                turns.give_up(key, waiter)
                raise
        try:
            yield
        finally:
            turns.leave(key)

    def is_over(self, session: str, budget: Budget) -> bool:
        """Return whether the session may go to the primary.

        A send of a session that still has messages in the backlog is held until they are gone, for at most
        `HOLD_SECONDS` and half of the call's share of time; the rest is for the primary. After that it is diverted.
        """
        if self._sessions is None or not self._sessions.is_diverted(self._path, session):
            return True
        entity, clock = self._pairing.entity(self._path), self._pairing.clock
        seconds = min(HOLD_SECONDS, budget.before_backlog() / 2)
        key = Session(self._key, session)
        waiter: Waiter[bool] = Waiter()
        if not isinstance(entity.machine.state, Healthy) or seconds <= 0:
            return False
        began = clock()
        if not self._sessions.hold(key, waiter, began):
            return not self._sessions.is_diverted(self._path, session)
        is_released = False
        try:
            is_released = waiter.wait(seconds)
        except TimeoutError:
            pass
        finally:
            self._sessions.end_hold(key, waiter, began, clock(), is_released=is_released)
        return is_released

    def diverting(self, session: str | None, queue: int) -> AbstractContextManager[None]:
        """Wrap an attempt to store a message in a backlog queue."""
        if session is None or self._sessions is None:
            return nullcontext()
        return self._sessions.diverting(self._path, session, queue)
