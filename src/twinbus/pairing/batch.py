"""Batches that can be diverted whole, and the ids of messages."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageSizeExceededError

from . import sdk_seam
from .envelope import overhead

#: A message in one of the forms that the SDK takes.
AnyMessage = ServiceBusMessage | AmqpAnnotatedMessage | Mapping[str, Any]


def as_message(message: AnyMessage) -> ServiceBusMessage:
    """A message in the usual one of the SDK's forms.

    Raises:
        TypeError: it is none of them.
    """
    if isinstance(message, ServiceBusMessage):
        return message
    if isinstance(message, AmqpAnnotatedMessage):
        return sdk_seam.from_annotated(message)
    if isinstance(message, Mapping):
        return ServiceBusMessage(**message)
    raise TypeError(
        "only ServiceBusMessage, AmqpAnnotatedMessage and mappings that stand for messages can be sent,"
        f" not {type(message).__name__}"
    )


def identify(message: ServiceBusMessage) -> tuple[str, bool]:
    """The id of a message, and whether it had none and was given a new one.

    With an id, duplicate detection can tell the copy of an attempt that was given up on and arrived all the same.
    """
    # The message's own attribute takes ten times as long.
    properties = message.raw_amqp_message.properties
    found: Any = None if properties is None else properties.message_id
    if found is None:
        new = os.urandom(16).hex()
        if properties is None:
            message.message_id = new
        else:
            properties.message_id = new
        return new, True
    if isinstance(found, str):
        return found, False
    return found.decode(errors="replace") if isinstance(found, bytes) else str(found), False


def unidentify(message: ServiceBusMessage) -> None:
    """Take the id away that `identify` has given."""
    properties = message.raw_amqp_message.properties
    assert properties is not None
    properties.message_id = None


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
        super().__init__(max_size_in_bytes=self._most, **sdk_seam.encoding_once(), **options)
        self._limit = limit
        self._destination = destination
        self._leaves_room = leaves_room
        self._taken: list[Any] = []
        #: The ids of the messages, in their order.
        self.message_ids: list[str] = []
        #: The bytes that the envelopes will add.
        self.room = 0

    def add_message(self, message: AnyMessage) -> None:
        """Add a message.

        Raises:
            MessageSizeExceededError: the batch is full.
        """
        one = as_message(message)
        message_id, is_new = identify(one)
        room = self.room + overhead(one, self._destination)
        self._leave(room)
        try:
            super().add_message(one)
        except MessageSizeExceededError:
            self._leave(self.room)
            raise
        else:
            self.room = room
            self.message_ids.append(message_id)
            self._taken.append(sdk_seam.snapshot(one))
        finally:
            if is_new:
                unidentify(one)

    def _leave(self, room: int) -> None:
        if self._leaves_room:
            self._max_size_in_bytes = min(self._most, self._limit - room)

    def added(self) -> list[ServiceBusMessage]:
        """The messages as they were when they were added."""
        return [sdk_seam.from_snapshot(taken) for taken in self._taken]
