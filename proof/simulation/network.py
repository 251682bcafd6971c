"""Simulates namespaces behind a network that delays, loses and cuts requests and answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from random import Random
from typing import Any, Protocol

from twinbus.emulator.protocol.error_conditions import (
    ENTITY_DISABLED,
    NOT_FOUND,
    QUOTA_EXCEEDED,
    SERVER_BUSY,
    UNAUTHORIZED,
)

from .entities import RefusedError, SimulatedQueue
from .trace import Trace
from .virtual_time import TICK

#: Wall-clock time at the start of all runs, in seconds since the epoch: far in the future.
EPOCH = 4_000_000_000.0
#: Default one-way latency in seconds, least and most.
LATENCY = 0.001, 0.03
SLOWNESS = 0.3, 14.0
#: Seconds for which the syphon's connection waits for an answer.
ANSWER_TIMEOUT = 75.0
#: Seconds without a request after which a link counts as idle: longer than any iteration of a starved loop.
IDLE_SECONDS = 12.0


class FaultKind(Enum):
    """What a fault does. The values appear in traces and in the JSON summary."""

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
    NOT_FOUND = "not found for a moment"
    FORBIDDEN = "sending forbidden"
    DETACH = "detach"
    CRASH = "crash and restart"
    IDLE = "idle links detached"


class Request(Enum):
    """A kind of request to a namespace."""

    CONNECT = "connect"
    ATTACH = "attach"
    LISTEN = "listen"
    SEND = "send"
    SETTLE = "settle"
    MANAGE = "manage"
    FLOW = "flow"


_CONDITIONS = {
    FaultKind.BUSY: SERVER_BUSY,
    FaultKind.QUOTA: QUOTA_EXCEEDED,
    FaultKind.DISABLED: ENTITY_DISABLED,
    FaultKind.DELETED: NOT_FOUND,
    FaultKind.NOT_FOUND: NOT_FOUND,
    FaultKind.FORBIDDEN: UNAUTHORIZED,
}
_REFUSED_REQUESTS = {
    FaultKind.BUSY: frozenset({Request.SEND, Request.ATTACH, Request.LISTEN, Request.MANAGE}),
    FaultKind.QUOTA: frozenset({Request.SEND}),
    FaultKind.DISABLED: frozenset({Request.SEND, Request.ATTACH, Request.LISTEN}),
    FaultKind.DELETED: frozenset({Request.SEND, Request.ATTACH, Request.LISTEN, Request.MANAGE}),
    FaultKind.NOT_FOUND: frozenset({Request.SEND, Request.ATTACH, Request.LISTEN, Request.MANAGE}),
    FaultKind.FORBIDDEN: frozenset({Request.SEND, Request.ATTACH}),
}
#: Faults that strike requests at random; the others strike every request.
_RANDOM_FAULTS = frozenset({FaultKind.RESET_BEFORE, FaultKind.RESET_AFTER, FaultKind.LOST_ANSWER, FaultKind.DETACH})
_SPARED_REQUESTS = frozenset({Request.CONNECT, Request.ATTACH, Request.LISTEN, Request.FLOW})


class CutError(Exception):
    """The connection was lost."""


class DetachedError(Exception):
    """The service detached the link without a reason."""


class SilentError(Exception):
    """No answer arrived within the timeout, so the connection is given up."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault from `start` to `end`, in seconds of the run; `entity` `None` means the whole namespace."""

    kind: FaultKind
    namespace: str
    entity: str | None
    start: float
    end: float
    chance: float = 1.0


class Link(Protocol):
    """The client's end of a link, which the service can detach."""

    path: str

    def detached(self) -> None: ...


