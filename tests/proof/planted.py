"""Bugs to be found: each replaces a piece of production code by one that is wrong, for as long as its block lasts."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from twinbus.pairing._async.delivery import Delivery

from twinbus.pairing import envelope, ping
from twinbus.pairing.errors import AttemptTimeoutError
from twinbus.pairing.failover import FailoverMachine
from twinbus.pairing.policy import retires_queue
from twinbus.pairing.sessions import DivertedSessions, _UnderWay
from twinbus.syphon import pump
from twinbus.syphon.bookkeeping import Book
from twinbus.syphon.clock import BrokerClock
from twinbus.syphon.deferred import Look, look_through
from twinbus.syphon.intake import Intake
from twinbus.syphon.lanes import Lane
from twinbus.syphon.ledger_gate import LedgerGate
from twinbus.syphon.moves import Memory
from twinbus.syphon.restorer import Restorer


@contextlib.contextmanager
def replaced(owner: Any, name: str, wrong: Any) -> Iterator[None]:
    """Put something else in the place of an attribute."""
    right = vars(owner)[name]
    setattr(owner, name, wrong)
    try:
        yield
    finally:
        setattr(owner, name, right)


@dataclass(frozen=True)
class Bug:
    """What is wrong, and a word of what must be said about it."""

    name: str
    plant: Callable[[], AbstractContextManager[None]]
    word: str
    #: Where to begin to look: before it there is nothing to be found, and a run takes its time.
    first_seed: int


BUGS: list[Bug] = []


def bug(word: str, first_seed: int = 0) -> Callable[[Callable[[], AbstractContextManager[None]]], None]:
    def add(plant: Callable[[], AbstractContextManager[None]]) -> None:
        BUGS.append(Bug(plant.__name__, plant, word, first_seed))

    return add


# ---- the sender ----


@bug("lost")
def drop_on_rotation() -> AbstractContextManager[None]:
    """A message whose backlog queue leaves the rotation is forgotten, and its sender told that all is well."""
    store = Delivery._store

    async def wrong(self: Delivery, *arguments: Any) -> bool:
        try:
            return await store(self, *arguments)
        except Exception as error:
            if not retires_queue(error):
                raise
        return True

    return replaced(Delivery, "_store", wrong)


@bug("lost")
def acknowledge_before_stored() -> AbstractContextManager[None]:
    """The caller is told at once, and what becomes of the message later nobody asks."""
    store = Delivery._store

    async def wrong(self: Delivery, parcel: Any, session: str | None, index: int, seconds: float) -> bool:
        self._backlog_line(index)
        task = asyncio.create_task(store(self, parcel, session, index, seconds))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return True

    return replaced(Delivery, "_store", wrong)


@bug("lost")
def take_a_timeout_for_a_yes() -> AbstractContextManager[None]:
    recorded = Delivery._recorded

    async def wrong(self: Delivery, *arguments: Any) -> Any:
        try:
            return await recorded(self, *arguments)
        except AttemptTimeoutError:
            return None

    return replaced(Delivery, "_recorded", wrong)


@bug("altered")
def forget_the_session() -> AbstractContextManager[None]:
    """The session id is cleared and not kept under its alias."""
    clear = envelope._clear_session
    return replaced(envelope, "_clear_session", lambda raw, kept: clear(raw, {}))


@bug("outlived")
def forget_the_time_to_live() -> AbstractContextManager[None]:
    clear = envelope._clear_times
    return replaced(envelope, "_clear_times", lambda raw, kept: clear(raw, {}))


@bug("before its scheduled time")
def forget_the_schedule() -> AbstractContextManager[None]:
    clear = envelope._clear_annotations
    return replaced(envelope, "_clear_annotations", lambda raw, kept: clear(raw, {}))


@bug("order_violations")
def send_past_the_backlog_after_fail_back() -> AbstractContextManager[None]:
    """The primary is back: messages of a session overtake those that wait in the backlog."""
    return replaced(DivertedSessions, "is_diverted", lambda self, entity, session: False)


@bug("order_violations", first_seed=100353)
def follow_the_look_that_came_last() -> AbstractContextManager[None]:
    """Wherever a late look finds a session, also only a copy, its next messages go."""

    def wrong(self: DivertedSessions, entity: str, session: str, queue: int, stored_at: float) -> None:
        found(self, entity, session, queue, math.inf)  # as if it had been sent by ourselves

    found = DivertedSessions.found
    return replaced(DivertedSessions, "found", wrong)


@bug("order_violations", first_seed=11499)
def let_two_of_a_session_part() -> AbstractContextManager[None]:
    """Two sends of a session are under way; one arrives in its queue, the other fails there and goes to another."""
    return replaced(_UnderWay, "may_go_to", lambda self, queue: True)


@bug("not recovered")
def never_come_back() -> AbstractContextManager[None]:
    """A ping that got through is taken for one that failed."""
    return replaced(FailoverMachine, "ping_ok", FailoverMachine.ping_failed)


@bug("circles")
def never_ping() -> AbstractContextManager[None]:
    """The clock says again and again that a ping is due, and nobody sends it."""
    return replaced(FailoverMachine, "ping_due", lambda self, now: False)


@bug("unexpected")
def take_a_ping_for_a_message() -> AbstractContextManager[None]:
    return replaced(ping, "is_ping", lambda message: False)


# ---- the syphon ----


@bug("lost")
def complete_before_send() -> AbstractContextManager[None]:
    line_up = Lane._line_up

    def wrong(self: Lane, move: Any) -> None:
        move.source.settle_now(move)
        line_up(self, move)

    return replaced(Lane, "_line_up", wrong)


@bug("without a row of its move")
def settle_without_a_row() -> AbstractContextManager[None]:
    """What the ledger has not stored yet is completed all the same."""
    return replaced(LedgerGate, "pass_on", lambda self, move: move.source.settle_now(move))


@bug("is a dead letter", first_seed=700)
def bury_without_a_word() -> AbstractContextManager[None]:
    """The ledger is not told that a message is to become a dead letter, and the syphon is killed before it can be."""
    return replaced(Book, "condemned", lambda self, move: None)


@bug("outlived")
def let_lives_begin_anew() -> AbstractContextManager[None]:
    """The time in the backlog does not count, though it was asked to."""
    begin = Restorer.__init__

    def wrong(self: Restorer, ttl: Any, *more: Any) -> None:
        begin(self, "restart", *more)

    return replaced(Restorer, "__init__", wrong)


@bug("lost")
def bury_before_the_time_is_over() -> AbstractContextManager[None]:
    """The end of a lock is taken for the time at the broker."""
    now_ms = BrokerClock.now_ms
    return replaced(BrokerClock, "now_ms", lambda self, at: now_ms(self, at) and now_ms(self, at) + self.lock_ms)


@bug("unexplained", first_seed=75)
def forget_what_was_accepted() -> AbstractContextManager[None]:
    """A message whose completion failed is sent again when it comes again."""
    return replaced(Memory, "has_accepted", lambda self, number: False)


@bug("unexplained", first_seed=220)
def send_again_what_comes_again() -> AbstractContextManager[None]:
    """A lock runs out while its message is under way; the second delivery is taken for another message."""

    def wrong(self: Intake, move: Any, delivery: Any, now: float) -> None:
        self.open[delivery.id] = again = type(move)(self, move.lane, move.restored, delivery, move.size, now)
        self._book.received(again)
        again.lane.offer(again)

    return replaced(Intake, "_adopt", wrong)


@bug("order_violations", first_seed=350)
def send_a_session_in_parallel() -> AbstractContextManager[None]:
    return replaced(Lane, "_stands_behind", lambda self, move: False)


@bug("order_violations")
def go_on_behind_a_gap() -> AbstractContextManager[None]:
    """An older message is still locked by a syphon that was killed, and newer ones are moved."""
    return replaced(Intake, "_in_turn", lambda self, number: True)


@bug("messages are left")
def overlook_what_is_set_aside() -> AbstractContextManager[None]:
    """After a crash nobody looks for deferred messages."""

    async def wrong(look: Callable[..., Any], *arguments: Any, **more: Any) -> Look:
        seen: Look = await look(*arguments, **more)
        seen.deferred.clear()
        return seen

    return replaced(pump, "look_through", partial(wrong, look_through))
