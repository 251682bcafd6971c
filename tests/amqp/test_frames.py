"""Splitting a stream into frames, and the fast frame writers."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from azure.servicebus._pyamqp._decode import decode_frame
from hypothesis import example, given
from hypothesis import strategies as st
from tests.amqp.sdk_definitions import BY_NAME, performatives_of

from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec.encoding import encode
from twinbus.amqp.codec.frames import (
    EMPTY_FRAME,
    FREQUENT,
    MIN_MAX_FRAME_SIZE,
    TYPE_AMQP,
    TYPE_SASL,
    FramingError,
    disposition_frame,
    frame,
    split_frames,
    transfer_frames,
    uint,
)
from twinbus.amqp.codec.performatives import decode_performative
from twinbus.amqp.codec.types import DecodeError, EncodeError, UInt

UINTS = st.sampled_from([0, 1, 255, 256, 2**32 - 1]) | st.integers(0, 2**32 - 1)
Frame = tuple[int, int, bytes]


def raw_frame(frame_type: int, channel: int, body: bytes, extended: bytes = b"") -> bytes:
    offset = 2 + len(extended) // 4
    return struct.pack(">IBBH", 4 * offset + len(body), offset, frame_type, channel) + extended + body


FRAMES = st.tuples(st.sampled_from([TYPE_AMQP, TYPE_SASL, 7]), st.integers(0, 2**16 - 1), st.binary(max_size=60))
EXTENDED_HEADERS = st.integers(0, 3).map(lambda words: b"\xee" * 4 * words)


@given(st.lists(st.tuples(FRAMES, EXTENDED_HEADERS), max_size=8), st.data())
def test_stream_chunks_give_the_same_frames(sent: list[tuple[Frame, bytes]], data: st.DataObject) -> None:
    stream = b"".join(raw_frame(*one, extended) for one, extended in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    buffer, got = bytearray(), list[Frame]()
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        buffer += stream[start:stop]
        got += split_frames(buffer, MIN_MAX_FRAME_SIZE)
    assert got == [one for one, _ in sent]
    assert not buffer


@given(st.lists(FRAMES, min_size=1, max_size=3))
def test_frame_is_returned_as_soon_as_its_last_byte_arrives(sent: list[Frame]) -> None:
    buffer, got = bytearray(), list[Frame]()
    for one in sent:
        raw = raw_frame(*one)
        for index, byte in enumerate(raw):
            buffer.append(byte)
            arrived = list(split_frames(buffer, MIN_MAX_FRAME_SIZE))
            assert bool(arrived) == (index == len(raw) - 1)
            got += arrived
    assert got == sent


def test_an_empty_frame_has_no_body() -> None:
    assert list(split_frames(bytearray(EMPTY_FRAME), 512)) == [(TYPE_AMQP, 0, b"")]


def test_data_after_a_frame_stays_in_the_buffer_when_the_reader_stops() -> None:
    # After sasl-init comes a protocol header, which is not a frame.
    buffer = bytearray(raw_frame(TYPE_SASL, 0, b"init") + b"AMQP\x00\x01\x00\x00")
    frames = split_frames(buffer, 512)
    assert next(frames) == (TYPE_SASL, 0, b"init")
    frames.close()  # type: ignore[attr-defined]
    assert buffer == b"AMQP\x00\x01\x00\x00"


def test_bytes_appended_while_reading_wait_for_the_next_call() -> None:
    first, second = raw_frame(0, 1, b"first"), raw_frame(0, 2, b"second")
    buffer = bytearray(first + second[:5])
    for one in split_frames(buffer, 512):
        assert one == (0, 1, b"first")
        buffer += second[5:]
    assert list(split_frames(buffer, 512)) == [(0, 2, b"second")]


@given(st.lists(FRAMES, max_size=6), st.lists(st.integers(1, 60), min_size=1, max_size=30))
def test_frames_do_not_depend_on_how_the_bytes_are_split(sent: list[Frame], cuts: list[int]) -> None:
    raw = b"".join(raw_frame(*one) for one in sent)
    buffer, got, pos = bytearray(), [], 0
    for cut in cuts:
        got += split_frames(buffer, MIN_MAX_FRAME_SIZE, raw[pos : pos + cut])
        pos += cut
    got += split_frames(buffer, MIN_MAX_FRAME_SIZE, raw[pos:])
    assert got == sent
    assert not buffer


@given(FRAMES, st.integers(0, 2**32 - 1), st.integers(0, 255), st.binary(max_size=20))
@example((0, 0, b""), 7, 2, b"")
@example((0, 0, b""), 0, 0, b"")
@example((0, 0, b""), 512, 1, b"")
@example((0, 0, b""), 512, 255, b"")
@example((0, 0, b""), 513, 2, b"")
def test_bad_frame_header_is_refused_as_soon_as_it_arrives(before: Frame, size: int, offset: int, rest: bytes) -> None:
    buffer = bytearray(raw_frame(*before) + struct.pack(">IBBH", size, offset, 0, 0)[:7])
    assert list(split_frames(buffer, 512)) == [before]
    assert len(buffer) == 7
    buffer += b"\0" + rest
    if 8 <= 4 * offset <= size <= 512:
        assert len(list(split_frames(buffer, 512))) == (size <= 8 + len(rest))
    else:
        reason = f"at most the negotiated 512 bytes, got {size}" if size > 512 else "malformed"
        with pytest.raises(FramingError, match=reason):
            list(split_frames(buffer, 512))


def test_frames_before_a_bad_header_are_returned() -> None:
    buffer = bytearray(raw_frame(0, 0, b"good") + b"\xff" * 8)
    frames = split_frames(buffer, 512)
    assert next(frames) == (0, 0, b"good")
    with pytest.raises(FramingError):
        next(frames)


def test_a_framing_error_is_a_decode_error() -> None:
    assert issubclass(FramingError, DecodeError)


def test_frame_has_a_type_and_a_channel() -> None:
    raw = frame(513, amqp.SaslOutcome(0), frame_type=TYPE_SASL)
    assert list(split_frames(bytearray(raw), 512)) == [(TYPE_SASL, 513, raw[8:])]
    assert decode_performative(raw[8:], 0)[0] == amqp.SaslOutcome(0)


@given(UINTS)
def test_fast_uint_writer_equals_the_general_encoder(value: int) -> None:
    assert uint(value) == encode(UInt(value))


def reassembled(frames: list[bytes], max_frame_size: int) -> tuple[amqp.Transfer, bytes]:
    """The first transfer and the payload of a delivery, read by our decoder and the SDK's."""
    first: Any = None
    payload = b""
    for index, raw in enumerate(frames):
        assert len(raw) <= max_frame_size
        [(frame_type, channel, body)] = split_frames(bytearray(raw), max_frame_size)
        transfer, pos = decode_performative(body, 0)
        code, fields = decode_frame(memoryview(body))
        assert (frame_type, channel, code) == (TYPE_AMQP, 5, 0x14)
        assert bytes(fields[11]) == body[pos:]
        assert fields[:3] == [transfer.handle, transfer.delivery_id, transfer.delivery_tag]
        assert fields[4] == transfer.settled
        assert fields[5] is transfer.more is (index < len(frames) - 1)
        first = first or transfer
        assert transfer.handle == first.handle
        assert index == 0 or transfer[1:5] == (None, None, None, None)
        payload += body[pos:]
    return first, payload


