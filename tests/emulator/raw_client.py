"""A small asyncio AMQP client for what the SDK cannot do.

It keeps many sends and settlements in flight, reports each outcome, and can cut its connection at any moment.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeVar, cast

from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec import sections
from twinbus.amqp.codec.decoding import decode_plain
from twinbus.amqp.codec.encoding import encode
from twinbus.amqp.codec.frames import AMQP_HEADER, SASL_HEADER, TYPE_SASL, frame, split_frames, transfer_frames
from twinbus.amqp.codec.types import Symbol, Timestamp
from twinbus.emulator.auth.security import sign
from twinbus.servicebus.connection_strings import ConnectionString

MAX_FRAME = 65536
WINDOW = 0x7FFFFFFF
STEP_SECONDS = 60.0  # seconds without an answer before a test fails
SESSION_FILTER = "com.microsoft:session-filter"
NEXT_SESSION = ""  # the next free session

_T = TypeVar("_T")


class RefusedError(Exception):
    """The namespace refused a link, a request, a message or a settlement."""

    def __init__(self, error: Any) -> None:
        super().__init__(f"{error.condition}: {error.description}" if error else "refused without a reason")
        self.condition: str = error.condition if error else ""
        self.description: str = (error.description or "") if error else ""


class ConnectionGoneError(Exception):
    """The connection ended before an answer, so the outcome is unknown."""


Outcome = Callable[[RefusedError | ConnectionGoneError | None], None]


class Answer(NamedTuple):
    """A response: application properties and body."""

    properties: dict[str, Any]
    body: Any


class Delivery(NamedTuple):
    """A received message."""

    number: int
    tag: bytes
    payload: bytes

    @property
    def message_id(self) -> str:
        properties = sections.split_sections(self.payload).properties
        return str(sections.list_fields(properties, 1)[0])

    @property
    def annotations(self) -> dict[str, Any]:
        section = sections.split_sections(self.payload).message_annotations
        return {key: sections.entry_value(raw) for key, raw in sections.map_entries(section)}

    @property
    def sequence_number(self) -> int:
        return int(self.annotations["x-opt-sequence-number"])


def encoded_message(
    message_id: str, body: bytes = b"x", *, session: str | None = None, due_at: float | None = None
) -> bytes:
    """Encode a message; `due_at` (seconds since the epoch) schedules it."""
    null = encode(None)
    fields = [encode(message_id), *[null] * 9, encode(session)]
    annotations = b""
    if due_at is not None:
        due = sections.entry(Symbol("x-opt-scheduled-enqueue-time"), Timestamp(int(due_at * 1000)))
        annotations = sections.map_section(sections.MESSAGE_ANNOTATIONS, [due])
    return annotations + sections.list_section(sections.PROPERTIES, fields) + b"\x00\x53\x75" + encode(body)


class RawLink:
    """Base of senders and receivers."""

    def __init__(self, client: RawClient, handle: int, name: str) -> None:
        self.client = client
        self.handle = handle
        self.name = name
        self.attached: asyncio.Future[amqp.Attach] = asyncio.get_running_loop().create_future()
        self.error: RefusedError | None = None

    def on_flow(self, flow: amqp.Flow) -> None:
        """Handle a flow."""

    def on_transfer(self, transfer: amqp.Transfer, payload: bytes) -> None:
        """Handle a frame of a delivery."""

    def ended(self) -> None:
        """Handle the end of the link or connection."""


class RawSender(RawLink):
    """Sends without waiting for outcomes, within its credit."""

    def __init__(self, client: RawClient, handle: int, name: str) -> None:
        super().__init__(client, handle, name)
        self._sent = 0
        self._limit = 0
        self._has_credit = asyncio.Event()

    @property
    def credit(self) -> int:
        return self._limit - self._sent

    def on_flow(self, flow: amqp.Flow) -> None:
        if flow.link_credit is not None:
            self._limit = (flow.delivery_count or 0) + flow.link_credit
            self._has_credit.set()

    def ended(self) -> None:
        self._has_credit.set()

    async def room(self) -> None:
        """Wait until there is credit; raises `ConnectionGoneError` if the connection ends."""
        while self.credit <= 0:
            self._has_credit.clear()
            await self._has_credit.wait()
            self.client.check()
            if self.error is not None:
                raise self.error

    def submit(self, payload: bytes, outcome: Outcome) -> None:
        """Send a message now; `outcome` gets None when it is accepted, the refusal, or `ConnectionGoneError`."""
        self.client.check()
        self._sent += 1
        self.client.transfer(self.handle, payload, outcome)

    async def send(self, payload: bytes) -> None:
        """Send a message and wait for its outcome; raises `RefusedError` or `ConnectionGoneError`."""
        await self.room()
        waiter, outcome = _waiter()
        self.submit(payload, outcome)
        await waiter


class RawReceiver(RawLink):
    """Receives messages within its credit, which it can renew by itself."""

    def __init__(self, client: RawClient, handle: int, name: str, on_message: Callable[[Delivery], None]) -> None:
        super().__init__(client, handle, name)
        self._on_message = on_message
        self._received = 0
        self._credit = 0
        self._renewed = 0
        self._first: amqp.Transfer | None = None
        self._parts: list[bytes] = []
        self.session: str | None = None

    def grant(self, credit: int, *, renewed: bool = False) -> None:
        """Grant credit; with `renewed` it is renewed when half of it is used."""
        self._credit = credit
        self._renewed = credit if renewed else 0
        self.client.flow(self.handle, self._received, credit)

    def on_transfer(self, transfer: amqp.Transfer, payload: bytes) -> None:
        if transfer.more or self._first is not None:
            self._first = self._first or transfer
            self._parts.append(payload)
            if transfer.more:
                return
            transfer, payload = self._first, b"".join(self._parts)
            self._first, self._parts = None, []
        self._received += 1
        self._credit -= 1
        if self._renewed and self._credit <= self._renewed // 2:
            self.grant(self._renewed, renewed=True)
        self._on_message(Delivery(transfer.delivery_id or 0, transfer.delivery_tag or b"", payload))

    def settle(self, delivery: Delivery, outcome: Outcome, state: Any = None) -> None:
        """Settle a delivery, by default as accepted; `outcome` gets the answer."""
        self.client.check()
        self.client.settle(delivery.number, amqp.Accepted() if state is None else state, outcome)

    async def settled(self, delivery: Delivery, state: Any = None) -> None:
        """Settle and wait; raises `RefusedError` or `ConnectionGoneError`."""
        waiter, outcome = _waiter()
        self.settle(delivery, outcome, state)
        await waiter


def _waiter() -> tuple[asyncio.Future[None], Outcome]:
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def outcome(error: RefusedError | ConnectionGoneError | None) -> None:
        if waiter.done():
            return
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)

    return waiter, outcome


class RawClient(asyncio.Protocol):
    """A connection with one channel, in an `async with` block."""

    def __init__(self, connection_string: str) -> None:
        self._address = ConnectionString.parse(connection_string)
        self._buffer = bytearray()
        self._outgoing: list[bytes] = []
        self._stage = self._on_header
        self._headers = 0
        self._links: dict[int, RawLink] = {}
        self._next_delivery = 0
        self._incoming = 0
        self._sent: dict[int, Outcome] = {}
        self._settled: dict[int, Outcome] = {}
        self._transport: asyncio.Transport | None = None
        self.reason: RefusedError | None = None

    async def __aenter__(self) -> RawClient:
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        await self._within(self._connect())
        await self._within(self._ready)
        return self

    async def _connect(self) -> None:
        try:
            await self._loop.create_connection(lambda: self, self._address.host, self._address.port)
        except OSError as error:
            raise ConnectionGoneError(str(error)) from error

    async def __aexit__(self, *_: object) -> None:
        if self._transport is not None:
            self._write(frame(0, amqp.Close()))
            self._flush()
            self._transport.close()
        await self.lost

    @staticmethod
    async def _within(work: Coroutine[Any, Any, _T] | asyncio.Future[_T]) -> _T:
        return await asyncio.wait_for(work, STEP_SECONDS)

    def abort(self) -> None:
        """Abort the connection without a close frame."""
        if self._transport is not None:
            self._transport.abort()

    def check(self) -> None:
        """Raise `ConnectionGoneError` if the connection has ended."""
        if self._transport is None:
            raise self._gone()

    def _gone(self) -> ConnectionGoneError:
        return ConnectionGoneError(str(self.reason) if self.reason else "the connection was lost")

    # ---- links ----

    async def put_token(self, entity: str, *, expires_at: float | None = None) -> None:
        """Put a token for an entity, valid for an hour or until `expires_at`; raises `RefusedError`."""
        audience = f"sb://{self._address.host}:{self._address.port}/{entity}"
        token = sign(audience, self._address.key_name, self._address.key, expires_at or time.time() + 3600)
        properties = {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": audience}
        answer = await self.request("$cbs", properties, token)
        status = answer.properties["status-code"]
        if status not in (200, 202):
            raise RefusedError(amqp.Error("put-token", f"{status} {answer.properties.get('status-description')}"))

    async def manage(self, entity: str, operation: str, body: dict[str, Any], link: RawLink | None = None) -> Any:
        """Send a request to an entity's `$management`; returns the body of the answer. Raises `RefusedError`."""
        properties = {"operation": f"com.microsoft:{operation}"}
        if link is not None:
            properties["associated-link-name"] = link.name
        answer = await self.request(f"{entity}/$management", properties, body)
        status = answer.properties["statusCode"]
        if status not in (200, 202, 204):
            condition = str(answer.properties.get("errorCondition", status))
            raise RefusedError(amqp.Error(condition, answer.properties.get("statusDescription")))
        return answer.body

    async def request(self, node: str, properties: dict[str, Any], body: Any) -> Answer:
        """Send a request to `$cbs` or an entity's `$management`; returns the answer."""
        reply_to = f"reply-{uuid.uuid4().hex}"
        answered: asyncio.Future[Answer] = self._loop.create_future()

        def on_message(delivery: Delivery) -> None:
            parts = sections.split_sections(delivery.payload)
            entries = sections.map_entries(parts.application_properties)
            values = {key: sections.entry_value(raw) for key, raw in entries}
            if not answered.done():
                answered.set_result(Answer(values, sections.section_value(parts.body)))

        receiver = await self._receiver(node, on_message, target=reply_to)
        receiver.grant(1)
        sender = await self.sender(node)
        null = encode(None)
        entries = [sections.entry(key, value) for key, value in properties.items()]
        fields = [encode(uuid.uuid4().hex), null, null, null, encode(reply_to)]
        message = sections.list_section(sections.PROPERTIES, fields)
        message += sections.map_section(sections.APPLICATION_PROPERTIES, entries) + b"\x00\x53\x77" + encode(body)
        sender.submit(message, lambda error: None)
        done, _ = await asyncio.wait((answered, self.lost), return_when=asyncio.FIRST_COMPLETED, timeout=STEP_SECONDS)
        if answered not in done:
            raise self._gone()
        for link in (receiver, sender):
            self._write(frame(0, amqp.Detach(link.handle, closed=True)))
        return answered.result()

    async def sender(self, entity: str) -> RawSender:
        """Attach a sender; raises `RefusedError`."""
        link = RawSender(self, len(self._links), f"send-{uuid.uuid4().hex}")
        target = amqp.Target(entity)
        attach = amqp.Attach(link.name, link.handle, amqp.ROLE_SENDER, 0, 0, amqp.Source(link.name), target)
        await self._attach(link, attach._replace(initial_delivery_count=0))
        return link

    async def receiver(
        self,
        entity: str,
        on_message: Callable[[Delivery], None],
        *,
        deletes: bool = False,
        session: str | None = None,
    ) -> RawReceiver:
        """Attach a receiver without credit; raises `RefusedError`."""
        return await self._receiver(entity, on_message, deletes=deletes, session=session)

    async def _receiver(
        self,
        entity: str,
        on_message: Callable[[Delivery], None],
        *,
        deletes: bool = False,
        session: str | None = None,
        target: str = "tests",
    ) -> RawReceiver:
        link = RawReceiver(self, len(self._links), f"receive-{uuid.uuid4().hex}", on_message)
        source = amqp.Source(entity)
        if session is not None:
            source = source._replace(filter={Symbol(SESSION_FILTER): session or None})
        modes = (1, 0) if deletes else (0, 1)
        attach = amqp.Attach(link.name, link.handle, amqp.ROLE_RECEIVER, *modes, source, amqp.Target(target))
        answer = await self._attach(link, attach)
        if session is not None:
            link.session = answer.source.filter[SESSION_FILTER]
        return link

    async def _attach(self, link: RawLink, attach: amqp.Attach) -> amqp.Attach:
        self.check()
        self._links[link.handle] = link
        self._write(frame(0, attach))
        await asyncio.wait((link.attached, self.lost), return_when=asyncio.FIRST_COMPLETED, timeout=STEP_SECONDS)
        if not link.attached.done():
            raise self._gone()
        return link.attached.result()

    # ---- called by links ----

    def transfer(self, handle: int, payload: bytes, outcome: Outcome) -> None:
        number = self._next_delivery
        self._next_delivery += 1
        self._sent[number] = outcome
        for part in transfer_frames(0, handle, number, number.to_bytes(4, "big"), False, payload, MAX_FRAME):
            self._write(part)

    def settle(self, number: int, state: Any, outcome: Outcome) -> None:
        self._settled[number] = outcome
        self._write(frame(0, amqp.Disposition(amqp.ROLE_RECEIVER, number, number, False, state)))

    def flow(self, handle: int, received: int, credit: int) -> None:
        self._write(frame(0, amqp.Flow(self._incoming + 1, WINDOW, 0, WINDOW, handle, received, credit)))

    def _write(self, data: bytes) -> None:
        self._outgoing.append(data)
        if len(self._outgoing) == 1:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._outgoing and self._transport is not None:
            self._transport.write(b"".join(self._outgoing))
        self._outgoing.clear()

    # ---- asyncio.Protocol ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(SASL_HEADER)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while self._stage():
            pass

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        gone = self._gone()
        if not self._ready.done():
            self._ready.set_exception(gone)
        for waiting in (self._sent, self._settled):
            outcomes = list(waiting.values())
            waiting.clear()
            for outcome in outcomes:
                outcome(gone)
        for link in self._links.values():
            link.ended()
        self.lost.set_result(None)

    def _on_header(self) -> bool:
        if len(self._buffer) < 8:
            return False
        del self._buffer[:8]
        self._headers += 1
        if self._headers == 1:
            self._stage = self._on_sasl
        else:
            self._stage = self._on_frames
            self._write(frame(0, amqp.Open("tests", self._address.host, MAX_FRAME)))
            self._write(frame(0, amqp.Begin(None, 0, WINDOW, WINDOW)))
        return True

    def _on_sasl(self) -> bool:
        for _, _, body in split_frames(self._buffer, MAX_FRAME):
            performative, _ = amqp.decode_performative(body, 0)
            if type(performative) is amqp.SaslMechanisms:
                self._write(frame(0, amqp.SaslInit("ANONYMOUS"), frame_type=TYPE_SASL))
            else:
                assert type(performative) is amqp.SaslOutcome
                assert performative.code == 0
                self._write(AMQP_HEADER)
                self._stage = self._on_header
                return True
        return False

    def _on_frames(self) -> bool:
        for _, _, body in split_frames(self._buffer, MAX_FRAME):
            if not body:
                continue
            performative, pos = amqp.decode_performative(body, 0)
            kind = type(performative)
            if kind is amqp.Transfer:
                self._incoming += 1
                link = self._links.get(performative.handle)
                if link is not None:
                    link.on_transfer(performative, body[pos:])
            elif kind is amqp.Disposition:
                self._on_disposition(performative)
            else:
                self._on_other(performative)
        return False

    def _on_disposition(self, disposition: amqp.Disposition) -> None:
        waiting = self._sent if disposition.role is amqp.ROLE_RECEIVER else self._settled
        state = disposition.state
        refused = type(state) is amqp.Rejected and state.error is not None
        last = disposition.first if disposition.last is None else disposition.last
        for number in range(disposition.first, last + 1):
            outcome = waiting.pop(number, None)
            if outcome is not None:
                outcome(RefusedError(state.error) if refused else None)

    def _on_other(self, performative: Any) -> None:
        kind = type(performative)
        if kind is amqp.Begin:
            self._ready.set_result(None)
        elif kind is amqp.Flow:
            if performative.handle is not None:
                self._links[performative.handle].on_flow(performative)
        elif kind is amqp.Attach:
            link = self._links[performative.handle]
            is_link = performative.source is not None and performative.target is not None
            if is_link and not link.attached.done():
                link.attached.set_result(performative)
        elif kind is amqp.Detach:
            self._on_detach(performative)
        elif kind is amqp.Close:
            self.reason = RefusedError(performative.error) if performative.error else None
            self.abort()

    def _on_detach(self, detach: amqp.Detach) -> None:
        link = self._links[detach.handle]
        link.error = RefusedError(detach.error)
        if not link.attached.done():
            link.attached.set_exception(link.error)
        link.ended()


def body_of(delivery: Delivery) -> bytes:
    """The content of the data section."""
    value, _ = decode_plain(sections.split_sections(delivery.payload).body, 3)
    return bytes(value)
