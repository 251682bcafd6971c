"""Our codec against the SDK's, in both directions.

The SDK's decoder gives text as bytes and forgets the types of numbers, and it does not know every type; what
is compared is what it can say.
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from azure.servicebus._pyamqp import _decode, _encode
from azure.servicebus._pyamqp.types import TYPE, VALUE, AMQPTypes
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.amqp.amqp_values import ARRAY_ITEMS, SIMPLE, Values, arrays_of, same
from tests.amqp.sdk_definitions import BY_NAME, FRAME_KINDS, Kind, performatives_of

from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec.decoding import decode
from twinbus.amqp.codec.encoding import encode
from twinbus.amqp.codec.frames import frame
from twinbus.amqp.codec.performatives import decode_performative
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

# The SDK has no chars and no short decimals, and reads a decimal128 wrongly.
UNKNOWN_TO_THE_SDK = (Char, Decimal32, Decimal64, Decimal128)
# No NaN: it does not equal itself.
FLOATS = {Float: st.floats(width=32, allow_nan=False).map(Float), float: st.floats(allow_nan=False)}
KNOWN = {kind: values for kind, values in SIMPLE.items() if kind not in UNKNOWN_TO_THE_SDK} | FLOATS
KNOWN_ITEMS = {code: items for code, items in ARRAY_ITEMS.items() if code not in (0x73, 0x74, 0x84, 0x94)}
KNOWN_ITEMS |= {0x72: FLOATS[Float], 0x82: FLOATS[float]}
# The SDK turns the outcomes into dictionaries wherever it sees their descriptors.
OUTCOMES = range(35, 40)
DESCRIPTORS = st.integers(0, 34).map(ULong) | st.integers(40, 2**64 - 1).map(ULong) | SIMPLE[Symbol]


def _is_read_as_an_array(array: Array) -> bool:
    # Not empty: the SDK reads its constructor as the next value.
    return len(array) > 0 and array.descriptor not in OUTCOMES


def _known_compounds(inner: Values) -> Values:
    arrays = [arrays_of(code, items).filter(_is_read_as_an_array) for code, items in KNOWN_ITEMS.items()]
    return st.one_of(
        st.lists(inner, max_size=6),
        st.dictionaries(SIMPLE[str], inner, max_size=5),
        st.builds(Described, DESCRIPTORS, inner),
        *arrays,
    )


KNOWN_VALUES: Values = st.recursive(st.one_of(*KNOWN.values()), _known_compounds, max_leaves=15)


def as_the_sdk_reads_it(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, Described):
        read = as_the_sdk_reads_it(value.value)
        # It adds the descriptor to a map.
        return {**read, "descriptor": as_the_sdk_reads_it(value.descriptor)} if isinstance(value.value, dict) else read
    if isinstance(value, list):
        return [as_the_sdk_reads_it(item) for item in value]
    if isinstance(value, dict):
        return {as_the_sdk_reads_it(key): as_the_sdk_reads_it(item) for key, item in value.items()}
    return value


def sdk_decode(raw: bytes) -> tuple[Any, int]:
    rest, value = _decode._DECODE_BY_CONSTRUCTOR[raw[0]](memoryview(raw)[1:])
    return value, len(raw) - len(rest)


def sdk_encode(value: Any) -> bytes:
    out = bytearray()
    _encode.encode_value(out, value)
    return bytes(out)


@given(KNOWN_VALUES)
@example(Described(ULong(0), {}))
@example(Described(ULong(0), {"a": Described(Symbol("b"), {})}))
def test_the_sdk_reads_what_we_write(value: Any) -> None:
    raw = encode(value)
    read, end = sdk_decode(raw)
    assert read == as_the_sdk_reads_it(value)
    assert end == len(raw)


SDK_TYPES: dict[type, str] = {
    type(None): AMQPTypes.null,
    bool: AMQPTypes.boolean,
    UByte: AMQPTypes.ubyte,
    Byte: AMQPTypes.byte,
    UShort: AMQPTypes.ushort,
    Short: AMQPTypes.short,
    UInt: AMQPTypes.uint,
    Int: AMQPTypes.int,
    ULong: AMQPTypes.ulong,
    Long: AMQPTypes.long,
    Float: AMQPTypes.float,
    float: AMQPTypes.double,
    Timestamp: AMQPTypes.timestamp,
    uuid.UUID: AMQPTypes.uuid,
    bytes: AMQPTypes.binary,
    str: AMQPTypes.string,
    Symbol: AMQPTypes.symbol,
}


def as_the_sdk_writes_it(value: Any) -> Any:
    """The SDK's notation for a value of a certain type."""
    if isinstance(value, Array):
        return {TYPE: AMQPTypes.array, VALUE: [as_the_sdk_writes_it(item) for item in value]}
    if isinstance(value, list):
        return {TYPE: AMQPTypes.list, VALUE: [as_the_sdk_writes_it(item) for item in value]}
    if isinstance(value, dict):
        entries = [(as_the_sdk_writes_it(key), as_the_sdk_writes_it(item)) for key, item in value.items()]
        return {TYPE: AMQPTypes.map, VALUE: entries}
    if isinstance(value, Described):
        parts = (as_the_sdk_writes_it(value.descriptor), as_the_sdk_writes_it(value.value))
        return {TYPE: AMQPTypes.described, VALUE: parts}
    return {TYPE: SDK_TYPES[type(value)], VALUE: value}


