"""Simulates the AMQP connections that `twinbus.syphon` gets instead of `Connection`."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable, Generator, Sequence
from typing import Any

from twinbus.amqp.client.deadlines import within
from twinbus.amqp.client.errors import (
    AmqpError,
    AnswerTimeoutError,
    ConnectionLostError,
    LinkDetachedError,
    RejectedError,
    RequestFailedError,
)
from twinbus.amqp.client.management import LockedMessage, Settlement
from twinbus.amqp.client.receiver import ACCEPT, DEFER, RELEASE, Delivery
from twinbus.amqp.codec import performatives
from twinbus.emulator.entities.message import Arrival
from twinbus.emulator.protocol.error_conditions import BrokerError

from .entities import RELEASED, HeldMessage, RefusedError, SimulatedQueue
from .network import DetachedError, Process, Request, SilentError, SimulatedNamespace, Wire

CREDIT = 50
OnOutcome = Callable[[AmqpError | None], None]
OnEnd = Callable[[AmqpError], None]


def _connection_error(error: Exception) -> AmqpError:
    return AnswerTimeoutError(str(error)) if isinstance(error, SilentError) else ConnectionLostError(str(error))


def _link_error(error: BaseException) -> AmqpError:
    """The client error for the end of a link, or for a failed attach."""
    if isinstance(error, RefusedError):
        return LinkDetachedError("refused", error.condition)
    return LinkDetachedError("detached") if isinstance(error, DetachedError) else _connection_error(error)  # type: ignore[arg-type]


#: Factor by which the simulated timeout exceeds the nominal one: timeouts are noticed late.
LATE = 1.25


class SimulatedSide:
    """A namespace as a syphon process reaches it."""

    def __init__(self, namespace: SimulatedNamespace, process: Process) -> None:
        self._namespace = namespace
        self._process = process
        self.endpoint = namespace.host

    def open(self) -> SimulatedOpening:
        return SimulatedOpening(self._namespace, self._process)


class SimulatedOpening:
    """Opens a connection when awaited."""

    def __init__(self, namespace: SimulatedNamespace, process: Process) -> None:
        self._namespace = namespace
        self._process = process

    def __await__(self) -> Generator[Any, None, SimulatedConnection]:
        return self._open().__await__()

    async def _open(self) -> SimulatedConnection:
        try:
            async with within(15.0, f"{self._namespace.name} was not connected"):
                wire = await self._namespace.connect(self._process)
        except AmqpError:
            raise
        except Exception as error:
            raise _connection_error(error) from None
        return SimulatedConnection(wire)


class SimulatedConnection:
    """One connection with its links."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        wire.has_answer_timeout = True
        wire.on_cut = self._cut
        self._lost_future: asyncio.Future[AmqpError] = wire.namespace.loop.create_future()
        self.has_worked = False
        self._links: list[_Link | SimulatedManagement] = []
        self.error: AmqpError | None = None

    @property
    def outcome_timeout(self) -> float:
        return self._wire.answer_timeout / LATE

    @outcome_timeout.setter
    def outcome_timeout(self, seconds: float) -> None:
        self._wire.answer_timeout = seconds * LATE

    def _cut(self, error: Exception) -> None:
        self.error = _connection_error(error)
        for link in list(self._links):
            link.ended(self.error)
        if not self._lost_future.done():
            self._lost_future.set_result(self.error)

    async def _attach(self, link: Any, seconds: float, request: Request = Request.LISTEN) -> None:
        namespace = self._wire.namespace
        try:
            async with within(seconds, f"'{link.path}' was not attached"):
                await self._wire.ask(request, link.path, lambda: namespace.queue(link.path))
        except AnswerTimeoutError as late:
            # Nothing else arrived either, so the connection is lost.
            self._wire.fail(SilentError(str(late)))
            raise
        except Exception as error:
            raise _link_error(error) from None
        self._links.append(link)
        self._wire.links.append(link)

    async def attach_sender(self, path: str, *, seconds: float, on_end: OnEnd) -> SimulatedSender:
        link = SimulatedSender(self._wire, path, on_end)
        await self._attach(link, seconds, Request.ATTACH)
        return link

    async def attach_receiver(
        self, path: str, on_delivery: Callable[[Delivery], None], *, seconds: float, on_end: OnEnd
    ) -> SimulatedReceiver:
        link = SimulatedReceiver(self._wire, path, on_delivery, on_end)
        await self._attach(link, seconds)
        link.queue.receivers.append(link)
        return link

    async def management(self, path: str, *, seconds: float) -> SimulatedManagement:
        node = SimulatedManagement(self._wire, path)
        await self._attach(node, seconds)
        return node

    async def wait_lost(self) -> AmqpError:
        return await asyncio.shield(self._lost_future)

    async def close(self, seconds: float = 5.0) -> None:
        self._wire.abort()


