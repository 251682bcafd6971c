"""Clients that send nothing, too little, or malformed HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.emulator.faults.bench import until
from tests.emulator.frame_peer import ConnectionEndedError, Peer
from tests.emulator.hostile.conftest import HEALTH, QUEUE, UPGRADE

from twinbus.amqp.codec.frames import AMQP_HEADER, SASL_HEADER
from twinbus.emulator import DEFAULT, Namespace, QueueDescription
from twinbus.emulator.auth.security import ROOT_POLICY, sign
from twinbus.emulator.protocol import connection
from twinbus.emulator.server import http_front, listener, unauthenticated

pytestmark = pytest.mark.asyncio(loop_scope="module")

MOMENT = 1.0  # long enough for an active client, even on a busy machine
# The first bytes of a TLS client.
CLIENT_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def impatient(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Namespace]:
    """A namespace with short timeouts and a certificate."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listener, "FIRST_BYTES_TIMEOUT", MOMENT)
        patch.setattr(connection, "HANDSHAKE_TIMEOUT", MOMENT)
        patch.setattr(http_front, "REQUEST_HEAD_TIMEOUT", MOMENT)
        patch.setattr(unauthenticated, "MAX_CONNECTIONS", 20)
        profile = replace(DEFAULT, link_idle=1.0)  # so that connections are checked often
        folder: Path = tmp_path_factory.mktemp("tls")
        async with Namespace("contoso", profile=profile, certificate_folder=folder) as running:
            await running.create(QueueDescription(QUEUE))
            yield running


async def ends(namespace: Namespace, data: bytes) -> bool:
    """Whether the namespace ends a connection that sends only these bytes."""
    async with Peer(namespace) as peer:
        peer.write(data)
        await peer.rest()
        return True


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"A",
        b"AMQ",
        CLIENT_HELLO[:1],
        CLIENT_HELLO,
        b"G",
        b"GET /healthz HTTP/1.1\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: ",
        HEALTH,
        HEALTH + b"GET /healthz HTTP/1.1\r\nX: ",
        b"GET /orders HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PUT /orders HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nx",
        UPGRADE,
        UPGRADE + b"\x82\xfe\x40",
    ],
    ids=[
        "nothing",
        "one byte",
        "three bytes",
        "TLS",
        "part of a client hello",
        "one letter of HTTP",
        "a request line",
        "part of a header",
        "a request that needs no token",
        "a request and part of another",
        "a request without its token",
        "a request without its token and part of its body",
        "a WebSocket",
        "part of a message in a WebSocket",
    ],
)
async def test_incomplete_input_times_out(impatient: Namespace, data: bytes) -> None:
    assert await asyncio.wait_for(ends(impatient, data), 10)


@pytest.mark.parametrize("stage", ["header", "sasl", "open"])
async def test_incomplete_handshake_times_out(impatient: Namespace, stage: str) -> None:
    async with Peer(impatient) as peer:
        peer.write(SASL_HEADER)
        if stage != "header":
            await peer.header()
        if stage == "open":
            async with Peer(impatient) as other:
                await other.authenticate()
                other.write(AMQP_HEADER)
                await other.header()
                with pytest.raises(ConnectionEndedError):
                    await other.next()
        await asyncio.wait_for(peer.rest(), 10)


@pytest.mark.parametrize("before", [b"", HEALTH, HEALTH + HEALTH], ids=["first", "second", "third"])
async def test_slow_header_lines_do_not_extend_the_timeout(impatient: Namespace, before: bytes) -> None:
    async with Peer(impatient) as peer, asyncio.timeout(5 * MOMENT):  # after 128 lines aiohttp would end it anyway
        peer.write(before + b"GET /healthz HTTP/1.1\r\n")
        ending = asyncio.create_task(peer.rest())
        while not ending.done():
            peer.write(b"X-More: 1\r\n")
            await asyncio.sleep(MOMENT / 10)


async def test_number_of_silent_connections_is_bounded(impatient: Namespace) -> None:
    async def is_cut_off_at_once() -> bool:
        started = time.monotonic()
        with contextlib.suppress(ConnectionResetError):
            async with Peer(impatient) as peer:
                await peer.rest()
        return time.monotonic() - started < MOMENT

    cut_off = await asyncio.gather(*(is_cut_off_at_once() for _ in range(40)))
    assert cut_off.count(True) == 20
    async with Peer(impatient) as peer:
        await peer.open()


async def test_http_client_that_does_not_read_is_disconnected(impatient: Namespace) -> None:
    async def ask_on(peer: Peer) -> None:
        while True:
            peer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
            await peer.drain()

    async with Peer(impatient) as peer:
        peer.stop_reading()
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(ask_on(peer), 10)
    await until(lambda: len(impatient.unauthenticated) == 0)


