"""Splits a message into raw sections, and reads and rewrites single fields and entries.

`split_sections` returns raw slices, so that a section that is only passed on stays the same byte for byte. The few
fields that a broker or the syphon owns are read and written with `map_entries`, `list_fields` and their writers.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from .composites import composite, decode_fields, too_many
from .decoding import MALFORMED, NARROW, PLAIN, WIDTHS, decode, decode_plain, extent, malformed, skip
from .encoding import encode
from .types import DecodeError, Described

HEADER = 0x70
DELIVERY_ANNOTATIONS = 0x71
MESSAGE_ANNOTATIONS = 0x72
PROPERTIES = 0x73
APPLICATION_PROPERTIES = 0x74
DATA = 0x75
SEQUENCE = 0x76
VALUE = 0x77
FOOTER = 0x78

_SYMBOLIC = {
    "amqp:header:list": HEADER,
    "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES,
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": SEQUENCE,
    "amqp:amqp-value:*": VALUE,
    "amqp:footer:map": FOOTER,
}
_LISTS = {
    HEADER: composite(
        "header",
        ("durable", "priority", "ttl", "first-acquirer", "delivery-count"),
        "boolean, ubyte, uint, boolean, uint",
    ),
    PROPERTIES: composite(
        "properties",
        (
            "message-id",
            "user-id",
            "to",
            "subject",
            "reply-to",
            "correlation-id",
            "content-type",
            "content-encoding",
            "absolute-expiry-time",
            "creation-time",
            "group-id",
            "group-sequence",
            "reply-to-group-id",
        ),
        "message-id, binary, value, string, value, message-id, symbol, symbol, timestamp, timestamp, string, "
        "uint, string",
    ),
}
# The constructors that each section's value may have. A null means an empty list or map.
_LIST, _MAP = frozenset(b"\x40\x45\xc0\xd0"), frozenset(b"\x40\xc1\xd1")
_NOTHING: frozenset[int] = frozenset()
_ALLOWED = {
    HEADER: _LIST,
    DELIVERY_ANNOTATIONS: _MAP,
    MESSAGE_ANNOTATIONS: _MAP,
    PROPERTIES: _LIST,
    APPLICATION_PROPERTIES: _MAP,
    DATA: frozenset(b"\xa0\xb0"),
    SEQUENCE: _LIST,
    VALUE: frozenset(range(256)),
    FOOTER: _MAP,
}
# The start of a short properties section.
_SHORT_PROPERTIES = b"\x00\x53\x73\xc0"
_STR8, _NULLS, _NONE = b"\xa1", b"\x40" * 16, (None,) * 16
# Constructors with a length of one or four bytes: nearly all. Inlined because calling `skip` is slower.
_NARROW, _WIDE = frozenset(b"\xa0\xc0\xc1"), frozenset(b"\xb0\xd0\xd1")
_SHORT_TEXTS = {0xA1: "utf-8", 0xA3: "ascii"}  # strings and symbols of up to 255 bytes
_pack_u32 = struct.Struct(">I").pack
_unpack_u32 = struct.Struct(">I").unpack_from


class Sections(NamedTuple):
    """Raw slices of a message, each with its descriptor; empty for a missing section.

    `body` is everything from the first body section to the end, footer included.
    """

    header: bytes = b""
    delivery_annotations: bytes = b""
    message_annotations: bytes = b""
    properties: bytes = b""
    application_properties: bytes = b""
    body: bytes = b""


def _open_section(buf: bytes, pos: int) -> tuple[int, int]:
    """Return the code of the section at `pos` and where its value starts."""
    if buf[pos] != 0:
        raise DecodeError("a message must be made of described sections")
    if buf[pos + 1] == 0x53:
        code, start = buf[pos + 2], pos + 3
        if code in _ALLOWED and buf[start] in _ALLOWED[code]:
            return code, start
    else:
        descriptor, start = decode_plain(buf, pos + 1)
        code = _SYMBOLIC.get(descriptor, 0) if isinstance(descriptor, str) else descriptor
    if type(code) is not int or code not in _ALLOWED:
        raise DecodeError("a message has a section of unknown kind")
    if buf[start] not in _ALLOWED[code]:
        raise DecodeError(f"section 0x{code:x} of a message has the wrong type")
    return code, start


def split_sections(message: bytes) -> Sections:
    """Split an encoded message into its sections. Raises `DecodeError` for a malformed or misplaced one.

    The delivery annotations may also come last, where the SDK writes them.
    """
    slices: list[bytes] = [b"", b"", b"", b"", b"", b""]
    pos, end, last, body = 0, len(message), 0, -1
    try:
        while pos < end:
            if message[pos : pos + 2] == b"\x00\x53":
                code, start = message[pos + 2], pos + 3
            else:
                code, start = _open_section(message, pos)
            constructor = message[start]
            if constructor not in _ALLOWED.get(code, _NOTHING):
                _open_section(message, pos)  # raises the error
            if constructor in _NARROW:
                stop = start + 2 + message[start + 1]
            elif constructor in _WIDE:
                stop = start + 5 + _unpack_u32(message, start + 1)[0]
            else:
                stop = skip(message, start)
            if code >= DATA:
                if body < 0:
                    body = pos
                elif (code != FOOTER and (code != last or code == VALUE)) or last == FOOTER:
                    raise DecodeError("the body sections of a message do not belong together")
            elif code > last:
                slices[code - HEADER] = message[pos:stop]
            elif code == DELIVERY_ANNOTATIONS and stop == end and not slices[1]:
                slices[1], end = message[pos:], pos
            else:
                raise DecodeError("the sections of a message are out of order")
            last, pos = code, stop
    except (IndexError, struct.error):
        raise DecodeError("a message ends inside a section") from None
    if pos > len(message):
        raise DecodeError("the length of a section points past the end of the message")
    if body >= 0:
        slices[5] = message[body:end]
    return tuple.__new__(Sections, slices)


def sole_id(message: bytes) -> str | None:
    """Return the id of a message that has only an id and one data section; None for other messages.

    A shortcut for what most clients send, four times as fast as `split_sections` and `list_fields`.
    """
    try:
        if message[:4] != _SHORT_PROPERTIES or message[6] != 0xA1:
            return None
        end, id_end, nulls = 5 + message[4], 8 + message[7], message[5] - 1
        if end - id_end != nulls or nulls > 12 or message[id_end:end] != _NULLS[:nulls]:
            return None
        kind = message[end : end + 4]
        if kind == b"\x00\x53\x75\xb0":
            stop = end + 8 + _unpack_u32(message, end + 4)[0]
        elif kind == b"\x00\x53\x75\xa0":
            stop = end + 5 + message[end + 4]
        else:
            return None
        return str(message[8:id_end], "utf-8") if stop == len(message) else None
    except MALFORMED:
        return None


def data_sections(body: bytes) -> list[bytes]:
    """Return the contents of the data sections in `body`, in order."""
    out, pos = [], 0
    try:
        while pos < len(body):
            code, start = _open_section(body, pos)
            pos = skip(body, start)
            if code == DATA:
                out.append(body[start + (2 if body[start] == 0xA0 else 5) : pos])
    except IndexError:
        raise DecodeError("a body ends inside a section") from None
    return out


def section_value(section: bytes) -> Any:
    """Decode a section's typed value; None if it is missing."""
    if not section:
        return None
    try:
        _, start = _open_section(section, 0)
    except IndexError:
        raise DecodeError("a section ends before its value") from None
    return decode(section, start)[0]


