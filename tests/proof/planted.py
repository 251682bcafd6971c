"""Plants bugs: each replaces a piece of production code by a wrong one while its context is active."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

from twinbus.envelope import wrapping as envelope
from twinbus.pairing.backlog.session_scan import SessionScanner
from twinbus.pairing.failover import ping
from twinbus.pairing.failover.entity_failover import FailoverMachine
from twinbus.pairing.failover.error_classification import Cause, cause_of, retires_queue
from twinbus.pairing.failover.evidence import Evidence
from twinbus.pairing.pairing_errors import AttemptTimeoutError, NoFreeLinkError
from twinbus.pairing.pairing_state import Attempt, Pairing
from twinbus.pairing.sending import pool_reports
from twinbus.pairing.sending._async import delivery
from twinbus.pairing.sending._async.delivery import Delivery
from twinbus.pairing.sending._async.link_pool import LinkPool, SilentError
from twinbus.pairing.sending.diverted_sessions import DivertedSessions, SessionTurns
from twinbus.pairing.sending.parcel import Parcel
from twinbus.pairing.sending.pool_reports import EntityTarget
from twinbus.syphon import pump
from twinbus.syphon.deferral.deferred import QueueScan, scan_queue
from twinbus.syphon.delivery.lanes import Lane
from twinbus.syphon.receiving.broker_clock import BrokerClock
from twinbus.syphon.receiving.intake import Intake
from twinbus.syphon.receiving.restorer import Restorer
from twinbus.syphon.settlement.bookkeeping import OperationLog
from twinbus.syphon.settlement.ledger_gate import LedgerGate
from twinbus.syphon.settlement.moves import DuplicateGuard


@contextlib.contextmanager
def replaced(owner: Any, name: str, wrong: Any) -> Iterator[None]:
    """Temporarily replace an attribute."""
    right = vars(owner)[name]
    setattr(owner, name, wrong)
    try:
        yield
    finally:
        setattr(owner, name, right)


@contextlib.contextmanager
def all_replaced(*wrong: tuple[Any, str, Any]) -> Iterator[None]:
    """Temporarily replace several attributes."""
    with ExitStack() as stack:
        for replacement in wrong:
            stack.enter_context(replaced(*replacement))
        yield


@dataclass(frozen=True)
class Bug:
    """A bug, and a word that the complaint about it must contain."""

    name: str
    plant: Callable[[], AbstractContextManager[None]]
    word: str
    #: First seed to try: earlier ones do not show the bug.
    first_seed: int


BUGS: list[Bug] = []


def bug(word: str, first_seed: int = 0) -> Callable[[Callable[[], AbstractContextManager[None]]], None]:
    def add(plant: Callable[[], AbstractContextManager[None]]) -> None:
        BUGS.append(Bug(plant.__name__, plant, word, first_seed))

    return add


# ---- the sender ----


@bug("lost")
def drop_on_rotation() -> AbstractContextManager[None]:
    """A message is dropped when its backlog queue is retired, and acknowledged."""
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
    """A message is acknowledged before it is stored, and the result is ignored."""
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
    """The session id is cleared, but not kept under its alias."""
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
    """After fail-back messages of a session overtake those in the backlog."""
    return replaced(DivertedSessions, "is_diverted", lambda self, entity, session: False)


@bug("order_violations", first_seed=700)
def take_one_not_found_for_deleted() -> AbstractContextManager[None]:
    """One look that does not find a backlog queue releases its sessions."""
    scan = SessionScanner._scan

    async def wrong(self: SessionScanner, index: int, *arguments: Any) -> Any:
        begun = self._sessions.begin_scan(index)
        try:
            return await scan(self, index, *arguments)
        except Exception as error:
            if cause_of(error) is not Cause.NOT_FOUND:
                raise
            return begun

    return replaced(SessionScanner, "_scan", wrong)


@bug("out of call order")
def let_calls_of_a_session_overtake() -> AbstractContextManager[None]:
    """Calls of a session do not wait for each other."""
    return all_replaced(
        (SessionTurns, "enter", lambda self, key, waiter: True), (SessionTurns, "leave", lambda self, key: None)
    )


@bug("not recovered")
def never_come_back() -> AbstractContextManager[None]:
    """A successful ping counts as failed."""
    return replaced(FailoverMachine, "ping_ok", FailoverMachine.ping_failed)


@bug("livelock")
def never_ping() -> AbstractContextManager[None]:
    """A ping is due, but is never sent."""
    return replaced(FailoverMachine, "ping_due", lambda self, now: False)


@bug("unexpected")
def take_a_ping_for_a_message() -> AbstractContextManager[None]:
    return replaced(ping, "is_ping", lambda message: False)


# ---- one sender, many callers: defects of the first release ----


@bug("false alarm")
def waiting_for_a_link_is_evidence() -> AbstractContextManager[None]:
    """A call that got no link in time counts as unanswered."""
    acquire = LinkPool.acquire

    async def wrong(self: LinkPool, budget: Any, fresh: bool = False) -> Any:
        try:
            return await acquire(self, budget, fresh)
        except (NoFreeLinkError, SilentError):
            self._target.failed(AttemptTimeoutError(self.path, 0.0), self._target.begin(), is_conclusive=True)
            raise

    return replaced(LinkPool, "acquire", wrong)


@bug("false alarm")
def a_cancelled_call_is_evidence() -> AbstractContextManager[None]:
    attempt = Delivery._attempt

    async def wrong(self: Delivery, *arguments: Any) -> Any:
        try:
            return await attempt(self, *arguments)
        except asyncio.CancelledError:
            self._pairing.sent_failed(self._entity, self._target.begin(), AttemptTimeoutError(self._path, 0.0))
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
    """Messages of other calls are sent redelivered, on new links."""
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

    return all_replaced((delivery, "retires_queue", wrong), (pool_reports, "retires_queue", wrong))


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
    """Sends of a diverted session are never held, so that a session in continuous use never leaves the backlog."""
    return replaced(DivertedSessions, "hold", lambda self, key, waiter, now: False)


@bug("false alarm")
def the_timeout_of_an_impatient_caller_is_conclusive() -> AbstractContextManager[None]:
    failed = EntityTarget.failed

    def wrong(self: EntityTarget, error: Exception, attempt: Attempt, *, is_conclusive: bool) -> None:
        failed(self, error, attempt, is_conclusive=True)

    return replaced(EntityTarget, "failed", wrong)


@bug("missed outage", first_seed=50)
def no_probe() -> AbstractContextManager[None]:
    """An outage that only callers with short timeouts notice is never probed."""
    return replaced(Evidence, "probe_at", lambda self: None)


@bug("false alarm", first_seed=85)
def starvation_counts_as_an_outage() -> AbstractContextManager[None]:
    return replaced(Pairing, "was_late", lambda self, attempt: False)


# ---- defects of the link pool that the simulation found ----


@bug("false alarm", first_seed=190)
def closing_a_sender_is_evidence() -> AbstractContextManager[None]:
    return replaced(Delivery, "_check_open", lambda self: None)


# ---- the syphon ----


@bug("lost")
def complete_before_send() -> AbstractContextManager[None]:
    line_up = Lane._enqueue

    def wrong(self: Lane, move: Any) -> None:
        move.source.settle_now(move)
        line_up(self, move)

    return replaced(Lane, "_enqueue", wrong)


@bug("without a row of its move")
def settle_without_a_row() -> AbstractContextManager[None]:
    """Messages are completed before their ledger rows are durable."""
    return replaced(LedgerGate, "submit", lambda self, move: move.source.settle_now(move))


@bug("is a dead letter", first_seed=4262)
def bury_without_a_word() -> AbstractContextManager[None]:
    """The ledger gets no row before a message is dead-lettered, and the syphon is killed in between."""
    return replaced(OperationLog, "planned_dead_letter", lambda self, move: None)


@bug("outlived")
def let_lives_begin_anew() -> AbstractContextManager[None]:
    """Time in the backlog is not subtracted from the time to live, although it should be."""
    begin = Restorer.__init__

    def wrong(self: Restorer, ttl: Any, *more: Any) -> None:
        begin(self, "restart", *more)

    return replaced(Restorer, "__init__", wrong)


@bug("lost")
def bury_before_the_time_is_over() -> AbstractContextManager[None]:
    """The end of a lock is taken for the broker's current time."""
    now_ms = BrokerClock.now_ms
    return replaced(BrokerClock, "now_ms", lambda self, at: now_ms(self, at) and now_ms(self, at) + self.lock_ms)


