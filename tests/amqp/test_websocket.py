"""Connections over WebSockets: plain, TLS, through a proxy."""

from __future__ import annotations

import asyncio
import gc
import os
import ssl
import traceback
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.connect_proxy import ConnectProxy
from tests.syphon.bus import PATIENCE, body_of, eventually, message, receive, send_all

from twinbus.amqp.client.wire import WRITE_HIGH_WATER
from twinbus.emulator import Fault, FaultKind, Namespace, QueueDescription
from twinbus.servicebus.http_proxy import HttpProxy
from twinbus.syphon import AnswerTimeoutError, Connection, ConnectionLostError, Endpoint, from_connection_string

HOST = "contoso.twinbus.test"
LOGIN = ("agent", "open-sesame")
WAYS = ("plain", "tls", "proxy")


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Namespace]:
    async with Namespace("contoso", certificate_folder=tmp_path, certificate_names=(HOST,)) as running:
        await running.create(QueueDescription("orders"))
        yield running


@pytest.fixture
def proxy(bus: Namespace) -> Any:
    with ConnectProxy({(HOST, 443): ("127.0.0.1", bus.port)}, LOGIN) as running:
        yield running


def connect(bus: Namespace, proxy: ConnectProxy, way: str, **options: Any) -> Any:
    _, credential = from_connection_string(bus.connection_string)
    assert bus.certificate is not None
    context = ssl.create_default_context(cafile=str(bus.certificate.ca_file))
    endpoint = {
        "plain": Endpoint("127.0.0.1", bus.port, tls=False, websocket=True),
        "tls": Endpoint("127.0.0.1", bus.port, websocket=True),
        "proxy": Endpoint(HOST, websocket=True, proxy=HttpProxy("127.0.0.1", proxy.port, *LOGIN)),
    }[way]
    return Connection.open(endpoint, credential, **{"timeout": PATIENCE, "ssl_context": context, **options})


def open_files() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("way", WAYS)
async def test_messages_are_sent_and_received_over_websockets(bus: Namespace, proxy: ConnectProxy, way: str) -> None:
    async with connect(bus, proxy, way) as connection:
        sender = await connection.attach_sender("orders")
        await sender.deliver(message(b"x" * 200_000), PATIENCE)
        _, inbox = await receive(connection, "orders", 1)
        assert len(body_of((await inbox.take_one()).payload)) == 200_000
    assert len(proxy.tunnels) == (way == "proxy")


async def test_data_beyond_the_buffers_is_paused_and_arrives(bus: Namespace, proxy: ConnectProxy) -> None:
    payloads = [message(b"x" * (WRITE_HIGH_WATER // 20), f"m{number}") for number in range(100)]
    async with connect(bus, proxy, "tls") as connection:
        sender = await connection.attach_sender("orders")
        assert set((await send_all(sender, payloads)).values()) == {None}
        _, inbox = await receive(connection, "orders", 100)
        assert len(await inbox.take(100)) == 100


@pytest.mark.parametrize("way", WAYS)
async def test_closing_leaves_no_task_and_no_open_file(bus: Namespace, proxy: ConnectProxy, way: str) -> None:
    async with connect(bus, proxy, way):
        pass  # fill caches
    # The namespace and the proxy run in this process: their sockets must be closed before files are counted.
    await eventually(lambda: not bus.connections and not proxy.open_tunnels)
    tasks, files = len(asyncio.all_tasks()), open_files()
    for end in ("close", "abort"):
        connection = await connect(bus, proxy, way)
        if end == "abort":
            connection.abort()
            await connection.wait_lost()
        await connection.close()
        await eventually(lambda: (len(asyncio.all_tasks()), open_files()) == (tasks, files))


@pytest.mark.parametrize("way", WAYS)
async def test_cut_connection_raises_connection_lost(bus: Namespace, proxy: ConnectProxy, way: str) -> None:
    connection = await connect(bus, proxy, way)
    bus.faults.add(Fault(FaultKind.RESET))
    assert isinstance(await asyncio.wait_for(connection.wait_lost(), PATIENCE), ConnectionLostError)
    await connection.close()


async def test_hanging_proxy_times_out(bus: Namespace, proxy: ConnectProxy) -> None:
    await asyncio.to_thread(proxy.break_tunnels, hangs=True)
    with pytest.raises(AnswerTimeoutError):
        await connect(bus, proxy, "proxy", timeout=0.5)


@pytest.mark.parametrize(("status", "said"), [(407, "it answered 407"), (502, "it answered 502")])
async def test_proxy_error_is_reported_without_the_login(
    bus: Namespace, proxy: ConnectProxy, status: int, said: str
) -> None:
    await asyncio.to_thread(proxy.break_tunnels, refuse_with=status)
    with pytest.raises(ConnectionLostError, match=f"through the proxy 127.0.0.1:{proxy.port}: {said}") as caught:
        await connect(bus, proxy, "proxy")
    login = HttpProxy("p", 1, *LOGIN).authorization
    assert login is not None
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value.__cause__)
    assert LOGIN[1] not in shown
    assert login.removeprefix("Basic ") not in shown


async def test_server_without_websockets_is_reported(bus: Namespace, proxy: ConnectProxy) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        endpoint = Endpoint("127.0.0.1", server.sockets[0].getsockname()[1], tls=False, websocket=True)
        with pytest.raises(ConnectionLostError, match="the peer answered 404 and opened no WebSocket"):
            await Connection.open(endpoint, from_connection_string(bus.connection_string)[1], timeout=PATIENCE)
