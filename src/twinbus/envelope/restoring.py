"""Restores a diverted message from its envelope, on bytes: the reverse of `twinbus.envelope.wrapping`.

The body and untouched sections pass through byte for byte. In the others only what the envelope or the backlog's broker
wrote is changed.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple

from twinbus.amqp.codec import sections
from twinbus.amqp.codec.decoding import decode_plain
from twinbus.amqp.codec.encoding import encode
from twinbus.amqp.codec.types import DecodeError, Described, Symbol, Timestamp, UInt
from twinbus.envelope import aliases
from twinbus.servicebus.entity_paths import is_entity_path

MAX_PATH_LENGTH = 260
MAX_HEADERS = 256  # cached
_MAX_UINT = 0xFFFFFFFF
_MAX_LONG = (1 << 63) - 1
_UNLIMITED_TICKS = _MAX_LONG  # .NET's largest TimeSpan means no limit
_NULL = b"\x40"
_NO_FIELDS = (_NULL, _NULL)
_TTL_FIELD, _COUNT_FIELD = 2, 4  # of the header
_EXPIRY_FIELD, _SESSION_FIELD = 8, 10  # of the properties, with the creation time between them
_LOCK_TOKEN = b"\x00\x53\x71\xc1\x24\x02\xa3\x10x-opt-lock-token\x98"
_LOCK_TOKEN_SIZE = len(_LOCK_TOKEN) + 16
_SCHEDULED_KEY = Symbol(aliases.SCHEDULED_ANNOTATION)


class EnvelopeError(Exception):
    """A backlog message cannot be restored. `reason` and the text go into its dead letter."""

    reason: ClassVar[str]


class NoEnvelopeError(EnvelopeError):
    """The message has no envelope, so its destination is unknown."""

    reason = "NoEnvelope"


class MalformedEnvelopeError(EnvelopeError):
    """The message or its envelope is malformed."""

    reason = "MalformedEnvelope"


#: Sequence number and time of enqueuing in milliseconds: a queue that is created again numbers from 1.
Identity = tuple[int, int]


class Restored(NamedTuple):
    """A message as it was sent, and what the backlog's broker wrote about it.

    `payload` is the encoded message for the destination; empty if the message has expired in the backlog.
    """

    destination: str
    session: str | None
    message_id: str | None
    payload: bytes
    enqueued_at_ms: int
    sequence_number: int
    delivery_count: int
    expired: bool

    @property
    def identity(self) -> Identity:
        """What tells the message from all others of its queue, also after the queue was deleted and created again."""
        return self.sequence_number, self.enqueued_at_ms


class _Envelope(NamedTuple):
    """The envelope's values. Times are in milliseconds."""

    destination: str
    session: str | None = None
    ttl: int | None = None
    scheduled: int | None = None
    expiry: int | None = None
    created: int | None = None


def restore(payload: bytes, *, now_ms: int, ttl: Literal["remaining", "restart"]) -> Restored:
    """Restore a diverted message from the bytes that a peek-lock receiver of the backlog queue got.

    `now_ms` is the time at the backlog's broker (see `BrokerClock`). With `ttl="remaining"` the time in the backlog
    counts; with "restart" the message lives as if it was sent now.

    Raises:
        NoEnvelopeError: the message has no envelope.
        MalformedEnvelopeError: the message or its envelope is malformed.
    """
    try:
        return _restore(sections.split_sections(payload), now_ms, ttl)
    except DecodeError as error:
        raise MalformedEnvelopeError(f"The message is malformed: {error}.") from None


