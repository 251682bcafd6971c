"""Illegal or malformed frames get the matching AMQP error condition."""

from __future__ import annotations

import struct

import pytest
from tests.emulator.frame_peer import ConnectionEndedError, Peer, receiver_attach, sender_attach, transfer
from tests.emulator.hostile.conftest import QUEUE

from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec.frames import AMQP_HEADER, SASL_HEADER, TYPE_SASL, frame
from twinbus.amqp.codec.types import UInt
from twinbus.emulator import Namespace

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("serving")]

BEGIN = amqp.Begin(None, 0, 1000, 1000)
FLOW = amqp.Flow(0, 1000, 0, 1000)
NOT_ALLOWED, DECODE_ERROR = "amqp:not-allowed", "amqp:decode-error"
FRAMING_ERROR, ILLEGAL_STATE = "amqp:connection:framing-error", "amqp:illegal-state"


def raw(body: bytes, *, size: int | None = None, doff: int = 2, kind: int = 0, channel: int = 0) -> bytes:
    """A frame with the given header fields."""
    return struct.pack(">IBBH", 8 + len(body) if size is None else size, doff, kind, channel) + body


def nested(depth: int) -> bytes:
    """Nested lists."""
    value = b"\x45"
    for _ in range(depth):
        value = b"\xd0" + struct.pack(">II", len(value) + 4, 1) + value
    return value


def open_with_list(size: int, count: int, items: bytes = b"") -> bytes:
    """An open whose list claims the given size and count."""
    return raw(b"\x00\x53\x10\xd0" + struct.pack(">II", size, count) + items)


AFTER_OPEN = [
    ("an open twice", frame(0, amqp.Open("again")), NOT_ALLOWED),
    ("a session twice", frame(0, BEGIN) * 2, NOT_ALLOWED),
    ("a channel too high", frame(5000, BEGIN), NOT_ALLOWED),
    ("a handle too high", frame(0, BEGIN) + frame(0, sender_attach(QUEUE, 5000)), NOT_ALLOWED),
    ("a handle twice", frame(0, BEGIN) + frame(0, sender_attach(QUEUE)) * 2, "amqp:session:handle-in-use"),
    ("a SASL frame", raw(b"", kind=TYPE_SASL), FRAMING_ERROR),
    ("a frame of an unknown type", raw(b"\x00\x53\x10\x45", kind=7), FRAMING_ERROR),
    ("a frame smaller than its header", raw(b"", size=7), FRAMING_ERROR),
    ("a frame whose data begins in its header", raw(b"", doff=1), FRAMING_ERROR),
    ("a frame whose data begins after its end", raw(b"", doff=3), FRAMING_ERROR),
    ("a frame larger than agreed", raw(b"", size=65537), FRAMING_ERROR),
    ("a frame of four gigabytes", raw(b"", size=0xFFFFFFFF), FRAMING_ERROR),
    ("an unknown performative", raw(b"\x00\x53\x99\x45"), DECODE_ERROR),
    ("a performative with an unknown name", raw(b"\x00\xa3\x04evil\x45"), DECODE_ERROR),
    ("an outcome as a performative", raw(b"\x00\x53\x24\x45"), DECODE_ERROR),
    ("a string instead of a performative", raw(b"\xa1\x05hello"), DECODE_ERROR),
    ("an open without a container", raw(b"\x00\x53\x10\x45"), DECODE_ERROR),
    ("an attach without a name", raw(b"\x00\x53\x12\xc0\x03\x02\x40\x43"), DECODE_ERROR),
    ("an attach with a number as its name", raw(b"\x00\x53\x12\xc0\x05\x03\x52\x05\x43\x42"), DECODE_ERROR),
    ("a list that says it is longer than the frame", open_with_list(0xFFFFFFFF, 1), DECODE_ERROR),
    ("a list that says it has four billion items", open_with_list(4, 0xFFFFFFFF), DECODE_ERROR),
    ("a list with more fields than the performative", raw(b"\x00\x53\x18\xc0\x0c\x0b" + b"\x40" * 11), DECODE_ERROR),
    ("a frame that ends in the middle of a value", raw(b"\x00\x53\x10\xc0\x20\x01\xa1\xff"), DECODE_ERROR),
    ("nesting too deep", raw(b"\x00\x53\x10" + nested(5000)), DECODE_ERROR),
    ("text that is not UTF-8", raw(b"\x00\x53\x10\xc0\x05\x01\xa1\x02\xff\xfe"), DECODE_ERROR),
    ("a SASL performative", raw(b"\x00\x53\x41\xc0\x04\x01\xa3\x01x"), NOT_ALLOWED),
]  # fmt: skip


