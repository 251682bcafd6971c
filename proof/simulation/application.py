"""Simulates the application: sends through a pairing, receives from the primary, and records the history."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from twinbus.amqp.codec import sections
from twinbus.emulator.entities.message import Message
from twinbus.pairing.failover import ping
from twinbus.pairing.pairing_state import Pairing
from twinbus.pairing.sending._async.sender import PairedSender

from ..history import History
from .entities import SimulatedQueue
from .network import EPOCH, Process, SimulatedNamespace
from .scenario import BusySession, PlannedSend, Queue
from .sdk import SimulatedClient
from .trace import Trace

#: Consecutive calls after which a session counts as back on the primary.
CALLS_TO_BE_BACK = 3


class Receiver:
    """Receives from a queue in the primary, in order, shortly after messages arrive, while the primary is reachable."""

    def __init__(self, namespace: SimulatedNamespace, queue: SimulatedQueue, run: Application, is_timed: bool) -> None:
        self._namespace = namespace
        self._queue = queue
        self._run = run
        self._is_timed = is_timed
        self._is_scheduled = False
        queue.on_available = self._schedule

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._namespace.loop.call_later(self._namespace.random.uniform(0.001, 0.3), self._receive_available)

    def _receive_available(self) -> None:
        self._is_scheduled = False
        if self._namespace.is_unreachable():
            self._is_scheduled = True
            self._namespace.loop.call_later(1.0, self._receive_available)
            return
        while (message := self._queue.take()) is not None:
            self._receive(message)

    def _receive(self, message: Message) -> None:
        parts = sections.split_sections(message.bare)
        fields: list[Any] = sections.list_fields(parts.properties, 11)
        message_id, content_type, session = fields[0], fields[6], fields[10]
        if ping.is_ping(SimpleNamespace(content_type=content_type)):  # type: ignore[arg-type]
            return
        self._run.trace("receive", self._queue.path, message_id)
        expires_at = None
        if self._is_timed:
            expires_at = math.inf if message.expires_at is None else self._local_time(message.expires_at)
        body = b"".join(sections.data_sections(parts.body))
        self._run.received(self._queue.path, message_id, message.sequence, session, body, expires_at)
        due = self._run.due.get(message_id)
        if due is not None and self._local_time(self._namespace.now_ms()) + self._namespace.skew < due - 0.01:
            self._run.complaints.append(f"{message_id} arrived before its scheduled time")

    def _local_time(self, there_ms: int) -> float:
        """Convert a time of the namespace's clock to loop time."""
        return there_ms / 1000 - EPOCH - self._namespace.skew


@dataclass(slots=True)
class Call:
    """One call of a sender, as its caller saw it. Times are those of the event loop."""

    plan: PlannedSend
    entity: str
    began: float
    ended: float = math.inf
    #: Where it was accepted: primary or backlog.
    route: str | None = None
    error: BaseException | None = None
    #: Whether it was cancelled, or its sender closed, before it ended.
    is_broken_off: bool = False

    @property
    def name(self) -> str:
        return self.plan.message_ids[0]

    def overlaps(self, start: float, end: float) -> bool:
        return self.began <= end and start <= self.ended