def list_fields(section: bytes, upto: int) -> list[Any]:
    """Decode the first `upto` fields of a header or properties section to plain values, padded with None.

    Raises `DecodeError` with the name of a field that has the wrong type.
    """
    if not section:
        return [None] * upto
    if len(section) > 5 and section[3] == 0xC0 and section[:2] == b"\x00\x53" and len(section) == 5 + section[4]:
        code, count, pos = section[2], section[5], 6  # the usual form, without three calls
    else:
        code, count, pos, _ = _open_compound(section, _LIST)
    kind = _LISTS.get(code)
    if kind is None:
        raise DecodeError(f"the fields of section 0x{code:x} have no names")
    if count > kind.max_fields:
        raise too_many(kind, count)
    try:
        if code == PROPERTIES and section[pos : pos + 1] == _STR8:
            end = pos + 2 + section[pos + 1]
            if len(section) == end + count - 1 and section.endswith(_NULLS[: count - 1]):
                # Only an id, as most clients write it.
                return [str(section[pos + 2 : end], "utf-8"), *_NONE[: upto - 1]]
        fields, _ = decode_fields(kind, PLAIN, section, pos, min(count, upto), 1)
    except MALFORMED as error:
        raise malformed(error) from None
    if len(fields) < upto:
        fields += [None] * (upto - len(fields))
    return fields


