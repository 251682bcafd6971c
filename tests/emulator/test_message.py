"""Decoding and encoding of messages: the fast path gives the same result as the general one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.amqp.codec import sections
from twinbus.amqp.codec.encoding import encode
from twinbus.amqp.codec.frames import transfer_frames
from twinbus.amqp.codec.performatives import decode_performative
from twinbus.amqp.codec.types import Described, Symbol, ULong
from twinbus.emulator.entities.locks import TokenSource, tag_of
from twinbus.emulator.entities.message import Arrival, Message
from twinbus.emulator.protocol.error_conditions import BrokerError
from twinbus.emulator.storage.schema import INSERT, INSERT_PLAIN, State, message_key

BARE = b"\x00\x53\x73\xc0\x05\x01\xa1\x02id\x00\x53\x75\xa0\x01x"
TIMES = st.integers(0, 1 << 45)
SEQUENCES = st.integers(1, (1 << 40) - 1)


def _message(sequence: int, enqueued: int, delivered: int, annotations: bytes | None = None) -> Message:
    parts = (None, None, annotations, BARE)
    return Message(sequence, State.ACTIVE, None, enqueued, None, None, delivered, len(BARE), *parts)


@given(SEQUENCES, TIMES, st.integers(0, 1000), st.binary(min_size=16, max_size=16), TIMES)
def test_plain_message_is_encoded_like_any_other(
    sequence: int, enqueued: int, delivered: int, token: bytes, until: int
) -> None:
    fast, general = (
        sections.split_sections(_message(sequence, enqueued, delivered, kept).encoded(token, until))
        for kept in (None, b"\x00")  # without annotations, and with an empty section
    )
    assert fast.properties + fast.body == general.properties + general.body == BARE
    assert sections.list_fields(fast.header, 5) == sections.list_fields(general.header, 5) == [None] * 4 + [delivered]
    for name in ("delivery_annotations", "message_annotations"):
        actual, expected = (sections.section_value(getattr(parts, name)) for parts in (fast, general))
        assert actual == expected
        assert [type(value) for value in actual.values()] == [type(value) for value in expected.values()]


def test_only_plain_messages_take_the_fast_path() -> None:
    plain = _message(7, 5, 0)
    assert plain.insertion(3) == (INSERT_PLAIN, (message_key(3, 7), 5, len(BARE), BARE))
    for name, value in (
        ("header", b"\x40\x40\x40"),
        ("delivery_annotations", b"\x00"),
        ("annotations", b"\x00"),
        ("session", ""),
        ("due_at", 0),
        ("expires_at", 0),
        ("delivery_count", 1),
        ("state", State.DEFERRED),
    ):
        changed = plain.copy()
        setattr(changed, name, value)
        sql, row = changed.insertion(3)
        assert sql == INSERT, name
        assert row[0] == message_key(3, 7)


def test_fast_path_reads_the_same_as_the_general_path() -> None:
    fast = Arrival(BARE)
    general = Arrival(b"\x00\x53\x70\x45" + BARE)  # an explicit empty header
    for name in ("message_id", "bare", "session", "is_ping", "ttl", "due_at", "annotations", "delivery_annotations"):
        assert getattr(fast, name) == getattr(general, name), name
    assert (fast.size, general.size, fast.message_id, fast.header) == (len(BARE), len(BARE) + 4, "id", None)


@given(st.binary(min_size=16, max_size=16))
def test_delivery_tag_is_the_lock_token_in_little_endian_guid_order(token: bytes) -> None:
    assert tag_of(token) == token[3::-1] + token[5:3:-1] + token[7:5:-1] + token[8:]
    assert tag_of(tag_of(token)) == token


def test_lock_tokens_are_unique() -> None:
    source = TokenSource()
    tokens = [source.take() for _ in range(2000)]
    assert len(set(tokens)) == 2000
    assert {len(token) for token in tokens} == {16}


@given(st.integers(0, 255), st.integers(0, 2**32 - 1), st.binary(min_size=16, max_size=16), st.booleans())
def test_transfer_with_a_lock_token_tag_fills_a_frame_exactly(
    handle: int, delivery_id: int, tag: bytes, settled: bool
) -> None:
    [whole] = transfer_frames(5, handle, delivery_id, tag, settled, b"payload", 512)
    performative, pos = decode_performative(whole[8:], 0)
    assert performative[:6] == (handle, delivery_id, tag, 0, settled, False)
    assert whole[8 + pos :] == b"payload"
    assert int.from_bytes(whole[:4], "big") == len(whole)
    room = 512 - (len(whole) - len(b"payload"))
    assert len(transfer_frames(5, handle, delivery_id, tag, settled, b"x" * room, 512)[0]) == 512
    assert len(transfer_frames(5, handle, delivery_id, tag, settled, b"x" * (room + 1), 512)) == 2


@pytest.mark.parametrize("at", [ULong(1 << 63), ULong((1 << 64) - 1)])
def test_out_of_range_time_is_refused(at: ULong) -> None:
    annotations = encode(Described(ULong(0x72), {Symbol("x-opt-scheduled-enqueue-time"): at}))
    with pytest.raises(BrokerError, match="x-opt-scheduled-enqueue-time must be at most 9223372036854775807"):
        Arrival(annotations + BARE)
