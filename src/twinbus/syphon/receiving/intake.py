"""Receives from a backlog queue over one link: credit, deliveries, settlements, polls, keep-alive."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from twinbus.amqp.client.connection import Connection
from twinbus.amqp.client.errors import AmqpError, AnswerTimeoutError
from twinbus.amqp.client.receiver import ACCEPT, DEFER, RELEASE, Delivery, Receiver, dead_letter
from twinbus.envelope.restoring import EnvelopeError, Restored
from twinbus.ledger.recorder import OperationKind

from ..delivery.lanes import Lane
from ..pacing import CreditWindow
from ..settlement.bookkeeping import OperationLog
from ..settlement.ledger_gate import LedgerGate
from ..settlement.moves import EXPIRED, DuplicateGuard, Move
from .restorer import Restorer

logger = logging.getLogger("twinbus.syphon")

IDLE_SECONDS = 300.0  # a silent link with credit is probed after these
PROBE_TIMEOUT = 15.0
STOP_TIMEOUT = 10.0


class Intake:
    """One receiver link. A pump makes a new one when it has ended."""

    receiver: Receiver
    _connection: Connection

    def __init__(
        self,
        queue: str,
        operations: OperationLog,
        lane_for: Callable[[str], Lane],
        window: CreditWindow,
        restorer: Restorer,
        guard: DuplicateGuard,
        gate: LedgerGate,
        poll: float,
        expected: list[int] | None,
    ) -> None:
        """`expected` are the sequence numbers that must come first, if order is kept."""
        self._queue = queue
        self._operations = operations
        self._lane_for = lane_for
        self._window = window
        self._restore = restorer.restore
        self._guard = guard
        self._gate = gate
        self._poll = poll
        self._expected = deque(expected or ())
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._waiting_since = self._time()
        self._probed_at: float | None = None
        self._to_abandon: list[Move] = []
        self._pausing: asyncio.Task[None] | None = None
        #: Received and not settled yet, by delivery id.
        self.open: dict[int, Move] = {}
        self.ended: asyncio.Future[AmqpError] = self._loop.create_future()
        self.is_paused = True
        self._abandons_new = False
        self._is_retired = False
        #: Whether an older message is locked by another client, so that the order would break.
        self.has_gap = False
        self.malformed = 0
        self.received = 0
        #: When a message was last received or settled.
        self.busy_at = self._time()

    async def attach(self, connection: Connection, seconds: float) -> None:
        """Attach the link, without credit yet. Raises what `Connection.attach_receiver` raises."""
        self._connection = connection
        self.receiver = await connection.attach_receiver(
            self._queue, self._on_delivery, seconds=seconds, on_end=self._on_end
        )

    def _on_end(self, error: AmqpError) -> None:
        if not self.ended.done():
            self.ended.set_result(error)

    # ---- credit ----

    def resume(self) -> None:
        """Start receiving, unless the link is retired."""
        if self._is_retired:
            return
        self.is_paused = self._abandons_new = False
        self._waiting_since = self.busy_at = self._time()
        self.top_up()

    def top_up(self) -> None:
        """Grant credit for as many messages as fit the window."""
        if self.is_paused or self.receiver.error is not None:
            return
        free = self._window.size - len(self.open) - self.receiver.credit
        # One flow for a part of the window, not one per message.
        if free > 0 and (free >= self._window.size // 8 or not self.open):
            self.receiver.add_credit(free)

    def pause(self) -> None:
        """Drain the credit. Messages in flight are still moved; `is_quiet` says when that is done."""
        if not self.is_paused:
            self.is_paused = True
            self._pausing = self._loop.create_task(self._pause())

    def pause_and_abandon_new(self) -> None:
        """Drain the credit, and abandon messages that still arrive."""
        self._abandons_new = True
        self.pause()

    def retire(self) -> None:
        """Like `pause_and_abandon_new`, for good."""
        self._is_retired = True
        self.pause_and_abandon_new()

    async def _pause(self) -> None:
        try:
            await self.receiver.stop(STOP_TIMEOUT)
        except AnswerTimeoutError as timeout:
            self.receiver.give_up(timeout)
        except AmqpError as error:
            logger.debug("The link to %s ended while it was paused: %s", self._queue, type(error).__name__)
        moves, self._to_abandon = self._to_abandon, []
        # Only now, and in order: abandoned earlier they would have come again at once.
        for move in sorted(moves, key=lambda move: move.restored.sequence_number):
            self.abandon(move)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is unsettled and nothing will arrive."""
        return self.is_paused and not self.open and not self.is_pausing

    @property
    def is_pausing(self) -> bool:
        return self._pausing is not None and not self._pausing.done()

    async def close(self, seconds: float) -> None:
        """Detach, waiting at most `seconds` for the answer. Open messages can no longer be settled by this link."""
        if self._pausing is not None:
            self._pausing.cancel()
            await asyncio.gather(self._pausing, return_exceptions=True)
        await self.receiver.close(seconds)

    # ---- deliveries ----

    def _on_delivery(self, delivery: Delivery) -> None:
        now = self.busy_at = self._waiting_since = self._time()
        self.received += 1
        payload = delivery.payload
        if not self.open:
            self._window.restart(now)
        try:
            restored = self._restore(payload, now)
        except EnvelopeError as error:
            self._malformed(delivery, error, now)
            return
        number = restored.sequence_number
        earlier = self._guard.in_progress.get(restored.identity)
        if earlier is not None and earlier.settlement is None:
            self._adopt(earlier, delivery, now)
            return
        move = Move(self, self._lane_for(restored.destination), restored, delivery, len(payload), now)
        self.open[delivery.id] = self._guard.in_progress[restored.identity] = move
        self._operations.received(move)
        is_accepted = earlier is not None and earlier.settlement is OperationKind.COMPLETE
        if is_accepted or self._guard.has_accepted(restored.identity):
            self.complete(move)
        elif self._abandons_new or (self._expected and not self._in_turn(number)):
            self.stop_and_abandon(move)
        else:
            move.lane.offer(move)

    def _adopt(self, move: Move, delivery: Delivery, now: float) -> None:
        """A message in flight arrives again because its lock expired: only the lock is new."""
        assert isinstance(move.receipt, Delivery)
        assert isinstance(move.source, Intake)
        move.source.open.pop(move.receipt.id, None)
        move.source, move.receipt, move.locked_at = self, delivery, now
        self.open[delivery.id] = move
        self._operations.received(move)

    def _malformed(self, delivery: Delivery, error: EnvelopeError, now: float) -> None:
        unknown = Restored("", None, None, b"", 0, 0, 0, False)
        move = Move(self, self._lane_for(""), unknown, delivery, len(delivery.payload), now)
        self.open[delivery.id] = move
        self._operations.received(move)
        logger.warning("Restoring a message of %s failed, dead-lettering it: %s", self._queue, error)
        self.dead_letter(move, error.reason, str(error))

    def _in_turn(self, number: int) -> bool:
        """Whether the message is the next expected one. A missing one is locked by another client."""
        if number < self._expected[0]:
            return True
        if number == self._expected[0]:
            self._expected.popleft()
            return True
        self.has_gap = True
        return False

    # ---- settling ----

    def complete(self, move: Move) -> None:
        move.lane.decided(move.restored.sequence_number)
        self._gate.submit(move)

    def dead_letter(self, move: Move, reason: str, description: str) -> None:
        move.mark_dead_letter(reason, description)
        move.lane.decided(move.restored.sequence_number)
        if not self._gate.is_open:
            self._operations.planned_dead_letter(move)
        self._gate.submit(move)

    def settle_now(self, move: Move) -> None:
        if move.reason:
            self._settle(move, OperationKind.DEAD_LETTER, dead_letter(move.reason, move.description))
        else:
            self._settle(move, OperationKind.COMPLETE, ACCEPT)

    def defer(self, move: Move) -> None:
        move.lane.deferring += 1
        self._settle(move, OperationKind.DEFER, DEFER)

    def abandon(self, move: Move) -> None:
        move.lane.abandoned(move)
        self._settle(move, OperationKind.ABANDON, RELEASE)

    def stop_and_abandon(self, move: Move) -> None:
        self.pause_and_abandon_new()
        if self.is_pausing:
            move.lane.abandoned(move)
            self._to_abandon.append(move)
        else:
            self.abandon(move)

    def _settle(self, move: Move, kind: OperationKind, outcome: Any) -> None:
        move.settlement = kind
        assert isinstance(move.receipt, Delivery)
        try:
            self.receiver.settle(move.receipt, outcome, move.on_settled)
        except AmqpError as error:
            self.settled(move, error)

    def settled(self, move: Move, error: AmqpError | None) -> None:
        assert isinstance(move.receipt, Delivery)
        self.open.pop(move.receipt.id, None)
        now = self.busy_at = self._waiting_since = self._time()
        identity = move.restored.identity
        if self._guard.in_progress.get(identity) is move:
            del self._guard.in_progress[identity]
        lane, kind, number = move.lane, move.settlement, move.restored.sequence_number
        assert kind is not None
        self._operations.settled(move, kind, error)
        if kind is OperationKind.COMPLETE:
            if error is None:
                lane.tally.moved += 1
                lane.unannounced += 1
                self._guard.completed(identity)
            else:
                self._guard.accepted(identity)
        elif kind is OperationKind.DEFER:
            lane.deferring -= 1
            if error is None:
                lane.found_deferred(number)
            else:
                lane.expect(number)  # it may be deferred anyway: newer ones must not go first
        elif kind is OperationKind.DEAD_LETTER and error is None:
            self._count_dead_letter(move)
        if error is not None:
            logger.info("Settling a message of %s failed, it will come again: %s: %s", self._queue, kind.name, error)
        else:
            self._connection.has_worked = True
        if kind is not OperationKind.ABANDON:  # abandoning is quick, and says nothing about how many can be moved
            self._window.moved(move.size, now)
        self.top_up()

    def _count_dead_letter(self, move: Move) -> None:
        if not move.restored.destination:
            self.malformed += 1
        elif move.reason == EXPIRED:
            move.lane.tally.expired += 1
        else:
            move.lane.tally.poison += 1

    # ---- the clock ----

    def tick(self, now: float, may_top_up: bool) -> bool:
        """Count polls, probe a silent link, and grant credit that was put off.

        Returns whether a poll ended without a message.
        """
        if self.receiver.error is not None:
            return False
        if self.receiver.idle_seconds < IDLE_SECONDS:
            self._probed_at = None
        elif self._probed_at is None:
            self._probed_at = now
            self.receiver.probe()
        elif now - self._probed_at > PROBE_TIMEOUT:
            self.receiver.give_up(
                AnswerTimeoutError(f"'{self._queue}' did not answer a probe within {PROBE_TIMEOUT:g} seconds")
            )
            return False
        is_waiting = self.receiver.credit > 0 and not self.open and not self.is_paused
        has_waited = is_waiting and now - self._waiting_since >= self._poll
        if has_waited:
            self._waiting_since = now
            # A receive ends and the next begins. The namespace sees that and counts the same.
            self.receiver.renew_credit()
            self._operations.polled()
        if may_top_up:
            self.top_up()
        return has_waited