@pytest.mark.parametrize(("data", "condition"), [case[1:] for case in AFTER_OPEN], ids=[case[0] for case in AFTER_OPEN])
async def test_an_illegal_frame_closes_the_connection_with_its_condition(
    namespace: Namespace, data: bytes, condition: str
) -> None:
    async with Peer(namespace) as peer:
        await peer.open()
        peer.write(data)
        assert await peer.close_error() == condition


BEFORE_OPEN = [
    ("a session before the open", frame(0, BEGIN), ILLEGAL_STATE),
    ("an attach before the open", frame(0, sender_attach(QUEUE)), ILLEGAL_STATE),
    ("a transfer before the open", transfer(0), ILLEGAL_STATE),
    ("an open on channel 1", frame(1, amqp.Open("x")), NOT_ALLOWED),
    ("a frame size that AMQP does not allow", frame(0, amqp.Open("x", max_frame_size=511)), "amqp:invalid-field"),
    ("a frame larger than agreed", raw(b"", size=1 << 30), FRAMING_ERROR),
]


@pytest.mark.parametrize(
    ("data", "condition"), [case[1:] for case in BEFORE_OPEN], ids=[case[0] for case in BEFORE_OPEN]
)
async def test_error_before_open_is_reported_with_open_and_close(
    namespace: Namespace, data: bytes, condition: str
) -> None:
    async with Peer(namespace) as peer:
        await peer.authenticate()
        peer.write(AMQP_HEADER)
        await peer.header()
        peer.write(data)
        assert await peer.close_error() == condition


@pytest.mark.parametrize(
    "start",
    [b"AMQP\x00\x00\x09\x01", b"AMQP\x01\x01\x00\x00", b"AMQP\x02\x01\x00\x00", b"AMQPxxxx", b"AMQP\x00\x01\x00\x01"],
)
async def test_unsupported_protocol_header_is_answered_with_the_supported_one(
    namespace: Namespace, start: bytes
) -> None:
    async with Peer(namespace) as peer:
        peer.write(start)
        assert await peer.header() == SASL_HEADER
        with pytest.raises(ConnectionEndedError):
            await peer.header()


@pytest.mark.parametrize(
    "data",
    [
        frame(0, amqp.SaslInit("NONSENSE"), frame_type=TYPE_SASL),
        frame(0, amqp.SaslInit("PLAIN"), frame_type=TYPE_SASL),
        frame(0, amqp.SaslInit("PLAIN", b"\0a\0b\0c"), frame_type=TYPE_SASL),
        frame(0, amqp.SaslInit("PLAIN", b"\0\xff\0\xfe"), frame_type=TYPE_SASL),
        frame(0, amqp.SaslInit("PLAIN", b"\0RootManageSharedAccessKey\0wrong"), frame_type=TYPE_SASL),
    ],
)
async def test_unauthenticated_client_cannot_pass_sasl(namespace: Namespace, data: bytes) -> None:
    async with Peer(namespace) as peer:
        peer.write(SASL_HEADER)
        await peer.header()
        peer.write(data)
        assert (await peer.expect(amqp.SaslOutcome)).code == 1
        with pytest.raises(ConnectionEndedError):
            await peer.next()


@pytest.mark.parametrize(
    "data",
    [raw(b"", size=5000, kind=1), raw(b"\x00" * 100, kind=1), frame(0, amqp.Open("x")), raw(b"", size=3, kind=1)],
)
async def test_malformed_sasl_ends_the_connection(namespace: Namespace, data: bytes) -> None:
    async with Peer(namespace) as peer:
        peer.write(SASL_HEADER)
        await peer.header()
        peer.write(data)
        assert await peer.close_error() is None


# ---- sessions and links ----


@pytest.mark.parametrize(
    "data", [transfer(0, handle=9), frame(0, FLOW._replace(handle=9, link_credit=1))], ids=["transfer", "flow"]
)
async def test_a_handle_that_was_never_attached_ends_the_session(namespace: Namespace, data: bytes) -> None:
    async with Peer(namespace) as peer:
        await peer.open()
        await peer.begin()
        peer.write(data)
        ended = await peer.expect(amqp.End)
        assert isinstance(ended.error, amqp.Error)
        assert ended.error.condition == "amqp:session:unattached-handle"
        await peer.begin()  # the connection stays usable


