"""Batches that can be diverted whole, and the ids of messages."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType, AmqpMessageProperties
from azure.servicebus.exceptions import MessageSizeExceededError

from .envelope import Message, annotated, detached, overhead

_DATA = AmqpMessageBodyType.DATA

#: A message in one of the forms that the SDK takes.
AnyMessage = ServiceBusMessage | AmqpAnnotatedMessage | Mapping[str, Any]


def as_message(message: AnyMessage) -> Message:
    """A message as an object.

    Raises:
        TypeError: it is none of the forms that the SDK takes.
    """
    if isinstance(message, (ServiceBusMessage, AmqpAnnotatedMessage)):
        return message
    if isinstance(message, Mapping):
        return ServiceBusMessage(**message)
    raise TypeError(
        "only ServiceBusMessage, AmqpAnnotatedMessage and mappings that stand for messages can be sent,"
        f" not {type(message).__name__}"
    )


def identify(message: Message) -> tuple[str, bool]:
    """The id of a message, and whether it had none and was given a new one.

    With an id, duplicate detection can tell the copy of an attempt that was given up on and arrived all the same.
    """
    raw = annotated(message)
    properties = raw.properties
    found: Any = None if properties is None else properties.message_id
    if found is None:
        new = os.urandom(16).hex()
        if properties is None:
            raw.properties = AmqpMessageProperties(message_id=new)
        else:
            properties.message_id = new
        return new, True
    if isinstance(found, str):
        return found, False
    return found.decode(errors="replace") if isinstance(found, bytes) else str(found), False


def unidentify(message: Message) -> None:
    """Take the id away that `identify` has given."""
    properties = annotated(message).properties
    assert properties is not None
    properties.message_id = None


def body_size(message: Message) -> int | None:
    """The bytes of a body of data sections; None for other bodies."""
    raw = annotated(message)
    return sum(map(len, raw.body)) if raw.body_type is _DATA else None


class EnvelopeBatch(ServiceBusMessageBatch):
    """A batch that remembers what was added to it, so that it can be diverted in one piece.

    It takes no more than `max_size_in_bytes`, and with `leaves_room` no more than still fits into `limit` bytes with
    all the envelopes. A message without an id is sent with a new one; the object itself stays without, so that it can
    be changed and added again.
    """

    def __init__(
        self, limit: int, destination: str, *, leaves_room: bool, max_size_in_bytes: int | None = None, **options: Any
    ) -> None:
        self._most = max_size_in_bytes or limit
        self._limit = limit
        self._destination = destination
        self._leaves_room = leaves_room
        self._added: list[Message] = []
        #: The ids of the messages, in their order.
        self.message_ids: list[str] = []
        #: The bytes that the envelopes will add.
        self.room = 0
        super().__init__(max_size_in_bytes=self._most, **options)

    @property
    def max_size_in_bytes(self) -> int:
        """The most bytes that it can hold; less with every envelope that needs room."""
        return min(self._most, self._limit - self.room) if self._leaves_room else self._most

    def add_message(self, message: AnyMessage) -> None:
        """Add a message.

        Raises:
            MessageSizeExceededError: the batch is full.
        """
        # A copy: the object can be changed and added again.
        one = detached(annotated(as_message(message)))
        message_id, _ = identify(one)
        room = overhead(one, self._destination)
        self.room += room
        try:
            super().add_message(one)
        except MessageSizeExceededError:
            self.room -= room
            raise
        self.message_ids.append(message_id)
        self._added.append(one)

    def added(self) -> list[Message]:
        """The messages as they were when they were added."""
        return list(self._added)
