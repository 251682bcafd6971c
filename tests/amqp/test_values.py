"""Encoding and decoding AMQP values."""

from __future__ import annotations

import struct
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.amqp.amqp_values import (
    ARRAY_ITEMS,
    DESCRIPTORS,
    SIMPLE,
    SIMPLE_VALUES,
    VALUES,
    Values,
    arrays_of,
    same,
    without_types,
)

from twinbus.amqp.codec.decoding import MAX_DEPTH, MAX_EMPTY_ARRAY_ITEMS, decode, decode_plain, skip
from twinbus.amqp.codec.encoding import encode
from twinbus.amqp.codec.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    DecodeError,
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


def assert_round_trip(value: Any) -> None:
    raw = encode(value)
    decoded, end = decode(raw)
    assert same(decoded, value)
    assert end == len(raw)
    assert skip(raw, 0) == end
    plain, plain_end = decode_plain(raw)
    assert same(plain, without_types(value))
    assert plain_end == end


@pytest.mark.parametrize("values", [pytest.param(values, id=kind.__name__) for kind, values in SIMPLE.items()])
@given(data=st.data())
@settings(max_examples=40)
def test_simple_value_round_trips_with_its_type(values: Values, data: st.DataObject) -> None:
    assert_round_trip(data.draw(values))


@pytest.mark.parametrize(
    ("code", "items"), [pytest.param(code, items, id=f"{code:#x}") for code, items in ARRAY_ITEMS.items()]
)
@given(data=st.data())
@settings(max_examples=40)
def test_array_round_trips_with_its_constructor_and_descriptor(code: int, items: Values, data: st.DataObject) -> None:
    assert_round_trip(data.draw(arrays_of(code, items)))


@given(VALUES)
def test_nested_value_round_trips_with_all_its_types(value: Any) -> None:
    assert_round_trip(value)


@given(VALUES, st.binary(max_size=20), st.binary(max_size=20))
def test_value_is_decoded_at_a_position_among_other_bytes(value: Any, before: bytes, after: bytes) -> None:
    raw = before + encode(value) + after
    end = len(raw) - len(after)
    for buf in (raw, bytearray(raw), memoryview(raw)):
        decoded, stop = decode(buf, len(before))
        assert same(decoded, value)
        assert stop == decode_plain(buf, len(before))[1] == skip(buf, len(before)) == end


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        (None, "40"),
        (True, "41"),
        (False, "42"),
        (UByte(255), "50ff"),
        (Byte(-1), "51ff"),
        (UShort(255), "6000ff"),
        (Short(-2), "61fffe"),
        (UInt(0), "43"),
        (UInt(1), "5201"),
        (UInt(255), "52ff"),
        (UInt(256), "7000000100"),
        (UInt(2**32 - 1), "70ffffffff"),
        (ULong(0), "44"),
        (ULong(255), "53ff"),
        (ULong(256), "800000000000000100"),
        (Int(127), "547f"),
        (Int(-128), "5480"),
        (Int(128), "7100000080"),
        (Int(-129), "71ffffff7f"),
        (Long(127), "557f"),
        (Long(-128), "5580"),
        (Long(128), "810000000000000080"),
        (Long(-129), "81ffffffffffffff7f"),
        (Float(1.5), "723fc00000"),
        (1.5, "823ff8000000000000"),
        (Timestamp(0), "830000000000000000"),
        (Char("\U0001f600"), "730001f600"),
        (Decimal32(b"abcd"), "7461626364"),
        (uuid.UUID(int=1), "9800000000000000000000000000000001"),
        (b"", "a000"),
        ("é", "a102c3a9"),
        (Symbol("a"), "a30161"),
        ([], "45"),
        ([None], "c0020140"),
        ({}, "c10100"),
        ({Symbol("a"): UInt(0)}, "c10502a3016143"),
        (Array(0x70, [UInt(1)]), "e0060170" + "00000001"),
        (Array(0x50, [UByte(7)], Symbol("d")), "e00701" + "00a30164" + "5007"),
        (Described(ULong(0x24), []), "00532445"),
    ],
    ids=repr,
)
def test_a_value_has_the_shortest_form_of_its_type(value: Any, raw: str) -> None:
    assert encode(value).hex() == raw
    assert same(decode(bytes.fromhex(raw))[0], value)


@pytest.mark.parametrize("make", [lambda n: b"x" * n, lambda n: "x" * n, lambda n: Symbol("x" * n)])
def test_text_and_binary_of_256_bytes_take_the_wide_form(make: Any) -> None:
    narrow, wide = encode(make(255)), encode(make(256))
    assert (narrow[0] & 0xF0, len(narrow)) == (0xA0, 2 + 255)
    assert (wide[0] & 0xF0, len(wide)) == (0xB0, 5 + 256)
    for size in (255, 256, 70_000):
        assert_round_trip(make(size))


