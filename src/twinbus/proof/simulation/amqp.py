"""The syphon's connections on the simulated network: what `twinbus.syphon` is given instead of `Connection`."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable, Generator, Sequence
from typing import Any

from twinbus.amqp import performatives
from twinbus.broker.errors import BrokerError
from twinbus.broker.message import Arrival
from twinbus.syphon.deadlines import within
from twinbus.syphon.errors import AmqpError, ConnectionLost, LinkDetached, Rejected, RequestFailed, TimedOut
from twinbus.syphon.management import LockedMessage, Settlement
from twinbus.syphon.receiver import ACCEPT, DEFER, RELEASE, Delivery

from .entities import RELEASED, Held, RefusedError, SimulatedQueue
from .network import DetachedError, Process, Request, SilentError, SimulatedNamespace, Wire

CREDIT = 50
OnOutcome = Callable[[AmqpError | None], None]
OnEnd = Callable[[AmqpError], None]


def _lost(error: Exception) -> AmqpError:
    return TimedOut(str(error)) if isinstance(error, SilentError) else ConnectionLost(str(error))


def _on_a_link(error: BaseException) -> AmqpError:
    """What the end of a link is called, or the reason why there is none."""
    if isinstance(error, RefusedError):
        return LinkDetached("refused", error.condition)
    return LinkDetached("detached") if isinstance(error, DetachedError) else _lost(error)  # type: ignore[arg-type]


#: A connection notices a little late that an answer did not come.
LATE = 1.25


class SimulatedSide:
    """A namespace as the process of a syphon reaches it."""

    def __init__(self, namespace: SimulatedNamespace, process: Process) -> None:
        self._namespace = namespace
        self._process = process
        self.endpoint = namespace.host

    def open(self) -> SimulatedOpening:
        return SimulatedOpening(self._namespace, self._process)


class SimulatedOpening:
    """Awaited, it is a connection."""

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
            raise _lost(error) from None
        return SimulatedConnection(wire)


class SimulatedConnection:
    """One connection with its links."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        wire.is_impatient = True
        wire.on_cut = self._cut
        self._lost_future: asyncio.Future[AmqpError] = wire.namespace.loop.create_future()
        self.has_worked = False
        self._links: list[_Link | SimulatedManagement] = []
        self.error: AmqpError | None = None

    @property
    def outcome_timeout(self) -> float:
        return self._wire.patience / LATE

    @outcome_timeout.setter
    def outcome_timeout(self, seconds: float) -> None:
        self._wire.patience = seconds * LATE

    def _cut(self, error: Exception) -> None:
        self.error = _lost(error)
        for link in list(self._links):
            link.ended(self.error)
        if not self._lost_future.done():
            self._lost_future.set_result(self.error)

    async def _attach(self, link: Any, seconds: float, request: Request = Request.LISTEN) -> None:
        namespace = self._wire.namespace
        try:
            async with within(seconds, f"'{link.path}' was not attached"):
                await self._wire.ask(request, link.path, lambda: namespace.queue(link.path))
        except TimedOut as late:
            # Nothing else was heard either: it is the connection.
            self._wire.fail(SilentError(str(late)))
            raise
        except Exception as error:
            raise _on_a_link(error) from None
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
        link.queue.takers.append(link)
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
    """What senders and receivers have in common."""

    def __init__(self, wire: Wire, path: str, on_end: OnEnd) -> None:
        self.path = path
        self.error: AmqpError | None = None
        self.pending = 0
        self._wire = wire
        self._on_end = on_end
        self._loop = wire.namespace.loop
        #: Who waits for which answer, about which messages.
        self._told: dict[OnOutcome, tuple[asyncio.Future[Any], Sequence[str]]] = {}

    def check(self) -> None:
        if self.error is not None:
            raise self.error.with_traceback(None)

    def detached(self) -> None:
        self.ended(LinkDetached("detached"))

    def give_up(self, error: AmqpError) -> None:
        self.ended(error)

    def ended(self, error: AmqpError) -> None:
        if self.error is not None:
            return
        self.error = error
        told, self._told = self._told, {}
        self.pending = 0
        for tell, (answer, subjects) in told.items():
            if not answer.cancel():
                # It came in the same moment as the end of the link, and is not heard any more.
                for message_id in subjects:
                    self._wire.namespace.doubt(message_id)
            tell(error)
        self._on_end(error)

    def _ask(
        self, request: Request, act: Callable[[], Any], on_outcome: OnOutcome, subjects: Sequence[str] = ()
    ) -> None:
        self.pending += 1

        def told(answer: asyncio.Future[Any]) -> None:
            if on_outcome not in self._told:
                return  # the link has ended, and it was told that
            error = answer.exception()
            if isinstance(error, DetachedError):
                self.detached()
                return
            del self._told[on_outcome]
            self.pending -= 1
            if isinstance(error, RefusedError):
                on_outcome(Rejected("refused", error.condition))
            else:
                on_outcome(None if error is None else _lost(error))  # type: ignore[arg-type]
            self._answered()

        answer = self._wire.ask(request, self.path, act, subjects)
        self._told[on_outcome] = answer, subjects
        answer.add_done_callback(told)

    def _answered(self) -> None:
        """The peer gave its word on something."""

    async def close(self, seconds: float = 5.0) -> None:
        self.ended(LinkDetached("the link was closed here"))
        await asyncio.sleep(0)


