"""A message as rules see it, and the copy that an action makes of it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from twinbus.amqp import sections
from twinbus.amqp.encoding import encode
from twinbus.amqp.types import Char, Decimal128, Described, Symbol, Timestamp, ULong
from twinbus.broker import decimals
from twinbus.broker.bounds import MAX_ID_LENGTH
from twinbus.broker.durations import MAX_TICKS, TICKS_PER_SECOND

from .parser import Change, Property
from .values import CannotEvaluate

#: Where the properties of a message stand in its section, by their names in SQL.
FIELDS = {
    "messageid": 0,
    "to": 2,
    "label": 3,
    "subject": 3,
    "replyto": 4,
    "correlationid": 5,
    "contenttype": 6,
    "sessionid": 10,
    "replytosessionid": 12,
}
_IDS = frozenset({"messageid", "sessionid", "replytosessionid"})
_ANNOTATIONS = {"x-opt-partition-key": "partitionkey", "x-opt-scheduled-enqueue-time": "scheduledenqueuetimeutc"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)
_TIMESPAN = "com.microsoft:timespan"
_MAX_LONG = (1 << 63) - 1
_MISSING = object()


def facts_of(annotations: bytes | None, now_ms: int, expires_at: int | None, size: int) -> dict[str, Any]:
    """What a topic knows of a message besides its bytes; annotations as they are stored, their number in front.

    A time to live is in seconds. One that has none lives as long as time does, as on the service.
    """
    is_bounded = expires_at is not None and expires_at < milliseconds_of(_LAST)
    facts: dict[str, Any] = {
        "deliverycount": 0,
        "enqueuedtimeutc": Timestamp(now_ms),
        "expiresatutc": Timestamp(expires_at or 0) if is_bounded else _LAST,
        "timetolive": ((expires_at or 0) - now_ms) / 1000 if is_bounded else MAX_TICKS / TICKS_PER_SECOND,
        "size": size,
    }
    if annotations is not None:
        entries = [annotations[1:], *[b""] * (annotations[0] - 1)]  # so many, and all of them in the first
        section = sections.map_section(sections.MESSAGE_ANNOTATIONS, entries)
        for key, raw in sections.map_entries(section):
            if key in _ANNOTATIONS:
                facts[_ANNOTATIONS[key]] = sections.entry_value(raw)
    return facts


class MessageSubject:
    """Reads what is asked for, once. `facts` are what the namespace itself knows, by their names in SQL."""

    def __init__(self, bare: bytes, facts: dict[str, Any]) -> None:
        self.bare = bare
        self._facts = facts
        self._parts: sections.Sections | None = None
        self._fields: list[Any] | None = None
        self._own: dict[str, Any] | None = None
        self._folded: dict[str, Any] | None = None

    @property
    def parts(self) -> sections.Sections:
        if self._parts is None:
            self._parts = sections.split_sections(self.bare)
        return self._parts

    def system(self, name: str) -> Any:
        index = FIELDS.get(name)
        if index is None:
            return plain(self._facts.get(name))
        if self._fields is None:
            self._fields = sections.list_fields(self.parts.properties, 13)
        return plain(self._fields[index])

    def user(self, name: str) -> Any:
        """An application property. Its name is the same in small and large letters, if no other is closer."""
        own = self.own
        found = own.get(name, _MISSING)
        if found is _MISSING:
            if self._folded is None:
                self._folded = {key.lower(): value for key, value in own.items()}
            found = self._folded.get(name.lower())
        return plain(found)

    @property
    def own(self) -> dict[str, Any]:
        """All application properties."""
        if self._own is None:
            entries = sections.map_entries(self.parts.application_properties)
            self._own = {str(key): sections.entry_value(raw) for key, raw in entries}
        return self._own


def plain(value: Any) -> Any:
    """An AMQP value as rules compare it. Raises `CannotEvaluate` if it is a time that no calendar has."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Timestamp):
        try:
            return _EPOCH + timedelta(milliseconds=int(value))
        except OverflowError:
            raise CannotEvaluate("a time is before the year 1 or after the year 9999") from None
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, (Symbol, Char, uuid.UUID)):
        return str(value)
    if isinstance(value, Decimal128):
        return decimals.value_of(value)
    if isinstance(value, Described) and value.descriptor == _TIMESPAN and isinstance(value.value, int):
        return value.value / TICKS_PER_SECOND
    return value


def changed(subject: MessageSubject, changes: Sequence[Change]) -> bytes:
    """The bare message after the statements of an action, each of which sees what those before it did.

    Raises `CannotEvaluate`.
    """
    for change in changes:
        value = None if change.value is None else change.value(subject)
        set_property = _set_system if change.property.is_system else _set_own
        subject = MessageSubject(set_property(subject, change.property, value), subject._facts)
    return subject.bare


def _set_own(subject: MessageSubject, target: Property, value: Any) -> bytes:
    """Every other property keeps its bytes, and its place."""
    parts = subject.parts
    entries = sections.map_entries(parts.application_properties)
    names = {str(key) for key, _ in entries}
    name = target.name
    if name not in names:
        name = next((one for one in names if one.lower() == name.lower()), name)
    kept = [raw for key, raw in entries if str(key) != name]
    if value is not None:
        kept.append(sections.entry(name, _encodable(value)))
    application = sections.map_section(sections.APPLICATION_PROPERTIES, kept) if kept else b""
    return parts.properties + application + parts.body


def _set_system(subject: MessageSubject, target: Property, value: Any) -> bytes:
    parts, index = subject.parts, FIELDS.get(target.name)
    if index is None:
        return subject.bare  # it is no part of what the sender wrote
    raw = sections.raw_fields(parts.properties)
    raw += [b"\x40"] * (index + 1 - len(raw))
    text = None if value is None else str(value)
    if text is not None and target.name in _IDS and len(text) > MAX_ID_LENGTH:
        raise CannotEvaluate(f"sys.{target.name} would have {len(text)} characters; the limit is {MAX_ID_LENGTH}")
    raw[index] = encode(text)
    return sections.list_section(sections.PROPERTIES, raw) + parts.application_properties + parts.body


def _encodable(value: Any) -> Any:
    if isinstance(value, datetime):
        return Timestamp(milliseconds_of(value))
    if isinstance(value, int) and value > _MAX_LONG:
        return ULong(value)
    return value


def milliseconds_of(time: datetime) -> int:
    """A time in milliseconds since the epoch; one that names no zone is taken for UTC."""
    aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return round((aware - _EPOCH).total_seconds() * 1000)
