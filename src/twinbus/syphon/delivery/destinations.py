"""Keeps a link and a circuit for each destination in the primary.

There may be thousands of destinations, so only the most recently used links stay open. All pumps of a process share
the links and the circuits.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from functools import partial
from typing import Any, Protocol

from twinbus.amqp.client.connection import OUTCOME_TIMEOUT
from twinbus.amqp.client.errors import AmqpError, ConnectionLostError
from twinbus.amqp.client.links import outcome_future
from twinbus.amqp.client.sender import Sender
from twinbus.amqp.codec import sections
from twinbus.amqp.codec.encoding import encode
from twinbus.amqp.codec.types import Symbol, UInt
from twinbus.ledger.recorder import Outcome
from twinbus.pairing.failover.ping import PING_CONTENT_TYPE, PING_TIME_TO_LIVE
from twinbus.servicebus.entity_paths import entity_key

from ..connector import Connector
from ..pacing import Pace
from ..settlement.bookkeeping import Pings, outcome_of
from .circuits import Circuit
from .send_failures import SendFailure, classify

logger = logging.getLogger("twinbus.syphon")

MAX_LINKS = 200  # the service allows 255 per session
ATTACH_TIMEOUT = 10.0
MAX_ATTACHING = 16

_NULL = encode(None)
#: An empty message with a time to live of a second.
PING = (
    sections.list_section(sections.HEADER, [_NULL, _NULL, encode(UInt(int(PING_TIME_TO_LIVE.total_seconds() * 1000)))])
    + sections.list_section(sections.PROPERTIES, [*[_NULL] * 6, encode(Symbol(PING_CONTENT_TYPE))])
    + b"\x00\x53\x75"
    + encode(b"")
)


class Listener(Protocol):
    """Learns about links and destinations. Keys are those of `entity_key`."""

    def has_waiting(self, key: str) -> bool:
        """Whether messages wait to be sent to the destination."""

    def link_ready(self, key: str) -> None:
        """Messages can be sent to the destination."""

    def attach_failed(self, key: str) -> None:
        """Attaching failed. The circuit says whether the destination is down."""

    def answered(self, key: str) -> None:
        """The destination answered a ping: messages may be sent again."""

    def primary_changed(self) -> None:
        """The connection to the primary was made or lost."""


class Destinations:
    """The links to the primary's entities."""

    def __init__(
        self, primary: Connector, pace: Pace, retry_min: float, retry_max: float, pings: Pings | None = None
    ) -> None:
        """`pings` records pings. Without it none are sent, and a message is the probe."""
        self._primary = primary
        self._pings = pings
        self._pinging: dict[str, asyncio.Task[None]] = {}
        self._answer_seconds = OUTCOME_TIMEOUT
        self._retry = retry_min, retry_max
        self._links: OrderedDict[str, Sender] = OrderedDict()
        self._attaching: dict[str, asyncio.Task[AmqpError | None]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._attach_slots = asyncio.Semaphore(MAX_ATTACHING)
        self._circuits: dict[str, Circuit] = {}
        self._time = asyncio.get_running_loop().time
        self.pace = pace
        self.listeners: list[Listener] = []
        primary.on_change.append(self._primary_changed)

    @property
    def is_up(self) -> bool:
        """Whether there is a connection to the primary at all."""
        return self._primary.connection is not None

    @property
    def is_doubtful(self) -> bool:
        """Whether the last connection to the primary did no work."""
        return self._primary.failures > 0

    def accepted(self) -> None:
        """The primary accepted a message."""
        self.pace.accepted()
        if self._primary.connection is not None:
            self._primary.connection.has_worked = True

    async def connected(self) -> None:
        """Wait for a connection to the primary."""
        await self._primary.connected()

    def answer_within(self, seconds: float) -> None:
        """Bound the wait for an outcome, so that it ends well before the lock. The shortest bound counts."""
        if seconds < self._answer_seconds:
            self._answer_seconds = seconds
            self._set_outcome_timeout()

    def _set_outcome_timeout(self) -> None:
        if self._primary.connection is not None:
            self._primary.connection.outcome_timeout = self._answer_seconds

    def _primary_changed(self) -> None:
        now = self._time()
        self._set_outcome_timeout()
        for circuit in self._circuits.values():
            circuit.undecided(now)
            if self.is_up:
                circuit.connected(now)
        for listener in list(self.listeners):
            listener.primary_changed()

    # ---- circuits ----

    def circuit(self, key: str) -> Circuit:
        """The circuit of a destination, shared by all pumps."""
        circuit = self._circuits.get(key)
        if circuit is None:
            circuit = self._circuits[key] = Circuit(*self._retry)
        return circuit

    def may_try(self, path: str) -> bool:
        """Whether to send to a destination now.

        One whose connection was lost is probed alone: beside the destination that caused it, it would lose it again.
        """
        key = entity_key(path)
        circuit = self.circuit(key)
        if circuit.lost_connection and any(other.is_probing for other in self._circuits.values()):
            return False
        if key in self._pinging or not circuit.may_try(self._time()):
            return False
        if circuit.is_silent and self._pings is not None:
            task = self._pinging[key] = asyncio.create_task(self._ping(path, circuit, self._pings))
            task.add_done_callback(lambda _: self._pinging.pop(key, None))
            return False
        return True

    @property
    def is_pinging(self) -> bool:
        """Whether a ping is in flight."""
        return bool(self._pinging)

    async def _ping(self, path: str, circuit: Circuit, pings: Pings) -> None:
        """Ping a silent destination. A ping may arrive twice without harm."""
        try:
            await self.attached(path)
        except AmqpError:
            return  # its circuit has recorded it
        key, started = entity_key(path), self._time()
        link = self._links.get(key)
        if link is None or link.available <= 0:
            circuit.undecided(started)
            return
        outcome, on_outcome = outcome_future()
        error: AmqpError | None = None
        try:
            link.send(PING, on_outcome)
            await outcome
        except AmqpError as raised:
            error = raised
        now = self._time()
        pings.record(path, error, now - started, len(PING))
        if error is not None and outcome_of(error) is Outcome.UNKNOWN:
            circuit.failed(now, lost_connection=isinstance(error, ConnectionLostError), is_silent=True)
            return
        circuit.answered(now)  # a refusal is an answer, too
        del self._pinging[key]
        for listener in self.listeners:
            listener.answered(key)

    def down(self) -> tuple[str, ...]:
        """The destinations whose circuits are open."""
        return tuple(sorted(key for key, circuit in self._circuits.items() if circuit.is_open and not circuit.is_held))

    def hold(self, key: str) -> None:
        """Send nothing to a destination until `release`."""
        self.circuit(key).hold()
        self._tell_ready(key)  # its waiting messages are deferred

    def release(self, key: str) -> None:
        """Send to it again."""
        self.circuit(key).release()

    # ---- links ----

    def link(self, key: str) -> Sender | None:
        """The link to a destination, if it is attached."""
        link = self._links.get(key)
        if link is not None:
            self._links.move_to_end(key)
        return link

    def request_link(self, path: str) -> None:
        """Start attaching a link. The listeners learn the result, unless the connection is lost."""
        self._attach(path)

    async def attached(self, path: str) -> None:
        """Wait for a link. Raises the error if attaching fails."""
        if self._links.get(entity_key(path)) is None:
            # Others may wait for the same link, so cancelling this task must not stop it.
            error = await asyncio.shield(self._attach(path))
            if error is not None:
                raise error.with_traceback(None)

    def _attach(self, path: str) -> asyncio.Task[AmqpError | None]:
        key = entity_key(path)
        task = self._attaching.get(key)
        if task is None:
            task = self._attaching[key] = asyncio.create_task(self._attach_now(key, path))
            task.add_done_callback(lambda _: self._attaching.pop(key, None))
        return task

    async def _attach_now(self, key: str, path: str) -> AmqpError | None:
        connection = await self._primary.connected()
        try:
            async with self._attach_slots:
                sender = await connection.attach_sender(path, seconds=ATTACH_TIMEOUT, on_end=partial(self._ended, key))
            sender.check()  # it may have ended before this task ran
        except AmqpError as error:
            if connection.error is None:
                self._failed(key, path, error)
            return error
        self._links[key] = sender
        sender.on_credit = partial(self._tell_ready, key)
        self.drop_idle()
        self._tell_ready(key)
        return None

    def _failed(self, key: str, path: str, error: AmqpError) -> None:
        now = self._time()
        if classify(error) is SendFailure.BUSY:
            self.pace.busy(now)
            self.circuit(key).undecided(now)
        else:
            self.circuit(key).failed(now)
        logger.warning("Attaching a sender to %s failed: %s", path, error)
        for listener in self.listeners:
            listener.attach_failed(key)

    def _tell_ready(self, key: str) -> None:
        for listener in self.listeners:
            listener.link_ready(key)

    def _ended(self, key: str, error: AmqpError) -> None:
        self._links.pop(key, None)
        self._tell_ready(key)  # lanes with waiting messages request a new link

    def drop_idle(self) -> None:
        """Close the least recently used links beyond `MAX_LINKS`, except busy ones."""
        for key in list(self._links):
            if len(self._links) <= MAX_LINKS:
                return
            if self._links[key].pending == 0 and not any(listener.has_waiting(key) for listener in self.listeners):
                self._close(self._links.pop(key))

    def _close(self, link: Sender) -> None:
        link.on_credit = None
        task = asyncio.create_task(link.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Cancel all tasks. The links end with their connection."""
        tasks: list[asyncio.Task[Any]] = [*self._attaching.values(), *self._closing, *self._pinging.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
