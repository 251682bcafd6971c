"""Bugs to be found: each replaces a piece of production code by one that is wrong, for as long as its block lasts."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

from twinbus.pairing import envelope, ping
from twinbus.pairing.core import Attempt, Pairing
from twinbus.pairing.errors import AttemptTimeoutError, NoFreeLinkError
from twinbus.pairing.evidence import Evidence
from twinbus.pairing.failover import FailoverMachine
from twinbus.pairing.parcel import Parcel
from twinbus.pairing.policy import Cause, cause_of, retires_queue
from twinbus.pairing.sending import places
from twinbus.pairing.sending._async import delivery
from twinbus.pairing.sending._async.delivery import Delivery
from twinbus.pairing.sending._async.link_pool import LinkPool, SilentError
from twinbus.pairing.sending.places import EntityPlace
from twinbus.pairing.sessions import DivertedSessions, SessionTurns
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


@contextlib.contextmanager
def all_replaced(*wrong: tuple[Any, str, Any]) -> Iterator[None]:
    """The same for several attributes."""
    with ExitStack() as stack:
        for one in wrong:
            stack.enter_context(replaced(*one))
        yield


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

    async def wrong(self: Delivery, parcel: Parcel, *arguments: Any) -> None:
        try:
            await store(self, parcel, *arguments)
        except Exception as error:
            if not retires_queue(error):
                raise
            parcel.stored = len(parcel.message_ids)

    return replaced(Delivery, "_store", wrong)


@bug("lost")
def acknowledge_before_stored() -> AbstractContextManager[None]:
    """The caller is told at once, and what becomes of the message later nobody asks."""
    store = Delivery._store

    async def wrong(self: Delivery, parcel: Parcel, session: str | None, index: int, budget: Any) -> None:
        self._pool(index)
        task = asyncio.create_task(store(self, copy(parcel), session, index, budget))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        parcel.stored = len(parcel.message_ids)

    return replaced(Delivery, "_store", wrong)


@bug("lost")
def take_a_timeout_for_a_yes() -> AbstractContextManager[None]:
    send = Delivery._send

    async def wrong(self: Delivery, *arguments: Any) -> Any:
        try:
            return await send(self, *arguments)
        except AttemptTimeoutError:
            return None

    return replaced(Delivery, "_send", wrong)


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


@bug("order_violations", first_seed=29948)
def follow_the_look_that_came_last() -> AbstractContextManager[None]:
    """Wherever a late look finds a session, also only a copy, its next messages go."""

    def wrong(self: DivertedSessions, entity: str, session: str, queue: int, stored_at: float) -> None:
        found(self, entity, session, queue, math.inf)  # as if it had been sent by ourselves

    found = DivertedSessions.found
    return replaced(DivertedSessions, "found", wrong)


@bug("out of call order")
def let_calls_of_a_session_overtake() -> AbstractContextManager[None]:
    """Calls of a session do not wait for each other."""
    return all_replaced(
        (SessionTurns, "enter", lambda self, key, waiter: True), (SessionTurns, "leave", lambda self, key: None)
    )


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


# ---- one sender, many callers: the defects of the first release, one at a time ----


@bug("false alarm")
def waiting_for_a_link_is_evidence() -> AbstractContextManager[None]:
    """A call that got no link in its time is taken for one that got no answer."""
    acquire = LinkPool.acquire

    async def wrong(self: LinkPool, budget: Any, fresh: bool = False) -> Any:
        try:
            return await acquire(self, budget, fresh)
        except (NoFreeLinkError, SilentError):
            self._place.failed(AttemptTimeoutError(self.path, 0.0), self._place.begin(), is_conclusive=True)
            raise

    return replaced(LinkPool, "acquire", wrong)


@bug("false alarm")
def a_cancelled_call_is_evidence() -> AbstractContextManager[None]:
    attempt = Delivery._attempt

    async def wrong(self: Delivery, *arguments: Any) -> Any:
        try:
            return await attempt(self, *arguments)
        except asyncio.CancelledError:
            self._pairing.sent_failed(self._entity, self._place.begin(), AttemptTimeoutError(self._path, 0.0))
            raise

    return replaced(Delivery, "_attempt", wrong)


@bug("false retirement")
def a_cancelled_call_retires_its_queue() -> AbstractContextManager[None]:
    attempt = Delivery._attempt_store

    async def wrong(self: Delivery, link: Any, parcel: Any, index: int, seconds: float) -> None:
        try:
            await attempt(self, link, parcel, index, seconds)
        except asyncio.CancelledError:
            self._pairing.queue_failed(index, AttemptTimeoutError(link.path, 0.0))
            raise

    return replaced(Delivery, "_attempt_store", wrong)


@bug("disturbed")
def a_cancelled_call_costs_the_links_of_others() -> AbstractContextManager[None]:
    """Their messages are sent once more, on new links."""
    attempt = Delivery._attempt

    async def wrong(self: Delivery, *arguments: Any) -> Any:
        try:
            return await attempt(self, *arguments)
        except asyncio.CancelledError:
            for link in self._primary._busy:
                link.cut()
            raise

    return replaced(Delivery, "_attempt", wrong)


def _blames_the_caller_for(cause: Cause) -> AbstractContextManager[None]:
    def wrong(error: BaseException) -> bool:
        return retires_queue(error) and cause_of(error) is not cause

    return all_replaced((delivery, "retires_queue", wrong), (places, "retires_queue", wrong))


@bug("refused though", first_seed=90)
def a_disabled_queue_stays_in_the_rotation() -> AbstractContextManager[None]:
    return _blames_the_caller_for(Cause.DISABLED)


@bug("refused though")
def a_deleted_queue_stays_in_the_rotation() -> AbstractContextManager[None]:
    return _blames_the_caller_for(Cause.NOT_FOUND)


@bug("refused though", first_seed=150)
def a_forbidden_queue_stays_in_the_rotation() -> AbstractContextManager[None]:
    return _blames_the_caller_for(Cause.FORBIDDEN)


@bug("not handed back")
def a_busy_session_sticks_to_the_backlog() -> AbstractContextManager[None]:
    """No send of a diverted session is held, so that one that is used without pause never leaves the backlog."""
    return replaced(DivertedSessions, "hold", lambda self, key, waiter, now: False)


@bug("false alarm")
def the_timeout_of_an_impatient_caller_is_conclusive() -> AbstractContextManager[None]:
    failed = EntityPlace.failed

    def wrong(self: EntityPlace, error: Exception, attempt: Attempt, *, is_conclusive: bool) -> None:
        failed(self, error, attempt, is_conclusive=True)

    return replaced(EntityPlace, "failed", wrong)


@bug("missed outage", first_seed=50)
def no_probe() -> AbstractContextManager[None]:
    """A silence that only impatient callers have noticed is never looked into."""
    return replaced(Evidence, "probe_at", lambda self: None)


@bug("false alarm", first_seed=85)
def starvation_counts_as_an_outage() -> AbstractContextManager[None]:
    return replaced(Pairing, "was_late", lambda self, attempt: False)


# ---- what the simulation has found in the pool of links, put back ----


@bug("false alarm", first_seed=190)
def closing_a_sender_is_evidence() -> AbstractContextManager[None]:
    return replaced(Delivery, "_check_open", lambda self: None)


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


@bug("is a dead letter", first_seed=4262)
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


@bug("unexplained")
def forget_what_was_accepted() -> AbstractContextManager[None]:
    """A message whose completion failed is sent again when it comes again."""
    return replaced(Memory, "has_accepted", lambda self, number: False)


@bug("unexplained")
def send_again_what_comes_again() -> AbstractContextManager[None]:
    """A lock runs out while its message is under way; the second delivery is taken for another message."""

    def wrong(self: Intake, move: Any, delivery: Any, now: float) -> None:
        self.open[delivery.id] = again = type(move)(self, move.lane, move.restored, delivery, move.size, now)
        self._book.received(again)
        again.lane.offer(again)

    return replaced(Intake, "_adopt", wrong)


@bug("order_violations", first_seed=60)
def send_a_session_in_parallel() -> AbstractContextManager[None]:
    return replaced(Lane, "_stands_behind", lambda self, move: False)


@bug("order_violations", first_seed=160)
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
