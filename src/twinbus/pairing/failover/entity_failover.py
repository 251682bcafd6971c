"""Decides when the sends to an entity leave the primary, and when they come back.

    Healthy ──failure──► Suspect ──interval over──► FailedOver ──ping──► Healthy, on probation
       ▲                    │                            ▲                          │
       └──────success───────┘                            └──────────failure─────────┘

There is one machine per entity and pairing, used by all senders of that entity. Pure: every method takes the time (in
seconds of a monotonic clock) and returns at once. Not thread-safe: the caller holds a lock.

The background calls `tick` at `next_time`, so that the interval ends by the clock and not with the next send. It then
starts a ping if `ping_due` says so, or a probe if `probe_due` does. An attempt's result comes with the epoch in which
it began: every change of route starts a new epoch, and a failure from an earlier one is ignored. `evidence.py` decides
which failures count.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from .evidence import Evidence

#: The longest ping interval, however often an entity has relapsed.
MAX_PING_INTERVAL = 30 * 60.0


class Route(Enum):
    """Where the next message goes."""

    PRIMARY = "primary"
    BACKLOG = "backlog"


class Transition(Enum):
    """A state change, for events and logs."""

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
    """Sends go to the primary. On probation, one failure is enough to fail over again."""

    probation_until: float | None = None


@dataclass(frozen=True, slots=True)
class Suspect:
    """A send has failed and none has succeeded since; sends still try the primary first."""

    since: float


@dataclass(frozen=True, slots=True)
class FailedOver:
    """Sends go to the backlog. Only pings go to the primary, and none if the failover is forced."""

    since: float
    next_ping: float
    is_forced: bool = False
    is_pinging: bool = False


State = Healthy | Suspect | FailedOver


class FailoverMachine:
    """The failover state machine of one entity; times are in seconds."""

    def __init__(self, failover_interval: float, ping_primary_interval: float, attempt_timeout: float = 10.0) -> None:
        self.failover_interval = failover_interval
        self.ping_primary_interval = ping_primary_interval
        #: The current ping interval: longer than the option's after a relapse.
        self.ping_interval = ping_primary_interval
        self.epoch = 0
        #: As of the last call; the clock may have moved on.
        self.state: State = Healthy()
        self.evidence = Evidence(attempt_timeout)

    def route(self, now: float) -> Routing:
        """Return where a send that begins now goes, even if `tick` is overdue."""
        state = self.state
        over = isinstance(state, FailedOver) or (isinstance(state, Suspect) and now >= self._ends(state))
        return Routing(Route.BACKLOG if over else Route.PRIMARY, self.epoch)

    def next_time(self) -> float | None:
        """Return when to call `tick` and `ping_due` next; None if nothing is scheduled."""
        match self.state:
            case Suspect() as suspect:
                return self._ends(suspect)
            case FailedOver(next_ping=at, is_forced=False, is_pinging=False):
                return at
            case Healthy():
                return self.evidence.probe_at()
        return None

    def probe_due(self, now: float) -> bool:
        """Return whether to start a probe now. Call `tick` first."""
        at = self.evidence.probe_at()
        return isinstance(self.state, Healthy) and at is not None and now >= at

    def ping_due(self, now: float) -> bool:
        """Return whether to send a ping now. Call `tick` first."""
        match self.state:
            case FailedOver(next_ping=at, is_forced=False, is_pinging=False):
                return now >= at
        return False

    def is_on_probation(self, now: float) -> bool:
        state = self.state
        return isinstance(state, Healthy) and state.probation_until is not None and now < state.probation_until

    def tick(self, now: float) -> list[Transition]:
        """Apply all changes due until now."""
        state = self.state
        if isinstance(state, Suspect) and now >= self._ends(state):
            # Use the end of the interval, however late the call: the first ping is due from then on.
            return self._fail_over(self._ends(state))
        if isinstance(state, Healthy) and state.probation_until is not None and now >= state.probation_until:
            self.state = Healthy()
            self.ping_interval = self.ping_primary_interval
        return []

    def sent_ok(self, now: float) -> list[Transition]:
        """Record an accepted send to the primary. It ends a suspicion whenever it began: the entity has answered.

        It does not end a failover; only a ping does.
        """
        self.evidence.answered(now)
        transitions = self.tick(now)
        if isinstance(self.state, Suspect):
            self.state = Healthy()
            return [Transition.CLEARED]
        return transitions

    def sent_failed(
        self, now: float, epoch: int, began: float | None = None, *, is_opening: bool = False
    ) -> list[Transition]:
        """Record that a conclusive attempt on the primary that began at `began` failed in a way that counts."""
        transitions = self.tick(now)
        began = now if began is None else began
        if epoch != self.epoch or not self.evidence.convicts(began, is_opening=is_opening):
            return transitions
        return transitions + self._suspect(now, since=now)

    def _suspect(self, now: float, since: float) -> list[Transition]:
        if not isinstance(self.state, Healthy):
            return []
        if self.is_on_probation(now):
            # Pings succeed but sends fail: ping less often, and not at once, to break the cycle.
            self.ping_interval = min(2 * self.ping_interval, MAX_PING_INTERVAL)
            return self._fail_over(now, first_ping=now + self.ping_interval)
        if self.failover_interval == 0:
            return self._fail_over(now)
        self.state = Suspect(since)
        return [Transition.SUSPECTED, *self.tick(now)]

    def sent_unclear(self, now: float, epoch: int, began: float) -> bool:
        """Record that an attempt that began at `began` was cut short; return whether this starts a silence."""
        return epoch == self.epoch and isinstance(self.state, Healthy) and self.evidence.unclear(began)

    def probe_started(self, now: float) -> int:
        """Start the due probe; no other is due until its result. Return the epoch to report it with.

        Raises:
            RuntimeError: none was due.
        """
        if not self.probe_due(now):
            raise RuntimeError("no probe is due")
        self.evidence.probe_started()
        return self.epoch

    def probe_ok(self, now: float, epoch: int) -> None:
        """Record that a probe has opened a link: the silence is over."""
        if epoch == self.epoch:
            self.evidence.opened(now)
            self.evidence.probe_ended(now)

    def probe_failed(self, now: float, epoch: int, is_conclusive: bool = True) -> list[Transition]:
        """Record a failed probe. If conclusive, it counts from the beginning of the silence."""
        transitions = self.tick(now)
        if epoch != self.epoch:
            return transitions
        silent_since = self.evidence.probe_ended(now)
        if silent_since is None or not is_conclusive:
            return transitions
        return transitions + self._suspect(now, since=silent_since)

    def ping_started(self, now: float) -> int:
        """Start the due ping; no other is due until its result. Return the epoch to report it with.

        Raises:
            RuntimeError: none was due.
        """
        state = self.state
        if not isinstance(state, FailedOver) or not self.ping_due(now):
            raise RuntimeError("no ping is due")
        self.state = replace(state, is_pinging=True)
        return self.epoch

    def ping_ok(self, now: float, epoch: int) -> list[Transition]:
        """Record a successful ping: all sends go back to the primary at once."""
        return self._recover(now) if self._pinged(epoch) else self.tick(now)

    def ping_failed(self, now: float, epoch: int) -> list[Transition]:
        """Record a ping that failed or was cancelled."""
        pinged = self._pinged(epoch)
        if pinged is None:
            return self.tick(now)
        self.state = replace(pinged, next_ping=now + self.ping_interval, is_pinging=False)
        return []

    def force_over(self, now: float) -> list[Transition]:
        """Fail over to the backlog, without pings, until `force_back`."""
        transitions = self.tick(now)
        state = self.state
        if not isinstance(state, FailedOver):
            return [*transitions, *self._fail_over(now, is_forced=True)]
        if not state.is_forced:
            # A ping that is still running must not undo it.
            self.epoch += 1
            self.state = replace(state, is_forced=True, is_pinging=False)
        return transitions

    def force_back(self, now: float) -> list[Transition]:
        """Send to the primary again, whatever the pings say. As after any recovery, probation follows."""
        transitions = self.tick(now)
        if isinstance(self.state, FailedOver):
            return [*transitions, *self._recover(now)]
        if isinstance(self.state, Suspect):
            self.epoch += 1
            self.evidence.forget()
            self.state = Healthy()
            return [*transitions, Transition.CLEARED]
        return transitions

    def _ends(self, suspect: Suspect) -> float:
        return suspect.since + self.failover_interval

    def _pinged(self, epoch: int) -> FailedOver | None:
        """Return the failover whose ping has ended; None if that failover was over before its ping."""
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
