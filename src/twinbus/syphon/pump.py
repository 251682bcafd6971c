"""The pump of one backlog queue: receive, restore, send to the primary, complete.

Messages move by callbacks: a delivery goes to the lane of its destination, an outcome from there back to the link it
came by. The pump itself only looks after the connections and the clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from twinbus.ledger.errors import LedgerError
from twinbus.pairing.events import Moved
from twinbus.pairing.ledger_health import LedgerHealth
from twinbus.pairing.naming import entity_key

from .bookkeeping import Book
from .complaints import Complaints
from .connection import Connection
from .connector import Connector
from .deferred import Look, look_through
from .destinations import Destinations
from .drain import Drain
from .errors import AmqpError
from .intake import Intake
from .lanes import Lane, Traffic
from .ledger_gate import LedgerGate
from .management import Management
from .moves import Memory, Move
from .pacing import Backoff, CreditWindow
from .renewal import Renewal
from .report import QueueStatus
from .restorer import Restorer
from .retrieval import Retrieval
from .terms import Terms
from .verdicts import NOT_FOUND

logger = logging.getLogger("twinbus.syphon")

ATTACH_TIMEOUT = 15.0
CLOSE_TIMEOUT = 15.0
DETACH_TIMEOUT = 5.0
GIVE_BACK_TIME = 3.0  # of these, for what the ledger did not confirm; at most half of a shorter time
MAX_FAILURES = 3  # in a row, before a drain gives up
LOOK_EVERY = 3600.0  # seconds between two looks for what other syphons have left behind
CHECK_EVERY = 1.0
LOCK_MARGIN = 5.0  # seconds after which a lock is over for sure
MIN_TICK, MAX_TICK = 0.02, 0.5
NO_DESTINATION = "(no destination)"  # of messages that somebody else has deferred

_T = TypeVar("_T")


class OrderGap(AmqpError):  # noqa: N818 - what it is
    """An older message of the queue is locked by somebody who may be gone: to go on now would lose the order."""


class LedgerFailed(AmqpError):  # noqa: N818 - what happened
    """The ledger cannot keep what was moved, so nothing more may be completed."""


class Pump:
    """Moves the messages of one backlog queue for as long as `run` runs."""

    def __init__(
        self, queue: str, secondary: Connector, destinations: Destinations, terms: Terms, health: LedgerHealth
    ) -> None:
        self.queue = queue
        self._health = health
        options = terms.options
        self._loop = asyncio.get_running_loop()
        self._secondary = secondary
        self._destinations = destinations
        self._terms = terms
        self.restorer = Restorer(terms.ttl, terms.lock_seconds, terms.wall_clock)
        self._book = Book(
            terms.recorder,
            terms.pairing,
            terms.client,
            queue,
            terms.on_settled,
            lambda: self.restorer.broker_ms(self._loop.time()),
        )
        self._complaints = Complaints(queue, terms.events)
        self._memory = Memory()
        self._gate = LedgerGate(terms.flush, self._memory, lambda: self.restorer.seconds_to_move)
        self._management: Management | None = None
        self._looking: asyncio.Task[None] | None = None
        self._tick_timer: asyncio.TimerHandle | None = None
        self._kick_timer: asyncio.TimerHandle | None = None
        self._tick_waiters: list[asyncio.Future[None]] = []
        self._checked_at = self._loop.time()
        self._looked_at = float("-inf")
        self._closing: asyncio.Future[None] = self._loop.create_future()
        self._close_by = float("inf")
        self._close_seconds = CLOSE_TIMEOUT
        self._malformed = 0
        self._by_path: dict[str, Lane] = {}
        self.is_missing = False
        #: Messages that were locked by somebody else when the drain ended.
        self.held = 0
        #: Set while a drain finds out whether anything is left: nothing may come meanwhile.
        self.is_examined = False
        self.lanes: dict[str, Lane] = {}
        self.intake: Intake | None = None
        self._window = CreditWindow(self.restorer.seconds_to_move, options.rate, self._loop.time())
        self._traffic = Traffic(
            destinations,
            self._book,
            self._loop,
            terms.order is not None,
            options.poison_tries,
            min(options.retry_min, self.restorer.seconds_to_move / options.poison_tries),
            self._kick_later,
        )
        self.retrieval = Retrieval(
            self._book,
            destinations,
            self.restorer,
            self._memory,
            self._gate,
            options.rate,
            self._new_backoff,
            self._open_management,
        )
        self._renewal = Renewal(queue, self._book, self._open_management)
        destinations.listeners.append(self)
        destinations.answer_within(self.restorer.seconds_to_move)

    def _new_backoff(self) -> Backoff:
        return Backoff(self._terms.options.retry_min, self._terms.options.retry_max)

    @property
    def is_asking(self) -> bool:
        """Whether a ping is about to tell that a destination is back."""
        return self._destinations.is_pinging

    def status(self) -> QueueStatus:
        """What was done so far, and what is set aside."""
        intake = self.intake
        return QueueStatus(
            queue=self.queue,
            is_receiving=intake is not None and not intake.is_paused,
            in_flight=0 if intake is None else len(intake.open),
            destinations={
                lane.path or NO_DESTINATION: replace(lane.tally, parked=len(lane.deferred))
                for lane in self.lanes.values()
                if lane.path or lane.deferred
            },
            malformed=self._malformed + (0 if intake is None else intake.malformed),
            held=self.held,
            is_missing=self.is_missing,
        )

    # ---- lanes ----

    def _lane_for(self, path: str) -> Lane:
        found = self._by_path.get(path)
        if found is None:
            key, allowed = entity_key(path), self._terms.options.destinations
            found = self.lanes.get(key)
            if found is None:
                is_allowed = key != "" and (allowed is None or key in allowed)
                found = self.lanes[key] = Lane(path, is_allowed, self._traffic)
            self._by_path[path] = found
        return found

    def needs(self, key: str) -> bool:
        lane = self.lanes.get(key)
        return lane is not None and bool(lane.waiting)

    def link_ready(self, key: str) -> None:
        lane = self.lanes.get(key)
        if lane is not None:
            lane.kick()

    def answered(self, key: str) -> None:
        lane = self.lanes.get(key)
        if lane is not None and not self._closing.done():
            self.retrieval.start_due([lane])

    def attach_failed(self, key: str) -> None:
        lane = self.lanes.get(key)
        if lane is not None and lane.circuit.is_open:
            lane.set_aside()

    def primary_changed(self) -> None:
        """The connection to the primary was made or lost. Without one nothing is taken, and nothing kept."""
        if not self._destinations.is_up:
            if self._destinations.is_doubtful:
                self._window.start_over(self._loop.time())
            if self.intake is not None:
                self.intake.turn_back()
            for lane in self.lanes.values():
                for move in lane.withdraw():
                    move.source.strand(move)
        self._tick()

    def _kick_later(self, seconds: float) -> None:
        if self._kick_timer is None:
            self._kick_timer = self._loop.call_later(seconds, self._kick)

    def _kick(self) -> None:
        self._kick_timer = None
        self._kick_lanes()

    def _kick_lanes(self) -> None:
        for lane in self.lanes.values():
            lane.kick()

    # ---- running ----

    async def run(self, *, until_empty: bool = False) -> None:
        """Move messages until `close`, or until nothing is left that can be moved.

        Until empty it raises the error that kept the queue from being emptied, `LedgerFailed` too.
        """
        backoff, failures = self._new_backoff(), 0
        self._tick()
        try:
            while not self._closing.done():
                try:
                    await self._serve(until_empty)
                    return
                except LedgerFailed as error:
                    if until_empty:
                        raise
                    self._retire_intake()
                    await self._until_ledger_is_back(str(error))
                    continue
                except OrderGap:
                    logger.info("%s waits for locks that somebody left behind", self.queue)
                    await self._sleep(self.restorer.lock_seconds / 4)
                    continue
                except AmqpError as error:
                    failures = 1 if self._retire_intake() else failures + 1
                    if until_empty and error.condition == NOT_FOUND:
                        self.is_missing = True
                        return
                    if until_empty and failures >= MAX_FAILURES:
                        raise
                    self._complaints.add(error)
                if failures == 1:
                    backoff.reset()
                await self._sleep(backoff.next())
        finally:
            await self._stop()

    def close(self, seconds: float = CLOSE_TIMEOUT) -> None:
        """Have `run` take nothing more, see off what is under way, and return, within about so many seconds."""
        self._close_seconds = min(seconds, CLOSE_TIMEOUT)
        self._close_by = min(self._close_by, self._loop.time() + self._close_seconds)
        if not self._closing.done():
            self._closing.set_result(None)

    @property
    def _seconds_to_close(self) -> float:
        return max(MIN_TICK, min(CLOSE_TIMEOUT, self._close_by - self._loop.time()))

    @property
    def _seconds_to_give_back(self) -> float:
        return min(GIVE_BACK_TIME, self._close_seconds / 2)

    def _retire_intake(self) -> bool:
        """Forget the last link, but not its count; returns whether anything came by it."""
        intake, self.intake = self.intake, None
        if intake is None:
            return False
        self._malformed += intake.malformed
        return intake.received > 0

    async def _until_ledger_is_back(self, why: str) -> None:
        self._health.failed(self.queue, why)
        backoff, is_back = self._new_backoff(), False
        while not is_back and not self._closing.done():
            await self._sleep(backoff.next())
            is_back = bool(await self._unless_closing(self._gate.reopen()))
        if is_back:
            self._health.works(self.queue)

    async def _sleep(self, seconds: float) -> None:
        await asyncio.wait([self._closing], timeout=seconds)

    async def _serve(self, until_empty: bool) -> None:
        """Receive by one link until it ends, which raises, or until there is no need to go on."""
        connection = await self._unless_closing(self._connected())
        if connection is None:
            return
        look = Look() if self._terms.is_extra else await self._unless_closing(self.look())
        if look is None:
            return
        intake = Intake(
            self.queue,
            self._book,
            self._lane_for,
            self._window,
            self.restorer,
            self._memory,
            self._gate,
            self._terms.options.poll,
            list(look.active) if self._terms.order is not None else [],
        )
        await self._unless_closing(intake.attach(connection, ATTACH_TIMEOUT))
        if self._closing.done():
            return
        self._retire_intake()
        self._complaints.withdraw()
        self.intake = intake
        drain = self._loop.create_task(Drain(self, self._terms.is_extra).run(intake)) if until_empty else None
        ends: list[asyncio.Future[Any]] = [intake.ended, self._closing, self._gate.failed, *([drain] if drain else [])]
        try:
            intake.resume()
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if drain is not None:
                drain.cancel()
                await asyncio.gather(drain, return_exceptions=True)
            await self._leave(intake)
        if self._gate.failed.done():
            cause = self._gate.failed.result()
            # The text of an error that is not ours may hold anything.
            why = str(cause) if isinstance(cause, (LedgerError, AmqpError)) else type(cause).__name__
            raise LedgerFailed(f"the ledger failed: {why}") from cause
        if drain is not None and not drain.cancelled():
            drain.result()
        elif intake.ended.done() and not self._closing.done():
            raise intake.ended.result().with_traceback(None)

    async def _connected(self) -> Connection:
        await self._destinations.connected()
        return await self._secondary.connected()

    async def _unless_closing(self, work: Coroutine[Any, Any, _T]) -> _T | None:
        """The result of some work; None if the pump is closed first."""
        task = self._loop.create_task(work)
        try:
            ends: list[asyncio.Future[Any]] = [task, self._closing]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        return None if task.cancelled() else task.result()

    # ---- looking ----

    async def _open_management(self) -> Management:
        if self._management is None or self._management.error is not None:
            connection = await self._secondary.connected()
            self._management = await connection.management(self.queue, seconds=ATTACH_TIMEOUT)
        return self._management

    async def look(self) -> Look:
        """Look through the queue, and take note of what is deferred."""
        self._looked_at = self._loop.time()
        look = await look_through(await self._open_management(), self._book)
        for number, path in look.deferred.items():
            self._lane_for(path).found_aside(number)
        for number, path in look.active.items():
            lane = self.lanes.get(entity_key(path))
            if lane is not None and lane.deferred:
                lane.wait_for(number)
        if not look.is_complete:
            self._looked_at = float("-inf")  # look again as soon as there is nothing else to do
        return look

    # ---- the clock ----

    def _tick(self) -> None:
        options, now = self._terms.options, self._loop.time()
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        seconds = max(MIN_TICK, min(MAX_TICK, options.retry_min / 2, options.poll / 4))
        self._tick_timer = self._loop.call_later(seconds, self._tick)
        intake = self.intake
        if intake is not None and not intake.ended.done():
            self._look_after(intake, now)
        if not self._closing.done():
            self.retrieval.start_due(self.lanes.values())
        self._kick_lanes()
        if now - self._checked_at >= CHECK_EVERY:
            self._checked_at = now
            self._check_locks(now)
            self._announce()
            self._destinations.drop_idle()
        waiters, self._tick_waiters = self._tick_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def ticked(self) -> None:
        """Return after the next tick."""
        waiter = self._loop.create_future()
        self._tick_waiters.append(waiter)
        await waiter

    def _look_after(self, intake: Intake, now: float) -> None:
        if intake.has_gap and intake.is_quiet:
            intake.ended.set_result(OrderGap("an older message is locked"))
            return
        may_take = self._destinations.is_up and not self.is_examined and not self._closing.done()
        if intake.is_quiet and may_take:
            intake.resume()
        has_waited = intake.tick(now, may_ask=not self._destinations.pace.is_paused(now))
        if has_waited and now - self._looked_at >= LOOK_EVERY and self._looking is None:
            self._looking = self._loop.create_task(self._look_for_others())
            self._looking.add_done_callback(self._looked)

    async def _look_for_others(self) -> None:
        """Another syphon may be gone and have left something behind."""
        try:
            await self.look()
        except AmqpError as error:
            logger.info("%s was not looked through: %s", self.queue, error)

    def _looked(self, _: asyncio.Task[None]) -> None:
        self._looking = None

    def _check_locks(self, now: float) -> None:
        limit = self.restorer.seconds_to_send
        self._destinations.answer_within(self.restorer.seconds_to_move)
        for lane in self.lanes.values():
            lane.give_up_waiting(now - self.restorer.longest_lock_seconds - LOCK_MARGIN)
            late = lane.withdraw(lambda move: now - move.locked_at > limit)
            if late:
                self._window.missed(now)
            if late and self._traffic.keeps_order:
                lane.set_aside(*late)  # given back they might come again behind their followers
            else:
                for move in late:
                    move.source.give_back(move)
        held: list[Move] = [] if self.intake is None else list(self.intake.open.values())
        self._renewal.start(self.restorer.to_renew([*held, *self.retrieval.moves()], now))

    def _announce(self) -> None:
        for lane in self.lanes.values():
            if lane.unannounced:
                count, lane.unannounced = lane.unannounced, 0
                self._terms.events.publish(Moved(entity=lane.path, queue=self.queue, count=count))

    # ---- ending ----

    async def _leave(self, intake: Intake) -> None:
        """Take nothing more, give back what was not sent, and wait for the outcome of what was.

        A ledger that stalls may still answer, for as long as the locks hold for sure and the pump may take to close;
        then there must be time to give the messages back.
        """
        left_at = self._loop.time()
        intake.retire()
        while not intake.is_quiet:
            now = self._loop.time()
            until = min(left_at + CLOSE_TIMEOUT, self._close_by)
            if now >= until:
                break
            is_over = now >= min(until - self._seconds_to_give_back, left_at + self.restorer.seconds_to_move)
            if is_over and (self._gate.failed.done() or self._closing.done()):
                self._gate.give_up()
            for lane in self.lanes.values():
                for move in lane.withdraw(lambda move: move.source is intake):
                    intake.strand(move)
            if intake.receiver.error is not None and not intake.is_pausing:
                break  # the locks run out by themselves
            await asyncio.sleep(MIN_TICK)
        await intake.close(min(DETACH_TIMEOUT, self._seconds_to_close))

    async def _stop(self) -> None:
        await self.retrieval.close(self._seconds_to_close, self._seconds_to_give_back)
        for timer in (self._tick_timer, self._kick_timer):
            if timer is not None:
                timer.cancel()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await self._renewal.close()
        if self._management is not None:
            await self._management.close(min(DETACH_TIMEOUT, self._seconds_to_close))
        if self in self._destinations.listeners:
            self._destinations.listeners.remove(self)
        self._announce()
