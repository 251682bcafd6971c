"""Each client gets a bounded share of memory, and other clients are served meanwhile."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from typing import Any

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusSender
from tests.emulator.faults.bench import until
from tests.emulator.frame_peer import Peer, receiver_attach, sender_attach, transfer
from tests.emulator.hostile.conftest import QUEUE
from tests.emulator.raw_client import encoded_message

from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec import sections
from twinbus.amqp.codec.encoding import encode
from twinbus.amqp.codec.frames import frame
from twinbus.amqp.codec.types import Described, Symbol, ULong
from twinbus.emulator import Namespace, QueueDescription
from twinbus.emulator.protocol import connection as connection_module
from twinbus.emulator.protocol import links
from twinbus.emulator.protocol.attaching import SESSION_FILTER
from twinbus.emulator.protocol.connection import WRITE_HIGH_WATER, Connection
from twinbus.emulator.protocol.links import MAX_RESERVED

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("serving")]

FLOW = amqp.Flow(1, 0x7FFFFFFF, 0, 0x7FFFFFFF)
KILOBYTES = bytes(10_000)
STORED = 1000  # messages of 10 KB


@pytest_asyncio.fixture(loop_scope="module")
async def full_queue(namespace: Namespace, request: pytest.FixtureRequest) -> str:
    """A queue with far more messages than a connection may hold."""
    path = f"full-{abs(hash(request.node.name))}"
    await namespace.create(QueueDescription(path))
    async with Peer(namespace) as peer:
        await peer.open()
        await peer.begin()
        await peer.attach_sender(path)
        message = encoded_message("m", KILOBYTES)
        peer.write(*(transfer(number, payload=message) for number in range(STORED)))
        accepted = 0
        while accepted < STORED:
            disposition = await peer.expect(amqp.Disposition)
            accepted += (disposition.last or disposition.first) - disposition.first + 1
    return path


async def connection_of(namespace: Namespace, peer: Peer) -> Connection:
    """The server's end of a peer's connection."""
    (match,) = [connection for connection in namespace.connections if connection.container == peer.name]
    return match


def shrink_send_buffer(connection: Connection) -> None:
    """Shrink the socket's send buffer, so that the namespace soon notices a client that does not read."""
    assert connection._transport is not None
    connection._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)


def unsent(connection: Connection) -> int:
    assert connection._transport is not None
    return connection._transport.get_write_buffer_size() + connection._outgoing_size


async def test_session_beyond_channel_max_closes_the_connection(namespace: Namespace) -> None:
    async with Peer(namespace) as peer:
        opened = await peer.open()
        assert opened.channel_max is not None
        highest = opened.channel_max
        peer.write(*(frame(number, amqp.Begin(None, 0, 1, 1)) for number in range(highest + 1)))
        for _ in range(highest + 1):
            await peer.expect(amqp.Begin)
        peer.send(amqp.Begin(None, 0, 1, 1), channel=highest + 1)
        assert await peer.close_error() == "amqp:not-allowed"


async def test_link_beyond_the_limit_is_refused(namespace: Namespace) -> None:
    async with Peer(namespace) as peer:
        await peer.open()
        for channel in (0, 1):
            await peer.begin(channel)
        half = 2500
        for channel in (0, 1):
            peer.write(*(frame(channel, sender_attach(QUEUE, handle)) for handle in range(half)))
            for _ in range(half):
                assert (await peer.expect(amqp.Attach)).target is not None
        peer.send(sender_attach(QUEUE, half))
        assert (await peer.expect(amqp.Detach)).error.condition == "amqp:resource-limit-exceeded"


async def test_a_delivery_larger_than_the_limit_is_rejected_and_not_kept(namespace: Namespace) -> None:
    async with Peer(namespace) as peer:
        await peer.open()
        await peer.begin()
        await peer.attach_sender(QUEUE)
        for number in range(400):
            peer.write(transfer(0, more=True, payload=KILOBYTES))
            if number % 50 == 0:
                await peer.drain()
        connection = await connection_of(namespace, peer)
        assert connection.budget.used < 2 << 20
        peer.write(transfer(0, payload=KILOBYTES), transfer(1))
        rejected = await peer.expect(amqp.Disposition)
        assert isinstance(rejected.state, amqp.Rejected)
        assert rejected.state.error.condition == "amqp:link:message-size-exceeded"
        assert isinstance((await peer.expect(amqp.Disposition)).state, amqp.Accepted)
        assert connection.budget.used == 0


async def test_unfinished_deliveries_of_a_connection_are_bounded_together(namespace: Namespace) -> None:
    async with Peer(namespace) as peer:
        await peer.open()
        await peer.begin()
        for handle in range(40):
            await peer.attach_sender(QUEUE, handle)
        for handle in range(40):
            for _ in range(16):
                peer.write(transfer(0, handle, more=True, payload=bytes(60_000)))
            await asyncio.sleep(0)
        assert await peer.close_error() == "amqp:resource-limit-exceeded"


