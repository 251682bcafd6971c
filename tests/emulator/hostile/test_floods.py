"""Floods of idle connections are bounded, and other clients are served meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from tests.emulator.faults.bench import until
from tests.emulator.frame_peer import Peer
from tests.emulator.hostile.conftest import HEALTH, QUEUE, UPGRADE

from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec.frames import AMQP_HEADER, SASL_HEADER, TYPE_SASL, frame
from twinbus.emulator import Namespace, QueueDescription
from twinbus.emulator.server import unauthenticated

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMIT = 100
FLOOD = 150
PAUSE = 1.0  # seconds until a closed connection is opened again
#: The bytes that each kind of half-open connection sends.
HALF_OPEN = {
    "silent": b"",
    "part of a protocol header": b"AMQ",
    "part of a TLS handshake": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "part of an HTTP request": b"GET / HTTP/1.1\r\nHost: x\r\nX: ",
    "a request that needs no token": HEALTH,
    "a request that needs no token, with a bad one": HEALTH[:-2] + b"Authorization: SharedAccessSignature x\r\n\r\n",
    "a request without its token": b"GET /orders HTTP/1.1\r\nHost: x\r\n\r\n",
    "a request and part of another": HEALTH + b"GET /healthz HTTP/1.1\r\nX: ",
    "a WebSocket": UPGRADE,
    "part of a WebSocket's message": UPGRADE + b"\x82\xfe\x40",
    "a WebSocket with an invalid message": UPGRADE + b"\x81\x80mask",
    "before SASL": SASL_HEADER,
    "open without a token": SASL_HEADER
    + frame(0, amqp.SaslInit("ANONYMOUS"), frame_type=TYPE_SASL)
    + AMQP_HEADER
    + frame(0, amqp.Open("flood", "127.0.0.1"))
    + frame(0, amqp.Begin(None, 0, 1, 1)),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def small(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Namespace]:
    """A namespace with a low limit of unauthenticated connections."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unauthenticated, "MAX_CONNECTIONS", LIMIT)
        folder: Path = tmp_path_factory.mktemp("tls")
        async with Namespace("contoso", certificate_folder=folder) as running:
            await running.create(QueueDescription(QUEUE))
            yield running


@contextlib.asynccontextmanager
async def flood(namespace: Namespace, data: bytes) -> AsyncIterator[Callable[[], int]]:
    """Keep connections open that send only these bytes; yields a function that counts connects."""
    connects = 0

    async def reconnect() -> None:
        nonlocal connects
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", namespace.port)
                connects += 1
                try:
                    writer.write(data)
                    await reader.read()
                finally:
                    writer.transport.abort()
            await asyncio.sleep(PAUSE)

    tasks = [asyncio.create_task(reconnect()) for _ in range(FLOOD)]
    try:
        yield lambda: connects
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("data", HALF_OPEN.values(), ids=HALF_OPEN)
async def test_flood_is_bounded_and_other_clients_are_served(small: Namespace, data: bytes) -> None:
    async with flood(small, data) as connects:
        await until(lambda: connects() > FLOOD)
        before = small.unauthenticated.closed
        assert len(small.unauthenticated) <= LIMIT
        assert len(small.connections) <= LIMIT
        started = time.monotonic()
        async with (
            ServiceBusClient.from_connection_string(small.connection_string, retry_total=3) as client,
            client.get_queue_sender(QUEUE) as sender,
        ):
            await sender.send_messages(ServiceBusMessage("in the middle of it"))
        assert time.monotonic() - started < 20
        assert small.unauthenticated.closed > before, "the flood had ended"
    await until(lambda: not small.connections)


async def test_authenticated_connection_is_not_closed_by_a_flood(small: Namespace) -> None:
    async with contextlib.AsyncExitStack() as stack:
        good = []
        for _ in range(2 * LIMIT):
            good.append(await stack.enter_async_context(Peer(small)))
            await good[-1].open()  # with the root key
            await good[-1].begin()
        assert len(small.unauthenticated) == 0
        async with flood(small, SASL_HEADER) as connects:
            await until(lambda: connects() > 2 * FLOOD)
        for peer in good:
            await peer.attach_sender(QUEUE)


async def test_connection_idle_longest_is_closed_first(small: Namespace) -> None:
    async with contextlib.AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(Peer(small)) for _ in range(LIMIT + 10)]
        for peer in peers:
            with contextlib.suppress(ConnectionError):
                peer.write(SASL_HEADER)
        for peer in peers[-LIMIT:]:
            assert await peer.header() == SASL_HEADER
        for peer in peers[:10]:
            assert len(await peer.rest()) < 100


async def test_websocket_that_has_just_closed_can_be_aborted(small: Namespace) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", small.port)
    writer.write(UPGRADE)
    await until(lambda: bool(small.connections))
    [connection] = small.connections
    connection._transport._raw.abort()  # type: ignore[union-attr]
    loop = asyncio.get_running_loop()
    reset = loop.create_future()
    # One turn of the loop later the socket is closed, but the connection does not know yet.
    loop.call_soon(lambda: reset.set_result((connection.closing, connection.reset())))
    assert await asyncio.wait_for(reset, 10) == (False, None)
    writer.transport.abort()
    await until(lambda: not small.connections)
