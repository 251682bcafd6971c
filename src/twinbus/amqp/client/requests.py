"""Sends requests and matches responses over a pair of links, for `$cbs` and `$management`."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from typing import Any, NamedTuple

from twinbus.amqp.codec import sections
from twinbus.amqp.codec.encoding import encode
from twinbus.amqp.codec.types import DecodeError

from .deadlines import Deadline, answered_within
from .errors import AmqpError, LinkDetachedError, NoCreditError
from .links import Link, OnEnd
from .receiver import Delivery, Receiver
from .sender import Sender
from .session import Session

MAX_PENDING = 100
# The response to a peek may hold many messages.
MAX_ANSWER_SIZE = 256 << 20
_NULL = encode(None)


class Answer(NamedTuple):
    """A node's response: HTTP-like status, description, AMQP condition if it failed, and the body's value."""

    status: int
    description: str
    condition: str
    body: Any

    @property
    def is_ok(self) -> bool:
        return 200 <= self.status < 300


def encode_request(message_id: str, reply_to: str, properties: dict[str, Any], body: Any) -> bytes:
    """Encode a request as a message."""
    fields = [encode(message_id), _NULL, _NULL, _NULL, encode(reply_to)]
    entries = [sections.entry(key, value) for key, value in properties.items()]
    return (
        sections.list_section(sections.PROPERTIES, fields)
        + sections.map_section(sections.APPLICATION_PROPERTIES, entries)
        + b"\x00\x53\x77"
        + encode(body)
    )


def parse_answer(payload: bytes) -> tuple[Any, Answer]:
    """Return the id of the request and its answer. Raises `DecodeError`."""
    parts = sections.split_sections(payload)
    correlation_id = sections.list_fields(parts.properties, 6)[5]
    values = {str(key): sections.entry_value(raw) for key, raw in sections.map_entries(parts.application_properties)}

    def first_of(*names: str) -> Any:
        return next((values[name] for name in names if values.get(name) is not None), None)

    status = first_of("statusCode", "status-code")
    if not isinstance(status, int):
        raise DecodeError("the response has no status code")
    description = str(first_of("statusDescription", "status-description") or "")
    condition = str(first_of("errorCondition", "error-condition") or "")
    is_value = parts.body[:3] == b"\x00\x53\x77"
    body = sections.section_value(parts.body) if is_value else None
    return correlation_id, Answer(int(status), description, condition, body)


class RequestLinks:
    """The request and response links to one node."""

    def __init__(self, session: Session, node: str, on_end: OnEnd | None = None) -> None:
        unique = uuid.uuid4().hex
        self._on_end = on_end
        self._reply_to = f"{node}-reply-{unique}"
        self._sender = Sender(session, f"{node}-request-{unique}", node, self._ended)
        self._receiver = Receiver(
            session,
            self._reply_to,
            node,
            self._on_answer,
            self._ended,
            max_message_size=MAX_ANSWER_SIZE,
            settle_modes=(0, 0),
            target=self._reply_to,
        )
        self._numbers = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[Answer]] = {}
        self._loop = asyncio.get_running_loop()
        self._session = session
        self.node = node
        self.error: AmqpError | None = None

    @property
    def both(self) -> set[Link]:
        return {self._sender, self._receiver}

    async def attach(self, seconds: float) -> None:
        """Attach both links; raises `LinkDetachedError`, `AnswerTimeoutError` or `ConnectionLostError`."""
        deadline = Deadline(seconds)
        # If one fails, `_ended` gives up the other.
        await self._receiver.attach(deadline.left)
        await self._sender.attach(deadline.left)
        self._receiver.add_credit(MAX_PENDING)

    async def request(self, properties: dict[str, Any], body: Any, seconds: float) -> Answer:
        """Send a request and wait for the answer, success or failure.

        Raises `AnswerTimeoutError`, `NoCreditError` if too many requests are pending, or the error that ended the
        links.
        """
        if len(self._waiting) >= MAX_PENDING:
            raise NoCreditError(f"'{self.node}' has {MAX_PENDING} pending requests, the maximum")
        message_id = f"{self._reply_to}-{next(self._numbers)}"
        payload = encode_request(message_id, self._reply_to, properties, body)
        answered: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting[message_id] = answered
        try:
            async with answered_within(seconds, f"'{self.node}' did not answer", self._session):
                await self._sender.wait_for_credit(seconds)
                self._sender.send(payload, lambda error: self._on_outcome(message_id, error))
                return await answered
        finally:
            self._waiting.pop(message_id, None)
            if answered.done() and not answered.cancelled():
                answered.exception()  # mark it as retrieved: the links may have ended first

    def _on_outcome(self, message_id: str, error: AmqpError | None) -> None:
        waiting = self._waiting.get(message_id)
        if error is not None and waiting is not None and not waiting.done():
            waiting.set_exception(error)

    def _on_answer(self, delivery: Delivery) -> None:
        if not delivery.settled:
            self._receiver.acknowledge(delivery)
        if self._receiver.credit <= MAX_PENDING // 2:
            self._receiver.add_credit(MAX_PENDING - self._receiver.credit)
        correlation_id, answer = parse_answer(delivery.payload)
        waiting = self._waiting.get(correlation_id) if isinstance(correlation_id, str) else None
        # An answer that came too late is dropped.
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _ended(self, error: AmqpError) -> None:
        """End both links when one of them has ended."""
        if self.error is not None:
            return
        self.error = error
        for link in self.both:
            if link.error is None:
                link.give_up(error)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)
        if self._on_end is not None:
            self._on_end(error)

    async def close(self, seconds: float) -> None:
        self._ended(LinkDetachedError(f"the links to '{self.node}' were closed here"))
        await asyncio.gather(self._sender.close(seconds), self._receiver.close(seconds))