class SimulatedSender(_Link):
    """A link to a queue of the primary."""

    max_message_size = 0

    def __init__(self, wire: Wire, path: str, on_end: OnEnd) -> None:
        super().__init__(wire, path, on_end)
        self.on_room: Callable[[], None] | None = None

    @property
    def room(self) -> int:
        return 0 if self.error is not None else max(0, CREDIT - self.pending)

    def send(self, payload: bytes, on_outcome: OnOutcome) -> None:
        self.check()
        queue = self._wire.namespace.queue(self.path)
        arrival = Arrival(payload)
        self._ask(Request.SEND, lambda: _put(queue, arrival), on_outcome, (arrival.message_id or "",))

    def _answered(self) -> None:
        if self.on_room is not None and self.room > 0:
            self.on_room()


def _put(queue: SimulatedQueue, arrival: Arrival) -> None:
    try:
        queue.put([arrival])
    except BrokerError as error:
        raise RefusedError(error.condition) from None


class SimulatedReceiver(_Link):
    """A link from a backlog queue. `credit` is ours, `_granted` what the namespace knows of it."""

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

    def ask_for_sign(self) -> None:
        self.check()

    async def stop(self, seconds: float) -> None:
        self.check()
        if self.credit == 0:
            return
        self._is_stopping = True
        try:
            async with within(seconds, f"'{self.path}' did not give the credit back"):
                await self._wire.ask(Request.FLOW, self.path, self._take_back)
        except TimedOut:
            raise
        except Exception as error:
            raise _on_a_link(error) from None
        finally:
            self._is_stopping = False
        self.check()
        self.credit = 0

    def _take_back(self) -> None:
        self._granted = 0

    # ---- the namespace's end ----

    @property
    def holder(self) -> Process:
        return self._wire.process

    def wants(self) -> bool:
        return self.error is None and self._wire.error is None and self._granted > 0

    def hand_out(self, held: Held) -> None:
        self._granted -= 1
        payload = held.payload
        self._wire.tell_unasked(self.path, lambda: self._deliver(held, payload))

    def _deliver(self, held: Held, payload: bytes) -> None:
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
        self._wire.namespace.trace(settlement, self._wire.process.name, queue.name_of(token), reason)
        queue.settle(token, settlement, reason)

    def ended(self, error: AmqpError) -> None:
        if self in self.queue.takers:
            self.queue.takers.remove(self)
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
        self.ended(LinkDetached("detached"))

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
        except TimedOut:
            raise
        except RefusedError as error:
            raise RequestFailed("refused", error.condition, 400) from None
        except DetachedError as error:
            self.detached()
            raise _on_a_link(error) from None
        except Exception as error:
            raise _lost(error) from None

    async def peek_messages(self, from_sequence: int, count: int, *, seconds: float | None = None) -> list[bytes]:
        pages: list[bytes] = await self._ask(lambda: self._queue.peek(from_sequence, count), seconds)
        return pages

    async def receive_deferred(
        self, sequence_numbers: Sequence[int], *, seconds: float | None = None
    ) -> list[LockedMessage]:
        held = await self._ask(lambda: self._queue.take_deferred(sequence_numbers, self._wire.process), seconds)
        return [LockedMessage(one.token, one.payload) for one in held]

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
                    settlement, self._wire.process.name, self._queue.name_of(token), reason or ""
                )
                self._queue.settle(token, settlement, reason or "")

        await self._ask(settle, seconds)

    async def close(self, seconds: float = 5.0) -> None:
        self.ended(LinkDetached("closed"))
