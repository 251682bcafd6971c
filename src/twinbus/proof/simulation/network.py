"""Namespaces behind a network that delays, loses and cuts: what a request meets on its way there and back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from random import Random
from typing import Any, Protocol

from twinbus.broker.errors import ENTITY_DISABLED, NOT_FOUND, QUOTA_EXCEEDED, SERVER_BUSY, UNAUTHORIZED

from .entities import RefusedError, SimulatedQueue
from .trace import Trace
from .virtual_time import TICK

#: The time of day at the beginning of all runs, in seconds since the epoch: a long time from now, whoever runs it.
EPOCH = 4_000_000_000.0
#: The seconds that a request takes to get there, and its answer to come back, unless a run says otherwise.
LATENCY = 0.001, 0.03
SLOWNESS = 0.3, 14.0
#: How long the syphon's connection waits for the peer's word before it gives up on it.
PATIENCE = 75.0
#: After how long without a request a link can be detached as idle: longer than any turn of a starved process.
IDLE_SECONDS = 12.0


class Weather(Enum):
    """What can be wrong with a namespace, or with one of its entities, for a while."""

    REFUSE = "refuse"
    RESET_BEFORE = "reset before store"
    RESET_AFTER = "reset after store"
    BLACK_HOLE = "black hole"
    SLOW = "slow"
    LOST_ANSWER = "lost acknowledgement"
    BUSY = "server busy"
    QUOTA = "quota"
    DISABLED = "entity disabled"
    DELETED = "entity deleted"
    FORBIDDEN = "sending forbidden"
    DETACH = "detach"
    CRASH = "crash and restart"
    IDLE = "idle links detached"


class Request(Enum):
    """What is asked of a namespace."""

    CONNECT = "connect"
    ATTACH = "attach"
    LISTEN = "listen"
    SEND = "send"
    SETTLE = "settle"
    MANAGE = "manage"
    FLOW = "flow"


_REFUSALS = {
    Weather.BUSY: SERVER_BUSY,
    Weather.QUOTA: QUOTA_EXCEEDED,
    Weather.DISABLED: ENTITY_DISABLED,
    Weather.DELETED: NOT_FOUND,
    Weather.FORBIDDEN: UNAUTHORIZED,
}
_REFUSED = {
    Weather.BUSY: frozenset({Request.SEND, Request.ATTACH, Request.LISTEN, Request.MANAGE}),
    Weather.QUOTA: frozenset({Request.SEND}),
    Weather.DISABLED: frozenset({Request.SEND, Request.ATTACH, Request.LISTEN}),
    Weather.DELETED: frozenset({Request.SEND, Request.ATTACH, Request.LISTEN, Request.MANAGE}),
    Weather.FORBIDDEN: frozenset({Request.SEND, Request.ATTACH}),
}
#: What strikes requests at random as long as it lasts; the rest strikes all of them.
_FICKLE = frozenset({Weather.RESET_BEFORE, Weather.RESET_AFTER, Weather.LOST_ANSWER, Weather.DETACH})
_PASSES = frozenset({Request.CONNECT, Request.ATTACH, Request.LISTEN, Request.FLOW})


class CutError(Exception):
    """The connection is gone."""


class DetachedError(Exception):
    """The link was ended by the service, without a reason."""


class SilentError(Exception):
    """Nothing was answered for so long that the connection is given up."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something wrong from `start` to `end`, in seconds of the run; `entity` None: the whole namespace."""

    weather: Weather
    namespace: str
    entity: str | None
    start: float
    end: float
    chance: float = 1.0


class Link(Protocol):
    """Our end of a link, as far as a service that detaches it is concerned."""

    path: str

    def detached(self) -> None: ...


