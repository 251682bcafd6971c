"""AMQP values to bytes, each in the shortest form of its type."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any

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

_pack_u16 = struct.Struct(">H").pack
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


def _encode_list(out: bytearray, value: Any) -> None:
    if not value:
        out.append(0x45)
        return
    body = bytearray()
    for item in value:
        encode_into(body, item)
    _encode_compound(out, 0xC0, len(value), body)


def _encode_map(out: bytearray, value: Any) -> None:
    body = bytearray()
    for key, item in value.items():
        encode_into(body, key)
        encode_into(body, item)
    _encode_compound(out, 0xC1, 2 * len(value), body)


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


# How the items of an array are written, by the array's constructor: the widest form of each type.
_ARRAY_ITEM: dict[int, Callable[[Any], bytes]] = {
    0x40: lambda v: b"",
    0x50: struct.Struct(">B").pack,
    0x51: struct.Struct(">b").pack,
    0x52: struct.Struct(">B").pack,
    0x53: struct.Struct(">B").pack,
    0x54: struct.Struct(">b").pack,
    0x55: struct.Struct(">b").pack,
    0x56: lambda v: b"\x01" if v else b"\x00",
    0x60: struct.Struct(">H").pack,
    0x61: struct.Struct(">h").pack,
    0x70: struct.Struct(">I").pack,
    0x71: struct.Struct(">i").pack,
    0x72: struct.Struct(">f").pack,
    0x73: lambda v: _pack_u32(ord(v)),
    0x74: bytes,
    0x80: struct.Struct(">Q").pack,
    0x81: struct.Struct(">q").pack,
    0x82: struct.Struct(">d").pack,
    0x83: struct.Struct(">q").pack,
    0x84: bytes,
    0x94: bytes,
    0x98: lambda v: bytes(v.bytes),
    0xA0: lambda v: bytes((len(v),)) + v,
    0xB0: lambda v: _pack_u32(len(v)) + v,
    0xA1: lambda v: bytes((len(v.encode()),)) + v.encode(),
    0xB1: lambda v: _pack_u32(len(v.encode())) + v.encode(),
    0xA3: lambda v: bytes((len(v),)) + v.encode("ascii"),
    0xB3: lambda v: _pack_u32(len(v)) + v.encode("ascii"),
}


def _compound_item(code: int, value: Any) -> bytes:
    """A list, map or array inside an array: always in its wide form, without the constructor."""
    body = bytearray()
    count = len(value)
    if code == 0xD0:
        for item in value:
            encode_into(body, item)
    elif code == 0xD1:
        count *= 2
        for key, item in value.items():
            encode_into(body, key)
            encode_into(body, item)
    elif code == 0xF0:
        _array_body(body, value)
    else:
        raise EncodeError(f"an array of constructor 0x{code:02x} cannot be written")
    return _pack_u32(len(body) + 4) + _pack_u32(count) + bytes(body)


def _array_body(out: bytearray, value: Array) -> None:
    if value.descriptor is not None:
        out.append(0)
        encode_into(out, value.descriptor)
    # Narrow lists, maps and arrays become wide ones: one constructor must fit every item.
    code = value.code | 0x10 if value.code in (0xC0, 0xC1, 0xE0) else value.code
    out.append(code)
    item_encoder = _ARRAY_ITEM.get(code)
    for item in value:
        out += item_encoder(item) if item_encoder else _compound_item(code, item)


def _encode_array(out: bytearray, value: Any) -> None:
    body = bytearray()
    _array_body(body, value)
    _encode_compound(out, 0xE0, len(value), body)


def _encode_decimal(code: int, width: int) -> Callable[[bytearray, Any], None]:
    def encode_decimal(out: bytearray, value: Any) -> None:
        if len(value) != width:
            raise EncodeError(f"a {type(value).__name__} has {width} bytes, not {len(value)}")
        out.append(code)
        out += value

    return encode_decimal


def _encode_none(out: bytearray, value: Any) -> None:
    out.append(0x40)


def _encode_uuid(out: bytearray, value: Any) -> None:
    out.append(0x98)
    out += value.bytes


def _encode_char(out: bytearray, value: Any) -> None:
    out.append(0x73)
    out += _pack_u32(ord(value))


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
    """Append the encoding of `value` to `out`; the shortest form of its type."""
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
    """The encoding of `value`."""
    out = bytearray()
    encode_into(out, value)
    return bytes(out)
