"""Runs one scenario through faults, recovery and a full drain, and checks it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any, cast

from twinbus.client.partnership import SIDES, Partnership
from twinbus.client.runtime import Runtime
from twinbus.ledger.durable_rows import for_syphon
from twinbus.ledger.recorder import Operation
from twinbus.pairing.events import Event
from twinbus.pairing.failover.entity_failover import FailedOver, Healthy
from twinbus.pairing.namespace import Namespace
from twinbus.pairing.pairing_state import Pairing
from twinbus.syphon.connector import Side
from twinbus.syphon.host import SyphonHost
from twinbus.syphon.terms import Terms

from ..checker import NotDrainedError, Verdict, check
from ..history import History, Id
from ..ledger_words import disagreements
from .amqp import SimulatedSide
from .application import Application, Receiver
from .callers import TURN_COSTS, scenario_of
from .judgements import Record
from .judgements import complaints as complaints_of
from .ledger import SimulatedLedger
from .network import EPOCH, Fault, FaultKind, Process, SimulatedNamespace
from .scenario import PRIMARY, SECONDARY, Action, BusySession, PlannedAction, PlannedSend, Scenario
from .sdk import SimulatedSite
from .trace import Trace
from .virtual_time import START, StuckError, VirtualLoop

#: Seconds of virtual time after which a run counts as stuck.
LIMIT = 3600.0
#: Seconds within which every entity must recover: the longest ping interval of a relapsed entity.
RECOVERY = 400.0
#: Seconds a message may outlive its time to live while it waits in a pump, which releases it after that.
MAX_STALE = 45.0
#: Seconds for which a running syphon may continue before the last drain.
LINGER = 80
#: Seconds within which a session in continuous use is back on the primary after recovery: normally, and where messages
#: may still be locked by a killed syphon or by one that waits for a lost answer.
HAND_BACK, LATE_HAND_BACK = 20.0, 200.0
_DELAYING_ACTIONS = frozenset({Action.KILL_SYPHON, Action.RESTART_SYPHON, Action.EXPIRE_LOCKS, Action.STALL_LEDGER})
_ANSWER_LOSING_FAULTS = frozenset({FaultKind.BLACK_HOLE, FaultKind.LOST_ANSWER, FaultKind.SLOW})
MAX_DRAINS = 5


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run; `complaints` lists everything that must not happen."""

    seed: int
    complaints: tuple[str, ...]
    verdict: Verdict | None
    #: Whether order within a session was promised.
    keeps_order: bool
    diverted: int
    #: Number of requests struck by each fault, and of each action.
    struck: Mapping[str, int]
    #: Virtual time.
    seconds: float
    digest: str
    trace: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        return not self.complaints


def simulate(seed: int, *, trace: bool = False) -> Result:
    """Run the scenario of a seed and check it."""
    loop = VirtualLoop()
    run = Run(scenario_of(seed), loop, Trace(loop.time, trace))
    loop.set_exception_handler(run.on_loop_error)
    with _quiet(run.complaints):
        try:
            loop.run(run.play(), LIMIT)
        except StuckError as error:
            run.complaints.append(f"stuck: {error}")
        except Exception as error:
            if trace:
                raise
            run.complaints.append(f"{type(error).__name__}: {error}")
    return run.result()