class _Link:
    """Common base of senders and receivers."""

    def __init__(self, wire: Wire, path: str, on_end: OnEnd) -> None:
        self.path = path
        self.error: AmqpError | None = None
        self.pending = 0
        self._wire = wire
        self._on_end = on_end
        self._loop = wire.namespace.loop
        #: Pending answer and message ids, by outcome callback.
        self._waiting: dict[OnOutcome, tuple[asyncio.Future[Any], Sequence[str]]] = {}

    def check(self) -> None:
        if self.error is not None:
            raise self.error.with_traceback(None)

    def detached(self) -> None:
        self.ended(LinkDetachedError("detached"))

    def give_up(self, error: AmqpError) -> None:
        self.ended(error)

    def ended(self, error: AmqpError) -> None:
        if self.error is not None:
            return
        self.error = error
        waiting, self._waiting = self._waiting, {}
        self.pending = 0
        for on_outcome, (answer, subjects) in waiting.items():
            if not answer.cancel():
                # The answer arrived together with the end of the link, and is not reported.
                for message_id in subjects:
                    self._wire.namespace.doubt(message_id)
            on_outcome(error)
        self._on_end(error)

    def _ask(
        self, request: Request, act: Callable[[], Any], on_outcome: OnOutcome, subjects: Sequence[str] = ()
    ) -> None:
        self.pending += 1

        def answered(answer: asyncio.Future[Any]) -> None:
            if on_outcome not in self._waiting:
                return  # the link has ended, and the end was reported
            error = answer.exception()
            if isinstance(error, DetachedError):
                self.detached()
                return
            del self._waiting[on_outcome]
            self.pending -= 1
            if isinstance(error, RefusedError):
                on_outcome(RejectedError("refused", error.condition))
            else:
                on_outcome(None if error is None else _connection_error(error))  # type: ignore[arg-type]
            self._answered()

        answer = self._wire.ask(request, self.path, act, subjects)
        self._waiting[on_outcome] = answer, subjects
        answer.add_done_callback(answered)

    def _answered(self) -> None:
        """Hook: an answer has arrived."""

    async def close(self, seconds: float = 5.0) -> None:
        self.ended(LinkDetachedError("the link was closed here"))
        await asyncio.sleep(0)


class SimulatedSender(_Link):
    """A sending link to a queue in the primary."""

    max_message_size = 0

    def __init__(self, wire: Wire, path: str, on_end: OnEnd) -> None:
        super().__init__(wire, path, on_end)
        self.on_credit: Callable[[], None] | None = None

    @property
    def available(self) -> int:
        return 0 if self.error is not None else max(0, CREDIT - self.pending)

    def send(self, payload: bytes, on_outcome: OnOutcome) -> None:
        self.check()
        queue = self._wire.namespace.queue(self.path)
        arrival = Arrival(payload)
        self._ask(Request.SEND, lambda: _put(queue, arrival), on_outcome, (arrival.message_id or "",))

    def _answered(self) -> None:
        if self.on_credit is not None and self.available > 0:
            self.on_credit()


def _put(queue: SimulatedQueue, arrival: Arrival) -> None:
    try:
        queue.put([arrival])
    except BrokerError as error:
        raise RefusedError(error.condition) from None


