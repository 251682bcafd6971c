"""What one call sends: for the primary as the SDK takes it, for the backlog in its envelope."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage

from . import aliases
from .batch import AnyMessage, EnvelopeBatch, as_message, body_size, identify, unidentify
from .envelope import (
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
from .errors import EnvelopeTooLargeError, TwinbusError
from .sdk import internals

#: What an entity of the Standard tier takes, in bytes: the least of all tiers.
STANDARD_LIMIT = 256 * 1024
# What a batch has besides its messages.
_EMPTY_BATCH = ServiceBusMessageBatch().size_in_bytes
# A body below this leaves enough for properties and envelope.
_SMALL = STANDARD_LIMIT - 2 * MAX_PROPERTIES_SIZE
# Hardly any envelope adds more to a message, whatever it has to keep.
_LARGE_ENVELOPE = 1024

#: What the SDK's `send_messages` is given.
Payload = ServiceBusMessage | AmqpAnnotatedMessage | ServiceBusMessageBatch | list[Any]

# The messages of batches that plain SDK senders made, with their ids: a batch that is sent again keeps them.
_read_batches: WeakKeyDictionary[ServiceBusMessageBatch, list[AmqpAnnotatedMessage]] = WeakKeyDictionary()


class Limits(NamedTuple):
    """The most bytes that a place takes in a single message, and in a batch."""

    message: int
    batch: int


class Parcel(ABC):
    """The messages of one call.

    A message without an id is given one. After a success it is taken away again, so that the object, sent once more,
    is another message; after a failure it stays, and sending the object again is trying the same message again.
    """

    is_batch = False
    #: When the messages are to arrive, if not at once.
    at: datetime | None = None
    #: Whether it fits the backlog of any tier for sure.
    is_small = False
    #: Those that were given an id.
    nameless: Sequence[Message] = ()
    #: What the SDK is given on the way to the primary; None if it is to be scheduled.
    payload: Payload | None = None
    #: How often it was tried so far, and why the primary did not take it.
    attempts = 0
    primary_error: BaseException | None = None
    #: Whether an attempt got no answer, so that it may have been accepted.
    is_unclear = False
    #: How many of its messages the backlog has accepted so far, from the first one on.
    stored = 0
    #: The messages in their form for the backlog, once it was made, and the bytes of each, once they were needed.
    _wrapped: list[AmqpAnnotatedMessage] | None = None
    _wrapped_sizes: list[int] | None = None

    def __init__(self, destination: str, message_ids: tuple[str, ...]) -> None:
        self.destination = destination
        self.message_ids = message_ids

    @property
    @abstractmethod
    def messages(self) -> Sequence[Message]:
        """All of them, in their order."""

    def accepted(self) -> None:
        """The call has succeeded."""
        for message in self.nameless:
            unidentify(message)

    def sizes(self) -> list[int]:
        """The bytes of each message on the wire."""
        return [encoded_size(message) for message in self.messages]

    def oversize(self, limit: int) -> Oversize | None:
        """Whether a message of it would be larger than `limit` bytes in the backlog; None if all fit."""
        found = (oversize(message, self.destination, limit) for message in self.messages)
        return next((one for one in found if one is not None), None)

    def batch_size(self) -> int:
        """The bytes of a batch of its messages, as the primary would be given it."""
        return _EMPTY_BATCH + sum(map(_batched_size, self.sizes()))

    @property
    def session(self) -> str | None:
        """The session of all of it; None if it belongs to none.

        Raises:
            ValueError: there are messages of several sessions, which may have to take different ways.
        """
        sessions = {_session_of(message) for message in self.messages}
        if len(sessions) > 1:
            raise ValueError('with order="session" all messages of one call must have the same session_id')
        return next(iter(sessions), None)

    @property
    def is_stored(self) -> bool:
        """Whether the backlog has accepted all of it."""
        return self.stored == len(self.message_ids)

    def next_part(self, limits: Limits) -> list[AmqpAnnotatedMessage]:
        """The messages that the backlog is to be given next, in their form for it.

        That is all of them where they fit one batch, otherwise as many as do, in their order.

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
        # Before the first part is stored: a call that cannot succeed stores nothing.
        for message, size in zip(self.messages[self.stored :], sizes[self.stored :], strict=True):
            if size > limits.message:
                raise EnvelopeTooLargeError(self.destination, size, limits.message, size - encoded_size(message))
        count, total = 0, _EMPTY_BATCH
        for size in sizes[self.stored :]:
            total += _batched_size(size)
            if total > limits.batch:
                break
            count += 1
        return max(count, 1)  # a large message goes alone


