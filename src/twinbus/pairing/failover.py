"""When the sends to an entity leave the primary, and when they come back.

    Healthy ──failure──► Suspect ──interval over──► FailedOver ──ping──► Healthy, on probation
       ▲                    │                            ▲                          │
       └──────success───────┘                            └──────────failure─────────┘

One machine for each entity and pairing, used by all senders of that entity. Pure: every method is told the time (in
seconds of a clock that never goes back) and answers at once. Not thread-safe: the caller holds a lock.

The background calls `tick` at `next_time`, so that the interval ends by the clock and not by the next send, and then
starts a ping if `ping_due` says so, or a probe if `probe_due` does. The result of an attempt comes with the epoch in
which it began: the epoch changes with every change of route, and a failure from before the change says nothing about
after. `evidence.py` decides which failures count.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from .evidence import Evidence

#: The longest time between two pings, however often an entity has relapsed.
MAX_PING_INTERVAL = 30 * 60.0


class Route(Enum):
    """Where the next message goes."""

    PRIMARY = "primary"
    BACKLOG = "backlog"


class Transition(Enum):
    """What has just changed, for events and logs."""

    SUSPECTED = "suspected"
    CLEARED = "cleared"
    FAILED_OVER = "failed over"
    RECOVERED = "recovered"


class Routing(NamedTuple):
    """A route, and the epoch to hand back with the result of the attempt."""

    route: Route
    epoch: int


@dataclass(frozen=True, slots=True)
class Healthy:
    """Sends go to the primary. On probation, one failure is enough to go back to failover."""

    probation_until: float | None = None


@dataclass(frozen=True, slots=True)
class Suspect:
    """A send has failed and none has succeeded since; sends still try the primary first."""

    since: float


@dataclass(frozen=True, slots=True)
class FailedOver:
    """Sends go to the backlog, and only pings to the primary. Forced by hand there are none of these either."""

    since: float
    next_ping: float
    is_forced: bool = False
    is_pinging: bool = False


State = Healthy | Suspect | FailedOver


class FailoverMachine:
    """The failover of one entity; times are in seconds."""

    def __init__(self, failover_interval: float, ping_primary_interval: float, attempt_timeout: float = 10.0) -> None:
        self.failover_interval = failover_interval
        self.ping_primary_interval = ping_primary_interval
        #: The ping interval in use: longer than the option's after a relapse.
        self.ping_interval = ping_primary_interval
        self.epoch = 0
        #: As of the last call; the clock may have gone on since.
        self.state: State = Healthy()
        self.evidence = Evidence(attempt_timeout)

    # ---- questions, which change nothing ----

    def route(self, now: float) -> Routing:
        """Where a send that begins now goes: by the clock, also if nobody has called `tick` in time."""
        state = self.state
        over = isinstance(state, FailedOver) or (isinstance(state, Suspect) and now >= self._ends(state))
        return Routing(Route.BACKLOG if over else Route.PRIMARY, self.epoch)

    def next_time(self) -> float | None:
        """When to call `tick` and ask `ping_due` next; None while nothing is going to happen by the clock alone."""
        match self.state:
            case Suspect() as suspect:
                return self._ends(suspect)
            case FailedOver(next_ping=at, is_forced=False, is_pinging=False):
                return at
            case Healthy():
                return self.evidence.probe_at()
        return None

    def probe_due(self, now: float) -> bool:
        """Whether a probe should be made now. Call `tick` first."""
        at = self.evidence.probe_at()
        return isinstance(self.state, Healthy) and at is not None and now >= at

    def ping_due(self, now: float) -> bool:
        """Whether a ping should be sent now. Call `tick` first."""
        match self.state:
            case FailedOver(next_ping=at, is_forced=False, is_pinging=False):
                return now >= at
        return False

    def is_on_probation(self, now: float) -> bool:
        state = self.state
        return isinstance(state, Healthy) and state.probation_until is not None and now < state.probation_until

    # ---- what happened ----

    def tick(self, now: float) -> list[Transition]:
        """Let the clock run until now."""
        state = self.state
        if isinstance(state, Suspect) and now >= self._ends(state):
            # As of the end of the interval, however late the call: the first ping is due since then.
            return self._fail_over(self._ends(state))
        if isinstance(state, Healthy) and state.probation_until is not None and now >= state.probation_until:
            self.state = Healthy()
            self.ping_interval = self.ping_primary_interval
        return []

    def sent_ok(self, now: float) -> list[Transition]:
        """A send to the primary was accepted. It ends the suspicion whenever it began: the entity has answered now.

        It does not end a failover; only a ping does.
        """
        self.evidence.answered(now)
        transitions = self.tick(now)
        if isinstance(self.state, Suspect):
            self.state = Healthy()
            return [Transition.CLEARED]
        return transitions

    def sent_failed(self, now: float, epoch: int, began: float | None = None) -> list[Transition]:
        """A conclusive attempt on the primary that began at `began` has failed in a way that counts."""
        transitions = self.tick(now)
        if epoch != self.epoch or not self.evidence.convicts(now if began is None else began):
            return transitions
        return transitions + self._suspect(now, since=now)

    def _suspect(self, now: float, since: float) -> list[Transition]:
        if not isinstance(self.state, Healthy):
            return []
        if self.is_on_probation(now):
            # The ping gets through and sends do not: ask less often, and not at once, or it would go on like this.
            self.ping_interval = min(2 * self.ping_interval, MAX_PING_INTERVAL)
            return self._fail_over(now, first_ping=now + self.ping_interval)
        if self.failover_interval == 0:
            return self._fail_over(now)
        self.state = Suspect(since)
        return [Transition.SUSPECTED, *self.tick(now)]

    def sent_unclear(self, now: float, epoch: int, began: float) -> bool:
        """An attempt that began at `began` was cut short; true if a silence begins with it."""
        return epoch == self.epoch and isinstance(self.state, Healthy) and self.evidence.unclear(began)

    def probe_started(self, now: float) -> int:
        """A due probe is under way, and no other will be due before its result; returns the epoch for that.

        Raises:
            RuntimeError: none was due.
        """
        if not self.probe_due(now):
            raise RuntimeError("no probe is due")
        self.evidence.probe_started()
        return self.epoch

    def probe_ok(self, now: float, epoch: int) -> None:
        """A probe has opened a link: the silence is over."""
        if epoch == self.epoch:
            self.evidence.answered(now)
            self.evidence.probe_ended(now)

    def probe_failed(self, now: float, epoch: int, is_conclusive: bool = True) -> list[Transition]:
        """A probe has failed. If that is conclusive it counts from the beginning of the silence."""
        transitions = self.tick(now)
        if epoch != self.epoch:
            return transitions
        silent_since = self.evidence.probe_ended(now)
        if silent_since is None or not is_conclusive:
            return transitions
        return transitions + self._suspect(now, since=silent_since)

    def ping_started(self, now: float) -> int:
        """A due ping is under way, and no other will be due before its result; returns the epoch for that.

        Raises:
            RuntimeError: none was due.
        """
        state = self.state
        if not isinstance(state, FailedOver) or not self.ping_due(now):
            raise RuntimeError("no ping is due")
        self.state = replace(state, is_pinging=True)
        return self.epoch

    def ping_ok(self, now: float, epoch: int) -> list[Transition]:
        """A ping got through: everybody goes back to the primary, at once."""
        return self._recover(now) if self._pinged(epoch) else self.tick(now)

    def ping_failed(self, now: float, epoch: int) -> list[Transition]:
        """A ping did not get through, was given up or was called off."""
        pinged = self._pinged(epoch)
        if pinged is None:
            return self.tick(now)
        self.state = replace(pinged, next_ping=now + self.ping_interval, is_pinging=False)
        return []

    def force_over(self, now: float) -> list[Transition]:
        """Send to the backlog, without pings, until `force_back`."""
        transitions = self.tick(now)
        state = self.state
        if not isinstance(state, FailedOver):
            return [*transitions, *self._fail_over(now, is_forced=True)]
        if not state.is_forced:
            # A ping that is still under way must not undo it.
            self.epoch += 1
            self.state = replace(state, is_forced=True, is_pinging=False)
        return transitions

    def force_back(self, now: float) -> list[Transition]:
        """Send to the primary again, whatever the pings say. As after any recovery there is a probation."""
        transitions = self.tick(now)
        if isinstance(self.state, FailedOver):
            return [*transitions, *self._recover(now)]
        if isinstance(self.state, Suspect):
            self.epoch += 1
            self.evidence.forget()
            self.state = Healthy()
            return [*transitions, Transition.CLEARED]
        return transitions

    # ---- changes ----

    def _ends(self, suspect: Suspect) -> float:
        return suspect.since + self.failover_interval

    def _pinged(self, epoch: int) -> FailedOver | None:
        """The failover whose ping has come to an end; None if it has ended before its ping."""
        state = self.state
        return state if isinstance(state, FailedOver) and state.is_pinging and epoch == self.epoch else None

    def _fail_over(self, at: float, first_ping: float | None = None, is_forced: bool = False) -> list[Transition]:
        self.epoch += 1
        self.evidence.forget()
        self.state = FailedOver(at, at if first_ping is None else first_ping, is_forced)
        return [Transition.FAILED_OVER]

    def _recover(self, now: float) -> list[Transition]:
        self.epoch += 1
        self.evidence.forget()
        self.state = Healthy(probation_until=now + max(self.failover_interval, self.ping_interval))
        return [Transition.RECOVERED]
