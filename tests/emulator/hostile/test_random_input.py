"""Random input at every stage of a connection is answered, refused or ignored."""

from __future__ import annotations

from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusSender
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.amqp.amqp_values import SYMBOLS, VALUES
from tests.emulator.faults.bench import until
from tests.emulator.frame_peer import ConnectionEndedError, Peer, sender_attach
from tests.emulator.hostile.conftest import QUEUE

from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec import sections
from twinbus.amqp.codec.encoding import encode
from twinbus.amqp.codec.frames import AMQP_HEADER, SASL_HEADER, frame
from twinbus.amqp.codec.types import Symbol
from twinbus.emulator import Namespace

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
bounded = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])

INTERNAL_ERROR = "amqp:internal-error"


def build(kind: Any, *fields: Any, **named: Any) -> Any:
    """A strategy for performatives with these fields; the others are omitted."""
    return st.builds(lambda args, kwargs: kind(*args, **kwargs), st.tuples(*fields), st.fixed_dictionaries(named))


U32 = st.sampled_from([0, 1, 2, 5, 255, 256, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]) | st.integers(0, 0xFFFFFFFF)
HANDLES = st.integers(0, 6) | U32
MAYBE_U32 = st.none() | U32
MAYBE_BOOL = st.none() | st.booleans()
ADDRESSES = st.sampled_from(
    [
        QUEUE,
        QUEUE.upper(),
        f"{QUEUE}/$management",
        f"{QUEUE}/$DeadLetterQueue",
        "$cbs",
        "$management",
        "nowhere",
        "/",
        "",
    ]
) | st.text(max_size=20)
ERRORS = st.none() | build(amqp.Error, SYMBOLS, st.none() | st.text(max_size=10))
OUTCOMES = st.one_of(
    st.none(),
    st.just(amqp.Accepted()),
    st.just(amqp.Released()),
    build(amqp.Rejected, ERRORS),
    build(amqp.Modified, MAYBE_BOOL, MAYBE_BOOL, st.none() | st.dictionaries(SYMBOLS, VALUES)),
    build(amqp.Received, U32, st.integers(0, 2**64 - 1)),
)
SOURCES = build(
    amqp.Source,
    ADDRESSES,
    filter=st.none()
    | st.dictionaries(st.sampled_from(["com.microsoft:session-filter", "x"]).map(Symbol), VALUES, max_size=2),
)
TARGETS = build(amqp.Target, ADDRESSES)
PERFORMATIVES = st.one_of(
    build(amqp.Open, st.text(max_size=10), max_frame_size=st.none() | st.integers(0, 0xFFFFFFFF)),
    build(amqp.Begin, st.none() | st.integers(0, 65535), U32, U32, U32, MAYBE_U32),
    build(
        amqp.Attach, st.text(max_size=10), HANDLES, st.booleans(), st.none() | st.integers(0, 2),
        st.none() | st.integers(0, 1), st.none() | SOURCES, st.none() | TARGETS | st.just(amqp.Coordinator()),
        initial_delivery_count=MAYBE_U32, max_message_size=st.none() | st.integers(0, 2**64 - 1),
        properties=st.none() | st.dictionaries(st.just(Symbol("com.microsoft:timeout")), VALUES),
    ),
    build(
        amqp.Flow, MAYBE_U32, U32, U32, U32, st.none() | HANDLES, MAYBE_U32, MAYBE_U32, MAYBE_U32, MAYBE_BOOL,
        MAYBE_BOOL,
    ),
    build(
        amqp.Transfer, HANDLES, MAYBE_U32, st.none() | st.binary(max_size=32), MAYBE_U32, MAYBE_BOOL, MAYBE_BOOL,
        st.none() | st.integers(0, 1), OUTCOMES, MAYBE_BOOL, MAYBE_BOOL, MAYBE_BOOL,
    ),
    build(amqp.Disposition, st.booleans(), U32, MAYBE_U32, MAYBE_BOOL, OUTCOMES, MAYBE_BOOL),
    build(amqp.Detach, HANDLES, MAYBE_BOOL, ERRORS),
    build(amqp.End, ERRORS),
)  # fmt: skip
MESSAGES = st.builds(lambda value: b"\x00\x53\x77" + encode(value), VALUES) | st.binary(max_size=60)
FRAMES = st.builds(
    lambda channel, performative, payload: frame(
        channel, performative, payload if isinstance(performative, amqp.Transfer) else b""
    ),
    st.integers(0, 2),
    PERFORMATIVES,
    MESSAGES,
)


async def reach(peer: Peer, stage: str) -> None:
    """Bring a connection to a stage with valid input."""
    if stage == "sasl":
        peer.write(SASL_HEADER)
        await peer.header()
    elif stage == "header":
        await peer.authenticate()
    elif stage == "frames":
        await peer.authenticate()
        peer.write(AMQP_HEADER)
        await peer.header()
    elif stage in ("open", "links"):
        await peer.open()
        await peer.begin()
        if stage == "links":
            await peer.attach_sender(QUEUE, 0)
            await peer.attach_receiver(QUEUE, 1)
            await peer.attach_sender(f"{QUEUE}/$management", 2)
            await peer.attach_receiver(f"{QUEUE}/$management", 3)


