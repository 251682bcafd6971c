"""What one call sends: for the primary as the SDK takes it, for the backlog in its envelope."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch

from . import sdk_seam
from .batch import AnyMessage, EnvelopeBatch, as_message, fill_in_id, id_of
from .envelope import MAX_PROPERTIES_SIZE, Oversize, encoded_size, overhead, oversize, wrap, wrap_all
from .errors import EnvelopeTooLargeError

#: No batch is larger, on any tier.
ANY_SIZE = 1 << 62
#: What an entity of the Standard tier takes, in bytes: the least of all tiers.
STANDARD_LIMIT = 256 * 1024
# A body below this leaves enough for properties and envelope.
_SMALL = STANDARD_LIMIT - 2 * MAX_PROPERTIES_SIZE
# Hardly any envelope adds more to a message, whatever it has to keep.
_LARGE_ENVELOPE = 1024

Payload = ServiceBusMessage | ServiceBusMessageBatch


class Parcel:
    """The messages of one call.

    A message without an id is given one. After a success it is taken away again, so that the object, sent once more,
    is another message; after a failure it stays, and sending the object again is trying the same message again.
    """

    __slots__ = ("attempts", "destination", "primary_error")

    is_batch = False
    is_empty = False
    #: When the messages are to arrive, if not at once.
    at: datetime | None = None

    def __init__(self, destination: str) -> None:
        self.destination = destination
        #: How often it was tried so far, and why the primary did not take it.
        self.attempts = 0
        self.primary_error: BaseException | None = None

    @property
    def messages(self) -> Sequence[ServiceBusMessage]:
        """All of them, in their order."""
        raise NotImplementedError

    @property
    def payload(self) -> Payload:
        """What the SDK is given on the way to the primary."""
        raise NotImplementedError

    @property
    def message_ids(self) -> tuple[str, ...]:
        return tuple(map(id_of, self.messages))

    def sizes(self) -> list[int]:
        """The bytes of each message on the wire."""
        return [encoded_size(message) for message in self.messages]

    @property
    def is_small(self) -> bool:
        """Whether it fits the backlog of any tier for sure; told at a glance."""
        return False

    def oversize(self, limit: int) -> Oversize | None:
        """Whether a part of it would be larger than `limit` bytes in the backlog; None if all fits."""
        found = (oversize(message, self.destination, limit) for message in self.messages)
        return next((one for one in found if one is not None), None)

    def accepted(self) -> None:
        """The call has succeeded."""

    @property
    def session(self) -> str | None:
        """The session of all of it; None if it belongs to none.

        Raises:
            ValueError: there are messages of several sessions, which may have to take different ways.
        """
        sessions = {message.session_id for message in self.messages}
        if len(sessions) > 1:
            raise ValueError('with order="session" all messages of one call must have the same session_id')
        return next(iter(sessions), None)

    def wrapped(self, limit: int) -> Payload:
        """The form for the backlog; several messages stay together and in order.

        Raises:
            EnvelopeTooLargeError: it is larger than `limit` bytes.
        """
        messages = self.messages
        if len(messages) == 1:
            message = messages[0]
            if (found := oversize(message, self.destination, limit)) is not None:
                raise EnvelopeTooLargeError(self.destination, found.size, limit, found.overhead)
            return sdk_seam.from_annotated(wrap(message, self.destination))
        batch = sdk_seam.new_batch(ANY_SIZE)
        for wrapped in wrap_all(messages, self.destination):
            batch.add_message(wrapped)
        if batch.size_in_bytes > limit:
            raise EnvelopeTooLargeError(self.destination, batch.size_in_bytes, limit, self._room())
        return batch

    def _room(self) -> int:
        return sum(overhead(message, self.destination) for message in self.messages)


class Single(Parcel):
    """One message."""

    __slots__ = ("_is_filled_in", "_message")

    def __init__(self, message: ServiceBusMessage, destination: str) -> None:
        super().__init__(destination)
        self._message = message
        self._is_filled_in = fill_in_id(message)

    @property
    def messages(self) -> Sequence[ServiceBusMessage]:
        return (self._message,)

    @property
    def payload(self) -> ServiceBusMessage:
        return self._message

    @property
    def message_ids(self) -> tuple[str, ...]:
        return (id_of(self._message),)

    @property
    def is_small(self) -> bool:
        size = sdk_seam.body_size(self._message)
        return size is not None and size < _SMALL

    def oversize(self, limit: int) -> Oversize | None:
        return oversize(self._message, self.destination, limit)

    def accepted(self) -> None:
        if self._is_filled_in:
            self._message.message_id = None


class Batched(Parcel):
    """A batch that somebody has put together; its messages have got their ids already."""

    __slots__ = ("_batch", "is_empty")

    is_batch = True

    def __init__(self, batch: ServiceBusMessageBatch | None, destination: str) -> None:
        super().__init__(destination)
        self._batch = batch
        self.is_empty = batch is not None and len(batch) == 0

    @property
    def messages(self) -> Sequence[ServiceBusMessage]:
        batch = self.payload
        return batch.added() if isinstance(batch, EnvelopeBatch) else sdk_seam.messages_of(batch)

    @property
    def payload(self) -> ServiceBusMessageBatch:
        assert self._batch is not None
        return self._batch

    @property
    def message_ids(self) -> tuple[str, ...]:
        return tuple(self._batch.message_ids) if isinstance(self._batch, EnvelopeBatch) else super().message_ids

    def sizes(self) -> list[int]:
        return sizes_of(self.payload)

    @property
    def is_small(self) -> bool:
        batch = self.payload
        return batch.size_in_bytes + len(batch) * _LARGE_ENVELOPE < STANDARD_LIMIT

    def oversize(self, limit: int) -> Oversize | None:
        room = self._room()
        size = self.payload.size_in_bytes + room
        return Oversize(size, room) if size > limit else None


class Listed(Batched):
    """The messages of a list, which are sent as one batch. It may be as large as the SDK allows."""

    __slots__ = ("_filled_in", "_messages")

    def __init__(self, messages: Iterable[AnyMessage], destination: str) -> None:
        super().__init__(None, destination)
        self._messages = [as_message(message) for message in messages]
        self.is_empty = not self._messages
        self._filled_in = [message for message in self._messages if fill_in_id(message)]

    @property
    def messages(self) -> Sequence[ServiceBusMessage]:
        return self._messages

    @property
    def payload(self) -> ServiceBusMessageBatch:
        # Not made before it is needed: in a failover it is not.
        if self._batch is None:
            self._batch = sdk_seam.new_batch(ANY_SIZE)
            for message in self._messages:
                self._batch.add_message(message)
        return self._batch

    def accepted(self) -> None:
        for message in self._filled_in:
            message.message_id = None


class Scheduled(Parcel):
    """Messages for later. As with the SDK, time and id stay on the objects."""

    __slots__ = ("_messages", "at")

    def __init__(self, messages: Any, at: datetime, destination: str) -> None:
        super().__init__(destination)
        self.at = at
        self._messages = [as_message(message) for message in (messages if _is_many(messages) else [messages])]
        for message in self._messages:
            fill_in_id(message)
            message.scheduled_enqueue_time_utc = at

    @property
    def messages(self) -> list[ServiceBusMessage]:
        return self._messages


def sizes_of(payload: Payload) -> list[int]:
    """The bytes of each message on the wire."""
    return sdk_seam.encoded_sizes(payload) if isinstance(payload, ServiceBusMessageBatch) else [encoded_size(payload)]


def parcel_of(message: Any, destination: str) -> Parcel:
    """What `send_messages` is to send. Raises `TypeError` if it is neither message nor batch nor a list of messages."""
    if isinstance(message, ServiceBusMessage):
        return Single(message, destination)
    if isinstance(message, ServiceBusMessageBatch):
        return Batched(message, destination)
    return Listed(message, destination) if _is_many(message) else Single(as_message(message), destination)


def _is_many(messages: Any) -> bool:
    return isinstance(messages, Iterable) and not isinstance(messages, Mapping)
