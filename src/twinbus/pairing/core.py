"""The state that all senders, pings and pumps of one pairing share: failover of each entity, rotation, events.

It decides nothing by itself: `failover.py`, `evidence.py` and `rotation.py` do. It holds the lock that they need, knows
the time, and turns what has changed into events and log lines. The background, which acts by the clock, is woken when
there is something new to wait for.
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

from .errors import ForkedClientError, PairedClientFaultedError, TwinbusError
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
from .evidence import Evidence
from .failover import FailedOver as OverState
from .failover import FailoverMachine, Healthy, Routing, State, Suspect, Transition
from .foreign_calls import CALLBACK, POLICY, ForeignCalls, Question
from .forks import watch_forks
from .lag import LATE_SHARE, Lag
from .ledger_health import LedgerHealth
from .naming import backlog_path, check_primary_name, entity_key
from .options import SendAvailabilityOptions
from .policy import Cause, FailoverPolicy, cause_of
from .rotation import Rotation, SenderChoice
from .sending.budget import NO_RETRY_OPTIONS, Retries
from .sending.slots import Connections
from .sessions import DivertedSessions, SessionTurns

logger = logging.getLogger("twinbus.pairing")

Clock = Callable[[], float]


class Attempt(NamedTuple):
    """When an attempt began, how much lag the process had until then, and in which epoch of the entity."""

    began: float
    lag: float
    epoch: int = 0


class RouteListener(Protocol):
    """Someone who has to know at once when an entity has failed over or is back."""

    def route_changed(self) -> None: ...


class Entity:
    """One queue or topic of the primary, as this pairing sees it."""

    __slots__ = ("is_warned_of_size", "last_error", "listeners", "machine", "needs_session", "path", "routed")

    def __init__(self, path: str, options: SendAvailabilityOptions) -> None:
        self.path = path
        self.machine = FailoverMachine(
            options.failover_interval, options.ping_primary_interval, options.attempt_timeout
        )
        #: The pools of links to it, in order: a simulated run can be replayed.
        self.listeners: WeakKeyDictionary[RouteListener, None] = WeakKeyDictionary()
        #: The last answer that no clock will change, and in which state it was given: every send asks.
        self.routed: tuple[State, Routing] = (self.machine.state, self.machine.route(0.0))
        #: Why the primary was last given up on, for events and `BacklogUnavailableError`.
        self.last_error: BaseException | None = None
        self.is_warned_of_size = False
        #: Whether the primary has refused a message because it had no session id.
        self.needs_session = False


@dataclass(frozen=True, slots=True)
class DuePing:
    """A ping that the background has to send now; `epoch` goes back with its result."""

    entity: Entity
    epoch: int


@dataclass(frozen=True, slots=True)
class DueProbe:
    """A link that the background has to open now, to an entity or to a backlog queue; `epoch` goes back with the
    result."""

    place: Entity | int
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
        #: How the ledger calls the pairing, and this one of its clients.
        self.name = name or primary_name
        self.client = client
        #: Functions of the application: whatever they do, sends, pings and provisioning go on.
        self.foreign = ForeignCalls()
        self.recorder: Recorder = self._trusted(recorder)
        #: The recorder, if it can say when rows are stored for good.
        self.ledger = recorder if isinstance(recorder, DurableRecorder) else None
        #: Whether a failure counts, by the option `policy`.
        self.counts: Callable[[BaseException], bool] = options.policy.counts
        if not options.policy.is_own:
            default = FailoverPolicy.availability().counts
            self.counts = Question(POLICY, options.policy.counts, default, self.foreign.mishaps)
        self._address = address
        self.events = EventBus()
        self.ledger_health = LedgerHealth(self.events)
        self.clock = clock
        #: Called, in any thread, when there is something new to wait for or to do; the background sets it.
        self.wake: Callable[[], None] = lambda: None
        #: Called, in any thread, with the index of a backlog queue that does not exist; the background sets it.
        self.on_queue_missing: Callable[[int], None] = lambda index: None
        #: The sessions that have to go through the backlog; None unless order within a session is kept.
        self.diverted_sessions = DivertedSessions() if options.order == "session" else None
        self.session_turns = SessionTurns()
        #: For choices that others must not share: a queue at random, pauses.
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
        self._made_in = os.getpid()
        watch_forks(self)

    @property
    def label(self) -> str:
        """What log lines call the pairing: its name or, as long as it has none, the address of the primary."""
        return self.name or self._address or "unnamed pairing"

    def _trusted(self, recorder: Recorder | None) -> Recorder:
        if recorder is None:
            return NullRecorder()
        if not callable(getattr(recorder, "record", None)):
            raise TypeError(f"recorder must have a method record, such as a LedgerWriter, not {recorder!r}")
        return recorder if is_prompt(recorder) else self.foreign.recorder(recorder)

    def learn_primary_name(self, primary_name: str) -> None:
        """The primary has told its name. Raises `ValueError` if it cannot be the first part of a path."""
        check_primary_name(primary_name)
        self.primary_name = primary_name
        self.name = self.name or primary_name

    # ---- entities ----

    def entity(self, path: str) -> Entity:
        """The state of an entity; the same for every spelling of its path."""
        key = entity_key(path)
        with self._lock:
            found = self._entities.get(key)
            if found is None:
                found = self._entities[key] = Entity(path, self.options)
            return found

    def entities(self) -> list[Entity]:
        with self._lock:
            return list(self._entities.values())

    def state_of(self, entity: Entity) -> State:
        """The state as of now, not as of the last call."""
        with self._lock:
            transitions = entity.machine.tick(self.clock())
            state = entity.machine.state
        self._announce(entity, transitions)
        return state

    # ---- sends ----

    def route(self, entity: Entity) -> Routing:
        """Where a send that begins now goes. Raises `PairedClientFaultedError`."""
        if self._fault is not None:
            raise self._fault.with_traceback(None)
        # A question that changes nothing needs no lock, and every send asks it; usually not even the time matters.
        # States are never changed, only replaced: an answer kept for a state that is gone is not found again.
        state = entity.machine.state
        known, routing = entity.routed
        if known is not state:
            routing = entity.machine.route(self.clock())
            if type(state) is not Suspect:
                entity.routed = state, routing
        return routing

    def begin(self, entity: Entity | None = None) -> Attempt:
        """An attempt begins, on an entity of the primary or on a backlog queue."""
        now = self.clock()
        return Attempt(now, self.lag.total(now), 0 if entity is None else entity.machine.epoch)

    def was_late(self, attempt: Attempt) -> bool:
        """Whether the process itself was too busy during an attempt for its failure to say anything."""
        now = self.clock()
        return self.lag.total(now) - attempt.lag > LATE_SHARE * (now - attempt.began)

    def sent_ok(self, entity: Entity) -> None:
        """The primary has accepted a send."""
        machine = entity.machine
        if type(machine.state) is Healthy and machine.evidence.silent_since is None:
            machine.evidence.answered_at = self.clock()  # the usual case, for the price of a look
            return
        with self._lock:
            transitions = machine.sent_ok(self.clock())
        self._announce(entity, transitions)

    def answered(self, entity: Entity) -> None:
        """The primary has answered, whatever it said, or a link to it was opened."""
        with self._lock:
            entity.machine.evidence.answered(self.clock())

    def sent_failed(self, entity: Entity, attempt: Attempt, error: BaseException) -> None:
        """A conclusive attempt on the primary has failed in a way that counts."""
        with self._lock:
            entity.last_error = error
            transitions = entity.machine.sent_failed(self.clock(), attempt.epoch, attempt.began)
        self._announce(entity, transitions)

    def sent_unclear(self, entity: Entity, attempt: Attempt) -> None:
        """An attempt on the primary was cut short, by its caller or by the lag of this process: it proves nothing."""
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
            if isinstance(before, OverState) and not before.is_forced:
                transitions = [Transition.FAILED_OVER]  # it was over already, but not by order: that is news
        self._announce(entity, transitions, forced=True)

    def fail_back(self, path: str) -> None:
        """Send to the primary again, whatever the pings say."""
        entity = self.entity(path)
        with self._lock:
            transitions = entity.machine.force_back(self.clock())
        self._announce(entity, transitions, forced=True)

    # ---- the backlog ----

    def queue_path(self, index: int) -> str:
        """The path of a backlog queue. Raises `TwinbusError` as long as nobody knows the primary's name."""
        if not self.primary_name:
            raise TwinbusError(
                "The backlog queues cannot be named: the primary is called by its address and has not told its name."
                " Set the option primary_name."
            )
        return backlog_path(self.primary_name, index)

    def new_choice(self) -> SenderChoice:
        """The choice of one sender object, to be kept by it and handed to `choose_queue`."""
        return SenderChoice(self._rotation, self.random)

    def choose_queue(
        self, choice: SenderChoice, tried: Collection[int] = (), for_session: tuple[str, str] | None = None
    ) -> int | None:
        """The backlog queue to try now, after those tried in vain; None: give up.

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
        """A backlog queue does not take messages: no sender of this pairing uses it for a while.

        Of an attempt without an answer, `attempt` is when it began: if another one was answered since, nothing happens.
        """
        with self._lock:
            if attempt is not None and not self._queues[index].convicts(attempt.began):
                return
            is_news = self._rotation.retire(index, self.clock(), error)
            self._queues[index].forget()
        if is_news:
            logger.warning("Backlog queue %s leaves the rotation: %s", self.queue_path(index), type(error).__name__)
            self.publish(BacklogQueueRetired(queue=self.queue_path(index), error=error))
        if cause_of(error) is Cause.NOT_FOUND:
            self.on_queue_missing(index)
        self.wake()

    def queue_unclear(self, index: int, attempt: Attempt) -> None:
        """An attempt on a backlog queue was cut short: it proves nothing."""
        with self._lock:
            is_news = self._rotation.is_in_rotation(index) and self._queues[index].unclear(attempt.began)
        if is_news:
            self.wake()

    def queue_answered(self, index: int) -> None:
        """A backlog queue has answered, or a link to it was opened."""
        evidence = self._queues[index]
        if evidence.silent_since is None:
            evidence.answered_at = self.clock()
            return
        with self._lock:
            evidence.answered(self.clock())

    def is_in_rotation(self, index: int) -> bool:
        """Whether senders use a backlog queue."""
        with self._lock:
            return self._rotation.is_in_rotation(index)

    def queue_unusable(self, index: int, error: BaseException) -> None:
        """A backlog queue would lose or refuse messages: no sender uses it until `queue_restored`."""
        with self._lock:
            is_news = self._rotation.retire(index, self.clock(), error, is_barred=True)
        if is_news:
            logger.warning("Backlog queue %s is not used: %s", self.queue_path(index), error)
            self.publish(BacklogQueueRetired(queue=self.queue_path(index), error=error))

    def queue_restored(self, index: int) -> None:
        """A backlog queue is there and in order: senders may use it again at once."""
        with self._lock:
            is_news = self._rotation.restore(index)
        if is_news:
            self._announce_restored([index])

    @property
    def retired_count(self) -> int:
        """How many backlog queues are out of rotation."""
        with self._lock:
            return len(self._rotation.retired)

    def retired_queues(self) -> dict[str, BaseException]:
        """The backlog queues out of rotation, and why."""
        with self._lock:
            retired = self._rotation.retired
        return {self.queue_path(index): one.error for index, one in retired.items()}

    # ---- the clock ----

    def next_time(self) -> float | None:
        """When `tick` has something to do next, by this pairing's clock."""
        with self._lock:
            times = [entity.machine.next_time() for entity in self._entities.values()]
            times += [evidence.probe_at() for evidence in self._queues]
            times.append(self._rotation.next_time())
        return min((at for at in times if at is not None), default=None)

    def tick(self) -> list[DuePing | DueProbe]:
        """Do what the clock asks for, and return the pings and probes to make now. Each must be answered for."""
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
        for one in due:
            if isinstance(one, DuePing):
                self.publish(PingSent(entity=one.entity.path))
        return due

    def probe_ok(self, probe: DueProbe) -> None:
        """A probe has opened a link."""
        now = self.clock()
        with self._lock:
            if isinstance(probe.place, Entity):
                probe.place.machine.probe_ok(now, probe.epoch)
            else:
                self._queues[probe.place].answered(now)
                self._queues[probe.place].probe_ended(now)
        self.wake()

    def probe_failed(self, probe: DueProbe, error: BaseException, *, counts: bool) -> None:
        """A probe has failed; `counts` says whether that means that the place cannot be reached."""
        place, now = probe.place, self.clock()
        is_late = isinstance(error, OperationTimeoutError) and self.was_late(probe.attempt)
        if not counts:
            self.probe_ok(probe)  # whatever it said: there was an answer
        elif isinstance(place, Entity):
            with self._lock:
                place.last_error = error
                transitions = place.machine.probe_failed(now, probe.epoch, is_conclusive=not is_late)
            self._announce(place, transitions)
        else:
            with self._lock:
                is_silent = self._queues[place].probe_ended(now) is not None
            if is_silent and not is_late:
                self.queue_failed(place, error)
        self.wake()

    def note_lag(self) -> None:
        """A tick of the background, for `lag`; a process that runs very late is warned of once."""
        late = self.lag.tick(self.clock())
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
        """The entity is back: everybody sends to it again, at once."""
        with self._lock:
            transitions = ping.entity.machine.ping_ok(self.clock(), ping.epoch)
        self._announce(ping.entity, transitions)

    def ping_failed(self, ping: DuePing, error: BaseException) -> None:
        """The entity is not back yet. Sends go on to the backlog, whatever the error is."""
        with self._lock:
            ping.entity.last_error = error
            transitions = ping.entity.machine.ping_failed(self.clock(), ping.epoch)
            interval = ping.entity.machine.ping_interval
        self._announce(ping.entity, transitions)
        logger.info("%s: a ping of %s failed: %s", self.label, ping.entity.path, type(error).__name__)
        self.publish(PingFailed(entity=ping.entity.path, error=error, next_ping_in=interval))
        self.wake()

    # ---- faults ----

    @property
    def fault(self) -> PairedClientFaultedError | None:
        return self._fault

    def set_fault(self, reason: str, cause: BaseException | None = None) -> None:
        """Out of order for good: every later call raises. Only the first reason is kept."""
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
        """Whether this is a copy in a forked child. Its connections belong to the parent: they are not even closed."""
        return isinstance(self._fault, ForkedClientError)

    def forked(self) -> None:
        """This process is a fork: every later call raises."""
        self._fault = ForkedClientError(self._made_in, os.getpid())

    # ---- events ----

    def on_event(self, callback: Callback) -> Callable[[], None]:
        """Call a function of the application with every event, on a helper thread; returns the function that ends it.

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
