"""Any bytes give a value or a `DecodeError`, in time and memory proportional to their length."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.amqp.amqp_values import VALUES
from tests.amqp.sdk_definitions import FRAME_KINDS, performatives_of

from twinbus.amqp.codec.decoding import decode, decode_plain, skip
from twinbus.amqp.codec.encoding import encode
from twinbus.amqp.codec.frames import FramingError, frame, split_frames
from twinbus.amqp.codec.performatives import decode_performative
from twinbus.amqp.codec.sections import (
    data_sections,
    entry_value,
    list_fields,
    map_entries,
    raw_fields,
    section_value,
    split_sections,
)
from twinbus.amqp.codec.types import DecodeError, Described, ULong

pytestmark = pytest.mark.slow

FRAME_SIZE = 65536


def read_message(raw: bytes) -> None:
    """Read everything that can be read from a message."""
    found = split_sections(raw)
    assert len(b"".join(found)) == len(raw)
    readers: list[tuple[Callable[[bytes], Any], list[bytes]]] = [
        (lambda one: list_fields(one, 13), [found.header, found.properties]),
        (raw_fields, [found.header, found.properties]),
        (map_entries, [*list(found[1:3]), found.application_properties]),
        (section_value, list(found)),
        (data_sections, [found.body]),
    ]
    for read, parts in readers:
        for part in parts:
            refused_or_read(read, part)
    for part in (*found[1:3], found.application_properties):
        for _, raw_entry in refused_or_read(map_entries, part) or []:
            refused_or_read(entry_value, raw_entry)


def refused_or_read(read: Callable[[bytes], Any], raw: bytes) -> Any:
    """The result of `read`; None if it raises `DecodeError`. Other exceptions fail the test."""
    try:
        return read(raw)
    except DecodeError:
        return None


def read_every_way(raw: bytes) -> None:
    typed = refused_or_read(decode, raw)
    plain = refused_or_read(decode_plain, raw)
    assert (typed is None) == (plain is None)
    end = refused_or_read(lambda data: skip(data, 0), raw)
    if typed is not None:
        assert typed[1] == plain[1] == end
    if end is not None:
        assert 0 < end <= len(raw)
    refused_or_read(lambda data: decode_performative(data, 0), raw)
    refused_or_read(read_message, raw)
    for read in (section_value, data_sections, map_entries, raw_fields, lambda one: list_fields(one, 13)):
        refused_or_read(read, raw)
    refused_or_read(lambda data: list(split_frames(bytearray(data), 512)), raw)


# Bytes that look like AMQP find more than noise: constructors, small sizes and counts.
CONSTRUCTORS = st.sampled_from(bytes.fromhex("00404142434445505253545556707380839498a0a1a3b0b1c0c1d0d1e0f0"))
NEARLY_AMQP = st.lists(CONSTRUCTORS | st.integers(0, 12) | st.integers(0, 255), max_size=60).map(bytes)
DESCRIBED = st.tuples(st.integers(0x10, 0x18) | st.integers(0x70, 0x78), NEARLY_AMQP).map(
    lambda drawn: b"\0\x53" + bytes((drawn[0],)) + drawn[1]
)


@given(st.binary(max_size=200) | NEARLY_AMQP | DESCRIBED)
@settings(max_examples=1000)
@example(b"\0" * 100)
@example(b"\xc1\x04\x02\x45\x40\x40")
@example(b"\0\x53\x73\xc0\0")
@example(b"\0\x53\x74\xc1\0")
@example(b"\0\x53\x70\xd0\0\0\0\0")
def test_random_bytes_are_decoded_or_refused(raw: bytes) -> None:
    read_every_way(raw)


SECTIONS = st.lists(
    st.builds(lambda code, value: encode(Described(ULong(code), value)), st.integers(0x70, 0x78), VALUES),
    max_size=4,
).map(b"".join)
FRAME_BODIES = (
    st.sampled_from(FRAME_KINDS)
    .flatmap(performatives_of)
    .map(lambda performative: frame(0, performative, b"payload")[8:])
)


def mutated(raw: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
    """`raw` with some bytes replaced, removed or added."""
    out = bytearray(raw)
    for where, width, replacement in changes:
        start = where % (len(out) + 1)
        out[start : start + width] = replacement
    return bytes(out)


CHANGES = st.lists(
    st.tuples(st.integers(0, 10_000), st.integers(0, 4), st.binary(max_size=4) | NEARLY_AMQP), min_size=1, max_size=4
)


@given(VALUES.map(encode) | SECTIONS | FRAME_BODIES, CHANGES)
@settings(max_examples=500)
def test_damaged_bytes_are_decoded_or_refused(raw: bytes, changes: list[tuple[int, int, bytes]]) -> None:
    read_every_way(mutated(raw, changes))


@given(VALUES.map(encode) | FRAME_BODIES | SECTIONS)
@settings(max_examples=50)
def test_truncated_value_is_refused(raw: bytes) -> None:
    whole = refused_or_read(decode, raw)
    assert whole is not None or not raw
    for end in range(min(whole[1], 300) if whole else 0):
        with pytest.raises(DecodeError):
            decode(raw[:end])
        with pytest.raises(DecodeError):
            skip(raw[:end], 0)


def wide(code: int, size: int, count: int, rest: bytes = b"") -> bytes:
    return struct.pack(">BII", code, size, count) + rest


MANY = 2**32 - 1
ABSURD = {
    "binary": b"\xb0\xff\xff\xff\xff",
    "string": b"\xb1\xff\xff\xff\xff",
    "list size": wide(0xD0, MANY, 1, b"\x40"),
    "list count": wide(0xD0, 5, MANY, b"\x40"),
    "map size": wide(0xD1, MANY, 2, b"\x40\x40"),
    "map count": wide(0xD1, 6, MANY - 1, b"\x40\x40"),
    "array size": wide(0xF0, MANY, 1, b"\x40"),
    "array count": wide(0xF0, 6, MANY, b"\x50\x00"),
    "array of nulls": wide(0xF0, 5, MANY, b"\x40"),
    "array of empty lists": wide(0xF0, 5, MANY, b"\x45"),
    "described array of nulls": wide(0xF0, 8, MANY, b"\0\x53\x01\x40"),
}


@pytest.mark.parametrize("raw", ABSURD.values(), ids=ABSURD.keys())
def test_absurd_lengths_and_counts_are_refused_at_once(raw: bytes) -> None:
    for read in (decode, decode_plain):
        with pytest.raises(DecodeError):
            read(raw)
    for wrapped in (b"\0\x53\x10" + raw, b"\0\x53\x73" + raw, b"\0\x53\x74" + raw):
        read_every_way(wrapped)


def repeated(unit: bytes, header: Callable[[int, int], bytes]) -> bytes:
    """One list or array of as many items as fit into a frame."""
    count = (FRAME_SIZE - 32) // len(unit)
    return header(len(unit) * count, count) + unit * count


def in_a_list(size: int, count: int) -> bytes:
    return wide(0xD0, size + 4, count)


def in_an_array_of_arrays(size: int, count: int) -> bytes:
    return wide(0xF0, size + 5, count, b"\xf0")


GREEDY = {
    "empty lists": repeated(b"\x45", in_a_list),
    "empty maps": repeated(b"\xc1\x01\x00", in_a_list),
    "empty arrays": repeated(b"\xe0\x01\x00", in_a_list),
    "described nulls": repeated(b"\0\x40\x40", in_a_list),
    "uuids": repeated(b"\x98" + bytes(16), in_a_list),
    "arrays of 32 nulls": repeated(struct.pack(">IIB", 5, 32, 0x40), in_an_array_of_arrays),
    "arrays of 32 empty lists": repeated(struct.pack(">IIB", 5, 32, 0x45), in_an_array_of_arrays),
    "arrays of 33 empty lists": repeated(struct.pack(">IIB", 5, 33, 0x45), in_an_array_of_arrays),
    "arrays of many empty lists": repeated(struct.pack(">IIB", 5, MANY, 0x45), in_an_array_of_arrays),
}


@pytest.mark.parametrize("raw", GREEDY.values(), ids=GREEDY.keys())
def test_memory_for_a_frame_is_proportional_to_its_length(raw: bytes) -> None:
    assert len(raw) <= FRAME_SIZE
    tracemalloc.start()
    try:
        refused_or_read(decode, raw)
        refused_or_read(decode_plain, raw)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 300 * FRAME_SIZE


DEEP: dict[str, Callable[[int], bytes]] = {
    "descriptors": lambda size: b"\0" * size,
    "descriptors of null": lambda size: b"\0\x40" * (size // 2),
    "values of descriptors": lambda size: b"\0" * (size // 2) + b"\x40" * (size // 2),
    "described section": lambda size: b"\0\x53\x77" + b"\0\x40" * (size // 2),
    "described descriptor of a section": lambda size: b"\0" + b"\0\x40" * (size // 2),
    "performative in a performative": lambda size: b"\0\x53\x18\xd0\x00\x00\xff\xff\x00\x00\x00\x01" * (size // 12),
    "lists in lists": lambda size: b"\xd0\x00\x00\xff\xff\x00\x00\x00\x01" * (size // 9),
    "maps in maps": lambda size: b"\xd1\x00\x00\xff\xff\x00\x00\x00\x02" * (size // 9),
    "arrays in arrays": lambda size: b"\xf0" + b"\x00\x00\xff\xff\x00\x00\x00\x01\xf0" * (size // 9),
    "empty data sections": lambda size: b"\0\x53\x75\xa0\x00" * (size // 5),
    "nulls in a map": lambda size: b"\0\x53\x74" + wide(0xD1, size + 4, size, b"\x40" * size),
    "nulls in a list": lambda size: b"\0\x53\x73" + wide(0xD0, size + 4, size, b"\x40" * size),
}


@pytest.mark.parametrize("make", DEEP.values(), ids=DEEP.keys())
def test_deep_or_long_values_are_decoded_in_linear_time(make: Callable[[int], bytes]) -> None:
    # Generous for a slow machine; anything quadratic takes minutes at this size.
    raw = make(1_000_000)
    started = time.process_time()
    read_every_way(raw)
    assert time.process_time() - started < 20


def test_skip_does_not_recurse() -> None:
    depth = 100_000
    chain = b"\0" * depth + b"\x40" * (depth + 1)
    assert skip(chain, 0) == len(chain)
    values = b"\0\x40" * depth + b"\x40"
    assert skip(values, 0) == len(values)


def test_random_stream_is_not_a_frame() -> None:
    with pytest.raises(FramingError):
        list(split_frames(bytearray(b"GET / HTTP/1.1\r\n"), FRAME_SIZE))