async def test_late_frames_for_an_ended_link_or_session_are_ignored(namespace: Namespace) -> None:
    async with Peer(namespace) as peer:
        await peer.open()
        await peer.begin()
        await peer.attach_sender(QUEUE)
        peer.send(amqp.Detach(0, closed=True))
        peer.write(transfer(0), frame(0, FLOW._replace(handle=0)), frame(0, amqp.Detach(0)))
        peer.send(amqp.End())
        peer.write(transfer(1), frame(0, amqp.Detach(0)), frame(0, amqp.End()))
        await peer.begin()
        peer.send(amqp.Close())
        assert isinstance((await peer.expect(amqp.Close)).error, type(None))


REFUSED = [
    ("no address", amqp.Attach("x", 0, amqp.ROLE_SENDER, target=amqp.Target()), "amqp:invalid-field"),
    ("no target", amqp.Attach("x", 0, amqp.ROLE_SENDER), "amqp:invalid-field"),
    ("a number as address", sender_attach(QUEUE)._replace(target=amqp.Target(UInt(5))), "amqp:invalid-field"),
    ("an overlong address", sender_attach("a/" * 5000), "amqp:invalid-field"),
    ("an overlong name", sender_attach(QUEUE, name="n" * 5000), "amqp:invalid-field"),
    ("receiving from a coordinator", receiver_attach(QUEUE)._replace(source=amqp.Coordinator()), "amqp:invalid-field"),
    ("an unknown entity", sender_attach("nowhere"), "amqp:not-found"),
    ("management without an entity", sender_attach("$management"), "amqp:not-found"),
    ("a path that leads up", sender_attach("../orders"), "amqp:not-found"),
    ("sending to dead letters", sender_attach(f"{QUEUE}/$DeadLetterQueue"), NOT_ALLOWED),
    ("a session filter that is a number", receiver_attach(QUEUE)._replace(
        source=amqp.Source(QUEUE, filter={"com.microsoft:session-filter": UInt(5)})), "amqp:invalid-field"),
]  # fmt: skip


@pytest.mark.parametrize(("attach", "condition"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
async def test_invalid_attach_is_refused_and_the_session_stays_usable(
    namespace: Namespace, attach: amqp.Attach, condition: str
) -> None:
    async with Peer(namespace) as peer:
        await peer.open()
        await peer.begin()
        peer.send(attach)
        answer = await peer.expect(amqp.Attach)
        assert (answer.source, answer.target) == (None, None)
        assert (await peer.expect(amqp.Detach)).error.condition == condition
        await peer.attach_sender(QUEUE, handle=1)


@pytest.mark.parametrize(
    "payload",
    [
        b"\xff",
        b"hello",
        b"\x00",
        b"\x00\x53\x75",
        b"\x00\x53\x75\xb0\xff\xff\xff\xff",
        b"\x00\x53\x99\x40",
        b"\x40" * 50,
    ],
)
async def test_malformed_message_is_rejected_and_the_link_stays_usable(namespace: Namespace, payload: bytes) -> None:
    async with Peer(namespace) as peer:
        await peer.open()
        await peer.begin()
        await peer.attach_sender(QUEUE)
        peer.write(transfer(0, payload=payload), transfer(1))
        first, second = await peer.expect(amqp.Disposition), await peer.expect(amqp.Disposition)
        assert isinstance(first.state, amqp.Rejected)
        assert first.state.error.condition == DECODE_ERROR
        assert isinstance(second.state, amqp.Accepted)


@pytest.mark.parametrize("payload", [b"\xff", b"", b"\x00\x53\x77\x40", b"\x00\x53\x74\xc1\x01\x00\x00\x53\x77\x40"])
async def test_a_malformed_request_closes_the_connection_or_is_answered(namespace: Namespace, payload: bytes) -> None:
    async with Peer(namespace) as peer:
        await peer.open()
        await peer.begin()
        await peer.attach_sender("$cbs", handle=0)
        await peer.attach_receiver("$cbs", handle=1)
        peer.send(FLOW._replace(handle=1, delivery_count=0, link_credit=10))
        peer.write(frame(0, amqp.Transfer(0, 0, b"0", 0, True, False), payload))
        answer = await peer.expect((amqp.Close, amqp.Transfer))  # type: ignore[arg-type]
        if isinstance(answer, amqp.Close):
            assert answer.error.condition == DECODE_ERROR
