"""Queues, sends and defers the messages of one pump for one destination.

A lane never waits: deliveries, outcomes and the pump's clock drive it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from twinbus.amqp.client.errors import AmqpError
from twinbus.amqp.client.sender import Sender
from twinbus.ledger.recorder import Outcome
from twinbus.servicebus.entity_paths import entity_key, parse_backlog_path

from ..drain_report import Tally
from ..settlement.bookkeeping import OperationLog, outcome_of
from ..settlement.moves import EXPIRED, LOOP, POISON, Move, SequenceNumbers
from .destinations import Destinations
from .send_failures import SendFailure, classify

logger = logging.getLogger("twinbus.syphon")

# An ended link or a lost connection says nothing about a destination. When more than this many end while it has not
# accepted anything, it counts as down.
MAX_UNCLEAR_FAILURES = {SendFailure.LINK_ENDED: 1, SendFailure.CONNECTION_LOST: 2}


@dataclass(frozen=True, slots=True)
class Traffic:
    """What all lanes of a pump share."""

    destinations: Destinations
    operations: OperationLog
    loop: asyncio.AbstractEventLoop
    #: Whether at most one message of a session is in flight.
    keeps_order: bool
    poison_tries: int
    #: Seconds between two attempts of a refused message.
    poison_pause: float
    #: Kick all lanes in this many seconds.
    kick_later: Callable[[float], None]


class Lane:
    """The messages for one destination."""

    def __init__(self, path: str, is_allowed: bool, traffic: Traffic) -> None:
        self.path = path
        self.key = entity_key(path)
        self.is_allowed = is_allowed
        self._is_backlog = parse_backlog_path(self.key) is not None
        self.circuit = traffic.destinations.circuit(self.key)
        self.waiting: deque[Move] = deque()
        #: Deferred in the backlog queue, in order.
        self.deferred = SequenceNumbers()
        #: How many are being deferred: the queue has not confirmed it yet.
        self.deferring = 0
        self.is_fetching = False
        self.tally = Tally()
        #: Moved, but not published as an event yet.
        self.unannounced = 0
        self.in_flight = 0
        self._traffic = traffic
        self._pace = traffic.destinations.pace
        self._time = traffic.loop.time
        #: Expected to arrive from the queue again, by number, with the time since when.
        self._expected: dict[int, float] = {}
        #: With order kept: received, and neither sent nor deferred yet.
        self._undecided: set[int] = set()
        self._retrying: dict[Move, asyncio.TimerHandle] = {}
        self._sessions: dict[str, deque[Move]] = {}
        self._unclear_failures = 0
        self._last_unclear_failure: AmqpError | None = None
        self._is_kicking = False

    # ---- receiving ----

    def offer(self, move: Move) -> None:
        """Take a message from the queue. It is deferred while others of its destination are."""
        number = move.restored.sequence_number
        self._expected.pop(number, None)
        if not self._is_movable(move):
            return
        if self._traffic.keeps_order:
            self._undecided.add(number)
        if (
            not self.is_allowed
            or self.deferred
            or self.deferring
            or self.is_fetching
            or not self._traffic.destinations.may_try(self.path)
        ):
            move.source.defer(move)
        else:
            self._enqueue(move)

    def accept_fetched(self, move: Move) -> None:
        """Take a fetched message: it is next, whatever else is deferred."""
        if self._is_movable(move):
            self._enqueue(move)

    def _enqueue(self, move: Move) -> None:
        self.waiting.append(move)
        if len(self.waiting) == 1:
            self.kick()

    def _is_movable(self, move: Move) -> bool:
        """Whether a message can go to its destination. If not, it is dead-lettered."""
        if move.restored.expired:
            enqueued = datetime.fromtimestamp(move.restored.enqueued_at_ms / 1000, UTC).isoformat(timespec="seconds")
            move.source.dead_letter(
                move, EXPIRED, f"Its time to live ended in the backlog, where it had been since {enqueued}."
            )
            return False
        if self._is_backlog:
            move.source.dead_letter(
                move, LOOP, f"{self.path} is itself a backlog queue, so the message would never arrive."
            )
            return False
        return True

    # ---- messages that are expected again ----

    def expect(self, number: int) -> None:
        """A message is in the queue, perhaps locked by a killed syphon: nothing newer may be fetched first."""
        self._undecided.discard(number)
        self._expected[number] = self._time()

    def abandoned(self, move: Move) -> None:
        """A message was abandoned and will come again. With order kept, nothing newer may go first."""
        if self._traffic.keeps_order:
            self.expect(move.restored.sequence_number)

    def found_deferred(self, number: int) -> None:
        """A message is deferred in the queue: stop expecting it."""
        self.decided(number)
        self.deferred.add(number)

    def decided(self, number: int) -> None:
        """A message was sent or dead-lettered: nothing waits for it."""
        self._expected.pop(number, None)
        self._undecided.discard(number)

    def stop_expecting(self, since: float) -> None:
        """Stop expecting messages since before `since`: another client has moved them."""
        self._expected = {number: at for number, at in self._expected.items() if at >= since}

    def fetchable(self, count: int) -> list[int]:
        """Up to `count` sequence numbers to fetch now, first ones first."""
        numbers = self.deferred.first(count)
        limit = min((*self._expected, *self._undecided), default=math.inf)
        return [number for number in numbers if number < limit]

    # ---- sending ----

    def kick(self) -> None:
        """Send waiting messages as far as credit and pace allow."""
        if self._is_kicking or not self.waiting:
            return
        if self.circuit.is_held:
            self.defer_all()
            return
        destinations = self._traffic.destinations
        link = destinations.link(self.key)
        if link is None:
            if destinations.is_up:
                destinations.request_link(self.path)
            return
        self._is_kicking = True
        try:
            self._send_waiting(link)
        finally:
            self._is_kicking = False

    def _send_waiting(self, link: Sender) -> None:
        waiting, keeps_order = self.waiting, self._traffic.keeps_order
        while waiting and link.available > 0:
            if keeps_order and self._must_wait_for_session(waiting[0]):
                continue
            now = self._time()
            pause = self._pace.delay(now)
            if pause > 0:
                self._traffic.kick_later(pause)
                return
            move = waiting.popleft()
            move.attempts += 1
            move.sent_at = now
            self.in_flight += 1
            try:
                link.send(move.restored.payload, move.on_sent)
            except AmqpError as error:
                self.on_sent(move, error)

    def _must_wait_for_session(self, move: Move) -> bool:
        """Whether another message of its session is in flight. If so, move it to the session's queue."""
        session = move.restored.session
        if session is None or move.is_session_head:
            return False
        queue = self._sessions.get(session)
        if queue is None:
            self._sessions[session] = deque()
            move.is_session_head = True
            return False
        queue.append(self.waiting.popleft())
        return True

    def _end_session_turn(self, move: Move) -> None:
        """Let the next message of the session go."""
        if not move.is_session_head:
            return
        move.is_session_head = False
        session = move.restored.session
        assert session is not None
        queue = self._sessions.get(session)
        if queue:
            follower = queue.popleft()
            follower.is_session_head = True
            self.waiting.appendleft(follower)
        else:
            self._sessions.pop(session, None)

    # ---- outcomes ----

    def on_sent(self, move: Move, error: AmqpError | None) -> None:
        """Handle the outcome of a send."""
        self.in_flight -= 1
        now = self._time()
        self._traffic.operations.sent(move, error, now - move.sent_at)
        if error is None:
            if self.circuit.is_open:
                logger.info("Destination %s accepts messages again", self.path)
            self.circuit.worked()
            self._unclear_failures = 0
            self._traffic.destinations.accepted()
            self._end_session_turn(move)
            move.source.complete(move)
        else:
            move.sent_at = 0.0
            self._not_sent(move, error, now)
        if self.waiting:
            self.kick()

    def _not_sent(self, move: Move, error: AmqpError, now: float) -> None:
        failure = classify(error)
        if failure in MAX_UNCLEAR_FAILURES:
            if error is not self._last_unclear_failure:
                self._last_unclear_failure = error
                self._unclear_failures += 1
            is_failed_probe = self.circuit.is_open and failure is SendFailure.CONNECTION_LOST
            if is_failed_probe or self._unclear_failures > MAX_UNCLEAR_FAILURES[failure]:
                failure = SendFailure.DOWN
        if failure is SendFailure.BUSY:
            self._pace.busy(now)
            self._requeue(move)
        elif failure is SendFailure.LINK_ENDED:
            self._requeue(move)
        elif failure is SendFailure.CONNECTION_LOST:
            self.circuit.undecided(now)
            self._end_session_turn(move)
            move.source.stop_and_abandon(move)
        elif failure is SendFailure.DOWN:
            self._down(move, error, now)
        else:
            self._refused(move, error, failure is SendFailure.UNACCEPTABLE)

    def _requeue(self, move: Move) -> None:
        """Put a message back in its place in the order."""
        number, position = move.restored.sequence_number, 0
        for other in self.waiting:
            if other.restored.sequence_number > number:
                break
            position += 1
        self.waiting.insert(position, move)

    def _down(self, move: Move, error: AmqpError, now: float) -> None:
        if not self.circuit.is_open:
            logger.warning("Destination %s does not accept messages, deferring them: %s", self.path, error)
        is_silent = outcome_of(error) is Outcome.UNKNOWN
        self.circuit.failed(now, lost_connection=classify(error) is SendFailure.CONNECTION_LOST, is_silent=is_silent)
        self._unclear_failures = 0
        self.defer_all(move)

    def _refused(self, move: Move, error: AmqpError, is_final: bool) -> None:
        self.circuit.worked()  # a destination that refuses a message is up
        move.refusals += 1
        if is_final or move.refusals >= self._traffic.poison_tries:
            self._end_session_turn(move)
            how_often = "for good" if is_final else f"{move.refusals} times"
            move.source.dead_letter(move, POISON, f"{self.path} refused it {how_often}: {error}")
        else:
            pause = self._traffic.poison_pause
            self._retrying[move] = self._traffic.loop.call_later(pause, self._try_again, move)

    def _try_again(self, move: Move) -> None:
        del self._retrying[move]
        self._requeue(move)
        self.kick()

    # ---- deferring ----

    def defer_all(self, *failed: Move) -> None:
        """Defer these messages and everything else that is not sent yet."""
        moves = self.withdraw()
        for move in failed:
            self._end_session_turn(move)
        for move in sorted([*failed, *moves], key=_number):
            move.source.defer(move)

    def withdraw(self, condition: Callable[[Move], bool] = lambda move: True) -> list[Move]:
        """Remove the unsent messages that match, in order. The caller must settle them."""
        taken = {move for move in self._unsent() if condition(move)}
        if not taken:
            return []
        self.waiting = deque(move for move in self.waiting if move not in taken)
        for move in taken & self._retrying.keys():
            self._retrying.pop(move).cancel()
        for session, queue in self._sessions.items():
            self._sessions[session] = deque(move for move in queue if move not in taken)
        in_order = sorted(taken, key=_number)
        for move in in_order:
            self._end_session_turn(move)
        if not self.in_flight:
            self.circuit.undecided(self._time())
        return in_order

    def _unsent(self) -> list[Move]:
        return [*self.waiting, *self._retrying, *(move for queue in self._sessions.values() for move in queue)]


def _number(move: Move) -> int:
    return move.restored.sequence_number
