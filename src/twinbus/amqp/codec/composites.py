"""Decodes composite types: lists whose items are named, typed fields.

A field's type is checked by its constructor. That costs one set lookup, and callers can rely on the value's range.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from .decoding import Decoder
from .types import DecodeError

NULL = 0x40
_CONSTANTS = (None, True, False, 0, 0)  # constructors 0x40 to 0x44, which have no data
_u32 = struct.Struct(">I").unpack_from
_TEXT = b"\xa1\xb1\xa3\xb3"  # clients mix up strings and symbols; the plain value is the same
_CODES = {
    "boolean": b"\x41\x42\x56",
    "ubyte": b"\x50",
    "ushort": b"\x60",
    "uint": b"\x43\x52\x70",
    "ulong": b"\x44\x53\x80",
    "timestamp": b"\x83",
    "binary": b"\xa0\xb0",
    "string": _TEXT,
    "symbol": _TEXT,
    "map": b"\xc1\xd1",
    "message-id": b"\x44\x53\x80\x98\xa0\xb0\xa1\xb1",
    "described type": b"\x00",
    "value": bytes(range(256)),  # of any type; unknown constructors are refused by the decoder
}


class Composite(NamedTuple):
    """The fields of a composite type, and the constructors that each may have."""

    name: str
    fields: tuple[str, ...]
    types: tuple[str, ...]
    codes: tuple[frozenset[int], ...]
    mandatory: tuple[int, ...]
    max_fields: int


def composite(name: str, fields: tuple[str, ...], types: str) -> Composite:
    """Describe a composite type. `types` names a type per field, with `!` if it must not be null."""
    words = tuple(types.split(", ")) if types else ()
    plain = tuple(word.rstrip("!") for word in words)
    codes = tuple(frozenset((NULL, *_CODES[word])) for word in plain)
    mandatory = tuple(index for index, word in enumerate(words) if word.endswith("!"))
    if len(codes) != len(fields):
        raise ValueError(f"{name} has {len(fields)} fields but {len(codes)} types")
    return Composite(name, fields, plain, codes, mandatory, len(fields))


def decode_fields(
    kind: Composite, decoders: list[Decoder], buf: Any, pos: int, count: int, depth: int
) -> tuple[list[Any], int]:
    """Decode the first `count` fields of a `kind` at `pos`. Returns them and where the next one starts.

    Raises `DecodeError` with the name of a field that has the wrong type, or is mandatory and null. Truncated data
    raises the decoders' own exceptions, see `decoding.MALFORMED`.
    """
    values: list[Any] = []
    for codes in kind.codes[:count]:
        code = buf[pos]
        if code not in codes:
            raise _wrong_type(kind, len(values), code)
        # Inlined for speed: most fields are one of these, and every frame has many.
        if NULL <= code < 0x45:
            value = _CONSTANTS[code - NULL]
            pos += 1
        elif code == 0x52 or code == 0x53:
            value = buf[pos + 1]
            pos += 2
        elif code == 0x70:
            (value,) = _u32(buf, pos + 1)
            pos += 5
        else:
            value, pos = decoders[code](buf, pos + 1, depth)
        values.append(value)
    if kind.mandatory:
        check_mandatory(kind, values)
    return values, pos


def check_mandatory(kind: Composite, values: list[Any]) -> None:
    """Raise `DecodeError` if a mandatory field is null."""
    for index in kind.mandatory:
        if index >= len(values) or values[index] is None:
            raise DecodeError(f"{kind.name}.{kind.fields[index]} is mandatory")


def too_many(kind: Composite, count: int) -> DecodeError:
    """The error for a list with too many fields."""
    return DecodeError(f"{kind.name} has at most {kind.max_fields} fields, got {count}")


def _wrong_type(kind: Composite, index: int, code: int) -> DecodeError:
    field = f"{kind.name}.{kind.fields[index]}"
    return DecodeError(f"{field} must be a {kind.types[index]}, got constructor 0x{code:02x}")