async def endure(namespace: Namespace, stage: str, data: bytes) -> None:
    """Send bytes and end; the connection must end without an internal error."""
    async with Peer(namespace) as peer:
        await reach(peer, stage)
        peer.write(data)
        peer.end()
        try:
            while True:
                answer = await peer.next()
                if isinstance(answer, (amqp.Close, amqp.End, amqp.Detach)) and answer.error is not None:
                    assert answer.error.condition != INTERNAL_ERROR
        except ConnectionEndedError:
            pass


@pytest.mark.parametrize("stage", ["nothing", "sasl", "header", "frames", "open", "links"])
@bounded
@given(data=st.binary(max_size=600))
@example(data=b"")
@example(data=b"AMQP")
@example(data=b"AMQP\x00\x01\x00\x00")
@example(data=b"\x16\x03\x01")
@example(data=b"GET / HTTP/1.1\r\n\r\n")
async def test_random_bytes(namespace: Namespace, stage: str, data: bytes) -> None:
    if stage not in ("nothing", "header"):
        await endure(namespace, stage, data)
        return
    async with Peer(namespace) as peer:  # the answer is a protocol header, or HTTP
        await reach(peer, stage)
        peer.write(data)
        peer.end()
        assert len(await peer.rest()) < 1000


@bounded
@given(bodies=st.lists(st.binary(max_size=200), max_size=4), channel=st.integers(0, 3))
async def test_frames_with_random_bodies(namespace: Namespace, bodies: list[bytes], channel: int) -> None:
    data = b"".join(
        (8 + len(body)).to_bytes(4, "big") + b"\x02\x00" + channel.to_bytes(2, "big") + body for body in bodies
    )
    await endure(namespace, "links", data)


@bounded
@given(value=VALUES, code=st.sampled_from([*range(0x10, 0x19), *range(0x40, 0x45)]))
async def test_performatives_with_random_fields(namespace: Namespace, value: Any, code: int) -> None:
    body = b"\x00\x53" + bytes((code,)) + encode(value if isinstance(value, list) else [value])
    await endure(namespace, "links", (8 + len(body)).to_bytes(4, "big") + b"\x02\x00\x00\x00" + body)


@settings(max_examples=250, suppress_health_check=[HealthCheck.too_slow])
@given(frames=st.lists(FRAMES, min_size=1, max_size=12))
async def test_performatives_of_the_right_types_with_random_values(namespace: Namespace, frames: list[bytes]) -> None:
    await endure(namespace, "links", b"".join(frames))


OPERATIONS = [
    "peek-message", "renew-lock", "update-disposition", "schedule-message", "cancel-scheduled-message",
    "receive-by-sequence-number", "get-session-state", "set-session-state", "renew-session-lock",
    "get-message-sessions", "add-rule", "remove-rule", "enumerate-rules", "",
]  # fmt: skip
FIELDS = [
    "from-sequence-number", "message-count", "lock-tokens", "disposition-status", "messages", "sequence-numbers",
    "receiver-settle-mode", "session-id", "session-state", "last-updated-time", "skip", "top", "properties-to-modify",
    "rule-name", "rule-description", "deadletter-reason",
]  # fmt: skip
BODIES = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=8) | VALUES


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(operation=st.sampled_from(OPERATIONS), body=BODIES, extra=VALUES)
async def test_requests_with_random_bodies(namespace: Namespace, operation: str, body: Any, extra: Any) -> None:
    """Every request is answered, never with an internal error."""
    entries = [
        sections.entry("operation", f"com.microsoft:{operation}"),
        sections.entry("associated-link-name", extra),
    ]
    null = encode(None)
    fields = [encode(extra), null, null, null, null]
    message = sections.list_section(sections.PROPERTIES, fields)
    message += sections.map_section(sections.APPLICATION_PROPERTIES, entries) + b"\x00\x53\x77" + encode(body)
    async with Peer(namespace) as peer:
        await reach(peer, "links")
        peer.send(amqp.Flow(1, 1000, 0, 1000, 3, 0, 10))
        peer.write(frame(0, amqp.Transfer(2, 0, b"0", 0, True, False), message))
        status, _ = await peer.response()
        assert status in (200, 204, 400, 401, 403, 404, 408, 409, 410, 413, 501), status


async def test_random_input_leaves_nothing_and_clients_are_served(
    namespace: Namespace, well_behaved: ServiceBusSender
) -> None:
    await well_behaved.send_messages(ServiceBusMessage("after random input"))
    await until(lambda: len(namespace.connections) == 1)
    async with Peer(namespace) as peer:
        await peer.open()
        await peer.begin()
        peer.send(sender_attach(QUEUE))
        assert (await peer.expect(amqp.Attach)).target is not None
