"""From the backlog back to what was sent: the reverse of `twinbus.pairing.envelope`, on bytes.

The body and every section that the envelope did not touch pass through byte for byte. In the others only what the
envelope or the backlog's broker owns is rewritten; every other entry and field keeps its bytes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple

from twinbus.amqp import sections
from twinbus.amqp.decoding import decode_plain
from twinbus.amqp.encoding import encode
from twinbus.amqp.types import DecodeError, Described, Symbol, Timestamp, UInt
from twinbus.pairing import aliases
from twinbus.pairing.naming import is_entity_path

MAX_PATH_LENGTH = 260
MAX_HEADERS = 256  # that are remembered
_MAX_UINT = 0xFFFFFFFF
_MAX_LONG = (1 << 63) - 1
_FOR_EVER_TICKS = _MAX_LONG  # .NET's largest TimeSpan, which stands for no limit
_NULL = b"\x40"
_NO_FIELDS = (_NULL, _NULL)
_TTL_FIELD, _COUNT_FIELD = 2, 4  # of the header
_EXPIRY_FIELD, _SESSION_FIELD = 8, 10  # of the properties; the creation time is between them
_LOCK_TOKEN = b"\x00\x53\x71\xc1\x24\x02\xa3\x10x-opt-lock-token\x98"
_LOCK_TOKEN_SIZE = len(_LOCK_TOKEN) + 16
_SCHEDULED_KEY = Symbol(aliases.SCHEDULED_ANNOTATION)


class EnvelopeError(Exception):
    """A message of the backlog that cannot be restored: `reason` and the text are for its dead letter."""

    reason: ClassVar[str]


class NotOurs(EnvelopeError):  # noqa: N818 - what it is
    """The message has no envelope: it says nowhere what its destination is."""

    reason = "NoEnvelope"


class MalformedEnvelope(EnvelopeError):  # noqa: N818 - what it is
    """The message, or something in its envelope, cannot be read."""

    reason = "MalformedEnvelope"


class Restored(NamedTuple):
    """A message as it was sent, and what the backlog's broker said about it.

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


class _Envelope(NamedTuple):
    """What the aliases say. Times are milliseconds."""

    destination: str
    session: str | None = None
    ttl: int | None = None
    scheduled: int | None = None
    expiry: int | None = None
    created: int | None = None


def restore(payload: bytes, *, now_ms: int, ttl: Literal["remaining", "restart"]) -> Restored:
    """The message that was diverted, made of the bytes that a peek-lock receiver of the backlog queue was given.

    `now_ms` is the time at the backlog's broker (see `BrokerClock`): with `ttl="remaining"` the time in the backlog
    counts, with "restart" the message lives as long as if it was sent now.

    Raises:
        NotOurs: the message has no envelope.
        MalformedEnvelope: it has, but not one that can be read.
    """
    try:
        return _restore(sections.split_sections(payload), now_ms, ttl)
    except DecodeError as error:
        raise MalformedEnvelope(f"The message cannot be read: {error}.") from None


def _restore(parts: sections.Sections, now_ms: int, ttl: Literal["remaining", "restart"]) -> Restored:
    envelope, application = _open(parts.application_properties)
    facts, annotations = _split_annotations(parts.message_annotations)
    enqueued_at = _fact(facts, "x-opt-enqueued-time")
    header, delivery_count = _read_header(parts.header)
    properties = sections.raw_fields(parts.properties)
    life, expiry, created = envelope.ttl, envelope.expiry, envelope.created
    if life is not None and ttl == "remaining":
        # A life begins when the message becomes available: not before it is enqueued, nor before its scheduled time.
        life -= max(0, now_ms - max(enqueued_at, envelope.scheduled or 0))
    elif life is not None:
        # As if it was sent now: a broker may look at these two instead of the time to live.
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
        _fact(facts, "x-opt-sequence-number"),
        delivery_count,
        expired,
    )
    return tuple.__new__(Restored, restored)  # half the time of calling it


def _later(time: int | None, by: int) -> int | None:
    return None if time is None else min(time + by, _MAX_LONG)


# ---- reading the envelope ----


def _open(section: bytes) -> tuple[_Envelope, list[bytes]]:
    """What the envelope says, and the sender's own application properties."""
    found: dict[str, Any] = {}
    own: list[bytes] = []
    for name, raw in sections.map_entries(section):
        if name in aliases.ALIASES:
            if name in found:
                raise MalformedEnvelope(f"The property '{name}' is there twice.")
            found[name] = sections.entry_value(raw)
        elif name in aliases.DEAD_LETTER_PROPERTIES:
            continue  # the queue wrote it: the sender's is under another name
        elif type(name) is str and name.startswith(aliases.OWN):
            own.append(encode(name.removeprefix(aliases.OWN)) + raw[sections.value_at(raw) :])
        else:
            own.append(raw)
    return _read(found), own