class Process:
    """Connections that are killed together. A dead process cannot connect."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.wires: list[Wire] = []
        self.received_ids: dict[str, None] = {}

    def kill(self) -> None:
        self.is_alive = False
        for wire in self.wires:
            wire.abort()


class SimulatedNamespace:
    """A namespace: its queues, its connections, and its current faults."""

    def __init__(
        self, name: str, loop: asyncio.AbstractEventLoop, random: Random, trace: Trace, doubt: Callable[[str], None]
    ) -> None:
        self.name = name
        self.host = f"{name}.servicebus.windows.net"
        self.loop = loop
        self.random = random
        self.trace = trace
        self.doubt = doubt
        #: Seconds by which its clock is ahead of the loop's.
        self.skew = 0.0
        #: Least and most one-way latency in seconds.
        self.latencies = LATENCY
        #: Called with the id of each message before an SDK sender sends it.
        self.on_send: Callable[[str], None] = lambda message_id: None
        #: Called with the id of each message that was stored, and of each that was deleted with its queue.
        self.on_stored: Callable[[str], None] = lambda message_id: None
        self.on_deleted: Callable[[str], None] = lambda message_id: None
        self.queues: dict[str, SimulatedQueue] = {}
        #: Creation time of each queue, by path.
        self.created_at: dict[str, float] = {}
        self.wires: dict[Wire, None] = {}
        self.faults: list[Fault] = []
        #: Number of requests struck, by fault kind.
        self.struck: Counter[str] = Counter()
        #: Arrival time of the last request in transit.
        self.last_arrival = 0.0

    def now_ms(self) -> int:
        return int((EPOCH + self.loop.time() + self.skew) * 1000)

    def add_queue(self, path: str, **properties: Any) -> SimulatedQueue:
        queue = self.queues[path.lower()] = SimulatedQueue(path, self.loop, self.now_ms, **properties)
        queue.on_stored = lambda message_id: self.on_stored(message_id)
        self.created_at[path] = self.loop.time()
        return queue

    def queue(self, path: str) -> SimulatedQueue:
        """The queue with this path. Raises `RefusedError` if there is none."""
        queue = self.queues.get(path.lower())
        if queue is None:
            raise RefusedError(NOT_FOUND)
        return queue

    # ---- faults ----

    def begin(self, fault: Fault) -> None:
        self.trace("fault", self.name, fault.entity or "*", fault.kind.value)
        self.faults.append(fault)
        if fault.kind in (FaultKind.REFUSE, FaultKind.CRASH):
            for wire in list(self.wires):
                wire.cut()
        elif fault.kind in (FaultKind.DETACH, FaultKind.IDLE):
            self._detach(fault)
        elif fault.kind is FaultKind.DELETED:
            self._delete(fault)

    def _detach(self, fault: Fault) -> None:
        for wire in list(self.wires):
            if fault.kind is FaultKind.IDLE and not wire.is_idle:
                continue
            for link in list(wire.links):
                if fault.entity in (None, link.path):
                    link.detached()
                    self.struck[fault.kind.value] += 1

    def _delete(self, fault: Fault) -> None:
        """Delete queues for good, with their messages and links. When the fault ends they exist again, empty."""
        for queue in self.queues.values():
            if fault.entity in (None, queue.path):
                for message_id in queue.delete():
                    self.trace("gone", self.name, queue.path, message_id)
                    self.on_deleted(message_id)
        self._detach(fault)

    def is_deleted(self, path: str) -> bool:
        """Whether a queue is deleted, and cannot be created yet."""
        return any(fault.kind is FaultKind.DELETED and fault.entity in (None, path) for fault in self.faults)

    def end(self, fault: Fault) -> None:
        self.trace("over", self.name, fault.entity or "*", fault.kind.value)
        self.faults.remove(fault)
        if fault.kind is FaultKind.CRASH:
            for wire in list(self.wires):  # a slow connection may have been accepted meanwhile
                wire.cut()
            for queue in self.queues.values():
                queue.restart()

    def fault_for(self, request: Request, entity: str) -> FaultKind | None:
        """The fault that strikes a request to an entity now, or `None`."""
        for fault in self.faults:
            if fault.entity is not None and fault.entity != entity:
                continue
            kind = fault.kind
            if kind is FaultKind.IDLE:
                continue
            if kind in _REFUSED_REQUESTS and request not in _REFUSED_REQUESTS[kind]:
                continue
            if kind in _RANDOM_FAULTS and (request in _SPARED_REQUESTS or self.random.random() >= fault.chance):
                continue
            if kind in (FaultKind.SLOW, FaultKind.REFUSE, FaultKind.CRASH) and request is not Request.CONNECT:
                continue
            self.struck[kind.value] += 1
            return kind
        return None

    def is_unreachable(self) -> bool:
        """Whether no client can reach the namespace."""
        outages = (FaultKind.REFUSE, FaultKind.BLACK_HOLE, FaultKind.CRASH)
        return any(fault.entity is None and fault.kind in outages for fault in self.faults)

    def latency(self, entity: str) -> float:
        """Draw a one-way latency in seconds."""
        seconds = self.random.uniform(*self.latencies)
        for fault in self.faults:
            if fault.kind is FaultKind.SLOW and fault.entity in (None, entity):
                seconds += self.random.uniform(*SLOWNESS)
                self.struck[fault.kind.value] += 1
        return seconds

    # ---- connections ----

    async def connect(self, process: Process) -> Wire:
        """Open a connection. Raises `CutError` if it is refused; never returns in a black hole."""
        await asyncio.sleep(2 * self.latency(""))
        kind = self.fault_for(Request.CONNECT, "")
        self.trace("connect", process.name, self.name, kind.value if kind else "")
        if not process.is_alive or kind is FaultKind.BLACK_HOLE:
            await self.loop.create_future()
        if kind in (FaultKind.REFUSE, FaultKind.CRASH):
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
        #: Whether a missing answer ends the connection.
        self.has_answer_timeout = False
        self.answer_timeout = ANSWER_TIMEOUT
        self.error: Exception | None = None
        self._arrives_late = False
        self._loop = namespace.loop
        self._pending: dict[asyncio.Future[Any], None] = {}
        self._next_arrival = self._next_answer = 0.0
        self._last_request_at = namespace.loop.time()

    @property
    def is_idle(self) -> bool:
        """Whether no request is pending, and none was sent for a while."""
        return not self._pending and self._loop.time() - self._last_request_at > IDLE_SECONDS

    def ask(
        self, request: Request, entity: str, act: Callable[[], Any], subjects: Sequence[str] = ()
    ) -> asyncio.Future[Any]:
        """Send a request. The future gets the result of `act`, a `RefusedError`, `DetachedError` or `CutError`.

        `subjects` are the ids of its messages. A client that no longer needs the answer cancels the future.
        """
        answer: asyncio.Future[Any] = self._loop.create_future()
        if self.error is not None:
            self._fail(answer, self.error)
            return answer
        self._pending[answer] = None
        self._last_request_at = self._loop.time()
        self._next_arrival = max(self._next_arrival + TICK, self._loop.time() + self.namespace.latency(entity))
        self.namespace.last_arrival = max(self.namespace.last_arrival, self._next_arrival)
        self._loop.call_at(self._next_arrival, self._arrive, request, entity, act, subjects, answer)
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
        if self.error is not None and (not self._arrives_late or namespace.is_unreachable()):
            return
        kind = namespace.fault_for(request, entity)
        namespace.trace(request.value, self.process.name, namespace.name, entity, *subjects, kind.value if kind else "")
        if kind is FaultKind.BLACK_HOLE:
            self._withhold_answer(answer)
        elif kind is FaultKind.RESET_BEFORE:
            self.cut()
        elif kind is FaultKind.DETACH:
            self._answer(entity, answer, DetachedError("detached"), None)
        elif kind in _CONDITIONS:
            self._answer(entity, answer, RefusedError(_CONDITIONS[kind]), None)
        else:
            self._act(entity, act, subjects, answer, kind)

    def _act(
        self,
        entity: str,
        act: Callable[[], Any],
        subjects: Sequence[str],
        answer: asyncio.Future[Any],
        kind: FaultKind | None,
    ) -> None:
        try:
            result = act()
        except RefusedError as error:
            self._answer(entity, answer, error, None)
            return
        # The request took effect: a client that does not get the answer may repeat it.
        answer.add_done_callback(partial(self._doubt_unless_answered, subjects))
        if kind is FaultKind.RESET_AFTER:
            self.cut()
        elif kind is FaultKind.LOST_ANSWER:
            self._withhold_answer(answer)
        else:
            self._answer(entity, answer, None, result)

    def _answer(self, entity: str, answer: asyncio.Future[Any], error: Exception | None, result: Any) -> None:
        self._next_answer = max(self._next_answer + TICK, self._loop.time() + self.namespace.latency(entity))
        self._loop.call_at(self._next_answer, self._deliver_answer, answer, error, result)

    def _deliver_answer(self, answer: asyncio.Future[Any], error: Exception | None, result: Any) -> None:
        if error is not None:
            self._fail(answer, error)
        elif not answer.done():
            answer.set_result(result)
        self._pending.pop(answer, None)

    def send_push(self, entity: str, deliver: Callable[[], None]) -> None:
        """Send something that was not requested; lost in a black hole."""
        if self.namespace.fault_for(Request.FLOW, entity) is FaultKind.BLACK_HOLE:
            return
        self._next_answer = max(self._next_answer + TICK, self._loop.time() + self.namespace.latency(entity))
        self._loop.call_at(self._next_answer, self._deliver_push, deliver)

    def _deliver_push(self, deliver: Callable[[], None]) -> None:
        if self.error is None:
            deliver()

    def _withhold_answer(self, answer: asyncio.Future[Any]) -> None:
        if self.has_answer_timeout:
            self._loop.call_later(self.answer_timeout, self._answer_timed_out, answer)

    def _answer_timed_out(self, answer: asyncio.Future[Any]) -> None:
        if not answer.done():
            self.fail(SilentError(f"no answer within {self.answer_timeout:g} seconds"))

    def _doubt_unless_answered(self, subjects: Sequence[str], answer: asyncio.Future[Any]) -> None:
        if answer.cancelled() or answer.exception() is not None:
            for message_id in subjects:
                self.namespace.doubt(message_id)

    @staticmethod
    def _fail(answer: asyncio.Future[Any], error: Exception) -> None:
        if not answer.done():
            answer.set_exception(error)
            answer.exception()  # retrieve it, in case no one is waiting

    # ---- the end ----

    def cut(self) -> None:
        """Break the connection; everything in transit is lost."""
        self.fail(CutError("the connection was reset"))

    def abort(self) -> None:
        """Close the client's side. Requests already sent may still arrive."""
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