# The SDK's arrays of booleans and of numbers that may be zero are broken.
SDK_ARRAYS = {
    0x50: SIMPLE[UByte],
    0x51: SIMPLE[Byte],
    0x60: SIMPLE[UShort],
    0x61: SIMPLE[Short],
    0x70: SIMPLE[UInt].filter(bool),
    0x71: SIMPLE[Int],
    0x72: SIMPLE[Float],
    0x80: SIMPLE[ULong].filter(bool),
    0x81: SIMPLE[Long],
    0x82: SIMPLE[float],
    0x83: SIMPLE[Timestamp],
    0x98: SIMPLE[uuid.UUID],
    0xB0: SIMPLE[bytes],
    0xB1: SIMPLE[str],
    0xB3: SIMPLE[Symbol],
}


def _sdk_arrays(code: int, items: Values) -> Values:
    return st.lists(items, min_size=1, max_size=6).map(lambda drawn: Array(code, drawn))


def _writable_compounds(inner: Values) -> Values:
    arrays = [_sdk_arrays(code, items) for code, items in SDK_ARRAYS.items()]
    return st.one_of(
        st.lists(inner, max_size=6),
        st.dictionaries(SIMPLE[str] | SIMPLE[ULong], inner, max_size=5),
        st.builds(Described, DESCRIPTORS, inner),
        *arrays,
    )


@given(st.recursive(st.one_of(*KNOWN.values()), _writable_compounds, max_leaves=15))
def test_we_read_what_the_sdk_writes(value: Any) -> None:
    raw = sdk_encode(as_the_sdk_writes_it(value))
    read, end = decode(raw)
    assert same(read, value)
    assert end == len(raw)


def test_we_read_the_sdks_empty_array() -> None:
    assert same(decode(sdk_encode({TYPE: AMQPTypes.array, VALUE: []}))[0], Array(0x40))


def fields_as_the_sdk_reads_them(performative: Any, kind: Kind) -> list[Any]:
    fields = []
    for field, value in zip(kind.fields, performative, strict=True):
        if value is None:
            fields.append(field.default)
        else:
            fields.append(nested_as_the_sdk_reads_it(value))
    return fields


def nested_as_the_sdk_reads_it(value: Any) -> Any:
    outcomes = {amqp.Received, amqp.Accepted, amqp.Rejected, amqp.Released, amqp.Modified}
    if type(value) not in amqp.BY_CODE.values():
        return as_the_sdk_reads_it(value)
    fields = [nested_as_the_sdk_reads_it(field) for field in value]
    while fields and fields[-1] is None and not isinstance(value, amqp.Error | amqp.Source | amqp.Target):
        fields.pop()
    return {type(value).__name__.lower(): fields} if type(value) in outcomes else fields


@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in FRAME_KINDS])
@given(data=st.data())
@settings(max_examples=40)
def test_the_sdk_reads_our_frames(kind: Kind, data: st.DataObject) -> None:
    performative = data.draw(performatives_of(kind))
    code, fields = _decode.decode_frame(memoryview(frame(3, performative, b"payload"))[8:])
    if kind.make is amqp.Transfer:
        assert bytes(fields.pop()) == b"payload"
    assert code == kind.code
    assert fields == fields_as_the_sdk_reads_them(performative, kind)


def _to_sdk(value: Any) -> Any:
    """One of our performatives as the SDK's own object."""
    if type(value) in amqp.BY_CODE.values():
        kind = BY_NAME[type(value).__name__]
        extra = [b""] if kind.make is amqp.Transfer else []
        return kind.sdk(*map(_to_sdk, value), *extra)
    if isinstance(value, Array):
        return [str(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _to_sdk(item) for key, item in value.items()}
    return (value.descriptor, value.value) if isinstance(value, Described) else value


# The SDK has its own encoding of filters and node properties.
SENT_BY_THE_SDK = [kind for kind in FRAME_KINDS if kind.name != "Attach"]


@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in SENT_BY_THE_SDK])
@given(data=st.data())
@settings(max_examples=40)
def test_we_read_the_sdks_frames(kind: Kind, data: st.DataObject) -> None:
    performative = data.draw(performatives_of(kind))
    _, body = _encode.encode_frame(_to_sdk(performative))
    assert body is not None
    decoded, end = decode_performative(bytes(body), 0)
    assert decoded == performative
    assert end == len(body)
