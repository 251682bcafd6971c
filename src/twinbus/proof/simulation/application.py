"""The application of a run: it sends through a pairing and receives from the primary, and writes the history."""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from twinbus.amqp import sections
from twinbus.broker.message import Message
from twinbus.pairing import ping
from twinbus.pairing.core import Pairing
from twinbus.pairing.sending._async.sender import PairedSender

from ..history import History
from .entities import SimulatedQueue
from .network import EPOCH, Process, SimulatedNamespace
from .scenario import PlannedSend, Queue
from .sdk import SimulatedClient
from .trace import Trace


class Receiver:
    """Receives from a queue of the primary, in order, soon after a message has come and while it can be reached."""

    def __init__(self, namespace: SimulatedNamespace, queue: SimulatedQueue, run: Application, is_timed: bool) -> None:
        self._namespace = namespace
        self._queue = queue
        self._run = run
        self._is_timed = is_timed
        self._is_coming = False
        queue.on_available = self._come

    def _come(self) -> None:
        if not self._is_coming:
            self._is_coming = True
            self._namespace.loop.call_later(self._namespace.random.uniform(0.001, 0.3), self._look)

    def _look(self) -> None:
        self._is_coming = False
        if self._namespace.is_away():
            self._is_coming = True
            self._namespace.loop.call_later(1.0, self._look)
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
            expires_at = math.inf if message.expires_at is None else self._here(message.expires_at)
        body = b"".join(sections.data_sections(parts.body))
        self._run.received(self._queue.path, message_id, message.sequence, session, body, expires_at)
        due = self._run.due.get(message_id)
        if due is not None and self._here(self._namespace.now_ms()) + self._namespace.skew < due - 0.01:
            self._run.complaints.append(f"{message_id} arrived before its scheduled time")

    def _here(self, there_ms: int) -> float:
        """A time of the namespace's clock by ours."""
        return there_ms / 1000 - EPOCH - self._namespace.skew


class Application:
    """The senders of a run."""

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
        self._clients = [SimulatedClient(one, Process("app")) for one in namespaces]
        self._senders = [self._new_sender(queue) for queue in queues]
        self._sending: list[asyncio.Task[None]] = []
        #: When scheduled messages may arrive at the earliest.
        self.due: dict[str, float] = {}
        self.trace = trace
        #: What must not happen and no history shows.
        self.complaints: list[str] = []

    def _new_sender(self, queue: Queue) -> PairedSender:
        return PairedSender(self._pairing, queue.path, *self._clients)  # type: ignore[arg-type]

    # ---- sending ----

    def begin(self, plan: PlannedSend) -> None:
        """Send without waiting for what was begun before, unless order matters: that is promised to who waits."""
        self._sending.append(self._loop.create_task(self._send(plan, self._sending[-1:])))

    async def _send(self, plan: PlannedSend, before: list[asyncio.Task[None]]) -> None:
        if plan.session is not None and before:
            await asyncio.wait(before)
        queue = self._queues[plan.sender]
        messages = [self._message(plan, message_id) for message_id in plan.message_ids]
        now = self._loop.time()
        for message_id in plan.message_ids:
            body, life = message_id.encode(), plan.time_to_live
            self._history.attempt(queue.path, message_id, session=plan.session, content=body, time_to_live=life, at=now)
        self.trace("send", queue.path, *plan.message_ids)
        try:
            route = await self._call(plan, messages)
        except (ServiceBusError, asyncio.CancelledError) as error:
            self.trace("failed", queue.path, *plan.message_ids, type(error).__name__)
        except ValueError as error:
            if "closed" not in str(error):
                raise
            self.trace("closed", queue.path, *plan.message_ids)
        else:
            self.trace("acknowledged", queue.path, *plan.message_ids, route)
            for message_id in plan.message_ids:
                self._history.acknowledge(queue.path, message_id, route, at=self._loop.time())

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
        life = None if plan.time_to_live is None else timedelta(seconds=plan.time_to_live)
        return ServiceBusMessage(message_id.encode(), message_id=message_id, session_id=plan.session, time_to_live=life)

    def cancel(self, which: int) -> None:
        """A caller loses interest in a send that is under way."""
        open_ones = [task for task in self._sending if not task.done()]
        if open_ones:
            open_ones[which % len(open_ones)].cancel()

    async def replace_sender(self, which: int) -> None:
        """Close a sender, whatever it is doing, and get a new one."""
        index = which % len(self._senders)
        old, self._senders[index] = self._senders[index], self._new_sender(self._queues[index])
        await old.close()

    async def finish(self) -> None:
        """Wait for all sends. Raises what must not come out of one."""
        for task in self._sending:
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
