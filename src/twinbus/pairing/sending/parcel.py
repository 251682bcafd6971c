"""Prepares the messages of one call: SDK form for the primary, envelopes for the backlog."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage

from twinbus.envelope import aliases
from twinbus.envelope.wrapping import (
    MAX_PROPERTIES_SIZE,
    Message,
    Oversize,
    annotated,
    detached,
    encoded_size,
    oversize,
    wrap,
    wrap_all,
)

from ..pairing_errors import EnvelopeTooLargeError, TwinbusError
from ..sdk import internals
from .batch import AnyMessage, EnvelopeBatch, as_message, body_size, identify, unidentify

#: Maximum batch of a Standard tier entity in bytes, the smallest of all tiers.
STANDARD_LIMIT = 256 * 1024
# Bytes of a batch besides its messages.
_EMPTY_BATCH = ServiceBusMessageBatch().size_in_bytes
# A body below this leaves enough room for properties and envelope.
_SMALL = STANDARD_LIMIT - 2 * MAX_PROPERTIES_SIZE
# Few envelopes add more than this to a message.
_LARGE_ENVELOPE = 1024

#: What the SDK's `send_messages` accepts.
Payload = ServiceBusMessage | AmqpAnnotatedMessage | ServiceBusMessageBatch | list[Any]

# Messages with their ids of batches made by plain SDK senders: a resent batch keeps its ids.
_read_batches: WeakKeyDictionary[ServiceBusMessageBatch, list[AmqpAnnotatedMessage]] = WeakKeyDictionary()


class Limits(NamedTuple):
    """Maximum size of a single message and of a batch."""

    message: int
    batch: int


class Parcel(ABC):
    """The messages of one call.

    A message without an id is given one. After a success the id is removed again, so that sending the same object again
    sends another message. After a failure it stays: sending the object again retries the same message.
    """

    is_batch = False
    #: When the messages are to arrive, if scheduled.
    at: datetime | None = None
    #: Whether it certainly fits the backlog of any tier.
    is_small = False
    #: Messages that were given a new id.
    newly_identified: Sequence[Message] = ()
    #: The SDK's argument for the primary; None if the messages are to be scheduled.
    payload: Payload | None = None
    #: Number of attempts so far, and why the primary refused it.
    attempts = 0
    primary_error: BaseException | None = None
    #: Whether an attempt got no answer, so that it may have been accepted.
    is_unclear = False
    #: How many messages the backlog has accepted so far, in order.
    stored = 0
    #: The enveloped messages, once made, and their sizes in bytes, once needed.
    _wrapped: list[AmqpAnnotatedMessage] | None = None
    _wrapped_sizes: list[int] | None = None

    def __init__(self, destination: str, message_ids: tuple[str, ...]) -> None:
        self.destination = destination
        self.message_ids = message_ids

    @property
    @abstractmethod
    def messages(self) -> Sequence[Message]:
        """All messages, in order."""

    def accepted(self) -> None:
        """Record that the call has succeeded."""
        for message in self.newly_identified:
            unidentify(message)

    def sizes(self) -> list[int]:
        """The encoded size of each message."""
        return [encoded_size(message) for message in self.messages]

    def oversize(self, limit: int) -> Oversize | None:
        """Return the first message that would be larger than `limit` bytes in the backlog; None if all fit."""
        checks = (oversize(message, self.destination, limit) for message in self.messages)
        return next((check for check in checks if check is not None), None)

    def batch_size(self) -> int:
        """Return the size of the batch that the primary would get."""
        return _EMPTY_BATCH + sum(map(_batched_size, self.sizes()))

    @property
    def session(self) -> str | None:
        """The session of all messages; None if they have none.

        Raises:
            ValueError: the messages belong to several sessions, which may need different routes.
        """
        sessions = {_session_of(message) for message in self.messages}
        if len(sessions) > 1:
            raise ValueError('with order="session" all messages of one call must have the same session_id')
        return next(iter(sessions), None)

    @property
    def is_stored(self) -> bool:
        """Whether the backlog has accepted all messages."""
        return self.stored == len(self.message_ids)

    def next_part(self, limits: Limits) -> list[AmqpAnnotatedMessage]:
        """Return the next enveloped messages to store: all if they fit one batch, else as many as do, in order.

        Raises:
            EnvelopeTooLargeError: one of those that are left is too large by itself.
        """
        wrapped = self._wrapped
        if wrapped is None:
            wrapped = self._wrapped = self._wrap()
        if self.is_small and not self.stored:
            return wrapped
        return wrapped[self.stored : self.stored + self._count_fitting(wrapped, limits)]

    def _wrap(self) -> list[AmqpAnnotatedMessage]:
        return wrap_all(self.messages, self.destination)

    def _count_fitting(self, wrapped: list[AmqpAnnotatedMessage], limits: Limits) -> int:
        sizes = self._wrapped_sizes
        if sizes is None:
            sizes = self._wrapped_sizes = [encoded_size(message) for message in wrapped]
        # Checked before the first part is stored: a call that cannot succeed stores nothing.
        for message, size in zip(self.messages[self.stored :], sizes[self.stored :], strict=True):
            if size > limits.message:
                raise EnvelopeTooLargeError(self.destination, size, limits.message, size - encoded_size(message))
        count, total = 0, _EMPTY_BATCH
        for size in sizes[self.stored :]:
            total += _batched_size(size)
            if total > limits.batch:
                break
            count += 1
        return max(count, 1)  # a large message is sent alone


class Single(Parcel):
    """A single message."""

    def __init__(self, message: Message, destination: str) -> None:
        message_id, is_new = identify(message)
        self.destination = destination
        self.message_ids = (message_id,)
        self.payload = self._message = message
        size = body_size(message)
        self.is_small = size is not None and size < _SMALL
        if is_new:
            self.newly_identified = (message,)

    @property
    def messages(self) -> Sequence[Message]:
        return (self._message,)

    def _wrap(self) -> list[AmqpAnnotatedMessage]:
        return [wrap(self._message, self.destination)]


class Batched(Parcel):
    """A batch filled by the application; messages of a paired sender's batch have ids already."""

    is_batch = True

    def __init__(self, batch: ServiceBusMessageBatch, destination: str) -> None:
        self.payload = self._batch = batch
        self.is_small = batch.size_in_bytes + len(batch) * _LARGE_ENVELOPE < STANDARD_LIMIT
        if isinstance(batch, EnvelopeBatch):
            ids = batch.message_ids
        else:
            messages = internals.messages_of(batch)
            ids = [""] * len(batch) if messages is None else [message.message_id or "" for message in messages]
        super().__init__(destination, tuple(ids))

    @property
    def messages(self) -> Sequence[Message]:
        if isinstance(self._batch, EnvelopeBatch):
            return self._batch.added()
        messages = internals.messages_of(self._batch)
        if messages is None:
            raise TwinbusError(
                "This version of azure-servicebus does not expose the messages of a batch made by its own senders:"
                " it cannot be diverted. Make batches with create_message_batch of the paired sender."
            )
        return messages

    def _wrap(self) -> list[AmqpAnnotatedMessage]:
        messages = self.messages
        if not isinstance(self._batch, EnvelopeBatch):
            messages = self._identified(messages)
        return wrap_all(messages, self.destination)

    def _identified(self, messages: Sequence[Message]) -> list[AmqpAnnotatedMessage]:
        """Copies with ids: the primary's batch holds encoded messages, which stay without."""
        copies = _read_batches.setdefault(self._batch, [])
        copies += [detached(annotated(message)) for message in messages[len(copies) :]]
        self.message_ids = tuple([identify(message)[0] for message in copies])
        self.newly_identified = copies
        return copies

    def accepted(self) -> None:
        _read_batches.pop(self._batch, None)

    def batch_size(self) -> int:
        return self._batch.size_in_bytes

    def oversize(self, limit: int) -> Oversize | None:
        is_known = isinstance(self._batch, EnvelopeBatch) or internals.messages_of(self._batch) is not None
        return super().oversize(limit) if is_known else None


