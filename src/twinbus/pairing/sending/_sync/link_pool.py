# Generated from pairing/sending/_async/link_pool.py by `make generate`: change it there.
"""Pools the links of one sender to one entity or backlog queue.

    with pool.link(budget) as link:
        link.call(link.sender.send_messages, message, seconds=10)

A link serves one call at a time. Callers that find no free link wait in order: a released link goes to the first of
them, so no caller can take it again before the others. The pool opens links itself, not on behalf of a caller: when a
caller times out, the opening serves the next. The most recently used link is taken first, so that the others become
idle and are closed.

State, guarded by the lock of `Connections`: `_idle`, `_busy`, `_opening`, `_queued`, `_waiting`, `_waiting_for_fresh`,
`_answered_at`, `_opened_at`, `_timed_out_at`, `_turn_came_at`, `_is_starved`, `_epoch`, `_grows_at`,
`_growth_pause`, `_abandoned`, `_is_closed`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from azure.servicebus import ServiceBusSender
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from ...failover.error_classification import Cause, cause_of, explained
from ...pairing_errors import AttemptTimeoutError, HungCallsError, NoFreeLinkError
from ...pairing_state import Attempt
from ..call_budget import Budget
from ..connection_slots import Connections
from .link import CLOSING, Link
from .synchronization import Tasks, Waiter

#: Links of one pool that may open at the same time.
MAX_OPENING = 4
#: Close links that were idle for this many seconds, except one.
IDLE_SECONDS = 60.0
#: Shortest and longest pause in growth after a link failed to open while others work.
GROWTH_PAUSE, LONGEST_GROWTH_PAUSE = 1.0, 30.0

# Errors after which the SDK keeps its connection, and the entity has answered.
_REFUSALS = (ServiceBusQuotaExceededError, ServiceBusServerBusyError)
# Causes after which it keeps its connection, too. Errors of other libraries are raised before it is used.
_KEEPS_LINK = (MessageSizeExceededError, *_REFUSALS)


class ReroutedError(Exception):
    """The route changed while a caller waited for a link: nothing was sent."""


class OpeningError(Exception):
    """No link could be opened, which the pairing already knows; `error` says why."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class SilentError(Exception):
    """The caller's share of time is over and the entity never answered: nothing was sent."""


class PoolTarget(Protocol):
    """Reports to the pairing about the entity or backlog queue that a pool connects to."""

    def openings_at_once(self, live: int) -> int:
        """Return how many links may open at the same time while `live` links work."""

    def begin(self, *, is_opening: bool = False) -> Attempt:
        """Begin a call, or to open a link."""

    def opened(self) -> None:
        """Record that a link was opened."""

    def failed(self, error: Exception, attempt: Attempt, *, is_conclusive: bool) -> None:
        """Record that a link failed to open."""


