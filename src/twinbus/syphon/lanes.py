"""The way to one destination: what waits, what is under way, and what was set aside.

A lane lives in one pump. Nothing here waits: it is moved on by deliveries, outcomes and the pump's clock.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from twinbus.ledger.recorder import Outcome
from twinbus.pairing.naming import entity_key, parse_backlog_path

from .bookkeeping import Book, outcome_of
from .destinations import Destinations
from .errors import AmqpError
from .moves import EXPIRED, LOOP, POISON, Move, Numbers
from .report import Tally
from .sender import Sender
from .verdicts import Verdict, verdict_on

logger = logging.getLogger("twinbus.syphon")

# A link that ends says nothing, nor does a connection that is lost. If so many more of them end under what is sent to
# a destination before it has accepted anything, it is down.
MAX_STRAYS = {Verdict.ADRIFT: 1, Verdict.LOST: 2}


@dataclass(frozen=True, slots=True)
class Traffic:
    """What all lanes of a pump share."""

    destinations: Destinations
    book: Book
    loop: asyncio.AbstractEventLoop
    #: At most one message of a session is under way.
    keeps_order: bool
    poison_tries: int
    #: Seconds between two tries of a message that was refused.
    poison_pause: float
    #: Have every lane look again in so many seconds.
    kick_later: Callable[[float], None]


class Lane:
    """What goes to one destination."""

    def __init__(self, path: str, is_allowed: bool, traffic: Traffic) -> None:
        self.path = path
        self.key = entity_key(path)
        self.is_allowed = is_allowed
        self._is_backlog = parse_backlog_path(self.key) is not None
        self.circuit = traffic.destinations.circuit(self.key)
        self.waiting: deque[Move] = deque()
        #: Set aside in the backlog queue, in order.
        self.deferred = Numbers()
        #: Being set aside: the queue has not confirmed it yet.
        self.deferring = 0
        self.is_fetching = False
        self.tally = Tally()
        #: Moved and not yet announced.
        self.unannounced = 0
        self.in_flight = 0
        self._traffic = traffic
        self._pace = traffic.destinations.pace
        self._time = traffic.loop.time
        #: Expected to come from the queue again, each since when.
        self._awaited: dict[int, float] = {}
        #: Where order is kept: came from the queue, and neither sent nor set aside yet.
        self._undecided: set[int] = set()
        self._retrying: dict[Move, asyncio.TimerHandle] = {}
        self._sessions: dict[str, deque[Move]] = {}
        self._strays = 0
        self._last_stray: AmqpError | None = None
        self._is_kicking = False

    # ---- coming in ----

    def offer(self, move: Move) -> None:
        """A message came from the queue. As long as others of this destination are set aside, it is too."""
        number = move.restored.sequence_number
        self._awaited.pop(number, None)
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
            self._line_up(move)

    def take(self, move: Move) -> None:
        """A message was fetched: its turn has come, whatever else is set aside."""
        if self._is_movable(move):
            self._line_up(move)

    def _line_up(self, move: Move) -> None:
        self.waiting.append(move)
        if len(self.waiting) == 1:
            self.kick()

    def _is_movable(self, move: Move) -> bool:
        """Whether a message may go to its destination at all; if not, it becomes a dead letter."""
        if move.restored.expired:
            enqueued = datetime.fromtimestamp(move.restored.enqueued_at_ms / 1000, UTC).isoformat(timespec="seconds")
            move.source.dead_letter(
                move, EXPIRED, f"Its time to live ended in the backlog, where it was since {enqueued}."
            )
            return False
        if self._is_backlog:
            move.source.dead_letter(move, LOOP, f"{self.path} is itself a backlog queue: it would never arrive.")
            return False
        return True

    # ---- what somebody else holds ----

    def wait_for(self, number: int) -> None:
        """A message is in the queue, perhaps locked by a syphon that was killed: nothing newer may be fetched first."""
        self._undecided.discard(number)
        self._awaited[number] = self._time()

    def gave_back(self, move: Move) -> None:
        """A message goes back to the queue and will come again; where order is kept, nothing newer may go first."""
        if self._traffic.keeps_order:
            self.wait_for(move.restored.sequence_number)

    def found_aside(self, number: int) -> None:
        """A message is in the queue, set aside: it need not be waited for any more."""
        self.decided(number)
        self.deferred.add(number)

    def decided(self, number: int) -> None:
        """A message was sent, or is dead: nothing need wait for it any more."""
        self._awaited.pop(number, None)
        self._undecided.discard(number)

    def give_up_waiting(self, since: float) -> None:
        """What did not come although it was waited for since then has been moved by somebody else."""
        self._awaited = {number: at for number, at in self._awaited.items() if at >= since}

    def fetchable(self, count: int) -> list[int]:
        """The first so many numbers to fetch now."""
        numbers = self.deferred.first(count)
        limit = min((*self._awaited, *self._undecided), default=math.inf)
        return [number for number in numbers if number < limit]

    # ---- going out ----

    def kick(self) -> None:
        """Send what waits, as far as credit and pace allow."""
        if self._is_kicking or not self.waiting:
            return
        if self.circuit.is_held:
            self.set_aside()
            return
        destinations = self._traffic.destinations
        link = destinations.link(self.key)
        if link is None:
            if destinations.is_up:
                destinations.want(self.path)
            return
        self._is_kicking = True
        try:
            self._send_waiting(link)
        finally:
            self._is_kicking = False

    def _send_waiting(self, link: Sender) -> None:
        waiting, keeps_order = self.waiting, self._traffic.keeps_order
        while waiting and link.room > 0:
            if keeps_order and self._stands_behind(waiting[0]):
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

    def _stands_behind(self, move: Move) -> bool:
        """Whether another message of the session is under way; then this one, the first that waits, lines up."""
        session = move.restored.session
        if session is None or move.leads:
            return False
        queue = self._sessions.get(session)
        if queue is None:
            self._sessions[session] = deque()
            move.leads = True
            return False
        queue.append(self.waiting.popleft())
        return True

    def _end_turn(self, move: Move) -> None:
        """The next message of the session may go."""
        if not move.leads:
            return
        move.leads = False
        session = move.restored.session
        assert session is not None
        queue = self._sessions.get(session)
        if queue:
            follower = queue.popleft()
            follower.leads = True
            self.waiting.appendleft(follower)
        else:
            self._sessions.pop(session, None)

    # ---- outcomes ----

    def on_sent(self, move: Move, error: AmqpError | None) -> None:
        """The destination has said what became of a message, or will not."""
        self.in_flight -= 1
        now = self._time()
        self._traffic.book.sent(move, error, now - move.sent_at)
        if error is None:
            if self.circuit.is_open:
                logger.info("%s accepts messages again", self.path)
            self.circuit.worked()
            self._strays = 0
            self._traffic.destinations.accepted()
            self._end_turn(move)
            move.source.complete(move)
        else:
            move.sent_at = 0.0
            self._not_sent(move, error, now)
        if self.waiting:
            self.kick()

    def _not_sent(self, move: Move, error: AmqpError, now: float) -> None:
        verdict = verdict_on(error)
        if verdict in MAX_STRAYS:
            if error is not self._last_stray:
                self._last_stray = error
                self._strays += 1
            is_down = self.circuit.is_open and verdict is Verdict.LOST  # the try that was to decide
            if is_down or self._strays > MAX_STRAYS[verdict]:
                verdict = Verdict.DOWN
        if verdict is Verdict.BUSY:
            self._pace.busy(now)
            self._requeue(move)
        elif verdict is Verdict.ADRIFT:
            self._requeue(move)
        elif verdict is Verdict.LOST:
            self.circuit.undecided(now)
            self._end_turn(move)
            move.source.strand(move)
        elif verdict is Verdict.DOWN:
            self._down(move, error, now)
        else:
            self._refused(move, error, verdict is Verdict.HOPELESS)

    def _requeue(self, move: Move) -> None:
        """Put a message back to where it stood."""
        number, at = move.restored.sequence_number, 0
        for other in self.waiting:
            if other.restored.sequence_number > number:
                break
            at += 1
        self.waiting.insert(at, move)

    def _down(self, move: Move, error: AmqpError, now: float) -> None:
        if not self.circuit.is_open:
            logger.warning("%s does not accept messages, they are set aside: %s", self.path, error)
        is_silent = outcome_of(error) is Outcome.UNKNOWN
        self.circuit.failed(now, lost_connection=verdict_on(error) is Verdict.LOST, is_silent=is_silent)
        self._strays = 0
        self.set_aside(move)

    def _refused(self, move: Move, error: AmqpError, is_hopeless: bool) -> None:
        self.circuit.worked()  # whoever refuses a message is there
        move.refusals += 1
        if is_hopeless or move.refusals >= self._traffic.poison_tries:
            self._end_turn(move)
            times = "for good" if is_hopeless else f"{move.refusals} times"
            move.source.dead_letter(move, POISON, f"{self.path} refused it {times}: {error}")
        else:
            pause = self._traffic.poison_pause
            self._retrying[move] = self._traffic.loop.call_later(pause, self._try_again, move)

    def _try_again(self, move: Move) -> None:
        del self._retrying[move]
        self._requeue(move)
        self.kick()

    # ---- setting aside ----

    def set_aside(self, *failed: Move) -> None:
        """Defer these messages and everything else that was not sent yet."""
        moves = self.withdraw()
        for move in failed:
            self._end_turn(move)
        for move in sorted([*failed, *moves], key=_number):
            move.source.defer(move)

    def withdraw(self, wanted: Callable[[Move], bool] = lambda move: True) -> list[Move]:
        """Take out what was not sent yet, all or what is wanted, in order. Whoever calls sees to it."""
        taken = {move for move in self._unsent() if wanted(move)}
        if not taken:
            return []
        self.waiting = deque(move for move in self.waiting if move not in taken)
        for move in taken & self._retrying.keys():
            self._retrying.pop(move).cancel()
        for session, queue in self._sessions.items():
            self._sessions[session] = deque(move for move in queue if move not in taken)
        in_order = sorted(taken, key=_number)
        for move in in_order:
            self._end_turn(move)
        if not self.in_flight:
            self.circuit.undecided(self._time())
        return in_order

    def _unsent(self) -> list[Move]:
        return [*self.waiting, *self._retrying, *(move for queue in self._sessions.values() for move in queue)]


def _number(move: Move) -> int:
    return move.restored.sequence_number