class Listed(Parcel):
    """A list of messages, sent as one batch. It may be as large as the SDK allows."""

    is_batch = True

    def __init__(self, messages: Iterable[AnyMessage], destination: str) -> None:
        self.payload = self._messages = [as_message(message) for message in messages]
        identified = [identify(message) for message in self._messages]
        super().__init__(destination, tuple([message_id for message_id, _ in identified]))
        self.newly_identified = [
            message for message, (_, is_new) in zip(self._messages, identified, strict=True) if is_new
        ]
        bodies = [body_size(message) for message in self._messages]
        if None not in bodies:
            room = len(bodies) * 2 * _LARGE_ENVELOPE
            self.is_small = sum(size for size in bodies if size is not None) + room < STANDARD_LIMIT

    @property
    def messages(self) -> Sequence[Message]:
        return self._messages


def _batched_size(size: int) -> int:
    """Return the bytes that a message of this size takes in a batch."""
    return size + (5 if size < 256 else 8)


class Scheduled(Parcel):
    """Scheduled messages. As with the SDK, time and id stay on the message objects."""

    def __init__(self, messages: Any, at: datetime, destination: str) -> None:
        self._messages = [as_message(message) for message in (messages if _is_many(messages) else [messages])]
        super().__init__(destination, tuple([identify(message)[0] for message in self._messages]))
        self.at = at
        for message in self._messages:
            _schedule(message, at)

    @property
    def messages(self) -> list[Message]:
        return self._messages


def parcel_of(message: Any, destination: str) -> Parcel:
    """Return the parcel for an argument of `send_messages`. Raises `TypeError` if the SDK would not take it."""
    if isinstance(message, ServiceBusMessage):
        return Single(message, destination)
    if isinstance(message, ServiceBusMessageBatch):
        return Batched(message, destination)
    return Listed(message, destination) if _is_many(message) else Single(as_message(message), destination)


def _is_many(messages: Any) -> bool:
    return isinstance(messages, Iterable) and not isinstance(messages, Mapping)


def _session_of(message: Message) -> str | None:
    properties = annotated(message).properties
    session: Any = None if properties is None else properties.group_id
    return session.decode(errors="replace") if isinstance(session, bytes) else session


def _schedule(message: Message, at: datetime) -> None:
    if isinstance(message, ServiceBusMessage):
        message.scheduled_enqueue_time_utc = at
    else:
        message.annotations = {**(message.annotations or {}), aliases.SCHEDULED_ANNOTATION.encode(): at}