class _UnexpectedErrors(logging.Handler):
    """Turns every error logged with a traceback into a complaint: it was not expected."""

    def __init__(self, complaints: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._complaints = complaints

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self._complaints.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


@contextlib.contextmanager
def _quiet(complaints: list[str]) -> Iterator[None]:
    """Suppress warnings, which faults cause on purpose, and collect unexpected errors."""
    disabled_level, logger = logging.root.manager.disable, logging.getLogger("twinbus")
    handler, propagate = _UnexpectedErrors(complaints), logger.propagate
    logging.disable(logging.WARNING)
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logging.disable(disabled_level)
        logger.removeHandler(handler)
        logger.propagate = propagate


class Run:
    """One run: its parts and their timeline."""

    def __init__(self, scenario: Scenario, loop: VirtualLoop, trace: Trace) -> None:
        self.scenario = scenario
        self.complaints: list[str] = []
        self._loop = loop
        self._trace = trace
        self._random = Random(scenario.seed ^ 0x5EED)
        self._history = History()
        self._verdict: Verdict | None = None
        self._primary = SimulatedNamespace(PRIMARY, loop, self._random, trace, self._doubt)
        self._secondary = SimulatedNamespace(SECONDARY, loop, self._random, trace, self._doubt)
        self._sides = self._primary, self._secondary
        for side in self._sides:
            side.on_stored, side.on_deleted = self._stored, self._deleted
        self._events: list[tuple[float, Event]] = []
        self._wall_jump = 0.0
        self._processes = 0
        self._done: Counter[str] = Counter()
        self._ledgers: list[SimulatedLedger] = []
        self._syphon: SyphonProcess | None = None
        #: The application's syphon as a process of its own, if it hosts one.
        self._hosting = Process("app")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._in_deleted_queues: set[Id] = set()

    def _doubt(self, message_id: str) -> None:
        self._trace("doubt", message_id)
        entity = self._app.entities.get(message_id)
        if entity is not None:
            self._history.doubt(entity, message_id)

    def _stored(self, message_id: str) -> None:
        entity = self._app.entities.get(message_id)
        if entity is not None:
            self._history.store(entity, message_id)

    def _deleted(self, message_id: str) -> None:
        """A queue was deleted with a message. That excuses nothing if another queue has a copy."""
        entity = self._app.entities.get(message_id)
        if entity is None:
            return
        self._in_deleted_queues.add(Id(entity, message_id))
        if not any(queue.holds(message_id) for side in self._sides for queue in side.queues.values()):
            self._history.delete(entity, message_id)

    def on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Record an exception that no code handled."""
        error = context.get("exception")
        self.complaints.append(f"{context['message']}: {error!r}")

    # ---- start ----

    async def play(self) -> None:
        scenario = self.scenario
        for side, skew, latencies in zip(self._sides, scenario.skews, scenario.latencies, strict=True):
            side.skew, side.latencies = skew, latencies
        ledger = self._new_ledger()
        self._pairing = Pairing(
            scenario.options,
            PRIMARY,
            client="app",
            recorder=ledger if scenario.has_ledger else None,
            clock=self._loop.time,
            random=Random(scenario.seed ^ 0xB0),
        )
        self._pairing.events.subscribe(self._on_event)
        for queue in scenario.queues:
            added = self._primary.add_queue(
                queue.path,
                requires_session=queue.requires_session,
                duplicate_window=queue.duplicate_window,
                shows_pings=queue.shows_pings,
            )
            added.properties = {}
        self._app = Application(self._pairing, scenario.senders, self._sides, self._history, self._trace)
        for queue in scenario.queues:
            is_timed = scenario.options.ttl == "remaining"
            Receiver(self._primary, self._primary.queue(queue.path), self._app, is_timed)
        process = Process("app")
        primary, secondary = (cast(Namespace, SimulatedSite(side, process)) for side in self._sides)
        self._partnership = Partnership()
        self._runtime = Runtime(self._pairing, primary, secondary, self._partnership, self._hosted_syphon)
        self._start_task(self._runtime.start())  # in a separate task, as a client does
        await self._run_agenda()
        await self._recover()
        await self._drain()
        self._judge()

    def _on_event(self, event: Event) -> None:
        self._trace("event", type(event).__name__)
        self._events.append((self._loop.time(), event))

    def _new_ledger(self) -> SimulatedLedger:
        ledger = SimulatedLedger(self._loop, self._random)
        self._ledgers.append(ledger)
        return ledger

    # ---- syphons ----

    def _wall_clock(self) -> float:
        return EPOCH + self._loop.time() + self._wall_jump

    def _new_process(self, ledger: SimulatedLedger) -> SyphonProcess:
        self._processes += 1
        return SyphonProcess(f"syphon-{self._processes}", self, ledger)

    def _hosted_syphon(self, queues: Any, terms: Terms) -> SyphonHost:
        """The syphon within the application. Its connections can be killed; it shares the application's ledger."""
        self._hosting = Process("app")
        primary, secondary = self._sides_for(self._hosting)
        return SyphonHost(primary, secondary, queues, replace(terms, wall_clock=self._wall_clock))

    def _sides_for(self, process: Process) -> tuple[Side, Side]:
        return (
            cast(Side, SimulatedSide(self._primary, process)),
            cast(Side, SimulatedSide(self._secondary, process)),
        )

    def _backlog(self) -> list[str]:
        return [self._pairing.queue_path(index) for index in range(self.scenario.options.backlog_queue_count)]

    def new_host(self, process: Process, ledger: SimulatedLedger) -> SyphonHost:
        options = self.scenario.options
        recorder, flush = for_syphon(
            ledger, self._loop, ledger="required" if self.scenario.has_ledger else "best_effort"
        )
        terms = Terms(
            options=options.syphon,
            ttl=options.ttl,
            order=options.order,
            pairing=PRIMARY,
            client=process.name,
            recorder=recorder,
            flush=flush,
            lock_seconds=60.0,
            wall_clock=self._wall_clock,
        )
        primary, secondary = self._sides_for(process)
        return SyphonHost(primary, secondary, self._backlog(), terms)

    async def _start_syphon(self) -> None:
        if not self.scenario.options.enable_syphon and self._syphon is None:
            self._syphon = self._new_process(self._new_ledger())
            await self._syphon.host.start()

    async def _end_syphon(self, *, kill: bool) -> None:
        syphon, self._syphon = self._syphon, None
        if syphon is None:
            return
        self._trace("kill" if kill else "stop", syphon.name)
        if kill:
            syphon.kill()
        await syphon.host.close()
        self._doubt_unsettled(syphon)
        if not kill:
            syphon.ledger.close()

    def _doubt_unsettled(self, process: Process) -> None:
        """Mark messages as doubtful that a syphon received but did not settle: the next one moves them again."""
        left = {message_id for queue in self._secondary.queues.values() for message_id in queue.ids.values()}
        for message_id in process.received_ids:
            if message_id in left:
                self._doubt(message_id)

    # ---- faults and actions ----

    async def _run_agenda(self) -> None:
        """Perform everything that is planned, at its time."""
        scenario = self.scenario
        agenda: list[tuple[float, int, Any]] = []
        for fault in scenario.faults:
            agenda += [(fault.start, 0, fault), (fault.end, 1, fault)]
        agenda += [(action.at, 2, action) for action in scenario.actions]
        agenda += [(send.at, 3, send) for send in scenario.sends]
        agenda.append((scenario.syphon_at, 4, None))
        agenda += [(busy.since, 5, (number, busy)) for number, busy in enumerate(scenario.busy_sessions)]
        for at, kind, item in sorted(agenda, key=lambda entry: entry[:2]):
            if at > scenario.duration:
                continue
            await asyncio.sleep(max(0.0, START + at - self._loop.time()))
            self._perform(kind, item)
        await asyncio.sleep(max(0.0, START + scenario.duration - self._loop.time()))

    def _perform(self, kind: int, item: Fault | PlannedAction | PlannedSend | tuple[int, BusySession] | None) -> None:
        if isinstance(item, Fault):
            side = self._primary if item.namespace == PRIMARY else self._secondary
            (side.begin if kind == 0 else side.end)(item)
        elif isinstance(item, PlannedSend):
            self._app.begin(item)
        elif isinstance(item, PlannedAction):
            self._trace("deed", item.action.value)
            self._done[item.action.value] += 1
            self._start_task(self._perform_action(item))
        elif isinstance(item, tuple):
            self._app.begin_busy(*item)
        else:
            self._start_task(self._start_syphon())

    def _start_task(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.complaints.append(f"background task failed: {task.exception()!r}")

    async def _perform_action(self, planned: PlannedAction) -> None:
        action, which = planned.action, planned.which
        path = self.scenario.queues[which % len(self.scenario.queues)].path
        if action in (Action.KILL_SYPHON, Action.RESTART_SYPHON):
            if action is Action.KILL_SYPHON:
                await self._until_busy(planned.seconds)
            await self._end_syphon(kill=action is Action.KILL_SYPHON)
            await asyncio.sleep(abs(planned.seconds) / 10)
            await self._start_syphon()
        elif action is Action.EXPIRE_LOCKS:
            await self._until_busy(planned.seconds)
            for queue in self._secondary.queues.values():
                queue.expire_locks()
        elif action is Action.CLOSE_SENDER:
            await self._app.replace_sender(which)
        elif action is Action.FAIL_OVER:
            self._pairing.fail_over(path)
        elif action is Action.FAIL_BACK:
            self._pairing.fail_back(path)
        elif action is Action.CLOCK_JUMP:
            self._wall_jump += planned.seconds
        elif action is Action.STALL_LEDGER:
            for ledger in self._ledgers:
                ledger.stalled_until = self._loop.time() + abs(planned.seconds)
        elif action is Action.CANCEL_SEND:
            self._app.cancel(which)
        elif action is Action.STARVE:
            self._loop.starve(planned.seconds, TURN_COSTS[which])
        elif action is Action.CLOSE_PARTNER:
            role = SIDES[which % 2]
            self._partnership.closed(role)
            self._runtime.client_ended(role)

    async def _until_busy(self, seconds: float) -> None:
        """Wait until just after the syphon receives a message, or for a while: an idle one has little to lose."""
        process = self._syphon or self._hosting
        count = len(process.received_ids)
        for _ in range(100):
            if len(process.received_ids) > count:
                break
            await asyncio.sleep(0.1)
        await asyncio.sleep(abs(seconds) / 600)

    # ---- end ----

    async def _recover(self) -> None:
        """The faults are over: everything must recover without help, except forced failovers."""
        await self._app.finish()
        while self._tasks:
            await asyncio.wait(self._tasks)
        until = self._loop.time() + RECOVERY
        for entity in self._pairing.entities():
            state = self._pairing.state_of(entity)
            if isinstance(state, FailedOver) and state.is_forced:
                self._pairing.fail_back(entity.path)
        while self._pairing.fault is None and not self._is_healthy():
            if self._loop.time() > until:
                self.complaints.append(f"not recovered within {RECOVERY:g} s")
                break
            await asyncio.sleep(1.0)
        await self._hand_back()
        for _ in range(LINGER):
            # A running syphon needs no replacement: orphaned locks expire.
            if not self._has_syphon() or not self._is_anything_left():
                break
            await asyncio.sleep(1.0)
        await self._app.close()
        await self._end_syphon(kill=False)
        await self._runtime.close()
        self._doubt_unsettled(self._hosting)

    async def _hand_back(self) -> None:
        """Check that sessions in continuous use return to the primary while a syphon drains the backlog."""
        scenario, began = self.scenario, self._loop.time()
        is_delayed = any(action.action in _DELAYING_ACTIONS for action in scenario.actions) or any(
            fault.namespace == SECONDARY or fault.kind in _ANSWER_LOSING_FAULTS for fault in scenario.faults
        )
        seconds = LATE_HAND_BACK if is_delayed else HAND_BACK
        left = list(scenario.busy_sessions)
        while left and self._is_handing_back():
            left = [busy for busy in left if not self._app.is_back(busy, began)]
            if left and self._loop.time() > began + seconds:
                names = ", ".join(busy.session for busy in left)
                self.complaints.append(f"not handed back within {seconds:g} s: {names}")
                break
            await asyncio.sleep(0.5)
        await self._app.stop_busy()

    def _is_handing_back(self) -> bool:
        return self._pairing.fault is None and self._has_syphon() and not self._secondary.faults

    def _has_syphon(self) -> bool:
        return self._syphon is not None or (self.scenario.options.enable_syphon and self._pairing.fault is None)

    def _is_anything_left(self) -> bool:
        return any(queue.messages for queue in self._secondary.queues.values())

    def _is_healthy(self) -> bool:
        entities = self._pairing.entities()
        return all(isinstance(self._pairing.state_of(entity), Healthy) for entity in entities)

    async def _drain(self) -> None:
        """Without faults a syphon drains the backlog, and the receivers drain the primary."""
        for fault in list(self._secondary.faults):
            self._secondary.end(fault)  # a permanent state: fixed now by the owner of the queues
        if self.scenario.syphon_at > self.scenario.duration:
            await asyncio.sleep(self.scenario.syphon_at - self.scenario.duration)
        # Late copies of abandoned sends may still be in transit on a slow network.
        last_arrival = max(side.last_arrival for side in self._sides)
        await asyncio.sleep(max(0.0, last_arrival - self._loop.time()))
        for _ in range(MAX_DRAINS):
            if not self._is_anything_left():
                break
            process = self._new_process(self._new_ledger())
            report = await process.host.drain()
            process.ledger.close()
            self._trace("drained", str(report.total))
        for ledger in self._ledgers:
            ledger.close()
        while any(queue.messages for queue in self._primary.queues.values()):
            for queue in self._primary.queues.values():
                queue.sweep()
            await asyncio.sleep(1.0)

    def _judge(self) -> None:
        for side in self._sides:
            for queue in side.queues.values():
                for letter in queue.dead:
                    entity = self._app.entities.get(letter.message_id)
                    if entity is not None:
                        self._history.dead_letter(entity, letter.message_id, letter.reason, at=letter.at)
        self._history.drained(
            {f"{side.name}/{queue.path}": len(queue.messages) for side in self._sides for queue in side.queues.values()}
        )
        self.complaints += self._app.complaints
        record = Record(
            self.scenario,
            self._app.calls,
            self._events,
            self._loop.starved,
            self._secondary.created_at,
            self._app.sent_to_primary,
            self._history,
        )
        self.complaints += complaints_of(record)
        try:
            verdict = self._verdict = check(self._history, tolerance=MAX_STALE)
        except NotDrainedError as error:
            self.complaints.append(str(error))
            return
        promised = ["lost", "unexpected", "altered", "outlived", "unexplained"]
        if self.scenario.options.order == "session":
            promised.append("order_violations")
        self.complaints += [
            f"{word}: {', '.join(message.message_id for message in getattr(verdict, word))}"
            for word in promised
            if getattr(verdict, word)
        ]
        if self.scenario.has_ledger:
            rows: list[Operation] = [row for ledger in self._ledgers for row in ledger.durable]
            completed = [message_id for queue in self._secondary.queues.values() for message_id in queue.completed]
            self.complaints += disagreements(verdict, rows, completed, self._in_deleted_queues)

    def result(self) -> Result:
        sent = self._history.sent.values()
        return Result(
            self.scenario.seed,
            tuple(self.complaints),
            self._verdict,
            self.scenario.options.order == "session",
            sum(message.route == "backlog" for message in sent),
            sum((side.struck for side in self._sides), self._done),
            self._loop.time() - START,
            self._trace.digest(),
            tuple(self._trace.lines),
        )


class SyphonProcess(Process):
    """A syphon in its own process."""

    def __init__(self, name: str, run: Run, ledger: SimulatedLedger) -> None:
        super().__init__(name)
        self.ledger = ledger
        self.host = run.new_host(self, ledger)

    def kill(self) -> None:
        super().kill()
        self.ledger.kill()
