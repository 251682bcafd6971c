"""Drains one backlog queue: receive, restore, send to the primary, complete.

Messages move by callbacks: a delivery goes to the lane of its destination, an outcome back to the link it came from.
The pump itself only watches the connections and the clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from twinbus.amqp.client.connection import Connection
from twinbus.amqp.client.errors import AmqpError
from twinbus.amqp.client.management import Management
from twinbus.ledger.ledger_errors import LedgerError
from twinbus.pairing.events import Moved
from twinbus.pairing.ledger_health import LedgerHealth
from twinbus.servicebus.entity_paths import entity_key

from .connector import Connector
from .deferral.deferred import QueueScan, scan_queue
from .deferral.retrieval import Retrieval
from .delivery.destinations import Destinations
from .delivery.lanes import Lane, Traffic
from .delivery.send_failures import NOT_FOUND
from .drain_report import QueueStatus
from .pacing import Backoff, CreditWindow
from .receive_errors import ReceiveErrors
from .receiving.intake import Intake
from .receiving.lock_renewal import LockRenewal, due_for_renewal
from .receiving.restorer import Restorer
from .settlement.bookkeeping import OperationLog
from .settlement.ledger_gate import LedgerGate
from .settlement.moves import DuplicateGuard, Move
from .terms import Terms
from .until_empty import Drain

logger = logging.getLogger("twinbus.syphon")

ATTACH_TIMEOUT = 15.0
CLOSE_TIMEOUT = 15.0
DETACH_TIMEOUT = 5.0
ABANDON_TIMEOUT = 3.0  # part of it, for abandoning what the ledger did not confirm; at most half of a shorter time
MAX_FAILURES = 3  # in a row before a drain gives up
SCAN_INTERVAL = 3600.0  # seconds between two scans for what other syphons have left behind
CHECK_INTERVAL = 1.0
LOCK_MARGIN = 5.0  # seconds after its end when a lock is over for certain
MIN_TICK, MAX_TICK = 0.02, 0.5
NO_DESTINATION = "(no destination)"  # of messages that another client deferred

_T = TypeVar("_T")


class OrderGapError(AmqpError):
    """An older message of the queue is locked by a client that may be gone: going on would break the order."""


class LedgerFailedError(AmqpError):
    """The ledger cannot store the moves, so nothing more may be completed."""


class Pump:
    """Moves the messages of one backlog queue while `run` runs."""

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
        self._operations = OperationLog(
            terms.recorder,
            terms.pairing,
            terms.client,
            queue,
            terms.on_settled,
            lambda: self.restorer.broker_ms(self._loop.time()),
        )
        self._receive_errors = ReceiveErrors(queue, terms.events)
        self._guard = DuplicateGuard()
        self._gate = LedgerGate(terms.flush, self._guard, lambda: self.restorer.seconds_to_move)
        self._management: Management | None = None
        self._scanning: asyncio.Task[None] | None = None
        self._tick_timer: asyncio.TimerHandle | None = None
        self._kick_timer: asyncio.TimerHandle | None = None
        self._tick_waiters: list[asyncio.Future[None]] = []
        self._checked_at = self._loop.time()
        self._scanned_at = float("-inf")
        self._closing: asyncio.Future[None] = self._loop.create_future()
        self._close_by = float("inf")
        self._close_seconds = CLOSE_TIMEOUT
        self._malformed = 0
        self._by_path: dict[str, Lane] = {}
        self.is_missing = False
        #: Messages that other clients had locked when the drain ended.
        self.held = 0
        #: Set while a drain scans the queue for what is left: nothing is received meanwhile.
        self.is_being_scanned = False
        self.lanes: dict[str, Lane] = {}
        self.intake: Intake | None = None
        self._window = CreditWindow(self.restorer.seconds_to_move, options.rate, self._loop.time())
        self._traffic = Traffic(
            destinations,
            self._operations,
            self._loop,
            terms.order is not None,
            options.poison_tries,
            min(options.retry_min, self.restorer.seconds_to_move / options.poison_tries),
            self._kick_later,
        )
        self.retrieval = Retrieval(
            self._operations,
            destinations,
            self.restorer,
            self._guard,
            self._gate,
            options.rate,
            self._new_backoff,
            self._open_management,
        )
        self._renewal = LockRenewal(queue, self._operations, self._open_management)
        destinations.listeners.append(self)
        destinations.answer_within(self.restorer.seconds_to_move)

    def _new_backoff(self) -> Backoff:
        return Backoff(self._terms.options.retry_min, self._terms.options.retry_max)

    @property
    def is_pinging(self) -> bool:
        """Whether a ping to a destination is in flight."""
        return self._destinations.is_pinging

    def status(self) -> QueueStatus:
        """What was done so far, and what is deferred."""
        intake = self.intake
        return QueueStatus(
            queue=self.queue,
            is_receiving=intake is not None and not intake.is_paused,
            in_flight=0 if intake is None else len(intake.open),
            destinations={
                lane.path or NO_DESTINATION: replace(lane.tally, deferred=len(lane.deferred))
                for lane in self.lanes.values()
                if lane.path or lane.deferred
            },
            malformed=self._malformed + (0 if intake is None else intake.malformed),
            held=self.held,
            is_missing=self.is_missing,
        )

    # ---- lanes ----

    def _lane_for(self, path: str) -> Lane:
        lane = self._by_path.get(path)
        if lane is None:
            key, allowed = entity_key(path), self._terms.options.destinations
            lane = self.lanes.get(key)
            if lane is None:
                is_allowed = key != "" and (allowed is None or key in allowed)
                lane = self.lanes[key] = Lane(path, is_allowed, self._traffic)
            self._by_path[path] = lane
        return lane

    def has_waiting(self, key: str) -> bool:
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
            lane.defer_all()

    def primary_changed(self) -> None:
        """The connection to the primary was made or lost. Without one, nothing is received or kept."""
        if not self._destinations.is_up:
            if self._destinations.is_doubtful:
                self._window.start_over(self._loop.time())
            if self.intake is not None:
                self.intake.pause_and_abandon_new()
            for lane in self.lanes.values():
                for move in lane.withdraw():
                    move.source.stop_and_abandon(move)
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
        """Move messages until `close`, or with `until_empty` until nothing movable is left.

        With `until_empty` it raises the error that prevented the drain, `LedgerFailedError` included.
        """
        backoff, failures = self._new_backoff(), 0
        self._tick()
        try:
            while not self._closing.done():
                try:
                    await self._serve(until_empty)
                    return
                except LedgerFailedError as error:
                    if until_empty:
                        raise
                    self._forget_intake()
                    await self._wait_for_ledger(str(error))
                    continue
                except OrderGapError:
                    logger.info("Receiving from %s waits for locks that another client left behind", self.queue)
                    await self._sleep(self.restorer.lock_seconds / 4)
                    continue
                except AmqpError as error:
                    failures = 1 if self._forget_intake() else failures + 1
                    if until_empty and error.condition == NOT_FOUND:
                        self.is_missing = True
                        return
                    if until_empty and failures >= MAX_FAILURES:
                        raise
                    self._receive_errors.add(error)
                if failures == 1:
                    backoff.reset()
                await self._sleep(backoff.next())
        finally:
            await self._stop()

    def close(self, seconds: float = CLOSE_TIMEOUT) -> None:
        """Have `run` stop receiving, finish the messages in flight and return within about `seconds`."""
        self._close_seconds = min(seconds, CLOSE_TIMEOUT)
        self._close_by = min(self._close_by, self._loop.time() + self._close_seconds)
        if not self._closing.done():
            self._closing.set_result(None)

    @property
    def _seconds_to_close(self) -> float:
        return max(MIN_TICK, min(CLOSE_TIMEOUT, self._close_by - self._loop.time()))

    @property
    def _seconds_to_abandon(self) -> float:
        return min(ABANDON_TIMEOUT, self._close_seconds / 2)

    def _forget_intake(self) -> bool:
        """Drop the last link but keep its counts. Returns whether it received anything."""
        intake, self.intake = self.intake, None
        if intake is None:
            return False
        self._malformed += intake.malformed
        return intake.received > 0

    async def _wait_for_ledger(self, reason: str) -> None:
        self._health.failed(self.queue, reason)
        backoff, is_back = self._new_backoff(), False
        while not is_back and not self._closing.done():
            await self._sleep(backoff.next())
            is_back = bool(await self._unless_closing(self._gate.reopen()))
        if is_back:
            self._health.works(self.queue)

    async def _sleep(self, seconds: float) -> None:
        await asyncio.wait([self._closing], timeout=seconds)

    async def _serve(self, until_empty: bool) -> None:
        """Receive over one link until it ends, which raises, or until the pump is done."""
        connection = await self._unless_closing(self._connected())
        if connection is None:
            return
        scan = QueueScan() if self._terms.is_extra else await self._unless_closing(self.scan())
        if scan is None:
            return
        intake = Intake(
            self.queue,
            self._operations,
            self._lane_for,
            self._window,
            self.restorer,
            self._guard,
            self._gate,
            self._terms.options.poll,
            list(scan.active) if self._terms.order is not None else [],
        )
        await self._unless_closing(intake.attach(connection, ATTACH_TIMEOUT))
        if self._closing.done():
            return
        self._forget_intake()
        self._receive_errors.clear()
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
            await self._close_intake(intake)
        if self._gate.failed.done():
            cause = self._gate.failed.result()
            # The text of a foreign error may hold secrets.
            reason = str(cause) if isinstance(cause, (LedgerError, AmqpError)) else type(cause).__name__
            raise LedgerFailedError(f"the ledger failed: {reason}") from cause
        if drain is not None and not drain.cancelled():
            drain.result()
        elif intake.ended.done() and not self._closing.done():
            raise intake.ended.result().with_traceback(None)

    async def _connected(self) -> Connection:
        await self._destinations.connected()
        return await self._secondary.connected()

    async def _unless_closing(self, work: Coroutine[Any, Any, _T]) -> _T | None:
        """The result of a coroutine; None if the pump is closed first."""
        task = self._loop.create_task(work)
        try:
            ends: list[asyncio.Future[Any]] = [task, self._closing]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        return None if task.cancelled() else task.result()

    # ---- scanning ----

    async def _open_management(self) -> Management:
        if self._management is None or self._management.error is not None:
            connection = await self._secondary.connected()
            self._management = await connection.management(self.queue, seconds=ATTACH_TIMEOUT)
        return self._management

    async def scan(self) -> QueueScan:
        """Scan the queue, and add its deferred messages to their lanes."""
        self._scanned_at = self._loop.time()
        scan = await scan_queue(await self._open_management(), self._operations)
        for number, path in scan.deferred.items():
            self._lane_for(path).found_deferred(number)
        for number, path in scan.active.items():
            lane = self.lanes.get(entity_key(path))
            if lane is not None and lane.deferred:
                lane.expect(number)
        if not scan.is_complete:
            self._scanned_at = float("-inf")  # scan again as soon as the queue is idle
        return scan

    # ---- the clock ----

    def _tick(self) -> None:
        options, now = self._terms.options, self._loop.time()
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        seconds = max(MIN_TICK, min(MAX_TICK, options.retry_min / 2, options.poll / 4))
        self._tick_timer = self._loop.call_later(seconds, self._tick)
        intake = self.intake
        if intake is not None and not intake.ended.done():
            self._tick_intake(intake, now)
        if not self._closing.done():
            self.retrieval.start_due(self.lanes.values())
        self._kick_lanes()
        if now - self._checked_at >= CHECK_INTERVAL:
            self._checked_at = now
            self._check_locks(now)
            self._announce()
            self._destinations.drop_idle()
        waiters, self._tick_waiters = self._tick_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def ticked(self) -> None:
        """Wait for the next tick."""
        waiter = self._loop.create_future()
        self._tick_waiters.append(waiter)
        await waiter

    def _tick_intake(self, intake: Intake, now: float) -> None:
        if intake.has_gap and intake.is_quiet:
            intake.ended.set_result(OrderGapError("an older message is locked"))
            return
        may_take = self._destinations.is_up and not self.is_being_scanned and not self._closing.done()
        if intake.is_quiet and may_take:
            intake.resume()
        has_waited = intake.tick(now, may_top_up=not self._destinations.pace.is_paused(now))
        if has_waited and now - self._scanned_at >= SCAN_INTERVAL and self._scanning is None:
            self._scanning = self._loop.create_task(self._scan_in_background())
            self._scanning.add_done_callback(self._scan_done)

    async def _scan_in_background(self) -> None:
        """Scan for messages that a killed syphon left behind."""
        try:
            await self.scan()
        except AmqpError as error:
            logger.info("Scanning %s failed: %s", self.queue, error)

    def _scan_done(self, _: asyncio.Task[None]) -> None:
        self._scanning = None

    def _check_locks(self, now: float) -> None:
        limit = self.restorer.seconds_to_send
        self._destinations.answer_within(self.restorer.seconds_to_move)
        for lane in self.lanes.values():
            lane.stop_expecting(now - self.restorer.longest_lock_seconds - LOCK_MARGIN)
            late = lane.withdraw(lambda move: now - move.locked_at > limit)
            if late:
                self._window.missed(now)
            if late and self._traffic.keeps_order:
                lane.defer_all(*late)  # if abandoned they might come again behind newer ones
            else:
                for move in late:
                    move.source.abandon(move)
        locked: list[Move] = [] if self.intake is None else list(self.intake.open.values())
        waiting = [*locked, *self.retrieval.moves()]
        self._renewal.start(due_for_renewal(waiting, self.restorer.lock_seconds, now))

    def _announce(self) -> None:
        for lane in self.lanes.values():
            if lane.unannounced:
                count, lane.unannounced = lane.unannounced, 0
                self._terms.events.publish(Moved(entity=lane.path, queue=self.queue, count=count))

    # ---- ending ----

    async def _close_intake(self, intake: Intake) -> None:
        """Stop receiving, abandon unsent messages, and wait for the outcomes of sent ones.

        A stalled ledger may still answer while the locks hold and the pump may take to close. After that there must be
        time to abandon the messages.
        """
        left_at = self._loop.time()
        intake.retire()
        while not intake.is_quiet:
            now = self._loop.time()
            until = min(left_at + CLOSE_TIMEOUT, self._close_by)
            if now >= until:
                break
            must_abandon = now >= min(until - self._seconds_to_abandon, left_at + self.restorer.seconds_to_move)
            if must_abandon and (self._gate.failed.done() or self._closing.done()):
                self._gate.give_up()
            for lane in self.lanes.values():
                for move in lane.withdraw(lambda move: move.source is intake):
                    intake.stop_and_abandon(move)
            if intake.receiver.error is not None and not intake.is_pausing:
                break  # the locks expire by themselves
            await asyncio.sleep(MIN_TICK)
        await intake.close(min(DETACH_TIMEOUT, self._seconds_to_close))

    async def _stop(self) -> None:
        await self.retrieval.close(self._seconds_to_close, self._seconds_to_abandon)
        for timer in (self._tick_timer, self._kick_timer):
            if timer is not None:
                timer.cancel()
        if self._scanning is not None:
            self._scanning.cancel()
            await asyncio.gather(self._scanning, return_exceptions=True)
        await self._renewal.close()
        if self._management is not None:
            await self._management.close(min(DETACH_TIMEOUT, self._seconds_to_close))
        if self in self._destinations.listeners:
            self._destinations.listeners.remove(self)
        self._announce()
