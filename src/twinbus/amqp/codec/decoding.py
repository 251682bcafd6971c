"""Decodes AMQP values. Checks every length, count and depth before using it.

`decode` returns exact types. `decode_plain` returns plain `int` and `str`, and reads frames. `skip` finds the end of a
value without building it.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any, Final

from .types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    DecodeError,
    Described,
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

MAX_DEPTH = 32
MAX_EMPTY_ARRAY_ITEMS = 32  # the only bound for items without bytes

Decoder = Callable[[Any, int, int], tuple[Any, int]]

_u32 = struct.Struct(">I").unpack_from

_KNOWN_CODES = frozenset(
    b"\x40\x41\x42\x43\x44\x45\x50\x51\x52\x53\x54\x55\x56\x60\x61\x70\x71\x72\x73\x74"
    b"\x80\x81\x82\x83\x84\x94\x98\xa0\xa1\xa3\xb0\xb1\xb3\xc0\xc1\xd0\xd1\xe0\xf0"
)

# The data after a constructor, by its high nibble: this many bytes, or a length of one or four bytes and the data.
NARROW, _WIDE, _UNKNOWN = -1, -2, -3
_BY_NIBBLE = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16, 0xA: NARROW, 0xB: _WIDE}
_BY_NIBBLE |= {0xC: NARROW, 0xD: _WIDE, 0xE: NARROW, 0xF: _WIDE}
WIDTHS = [_BY_NIBBLE[code >> 4] if code in _KNOWN_CODES else _UNKNOWN for code in range(256)]


def too_deep() -> DecodeError:
    return DecodeError(f"values are nested deeper than {MAX_DEPTH} levels")


def _bad_code(code: int) -> DecodeError:
    return DecodeError(f"unknown type constructor 0x{code:02x}")


def _scalar(fmt: str, wrap: Callable[[Any], Any] | None) -> Decoder:
    unpack, width = struct.Struct(fmt).unpack_from, struct.calcsize(fmt)
    if wrap is None:

        def plain(buf: Any, pos: int, depth: int) -> tuple[Any, int]:
            return unpack(buf, pos)[0], pos + width

        return plain

    def wrapped(buf: Any, pos: int, depth: int) -> tuple[Any, int]:
        return wrap(unpack(buf, pos)[0]), pos + width

    return wrapped


def _constant(value: Any) -> Decoder:
    def decode_constant(buf: Any, pos: int, depth: int) -> tuple[Any, int]:
        return value, pos

    return decode_constant


def _octet(wrap: Callable[[int], Any] | None) -> Decoder:
    if wrap is None:

        def plain(buf: Any, pos: int, depth: int) -> tuple[Any, int]:
            return buf[pos], pos + 1

        return plain

    def wrapped(buf: Any, pos: int, depth: int) -> tuple[Any, int]:
        return wrap(buf[pos]), pos + 1

    return wrapped


def _bytes_of(width: int, wrap: Callable[[bytes], Any]) -> Decoder:
    def decode_bytes(buf: Any, pos: int, depth: int) -> tuple[Any, int]:
        end = pos + width
        if end > len(buf):
            raise DecodeError("a value ends before its last byte")
        return wrap(bytes(buf[pos:end])), end

    return decode_bytes


def _past_the_end() -> DecodeError:
    return DecodeError("a length points past the end of the data")


def _narrow(convert: Callable[[Any], Any]) -> Decoder:
    def decode_narrow(buf: Any, pos: int, depth: int) -> tuple[Any, int]:
        end = pos + 1 + buf[pos]
        if end > len(buf):
            raise _past_the_end()
        return convert(buf[pos + 1 : end]), end

    return decode_narrow


def _wide(convert: Callable[[Any], Any]) -> Decoder:
    def decode_wide(buf: Any, pos: int, depth: int) -> tuple[Any, int]:
        end = pos + 4 + _u32(buf, pos)[0]
        if end > len(buf):
            raise _past_the_end()
        return convert(buf[pos + 4 : end]), end

    return decode_wide


def _text(raw: Any) -> str:
    return str(raw, "utf-8")


def _ascii(raw: Any) -> str:
    return str(raw, "ascii")


def _symbol(raw: Any) -> Symbol:
    return Symbol(raw, "ascii")


def _boolean(octet: int) -> bool:
    if octet > 1:
        raise DecodeError(f"a boolean byte must be 0 or 1, got {octet}")
    return octet == 1


def _char(code_point: int) -> Char:
    if code_point > 0x10FFFF or 0xD800 <= code_point <= 0xDFFF:
        raise DecodeError(f"0x{code_point:x} is not a Unicode character")
    return Char(chr(code_point))


def extent(buf: Any, pos: int, wide: bool) -> tuple[int, int, int]:
    """The count, first item and end of a list, map or array."""
    if wide:
        size, count, start = _u32(buf, pos)[0], _u32(buf, pos + 4)[0], pos + 8
        end = pos + 4 + size
    else:
        size, count, start = buf[pos], buf[pos + 1], pos + 2
        end = pos + 1 + size
    if end > len(buf) or start > end:
        raise DecodeError("a compound value's size does not fit the data")
    return count, start, end


def _compounds(table: list[Decoder]) -> tuple[Callable[[bool], Decoder], Callable[[bool], Decoder], Decoder]:
    def list_of(wide: bool) -> Decoder:
        def decode_list(buf: Any, pos: int, depth: int) -> tuple[Any, int]:
            count, pos, end = extent(buf, pos, wide)
            if count > end - pos:
                raise DecodeError("a list claims more items than it has bytes")
            if depth >= MAX_DEPTH:
                raise too_deep()
            items = []
            for _ in range(count):
                value, pos = table[buf[pos]](buf, pos + 1, depth + 1)
                items.append(value)
            if pos != end:
                raise DecodeError("a list's size does not match its items")
            return items, end

        return decode_list

    def map_of(wide: bool) -> Decoder:
        def decode_map(buf: Any, pos: int, depth: int) -> tuple[Any, int]:
            count, pos, end = extent(buf, pos, wide)
            if count > end - pos or count % 2:
                raise DecodeError("a map's count is odd or larger than its bytes")
            if depth >= MAX_DEPTH:
                raise too_deep()
            entries = {}
            for _ in range(count // 2):
                key, pos = table[buf[pos]](buf, pos + 1, depth + 1)
                value, pos = table[buf[pos]](buf, pos + 1, depth + 1)
                try:
                    entries[key] = value
                except TypeError:
                    raise DecodeError("a map's key must not be a list, map or array") from None
            if pos != end:
                raise DecodeError("a map's size does not match its entries")
            return entries, end

        return decode_map

    def described(buf: Any, pos: int, depth: int) -> tuple[Any, int]:
        if depth >= MAX_DEPTH:
            raise too_deep()
        descriptor, pos = table[buf[pos]](buf, pos + 1, depth + 1)
        value, pos = table[buf[pos]](buf, pos + 1, depth + 1)
        return Described(descriptor, value), pos

    return list_of, map_of, described


def _arrays(table: list[Decoder]) -> Callable[[bool], Decoder]:
    def array_of(wide: bool) -> Decoder:
        def decode_array(buf: Any, pos: int, depth: int) -> tuple[Any, int]:
            count, pos, end = extent(buf, pos, wide)
            if depth >= MAX_DEPTH:
                raise too_deep()
            if pos == end and not count:
                return Array(0x40), end
            code, descriptor = buf[pos], None
            pos += 1
            if code == 0:
                descriptor, pos = table[buf[pos]](buf, pos + 1, depth + 1)
                code = buf[pos]
                pos += 1
                if descriptor is None or code == 0:
                    raise DecodeError("an array's items have one descriptor, which is not null")
            width = WIDTHS[code]
            if width == _UNKNOWN:
                raise _bad_code(code)
            if count > (MAX_EMPTY_ARRAY_ITEMS if width == 0 else end - pos):
                raise DecodeError("an array claims more items than it has bytes")
            decoder, items = table[code], []
            for _ in range(count):
                value, pos = decoder(buf, pos, depth + 1)
                items.append(value)
            if pos != end:
                raise DecodeError("an array's size does not match its items")
            return Array(code, items, descriptor), end

        return decode_array

    return array_of


def _table(typed: bool) -> list[Decoder]:
    def unknown(code: int) -> Decoder:
        def refuse(buf: Any, pos: int, depth: int) -> tuple[Any, int]:
            raise _bad_code(code)

        return refuse

    def when_typed(wrap: Callable[[Any], Any]) -> Callable[[Any], Any] | None:
        return wrap if typed else None

    table: list[Decoder] = [unknown(code) for code in range(256)]
    list_of, map_of, described = _compounds(table)
    array_of = _arrays(table)
    symbol = _symbol if typed else _ascii
    for code, decoder in {
        0x00: described,
        0x40: _constant(None),
        0x41: _constant(True),
        0x42: _constant(False),
        0x43: _constant(UInt(0) if typed else 0),
        0x44: _constant(ULong(0) if typed else 0),
        0x50: _octet(when_typed(UByte)),
        0x51: _scalar(">b", when_typed(Byte)),
        0x52: _octet(when_typed(UInt)),
        0x53: _octet(when_typed(ULong)),
        0x54: _scalar(">b", when_typed(Int)),
        0x55: _scalar(">b", when_typed(Long)),
        0x56: _octet(_boolean),
        0x60: _scalar(">H", when_typed(UShort)),
        0x61: _scalar(">h", when_typed(Short)),
        0x70: _scalar(">I", when_typed(UInt)),
        0x71: _scalar(">i", when_typed(Int)),
        0x72: _scalar(">f", when_typed(Float)),
        0x73: _scalar(">I", _char),
        0x74: _bytes_of(4, Decimal32),
        0x80: _scalar(">Q", when_typed(ULong)),
        0x81: _scalar(">q", when_typed(Long)),
        0x82: _scalar(">d", None),
        0x83: _scalar(">q", when_typed(Timestamp)),
        0x84: _bytes_of(8, Decimal64),
        0x94: _bytes_of(16, Decimal128),
        0x98: _bytes_of(16, lambda raw: uuid.UUID(bytes=raw)),
        0xA0: _narrow(bytes),
        0xB0: _wide(bytes),
        0xA1: _narrow(_text),
        0xB1: _wide(_text),
        0xA3: _narrow(symbol),
        0xB3: _wide(symbol),
        0xC0: list_of(False),
        0xD0: list_of(True),
        0xC1: map_of(False),
        0xD1: map_of(True),
        0xE0: array_of(False),
        0xF0: array_of(True),
    }.items():
        table[code] = decoder
    table[0x45] = lambda buf, pos, depth: ([], pos)
    return table


_TYPED = _table(typed=True)
PLAIN: Final = _table(typed=False)
"""The decoder for each constructor, as `decode_plain` uses them; for callers that loop over fields."""

MALFORMED: Final = (IndexError, struct.error, UnicodeDecodeError)
"""What the decoders raise besides `DecodeError`. Convert it with `malformed`."""


def malformed(error: Exception) -> DecodeError:
    """Convert one of `MALFORMED` into a `DecodeError`."""
    if isinstance(error, UnicodeDecodeError):
        return DecodeError(f"invalid text: {error.reason}")
    return DecodeError("the data ends inside a value")


def _decode_with(table: list[Decoder], buf: bytes | bytearray | memoryview, pos: int) -> tuple[Any, int]:
    try:
        return table[buf[pos]](buf, pos + 1, 0)
    except MALFORMED as error:
        raise malformed(error) from None


def decode(buf: bytes | bytearray | memoryview, pos: int = 0) -> tuple[Any, int]:
    """Decode the value at `pos` with its exact AMQP type. Returns it and where the next one starts.

    If keys of a map are equal in Python (a string and a symbol, say), the last value wins.
    """
    return _decode_with(_TYPED, buf, pos)


def decode_plain(buf: bytes | bytearray | memoryview, pos: int = 0) -> tuple[Any, int]:
    """Like `decode`, but with plain `int` and `str` for integers, symbols and timestamps."""
    return _decode_with(PLAIN, buf, pos)


def skip(buf: bytes | bytearray | memoryview, pos: int) -> int:
    """Return where the value at `pos` ends, without decoding it."""
    pending = 1
    try:
        while pending:
            code = buf[pos]
            pos += 1
            width = WIDTHS[code]
            if width >= 0:
                pos += width
            elif width == NARROW:
                pos += 1 + buf[pos]
            elif width == _WIDE:
                pos += 4 + _u32(buf, pos)[0]
            elif code == 0:
                pending += 2  # a descriptor and a value take its place
            else:
                raise _bad_code(code)
            pending -= 1
    except MALFORMED as error:
        raise malformed(error) from None
    if pos > len(buf):
        raise _past_the_end()
    return pos
