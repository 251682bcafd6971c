"""Holds the state that senders, pings and pumps of one pairing share: failover, rotation, events.

It decides nothing by itself: `entity_failover.py`, `evidence.py` and `rotation.py` do. It holds their lock and the
clock, and turns changes into events and log lines. It wakes the background, which acts by the clock, when the next due
time may have changed.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from random import Random, SystemRandom
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

from azure.servicebus.exceptions import OperationTimeoutError

from twinbus.ledger.recorder import DurableRecorder, NullRecorder, Recorder, is_prompt
from twinbus.servicebus.entity_paths import backlog_path, check_primary_name, entity_key

from .backlog.rotation import Rotation, SenderChoice
from .events import (
    BacklogQueueRestored,
    BacklogQueueRetired,
    Callback,
    Event,
    EventBus,
    FailedOver,
    Faulted,
    PingFailed,
    PingSent,
    Recovered,
    StarvedWarning,
    Suspected,
    SuspicionCleared,
    check_callback,
)
from .failover.entity_failover import FailedOver as FailedOverState
from .failover.entity_failover import FailoverMachine, Healthy, Routing, State, Suspect, Transition
from .failover.error_classification import Cause, FailoverPolicy, cause_of
from .failover.evidence import Evidence
from .failover.loop_lag import LATE_SHARE, Lag
from .foreign_calls import CALLBACK, POLICY, BoundedCall, ForeignCalls
from .forks import watch_forks
from .ledger_health import LedgerHealth
from .options import SendAvailabilityOptions
from .pairing_errors import ForkedClientError, PairedClientFaultedError, TwinbusError
from .sending.call_budget import NO_RETRY_OPTIONS, Retries
from .sending.connection_slots import Connections
from .sending.diverted_sessions import DivertedSessions, SessionTurns

logger = logging.getLogger("twinbus.pairing")

Clock = Callable[[], float]


class Attempt(NamedTuple):
    """When an attempt began, the total lag at that time, the epoch of the entity, and whether it opens a link."""

    began: float
    lag: float
    epoch: int = 0
    is_opening: bool = False


class RouteListener(Protocol):
    """Is notified at once when an entity has failed over or recovered."""

    def route_changed(self) -> None: ...


class Entity:
    """The state of one queue or topic of the primary in this pairing."""

    __slots__ = ("is_warned_of_size", "last_error", "listeners", "machine", "needs_session", "path", "routed")

    def __init__(self, path: str, options: SendAvailabilityOptions) -> None:
        self.path = path
        self.machine = FailoverMachine(
            options.failover_interval, options.ping_primary_interval, options.attempt_timeout
        )
        #: The link pools to it, ordered so that a simulated run can be replayed.
        self.listeners: WeakKeyDictionary[RouteListener, None] = WeakKeyDictionary()
        #: Cache of the last route that does not depend on the clock, and its state: every send asks.
        self.routed: tuple[State, Routing] = (self.machine.state, self.machine.route(0.0))
        #: The last counted failure of the primary, for events and `BacklogUnavailableError`.
        self.last_error: BaseException | None = None
        self.is_warned_of_size = False
        #: Whether the primary refused a message because it had no session id.
        self.needs_session = False


@dataclass(frozen=True, slots=True)
class DuePing:
    """A ping that the background must send now; report its result with `epoch`."""

    entity: Entity
    epoch: int


@dataclass(frozen=True, slots=True)
class DueProbe:
    """A link that the background must open now, to an entity or a backlog queue; report its result with `epoch`."""

    target: Entity | int
    epoch: int
    attempt: Attempt


class Pairing:
    """The state of a pairing. Thread-safe; nothing in it waits."""

    def __init__(
        self,
        options: SendAvailabilityOptions,
        primary_name: str,
        *,
        name: str = "",
        client: str = "",
        address: str = "",
        recorder: Recorder | None = None,
        primary_retries: Retries = NO_RETRY_OPTIONS,
        backlog_retries: Retries = NO_RETRY_OPTIONS,
        clock: Clock = time.monotonic,
        random: Random | None = None,
    ) -> None:
        self.options = options
        self.primary_retries, self.backlog_retries = primary_retries, backlog_retries
        self.primary_name = primary_name
        #: The names of the pairing and of this client in the ledger.
        self.name = name or primary_name
        self.client = client
        #: Callbacks, recorder and policy of the application, called so that they cannot block or fail the pairing.
        self.foreign = ForeignCalls()
        self.recorder: Recorder = self._checked_recorder(recorder)
        #: The recorder, if it can tell when rows are durable.
        self.ledger = recorder if isinstance(recorder, DurableRecorder) else None
        #: Whether a failure counts, by the option `policy`.
        self.counts: Callable[[BaseException], bool] = options.policy.counts
        if not options.policy.is_own:
            default = FailoverPolicy.availability().counts
            self.counts = BoundedCall(POLICY, options.policy.counts, default, self.foreign.failures)
        self._address = address
        self.events = EventBus()
        self.ledger_health = LedgerHealth(self.events)
        self.clock = clock
        #: Called from any thread when there is something new to wait for or to do; set by the background.
        self.wake: Callable[[], None] = lambda: None
        #: Called from any thread with the index of a missing backlog queue; set by the background.
        self.on_queue_missing: Callable[[int], None] = lambda index: None
        #: The sessions that must go through the backlog; None unless order within sessions is kept.
        self.diverted_sessions = DivertedSessions() if options.order == "session" else None
        self.session_turns = SessionTurns()
        #: For random queue choices and pauses, which clients must not share.
        self.random = random or SystemRandom()
        self._lock = threading.Lock()
        self._entities: dict[str, Entity] = {}
        self._rotation = Rotation(options.backlog_queue_count, options.backlog_cooldown)
        self._queues = [Evidence(options.attempt_timeout) for _ in range(options.backlog_queue_count)]
        self.lag = Lag(options.attempt_timeout)
        self._is_warned_of_lag = False
        #: The connections of this client's senders.
        self.primary_connections = Connections(options.max_connections)
        self.backlog_connections = Connections(options.max_connections)
        self._fault: PairedClientFaultedError | None = None
        self._created_in = os.getpid()
        watch_forks(self)

    @property
    def label(self) -> str:
        """The name of the pairing in log lines: its name or, before it has one, the primary's address."""
        return self.name or self._address or "unnamed pairing"

    def _checked_recorder(self, recorder: Recorder | None) -> Recorder:
        if recorder is None:
            return NullRecorder()
        if not callable(getattr(recorder, "record", None)):
            raise TypeError(f"recorder must have a method record, such as a LedgerWriter, not {recorder!r}")
        return recorder if is_prompt(recorder) else self.foreign.recorder(recorder)

    def learn_primary_name(self, primary_name: str) -> None:
        """Set the name that the primary has reported. Raises `ValueError` if it cannot be the first part of a path."""
        check_primary_name(primary_name)
        self.primary_name = primary_name
        self.name = self.name or primary_name

    def entity(self, path: str) -> Entity:
        """Return the state of an entity; the same for every spelling of its path."""
        key = entity_key(path)
        with self._lock:
            entity = self._entities.get(key)
            if entity is None:
                entity = self._entities[key] = Entity(path, self.options)
            return entity

    def entities(self) -> list[Entity]:
        with self._lock:
            return list(self._entities.values())

    def state_of(self, entity: Entity) -> State:
        """Return the state as of now, not as of the last call."""
        with self._lock:
            transitions = entity.machine.tick(self.clock())
            state = entity.machine.state
        self._announce(entity, transitions)
        return state

    def route(self, entity: Entity) -> Routing:
        """Return where a send that begins now goes. Raises `PairedClientFaultedError`."""
        if self._fault is not None:
            raise self._fault.with_traceback(None)
        # Reading needs no lock, and every send asks; usually not even the time matters. States are immutable and
        # replaced, so a route cached for an old state is not used again.
        state = entity.machine.state
        known, routing = entity.routed
        if known is not state:
            routing = entity.machine.route(self.clock())
            if type(state) is not Suspect:
                entity.routed = state, routing
        return routing

    def begin(self, entity: Entity | None = None, *, is_opening: bool = False) -> Attempt:
        """Begin an attempt on an entity of the primary or on a backlog queue."""
        now = self.clock()
        return Attempt(now, self.lag.total(now), 0 if entity is None else entity.machine.epoch, is_opening)

    def was_late(self, attempt: Attempt) -> bool:
        """Return whether this process was too busy during an attempt for its failure to be conclusive."""
        now = self.clock()
        return self.lag.total(now) - attempt.lag > LATE_SHARE * (now - attempt.began)

    def sent_ok(self, entity: Entity) -> None:
        """Record that the primary has accepted a send."""
        machine = entity.machine
        if type(machine.state) is Healthy and machine.evidence.silent_since is None:
            machine.evidence.answered_at = self.clock()  # the usual case, without the lock
            return
        with self._lock:
            transitions = machine.sent_ok(self.clock())
        self._announce(entity, transitions)

    def answered(self, entity: Entity, *, is_opening: bool) -> None:
        """Record an answer of the primary to a call or to the opening of a link, success or error."""
        evidence = entity.machine.evidence
        with self._lock:
            (evidence.opened if is_opening else evidence.answered)(self.clock())

    def sent_failed(self, entity: Entity, attempt: Attempt, error: BaseException) -> None:
        """Record that a conclusive attempt on the primary failed in a way that counts."""
        with self._lock:
            entity.last_error = error
            transitions = entity.machine.sent_failed(
                self.clock(), attempt.epoch, attempt.began, is_opening=attempt.is_opening
            )
        self._announce(entity, transitions)

    def sent_unclear(self, entity: Entity, attempt: Attempt) -> None:
        """Record an attempt on the primary that its caller or this process's lag cut short: it proves nothing."""
        with self._lock:
            is_news = entity.machine.sent_unclear(self.clock(), attempt.epoch, attempt.began)
        if is_news:
            self.wake()

    def fail_over(self, path: str) -> None:
        """Send to the backlog, without pings, until `fail_back`."""
        entity = self.entity(path)
        with self._lock:
            before = entity.machine.state
            transitions = entity.machine.force_over(self.clock())
            if isinstance(before, FailedOverState) and not before.is_forced:
                transitions = [Transition.FAILED_OVER]  # already failed over, but now forced: report that
        self._announce(entity, transitions, forced=True)

    def fail_back(self, path: str) -> None:
        """Send to the primary again, whatever the pings say."""
        entity = self.entity(path)
        with self._lock:
            transitions = entity.machine.force_back(self.clock())
        self._announce(entity, transitions, forced=True)

    def queue_path(self, index: int) -> str:
        """Return the path of a backlog queue. Raises `TwinbusError` while the primary's name is unknown."""
        if not self.primary_name:
            raise TwinbusError(
                "The backlog queues have no names yet: the primary is given by its address and its name is unknown."
                " Set the option primary_name."
            )
        return backlog_path(self.primary_name, index)

    def new_choice(self) -> SenderChoice:
        """Return a new choice for one sender, which keeps it and passes it to `choose_queue`."""
        return SenderChoice(self._rotation, self.random)

    def choose_queue(
        self, choice: SenderChoice, tried: Collection[int] = (), for_session: tuple[str, str] | None = None
    ) -> int | None:
        """Return the next backlog queue to try, except those in `tried`; None to give up.

        `for_session` is (destination, session id) where order within a session is kept.
        """
        with self._lock:
            restored = self._rotation.tick(self.clock())
            if for_session is None:
                index = choice.next(tried)
            else:
                index = self._rotation.choose_for_session(*for_session, tried)
        self._announce_restored(restored)
        return index

    def queue_failed(self, index: int, error: BaseException, attempt: Attempt | None = None) -> None:
        """Retire a backlog queue that does not take messages: no sender of this pairing uses it for a while.

        `attempt` is given for an attempt without an answer: if another one was answered since, nothing happens.
        """
        with self._lock:
            evidence = self._queues[index]
            if attempt is not None and not evidence.convicts(attempt.began, is_opening=attempt.is_opening):
                return
            is_news = self._rotation.retire(index, self.clock(), error)
            evidence.forget()
        if is_news:
            logger.warning("Backlog queue %s leaves the rotation: %s", self.queue_path(index), type(error).__name__)
            self.publish(BacklogQueueRetired(queue=self.queue_path(index), error=error))
        if cause_of(error) is Cause.NOT_FOUND:
            self.on_queue_missing(index)
        self.wake()

    def queue_unclear(self, index: int, attempt: Attempt) -> None:
        """Record an attempt on a backlog queue that was cut short: it proves nothing."""
        with self._lock:
            is_news = self._rotation.is_in_rotation(index) and self._queues[index].unclear(attempt.began)
        if is_news:
            self.wake()

    def queue_answered(self, index: int, *, is_opening: bool = False) -> None:
        """Record that a backlog queue has answered a call or the opening of a link."""
        evidence = self._queues[index]
        if evidence.silent_since is None and not is_opening:
            evidence.answered_at = self.clock()
            return
        with self._lock:
            (evidence.opened if is_opening else evidence.answered)(self.clock())

    def is_in_rotation(self, index: int) -> bool:
        """Return whether senders use a backlog queue."""
        with self._lock:
            return self._rotation.is_in_rotation(index)

    def queue_unusable(self, index: int, error: BaseException) -> None:
        """Bar a backlog queue that would lose or refuse messages until `queue_restored`."""
        with self._lock:
            is_news = self._rotation.retire(index, self.clock(), error, is_barred=True)
        if is_news:
            logger.warning("Backlog queue %s is not used: %s", self.queue_path(index), error)
            self.publish(BacklogQueueRetired(queue=self.queue_path(index), error=error))

    def queue_restored(self, index: int) -> None:
        """Restore a backlog queue that exists and is usable."""
        with self._lock:
            is_news = self._rotation.restore(index)
        if is_news:
            self._announce_restored([index])

    @property
    def retired_count(self) -> int:
        """The number of backlog queues out of rotation."""
        with self._lock:
            return len(self._rotation.retired)

    def retired_queues(self) -> dict[str, BaseException]:
        """Return the backlog queues out of rotation, and why."""
        with self._lock:
            retired = self._rotation.retired
        return {self.queue_path(index): retirement.error for index, retirement in retired.items()}

    def next_time(self) -> float | None:
        """Return when `tick` is due next, by this pairing's clock."""
        with self._lock:
            times = [entity.machine.next_time() for entity in self._entities.values()]
            times += [evidence.probe_at() for evidence in self._queues]
            times.append(self._rotation.next_time())
        return min((at for at in times if at is not None), default=None)

    def tick(self) -> list[DuePing | DueProbe]:
        """Apply what is due, and return the pings and probes to start now. Report the result of each."""
        now = self.clock()
        changed: list[tuple[Entity, list[Transition]]] = []
        due: list[DuePing | DueProbe] = []
        with self._lock:
            restored = self._rotation.tick(now)
            for entity in self._entities.values():
                changed.append((entity, entity.machine.tick(now)))
                if entity.machine.ping_due(now):
                    due.append(DuePing(entity, entity.machine.ping_started(now)))
                elif entity.machine.probe_due(now):
                    due.append(DueProbe(entity, entity.machine.probe_started(now), self.begin()))
            for index, evidence in enumerate(self._queues):
                at = evidence.probe_at()
                if at is not None and now >= at:
                    evidence.probe_started()
                    due.append(DueProbe(index, 0, self.begin()))
        for entity, transitions in changed:
            self._announce(entity, transitions)
        self._announce_restored(restored)
        for action in due:
            if isinstance(action, DuePing):
                self.publish(PingSent(entity=action.entity.path))
        return due

    def probe_ok(self, probe: DueProbe) -> None:
        """Record that a probe has opened a link."""
        now = self.clock()
        with self._lock:
            if isinstance(probe.target, Entity):
                probe.target.machine.probe_ok(now, probe.epoch)
            else:
                self._queues[probe.target].opened(now)
                self._queues[probe.target].probe_ended(now)
        self.wake()

    def probe_failed(self, probe: DueProbe, error: BaseException, *, counts: bool) -> None:
        """Record a failed probe; `counts` says whether it shows that the entity or queue is unavailable."""
        target, now = probe.target, self.clock()
        is_late = isinstance(error, OperationTimeoutError) and self.was_late(probe.attempt)
        if not counts:
            self.probe_ok(probe)  # it was answered, even if with an error
        elif isinstance(target, Entity):
            with self._lock:
                target.last_error = error
                transitions = target.machine.probe_failed(now, probe.epoch, is_conclusive=not is_late)
            self._announce(target, transitions)
        else:
            with self._lock:
                is_silent = self._queues[target].probe_ended(now) is not None
            if is_silent and not is_late:
                self.queue_failed(target, error)
        self.wake()

    def note_lag(self) -> None:
        """Measure lag at a tick of the background; warn once if the process runs very late."""
        late = self.lag.tick(self.clock())
        if late <= LATE_SHARE * self.lag.interval:
            for connections in (self.primary_connections, self.backlog_connections):
                connections.tick(self.lag.interval)
        if late > self.options.attempt_timeout / 4 and not self._is_warned_of_lag:
            self._is_warned_of_lag = True
            logger.warning(
                "%s: this process ran %.1f s late. It is too busy to judge the primary: attempts without an answer do"
                " not count meanwhile.",
                self.label,
                late,
            )
            self.publish(StarvedWarning(lag=late))

    def ping_ok(self, ping: DuePing) -> None:
        """Record a successful ping: all sends go to the entity again, at once."""
        with self._lock:
            transitions = ping.entity.machine.ping_ok(self.clock(), ping.epoch)
        self._announce(ping.entity, transitions)

    def ping_failed(self, ping: DuePing, error: BaseException) -> None:
        """Record a failed ping. Sends stay with the backlog, whatever the error."""
        with self._lock:
            ping.entity.last_error = error
            transitions = ping.entity.machine.ping_failed(self.clock(), ping.epoch)
            interval = ping.entity.machine.ping_interval
        self._announce(ping.entity, transitions)
        logger.info("%s: the ping of %s failed: %s", self.label, ping.entity.path, type(error).__name__)
        self.publish(PingFailed(entity=ping.entity.path, error=error, next_ping_in=interval))
        self.wake()

    @property
    def fault(self) -> PairedClientFaultedError | None:
        return self._fault

    def set_fault(self, reason: str, cause: BaseException | None = None) -> None:
        """Fault the pairing: every later call raises. Only the first reason is kept."""
        with self._lock:
            if self._fault is not None:
                return
            self._fault = PairedClientFaultedError(reason, cause)
        logger.error("%s: the pairing has faulted: %s", self.label, reason)
        self.publish(Faulted(error=self._fault))
        self.wake()

    def check(self) -> None:
        """Raise `PairedClientFaultedError` if the pairing has faulted."""
        if self._fault is not None:
            raise self._fault.with_traceback(None)

    @property
    def is_forked(self) -> bool:
        """Whether this is a copy in a forked child. Its connections belong to the parent: leave them open."""
        return isinstance(self._fault, ForkedClientError)

    def forked(self) -> None:
        """Mark this process as a fork: every later call raises."""
        self._fault = ForkedClientError(self._created_in, os.getpid())

    def on_event(self, callback: Callback) -> Callable[[], None]:
        """Call a callback of the application with every event, on a helper thread; return what unsubscribes it.

        Raises:
            TypeError: `callback` is not a plain function.
        """
        check_callback(callback)
        relay = self.foreign.relay(CALLBACK, callback)
        unsubscribe = self.events.subscribe(relay.put)

        def end() -> None:
            unsubscribe()
            self.foreign.forget(relay)

        return end

    def publish(self, event: Event) -> None:
        self.events.publish(event)

    def _announce(self, entity: Entity, transitions: list[Transition], forced: bool = False) -> None:
        for transition in transitions:
            path, error = entity.path, entity.last_error
            if transition is Transition.SUSPECTED and error is not None:
                logger.warning("%s: %s is suspect: %s", self.label, path, type(error).__name__)
                self.publish(Suspected(entity=path, error=error))
            elif transition is Transition.CLEARED:
                entity.last_error = None
                logger.warning("%s: %s is no longer suspect", self.label, path)
                self.publish(SuspicionCleared(entity=path))
            elif transition is Transition.FAILED_OVER:
                logger.warning("%s: %s has failed over: its messages go to the backlog", self.label, path)
                self.publish(FailedOver(entity=path, error=None if forced else error, forced=forced))
            elif transition is Transition.RECOVERED:
                entity.last_error = None
                logger.warning("%s: %s is back: its messages go to the primary", self.label, path)
                self.publish(Recovered(entity=path, forced=forced))
            if transition in (Transition.FAILED_OVER, Transition.RECOVERED):
                for listener in list(entity.listeners):
                    listener.route_changed()
            if transition is Transition.FAILED_OVER and self.diverted_sessions is not None:
                self.diverted_sessions.end_holds(path)
        if transitions:
            self.wake()

    def _announce_restored(self, restored: list[int]) -> None:
        for index in restored:
            logger.info("Backlog queue %s is back in the rotation", self.queue_path(index))
            self.publish(BacklogQueueRestored(queue=self.queue_path(index)))