def _restore(parts: sections.Sections, now_ms: int, ttl: Literal["remaining", "restart"]) -> Restored:
    envelope, application = _open(parts.application_properties)
    broker_annotations, annotations = _split_annotations(parts.message_annotations)
    enqueued_at = _broker_value(broker_annotations, "x-opt-enqueued-time")
    header, delivery_count = _read_header(parts.header)
    properties = sections.raw_fields(parts.properties)
    life, expiry, created = envelope.ttl, envelope.expiry, envelope.created
    if life is not None and ttl == "remaining":
        # The time to live starts when the message becomes available: enqueued, and past its scheduled time.
        life -= max(0, now_ms - max(enqueued_at, envelope.scheduled or 0))
    elif life is not None:
        # A broker may use these two instead of the time to live.
        waited = max(0, now_ms - enqueued_at)
        expiry, created = _later(expiry, waited), _later(created, waited)
    expired = life is not None and life <= 0 and ttl == "remaining"
    if envelope.scheduled is not None:
        annotations.append(sections.entry(_SCHEDULED_KEY, Timestamp(envelope.scheduled)))
    payload = b""
    if not expired:
        payload = b"".join(
            (
                _header(header, life),
                _delivery_annotations(parts.delivery_annotations),
                _map(sections.MESSAGE_ANNOTATIONS, annotations),
                _properties(parts.properties, properties, expiry, created, envelope.session),
                _map(sections.APPLICATION_PROPERTIES, application),
                parts.body,
            )
        )
    restored = (
        envelope.destination,
        envelope.session,
        _message_id(properties),
        payload,
        enqueued_at,
        _broker_value(broker_annotations, "x-opt-sequence-number"),
        delivery_count,
        expired,
    )
    return tuple.__new__(Restored, restored)  # half the time of a call


def _later(time: int | None, by: int) -> int | None:
    return None if time is None else min(time + by, _MAX_LONG)


# ---- reading the envelope ----


def _open(section: bytes) -> tuple[_Envelope, list[bytes]]:
    """Split the application properties into the envelope and the sender's own."""
    values: dict[str, Any] = {}
    own: list[bytes] = []
    for name, raw in sections.map_entries(section):
        if name in aliases.ALIASES:
            if name in values:
                raise MalformedEnvelopeError(f"The property '{name}' is there twice.")
            values[name] = sections.entry_value(raw)
        elif name in aliases.DEAD_LETTER_PROPERTIES:
            continue  # written by the queue; the sender's own has the prefix
        elif type(name) is str and name.startswith(aliases.OWN):
            own.append(encode(name.removeprefix(aliases.OWN)) + raw[sections.value_at(raw) :])
        else:
            own.append(raw)
    return _read(values), own


def _read(values: dict[str, Any]) -> _Envelope:
    if aliases.PATH not in values:
        raise NoEnvelopeError(f"The message has no property '{aliases.PATH}', so its destination is unknown.")
    path = _text(values, aliases.PATH)
    if not path or len(path) > MAX_PATH_LENGTH:
        raise MalformedEnvelopeError(f"The property '{aliases.PATH}' must have 1 to {MAX_PATH_LENGTH} characters.")
    if not is_entity_path(path):
        # A forged path must not make the syphon send to a management node.
        raise MalformedEnvelopeError(f"The property '{aliases.PATH}' must be the path of a queue or topic.")
    if len(values) == 1:
        return _Envelope(path)  # nearly always
    return _Envelope(
        path,
        _text(values, aliases.SESSION_ID),
        _milliseconds(values),
        _time(values, aliases.SCHEDULED_TIME),
        _time(values, aliases.EXPIRY),
        _time(values, aliases.CREATED),
    )


def _text(values: dict[str, Any], name: str) -> str | None:
    value = values.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise MalformedEnvelopeError(f"The property '{name}' must be a string, not a {type(value).__name__}.")
    return str(value)


def _milliseconds(values: dict[str, Any]) -> int | None:
    """The time to live in milliseconds; None for no limit."""
    ticks = values.get(aliases.TIME_TO_LIVE)
    if isinstance(ticks, Described) and ticks.descriptor == aliases.TIMESPAN:
        ticks = ticks.value
    if ticks is None or ticks == _UNLIMITED_TICKS:
        return None
    if not _is_whole(ticks) or ticks < 0:
        raise MalformedEnvelopeError(
            f"The property '{aliases.TIME_TO_LIVE}' must be a {aliases.TIMESPAN} of 0 or more."
        )
    return int(ticks) // aliases.TICKS_PER_MS


