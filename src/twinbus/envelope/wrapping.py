"""Wraps a message in the envelope in which it waits in a backlog queue.

Whatever would change how that queue treats the message moves into application properties, named in `aliases.py`.
`twinbus.envelope.restoring` reverses it. docs/reference/envelope.md has the whole table.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType

from twinbus.servicebus.message_size import message_size, text_size

from . import aliases

#: A message as the SDK's sender takes it.
Message = ServiceBusMessage | AmqpAnnotatedMessage
_Part = TypeVar("_Part")

MAX_PATH_LENGTH = 260
MAX_SESSION_ID_LENGTH = 128
MAX_TIME_TO_LIVE_MS = 0xFFFFFFFF  # the most that a header, and so the SDK, can hold: 49.7 days
#: The service's limit for all properties of a message together.
MAX_PROPERTIES_SIZE = 64 << 10
_MIN_TIME_MS, _MAX_TIME_MS = -(1 << 63), (1 << 63) - 1

# Used to see which creation time the SDK writes. Sharing it is safe: every caller writes the same value.
_PROBE = ServiceBusMessage(None)

_ANY_SIZE = 1 << 62
_FIXED_ALIAS_SIZES = {
    aliases.TIME_TO_LIVE: 1 + 2 + len(aliases.TIMESPAN) + 9,
    aliases.SCHEDULED_TIME: 9,
    aliases.EXPIRY: 9,
    aliases.CREATED: 9,
}
# A section of application properties may be added, or need the long form.
_SECTION_SIZE = 12
# The section around a message in a batch may need the long form, too.
_BATCH_ENTRY_SIZE = 3


class Oversize(NamedTuple):
    """A message that is too large for the backlog: its size with the envelope, and the envelope's share."""

    size: int
    overhead: int


def wrap(message: Message, destination: str) -> AmqpAnnotatedMessage:
    """Return a copy of `message` in the envelope, for the entity `destination`.

    The message itself is unchanged and shares its body with the copy.

    Raises:
        ValueError: the destination, session id, time to live, expiry, creation or scheduled time is out of bounds.
        TypeError: one of them has a type that the SDK cannot send there.
    """
    raw = _copied(annotated(message))
    kept: dict[str, Any] = {aliases.PATH: _path(destination)}
    header, properties = raw.header, raw.properties
    # The hot path of a send: most messages have nothing to clear.
    is_timed = properties is not None and (properties.creation_time or properties.absolute_expiry_time)
    if is_timed or (header is not None and header.time_to_live is not None):
        _clear_times(raw, kept)
    if properties is not None and properties.group_id is not None:
        _clear_session(raw, kept)
    if raw.annotations:
        _clear_annotations(raw, kept)
    own: dict[Any, Any] = raw.application_properties or {}
    if own:
        kept = {_own_name(name): value for name, value in own.items()} | kept
    raw.application_properties = kept  # type: ignore[assignment]  # a key may be str or bytes
    return raw


def wrap_all(messages: Iterable[Message], destination: str) -> list[AmqpAnnotatedMessage]:
    """Wrap the messages of a batch, in the same order. Raises what `wrap` raises."""
    return [wrap(message, destination) for message in messages]


# ---- sizes ----


def overhead(message: Message, destination: str) -> int:
    """The most bytes that the envelope adds to the message, alone or in a batch, without encoding it."""
    raw = annotated(message)
    size = _SECTION_SIZE + _BATCH_ENTRY_SIZE + text_size(aliases.PATH) + text_size(destination)
    properties, header = raw.properties, raw.header
    names: list[str] = []
    if header is not None and header.time_to_live is not None:
        names = [aliases.TIME_TO_LIVE, aliases.EXPIRY, aliases.CREATED]
    elif properties is not None:
        names += [aliases.EXPIRY] if properties.absolute_expiry_time else []
        names += [aliases.CREATED] if properties.creation_time else []
    if properties is not None and properties.group_id is not None:
        size += text_size(aliases.SESSION_ID) + text_size(properties.group_id)
    if raw.annotations and any(_name(key) == aliases.SCHEDULED_ANNOTATION for key in raw.annotations):
        names.append(aliases.SCHEDULED_TIME)
    size += sum(text_size(name) + _FIXED_ALIAS_SIZES[name] for name in names)
    for name in raw.application_properties or ():
        if aliases.is_taken(_name(name)):
            size += len(aliases.OWN) + 3  # for the long form of a string
    return size


def encoded_size(message: Message) -> int:
    """The encoded size of a message as the SDK writes it, without the transfer frame.

    Raises what the SDK raises for a message that it cannot encode, except for numbers out of bounds.
    """
    raw = annotated(message)
    try:
        return message_size(raw)
    except TypeError:
        return _batched_size(raw)


def _batched_size(raw: AmqpAnnotatedMessage) -> int:
    """Measure a message by adding it to a batch. About ten times as slow as adding up its parts."""
    batch = ServiceBusMessageBatch(max_size_in_bytes=_ANY_SIZE)
    before = batch.size_in_bytes
    # The SDK decodes bytes properties in place, and measuring must not change the user's message.
    raw = copy.copy(raw)
    if raw.application_properties:
        raw.application_properties = dict(raw.application_properties)
    batch.add_message(raw)
    grown = batch.size_in_bytes - before
    # The batch counts a section around the message: 5 bytes up to 255 bytes, 8 above.
    return grown - 5 if grown < 256 + 5 else grown - 8


