"""A message as rules see it, and the copy that an action makes of it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from twinbus.amqp import sections
from twinbus.amqp.encoding import encode
from twinbus.amqp.types import Char, Symbol, Timestamp

from .parser import Change, Property

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
_ANNOTATIONS = {"x-opt-partition-key": "partitionkey", "x-opt-scheduled-enqueue-time": "scheduledenqueuetimeutc"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MISSING = object()


def facts_of(annotations: bytes | None, now_ms: int, size: int) -> dict[str, Any]:
    """What a topic knows of a message besides its bytes; annotations as they are stored, their number in front."""
    facts: dict[str, Any] = {
        "deliverycount": 0,
        "enqueuedtimeutc": _EPOCH + timedelta(milliseconds=now_ms),
        "size": size,
    }
    if annotations is not None:
        entries = [annotations[1:], *[b""] * (annotations[0] - 1)]  # so many, and all of them in the first
        section = sections.map_section(sections.MESSAGE_ANNOTATIONS, entries)
        for key, raw in sections.map_entries(section):
            if key in _ANNOTATIONS:
                facts[_ANNOTATIONS[key]] = plain(sections.entry_value(raw))
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
            return self._facts.get(name)
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
        return found

    @property
    def own(self) -> dict[str, Any]:
        """All application properties."""
        if self._own is None:
            entries = sections.map_entries(self.parts.application_properties)
            self._own = {str(key): plain(sections.entry_value(raw)) for key, raw in entries}
        return self._own


def plain(value: Any) -> Any:
    """An AMQP value as rules compare it."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Timestamp):
        return _EPOCH + timedelta(milliseconds=int(value))
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, (Symbol, Char, uuid.UUID)):
        return str(value)
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
    raw[index] = b"\x40" if value is None else encode(str(value))
    return sections.list_section(sections.PROPERTIES, raw) + parts.application_properties + parts.body


def _encodable(value: Any) -> Any:
    if isinstance(value, datetime):
        return Timestamp(milliseconds_of(value))
    return value


def milliseconds_of(time: datetime) -> int:
    """A time in milliseconds since the epoch; one that names no zone is taken for UTC."""
    aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return round((aware - _EPOCH).total_seconds() * 1000)
