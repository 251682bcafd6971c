"""Clients that connect and say nothing, or not enough, or nonsense over HTTP."""

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
from tests.broker.faults.bench import until
from tests.broker.frame_peer import Ended, Peer
from tests.broker.hostile.conftest import HEALTH, QUEUE, UPGRADE

from twinbus.amqp.frames import AMQP_HEADER, SASL_HEADER
from twinbus.broker import DEFAULT, Namespace, QueueDescription, connection, http_front, listener, newcomers
from twinbus.broker.security import ROOT_POLICY, sign

pytestmark = pytest.mark.asyncio(loop_scope="module")

MOMENT = 1.0  # enough for a client that has something to say, on a busy machine too
# The first bytes of a TLS client.
CLIENT_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def impatient(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Namespace]:
    """A namespace with a certificate that gives its clients only a moment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listener, "FIRST_BYTES_TIMEOUT", MOMENT)
        patch.setattr(connection, "HANDSHAKE_TIMEOUT", MOMENT)
        patch.setattr(http_front, "REQUEST_HEAD_TIMEOUT", MOMENT)
        patch.setattr(newcomers, "MOST", 20)
        profile = replace(DEFAULT, link_idle=1.0)  # so that it looks at its connections often
        folder: Path = tmp_path_factory.mktemp("tls")
        async with Namespace("contoso", profile=profile, certificate_folder=folder) as running:
            await running.create(QueueDescription(QUEUE))
            yield running


async def ends(namespace: Namespace, said: bytes) -> bool:
    """Whether the namespace loses patience with someone who says this and no more."""
    async with Peer(namespace) as peer:
        peer.write(said)
        await peer.rest()
        return True


@pytest.mark.parametrize(
    "said",
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
        "part of a hello",
        "one letter",
        "a line",
        "part of a header",
        "a request that needs no token",
        "a request and part of another",
        "a request without its token",
        "a request without its token and part of its body",
        "a WebSocket",
        "part of a message in a WebSocket",
    ],
)
async def test_whoever_says_too_little_is_cut_off(impatient: Namespace, said: bytes) -> None:
    assert await asyncio.wait_for(ends(impatient, said), 10)


@pytest.mark.parametrize("stage", ["header", "sasl", "open"])
async def test_whoever_does_not_get_to_the_open_is_cut_off(impatient: Namespace, stage: str) -> None:
    async with Peer(impatient) as peer:
        peer.write(SASL_HEADER)
        if stage != "header":
            await peer.header()
        if stage == "open":
            async with Peer(impatient) as other:
                await other.authenticate()
                other.write(AMQP_HEADER)
                await other.header()
                with pytest.raises(Ended):
                    await other.next()
        await asyncio.wait_for(peer.rest(), 10)


@pytest.mark.parametrize("before", [b"", HEALTH, HEALTH + HEALTH], ids=["first", "second", "third"])
async def test_a_trickle_of_header_lines_does_not_keep_a_connection(impatient: Namespace, before: bytes) -> None:
    async with Peer(impatient) as peer, asyncio.timeout(5 * MOMENT):  # after 128 lines it would end anyway
        peer.write(before + b"GET /healthz HTTP/1.1\r\n")
        ending = asyncio.create_task(peer.rest())
        while not ending.done():
            peer.write(b"X-More: 1\r\n")
            await asyncio.sleep(MOMENT / 10)


async def test_only_so_many_may_be_silent_at_once(impatient: Namespace) -> None:
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


async def test_whoever_does_not_read_its_answers_is_cut_off(impatient: Namespace) -> None:
    async def ask_on(peer: Peer) -> None:
        while True:
            peer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
            await peer.drain()

    async with Peer(impatient) as peer:
        peer.stop_reading()
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(ask_on(peer), 10)
    await until(lambda: len(impatient.newcomers) == 0)


@contextlib.asynccontextmanager
async def over_http(namespace: Namespace) -> AsyncIterator[Callable[[bytes], Awaitable[bytes]]]:
    """One connection; what is given is a head, what comes back the line with the status."""
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


async def test_whoever_asks_often_keeps_its_connection_without_a_token(impatient: Namespace) -> None:
    async with over_http(impatient) as ask:
        for _ in range(15):
            assert await ask(HEALTH) == b"HTTP/1.1 200 OK"
            assert len(impatient.newcomers) == 1
            await asyncio.sleep(MOMENT / 10)  # it is the pace that is tested


async def test_whoever_asks_rarely_comes_again(impatient: Namespace) -> None:
    async with aiohttp.ClientSession() as session:
        for path in ("healthz", "metrics", "healthz"):
            async with session.get(f"http://127.0.0.1:{impatient.port}/{path}") as answer:
                assert answer.status == 200
            assert len(impatient.newcomers) == 1
            await until(lambda: len(impatient.newcomers) == 0)


@pytest.mark.parametrize(
    ("request_line", "status"), [(b"GET /orders", b"200 OK"), (b"DELETE /nothing", b"404 Not Found")]
)
async def test_a_connection_over_http_that_has_shown_a_token_may_be_silent(
    impatient: Namespace, request_line: bytes, status: bytes
) -> None:
    key = impatient.policy(ROOT_POLICY).primary_key
    token = sign("sb://127.0.0.1", ROOT_POLICY, key, time.time() + 3600).encode()
    async with over_http(impatient) as ask:
        shown = request_line + b" HTTP/1.1\r\nHost: x\r\nAuthorization: " + token + b"\r\n\r\n"
        assert await ask(shown) == b"HTTP/1.1 " + status
        assert len(impatient.newcomers) == 0
        assert await asyncio.wait_for(ends(impatient, HEALTH), 10), "one that has shown none is cut off meanwhile"
        assert await ask(HEALTH) == b"HTTP/1.1 200 OK"
        assert len(impatient.newcomers) == 0


async def test_a_token_that_nobody_looks_at_shows_nothing(impatient: Namespace) -> None:
    for path in (b"/healthz", b"/metrics", b"/orders", b"/%ff", b"/%0a"):
        async with over_http(impatient) as ask:
            await ask(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nAuthorization: SharedAccessSignature x\r\n\r\n")
            assert len(impatient.newcomers) == 1
        await until(lambda: len(impatient.newcomers) == 0)  # at once, as the connection is gone


async def test_a_connection_that_is_open_may_be_silent(impatient: Namespace) -> None:
    async with Peer(impatient) as peer:
        await peer.open()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(peer.next(), 3 * MOMENT)


async def test_running_out_of_file_handles_is_survived(namespace: Namespace, serving: None) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    waiting = [socket.socket() for _ in range(4)]
    try:
        used = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, hard))
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", namespace.port))
        await asyncio.sleep(0.2)  # the namespace tries to accept them, and cannot
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for one in waiting:
            one.close()
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
    await answered(namespace, request)


for one in REQUESTS:
    test_random_requests_over_http = example(request=one)(test_random_requests_over_http)


async def answered(namespace: Namespace, request: bytes) -> None:
    """Send a request and no more: there is an answer of a refusal, or none."""
    async with Peer(namespace) as peer:
        peer.write(request)
        peer.end()
        answer = await peer.rest()
        assert not answer.startswith(b"HTTP/1.1 5"), answer[:100]
        assert len(answer) < 10_000


async def test_http_is_served_after_all_this(namespace: Namespace, serving: None) -> None:
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{namespace.port}/healthz") as answer:
            assert await answer.json() == {"status": "ok", "namespace": "contoso"}
        async with session.get(f"http://127.0.0.1:{namespace.port}/{QUEUE}") as answer:
            assert answer.status == 401
    await until(lambda: len(namespace.connections) == 1)