def raw_fields(section: bytes) -> list[bytes]:
    """Split a header or properties section into raw fields."""
    if not section:
        return []
    _, count, pos, end = _open_compound(section, _LIST)
    fields = []
    try:
        for _ in range(count):
            width = WIDTHS[section[pos]]
            if width >= 0:
                stop = pos + 1 + width
            else:
                stop = pos + 2 + section[pos + 1] if width == NARROW else skip(section, pos)
            fields.append(section[pos:stop])
            pos = stop
    except MALFORMED as error:
        raise malformed(error) from None
    if pos != end:
        raise DecodeError("a section's size does not match its fields")
    return fields


def map_entries(section: bytes) -> list[tuple[Any, bytes]]:
    """Split a map section into its entries, in order: (key, raw key and value)."""
    if not section:
        return []
    _, count, pos, end = _open_compound(section, _MAP)
    if count % 2:
        raise DecodeError("a map section has a key without a value")
    entries: list[tuple[Any, bytes]] = []
    try:
        for _ in range(count // 2):
            coding = _SHORT_TEXTS.get(section[pos])
            if coding is not None:  # nearly always; cheaper without two calls
                stop = pos + 2 + section[pos + 1]
                key: Any = str(section[pos + 2 : stop], coding)
            else:
                key, stop = decode_plain(section, pos)
                if isinstance(key, (list, dict, Described)):
                    raise DecodeError("a map section's key must be a simple value")
            width = WIDTHS[section[stop]]
            if width >= 0:
                stop += 1 + width
            else:
                stop = stop + 2 + section[stop + 1] if width == NARROW else skip(section, stop)
            entries.append((key, section[pos:stop]))
            pos = stop
    except MALFORMED as error:
        raise malformed(error) from None
    if pos != end:
        raise DecodeError("a map section's size does not match its entries")
    return entries


def entry_value(raw: bytes) -> Any:
    """Decode the typed value of a raw map entry."""
    return decode(raw, value_at(raw))[0]


def value_at(raw: bytes) -> int:
    """Return where the value of a raw map entry starts."""
    return 2 + raw[1] if raw[0] in _SHORT_TEXTS else skip(raw, 0)


def map_section(code: int, entries: list[bytes]) -> bytes:
    """Build a map section from raw entries."""
    return _compound(code, 0xC1, 2 * len(entries), b"".join(entries))


def list_section(code: int, fields: list[bytes]) -> bytes:
    """Build a list section (header, properties) from raw fields, without trailing nulls."""
    while fields and fields[-1] == b"\x40":
        fields = fields[:-1]
    return _compound(code, 0xC0, len(fields), b"".join(fields))


def entry(key: Any, value: Any) -> bytes:
    """Encode one map entry."""
    return encode(key) + encode(value)


def _open_compound(section: bytes, allowed: frozenset[int]) -> tuple[int, int, int, int]:
    """Return the code of a list or map section, its item count, and where its items start and end."""
    if (
        len(section) > 5
        and section[3] in _NARROW
        and section[:2] == b"\x00\x53"
        and _ALLOWED.get(section[2]) is allowed
        and section[3] in allowed
        and len(section) == 5 + section[4]
    ):
        return section[2], section[5], 6, len(section)  # the usual form, without two calls
    try:
        code, pos = _open_section(section, 0)
        constructor = section[pos]
        if constructor not in allowed:
            raise DecodeError("a list section was read as a map, or the reverse")
        if constructor < 0xC0:  # null or the empty list
            return code, 0, pos + 1, pos + 1
        return code, *extent(section, pos + 1, constructor >= 0xD0)
    except MALFORMED as error:
        raise malformed(error) from None


def _compound(section: int, narrow: int, count: int, body: bytes) -> bytes:
    if len(body) < 255 and count < 256:
        return bytes((0, 0x53, section, narrow, len(body) + 1, count)) + body
    return bytes((0, 0x53, section, narrow | 0x10)) + _pack_u32(len(body) + 4) + _pack_u32(count) + body