@bug("unexplained")
def forget_what_was_accepted() -> AbstractContextManager[None]:
    """A message whose completion failed is sent redelivered on redelivery."""
    return replaced(DuplicateGuard, "has_accepted", lambda self, number: False)


@bug("unexplained")
def send_again_what_comes_again() -> AbstractContextManager[None]:
    """A lock expires while its message is being moved; the redelivery counts as another message."""

    def wrong(self: Intake, move: Any, delivery: Any, now: float) -> None:
        self.open[delivery.id] = redelivered = type(move)(self, move.lane, move.restored, delivery, move.size, now)
        self._operations.received(redelivered)
        redelivered.lane.offer(redelivered)

    return replaced(Intake, "_adopt", wrong)


@bug("order_violations", first_seed=60)
def send_a_session_in_parallel() -> AbstractContextManager[None]:
    return replaced(Lane, "_must_wait_for_session", lambda self, move: False)


@bug("order_violations", first_seed=160)
def go_on_behind_a_gap() -> AbstractContextManager[None]:
    """Newer messages are moved while an older one is still locked by a killed syphon."""
    return replaced(Intake, "_in_turn", lambda self, number: True)


@bug("messages are left")
def overlook_deferred_messages() -> AbstractContextManager[None]:
    """After a crash deferred messages are not searched for."""

    async def wrong(look: Callable[..., Any], *arguments: Any, **more: Any) -> QueueScan:
        seen: QueueScan = await look(*arguments, **more)
        seen.deferred.clear()
        return seen

    return replaced(pump, "scan_queue", partial(wrong, scan_queue))
