"""Floods of connections that want nothing: they are bounded, and whoever wants something gets through meanwhile."""

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
from tests.broker.faults.bench import until
from tests.broker.frame_peer import Peer
from tests.broker.hostile.conftest import HEALTH, QUEUE, UPGRADE

from twinbus.amqp import performatives as amqp
from twinbus.amqp.frames import AMQP_HEADER, SASL_HEADER, TYPE_SASL, frame
from twinbus.broker import Namespace, QueueDescription, newcomers

pytestmark = pytest.mark.asyncio(loop_scope="module")

MOST = 100
FLOOD = 150
PAUSE = 1.0  # seconds until one that was cut comes again
#: How far each kind of half-open connection comes before it says no more.
HALF_OPEN = {
    "silent": b"",
    "part of a protocol header": b"AMQ",
    "part of a TLS handshake": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "part of an HTTP request": b"GET / HTTP/1.1\r\nHost: x\r\nX: ",
    "a request that needs no token": HEALTH,
    "a request that needs no token, with a wrong one": HEALTH[:-2] + b"Authorization: SharedAccessSignature x\r\n\r\n",
    "a request without its token": b"GET /orders HTTP/1.1\r\nHost: x\r\n\r\n",
    "a request and part of another": HEALTH + b"GET /healthz HTTP/1.1\r\nX: ",
    "a WebSocket": UPGRADE,
    "part of a WebSocket's message": UPGRADE + b"\x82\xfe\x40",
    "a WebSocket that is wrong and does not close": UPGRADE + b"\x81\x80mask",
    "before SASL": SASL_HEADER,
    "open, and no token": SASL_HEADER
    + frame(0, amqp.SaslInit("ANONYMOUS"), frame_type=TYPE_SASL)
    + AMQP_HEADER
    + frame(0, amqp.Open("flood", "127.0.0.1"))
    + frame(0, amqp.Begin(None, 0, 1, 1)),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def small(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Namespace]:
    """A namespace with room for few newcomers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(newcomers, "MOST", MOST)
        folder: Path = tmp_path_factory.mktemp("tls")
        async with Namespace("contoso", certificate_folder=folder) as running:
            await running.create(QueueDescription(QUEUE))
            yield running


@contextlib.asynccontextmanager
async def flood(namespace: Namespace, said: bytes) -> AsyncIterator[Callable[[], int]]:
    """Connections that say this and no more, and come again when they are cut; the number that has come."""
    came = 0

    async def come_again() -> None:
        nonlocal came
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", namespace.port)
                came += 1
                try:
                    writer.write(said)
                    await reader.read()
                finally:
                    writer.transport.abort()
            await asyncio.sleep(PAUSE)

    tasks = [asyncio.create_task(come_again()) for _ in range(FLOOD)]
    try:
        yield lambda: came
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("said", HALF_OPEN.values(), ids=HALF_OPEN)
async def test_a_flood_is_bounded_and_keeps_nobody_out(small: Namespace, said: bytes) -> None:
    async with flood(small, said) as came:
        await until(lambda: came() > FLOOD)
        before = small.newcomers.cut
        assert len(small.newcomers) <= MOST
        assert len(small.connections) <= MOST
        started = time.monotonic()
        async with (
            ServiceBusClient.from_connection_string(small.connection_string, retry_total=3) as client,
            client.get_queue_sender(QUEUE) as sender,
        ):
            await sender.send_messages(ServiceBusMessage("in the middle of it"))
        assert time.monotonic() - started < 20
        assert small.newcomers.cut > before, "it went on meanwhile"
    await until(lambda: not small.connections)


async def test_whoever_has_shown_a_right_is_not_cut(small: Namespace) -> None:
    async with contextlib.AsyncExitStack() as stack:
        good = []
        for _ in range(2 * MOST):
            good.append(await stack.enter_async_context(Peer(small)))
            await good[-1].open()  # with the root key
            await good[-1].begin()
        assert len(small.newcomers) == 0
        async with flood(small, SASL_HEADER) as came:
            await until(lambda: came() > 2 * FLOOD)
        for peer in good:
            await peer.attach_sender(QUEUE)


async def test_of_too_many_the_one_that_has_waited_longest_is_cut(small: Namespace) -> None:
    async with contextlib.AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(Peer(small)) for _ in range(MOST + 10)]
        for peer in peers:
            with contextlib.suppress(ConnectionError):
                peer.write(SASL_HEADER)
        for peer in peers[-MOST:]:
            assert await peer.header() == SASL_HEADER
        for peer in peers[:10]:
            assert len(await peer.rest()) < 100


async def test_websocket_that_has_just_closed_can_be_cut(small: Namespace) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", small.port)
    writer.write(UPGRADE)
    await until(lambda: bool(small.connections))
    [connection] = small.connections
    connection._transport._raw.abort()  # type: ignore[union-attr]
    loop = asyncio.get_running_loop()
    reset = loop.create_future()
    # A turn of the loop later the socket is closed, and the connection has not been told yet.
    loop.call_soon(lambda: reset.set_result((connection.closing, connection.reset())))
    assert await asyncio.wait_for(reset, 10) == (False, None)
    writer.transport.abort()
    await until(lambda: not small.connections)
