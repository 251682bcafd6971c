"""Builds batches that can be diverted whole, and assigns message ids."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType, AmqpMessageProperties
from azure.servicebus.exceptions import MessageSizeExceededError

from twinbus.envelope.wrapping import Message, annotated, detached, overhead

_DATA = AmqpMessageBodyType.DATA

#: The forms of a message that the SDK accepts.
AnyMessage = ServiceBusMessage | AmqpAnnotatedMessage | Mapping[str, Any]


def as_message(message: AnyMessage) -> Message:
    """Convert to a message object.

    Raises:
        TypeError: the SDK would not take it.
    """
    if isinstance(message, (ServiceBusMessage, AmqpAnnotatedMessage)):
        return message
    if isinstance(message, Mapping):
        return ServiceBusMessage(**message)
    raise TypeError(
        "expected a ServiceBusMessage, an AmqpAnnotatedMessage or a mapping of message fields,"
        f" got {type(message).__name__}"
    )


def identify(message: Message) -> tuple[str, bool]:
    """Return the id of a message, and whether it is new because there was none.

    With an id, duplicate detection removes the copy of an attempt that timed out but had arrived.
    """
    raw = annotated(message)
    properties = raw.properties
    message_id: Any = None if properties is None else properties.message_id
    if message_id is None:
        new = os.urandom(16).hex()
        if properties is None:
            raw.properties = AmqpMessageProperties(message_id=new)
        else:
            properties.message_id = new
        return new, True
    if isinstance(message_id, str):
        return message_id, False
    return message_id.decode(errors="replace") if isinstance(message_id, bytes) else str(message_id), False


def unidentify(message: Message) -> None:
    """Remove the id that `identify` has assigned."""
    properties = annotated(message).properties
    assert properties is not None
    properties.message_id = None


def body_size(message: Message) -> int | None:
    """Return the size in bytes of a body of data sections; None for other bodies."""
    raw = annotated(message)
    return sum(map(len, raw.body)) if raw.body_type is _DATA else None


class EnvelopeBatch(ServiceBusMessageBatch):
    """A batch that keeps its messages, so that it can be diverted whole.

    It takes at most `max_size_in_bytes` and, with `leaves_room`, at most what fits into `limit` bytes with all
    envelopes. A message without an id is sent with a new one; the object itself stays unchanged, so that it can be
    changed and added again.
    """

    def __init__(
        self, limit: int, destination: str, *, leaves_room: bool, max_size_in_bytes: int | None = None, **options: Any
    ) -> None:
        self._max_bytes = max_size_in_bytes or limit
        self._limit = limit
        self._destination = destination
        self._leaves_room = leaves_room
        self._added: list[Message] = []
        #: The ids of the messages, in order.
        self.message_ids: list[str] = []
        #: The bytes that the envelopes will add.
        self.room = 0
        super().__init__(max_size_in_bytes=self._max_bytes, **options)

    @property
    def max_size_in_bytes(self) -> int:
        """The batch's limit in bytes, smaller with every envelope that needs room."""
        return min(self._max_bytes, self._limit - self.room) if self._leaves_room else self._max_bytes

    def add_message(self, message: AnyMessage) -> None:
        """Add a message.

        Raises:
            MessageSizeExceededError: the batch is full.
        """
        # A copy: the object can be changed and added again.
        copy = detached(annotated(as_message(message)))
        message_id, _ = identify(copy)
        room = overhead(copy, self._destination)
        self.room += room
        try:
            super().add_message(copy)
        except MessageSizeExceededError:
            self.room -= room
            raise
        self.message_ids.append(message_id)
        self._added.append(copy)

    def added(self) -> list[Message]:
        """Return the messages as they were when added."""
        return list(self._added)