class SimulatedReceiver(_Link):
    """A receiving link from a backlog queue. `credit` is the client's view, `_granted` the namespace's."""

    idle_seconds = 0.0

    def __init__(self, wire: Wire, path: str, on_delivery: Callable[[Delivery], None], on_end: OnEnd) -> None:
        super().__init__(wire, path, on_end)
        self._on_delivery = on_delivery
        self._numbers = itertools.count(1)
        self._granted = 0
        self._is_stopping = False
        self.credit = 0

    @property
    def queue(self) -> SimulatedQueue:
        return self._wire.namespace.queue(self.path)

    def add_credit(self, messages: int) -> None:
        self.check()
        if not self._is_stopping:
            self.credit += messages
            self._wire.ask(Request.FLOW, self.path, lambda: self._grant(messages))

    def _grant(self, messages: int) -> None:
        self._granted += messages
        self.queue.dispatch()

    def renew_credit(self) -> None:
        self.check()

    def probe(self) -> None:
        self.check()

    async def stop(self, seconds: float) -> None:
        self.check()
        if self.credit == 0:
            return
        self._is_stopping = True
        try:
            async with within(seconds, f"'{self.path}' did not give the credit back"):
                await self._wire.ask(Request.FLOW, self.path, self._revoke_credit)
        except AnswerTimeoutError:
            raise
        except Exception as error:
            raise _link_error(error) from None
        finally:
            self._is_stopping = False
        self.check()
        self.credit = 0

    def _revoke_credit(self) -> None:
        self._granted = 0

    # ---- the namespace's end ----

    @property
    def holder(self) -> Process:
        return self._wire.process

    def can_receive(self) -> bool:
        return self.error is None and self._wire.error is None and self._granted > 0

    def push(self, held: HeldMessage) -> None:
        self._granted -= 1
        payload = held.payload
        self._wire.send_push(self.path, lambda: self._deliver(held, payload))

    def _deliver(self, held: HeldMessage, payload: bytes) -> None:
        if self.error is None:
            self.credit -= 1
            self._wire.namespace.trace("deliver", self._wire.process.name, self.path, str(held.message.sequence))
            self._on_delivery(Delivery(next(self._numbers), held.token.bytes_le, payload, False))

    def settle(self, delivery: Delivery, outcome: Any, on_done: OnOutcome) -> None:
        self.check()
        settlement, reason = _settlement(outcome)
        token, queue = delivery.lock_token, self.queue
        self._ask(Request.SETTLE, lambda: self._settle(queue, token, settlement, reason), on_done)

    def _settle(self, queue: SimulatedQueue, token: uuid.UUID, settlement: str, reason: str) -> None:
        self._wire.namespace.trace(settlement, self._wire.process.name, queue.message_id_of(token), reason)
        queue.settle(token, settlement, reason)

    def ended(self, error: AmqpError) -> None:
        if self in self.queue.receivers:
            self.queue.receivers.remove(self)
        super().ended(error)


def _settlement(outcome: Any) -> tuple[str, str]:
    if outcome is ACCEPT:
        return Settlement.COMPLETED, ""
    if outcome is RELEASE:
        return RELEASED, ""
    if outcome is DEFER:
        return Settlement.DEFERRED, ""
    if isinstance(outcome, performatives.Rejected) and outcome.error is not None:
        return Settlement.DEAD_LETTERED, str(outcome.error.info.get("DeadLetterReason", ""))
    return Settlement.ABANDONED, ""


class SimulatedManagement:
    """The management node of a backlog queue."""

    def __init__(self, wire: Wire, path: str) -> None:
        self.path = path
        self.error: AmqpError | None = None
        self._wire = wire

    def detached(self) -> None:
        self.ended(LinkDetachedError("detached"))

    def ended(self, error: AmqpError) -> None:
        self.error = self.error or error

    @property
    def _queue(self) -> SimulatedQueue:
        return self._wire.namespace.queue(self.path)

    async def _ask(self, act: Callable[[], Any], seconds: float | None) -> Any:
        if self.error is not None:
            raise self.error.with_traceback(None)
        try:
            async with within(15.0 if seconds is None else seconds, f"'{self.path}' did not answer"):
                return await self._wire.ask(Request.MANAGE, self.path, act)
        except AnswerTimeoutError:
            raise
        except RefusedError as error:
            raise RequestFailedError("refused", error.condition, 400) from None
        except DetachedError as error:
            self.detached()
            raise _link_error(error) from None
        except Exception as error:
            raise _connection_error(error) from None

    async def peek_messages(self, from_sequence: int, count: int, *, seconds: float | None = None) -> list[bytes]:
        pages: list[bytes] = await self._ask(lambda: self._queue.peek(from_sequence, count), seconds)
        return pages

    async def receive_deferred(
        self, sequence_numbers: Sequence[int], *, seconds: float | None = None
    ) -> list[LockedMessage]:
        held = await self._ask(lambda: self._queue.take_deferred(sequence_numbers, self._wire.process), seconds)
        return [LockedMessage(message.token, message.payload) for message in held]

    async def renew_locks(self, tokens: Sequence[uuid.UUID], *, seconds: float | None = None) -> list[int]:
        ends: list[int] = await self._ask(lambda: self._queue.renew(tokens), seconds)
        return ends

    async def settle(
        self,
        tokens: Sequence[uuid.UUID],
        settlement: Settlement,
        *,
        reason: str | None = None,
        description: str | None = None,
        seconds: float | None = None,
    ) -> None:
        def settle() -> None:
            for token in tokens:
                self._wire.namespace.trace(
                    settlement, self._wire.process.name, self._queue.message_id_of(token), reason or ""
                )
                self._queue.settle(token, settlement, reason or "")

        await self._ask(settle, seconds)

    async def close(self, seconds: float = 5.0) -> None:
        self.ended(LinkDetachedError("closed"))
