"""Where messages are moved to: a link and a circuit for each entity of the primary.

There may be thousands of destinations, so links are kept for those used last. Everything here is shared by the pumps
of a process, and so is what is known about a destination that is down.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from functools import partial
from typing import Any, Protocol

from twinbus.amqp import sections
from twinbus.amqp.encoding import encode
from twinbus.amqp.types import Symbol, UInt
from twinbus.ledger.recorder import Outcome
from twinbus.pairing.naming import entity_key
from twinbus.pairing.ping import PING_CONTENT_TYPE, PING_TIME_TO_LIVE

from .bookkeeping import Pings, outcome_of
from .circuits import Circuit
from .connection import OUTCOME_TIMEOUT
from .connector import Connector
from .errors import AmqpError, ConnectionLost
from .links import outcome_future
from .pacing import Pace
from .sender import Sender
from .verdicts import Verdict, verdict_on

logger = logging.getLogger("twinbus.syphon")

MAX_LINKS = 200  # a session of the service takes 255
ATTACH_TIMEOUT = 10.0
ATTACHING_AT_ONCE = 16

_NULL = encode(None)
#: An empty message that lives for a second, and that no receiver gets to see.
PING = (
    sections.list_section(sections.HEADER, [_NULL, _NULL, encode(UInt(int(PING_TIME_TO_LIVE.total_seconds() * 1000)))])
    + sections.list_section(sections.PROPERTIES, [*[_NULL] * 6, encode(Symbol(PING_CONTENT_TYPE))])
    + b"\x00\x53\x75"
    + encode(b"")
)


class Listener(Protocol):
    """Is told what has become of a link that it wanted. Keys are those of `entity_key`."""

    def needs(self, key: str) -> bool:
        """Whether something waits to be sent to the destination."""

    def link_ready(self, key: str) -> None:
        """There is room for messages to the destination."""

    def attach_failed(self, key: str) -> None:
        """There is no link. The circuit says whether the destination is down."""

    def answered(self, key: str) -> None:
        """The destination has answered a ping: messages may be sent again."""

    def primary_changed(self) -> None:
        """The connection to the primary was made or lost."""


class Destinations:
    """The links to the primary's entities."""

    def __init__(
        self, primary: Connector, pace: Pace, retry_min: float, retry_max: float, pings: Pings | None = None
    ) -> None:
        """`pings` records pings; without it none are sent, and a message decides whether a destination is back."""
        self._primary = primary
        self._pings = pings
        self._pinging: dict[str, asyncio.Task[None]] = {}
        self._answer_seconds = OUTCOME_TIMEOUT
        self._retry = retry_min, retry_max
        self._links: OrderedDict[str, Sender] = OrderedDict()
        self._attaching: dict[str, asyncio.Task[AmqpError | None]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(ATTACHING_AT_ONCE)
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
        """Whether the last connection to the primary was of no use."""
        return self._primary.failures > 0

    def accepted(self) -> None:
        """The primary took a message."""
        self.pace.accepted()
        if self._primary.connection is not None:
            self._primary.connection.has_worked = True

    async def connected(self) -> None:
        """Return as soon as there is a connection to the primary."""
        await self._primary.connected()

    def answer_within(self, seconds: float) -> None:
        """Give up on a message without an answer after so long, well before its lock ends. The shortest time counts."""
        if seconds < self._answer_seconds:
            self._answer_seconds = seconds
            self._set_patience()

    def _set_patience(self) -> None:
        if self._primary.connection is not None:
            self._primary.connection.outcome_timeout = self._answer_seconds

    def _primary_changed(self) -> None:
        now = self._time()
        self._set_patience()
        for circuit in self._circuits.values():
            circuit.undecided(now)
            if self.is_up:
                circuit.connected(now)
        for listener in list(self.listeners):
            listener.primary_changed()

    # ---- circuits ----

    def circuit(self, key: str) -> Circuit:
        """The circuit of a destination; the same for all who ask."""
        found = self._circuits.get(key)
        if found is None:
            found = self._circuits[key] = Circuit(*self._retry)
        return found

    def may_try(self, path: str) -> bool:
        """Whether to send to a destination now. One that lost the connection is tried alone: together with the one that
        is to blame it would lose it again."""
        key = entity_key(path)
        circuit = self.circuit(key)
        if circuit.lost_connection and any(one.is_probing for one in self._circuits.values()):
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
        """Whether a ping is under way."""
        return bool(self._pinging)

    async def _ping(self, path: str, circuit: Circuit, pings: Pings) -> None:
        """Ask a destination that has left messages without an answer for one. A ping may arrive twice without harm."""
        try:
            await self.attached(path)
        except AmqpError:
            return  # its circuit knows
        key, started = entity_key(path), self._time()
        link = self._links.get(key)
        if link is None or link.room <= 0:
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
            circuit.failed(now, lost_connection=isinstance(error, ConnectionLost), is_silent=True)
            return
        circuit.answered(now)  # also if it was refused
        del self._pinging[key]
        for listener in self.listeners:
            listener.answered(key)

    def down(self) -> tuple[str, ...]:
        """The destinations whose circuits are open."""
        return tuple(sorted(key for key, one in self._circuits.items() if one.is_open and not one.is_held))

    def hold(self, key: str) -> None:
        """Send nothing more to a destination, whatever becomes of it, until `release`."""
        self.circuit(key).hold()
        self._tell_ready(key)  # what waits for it is set aside

    def release(self, key: str) -> None:
        """Send to it again."""
        self.circuit(key).release()

    # ---- links ----

    def link(self, key: str) -> Sender | None:
        """The link to a destination, if there is one."""
        found = self._links.get(key)
        if found is not None:
            self._links.move_to_end(key)
        return found

    def want(self, path: str) -> None:
        """Have a link attached. The listeners are told how that ended, unless the connection is lost."""
        self._attach(path)

    async def attached(self, path: str) -> None:
        """Return when there is a link. Raises why there is none."""
        if self._links.get(entity_key(path)) is None:
            # Others may want the same link: it is attached for them, whatever becomes of this task.
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
            async with self._turns:
                sender = await connection.attach_sender(path, seconds=ATTACH_TIMEOUT, on_end=partial(self._ended, key))
            sender.check()  # it may have ended before this task came to run
        except AmqpError as error:
            if connection.error is None:
                self._failed(key, path, error)
            return error
        self._links[key] = sender
        sender.on_room = partial(self._tell_ready, key)
        self.drop_idle()
        self._tell_ready(key)
        return None

    def _failed(self, key: str, path: str, error: AmqpError) -> None:
        now = self._time()
        if verdict_on(error) is Verdict.BUSY:
            self.pace.busy(now)
            self.circuit(key).undecided(now)
        else:
            self.circuit(key).failed(now)
        logger.warning("%s cannot be sent to: %s", path, error)
        for listener in self.listeners:
            listener.attach_failed(key)

    def _tell_ready(self, key: str) -> None:
        for listener in self.listeners:
            listener.link_ready(key)

    def _ended(self, key: str, error: AmqpError) -> None:
        self._links.pop(key, None)
        self._tell_ready(key)  # whoever has something to send asks for a new one

    def drop_idle(self) -> None:
        """Close the links that were not used for longest, if there are too many. Those that are busy are spared."""
        for key in list(self._links):
            if len(self._links) <= MAX_LINKS:
                return
            if self._links[key].pending == 0 and not any(one.needs(key) for one in self.listeners):
                self._close(self._links.pop(key))

    def _close(self, link: Sender) -> None:
        link.on_room = None
        task = asyncio.create_task(link.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Leave no task behind. The links end with their connection."""
        tasks: list[asyncio.Task[Any]] = [*self._attaching.values(), *self._closing, *self._pinging.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
