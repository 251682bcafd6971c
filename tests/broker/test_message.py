"""How a message is read when it arrives and written when it leaves: the short way is the long one, only faster."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.amqp import sections
from twinbus.amqp.encoding import encode
from twinbus.amqp.frames import transfer_frames
from twinbus.amqp.performatives import decode_performative
from twinbus.amqp.types import Described, Symbol, ULong
from twinbus.broker.errors import BrokerError
from twinbus.broker.locks import TokenSource, tag_of
from twinbus.broker.message import Arrival, Message
from twinbus.broker.schema import INSERT, INSERT_PLAIN, State, message_key

BARE = b"\x00\x53\x73\xc0\x05\x01\xa1\x02id\x00\x53\x75\xa0\x01x"
TIMES = st.integers(0, 1 << 45)
SEQUENCES = st.integers(1, (1 << 40) - 1)


def _message(sequence: int, enqueued: int, delivered: int, annotations: bytes | None = None) -> Message:
    parts = (None, None, annotations, BARE)
    return Message(sequence, State.ACTIVE, None, enqueued, None, None, delivered, len(BARE), *parts)


@given(SEQUENCES, TIMES, st.integers(0, 1000), st.binary(min_size=16, max_size=16), TIMES)
def test_a_message_without_optional_parts_leaves_as_every_other_one(
    sequence: int, enqueued: int, delivered: int, token: bytes, until: int
) -> None:
    short, long = (
        sections.split_sections(_message(sequence, enqueued, delivered, kept).encoded(token, until))
        for kept in (None, b"\x00")  # no annotations of the sender, and none in a list that is kept
    )
    assert short.properties + short.body == long.properties + long.body == BARE
    assert sections.list_fields(short.header, 5) == sections.list_fields(long.header, 5) == [None] * 4 + [delivered]
    for name in ("delivery_annotations", "message_annotations"):
        found, wanted = (sections.section_value(getattr(one, name)) for one in (short, long))
        assert found == wanted
        assert [type(value) for value in found.values()] == [type(value) for value in wanted.values()]


def test_only_a_message_without_optional_parts_is_stored_the_short_way() -> None:
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


def test_what_arrives_the_short_way_is_what_arrives_the_long_way() -> None:
    short = Arrival(BARE)
    long = Arrival(b"\x00\x53\x70\x45" + BARE)  # an empty header: nothing, written out
    for name in ("message_id", "bare", "session", "is_ping", "ttl", "due_at", "annotations", "delivery_annotations"):
        assert getattr(short, name) == getattr(long, name), name
    assert (short.size, long.size, short.message_id, short.header) == (len(BARE), len(BARE) + 4, "id", None)


@given(st.binary(min_size=16, max_size=16))
def test_a_delivery_tag_is_the_token_as_the_other_platform_orders_its_bytes(token: bytes) -> None:
    assert tag_of(token) == token[3::-1] + token[5:3:-1] + token[7:5:-1] + token[8:]
    assert tag_of(tag_of(token)) == token


def test_no_token_is_given_twice() -> None:
    source = TokenSource()
    tokens = [source.take() for _ in range(2000)]
    assert len(set(tokens)) == 2000
    assert {len(one) for one in tokens} == {16}


@given(st.integers(0, 255), st.integers(0, 2**32 - 1), st.binary(min_size=16, max_size=16), st.booleans())
def test_a_transfer_with_a_token_for_its_tag_fills_a_frame_to_its_last_byte(
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
def test_a_time_that_cannot_be_kept_is_refused(at: ULong) -> None:
    annotations = encode(Described(ULong(0x72), {Symbol("x-opt-scheduled-enqueue-time"): at}))
    with pytest.raises(BrokerError, match="x-opt-scheduled-enqueue-time must be at most 9223372036854775807"):
        Arrival(annotations + BARE)
