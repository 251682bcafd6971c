"""What all senders, pings and pumps of one pairing share: the failover of each entity, the rotation, the events.

It decides nothing by itself: `failover.py` and `rotation.py` do. It holds the lock that they need, knows the time, and
turns what has changed into events and log lines. Whoever acts by the clock (the background) is woken when there is
something new to wait for.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from random import Random, SystemRandom

from twinbus.ledger.recorder import NullRecorder, Recorder

from .errors import PairedClientFaultedError, TwinbusError
from .events import (
    BacklogQueueRestored,
    BacklogQueueRetired,
    Event,
    EventBus,
    FailedOver,
    Faulted,
    PingFailed,
    PingSent,
    Recovered,
    Suspected,
)
from .failover import FailedOver as OverState
from .failover import FailoverMachine, Healthy, Routing, State, Suspect, Transition
from .naming import backlog_path, check_primary_name, entity_key
from .options import SendAvailabilityOptions
from .policy import Cause, cause_of
from .rotation import Rotation, SenderChoice
from .sessions import DivertedSessions

logger = logging.getLogger("twinbus.pairing")

Clock = Callable[[], float]


class Entity:
    """One queue or topic of the primary, as this pairing sees it."""

    __slots__ = ("is_warned_of_size", "last_error", "machine", "needs_session", "path", "routed")

    def __init__(self, path: str, options: SendAvailabilityOptions) -> None:
        self.path = path
        self.machine = FailoverMachine(options.failover_interval, options.ping_primary_interval)
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


class Pairing:
    """The state of a pairing. Thread-safe; nothing in it waits."""

    def __init__(
        self,
        options: SendAvailabilityOptions,
        primary_name: str,
        *,
        name: str = "",
        client: str = "",
        recorder: Recorder | None = None,
        clock: Clock = time.monotonic,
        random: Random | None = None,
    ) -> None:
        self.options = options
        self.primary_name = primary_name
        #: How the ledger calls the pairing, and this one of its clients.
        self.name = name or primary_name
        self.client = client
        self.recorder: Recorder = recorder or NullRecorder()
        self.events = EventBus()
        self.clock = clock
        #: Called, in any thread, when there is something new to wait for or to do; the background sets it.
        self.wake: Callable[[], None] = lambda: None
        #: Called, in any thread, with the index of a backlog queue that does not exist; the background sets it.
        self.on_queue_missing: Callable[[int], None] = lambda index: None
        #: The sessions that have to go through the backlog; None unless order within a session is kept.
        self.diverted_sessions = DivertedSessions() if options.order == "session" else None
        #: For choices that others must not share: a queue at random, pauses.
        self.random = random or SystemRandom()
        self._lock = threading.Lock()
        self._entities: dict[str, Entity] = {}
        self._rotation = Rotation(options.backlog_queue_count, options.backlog_cooldown)
        self._fault: PairedClientFaultedError | None = None

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

    def sent_ok(self, entity: Entity, epoch: int) -> None:
        """The primary has accepted a send."""
        if type(entity.machine.state) is Healthy:
            return  # nothing to clear: the usual case, for the price of a look
        with self._lock:
            transitions = entity.machine.sent_ok(self.clock(), epoch)
        self._announce(entity, transitions)

    def sent_failed(self, entity: Entity, epoch: int, error: BaseException) -> None:
        """A send to the primary has failed on a fresh link, in a way that counts."""
        with self._lock:
            entity.last_error = error
            transitions = entity.machine.sent_failed(self.clock(), epoch)
        self._announce(entity, transitions)

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

    def queue_failed(self, index: int, error: BaseException) -> None:
        """A backlog queue cannot be reached or is full: no sender of this pairing uses it for a while."""
        with self._lock:
            is_news = self._rotation.retire(index, self.clock(), error)
        if is_news:
            logger.warning("Backlog queue %s leaves the rotation: %s", self.queue_path(index), type(error).__name__)
            self.publish(BacklogQueueRetired(queue=self.queue_path(index), error=error))
        if cause_of(error) is Cause.NOT_FOUND:
            self.on_queue_missing(index)
        self.wake()

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
            times.append(self._rotation.next_time())
        return min((at for at in times if at is not None), default=None)

    def tick(self) -> list[DuePing]:
        """Do what the clock asks for, and return the pings to send now. Each must be answered for."""
        now = self.clock()
        changed: list[tuple[Entity, list[Transition]]] = []
        due: list[DuePing] = []
        with self._lock:
            restored = self._rotation.tick(now)
            for entity in self._entities.values():
                changed.append((entity, entity.machine.tick(now)))
                if entity.machine.ping_due(now):
                    due.append(DuePing(entity, entity.machine.ping_started(now)))
        for entity, transitions in changed:
            self._announce(entity, transitions)
        self._announce_restored(restored)
        for ping in due:
            self.publish(PingSent(entity=ping.entity.path))
        return due

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
        logger.info("A ping of %s failed: %s", ping.entity.path, type(error).__name__)
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
        logger.error("The pairing %s has faulted: %s", self.name, reason)
        self.publish(Faulted(error=self._fault))
        self.wake()

    def check(self) -> None:
        """Raise `PairedClientFaultedError` if the pairing has faulted."""
        if self._fault is not None:
            raise self._fault.with_traceback(None)

    # ---- events ----

    def publish(self, event: Event) -> None:
        self.events.publish(event)

    def _announce(self, entity: Entity, transitions: list[Transition], forced: bool = False) -> None:
        for transition in transitions:
            path, error = entity.path, entity.last_error
            if transition is Transition.SUSPECTED and error is not None:
                logger.warning("%s is suspect: %s", path, type(error).__name__)
                self.publish(Suspected(entity=path, error=error))
            elif transition is Transition.FAILED_OVER:
                logger.warning("%s has failed over: its messages go to the backlog", path)
                self.publish(FailedOver(entity=path, error=None if forced else error, forced=forced))
            elif transition is Transition.RECOVERED:
                entity.last_error = None
                logger.warning("%s is back: its messages go to the primary", path)
                self.publish(Recovered(entity=path, forced=forced))
        if transitions:
            self.wake()

    def _announce_restored(self, restored: list[int]) -> None:
        for index in restored:
            logger.info("Backlog queue %s is back in the rotation", self.queue_path(index))
            self.publish(BacklogQueueRestored(queue=self.queue_path(index)))