@contextlib.asynccontextmanager
async def over_http(namespace: Namespace) -> AsyncIterator[Callable[[bytes], Awaitable[bytes]]]:
    """A connection as a function from a request head to the status line of its answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", namespace.port)

    async def ask(head: bytes) -> bytes:
        writer.write(head)
        answer = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        return answer.partition(b"\r\n")[0]

    try:
        yield ask
    finally:
        writer.transport.abort()


async def test_frequent_requests_keep_a_connection_without_a_token(impatient: Namespace) -> None:
    async with over_http(impatient) as ask:
        for _ in range(15):
            assert await ask(HEALTH) == b"HTTP/1.1 200 OK"
            assert len(impatient.unauthenticated) == 1
            await asyncio.sleep(MOMENT / 10)  # the interval is the point of the test


async def test_rare_requests_need_a_new_connection_without_a_token(impatient: Namespace) -> None:
    async with aiohttp.ClientSession() as session:
        for path in ("healthz", "metrics", "healthz"):
            async with session.get(f"http://127.0.0.1:{impatient.port}/{path}") as answer:
                assert answer.status == 200
            assert len(impatient.unauthenticated) == 1
            await until(lambda: len(impatient.unauthenticated) == 0)


@pytest.mark.parametrize(
    ("request_line", "status"), [(b"GET /orders", b"200 OK"), (b"DELETE /nothing", b"404 Not Found")]
)
async def test_authenticated_http_connection_may_be_silent(
    impatient: Namespace, request_line: bytes, status: bytes
) -> None:
    key = impatient.policy(ROOT_POLICY).primary_key
    token = sign("sb://127.0.0.1", ROOT_POLICY, key, time.time() + 3600).encode()
    async with over_http(impatient) as ask:
        head = request_line + b" HTTP/1.1\r\nHost: x\r\nAuthorization: " + token + b"\r\n\r\n"
        assert await ask(head) == b"HTTP/1.1 " + status
        assert len(impatient.unauthenticated) == 0
        assert await asyncio.wait_for(ends(impatient, HEALTH), 10), "a connection without a token should end"
        assert await ask(HEALTH) == b"HTTP/1.1 200 OK"
        assert len(impatient.unauthenticated) == 0


async def test_unchecked_token_does_not_authenticate_the_connection(impatient: Namespace) -> None:
    for path in (b"/healthz", b"/metrics", b"/orders", b"/%ff", b"/%0a"):
        async with over_http(impatient) as ask:
            await ask(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nAuthorization: SharedAccessSignature x\r\n\r\n")
            assert len(impatient.unauthenticated) == 1
        await until(lambda: len(impatient.unauthenticated) == 0)  # at once, as the connection has ended


async def test_open_amqp_connection_may_be_silent(impatient: Namespace) -> None:
    async with Peer(impatient) as peer:
        await peer.open()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(peer.next(), 3 * MOMENT)


async def test_namespace_survives_running_out_of_file_handles(namespace: Namespace, serving: None) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    waiting = [socket.socket() for _ in range(4)]
    try:
        used = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, hard))
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", namespace.port))
        await asyncio.sleep(0.2)  # the namespace fails to accept them
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for client in waiting:
            client.close()
    async with Peer(namespace) as peer:
        await peer.open()


# ---- HTTP ----

REQUESTS = [
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"\r\n\r\n\r\n",
    b"POST /orders HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    b"POST /orders HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"PUT /orders HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"PUT /orders HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: " + b"x" * 20_000 + b"\r\n\r\n",
    b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 5000 + b"\r\n",
    b"GET /%00%ff%2e%2e/orders HTTP/1.1\r\n\r\n",
    b"CONNECT evil:1 HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nAuthorization: SharedAccessSignature " + b"&" * 5000 + b"\r\n\r\n",
    b"GET /$servicebus/websocket HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
]


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(request=st.binary(max_size=300).map(lambda tail: b"GET " + tail))
async def test_random_requests_over_http(namespace: Namespace, request: bytes) -> None:
    await assert_no_server_error(namespace, request)


for sample in REQUESTS:
    test_random_requests_over_http = example(request=sample)(test_random_requests_over_http)


async def assert_no_server_error(namespace: Namespace, request: bytes) -> None:
    """Send a request and end: the answer is no server error, or there is none."""
    async with Peer(namespace) as peer:
        peer.write(request)
        peer.end()
        answer = await peer.rest()
        assert not answer.startswith(b"HTTP/1.1 5"), answer[:100]
        assert len(answer) < 10_000


async def test_http_is_served_after_random_requests(namespace: Namespace, serving: None) -> None:
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{namespace.port}/healthz") as answer:
            assert await answer.json() == {"status": "ok", "namespace": "contoso"}
        async with session.get(f"http://127.0.0.1:{namespace.port}/{QUEUE}") as answer:
            assert answer.status == 401
    await until(lambda: len(namespace.connections) == 1)