@pytest.mark.parametrize(
    "value_of_size",
    [
        lambda size: [b"x" * (size - 2)],
        lambda size: {b"": b"x" * (size - 4)},
        lambda size: Array(0xA0, [b"x" * (size - 2)]),
    ],
    ids=["list", "map", "array"],
)
def test_a_compound_of_255_bytes_takes_the_wide_form(value_of_size: Any) -> None:
    # The size byte also counts the byte of the count, so there can be at most 254 bytes of items.
    assert encode(value_of_size(254))[1] == 255
    assert encode(value_of_size(255))[0] & 0x10
    for size in (253, 254, 255, 256):
        assert_round_trip(value_of_size(size))


def test_a_list_of_256_items_takes_the_wide_form() -> None:
    assert_round_trip([None] * 254)
    assert_round_trip([None] * 300)
    assert encode([None] * 300)[:9].hex() == "d000000130" + "0000012c"


def test_a_plain_integer_is_a_long_and_a_tuple_is_a_list() -> None:
    assert same(decode(encode(5))[0], Long(5))
    assert same(decode(encode(2**62))[0], Long(2**62))
    assert same(decode(encode((None, True)))[0], [None, True])
    assert decode(encode(bytearray(b"ab")))[0] == decode(encode(memoryview(b"ab")))[0] == b"ab"


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("5601", True),
        ("5600", False),
        ("7000000000", UInt(0)),
        ("5200", UInt(0)),
        ("800000000000000001", ULong(1)),
        ("7100000001", Int(1)),
        ("81ffffffffffffffff", Long(-1)),
        ("b00000000161", b"a"),
        ("b10000000161", "a"),
        ("b30000000161", Symbol("a")),
        ("c00100", []),
        ("d00000000400000000", []),
        ("d0000000050000000140", [None]),
        ("d10000000600000002" + "4041", {None: True}),
        ("f0000000060000000150" + "05", Array(0x50, [UByte(5)])),
        ("e00100", Array(0x40)),
        ("f00000000400000000", Array(0x40)),
        ("e00602c0" + "0100" + "0100", Array(0xC0, [[], []])),
        ("e00601c1" + "03024041", Array(0xC1, [{None: True}])),
        ("e00501e0" + "020050", Array(0xE0, [Array(0x50)])),
    ],
)
def test_longer_forms_than_necessary_are_read(raw: str, value: Any) -> None:
    decoded, end = decode(bytes.fromhex(raw))
    assert same(decoded, value)
    assert end == skip(bytes.fromhex(raw), 0) == len(raw) // 2


@pytest.mark.parametrize(
    ("narrow", "items"), [(0xC0, [[], [None]]), (0xC1, [{}, {None: 1.5}]), (0xE0, [Array(0x40), Array(0x50)])]
)
def test_compounds_in_an_array_are_written_in_the_wide_form(narrow: int, items: list[Any]) -> None:
    assert same(decode(encode(Array(narrow, items)))[0], Array(narrow | 0x10, items))


@pytest.mark.parametrize(
    ("narrow", "long", "short"),
    [(0xA0, b"x" * 256, b"y"), (0xA1, "é" * 128, "y"), (0xA3, Symbol("x" * 256), Symbol("y"))],
)
def test_an_array_with_a_long_item_takes_the_wide_constructor(narrow: int, long: Any, short: Any) -> None:
    assert same(decode(encode(Array(narrow, [short, long])))[0], Array(narrow | 0x10, [short, long]))
    assert_round_trip(Array(narrow, [short, type(long)(long[:127])]))


@pytest.mark.parametrize("code", [0x40, 0x41, 0x42, 0x43, 0x44, 0x45])
def test_array_of_items_without_data_is_bounded(code: int) -> None:
    item = decode(bytes((code,)))[0]
    assert_round_trip(Array(code, [item] * MAX_EMPTY_ARRAY_ITEMS))
    with pytest.raises(EncodeError, match=f"at most {MAX_EMPTY_ARRAY_ITEMS}"):
        encode(Array(code, [item] * (MAX_EMPTY_ARRAY_ITEMS + 1)))
    raw = struct.pack(">BIIB", 0xF0, 5, 2**32 - 1, code)
    for read in (decode, decode_plain):
        with pytest.raises(DecodeError, match="more items"):
            read(raw)