class Process:
    """What is killed together. Nothing that a dead process does reaches anybody."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.wires: list[Wire] = []
        self.given: dict[str, None] = {}

    def kill(self) -> None:
        self.is_alive = False
        for wire in self.wires:
            wire.abort()


class SimulatedNamespace:
    """A namespace: its queues, the connections to it, and its weather."""

    def __init__(
        self, name: str, loop: asyncio.AbstractEventLoop, random: Random, trace: Trace, doubt: Callable[[str], None]
    ) -> None:
        self.name = name
        self.host = f"{name}.servicebus.windows.net"
        self.loop = loop
        self.random = random
        self.trace = trace
        self.doubt = doubt
        #: How far its clock is from ours, in seconds.
        self.skew = 0.0
        #: The least and the most seconds that a request, or an answer, is on its way.
        self.latencies = LATENCY
        #: Called with the id of each message that a sender of the SDK is about to send.
        self.on_send: Callable[[str], None] = lambda message_id: None
        self.queues: dict[str, SimulatedQueue] = {}
        #: When each queue was made, by its path.
        self.made: dict[str, float] = {}
        self.wires: dict[Wire, None] = {}
        self.faults: list[Fault] = []
        #: How many requests met what.
        self.struck: Counter[str] = Counter()
        #: When the last of the requests comes that are on their way now.
        self.last_arrival = 0.0

    def now_ms(self) -> int:
        return int((EPOCH + self.loop.time() + self.skew) * 1000)

    def add_queue(self, path: str, **properties: Any) -> SimulatedQueue:
        queue = self.queues[path.lower()] = SimulatedQueue(path, self.loop, self.now_ms, **properties)
        self.made[path] = self.loop.time()
        return queue

    def queue(self, path: str) -> SimulatedQueue:
        """Raises `RefusedError` if there is none."""
        found = self.queues.get(path.lower())
        if found is None:
            raise RefusedError(NOT_FOUND)
        return found

    # ---- weather ----

    def begin(self, fault: Fault) -> None:
        self.trace("fault", self.name, fault.entity or "*", fault.weather.value)
        self.faults.append(fault)
        if fault.weather in (Weather.REFUSE, Weather.CRASH):
            for wire in list(self.wires):
                wire.cut()
        elif fault.weather in (Weather.DETACH, Weather.IDLE):
            for wire in list(self.wires):
                if fault.weather is Weather.IDLE and not wire.is_idle:
                    continue
                for link in list(wire.links):
                    if fault.entity in (None, link.path):
                        link.detached()
                        self.struck[fault.weather.value] += 1

    def end(self, fault: Fault) -> None:
        self.trace("over", self.name, fault.entity or "*", fault.weather.value)
        self.faults.remove(fault)
        if fault.weather is Weather.CRASH:
            for wire in list(self.wires):  # a slow connection may have come through
                wire.cut()
            for queue in self.queues.values():
                queue.restart()

    def meets(self, request: Request, entity: str) -> Weather | None:
        """What a request to an entity meets now."""
        for fault in self.faults:
            if fault.entity is not None and fault.entity != entity:
                continue
            weather = fault.weather
            if weather is Weather.IDLE:
                continue
            if weather in _REFUSED and request not in _REFUSED[weather]:
                continue
            if weather in _FICKLE and (request in _PASSES or self.random.random() >= fault.chance):
                continue
            if weather in (Weather.SLOW, Weather.REFUSE, Weather.CRASH) and request is not Request.CONNECT:
                continue
            self.struck[weather.value] += 1
            return weather
        return None

    def is_away(self) -> bool:
        """Whether nobody can reach it."""
        away = (Weather.REFUSE, Weather.BLACK_HOLE, Weather.CRASH)
        return any(fault.entity is None and fault.weather in away for fault in self.faults)

    def latency(self, entity: str) -> float:
        seconds = self.random.uniform(*self.latencies)
        for fault in self.faults:
            if fault.weather is Weather.SLOW and fault.entity in (None, entity):
                seconds += self.random.uniform(*SLOWNESS)
                self.struck[fault.weather.value] += 1
        return seconds

    # ---- connections ----

    async def connect(self, process: Process) -> Wire:
        """A new connection. Raises `CutError` if it is refused; in a black hole it never returns."""
        await asyncio.sleep(2 * self.latency(""))
        weather = self.meets(Request.CONNECT, "")
        self.trace("connect", process.name, self.name, weather.value if weather else "")
        if not process.is_alive or weather is Weather.BLACK_HOLE:
            await self.loop.create_future()
        if weather in (Weather.REFUSE, Weather.CRASH):
            raise CutError("refused")
        wire = Wire(self, process)
        self.wires[wire] = None
        process.wires.append(wire)
        return wire


class Wire:
    """One connection. Requests arrive in order, and so do answers."""

    def __init__(self, namespace: SimulatedNamespace, process: Process) -> None:
        self.namespace = namespace
        self.process = process
        self.links: list[Link] = []
        self.on_cut: Callable[[Exception], None] = lambda error: None
        #: Whether the process gives the connection up when an answer does not come.
        self.is_impatient = False
        #: And after how many seconds.
        self.patience = PATIENCE
        self.error: Exception | None = None
        self._arrives_late = False
        self._loop = namespace.loop
        self._pending: dict[asyncio.Future[Any], None] = {}
        self._next_there = self._next_back = 0.0
        self._asked_at = namespace.loop.time()

    @property
    def is_idle(self) -> bool:
        """Whether no answer is awaited, and nothing was asked for a while."""
        return not self._pending and self._loop.time() - self._asked_at > IDLE_SECONDS

    def ask(
        self, request: Request, entity: str, act: Callable[[], Any], subjects: Sequence[str] = ()
    ) -> asyncio.Future[Any]:
        """Have the namespace do something; the future is its answer, a `RefusedError`, `DetachedError` or `CutError`.

        `subjects` are the ids of the messages that it is about. Whoever does not want the answer any more cancels it.
        """
        answer: asyncio.Future[Any] = self._loop.create_future()
        if self.error is not None:
            self._fail(answer, self.error)
            return answer
        self._pending[answer] = None
        self._asked_at = self._loop.time()
        self._next_there = max(self._next_there + TICK, self._loop.time() + self.namespace.latency(entity))
        self.namespace.last_arrival = max(self.namespace.last_arrival, self._next_there)
        self._loop.call_at(self._next_there, self._arrive, request, entity, act, subjects, answer)
        return answer

    def _arrive(
        self,
        request: Request,
        entity: str,
        act: Callable[[], Any],
        subjects: Sequence[str],
        answer: asyncio.Future[Any],
    ) -> None:
        namespace = self.namespace
        if self.error is not None and (not self._arrives_late or namespace.is_away()):
            return
        weather = namespace.meets(request, entity)
        namespace.trace(
            request.value, self.process.name, namespace.name, entity, *subjects, weather.value if weather else ""
        )
        if weather is Weather.BLACK_HOLE:
            self._say_nothing(answer)
        elif weather is Weather.RESET_BEFORE:
            self.cut()
        elif weather is Weather.DETACH:
            self._answer(entity, answer, DetachedError("detached"), None)
        elif weather in _REFUSALS:
            self._answer(entity, answer, RefusedError(_REFUSALS[weather]), None)
        else:
            self._act(entity, act, subjects, answer, weather)

    def _act(
        self,
        entity: str,
        act: Callable[[], Any],
        subjects: Sequence[str],
        answer: asyncio.Future[Any],
        weather: Weather | None,
    ) -> None:
        try:
            result = act()
        except RefusedError as error:
            self._answer(entity, answer, error, None)
            return
        # It is done: whoever does not hear that, for whatever reason, may rightly do it again.
        answer.add_done_callback(partial(self._doubt_unless_told, subjects))
        if weather is Weather.RESET_AFTER:
            self.cut()
        elif weather is Weather.LOST_ANSWER:
            self._say_nothing(answer)
        else:
            self._answer(entity, answer, None, result)

    def _answer(self, entity: str, answer: asyncio.Future[Any], error: Exception | None, result: Any) -> None:
        self._next_back = max(self._next_back + TICK, self._loop.time() + self.namespace.latency(entity))
        self._loop.call_at(self._next_back, self._tell, answer, error, result)

    def _tell(self, answer: asyncio.Future[Any], error: Exception | None, result: Any) -> None:
        if error is not None:
            self._fail(answer, error)
        elif not answer.done():
            answer.set_result(result)
        self._pending.pop(answer, None)

    def tell_unasked(self, entity: str, tell: Callable[[], None]) -> None:
        """The namespace sends something of its own accord; in a black hole nobody will ever know."""
        if self.namespace.meets(Request.FLOW, entity) is Weather.BLACK_HOLE:
            return
        self._next_back = max(self._next_back + TICK, self._loop.time() + self.namespace.latency(entity))
        self._loop.call_at(self._next_back, self._tell_unasked, tell)

    def _tell_unasked(self, tell: Callable[[], None]) -> None:
        if self.error is None:
            tell()

    def _say_nothing(self, answer: asyncio.Future[Any]) -> None:
        if self.is_impatient:
            self._loop.call_later(self.patience, self._lose_patience, answer)

    def _lose_patience(self, answer: asyncio.Future[Any]) -> None:
        if not answer.done():
            self.fail(SilentError(f"nothing was answered within {self.patience:g} seconds"))

    def _doubt_unless_told(self, subjects: Sequence[str], answer: asyncio.Future[Any]) -> None:
        if answer.cancelled() or answer.exception() is not None:
            for message_id in subjects:
                self.namespace.doubt(message_id)

    @staticmethod
    def _fail(answer: asyncio.Future[Any], error: Exception) -> None:
        if not answer.done():
            answer.set_exception(error)
            answer.exception()  # nobody may be left who wants to know

    # ---- the end ----

    def cut(self) -> None:
        """The connection breaks; what is under way in either direction is lost."""
        self.fail(CutError("the connection was reset"))

    def abort(self) -> None:
        """Our side lets go of it. What was written may arrive all the same."""
        if self.error is None:
            self._arrives_late = self.namespace.random.random() < 0.5
            self.fail(CutError("the connection was cut here"))

    def fail(self, error: Exception) -> None:
        if self.error is not None:
            return
        self.error = error
        self.namespace.wires.pop(self, None)
        pending, self._pending = list(self._pending), {}
        for answer in pending:
            self._fail(answer, error)
        self.on_cut(error)
