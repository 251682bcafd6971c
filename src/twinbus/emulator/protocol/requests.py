"""Carries requests and responses over links, for `$cbs` and `$management`."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec import sections
from twinbus.amqp.codec.decoding import decode
from twinbus.amqp.codec.encoding import encode
from twinbus.amqp.codec.types import DecodeError, Int, Symbol
from twinbus.servicebus.access_rights import Right

from ..faults.fault_plan import Fault, FaultKind, FaultPoint
from ..faults.gates import Gate
from .error_conditions import DECODE_ERROR, INTERNAL_ERROR, NOT_ALLOWED, NOT_IMPLEMENTED, QUOTA_EXCEEDED, BrokerError
from .links import MASK, CreditedLink, Link, credit_left, idle_too_long, token_expired

if TYPE_CHECKING:
    from .channel import Channel
    from .connection import Connection

logger = logging.getLogger("twinbus.emulator.protocol.requests")

MAX_PENDING = 100
MAX_PENDING_BYTES = 8 << 20
CREDIT = 100


class Request(NamedTuple):
    """A request message: application properties and body, with exact AMQP types."""

    message_id: Any
    reply_to: str | None
    properties: dict[str, Any]
    body: Any

    def text(self, name: str) -> str:
        """A property that must be a string; raises `BrokerError`."""
        value = self.properties.get(name)
        if not isinstance(value, str):
            raise BrokerError("com.microsoft:argument-error", f"The property '{name}' must be a string.")
        return str(value)


class Response(NamedTuple):
    """A response: status, description, body, and the error condition of a failure."""

    status: int
    description: str
    body: Any = None
    condition: str | None = None


class Subject(NamedTuple):
    """The entity of a request, and the fault kinds that do not apply to it."""

    path: str
    spared_by: frozenset[FaultKind] = frozenset()


class RequestNode(Protocol):
    """Answers the requests of one node."""

    max_request: int
    STATUS: str
    DESCRIPTION: str
    path: str | None

    def subject(self, request: Request) -> Subject:
        """The subject of a request, for faults."""

    async def answer(self, request: Request, connection: Connection) -> Response:
        """Answer one request; raises `BrokerError`."""


def parse_request(payload: bytes) -> Request:
    """Decode a request; raises `DecodeError`."""
    parts = sections.split_sections(payload)
    fields = sections.section_value(parts.properties) or []
    fields += [None] * (5 - len(fields))
    values: dict[str, Any] = {}
    for key, raw in sections.map_entries(parts.application_properties):
        values[str(key)] = sections.entry_value(raw)
    body = None
    if parts.body[:3] == b"\x00\x53\x77":
        body, _ = decode(parts.body, 3)
    reply_to = fields[4]
    return Request(fields[0], str(reply_to) if isinstance(reply_to, str) else None, values, body)


def encode_response(request: Request, response: Response, node: RequestNode) -> bytes:
    """Encode a response as a message."""
    values: dict[str, Any] = {
        node.STATUS: Int(response.status),
        node.DESCRIPTION: response.description,
    }
    if response.condition is not None:
        values["errorCondition"] = Symbol(response.condition)
    entries = [sections.entry(key, value) for key, value in values.items()]
    null = b"\x40"
    properties = [null, null, null, null, null, encode(request.message_id)]
    return (
        sections.list_section(sections.PROPERTIES, properties)
        + sections.map_section(sections.APPLICATION_PROPERTIES, entries)
        + b"\x00\x53\x77"
        + encode(response.body)
    )


class ResponseLink(Link):
    """Carries responses to the client."""

    def __init__(
        self, channel: Channel, attach: amqp.Attach, source: str, target: str | None, path: str | None
    ) -> None:
        super().__init__(channel, attach)
        self.path = path
        self.source = source
        self.target = target
        self._credit = 0
        self._delivery_count = 0
        self._pending: list[bytes] = []
        self._pending_bytes = 0

    def on_flow(self, flow: amqp.Flow) -> None:
        if flow.link_credit is not None:
            self._credit = credit_left(flow, self._delivery_count)
        self.wake()
        if flow.drain:
            self._delivery_count = (self._delivery_count + self._credit) & MASK
            self._credit = 0
        if flow.drain or flow.echo:
            self.channel.link_flow(
                self.handle,
                delivery_count=self._delivery_count,
                link_credit=self._credit,
                available=len(self._pending),
                drain=flow.drain or None,
            )

    def answer(self, payload: bytes) -> None:
        """Send a response, or keep it until there is credit and room. Closes the connection if too many wait."""
        self._pending.append(payload)
        self._pending_bytes += len(payload)
        self.wake()
        if len(self._pending) > MAX_PENDING or self._pending_bytes > MAX_PENDING_BYTES:
            self.connection.close(BrokerError(QUOTA_EXCEEDED, "Too many answers wait for credit."), linger=True)

    def wake(self) -> None:
        while self._pending and self._credit > 0 and self.channel.can_send():
            payload = self._pending.pop(0)
            self._pending_bytes -= len(payload)
            self._transfer(payload)

    def _transfer(self, payload: bytes) -> None:
        self._credit -= 1
        self._delivery_count = (self._delivery_count + 1) & MASK
        self.channel.transfer(self, self._delivery_count.to_bytes(4, "big"), None, payload)


class RequestLink(CreditedLink):
    """Carries requests from the client to a node."""

    def __init__(self, channel: Channel, attach: amqp.Attach, node: RequestNode, address: str) -> None:
        super().__init__(channel, attach, node.max_request, CREDIT)
        self.node = node
        self.path = node.path
        self.address = address
        self._gate = Gate(self.connection, FaultPoint.TOKEN if node.path is None else FaultPoint.MANAGEMENT)
        self._tasks: set[asyncio.Task[None]] = set()

    def on_delivery(self, transfer: amqp.Transfer, payload: bytes | None) -> None:
        if transfer.state is not None:
            # Requests are done at once, so they could not be rolled back.
            error = BrokerError(NOT_IMPLEMENTED, "A request cannot be part of a transaction.")
            self.channel.reject(transfer.delivery_id or 0, error)
            return
        if not transfer.settled and transfer.delivery_id is not None:
            self.channel.accept(transfer.delivery_id)
        if len(self._tasks) >= MAX_PENDING:
            raise BrokerError(NOT_ALLOWED, f"More than {MAX_PENDING} requests are waiting for an answer.")
        if payload is None:
            raise BrokerError(NOT_ALLOWED, f"A request is larger than {self.node.max_request} bytes.")
        try:
            request = parse_request(payload)
        except DecodeError as error:
            raise BrokerError(DECODE_ERROR, f"The request is malformed: {error}") from error
        if self.connection.namespace.faults.active or not self._gate.is_clear:
            subject = self.node.subject(request)
            self._gate.perform(subject.path, lambda fault: self._start(request, fault), len(payload), subject.spared_by)
        else:
            self._start(request, None)

    def _start(self, request: Request, fault: Fault | None) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(request, fault))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, request: Request, fault: Fault | None) -> None:
        try:
            if fault is not None and fault.refuses:
                raise fault.error()
            response = await self.node.answer(request, self.connection)
        except BrokerError as error:
            response = Response(error.status, error.description, condition=error.condition)
        except Exception:
            logger.exception("answering a request to %s failed", self.address)
            response = Response(500, "The request could not be processed.", condition=INTERNAL_ERROR)
        link = self._response_link(request.reply_to)
        if link is not None and not (fault is not None and fault.hides_answer):
            link.answer(encode_response(request, response, self.node))
            # Threads of one SDK client share a socket and its lock. A thread that waits for an answer which another
            # thread has read would block all of them for 0.2 s. The renewed credit is a frame that wakes it.
            self.channel.renew_later(self)
        if fault is not None and fault.cuts_after:
            self.connection.cut()

    def _response_link(self, reply_to: str | None) -> ResponseLink | None:
        candidates = [link for link in self.channel.links.values() if isinstance(link, ResponseLink)]
        candidates = [link for link in candidates if link.source == self.address] or candidates
        for link in candidates:
            if reply_to is not None and link.target == reply_to:
                return link
        return candidates[0] if candidates else None

    def tick(self, now: float) -> None:
        if self.path is None:
            return
        idle = self.connection.profile.link_idle
        if idle is not None and now - self.last_transfer > idle:
            self._detach_both(idle_too_long(self, "management", "AmqpControlProtocolClient", idle))
        elif not any(self.connection.rights.allows_management(self.path, right) for right in Right):
            self._detach_both(token_expired(self.path))

    def _detach_both(self, error: BrokerError) -> None:
        """Detach this link and the link for its responses."""
        for link in list(self.channel.links.values()):
            if link is self or (isinstance(link, ResponseLink) and link.source == self.address):
                self.channel.detach(link, error)

    def drop(self) -> None:
        super().drop()
        for task in self._tasks:
            task.cancel()
