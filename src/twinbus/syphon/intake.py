"""The link from a backlog queue: credit, deliveries, settlements, polls, and whether the link is still alive."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from twinbus.ledger.recorder import OperationKind

from .bookkeeping import Book
from .connection import Connection
from .errors import AmqpError, TimedOut
from .lanes import Lane
from .ledger_gate import LedgerGate
from .moves import EXPIRED, Memory, Move
from .pacing import CreditWindow
from .receiver import ACCEPT, DEFER, RELEASE, Delivery, Receiver, dead_letter
from .restore import EnvelopeError, Restored
from .restorer import Restorer

logger = logging.getLogger("twinbus.syphon")

SILENCE = 300.0  # seconds after which a link with credit is asked for a sign of life
SIGN_TIMEOUT = 15.0
STOP_TIMEOUT = 10.0


class Intake:
    """One receiver link in its life. A pump makes a new one when it has ended."""

    receiver: Receiver
    _connection: Connection

    def __init__(
        self,
        queue: str,
        book: Book,
        lane_for: Callable[[str], Lane],
        window: CreditWindow,
        restorer: Restorer,
        memory: Memory,
        gate: LedgerGate,
        poll: float,
        expected: list[int] | None,
    ) -> None:
        """`expected` are the numbers that must come first, where order is kept."""
        self._queue = queue
        self._book = book
        self._lane_for = lane_for
        self._window = window
        self._restore = restorer.restore
        self._memory = memory
        self._gate = gate
        self._poll = poll
        self._expected = deque(expected or ())
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._waiting_since = self._time()
        self._asked_at: float | None = None
        self._stranded: list[Move] = []
        self._pausing: asyncio.Task[None] | None = None
        #: What came and is not settled, by delivery id.
        self.open: dict[int, Move] = {}
        self.ended: asyncio.Future[AmqpError] = self._loop.create_future()
        self.is_paused = True
        self._turns_back = False
        self._is_retired = False
        #: Something older is locked by somebody else, so that the order would be lost.
        self.has_gap = False
        self.malformed = 0
        self.received = 0
        #: When a message last came or went.
        self.busy_at = self._time()

    async def attach(self, connection: Connection, seconds: float) -> None:
        """Attach the link, without credit yet. Raises as `Connection.attach_receiver`."""
        self._connection = connection
        self.receiver = await connection.attach_receiver(
            self._queue, self._on_delivery, seconds=seconds, on_end=self._on_end
        )

    def _on_end(self, error: AmqpError) -> None:
        if not self.ended.done():
            self.ended.set_result(error)

    # ---- credit ----

    def resume(self) -> None:
        """Ask for messages, unless the link is retired."""
        if self._is_retired:
            return
        self.is_paused = self._turns_back = False
        self._waiting_since = self.busy_at = self._time()
        self.top_up()

    def top_up(self) -> None:
        """Ask for as many as there is a place for."""
        if self.is_paused or self.receiver.error is not None:
            return
        room = self._window.size - len(self.open) - self.receiver.credit
        # One flow for a good part of the window, not one for each message.
        if room > 0 and (room >= self._window.size // 8 or not self.open):
            self.receiver.add_credit(room)

    def pause(self) -> None:
        """Take the credit back. What is under way is moved; `is_quiet` tells when that is done."""
        if not self.is_paused:
            self.is_paused = True
            self._pausing = self._loop.create_task(self._pause())

    def turn_back(self) -> None:
        """Take the credit back, and give back what still comes."""
        self._turns_back = True
        self.pause()

    def retire(self) -> None:
        """The same, for good."""
        self._is_retired = True
        self.turn_back()

    async def _pause(self) -> None:
        try:
            await self.receiver.stop(STOP_TIMEOUT)
        except TimedOut as late:
            self.receiver.give_up(late)
        except AmqpError as error:
            logger.debug("The link to %s ended while it was paused: %s", self._queue, type(error).__name__)
        stranded, self._stranded = self._stranded, []
        # Only now, and in order: given back earlier they would have come again at once.
        for move in sorted(stranded, key=lambda move: move.restored.sequence_number):
            self.give_back(move)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is here and nothing comes."""
        return self.is_paused and not self.open and not self.is_pausing

    @property
    def is_pausing(self) -> bool:
        return self._pausing is not None and not self._pausing.done()

    async def close(self, seconds: float) -> None:
        """Detach, waiting at most so long for the answer; what is still open is lost to this link."""
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
        known = self._memory.under_way.get(number)
        if known is not None and known.settlement is None:
            self._adopt(known, delivery, now)
            return
        move = Move(self, self._lane_for(restored.destination), restored, delivery, len(payload), now)
        self.open[delivery.id] = self._memory.under_way[number] = move
        self._book.received(move)
        is_accepted = known is not None and known.settlement is OperationKind.COMPLETE
        if is_accepted or self._memory.has_accepted(number):
            self.complete(move)
        elif self._turns_back or (self._expected and not self._in_turn(number)):
            self.strand(move)
        else:
            move.lane.offer(move)

    def _adopt(self, move: Move, delivery: Delivery, now: float) -> None:
        """The lock of a message that is under way has run out, and it comes again: only its lock is news."""
        assert isinstance(move.held, Delivery)
        assert isinstance(move.source, Intake)
        move.source.open.pop(move.held.id, None)
        move.source, move.held, move.locked_at = self, delivery, now
        self.open[delivery.id] = move
        self._book.received(move)

    def _malformed(self, delivery: Delivery, error: EnvelopeError, now: float) -> None:
        nothing = Restored("", None, None, b"", 0, 0, 0, False)
        move = Move(self, self._lane_for(""), nothing, delivery, len(delivery.payload), now)
        self.open[delivery.id] = move
        self._book.received(move)
        logger.warning("A message in %s cannot be moved: %s", self._queue, error)
        self.dead_letter(move, error.reason, str(error))

    def _in_turn(self, number: int) -> bool:
        """Whether the message is the next of those that were in the queue before; if one is missing, it is locked."""
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
        self._gate.pass_on(move)

    def dead_letter(self, move: Move, reason: str, description: str) -> None:
        move.condemn(reason, description)
        move.lane.decided(move.restored.sequence_number)
        if not self._gate.is_open:
            self._book.condemned(move)
        self._gate.pass_on(move)

    def settle_now(self, move: Move) -> None:
        if move.reason:
            self._settle(move, OperationKind.DEAD_LETTER, dead_letter(move.reason, move.description))
        else:
            self._settle(move, OperationKind.COMPLETE, ACCEPT)

    def defer(self, move: Move) -> None:
        move.lane.deferring += 1
        self._settle(move, OperationKind.DEFER, DEFER)

    def give_back(self, move: Move) -> None:
        move.lane.gave_back(move)
        self._settle(move, OperationKind.ABANDON, RELEASE)

    def strand(self, move: Move) -> None:
        self.turn_back()
        if self.is_pausing:
            move.lane.gave_back(move)
            self._stranded.append(move)
        else:
            self.give_back(move)

    def _settle(self, move: Move, kind: OperationKind, outcome: Any) -> None:
        move.settlement = kind
        assert isinstance(move.held, Delivery)
        try:
            self.receiver.settle(move.held, outcome, move.on_settled)
        except AmqpError as error:
            self.settled(move, error)

    def settled(self, move: Move, error: AmqpError | None) -> None:
        assert isinstance(move.held, Delivery)
        self.open.pop(move.held.id, None)
        now = self.busy_at = self._waiting_since = self._time()
        if self._memory.under_way.get(move.restored.sequence_number) is move:
            del self._memory.under_way[move.restored.sequence_number]
        lane, kind, number = move.lane, move.settlement, move.restored.sequence_number
        assert kind is not None
        self._book.settled(move, kind, error)
        if kind is OperationKind.COMPLETE:
            if error is None:
                lane.tally.moved += 1
                lane.unannounced += 1
                self._memory.completed(number)
            else:
                self._memory.accepted(number)
        elif kind is OperationKind.DEFER:
            lane.deferring -= 1
            if error is None:
                lane.found_aside(number)
            else:
                lane.wait_for(number)  # it may be set aside all the same: what is behind it must not go first
        elif kind is OperationKind.DEAD_LETTER and error is None:
            self._count_dead(move)
        if error is not None:
            logger.info("A message of %s will come again: %s failed: %s", self._queue, kind.name, error)
        else:
            self._connection.has_worked = True
        if kind is not OperationKind.ABANDON:  # to give back is quick, and says nothing about how many can be moved
            self._window.moved(move.size, now)
        self.top_up()

    def _count_dead(self, move: Move) -> None:
        if not move.restored.destination:
            self.malformed += 1
        elif move.reason == EXPIRED:
            move.lane.tally.expired += 1
        else:
            move.lane.tally.poison += 1

    # ---- the clock ----

    def tick(self, now: float, may_ask: bool) -> bool:
        """Count polls, look after a link that says nothing, and ask for more if that was put off.

        Returns whether a poll has ended without a message.
        """
        if self.receiver.error is not None:
            return False
        if self.receiver.idle_seconds < SILENCE:
            self._asked_at = None
        elif self._asked_at is None:
            self._asked_at = now
            self.receiver.ask_for_sign()
        elif now - self._asked_at > SIGN_TIMEOUT:
            self.receiver.give_up(TimedOut(f"'{self._queue}' gave no sign of life within {SIGN_TIMEOUT:g} seconds"))
            return False
        is_waiting = self.receiver.credit > 0 and not self.open and not self.is_paused
        has_waited = is_waiting and now - self._waiting_since >= self._poll
        if has_waited:
            self._waiting_since = now
            # A receive is over and the next one begins: the namespace sees that, too, and can count with us.
            self.receiver.renew_credit()
            self._book.polled()
        if may_ask:
            self.top_up()
        return has_waited
