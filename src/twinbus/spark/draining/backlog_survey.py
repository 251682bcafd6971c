"""Estimate how many messages each backlog queue has, and for which destinations.

Messages are only peeked, so the right to listen is enough. The sequence numbers of a queue bound its length, samples
show how dense it is; a short queue is peeked as a whole.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

from twinbus.amqp.client.connection import Connection
from twinbus.amqp.client.errors import AmqpError
from twinbus.amqp.client.management import Management
from twinbus.amqp.client.receiver import RELEASE, Delivery, Receiver
from twinbus.amqp.codec.types import DecodeError
from twinbus.ledger.recorder import Recorder
from twinbus.syphon.connector import Side
from twinbus.syphon.deferral.deferred import DEFERRED_STATE, SCHEDULED_STATE, PeekedMessage, parse_peeked
from twinbus.syphon.delivery.send_failures import NOT_FOUND
from twinbus.syphon.settlement.bookkeeping import OperationLog

from .slice_planning import Depth

logger = logging.getLogger("twinbus.spark.drain")

HEAD = 250  # messages that are peeked first
SAMPLES, SAMPLE = 8, 20  # peeks behind the head, and messages of each
GLANCE, MOST_GLANCES = 20, 5  # messages of a peek that looks for the start of a queue, and peeks in a row
#: A sequence number has 48 bits of its own; the rest says which partition of the queue it is.
MAX_NUMBER = 1 << 48
ATTACH_TIMEOUT = 15.0
SETTLE_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class Survey:
    """What peeking at all queues has shown."""

    depths: tuple[Depth, ...]
    destinations: frozenset[str]
    missing: tuple[str, ...] = ()

    @property
    def active(self) -> int:
        return sum(depth.active for depth in self.depths)


@dataclass(slots=True)
class _QueueEstimate:
    """What was seen of one queue so far."""

    paths: set[str] = field(default_factory=set)
    active: float = 0.0
    deferred: float = 0.0

    def add(self, page: list[PeekedMessage], width: float) -> None:
        """Count messages that stand for `width` sequence numbers of the queue."""
        self.paths |= {message.path for message in page if message.path}
        weight = width / max(1, page[-1].number - page[0].number + 1) if page else 0.0
        self.active += weight * sum(message.state not in (DEFERRED_STATE, SCHEDULED_STATE) for message in page)
        self.deferred += weight * sum(message.state == DEFERRED_STATE for message in page)


@dataclass(slots=True)
class _ActiveRange:
    """The sequence numbers between which the active messages of a queue were, how many, and where they begin now."""

    first: int
    last: int
    active: float
    now: int = 0

    @property
    def left(self) -> float:
        """How many are still there if they are evenly spread."""
        return self.active * max(0, self.last - max(self.first, self.now) + 1) / (self.last - self.first + 1)


class Backlog:
    """Peeks at the queues and waits for messages, over one connection that is opened when it is needed."""

    def __init__(self, side: Side, queues: tuple[str, ...], recorder: Recorder, pairing: str, client: str) -> None:
        self._side = side
        self._queues = queues
        self._books = {queue: OperationLog(recorder, pairing, client, queue) for queue in queues}
        self._connection: Connection | None = None
        self._nodes: dict[str, Management] = {}
        #: The highest number seen in each queue: the search for the end begins there.
        self._ends: dict[str, int] = {}
        #: Where messages were in the last survey.
        self._ranges: dict[str, _ActiveRange] = {}

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.error is not None:
            await self.close()
            self._connection = await self._side.open()
        return self._connection

    async def close(self) -> None:
        self._nodes.clear()
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    # ---- survey ----

    async def survey(self) -> Survey:
        """Peek at every queue. Raises one of `twinbus.amqp.client.errors` if that is not possible."""
        await self._connected()
        self._ranges.clear()
        results = await asyncio.gather(*map(self._survey_queue, self._queues), return_exceptions=True)
        depths, paths, missing = [], set(), []
        for queue, result in zip(self._queues, results, strict=True):
            if isinstance(result, AmqpError) and result.condition == NOT_FOUND:
                missing.append(queue)
            elif isinstance(result, BaseException):
                raise result
            else:
                depths.append(Depth(queue, round(result.active), round(result.deferred)))
                paths |= result.paths
        return Survey(tuple(depths), frozenset(paths), tuple(missing))

    async def _survey_queue(self, queue: str) -> _QueueEstimate:
        estimate = _QueueEstimate()
        head = await self._peek(queue, 0, HEAD)
        if not head:
            return estimate
        estimate.add(head, head[-1].number - head[0].number + 1)
        behind = await self._peek(queue, head[-1].number + 1, 1)
        if not behind:
            self._ranges[queue] = _ActiveRange(head[0].number, head[-1].number, estimate.active)
            return estimate
        first, last = behind[0].number, await self._end_of(queue, behind[0].number, estimate)
        width = (last - first + 1) / SAMPLES
        for start in (first + int(index * width) for index in range(SAMPLES)):
            page = await self._peek(queue, start, SAMPLE)
            if page:
                # The messages behind a gap stand for the rest of the sample's width.
                gap = min(width, page[0].number - start)
                estimate.add(page, width - gap)
        self._ranges[queue] = _ActiveRange(head[0].number, last, estimate.active)
        return estimate

    async def glance(self) -> int:
        """Estimate how many of the active messages of the last survey are left, with a peek or two at each queue.

        Messages that arrived since are not counted. Raises one of `twinbus.amqp.client.errors`.
        """
        left = await asyncio.gather(*(self._glance(queue, active) for queue, active in self._ranges.items()))
        return round(sum(left))

    async def _glance(self, queue: str, active: _ActiveRange) -> float:
        """Queues are emptied from the front, so what is left begins with the first message that is not deferred."""
        for _ in range(MOST_GLANCES):
            if not active.left:
                break
            page = await self._peek(queue, max(active.first, active.now), GLANCE)
            waiting = [message.number for message in page if message.state not in (DEFERRED_STATE, SCHEDULED_STATE)]
            if waiting:
                active.now = waiting[0]
                break
            active.now = page[-1].number + 1 if page else active.last + 1
        return active.left

    async def _end_of(self, queue: str, known: int, estimate: _QueueEstimate) -> int:
        """Estimate the highest sequence number of a queue: steps forward with growing steps, then halves the gap."""
        low, step, high = known, max(HEAD, self._ends.get(queue, 0) - known), 0
        while not high and low + step < MAX_NUMBER:
            page = await self._peek(queue, low + step, 1)
            if page:
                estimate.add(page, 0)
                low, step = page[0].number, step * 4
            else:
                high = low + step
        while high - low > max(SAMPLE, (low - known) // 32):
            middle = (low + high) // 2
            page = await self._peek(queue, middle, 1)
            if page:
                low = page[0].number
            else:
                high = middle
        self._ends[queue] = low
        return max(low, (low + high) // 2)

    async def _peek(self, queue: str, start: int, count: int) -> list[PeekedMessage]:
        book = self._books[queue]
        node = self._nodes.get(queue)
        if node is None or node.error is not None:
            connection = await self._connected()
            node = self._nodes[queue] = await connection.management(queue, seconds=ATTACH_TIMEOUT)
        try:
            page = await node.peek_messages(start, count)
        except AmqpError as error:
            book.peeked(0, 0, error)
            raise
        book.peeked(len(page), sum(map(len, page)), None)
        # A message that cannot be parsed counts, too; its pump reports why.
        return list(_readable(page)) or ([PeekedMessage(start, 0, "")] if page else [])

    # ---- waiting ----

    async def wait(self, poll: float, seconds: float | None = None) -> bool:
        """Wait until a message can be received from one of the queues; False after `seconds` without one.

        A credit that stands for `poll` seconds is one receive. Messages that arrive are released. Raises one of
        `twinbus.amqp.client.errors`, also if none of the queues exists.
        """
        connection = await self._connected()
        arrived = asyncio.Event()
        arrivals: list[tuple[Receiver, Delivery]] = []
        receivers: list[Receiver] = []
        try:
            for queue in self._queues:
                await self._attach(connection, queue, arrived, arrivals, receivers)
            loop = asyncio.get_running_loop()
            ends_at = None if seconds is None else loop.time() + seconds
            while True:
                left = poll if ends_at is None else min(poll, ends_at - loop.time())
                if left <= 0:
                    return False
                try:
                    async with asyncio.timeout(left):
                        await arrived.wait()
                    return True
                except TimeoutError:
                    if left == poll:
                        self._record_polls(receivers)
        finally:
            for receiver in receivers:
                await self._close(receiver, arrivals)

    async def _attach(
        self,
        connection: Connection,
        queue: str,
        arrived: asyncio.Event,
        arrivals: list[tuple[Receiver, Delivery]],
        receivers: list[Receiver],
    ) -> None:
        def take(delivery: Delivery) -> None:
            arrivals.append((receiver, delivery))
            arrived.set()

        try:
            receiver = await connection.attach_receiver(
                queue, take, seconds=ATTACH_TIMEOUT, on_end=lambda _: arrived.set()
            )
        except AmqpError as error:
            if error.condition != NOT_FOUND or (queue == self._queues[-1] and not receivers):
                raise
            return
        receivers.append(receiver)
        receiver.add_credit(1)

    def _record_polls(self, receivers: list[Receiver]) -> None:
        for receiver in receivers:
            receiver.renew_credit()
            self._books[receiver.path].polled()

    async def _close(self, receiver: Receiver, arrivals: list[tuple[Receiver, Delivery]]) -> None:
        """Release the messages that arrived, and close the link."""
        try:
            await receiver.stop(SETTLE_TIMEOUT)
            for delivery in [delivery for owner, delivery in arrivals if owner is receiver]:
                await receiver.settled(delivery, RELEASE, SETTLE_TIMEOUT)
                self._books[receiver.path].returned(len(delivery.payload))
            await receiver.close()
        except AmqpError as error:
            logger.info("Closing the link to %s failed: %s", receiver.path, type(error).__name__)


def _readable(page: list[bytes]) -> Iterator[PeekedMessage]:
    for payload in page:
        try:
            yield parse_peeked(payload)
        except DecodeError:
            logger.info("A message in the backlog cannot be parsed")
