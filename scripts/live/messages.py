"""Encodes and decodes messages as bytes, with their exact AMQP types."""

from __future__ import annotations

from typing import Any, NamedTuple

from twinbus.amqp.codec import sections
from twinbus.amqp.codec.encoding import encode
from twinbus.amqp.codec.types import Symbol, Timestamp, UInt

_NULL = encode(None)
DEFERRED, SCHEDULED = 1, 2  # values of x-opt-message-state


def encode_message(
    body: bytes = b"x",
    message_id: str = "",
    *,
    ttl: int | None = None,
    expiry: int | None = None,
    created: int | None = None,
    content_type: str | None = None,
) -> bytes:
    """Encode a message. Times are in milliseconds."""
    header = b"" if ttl is None else sections.list_section(sections.HEADER, [_NULL, _NULL, encode(UInt(ttl))])
    fields = [
        encode(message_id) if message_id else _NULL,
        *[_NULL] * 5,
        _NULL if content_type is None else encode(Symbol(content_type)),
        _NULL,
        *(_NULL if time is None else encode(Timestamp(time)) for time in (expiry, created)),
    ]
    return header + sections.list_section(sections.PROPERTIES, fields) + b"\x00\x53\x75" + encode(body)


class Raw(NamedTuple):
    """A received message in parts with exact types. `header` and `properties` have all their fields."""

    header: list[Any]
    annotations: dict[str, Any]
    properties: list[Any]
    application: dict[str, Any]
    parts: sections.Sections

    @classmethod
    def of(cls, payload: bytes) -> Raw:
        parts = sections.split_sections(payload)
        return cls(
            _padded(parts.header, 5),
            _entries(parts.message_annotations),
            _padded(parts.properties, 13),
            _entries(parts.application_properties),
            parts,
        )

    @property
    def body(self) -> bytes:
        return b"".join(sections.data_sections(self.parts.body))

    @property
    def sequence_number(self) -> int:
        return int(self.annotations["x-opt-sequence-number"])

    @property
    def state(self) -> int:
        return int(self.annotations.get("x-opt-message-state") or 0)

    @property
    def message_id(self) -> Any:
        return self.properties[0]

    @property
    def ttl(self) -> int | None:
        return None if self.header[2] is None else int(self.header[2])

    @property
    def expiry(self) -> Any:
        return self.properties[8]

    @property
    def created(self) -> Any:
        return self.properties[9]

    @property
    def session(self) -> Any:
        return self.properties[10]

    @property
    def delivery_count(self) -> int:
        return int(self.header[4] or 0)


def _padded(section: bytes, count: int) -> list[Any]:
    fields = list(sections.section_value(section) or [])
    return fields + [None] * (count - len(fields))


def _entries(section: bytes) -> dict[str, Any]:
    return {str(name): sections.entry_value(raw) for name, raw in sections.map_entries(section)}