def _read(found: dict[str, Any]) -> _Envelope:
    if aliases.PATH not in found:
        raise NotOurs(f"The message has no property '{aliases.PATH}', so its destination is not known.")
    path = _text(found, aliases.PATH)
    if not path or len(path) > MAX_PATH_LENGTH:
        raise MalformedEnvelope(f"The property '{aliases.PATH}' must have 1 to {MAX_PATH_LENGTH} characters.")
    if not is_entity_path(path):
        # Whoever can put a message here must not make us ask the management node of an entity for anything.
        raise MalformedEnvelope(f"The property '{aliases.PATH}' must be the path of a queue or topic.")
    if len(found) == 1:
        return _Envelope(path)  # nearly always
    return _Envelope(
        path,
        _text(found, aliases.SESSION_ID),
        _milliseconds(found),
        _time(found, aliases.SCHEDULED_TIME),
        _time(found, aliases.EXPIRY),
        _time(found, aliases.CREATED),
    )


def _text(found: dict[str, Any], name: str) -> str | None:
    value = found.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise MalformedEnvelope(f"The property '{name}' must be a string, not a {type(value).__name__}.")
    return str(value)


def _milliseconds(found: dict[str, Any]) -> int | None:
    """The time to live; None for none, and for the one that is longer than everything."""
    ticks = found.get(aliases.TIME_TO_LIVE)
    if isinstance(ticks, Described) and ticks.descriptor == aliases.TIMESPAN:
        ticks = ticks.value
    if ticks is None or ticks == _FOR_EVER_TICKS:
        return None
    if not _is_whole(ticks) or ticks < 0:
        raise MalformedEnvelope(f"The property '{aliases.TIME_TO_LIVE}' must be a {aliases.TIMESPAN} of 0 or more.")
    return int(ticks) // aliases.TICKS_PER_MS


def _time(found: dict[str, Any], name: str) -> int | None:
    value = found.get(name)
    if value is None:
        return None
    if not _is_whole(value):
        raise MalformedEnvelope(f"The property '{name}' must be a timestamp, not a {type(value).__name__}.")
    return int(value)


def _is_whole(value: Any) -> bool:
    # Other clients may have turned a time into a plain number, of whatever width.
    return isinstance(value, int) and not isinstance(value, bool) and -_MAX_LONG <= value <= _MAX_LONG


# ---- writing the sections ----


def _split_annotations(section: bytes) -> tuple[dict[str, bytes], list[bytes]]:
    """The annotations of the backlog's broker, and the others."""
    facts: dict[str, bytes] = {}
    others: list[bytes] = []
    for name, raw in sections.map_entries(section):
        if name in aliases.BROKER_ANNOTATIONS:
            facts[name] = raw
        elif name != aliases.SCHEDULED_ANNOTATION:
            others.append(raw)
    return facts, others


def _fact(facts: dict[str, bytes], name: str) -> int:
    raw = facts.get(name)
    value: Any = None if raw is None else decode_plain(raw, sections.value_at(raw))[0]
    if type(value) is not int or value > _MAX_LONG:
        raise MalformedEnvelope(f"The broker has not written '{name}' on the message.")
    return value


def _delivery_annotations(section: bytes) -> bytes:
    if len(section) == _LOCK_TOKEN_SIZE and section.startswith(_LOCK_TOKEN):
        return b""  # nearly always, and much cheaper than reading it
    entries = sections.map_entries(section)
    return _map(sections.DELIVERY_ANNOTATIONS, [raw for name, raw in entries if name not in aliases.BROKER_ANNOTATIONS])


def _map(code: int, entries: list[bytes]) -> bytes:
    return sections.map_section(code, entries) if entries else b""


def _header(own: tuple[bytes, bytes], ttl: int | None) -> bytes:
    """A header with the sender's durability and priority, as raw fields, and what is left of the time to live."""
    if ttl is None and own == _NO_FIELDS:
        return b""
    life = _NULL if ttl is None else encode(UInt(min(ttl, _MAX_UINT)))
    return sections.list_section(sections.HEADER, [*own, life])


def _properties(
    section: bytes, fields: list[bytes], expiry: int | None, created: int | None, session: str | None
) -> bytes:
    """The properties with these three in their places, whatever the backlog's broker may have put there."""
    there = fields[_EXPIRY_FIELD : _SESSION_FIELD + 1]
    if expiry is None and created is None and session is None and there.count(_NULL) == len(there):
        return section  # nearly always
    wanted = [_NULL if time is None else encode(Timestamp(time)) for time in (expiry, created)]
    wanted.append(_NULL if session is None else encode(session))
    fields = fields + [_NULL] * (_SESSION_FIELD + 1 - len(fields))
    if fields[_EXPIRY_FIELD : _SESSION_FIELD + 1] == wanted:
        return section
    fields[_EXPIRY_FIELD : _SESSION_FIELD + 1] = wanted
    return sections.list_section(sections.PROPERTIES, fields)


# ---- what the broker says ----


@lru_cache(MAX_HEADERS)
def _read_header(section: bytes) -> tuple[tuple[bytes, bytes], int]:
    """The sender's durability and priority as raw fields, and how often the message was delivered before.

    A time to live is not read: it is the backlog's own. There are few different headers.
    """
    fields = sections.raw_fields(section)
    durable, priority = [*fields, _NULL, _NULL][:_TTL_FIELD]
    count: Any = decode_plain(fields[_COUNT_FIELD])[0] if len(fields) > _COUNT_FIELD else None
    return (durable, priority), int(count) if _is_whole(count) else 0


def _message_id(properties: list[bytes]) -> str | None:
    """A message id of any type, as it is shown and recorded."""
    value = decode_plain(properties[0])[0] if properties else None
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return None if value is None else str(value)