def _time(values: dict[str, Any], name: str) -> int | None:
    value = values.get(name)
    if value is None:
        return None
    if not _is_whole(value):
        raise MalformedEnvelopeError(f"The property '{name}' must be a timestamp, not a {type(value).__name__}.")
    return int(value)


def _is_whole(value: Any) -> bool:
    # Other clients may write a time as a plain integer of any width.
    return isinstance(value, int) and not isinstance(value, bool) and -_MAX_LONG <= value <= _MAX_LONG


# ---- writing the sections ----


def _split_annotations(section: bytes) -> tuple[dict[str, bytes], list[bytes]]:
    """Split off the annotations that the backlog's broker wrote."""
    broker_annotations: dict[str, bytes] = {}
    others: list[bytes] = []
    for name, raw in sections.map_entries(section):
        if name in aliases.BROKER_ANNOTATIONS:
            broker_annotations[name] = raw
        elif name != aliases.SCHEDULED_ANNOTATION:
            others.append(raw)
    return broker_annotations, others


def _broker_value(annotations: dict[str, bytes], name: str) -> int:
    raw = annotations.get(name)
    value: Any = None if raw is None else decode_plain(raw, sections.value_at(raw))[0]
    if type(value) is not int or value > _MAX_LONG:
        raise MalformedEnvelopeError(f"The broker's annotation '{name}' is missing or not a number.")
    return value


def _delivery_annotations(section: bytes) -> bytes:
    if len(section) == _LOCK_TOKEN_SIZE and section.startswith(_LOCK_TOKEN):
        return b""  # nearly always, and much cheaper than parsing
    entries = sections.map_entries(section)
    return _map(sections.DELIVERY_ANNOTATIONS, [raw for name, raw in entries if name not in aliases.BROKER_ANNOTATIONS])


def _map(code: int, entries: list[bytes]) -> bytes:
    return sections.map_section(code, entries) if entries else b""


def _header(own: tuple[bytes, bytes], ttl: int | None) -> bytes:
    """A header with the sender's raw durability and priority, and the remaining time to live."""
    if ttl is None and own == _NO_FIELDS:
        return b""
    life = _NULL if ttl is None else encode(UInt(min(ttl, _MAX_UINT)))
    return sections.list_section(sections.HEADER, [*own, life])


def _properties(
    section: bytes, fields: list[bytes], expiry: int | None, created: int | None, session: str | None
) -> bytes:
    """The properties with these three values, over anything that the backlog's broker wrote."""
    current = fields[_EXPIRY_FIELD : _SESSION_FIELD + 1]
    if expiry is None and created is None and session is None and current.count(_NULL) == len(current):
        return section  # nearly always
    restored = [_NULL if time is None else encode(Timestamp(time)) for time in (expiry, created)]
    restored.append(_NULL if session is None else encode(session))
    fields = fields + [_NULL] * (_SESSION_FIELD + 1 - len(fields))
    if fields[_EXPIRY_FIELD : _SESSION_FIELD + 1] == restored:
        return section
    fields[_EXPIRY_FIELD : _SESSION_FIELD + 1] = restored
    return sections.list_section(sections.PROPERTIES, fields)


# ---- reading what the broker wrote ----


@lru_cache(MAX_HEADERS)
def _read_header(section: bytes) -> tuple[tuple[bytes, bytes], int]:
    """The sender's raw durability and priority, and the delivery count. Cached: few headers differ.

    The time to live is ignored: it is the backlog queue's.
    """
    fields = sections.raw_fields(section)
    durable, priority = [*fields, _NULL, _NULL][:_TTL_FIELD]
    count: Any = decode_plain(fields[_COUNT_FIELD])[0] if len(fields) > _COUNT_FIELD else None
    return (durable, priority), int(count) if _is_whole(count) else 0


def _message_id(properties: list[bytes]) -> str | None:
    """A message id of any type as text."""
    value = decode_plain(properties[0])[0] if properties else None
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return None if value is None else str(value)