def oversize(message: Message, destination: str, limit: int) -> Oversize | None:
    """The `Oversize` of a message that would exceed `limit` bytes in the backlog; None if it fits.

    Nearly free for a bytes body well below the limit: properties are assumed to be within the service's limit.
    Otherwise raises what `wrap` raises.
    """
    raw = annotated(message)
    # Twice: the envelope holds at most what was in the properties, and names.
    if raw.body_type is AmqpMessageBodyType.DATA and sum(map(len, raw.body)) + 2 * MAX_PROPERTIES_SIZE < limit:
        return None
    size = encoded_size(wrap(raw, destination))
    return Oversize(size, size - encoded_size(raw)) if size > limit else None


# ---- clearing ----


def _clear_times(raw: AmqpAnnotatedMessage, kept: dict[str, Any]) -> None:
    """Move the time to live, expiry and creation time; the latter two as the SDK would write them now."""
    created = expiry = None
    if raw.properties is not None and (raw.properties.creation_time or raw.properties.absolute_expiry_time):
        created, expiry = raw.properties.creation_time, raw.properties.absolute_expiry_time
        properties = raw.properties = copy.copy(raw.properties)
        properties.creation_time = properties.absolute_expiry_time = None
    if raw.header is not None and raw.header.time_to_live is not None:
        ttl = _bounded_ms("time_to_live", raw.header.time_to_live, 0, MAX_TIME_TO_LIVE_MS)
        kept[aliases.TIME_TO_LIVE] = _timespan(ttl)
        header = raw.header = copy.copy(raw.header)
        header.time_to_live = None
        if ttl:
            created = _creation_time()
            expiry = created + ttl
    # The SDK does not send a time of 0.
    if expiry:
        kept[aliases.EXPIRY] = _timestamp("absolute_expiry_time", expiry)
    if created:
        kept[aliases.CREATED] = _timestamp("creation_time", created)


def _clear_session(raw: AmqpAnnotatedMessage, kept: dict[str, Any]) -> None:
    # Check it here: the backlog queue does not see the id, and the primary would refuse it too late.
    assert raw.properties is not None
    properties = raw.properties = copy.copy(raw.properties)
    kept[aliases.SESSION_ID] = _bounded_text("session_id", properties.group_id, 0, MAX_SESSION_ID_LENGTH)
    properties.group_id = None


def _clear_annotations(raw: AmqpAnnotatedMessage, kept: dict[str, Any]) -> None:
    """Move the scheduled time, and drop what a broker wrote if the message was received and is sent again."""
    others = {}
    for key, value in (raw.annotations or {}).items():
        name = _name(key)
        if name == aliases.SCHEDULED_ANNOTATION:
            if value is not None:
                kept[aliases.SCHEDULED_TIME] = _timestamp("scheduled_enqueue_time_utc", value)
        elif name not in aliases.BROKER_ANNOTATIONS:
            others[key] = value
    raw.annotations = others


def _own_name(name: Any) -> Any:
    text = _name(name)
    return aliases.OWN + text if aliases.is_taken(text) else name


def annotated(message: Message) -> AmqpAnnotatedMessage:
    return message if isinstance(message, AmqpAnnotatedMessage) else message.raw_amqp_message


def detached(raw: AmqpAnnotatedMessage) -> AmqpAnnotatedMessage:
    """A copy that changes to the message do not affect, except for its body."""
    copied = _copied(raw)
    if raw.properties is not None:
        copied.properties = _copied(raw.properties)
    if raw.header is not None:
        copied.header = _copied(raw.header)
    if raw.application_properties:
        copied.application_properties = dict(raw.application_properties)
    if raw.annotations:
        copied.annotations = dict(raw.annotations)
    return copied


def _copied(part: _Part) -> _Part:
    """A shallow copy, five times as fast as `copy.copy`."""
    copied = object.__new__(type(part))
    copied.__dict__.update(part.__dict__)
    return copied


def _name(key: Any) -> str:
    """A property or annotation key as text; received messages have bytes."""
    return key.decode(errors="replace") if isinstance(key, bytes) else str(key)


def _creation_time() -> int:
    """Now as the SDK writes it: in whole seconds, and off by the local offset from UTC.

    A diverted message must arrive with the same creation time as any other.
    """
    _PROBE.time_to_live = timedelta(seconds=1)
    properties = _PROBE.raw_amqp_message.properties
    assert properties is not None
    assert properties.creation_time is not None
    return properties.creation_time


# ---- values with exact AMQP types, in the SDK's notation ----


@lru_cache(maxsize=1024)
def _path(destination: str) -> dict[str, Any]:
    # Faster than a plain str, whose type the SDK finds out by an exception.
    return {"TYPE": "STRING", "VALUE": _bounded_text("destination", destination, 1, MAX_PATH_LENGTH)}


def _timespan(milliseconds: int) -> dict[str, Any]:
    ticks = {"TYPE": "LONG", "VALUE": milliseconds * aliases.TICKS_PER_MS}
    return {"TYPE": "DESCRIBED", "VALUE": ({"TYPE": "SYMBOL", "VALUE": aliases.TIMESPAN}, ticks)}


def _timestamp(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):  # already of an exact type
        value = value.get("VALUE")
    if not isinstance(value, datetime):
        value = _bounded_ms(name, value, _MIN_TIME_MS, _MAX_TIME_MS)
    return {"TYPE": "TIMESTAMP", "VALUE": value}


def _bounded_ms(name: str, value: Any, low: int, high: int) -> int:
    if not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number of milliseconds, got {value!r}")
    if not low <= value <= high:
        raise ValueError(f"{name} must be from {low} to {high} ms, got {value!r}")
    return int(value)


def _bounded_text(name: str, value: Any, low: int, high: int) -> str:
    try:
        text = value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        raise ValueError(f"{name} must be valid UTF-8") from None
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a string, got {value!r}")
    if not low <= len(text) <= high:
        raise ValueError(f"{name} must have {low} to {high} characters, got {len(text)}")
    return text