def nested(depth: int, wrap: Any) -> Any:
    value: Any = None
    for _ in range(depth):
        value = wrap(value)
    return value


@pytest.mark.parametrize(
    "wrap",
    [
        lambda value: [value],
        lambda value: {None: value},
        lambda value: Described(ULong(1), value),
        lambda value: Described(value, ULong(1)),
        lambda value: Array(0xF0, [value or Array(0x40)]),
    ],
    ids=["list", "map", "described", "descriptor", "array"],
)
def test_nesting_is_allowed_up_to_the_maximum_depth(wrap: Any) -> None:
    assert_round_trip(nested(MAX_DEPTH - 1, wrap))
    raw = encode(nested(MAX_DEPTH + 1, wrap))
    for read in (decode, decode_plain):
        with pytest.raises(DecodeError, match=f"deeper than {MAX_DEPTH}"):
            read(raw)
    assert skip(raw, 0) == len(raw)


@given(DESCRIPTORS | SIMPLE_VALUES, VALUES)
def test_skip_steps_over_a_chain_of_descriptors(descriptor: Any, value: Any) -> None:
    raw = encode(Described(Described(descriptor, descriptor), Described(descriptor, value)))
    assert skip(raw, 0) == decode(raw)[1] == len(raw)


@pytest.mark.parametrize(
    "value",
    [
        UByte(256),
        UByte(-1),
        UShort(2**16),
        UInt(-1),
        UInt(2**32),
        ULong(-1),
        ULong(2**64),
        Byte(128),
        Short(2**15),
        Int(2**31),
        Long(2**63),
        2**63,
        Timestamp(2**63),
        Float(1e300),
        Char("ab"),
        Char(""),
        Char("\ud800"),
        "\ud800",
        Symbol("é"),
        Decimal32(b"abc"),
        Decimal64(b""),
        Decimal128(b"x" * 17),
        1j,
        {1, 2},
        [1j],
        Array(0x50, [256]),
        Array(0x50, ["a"]),
        Array(0x41, [False]),
        Array(0x73, ["ab"]),
        Array(0x73, ["\ud800"]),
        Array(0x74, [b"abc"]),
        Array(0x74, ["abcd"]),
        Array(0x98, ["not a uuid"]),
        Array(0xA0, [5]),
        Array(0xA1, [b"a"]),
        Array(0xA3, ["é"]),
        Array(0xD0, [5]),
        Array(0xD1, [[1]]),
        Array(0xF0, [[1]]),
        Array(0x00, []),
        Array(0x57, []),
        Array(0x99, [1]),
    ],
    ids=repr,
)
def test_value_out_of_range_for_its_type_is_refused(value: Any) -> None:
    with pytest.raises(EncodeError):
        encode(value)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("", "ends inside"),
        ("00", "ends inside"),
        ("0053", "ends inside"),
        ("70000000", "ends inside"),
        ("98" + "00" * 15, "ends before its last byte"),
        ("a002", "past the end"),
        ("b0ffffffff", "past the end"),
        ("a102c328", "invalid text"),
        ("a301ff", "invalid text"),
        ("01", "constructor 0x01"),
        ("57", "constructor 0x57"),
        ("ff", "constructor 0xff"),
        ("5602", "boolean byte must be 0 or 1"),
        ("730000d800", "not a Unicode character"),
        ("7300110000", "not a Unicode character"),
        ("c000", "ends inside"),
        ("c00000", "size does not fit"),
        ("d0000000030000000040", "size does not fit"),
        ("c0ff0140", "size does not fit"),
        ("c00201", "size does not fit"),
        ("c0020240", "more items"),
        ("c003014040", "does not match its items"),
        ("c002015205", "does not match its items"),
        ("c1020140", "odd"),
        ("c103024540", "key must not be"),
        ("c10602" + "00532445" + "40", "key must not be"),
        ("e0020170", "more items"),
        ("e003015701", "constructor 0x57"),
        ("e0020057", "constructor 0x57"),
        ("e00401004050", "one descriptor"),
        ("e00901" + "005301" + "005302" + "5005", "one descriptor"),
        ("e004015001" + "02", "does not match its items"),
    ],
)
def test_malformed_bytes_are_refused_with_a_reason(raw: str, reason: str) -> None:
    for read in (decode, decode_plain):
        with pytest.raises(DecodeError, match=reason):
            read(bytes.fromhex(raw))


def test_last_of_equal_map_keys_wins() -> None:
    raw = bytes.fromhex("c10904" + "a10161" + "41" + "a30161" + "42")
    assert decode(raw)[0] == {"a": False}