class Application:
    """The senders of a run and what they observe."""

    def __init__(
        self,
        pairing: Pairing,
        queues: tuple[Queue, ...],
        namespaces: tuple[SimulatedNamespace, SimulatedNamespace],
        history: History,
        trace: Trace,
    ) -> None:
        self._pairing = pairing
        self._queues = queues
        self._history = history
        self._loop = namespaces[0].loop
        self._clients = [SimulatedClient(namespace, Process("app")) for namespace in namespaces]
        self._senders = [self._new_sender(queue) for queue in queues]
        self._sending: list[asyncio.Task[Call]] = []
        self._in_bursts: list[asyncio.Task[Call]] = []
        self._busy: list[asyncio.Task[None]] = []
        self._is_over = False
        #: All calls in the order in which they began, and pending ones by message id.
        self.calls: list[Call] = []
        self._pending: dict[str, Call] = {}
        #: Destination entity of each message.
        self.entities: dict[str, str] = {}
        #: Number of times each message was sent to the primary.
        self.sent_to_primary: Counter[str] = Counter()
        for namespace in namespaces:
            namespace.on_send = partial(self._on_send, is_primary=namespace is namespaces[0])
        #: Earliest arrival time of each scheduled message.
        self.due: dict[str, float] = {}
        self.trace = trace
        #: Violations that a history does not show.
        self.complaints: list[str] = []

    def _new_sender(self, queue: Queue) -> PairedSender:
        return PairedSender(self._pairing, queue.path, *self._clients)  # type: ignore[arg-type]

    # ---- sending ----

    def begin(self, plan: PlannedSend) -> None:
        """Start a send. One with a session waits for the previous send: order is promised between awaited calls."""
        if plan.is_in_burst:
            task = self._loop.create_task(self._send(plan, []))
            self._in_bursts.append(task)
        else:
            task = self._loop.create_task(self._send(plan, self._sending[-1:]))
            self._sending.append(task)
        if plan.cancelled_after is not None:
            self._loop.call_later(plan.cancelled_after, task.cancel)

    def begin_busy(self, number: int, busy: BusySession) -> None:
        """Send to a session continuously, until `stop_busy`."""
        self._busy.append(self._loop.create_task(self._keep_busy(number, busy)))

    async def _keep_busy(self, number: int, busy: BusySession) -> None:
        for count in itertools.count():
            if self._is_over:
                break
            name = f"busy{number}-{count}"
            plan = PlannedSend(self._loop.time(), busy.sender, (name,), busy.session, None, None, busy.timeout)
            call = await self._send(plan, [])
            await asyncio.sleep(busy.pause if call.error is None else max(busy.pause, 1.0))

    def is_back(self, busy: BusySession, since: float) -> bool:
        """Whether the last calls of a session were accepted by the primary."""
        routes = [
            call.route
            for call in self.calls
            if call.began >= since and (call.plan.sender, call.plan.session) == (busy.sender, busy.session)
        ]
        return routes[-CALLS_TO_BE_BACK:] == ["primary"] * CALLS_TO_BE_BACK

    async def stop_busy(self) -> None:
        self._is_over = True
        await asyncio.gather(*self._busy)

    async def _send(self, plan: PlannedSend, before: list[asyncio.Task[Call]]) -> Call:
        if plan.session is not None and before:
            await asyncio.wait(before)
        queue = self._queues[plan.sender]
        messages = [self._message(plan, message_id) for message_id in plan.message_ids]
        now = self._loop.time()
        call = Call(plan, queue.path, now)
        self.calls.append(call)
        self._pending |= dict.fromkeys(plan.message_ids, call)
        self.entities |= dict.fromkeys(plan.message_ids, queue.path)
        for message_id in plan.message_ids:
            body, time_to_live = message_id.encode(), plan.time_to_live
            self._history.attempt(
                queue.path, message_id, session=plan.session, content=body, time_to_live=time_to_live, at=now
            )
        self.trace("send", queue.path, *plan.message_ids)
        try:
            call.route = await self._call(plan, messages)
        except (ServiceBusError, asyncio.CancelledError) as error:
            call.error = error
            call.is_broken_off |= isinstance(error, asyncio.CancelledError)
            self.trace("failed", queue.path, *plan.message_ids, type(error).__name__)
        except ValueError as error:
            call.error = error
            if "closed" not in str(error):
                raise
            self.trace("closed", queue.path, *plan.message_ids)
        else:
            self.trace("acknowledged", queue.path, *plan.message_ids, call.route)
            for message_id in plan.message_ids:
                self._history.acknowledge(queue.path, message_id, call.route, at=self._loop.time())
        finally:
            call.ended = self._loop.time()
            for message_id in plan.message_ids:
                del self._pending[message_id]
        return call

    def _on_send(self, message_id: str, is_primary: bool) -> None:
        if message_id not in self._pending:
            self.complaints.append(f"{message_id} was sent after its call had ended")
        self.sent_to_primary[message_id] += is_primary

    async def _call(self, plan: PlannedSend, messages: list[ServiceBusMessage]) -> str:
        sender = self._senders[plan.sender]
        if plan.scheduled_in is None:
            receipt = await sender.send_messages(messages if len(messages) > 1 else messages[0], timeout=plan.timeout)
            return receipt.route.value
        at = self._loop.time() + plan.scheduled_in
        when = datetime.fromtimestamp(0, UTC) + timedelta(seconds=EPOCH + at)
        numbers = await sender.schedule_messages(messages, when, timeout=plan.timeout)
        self.due |= dict.fromkeys(plan.message_ids, at)
        return "backlog" if numbers[0] < 0 else "primary"

    def _message(self, plan: PlannedSend, message_id: str) -> ServiceBusMessage:
        time_to_live = None if plan.time_to_live is None else timedelta(seconds=plan.time_to_live)
        return ServiceBusMessage(
            message_id.encode(), message_id=message_id, session_id=plan.session, time_to_live=time_to_live
        )

    def cancel(self, which: int) -> None:
        """Cancel one of the pending sends, if there are any."""
        pending = [task for task in (*self._sending, *self._in_bursts) if not task.done()]
        if pending:
            pending[which % len(pending)].cancel()

    async def replace_sender(self, which: int) -> None:
        """Close a sender, even with pending calls, and create a new one."""
        index = which % len(self._senders)
        for call in self._pending.values():
            call.is_broken_off |= call.plan.sender == index
        old, self._senders[index] = self._senders[index], self._new_sender(self._queues[index])
        await old.close()

    async def finish(self) -> None:
        """Wait for all sends. Raises unexpected errors of sends."""
        for task in (*self._sending, *self._in_bursts):
            await asyncio.wait([task])
            if not task.cancelled():
                await task

    async def close(self) -> None:
        for sender in self._senders:
            await sender.close()

    # ---- receiving ----

    def received(
        self, place: str, message_id: str, number: int, session: str | None, body: bytes, expires_at: float | None
    ) -> None:
        self._history.receive(place, message_id, number, session=session, content=body, expires_at=expires_at)