@given(
    UINTS,
    UINTS,
    st.binary(max_size=32),
    st.booleans(),
    st.sampled_from([512, 513, 1000, 65536]),
    st.integers(1, 3),
    st.integers(-70, 70),
)
def test_delivery_of_any_size_is_reassembled(
    handle: int, delivery_id: int, tag: bytes, settled: bool, max_frame_size: int, frames: int, around: int
) -> None:
    size = max(0, frames * max_frame_size + around)
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    parts = transfer_frames(5, handle, delivery_id, tag, settled, payload, max_frame_size)
    first, together = reassembled(parts, max_frame_size)
    assert first[:5] == (handle, delivery_id, tag, 0, settled)
    assert together == payload
    # All frames but the last are full.
    assert all(len(part) == max_frame_size for part in parts[:-1])


@given(UINTS, UINTS, st.binary(max_size=32), st.sampled_from([512, 4096]))
def test_payload_that_just_fits_is_one_frame_and_one_more_byte_makes_two(
    handle: int, delivery_id: int, tag: bytes, max_frame_size: int
) -> None:
    overhead = len(transfer_frames(5, handle, delivery_id, tag, True, b"", max_frame_size)[0])
    for size, count in ((max_frame_size - overhead, 1), (max_frame_size - overhead + 1, 2)):
        parts = transfer_frames(5, handle, delivery_id, tag, True, b"x" * size, max_frame_size)
        assert len(parts) == count
        assert reassembled(parts, max_frame_size)[1] == b"x" * size


def test_frame_size_below_the_minimum_is_refused() -> None:
    for size in (0, 8, 20, 511):
        with pytest.raises(EncodeError, match=f"at least 512, got {size}"):
            transfer_frames(0, 0, 0, b"tag", False, b"x" * 600, size)


def test_a_delivery_tag_of_more_than_32_bytes_is_refused() -> None:
    with pytest.raises(EncodeError, match="at most 32 bytes, got 33"):
        transfer_frames(0, 0, 0, b"t" * 33, False, b"", 512)


OUTCOMES = st.sampled_from(["Received", "Accepted", "Rejected", "Released", "Modified"]).flatmap(
    lambda name: performatives_of(BY_NAME[name])
)


