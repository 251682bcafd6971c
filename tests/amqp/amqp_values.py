"""Hypothesis strategies for AMQP values of every type, and their strict comparison."""

from __future__ import annotations

import math
import uuid
from typing import Any

from hypothesis import strategies as st

from twinbus.amqp.codec.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
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

Values = st.SearchStrategy[Any]


def _integers(kind: type, low: int, high: int) -> Values:
    # The edges of the short forms, rarely hit by random integers.
    edges = [edge for edge in (-129, -128, -1, 0, 1, 127, 128, 255, 256, low, high) if low <= edge <= high]
    return (st.integers(low, high) | st.sampled_from(edges)).map(kind)


TEXT = st.text(st.characters(codec="utf-8"), max_size=80)
SYMBOLS = st.text(st.characters(codec="ascii"), max_size=40).map(Symbol)
FLOATS = st.floats(width=32).map(Float)
CHARS = st.characters(exclude_categories=["Cs"]).map(Char)
UUIDS = st.binary(min_size=16, max_size=16).map(lambda raw: uuid.UUID(bytes=raw))


def _decimals(kind: type, width: int) -> Values:
    return st.binary(min_size=width, max_size=width).map(kind)


# Strategies by type.
SIMPLE: dict[type, Values] = {
    type(None): st.none(),
    bool: st.booleans(),
    UByte: _integers(UByte, 0, 2**8 - 1),
    UShort: _integers(UShort, 0, 2**16 - 1),
    UInt: _integers(UInt, 0, 2**32 - 1),
    ULong: _integers(ULong, 0, 2**64 - 1),
    Byte: _integers(Byte, -(2**7), 2**7 - 1),
    Short: _integers(Short, -(2**15), 2**15 - 1),
    Int: _integers(Int, -(2**31), 2**31 - 1),
    Long: _integers(Long, -(2**63), 2**63 - 1),
    Timestamp: _integers(Timestamp, -(2**63), 2**63 - 1),
    Float: FLOATS,
    float: st.floats(),
    Char: CHARS,
    Decimal32: _decimals(Decimal32, 4),
    Decimal64: _decimals(Decimal64, 8),
    Decimal128: _decimals(Decimal128, 16),
    uuid.UUID: UUIDS,
    bytes: st.binary(max_size=300),
    str: TEXT,
    Symbol: SYMBOLS,
}
SIMPLE_VALUES = st.one_of(*SIMPLE.values())

# Strategies for array items, by constructor. `ARRAYS` adds lists, maps and arrays.
ARRAY_ITEMS: dict[int, Values] = {
    0x40: st.none(),
    0x41: st.just(True),
    0x42: st.just(False),
    0x43: st.just(UInt(0)),
    0x44: st.just(ULong(0)),
    0x45: st.builds(list),
    0x50: SIMPLE[UByte],
    0x51: SIMPLE[Byte],
    0x52: _integers(UInt, 0, 255),
    0x53: _integers(ULong, 0, 255),
    0x54: _integers(Int, -128, 127),
    0x55: _integers(Long, -128, 127),
    0x56: st.booleans(),
    0x60: SIMPLE[UShort],
    0x61: SIMPLE[Short],
    0x70: SIMPLE[UInt],
    0x71: SIMPLE[Int],
    0x72: FLOATS,
    0x73: CHARS,
    0x74: SIMPLE[Decimal32],
    0x80: SIMPLE[ULong],
    0x81: SIMPLE[Long],
    0x82: st.floats(),
    0x83: SIMPLE[Timestamp],
    0x84: SIMPLE[Decimal64],
    0x94: SIMPLE[Decimal128],
    0x98: UUIDS,
    0xA0: st.binary(max_size=255),
    0xB0: st.binary(max_size=300),
    0xA1: st.text(st.characters(codec="utf-8"), max_size=60),
    0xB1: TEXT,
    0xA3: SYMBOLS,
    0xB3: SYMBOLS,
}
DESCRIPTORS = SIMPLE[ULong] | SYMBOLS


def arrays_of(code: int, items: Values) -> Values:
    return st.builds(Array, st.just(code), st.lists(items, max_size=8), st.none() | DESCRIPTORS)


def _compounds(inner: Values) -> Values:
    lists = st.lists(inner, max_size=6)
    maps = st.dictionaries(SIMPLE_VALUES, inner, max_size=5)
    arrays = [arrays_of(code, items) for code, items in ARRAY_ITEMS.items()]
    nested = [arrays_of(0xD0, lists), arrays_of(0xD1, maps), arrays_of(0xF0, st.one_of(arrays))]
    return st.one_of(lists, maps, st.builds(Described, DESCRIPTORS, inner), *arrays, *nested)


VALUES: Values = st.recursive(SIMPLE_VALUES, _compounds, max_leaves=20)


def same(left: Any, right: Any) -> bool:
    """Whether two values are equal and of the same AMQP type, all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        if math.isnan(left) or math.isnan(right):
            return math.isnan(left) and math.isnan(right)
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    if isinstance(left, Array) and (left.code != right.code or not same(left.descriptor, right.descriptor)):
        return False
    if isinstance(left, (list, Described)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return same(
            [part for entry in left.items() for part in entry],
            [part for entry in right.items() for part in entry],
        )
    return bool(left == right)


def without_types(value: Any) -> Any:
    """Convert a value of `decode` into that of `decode_plain`."""
    if isinstance(value, Array):
        return Array(value.code, map(without_types, value), without_types(value.descriptor))
    if isinstance(value, Described):
        return Described(without_types(value.descriptor), without_types(value.value))
    if isinstance(value, list):
        return list(map(without_types, value))
    if isinstance(value, dict):
        return {without_types(key): without_types(item) for key, item in value.items()}
    if isinstance(value, bool):
        return value
    for plain in (int, float):
        if isinstance(value, plain):
            return plain(value)
    return str(value) if isinstance(value, Symbol) else value