async def test_a_delivery_of_endless_empty_frames_is_bounded(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "MAX_UNFINISHED", 1 << 20)
    monkeypatch.setattr(links.IncomingLink, "BATCH_BYTES", 1 << 18)
    async with Peer(namespace) as peer:
        await peer.open()
        await peer.begin()
        await peer.attach_sender(QUEUE)
        empty = frame(0, amqp.Transfer(0, 0, b"0", 0, False, True))
        peer.write(empty * 40_000)
        assert await peer.close_error() == "amqp:resource-limit-exceeded"


async def test_detached_link_frees_its_incomplete_delivery(namespace: Namespace) -> None:
    async with Peer(namespace) as peer:
        await peer.open()
        await peer.begin()
        for _ in range(3):
            await peer.attach_sender(QUEUE)
            peer.write(transfer(0, more=True, payload=KILOBYTES))
            peer.send(amqp.Detach(0, closed=True))
            await peer.expect(amqp.Detach)
        connection = await connection_of(namespace, peer)
        assert connection.budget.used == 0


async def test_closing_connection_grants_no_session_after_its_close_frame(
    namespace: Namespace,
) -> None:
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
    await namespace.create(QueueDescription("closing-sessions", requires_session=True))
    session_properties = sections.list_section(sections.PROPERTIES, [*[encode(None)] * 10, encode("s")])
    next_session = amqp.Source("closing-sessions", filter={Symbol(SESSION_FILTER): None})
    async with Peer(namespace) as peer:
        await peer.open()
        await peer.begin()
        await peer.attach_sender("closing-sessions", 0)
        peer.write(transfer(0, payload=session_properties + b"\x00\x53\x75\xa0\x01x"))
        await peer.expect(amqp.Disposition)
        for handle in (1, 2):  # the second waits for the session of the first
            peer.send(receiver_attach("closing-sessions", handle)._replace(source=next_session))
        granted = await peer.expect(amqp.Attach)
        assert granted.handle == 1
        peer.write(b"\x00\x00\x00\x01\x02\x00\x00\x00")  # a frame shorter than its header
        assert await peer.close_error() == "amqp:connection:framing-error"
    asyncio.get_running_loop().set_exception_handler(None)
    assert failures == []


async def take_three(peer: Peer, queue: str) -> None:
    """Receive and lock three messages of a queue."""
    await peer.open()
    await peer.begin()
    await peer.attach_receiver(queue)
    peer.send(FLOW._replace(handle=0, delivery_count=0, link_credit=3))
    for _ in range(3):
        await peer.expect(amqp.Transfer)


async def test_disposition_over_a_huge_range_is_fast(namespace: Namespace, full_queue: str) -> None:
    async with Peer(namespace) as peer:
        await take_three(peer, full_queue)
        for first, last in ((0, 0xFFFFFFFF), (5, 1), (0xFFFFFFFF, 0), (0xFFFFFFF0, 0xFFFFFFFF)):
            peer.send(amqp.Disposition(amqp.ROLE_RECEIVER, first, last, False, amqp.Released()))
        answer = await peer.expect(amqp.Disposition)
        assert isinstance(answer.state, amqp.Released)
        peer.send(FLOW._replace(handle=0, delivery_count=3, link_credit=0, echo=True))
        await peer.expect(amqp.Flow)


@pytest.mark.parametrize("address", [QUEUE, "$cbs"])
async def test_delivery_count_wraps_to_zero(namespace: Namespace, address: str) -> None:
    async with Peer(namespace) as peer:
        await peer.open()
        await peer.begin()
        await peer.attach_receiver(address)
        counted, credit = 0, 0x7FFFFFFF
        for _ in range(3):
            peer.send(FLOW._replace(handle=0, delivery_count=counted, link_credit=credit, drain=True))
            counted = (counted + credit) & 0xFFFFFFFF
            assert (await peer.expect(amqp.Flow)).delivery_count == counted


@pytest.mark.parametrize(
    "flow",
    [
        FLOW._replace(next_incoming_id=0xFFFFFFFF, incoming_window=0),
        FLOW._replace(next_incoming_id=0x80000000, incoming_window=0xFFFFFFFF),
        FLOW._replace(handle=0, delivery_count=0xFFFFFFFF, link_credit=0xFFFFFFFF),
        FLOW._replace(handle=0, delivery_count=0x80000000, link_credit=0xFFFFFFFF, drain=True),
        FLOW._replace(handle=0, link_credit=0xFFFFFFFF, available=0xFFFFFFFF, drain=True, echo=True),
    ],
)
async def test_flow_with_extreme_numbers_is_handled(namespace: Namespace, flow: amqp.Flow) -> None:
    async with Peer(namespace) as peer:
        await peer.open()
        await peer.begin()
        await peer.attach_receiver(QUEUE)
        peer.send(flow, flow, FLOW._replace(echo=True))
        await peer.expect(amqp.Flow)