class Single(Parcel):
    """One message."""

    def __init__(self, message: Message, destination: str) -> None:
        message_id, is_new = identify(message)
        self.destination = destination
        self.message_ids = (message_id,)
        self.payload = self._message = message
        size = body_size(message)
        self.is_small = size is not None and size < _SMALL
        if is_new:
            self.nameless = (message,)

    @property
    def messages(self) -> Sequence[Message]:
        return (self._message,)

    def _wrap(self) -> list[AmqpAnnotatedMessage]:
        return [wrap(self._message, self.destination)]


class Batched(Parcel):
    """A batch that the application has filled; the messages of one of ours have got their ids already."""

    is_batch = True

    def __init__(self, batch: ServiceBusMessageBatch, destination: str) -> None:
        self.payload = self._batch = batch
        self.is_small = batch.size_in_bytes + len(batch) * _LARGE_ENVELOPE < STANDARD_LIMIT
        if isinstance(batch, EnvelopeBatch):
            ids = batch.message_ids
        else:
            messages = internals.messages_of(batch)
            ids = [""] * len(batch) if messages is None else [one.message_id or "" for one in messages]
        super().__init__(destination, tuple(ids))

    @property
    def messages(self) -> Sequence[Message]:
        if isinstance(self._batch, EnvelopeBatch):
            return self._batch.added()
        messages = internals.messages_of(self._batch)
        if messages is None:
            raise TwinbusError(
                "This version of azure-servicebus does not tell what is in a batch that one of its own senders made:"
                " it cannot be diverted. Make batches with create_message_batch of the paired sender."
            )
        return messages

    def _wrap(self) -> list[AmqpAnnotatedMessage]:
        messages = self.messages
        if not isinstance(self._batch, EnvelopeBatch):
            messages = self._identified(messages)
        return wrap_all(messages, self.destination)

    def _identified(self, messages: Sequence[Message]) -> list[AmqpAnnotatedMessage]:
        """Copies with ids: in the batch for the primary the messages are encoded already, and stay without."""
        known = _read_batches.setdefault(self._batch, [])
        known += [detached(annotated(message)) for message in messages[len(known) :]]
        self.message_ids = tuple([identify(message)[0] for message in known])
        self.nameless = known
        return known

    def accepted(self) -> None:
        _read_batches.pop(self._batch, None)

    def batch_size(self) -> int:
        return self._batch.size_in_bytes

    def oversize(self, limit: int) -> Oversize | None:
        is_known = isinstance(self._batch, EnvelopeBatch) or internals.messages_of(self._batch) is not None
        return super().oversize(limit) if is_known else None


class Listed(Parcel):
    """The messages of a list, which are sent as one batch. It may be as large as the SDK allows."""

    is_batch = True

    def __init__(self, messages: Iterable[AnyMessage], destination: str) -> None:
        self.payload = self._messages = [as_message(message) for message in messages]
        identified = [identify(message) for message in self._messages]
        super().__init__(destination, tuple([message_id for message_id, _ in identified]))
        self.nameless = [one for one, (_, is_new) in zip(self._messages, identified, strict=True) if is_new]
        bodies = [body_size(message) for message in self._messages]
        if None not in bodies:
            room = len(bodies) * 2 * _LARGE_ENVELOPE
            self.is_small = sum(size for size in bodies if size is not None) + room < STANDARD_LIMIT

    @property
    def messages(self) -> Sequence[Message]:
        return self._messages


def _batched_size(size: int) -> int:
    """The bytes that a message of this size takes in a batch."""
    return size + (5 if size < 256 else 8)


class Scheduled(Parcel):
    """Messages for later. As with the SDK, time and id stay on the objects."""

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
    """What `send_messages` is to send. Raises `TypeError` if it is neither message nor batch nor a list of messages."""
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
