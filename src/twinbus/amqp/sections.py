"""The sections of a message, found without decoding what nobody needs.

A message is a row of described sections. `split_sections` cuts it into raw slices, so that a section that is
only passed on stays the same byte for byte; the few fields a broker or a mover owns are read and rewritten in
place with `map_entries`, `list_fields` and their writers.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from .decoding import decode, decode_plain, skip
from .encoding import encode
from .types import DecodeError

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
_u32 = struct.Struct(">I")


class Sections(NamedTuple):
    """Raw slices of a message, each with its descriptor; empty where a section is missing.

    `body` is everything from the first body section to the end, footer included.
    """

    header: bytes = b""
    delivery_annotations: bytes = b""
    message_annotations: bytes = b""
    properties: bytes = b""
    application_properties: bytes = b""
    body: bytes = b""


def _descriptor(buf: bytes, pos: int) -> tuple[int, int]:
    """The section's code at `pos` and where its value starts."""
    if buf[pos] != 0:
        raise DecodeError("a message must be made of described sections")
    if buf[pos + 1] == 0x53:
        return buf[pos + 2], pos + 3
    value, pos = decode_plain(buf, pos + 1)
    code = _SYMBOLIC.get(value) if isinstance(value, str) else value
    if not isinstance(code, int) or not HEADER <= code <= FOOTER:
        raise DecodeError("a message has a section of unknown kind")
    return code, pos


def split_sections(message: bytes) -> Sections:
    """Cut an encoded message into its sections; raises `DecodeError` if they are malformed or out of order."""
    found: list[bytes] = [b"", b"", b"", b"", b"", b""]
    pos, end, last = 0, len(message), 0
    try:
        while pos < end:
            code, start = _descriptor(message, pos)
            if code >= DATA:
                _check_body(message, pos)
                found[5] = message[pos:]
                return Sections(*found)
            if code <= last or code < HEADER:
                raise DecodeError("the sections of a message are out of order")
            last = code
            stop = skip(message, start)
            found[code - HEADER] = message[pos:stop]
            pos = stop
    except IndexError:
        raise DecodeError("a message ends inside a section") from None
    return Sections(*found)


def _check_body(message: bytes, pos: int) -> None:
    end, kind = len(message), 0
    while pos < end:
        code, start = _descriptor(message, pos)
        if code < DATA or code > FOOTER or kind == FOOTER or (kind and code != FOOTER and code != kind):
            raise DecodeError("the body sections of a message do not belong together")
        if kind == code == VALUE:
            raise DecodeError("a message has one value section at most")
        kind = code
        if code == DATA and message[start] not in (0xA0, 0xB0):
            raise DecodeError("a data section must hold binary")
        pos = skip(message, start)


def data_sections(body: bytes) -> list[bytes]:
    """The contents of the data sections in `body`, in order."""
    out, pos = [], 0
    while pos < len(body):
        code, start = _descriptor(body, pos)
        pos = skip(body, start)
        if code == DATA:
            out.append(body[start + (2 if body[start] == 0xA0 else 5) : pos])
    return out


def section_value(section: bytes) -> Any:
    """The typed value of a section, or None where it is missing."""
    if not section:
        return None
    _, start = _descriptor(section, 0)
    return decode(section, start)[0]


def list_fields(section: bytes, upto: int) -> list[Any]:
    """The first `upto` fields of a header or properties section with plain values, padded with None."""
    if not section:
        return [None] * upto
    _, pos = _descriptor(section, 0)
    count, pos, _ = _open_compound(section, pos, 0xC0)
    fields: list[Any] = []
    for _ in range(min(count, upto)):
        value, pos = decode_plain(section, pos)
        fields.append(value)
    fields.extend([None] * (upto - len(fields)))
    return fields


def raw_fields(section: bytes) -> list[bytes]:
    """Every field of a header or properties section as raw bytes."""
    if not section:
        return []
    _, pos = _descriptor(section, 0)
    count, pos, end = _open_compound(section, pos, 0xC0)
    fields = []
    for _ in range(count):
        stop = skip(section, pos)
        fields.append(section[pos:stop])
        pos = stop
    if pos != end:
        raise DecodeError("a section's size does not match its fields")
    return fields


def map_entries(section: bytes) -> list[tuple[Any, bytes]]:
    """The entries of a map section in order: (key, raw key and value)."""
    if not section:
        return []
    _, pos = _descriptor(section, 0)
    count, pos, end = _open_compound(section, pos, 0xC1)
    if count % 2:
        raise DecodeError("a map section has a key without a value")
    entries = []
    for _ in range(count // 2):
        key, stop = decode_plain(section, pos)
        stop = skip(section, stop)
        entries.append((key, section[pos:stop]))
        pos = stop
    if pos != end:
        raise DecodeError("a map section's size does not match its entries")
    return entries


def entry_value(raw: bytes) -> Any:
    """The typed value of one raw map entry."""
    return decode(raw, skip(raw, 0))[0]


def map_section(code: int, entries: list[bytes]) -> bytes:
    """A map section of raw entries."""
    return _compound(code, 0xC1, 2 * len(entries), b"".join(entries))


def list_section(code: int, fields: list[bytes]) -> bytes:
    """A list section (header, properties) of raw fields, trailing nulls left out."""
    while fields and fields[-1] == b"\x40":
        fields = fields[:-1]
    return _compound(code, 0xC0, len(fields), b"".join(fields))


def entry(key: Any, value: Any) -> bytes:
    """One raw map entry."""
    return encode(key) + encode(value)


def _open_compound(buf: bytes, pos: int, narrow: int) -> tuple[int, int, int]:
    code = buf[pos]
    if code == narrow:
        return buf[pos + 2], pos + 3, pos + 2 + buf[pos + 1]
    if code == narrow | 0x10:
        return _u32.unpack_from(buf, pos + 5)[0], pos + 9, pos + 5 + _u32.unpack_from(buf, pos + 1)[0]
    if code == 0x45 and narrow == 0xC0:
        return 0, pos + 1, pos + 1
    if code == 0x40:
        return 0, pos + 1, pos + 1
    raise DecodeError("a section has the wrong type")


def _compound(section: int, narrow: int, count: int, body: bytes) -> bytes:
    if len(body) < 255 and count < 256:
        return bytes((0, 0x53, section, narrow, len(body) + 1, count)) + body
    return bytes((0, 0x53, section, narrow | 0x10)) + _u32.pack(len(body) + 4) + _u32.pack(count) + body
