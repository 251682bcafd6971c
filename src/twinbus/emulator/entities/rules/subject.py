"""Reads a message's properties for rules, and applies rule actions to it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from twinbus.amqp.codec import sections
from twinbus.amqp.codec.encoding import encode
from twinbus.amqp.codec.types import Char, Decimal128, Described, Symbol, Timestamp, ULong
from twinbus.emulator.entities import decimals
from twinbus.servicebus.durations import MAX_TICKS, TICKS_PER_SECOND
from twinbus.servicebus.property_bounds import MAX_ID_LENGTH
from twinbus.servicebus.sql_filter.parser import Change, Property
from twinbus.servicebus.sql_filter.values import EvaluationError

#: The index of each property in the message's properties section, by its name in SQL.
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


def broker_properties(annotations: bytes | None, now_ms: int, expires_at: int | None, size: int) -> dict[str, Any]:
    """The properties that the broker sets, by their names in SQL; `annotations` are in their stored form.

    The time to live is in seconds. Without one it is the service's maximum, as on the service.
    """
    is_bounded = expires_at is not None and expires_at < milliseconds_of(_LAST)
    properties: dict[str, Any] = {
        "deliverycount": 0,
        "enqueuedtimeutc": Timestamp(now_ms),
        "expiresatutc": Timestamp(expires_at or 0) if is_bounded else _LAST,
        "timetolive": ((expires_at or 0) - now_ms) / 1000 if is_bounded else MAX_TICKS / TICKS_PER_SECOND,
        "size": size,
    }
    if annotations is not None:
        # `map_section` counts the list's items: all entries are in the first, and the rest only make up the count.
        entries = [annotations[1:], *[b""] * (annotations[0] - 1)]
        section = sections.map_section(sections.MESSAGE_ANNOTATIONS, entries)
        for key, raw in sections.map_entries(section):
            if key in _ANNOTATIONS:
                properties[_ANNOTATIONS[key]] = sections.entry_value(raw)
    return properties


class MessageSubject:
    """Reads a message's properties on demand, each section once."""

    def __init__(self, bare: bytes, broker_properties: dict[str, Any]) -> None:
        self.bare = bare
        self.broker_properties = broker_properties
        self._parts: sections.Sections | None = None
        self._fields: list[Any] | None = None
        self._application_properties: dict[str, Any] | None = None
        self._by_lower_name: dict[str, Any] | None = None

    @property
    def parts(self) -> sections.Sections:
        if self._parts is None:
            self._parts = sections.split_sections(self.bare)
        return self._parts

    def system(self, name: str) -> Any:
        index = FIELDS.get(name)
        if index is None:
            return plain(self.broker_properties.get(name))
        if self._fields is None:
            self._fields = sections.list_fields(self.parts.properties, 13)
        return plain(self._fields[index])

    def user(self, name: str) -> Any:
        """An application property. An exact name wins; otherwise case does not matter."""
        properties = self.application_properties
        value = properties.get(name, _MISSING)
        if value is _MISSING:
            if self._by_lower_name is None:
                self._by_lower_name = {key.lower(): value for key, value in properties.items()}
            value = self._by_lower_name.get(name.lower())
        return plain(value)

    @property
    def application_properties(self) -> dict[str, Any]:
        """All application properties."""
        if self._application_properties is None:
            entries = sections.map_entries(self.parts.application_properties)
            self._application_properties = {str(key): sections.entry_value(raw) for key, raw in entries}
        return self._application_properties


def plain(value: Any) -> Any:
    """An AMQP value as rules compare it. Raises `EvaluationError` if it is a time outside the years 1 to 9999."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Timestamp):
        try:
            return _EPOCH + timedelta(milliseconds=int(value))
        except OverflowError:
            raise EvaluationError("a time is before the year 1 or after the year 9999") from None
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, (Symbol, Char, uuid.UUID)):
        return str(value)
    if isinstance(value, Decimal128):
        return decimals.decimal_value(value)
    if isinstance(value, Described) and value.descriptor == _TIMESPAN and isinstance(value.value, int):
        return value.value / TICKS_PER_SECOND
    return value


def apply_changes(subject: MessageSubject, changes: Sequence[Change]) -> bytes:
    """The bare message after the statements of an action; each statement sees the changes of those before it.

    Raises `EvaluationError`.
    """
    for change in changes:
        value = None if change.value is None else change.value(subject)
        set_property = _set_system if change.property.is_system else _set_application_property
        subject = MessageSubject(set_property(subject, change.property, value), subject.broker_properties)
    return subject.bare


def _set_application_property(subject: MessageSubject, target: Property, value: Any) -> bytes:
    """The bare message with one property set or removed; the others keep their bytes and their order."""
    parts = subject.parts
    entries = sections.map_entries(parts.application_properties)
    names = {str(key) for key, _ in entries}
    name = target.name
    if name not in names:
        name = next((other for other in names if other.lower() == name.lower()), name)
    kept = [raw for key, raw in entries if str(key) != name]
    if value is not None:
        kept.append(sections.entry(name, _encodable(value)))
    application = sections.map_section(sections.APPLICATION_PROPERTIES, kept) if kept else b""
    return parts.properties + application + parts.body


def _set_system(subject: MessageSubject, target: Property, value: Any) -> bytes:
    parts, index = subject.parts, FIELDS.get(target.name)
    if index is None:
        return subject.bare  # not in the bare message
    raw = sections.raw_fields(parts.properties)
    raw += [b"\x40"] * (index + 1 - len(raw))
    text = None if value is None else str(value)
    if text is not None and target.name in _IDS and len(text) > MAX_ID_LENGTH:
        raise EvaluationError(f"sys.{target.name} would have {len(text)} characters; the limit is {MAX_ID_LENGTH}")
    raw[index] = encode(text)
    return sections.list_section(sections.PROPERTIES, raw) + parts.application_properties + parts.body


def _encodable(value: Any) -> Any:
    if isinstance(value, datetime):
        return Timestamp(milliseconds_of(value))
    if isinstance(value, int) and value > _MAX_LONG:
        return ULong(value)
    return value


def milliseconds_of(time: datetime) -> int:
    """A time in milliseconds since the epoch; a time without a zone is UTC."""
    aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return round((aware - _EPOCH).total_seconds() * 1000)