@given(st.booleans(), UINTS, UINTS, st.none() | OUTCOMES)
def test_a_disposition_is_read_back(role: bool, first: int, last: int, state: Any) -> None:
    raw = disposition_frame(5, role, first, last, state)
    [(frame_type, channel, body)] = split_frames(bytearray(raw), 65536)
    expected = amqp.Disposition(role, first, last, True, state if state is not None else amqp.Accepted())
    assert (frame_type, channel) == (TYPE_AMQP, 5)
    assert decode_performative(body, 0) == (expected, len(body))
    code, fields = decode_frame(memoryview(body))
    assert (code, fields[:4]) == (0x15, [role, first, last, True])
    assert len(fields) == 6  # older versions of the SDK need all of them
    assert list(fields[4]) == [type(expected.state).__name__.lower()]


def test_a_disposition_may_have_a_state_of_any_length() -> None:
    forms = set()
    for length in range(200, 300):
        state = amqp.Rejected(amqp.Error("condition", "x" * length, {"key": "value"}))
        body = disposition_frame(0, True, 1, 2, state)[8:]
        forms.add(body[3])
        assert decode_performative(body, 0) == (amqp.Disposition(True, 1, 2, True, state), len(body))
    assert forms == {0xC0, 0xD0}


def _uint(draw: st.DrawFn, values: st.SearchStrategy[int] = UINTS) -> bytes:
    """A uint, mostly in its shortest form."""
    value = draw(values)
    return draw(st.sampled_from([uint(value)] * 4 + [b"\x70" + struct.pack(">I", value)]))


def _mostly(draw: st.DrawFn, usual: bytes) -> bytes:
    """A field, or sometimes null."""
    return draw(st.sampled_from([usual] * 6 + [b"\x40"]))


FLAGS = st.sampled_from([b"\x40", b"\x41", b"\x42", b"\x56\x00", b"\x56\x01"])


@st.composite
def _lists(draw: st.DrawFn, code: int, fields: list[bytes]) -> bytes:
    """A performative of raw fields, sometimes with a wrong count or size."""
    body = b"".join(fields)
    count = draw(st.sampled_from([len(fields)] * 6 + [len(fields) - 1, len(fields) + 1]))
    size = draw(st.sampled_from([len(body) + 1] * 6 + [len(body), len(body) + 2]))
    return bytes((0, 0x53, code, 0xC0, size, count)) + body


@st.composite
def transfers(draw: st.DrawFn) -> bytes:
    fields = [
        _uint(draw, st.integers(0, 300)),
        _mostly(draw, _uint(draw)),
        _mostly(draw, encode(draw(st.binary(max_size=32)))),
        _mostly(draw, _uint(draw, st.sampled_from([0, 0x80013700, 5]))),
        draw(FLAGS),
        draw(FLAGS),
        *draw(st.lists(st.sampled_from([b"\x40"] * 6 + [b"\x41", b"\x50\x01"]), max_size=5)),
    ]
    return draw(_lists(0x14, fields)) + draw(st.binary(max_size=20))


@st.composite
def dispositions(draw: st.DrawFn) -> bytes:
    fields = [
        draw(st.sampled_from([b"\x41", b"\x56\x01", b"\x42"])),
        _uint(draw),
        draw(st.sampled_from([b"\x40", _uint(draw)])),
        draw(FLAGS),
        draw(st.sampled_from([b"\x00\x53\x24\x45"] * 4 + [b"\x00\x53\x24\xc0\x01\x00", b"\x00\x53\x26\x45", b"\x40"])),
        *draw(st.lists(FLAGS, max_size=2)),
    ]
    return draw(_lists(0x15, fields)) + draw(st.binary(max_size=3))


def read_frequent(body: bytes) -> tuple[Any, int] | None:
    read = FREQUENT.get(body[:4])
    return read(body) if read else None


@given(transfers() | dispositions() | st.binary(max_size=40), st.integers(0, 40))
@example(frame(0, amqp.Transfer(0, 1, b"tag", 0, False, False))[8:], 0)
@example(b"\x00\x53\x14\xc0\xff\x06\x43\x52\x01\xa0\x00\x43\x42\x42", 0)  # its size is larger than the data
@example(frame(0, amqp.Disposition(True, 7, None, False, amqp.Accepted()))[8:], 0)
def test_fast_frame_reader_equals_the_general_decoder(body: bytes, cut: int) -> None:
    body = body[: len(body) - cut] if cut < 5 else body
    short = read_frequent(body)
    if short is not None:
        long = decode_performative(body, 0)
        assert (type(short[0]), short) == (type(long[0]), long)


def test_fast_reader_covers_the_sdks_frequent_frames() -> None:
    assert read_frequent(frame(0, amqp.Transfer(0, 700, b"tag", 0, False, False), b"payload")[8:]) is not None
    # A settlement as the SDK writes it: booleans of two bytes, an empty list for the outcome, null for batchable.
    assert read_frequent(b"\x00S\x15\xc0\x10\x06V\x01p\x00\x00\x02\xbc@V\x00\x00S$E@") is not None
    assert read_frequent(frame(0, amqp.Disposition(True, 7, 9, True, amqp.Released()))[8:]) is None