class LinkPool:
    """Up to `max_links` links to one entity or queue; `make` creates an SDK sender."""

    def __init__(
        self,
        make: Callable[[], ServiceBusSender],
        path: str,
        target: PoolTarget,
        connections: Connections,
        *,
        max_links: int,
        attempt_timeout: float,
        clock: Callable[[], float],
        share: Callable[[Budget], float],
    ) -> None:
        self.path = path
        #: The largest batch and single message in bytes; 0 until a link was open.
        self.max_batch_size = self.max_message_size = 0
        self._make = make
        self._target = target
        self._connections = connections
        self._lock = connections.lock
        self._max_links = max_links
        self._attempt_timeout = attempt_timeout
        self._clock = clock
        # How long a caller waits before it checks whether waiting still makes sense.
        self._share = share
        self._openings = Tasks()
        self._closings = Tasks()
        self._idle: list[Link] = []
        # Ordered, so that a simulated run can be replayed.
        self._busy: dict[Link, None] = {}
        self._opening: dict[Link, None] = {}
        self._queued = 0
        self._waiting: deque[_Caller] = deque()
        self._waiting_for_fresh: deque[_Caller] = deque()
        self._answered_at = self._opened_at = self._timed_out_at = self._turn_came_at = -math.inf
        # Whether it has no link because no connection was left for one.
        self._is_starved = False
        self._epoch = 0
        self._grows_at = -math.inf
        self._growth_pause = GROWTH_PAUSE
        self._abandoned: list[Link] = []
        self._is_closed = False
        connections.join(self)

    def link(self, budget: Budget, *, fresh: bool = False) -> Lease:
        """Borrow a link for a `with` block; with `fresh` one that was never used."""
        return Lease(self, budget, fresh)

    def acquire(self, budget: Budget, fresh: bool = False) -> Link:
        """Take a link; give it back with `release`.

        Raises:
            NoFreeLinkError: the links were in use for all of the caller's time; nothing was tried.
            SilentError: the caller's share is over, and nothing was heard from the entity meanwhile.
            ReroutedError: the route has changed.
            OpeningError: no link could be opened.
            ValueError: the sender was closed.
        """
        with self._lock:
            self._check_open()
            if self._idle and not fresh:
                link = self._idle.pop()
                self._busy[link] = None
                return link
            self._bind()
            caller = _Caller(self._clock())
            (self._waiting_for_fresh if fresh else self._waiting).append(caller)
            self._grow()
        try:
            return self._wait(caller, budget)
        except BaseException:
            self._leave(caller)
            raise

    def _wait(self, caller: _Caller, budget: Budget) -> Link:
        share, since = self._share(budget), caller.since
        while True:
            try:
                return caller.wait(share)
            except TimeoutError:
                with self._lock:
                    if caller.is_done:
                        continue
                    is_alive = self._is_alive_since(since)
                    is_in_use = bool(self._busy)
                since, share = self._clock(), budget.rest()
                if share <= 0:
                    raise NoFreeLinkError(self.path, self._max_links, since - caller.since, is_in_use) from None
                if not is_alive:
                    raise SilentError from None

    def _is_alive_since(self, since: float) -> bool:
        """Return whether waiting makes sense: a link was answered, or an opening is queued behind other entities'."""
        is_queued = self._queued > 0 and self._queued == len(self._opening) and not self._busy
        if (is_queued or self._is_starved) and self._connections.answered_at >= since:
            return True
        # A link that opens promises an answer, unless calls get none.
        is_opened = self._opened_at >= since > self._timed_out_at
        return is_opened or max(self._answered_at, self._turn_came_at) >= since

    def _leave(self, caller: _Caller) -> None:
        with self._lock:
            for line in (self._waiting, self._waiting_for_fresh):
                if caller in line:
                    line.remove(caller)
            if not self._waiting and not self._waiting_for_fresh:
                self._is_starved = False
                self._connections.give_up_place(self)
            link = caller.abandon()
            if link is not None and link in self._busy:
                self._hand_on(link)

    def release(self, link: Link, error: BaseException | None = None) -> None:
        """Give a link back after a call; discard it if the error may have broken it."""
        is_good = error is None or (
            isinstance(error, _KEEPS_LINK)
            or (isinstance(error, Exception) and not isinstance(error, (ServiceBusError, OSError)))
        )
        with self._lock:
            if link not in self._busy:
                return  # the pool was closed
            if isinstance(error, AttemptTimeoutError):
                self._timed_out_at = self._clock()
            if is_good and link.epoch == self._epoch:
                if error is None or isinstance(error, _REFUSALS):
                    link.is_fresh = False
                    self._answered_at = self._connections.answered_at = self._clock()
                self._hand_on(link)
            else:
                self._busy.pop(link, None)
                self._throw_away(link, cut=not is_good)
                self._grow()

    def _hand_on(self, link: Link) -> None:
        """Hand a link that is in use to the first waiting caller, or keep it for the next."""
        starved_since = self._connections.starved_since()
        while self._waiting and self._waiting[0].since <= starved_since:
            if self._waiting.popleft().give(link):
                return
        self._busy.pop(link, None)
        # A caller that needs a fresh link needs room for it.
        is_full = bool(self._waiting_for_fresh) and len(self._idle) + len(self._busy) + 1 >= self._max_links
        if starved_since < math.inf or is_full or link.epoch != self._epoch:
            self._throw_away(link, cut=False)
            self._grow()
        else:
            link.idle_since = self._clock()
            link.is_fresh = False  # it may be stale by the time it is used
            self._idle.append(link)

    def warm_up(self) -> None:
        """Open a link unless there is one, so that the next caller need not wait. Call it where callers run."""
        with self._lock:
            if not self._is_closed and not self._idle and not self._busy and not self._opening:
                self._bind()
                self._open_one()

    def _bind(self) -> None:
        self._openings.bind()
        self._closings.bind()

    @property
    def is_measured(self) -> bool:
        """Whether the entity has reported its limits."""
        return self.max_batch_size > 0

    def grow(self) -> None:
        """Open the links that are needed; a connection may be free now."""
        with self._lock:
            if not self._is_closed:
                self._grow()

    def _grow(self) -> None:
        while len(self._opening) < self._wanted() and self._open_one():
            pass

    def _wanted(self) -> int:
        """Return how many links should be opening."""
        callers = len(self._waiting_for_fresh) + len(self._waiting)
        live = len(self._idle) + len(self._busy)
        if live and self._clock() < self._grows_at and not self._waiting_for_fresh:
            return 0
        return min(callers, self._max_links - live, self._target.openings_at_once(live))

    def _open_one(self) -> bool:
        self._abandoned = [link for link in self._abandoned if link.is_hung]
        if len(self._abandoned) >= self._max_links:
            if not self._idle and not self._busy:
                self._fail_all(OpeningError(HungCallsError(self.path, len(self._abandoned))))
            return False
        is_first = not (self._idle or self._busy or self._opening)
        if not self._connections.reserve(self, self._clock(), is_first=is_first):
            self._is_starved = is_first
            return False
        if self._is_starved:
            self._is_starved, self._turn_came_at = False, self._clock()
        try:
            link = Link(self._make(), self.path)
        except Exception as error:  # the client was closed or has faulted
            self._connections.release()
            self._fail_all(error)
            return False
        link.epoch = self._epoch
        self._opening[link] = None
        self._queued += 1
        self._openings.start(self._open, link, is_first)
        return True

    def _open(self, link: Link, is_first: bool) -> None:
        turn: Waiter[None] = Waiter()
        try:
            if not self._connections.ask_to_open(turn, is_first=is_first):
                turn.wait()
                self._turn_came_at = self._clock()
        except BaseException:
            self._connections.opened(turn)
            self._opening_ended(link)
            raise
        finally:
            with self._lock:
                self._queued -= 1
        attempt = self._target.begin(is_opening=True)
        try:
            link.open(self._attempt_timeout)
        except Exception as error:
            self._connections.opened(turn)
            namespace = link.sender.fully_qualified_namespace
            self._opening_failed(link, explained(error, self.path, namespace), attempt)
        except BaseException:
            self._connections.opened(turn)
            self._opening_ended(link)
            raise
        else:
            self._connections.opened(turn)
            self._opened(link)

    def _opened(self, link: Link) -> None:
        with self._lock:
            if self._is_closed or link.epoch != self._epoch:
                self._opening_ended(link)
                return
            self._opening.pop(link, None)
            self.max_batch_size, self.max_message_size = link.max_batch_size, link.max_message_size
            self._opened_at = self._connections.answered_at = self._clock()
            self._growth_pause = GROWTH_PAUSE
            self._busy[link] = None
            while self._waiting_for_fresh:
                if self._waiting_for_fresh.popleft().give(link):
                    break
            else:
                self._hand_on(link)
            self._grow()
        self._target.opened()

    def _opening_failed(self, link: Link, error: Exception, attempt: Attempt) -> None:
        is_current = link.epoch == self._epoch
        if is_current and not self._is_closed:
            # Refused at once, while calls on other links still wait for an answer: those results decide.
            is_conclusive = not self._busy or isinstance(error, AttemptTimeoutError)
            self._target.failed(error, attempt, is_conclusive=is_conclusive)
        with self._lock:
            self._opening_ended(link, grow=False)
            if self._is_closed:
                return
            if not is_current or link.epoch != self._epoch:
                self._grow()
                return
            while self._waiting_for_fresh:
                self._waiting_for_fresh.popleft().fail(OpeningError(error))
            if self._idle or self._busy:
                self._grows_at = self._clock() + self._growth_pause
                self._growth_pause = min(2 * self._growth_pause, LONGEST_GROWTH_PAUSE)
            elif not self._opening or cause_of(error) is not Cause.UNAVAILABLE:
                # The refusal holds for all callers: fail them now instead of after another opening.
                self._fail_all(OpeningError(error))

    def _opening_ended(self, link: Link, grow: bool = True) -> None:
        """Undo an opening that produced no link."""
        with self._lock:
            if link not in self._opening:
                return  # the pool was closed
            self._opening.pop(link, None)
            self._throw_away(link)
            if grow:
                self._grow()

    def _throw_away(self, link: Link, *, cut: bool = True) -> None:
        """Close a link in the background."""
        if cut:
            link.cut()
        if link.is_hung:
            self._abandoned.append(link)
        self._connections.release()
        self._closings.start(link.close)

    def _fail_all(self, error: Exception) -> None:
        for line in (self._waiting_for_fresh, self._waiting):
            while line:
                line.popleft().fail(error)

    def route_changed(self) -> None:
        """Discard all links after a failover or recovery, and make callers look again."""
        with self._lock:
            self._epoch += 1
            self._fail_all(ReroutedError())
            while self._idle:
                self._throw_away(self._idle.pop(), cut=False)

    def idle_since(self) -> float | None:
        """Return since when the least recently used idle link is idle; None if there is none."""
        return self._idle[0].idle_since if self._idle else None

    def evict(self) -> None:
        """Close the least recently used idle link."""
        with self._lock:
            self._throw_away(self._idle.pop(0), cut=False)

    def close_idle(self, now: float) -> None:
        """Close the links that were idle for a while, except one."""
        with self._lock:
            while self._idle and len(self._idle) + len(self._busy) > 1:
                if now - self._idle[0].idle_since <= IDLE_SECONDS:
                    break
                self._throw_away(self._idle.pop(0), cut=False)

    def close(self) -> None:
        """Close all links in parallel, within a few seconds. Running calls fail."""
        with self._lock:
            self._is_closed = True
            self._connections.leave(self)
            self._fail_all(ValueError("The sender was closed."))
            while self._idle:
                self._throw_away(self._idle.pop(), cut=False)
            for links in (self._busy, self._opening):
                while links:
                    self._throw_away(links.popitem()[0])
        self._openings.cancel()
        ends = self._clock() + CLOSING
        self._closings.close(CLOSING)
        self._openings.close(max(0.0, ends - self._clock()))

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValueError("The sender was closed. Get a new one from the client.")


class _Caller(Waiter[Link]):
    """A caller that waits for a link."""

    def __init__(self, since: float) -> None:
        super().__init__()
        self.since = since


class Lease:
    """The use of a link by one call."""

    __slots__ = ("_budget", "_fresh", "_link", "_pool")

    def __init__(self, pool: LinkPool, budget: Budget, fresh: bool) -> None:
        self._pool = pool
        self._budget = budget
        self._fresh = fresh

    def __enter__(self) -> Link:
        self._link = self._pool.acquire(self._budget, self._fresh)
        return self._link

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._pool.release(self._link, error)
