"""Encodes AMQP values, each in the shortest form of its type."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any

from .decoding import MAX_EMPTY_ARRAY_ITEMS
from .types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    EncodeError,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

_pack_u32 = struct.Struct(">I").pack
_pack_u64 = struct.Struct(">Q").pack
_pack_i64 = struct.Struct(">q").pack


def _fixed(code: int, fmt: str) -> Callable[[bytearray, Any], None]:
    pack = struct.Struct(fmt).pack

    def encode_fixed(out: bytearray, value: Any) -> None:
        out.append(code)
        out += pack(value)

    return encode_fixed


def _encode_bool(out: bytearray, value: Any) -> None:
    out.append(0x41 if value else 0x42)


def _encode_uint(out: bytearray, value: Any) -> None:
    if value == 0:
        out.append(0x43)
    elif 0 < value < 256:
        out += bytes((0x52, value))
    else:
        out.append(0x70)
        out += _pack_u32(value)


def _encode_ulong(out: bytearray, value: Any) -> None:
    if value == 0:
        out.append(0x44)
    elif 0 < value < 256:
        out += bytes((0x53, value))
    else:
        out.append(0x80)
        out += _pack_u64(value)


def _encode_int(out: bytearray, value: Any) -> None:
    if -128 <= value < 128:
        out += bytes((0x54, value & 0xFF))
    else:
        out += struct.pack(">Bi", 0x71, value)


def _encode_long(out: bytearray, value: Any) -> None:
    if -128 <= value < 128:
        out += bytes((0x55, value & 0xFF))
    else:
        out.append(0x81)
        out += _pack_i64(value)


def _encode_variable(out: bytearray, narrow: int, raw: bytes | bytearray | memoryview) -> None:
    if len(raw) < 256:
        out += bytes((narrow, len(raw)))
    else:
        out.append(narrow | 0x10)
        out += _pack_u32(len(raw))
    out += raw


def _encode_compound(out: bytearray, narrow: int, count: int, body: bytes | bytearray) -> None:
    if len(body) < 255 and count < 256:
        out += bytes((narrow, len(body) + 1, count))
    else:
        out.append(narrow | 0x10)
        out += _pack_u32(len(body) + 4)
        out += _pack_u32(count)
    out += body


def _encode_described(out: bytearray, value: Any) -> None:
    out.append(0)
    encode_into(out, value.descriptor)
    encode_into(out, value.value)


def _char_bytes(value: Any) -> bytes:
    code_point = ord(value)
    if 0xD800 <= code_point <= 0xDFFF:
        raise EncodeError(f"0x{code_point:x} is not a Unicode character")
    return _pack_u32(code_point)


def _bytes_of(width: int) -> Callable[[Any], bytes]:
    def check_width(value: bytes) -> bytes:
        if len(value) != width:
            raise EncodeError(f"a {type(value).__name__} must have {width} bytes, got {len(value)}")
        return value

    return check_width


def _only(constant: Any) -> Callable[[Any], bytes]:
    def check_constant(value: Any) -> bytes:
        if value != constant:
            raise EncodeError(f"the items of this array must be {constant!r}, got {value!r}")
        return b""

    return check_constant


# Encoders of fixed-size array items, by their shared constructor.
_FIXED_ITEM: dict[int, Callable[[Any], bytes]] = {
    0x40: _only(None),
    0x41: _only(True),
    0x42: _only(False),
    0x43: _only(0),
    0x44: _only(0),
    0x45: _only([]),
    0x50: struct.Struct(">B").pack,
    0x51: struct.Struct(">b").pack,
    0x52: struct.Struct(">B").pack,
    0x53: struct.Struct(">B").pack,
    0x54: struct.Struct(">b").pack,
    0x55: struct.Struct(">b").pack,
    0x56: struct.Struct(">?").pack,
    0x60: struct.Struct(">H").pack,
    0x61: struct.Struct(">h").pack,
    0x70: struct.Struct(">I").pack,
    0x71: struct.Struct(">i").pack,
    0x72: struct.Struct(">f").pack,
    0x73: _char_bytes,
    0x74: _bytes_of(4),
    0x80: struct.Struct(">Q").pack,
    0x81: struct.Struct(">q").pack,
    0x82: struct.Struct(">d").pack,
    0x83: struct.Struct(">q").pack,
    0x84: _bytes_of(8),
    0x94: _bytes_of(16),
    0x98: lambda value: bytes(value.bytes),
}


def _list_body(value: Any) -> bytearray:
    body = bytearray()
    for item in value:
        encode_into(body, item)
    return body


def _map_body(value: Any) -> bytearray:
    body = bytearray()
    for key, item in value.items():
        encode_into(body, key)
        encode_into(body, item)
    return body


def _array_body(array: Array) -> bytearray:
    body = bytearray()
    if array.descriptor is not None:
        body.append(0)
        encode_into(body, array.descriptor)
    try:
        code, items = _array_items(array.code, array)
        body.append(code)
        return body + b"".join(items)
    except (AttributeError, TypeError) as error:
        raise EncodeError(f"an item does not fit an array of constructor 0x{array.code:02x}: {error}") from None


def _array_items(code: int, array: Array) -> tuple[int, list[bytes]]:
    """The constructor that fits every item, and the encoded items without it."""
    encoder = _FIXED_ITEM.get(code)
    if encoder is not None:
        if code < 0x50 and len(array) > MAX_EMPTY_ARRAY_ITEMS:
            raise EncodeError(
                f"an array of items without data must have at most {MAX_EMPTY_ARRAY_ITEMS} items, got {len(array)}"
            )
        return code, [encoder(item) for item in array]
    wide = code | 0x10
    if wide == 0xB0:
        texts = [bytes(memoryview(item)) for item in array]
    elif wide == 0xB1:
        texts = [str.encode(item) for item in array]
    elif wide == 0xB3:
        texts = [str.encode(item, "ascii") for item in array]
    elif wide == 0xD0:
        return wide, [_counted(len(item), _list_body(item)) for item in array]
    elif wide == 0xD1:
        return wide, [_counted(2 * len(item), _map_body(item)) for item in array]
    elif wide == 0xF0:
        return wide, [_counted(len(item), _array_body(item)) for item in array]
    else:
        raise EncodeError(f"an array cannot have the constructor 0x{code:02x}")
    if code == wide or any(len(text) > 255 for text in texts):
        return wide, [_pack_u32(len(text)) + text for text in texts]
    return code, [bytes((len(text),)) + text for text in texts]


def _counted(count: int, body: bytearray) -> bytes:
    """A list, map or array without its constructor, in the wide form."""
    return _pack_u32(len(body) + 4) + _pack_u32(count) + body


def _encode_list(out: bytearray, value: Any) -> None:
    if value:
        _encode_compound(out, 0xC0, len(value), _list_body(value))
    else:
        out.append(0x45)


def _encode_map(out: bytearray, value: Any) -> None:
    _encode_compound(out, 0xC1, 2 * len(value), _map_body(value))


def _encode_array(out: bytearray, value: Any) -> None:
    _encode_compound(out, 0xE0, len(value), _array_body(value))


def _encode_decimal(code: int, width: int) -> Callable[[bytearray, Any], None]:
    checked = _bytes_of(width)

    def encode_decimal(out: bytearray, value: Any) -> None:
        out.append(code)
        out += checked(value)

    return encode_decimal


def _encode_none(out: bytearray, value: Any) -> None:
    out.append(0x40)


def _encode_uuid(out: bytearray, value: Any) -> None:
    out.append(0x98)
    out += value.bytes


def _encode_char(out: bytearray, value: Any) -> None:
    if len(value) != 1:
        raise EncodeError(f"a Char must be one character, got {len(value)}")
    out.append(0x73)
    out += _char_bytes(value)


_ENCODERS: dict[type, Callable[[bytearray, Any], None]] = {
    type(None): _encode_none,
    bool: _encode_bool,
    int: _encode_long,
    float: _fixed(0x82, ">d"),
    str: lambda out, value: _encode_variable(out, 0xA1, value.encode()),
    bytes: lambda out, value: _encode_variable(out, 0xA0, value),
    bytearray: lambda out, value: _encode_variable(out, 0xA0, value),
    memoryview: lambda out, value: _encode_variable(out, 0xA0, value),
    Symbol: lambda out, value: _encode_variable(out, 0xA3, value.encode("ascii")),
    UByte: _fixed(0x50, ">B"),
    UShort: _fixed(0x60, ">H"),
    UInt: _encode_uint,
    ULong: _encode_ulong,
    Byte: _fixed(0x51, ">b"),
    Short: _fixed(0x61, ">h"),
    Int: _encode_int,
    Long: _encode_long,
    Float: _fixed(0x72, ">f"),
    Timestamp: _fixed(0x83, ">q"),
    Char: _encode_char,
    Decimal32: _encode_decimal(0x74, 4),
    Decimal64: _encode_decimal(0x84, 8),
    Decimal128: _encode_decimal(0x94, 16),
    uuid.UUID: _encode_uuid,
    list: _encode_list,
    tuple: _encode_list,
    dict: _encode_map,
    Described: _encode_described,
    Array: _encode_array,
}


def encode_into(out: bytearray, value: Any) -> None:
    """Append the encoding of `value` to `out`. Raises `EncodeError`."""
    encoder = _ENCODERS.get(type(value))
    if encoder is None:
        raise EncodeError(f"no AMQP type for {type(value).__name__}")
    try:
        encoder(out, value)
    except (struct.error, OverflowError, ValueError) as error:
        if isinstance(error, EncodeError):
            raise
        raise EncodeError(f"the value is out of range for {type(value).__name__}: {error}") from None


def encode(value: Any) -> bytes:
    """Encode `value`. Raises `EncodeError`."""
    out = bytearray()
    encode_into(out, value)
    return bytes(out)