@pytest.mark.parametrize(
    "source",
    [
        {"source": amqp.Source("x", filter={"grüße": "x", 7: "y", "com.microsoft:session-filter": ULong(1 << 63)})},
        {"source": amqp.Source(ULong((1 << 64) - 1))},
        {"source": Described(ULong(0x77), ULong((1 << 64) - 1))},
    ],
    ids=["filters", "address", "kind"],
)
async def test_malformed_sender_source_is_not_echoed(namespace: Namespace, source: dict[str, Any]) -> None:
    async with Peer(namespace) as peer:
        await peer.open()
        await peer.begin()
        peer.send(sender_attach(QUEUE)._replace(**source))
        answer = await peer.expect(amqp.Attach)
        assert answer.target == amqp.Target(QUEUE)
        assert answer.source in (None, amqp.Source("x"), amqp.Source(None))


@pytest.mark.parametrize("deletes", [False, True], ids=["peek-lock", "receive-and-delete"])
async def test_receiver_that_reads_nothing_gets_a_bounded_number_of_deliveries(
    namespace: Namespace, full_queue: str, deletes: bool
) -> None:
    entity = namespace.find(full_queue)
    assert entity is not None
    before = entity.queue.activity.delivered
    async with Peer(namespace) as peer:
        await peer.open()
        await peer.begin()
        attach = receiver_attach(full_queue)
        peer.send(attach._replace(snd_settle_mode=1 if deletes else 0))
        await peer.expect(amqp.Attach)
        connection = await connection_of(namespace, peer)
        shrink_send_buffer(connection)
        peer.stop_reading()
        peer.send(FLOW._replace(handle=0, delivery_count=0, link_credit=0x7FFFFFFF))
        await until(lambda: connection.blocked)
        await asyncio.sleep(0.2)
        assert unsent(connection) < WRITE_HIGH_WATER + MAX_RESERVED * 10_500
        assert entity.queue.activity.delivered - before < STORED


async def test_client_that_does_not_read_answers_is_not_read(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "WRITE_HIGH_WATER", 1 << 16)
    monkeypatch.setattr(connection_module, "MAX_UNREAD", 1 << 18)
    async with Peer(namespace) as peer:
        await peer.open()
        await peer.begin()
        connection = await connection_of(namespace, peer)
        shrink_send_buffer(connection)
        peer.stop_reading()
        requests = frame(0, FLOW._replace(echo=True)) * 1000

        async def ask() -> None:
            while True:
                peer.write(requests)
                await peer.drain()

        asking = asyncio.create_task(ask())
        await until(lambda: bool(connection._read_holds))
        await asyncio.sleep(1.0)  # input that was read before is still answered
        written = unsent(connection)
        await asyncio.sleep(0.2)
        assert unsent(connection) == written < 1 << 20
        asking.cancel()


async def test_responses_without_credit_are_bounded(namespace: Namespace) -> None:
    async with Peer(namespace) as peer:
        await peer.open()
        await peer.begin()
        await peer.attach_sender("$cbs", 0)
        await peer.attach_receiver("$cbs", 1)
        for _ in range(150):
            peer.write(frame(0, amqp.Transfer(0, 0, b"0", 0, True, False), b"\x00\x53\x77\x40"))
            await asyncio.sleep(0)
        assert await peer.close_error() in ("amqp:resource-limit-exceeded", "amqp:not-allowed")


async def test_lock_outlives_its_connection_without_keeping_it_in_memory(namespace: Namespace, full_queue: str) -> None:
    async with Peer(namespace) as peer:
        await take_three(peer, full_queue)
        reference = weakref.ref(await connection_of(namespace, peer))
    await until(lambda: gc.collect() >= 0 and reference() is None)
    entity = namespace.find(full_queue)
    assert entity is not None
    assert len(entity.queue._locks) == 3


async def test_broken_connections_leave_nothing_in_memory(namespace: Namespace, well_behaved: ServiceBusSender) -> None:
    left = []
    for _ in range(50):
        async with Peer(namespace) as peer:
            await peer.open()
            await peer.begin()
            await peer.attach_sender(QUEUE)
            left.append(weakref.ref(await connection_of(namespace, peer)))
            peer.write(transfer(0, more=True, payload=KILOBYTES), b"\x00" * 8)
    await well_behaved.send_messages(ServiceBusMessage("x"))
    await until(lambda: len(namespace.connections) == 1)
    # The event loop still references the last ones for a turn.
    await until(lambda: gc.collect() >= 0 and not any(reference() for reference in left))
