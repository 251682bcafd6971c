"""Carries AMQP connections in binary WebSocket messages on the shared port."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiohttp import WSCloseCode, WSMsgType, hdrs, web

from ..protocol.connection import CLOSE_TIMEOUT, WRITE_HIGH_WATER, Connection

if TYPE_CHECKING:
    from .namespace import Namespace

PATH = "/$servicebus/websocket"
SUBPROTOCOL = "AMQPWSB10"
MAX_MESSAGE = 1 << 20


class WebSocketTransport(asyncio.Transport):
    """An asyncio transport over a WebSocket. A separate task writes, so a slow peer does not block others."""

    def __init__(self, socket: web.WebSocketResponse, raw: asyncio.Transport | None, connection: Connection) -> None:
        super().__init__()
        self._socket = socket
        self._raw = raw
        self._connection = connection
        self._outgoing: list[bytes] = []
        self._size = 0
        self._blocked = False
        self._closing = False
        self._wake = asyncio.Event()
        self._reading = asyncio.Event()
        self._reading.set()
        self.close_code = WSCloseCode.OK

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._raw.get_extra_info(name, default) if self._raw is not None else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignored: every connection has the same limit."""

    def pause_reading(self) -> None:
        self._reading.clear()

    def resume_reading(self) -> None:
        self._reading.set()

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._outgoing.append(bytes(data))
        self._size += len(data)
        self._wake.set()
        if self._size > WRITE_HIGH_WATER and not self._blocked:
            self._blocked = True
            self._connection.pause_writing()

    def close(self) -> None:
        self._closing = True
        self._wake.set()
        self._reading.set()

    def abort(self) -> None:
        self._closing = True
        if self._raw is not None:
            self._raw.abort()
        self._wake.set()
        self._reading.set()

    async def run(self) -> None:
        """Move bytes in both directions until either side closes."""
        writer = asyncio.create_task(self._write())
        reader = asyncio.create_task(self._read())
        try:
            await asyncio.wait((writer, reader), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (writer, reader):
                task.cancel()
            await asyncio.gather(writer, reader, return_exceptions=True)

    async def _read(self) -> None:
        while True:
            await self._reading.wait()
            message = await self._socket.receive()
            await self._reading.wait()
            if message.type is not WSMsgType.BINARY:
                if message.type is WSMsgType.TEXT:
                    self.close_code = WSCloseCode.UNSUPPORTED_DATA
                return
            self._connection.data_received(message.data)

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            outgoing, self._outgoing, self._size = self._outgoing, [], 0
            if outgoing:
                await self._socket.send_bytes(b"".join(outgoing))
            if self._blocked and self._size <= WRITE_HIGH_WATER // 2:
                self._blocked = False
                self._connection.resume_writing()
            if self._closing and not self._outgoing:
                return


async def serve_websocket(namespace: Namespace, request: web.BaseRequest) -> web.StreamResponse:
    """Speak AMQP over an upgraded request until one side closes."""
    offered = request.headers.get(hdrs.SEC_WEBSOCKET_PROTOCOL, SUBPROTOCOL)
    if SUBPROTOCOL not in [name.strip() for name in offered.split(",")]:
        return web.Response(status=400, text=f"the subprotocol must be {SUBPROTOCOL}")
    socket = web.WebSocketResponse(protocols=(SUBPROTOCOL,), max_msg_size=MAX_MESSAGE, compress=False)
    if not socket.can_prepare(request).ok:
        return web.Response(status=400, text="this address speaks WebSockets")
    await socket.prepare(request)
    connection = Connection(namespace)
    transport = WebSocketTransport(socket, request.transport, connection)
    namespace.unauthenticated.remove(request.protocol)  # tracked by the AMQP connection from now on
    connection.connection_made(transport)
    try:
        await transport.run()
    finally:
        connection.connection_lost(None)
        namespace.unauthenticated.add(request.protocol, transport.abort)
        await _close(socket, transport)
    return socket


async def _close(socket: web.WebSocketResponse, transport: WebSocketTransport) -> None:
    """Close, and wait up to `CLOSE_TIMEOUT` for the client to close too."""
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT):
            await socket.close(code=transport.close_code)
    except TimeoutError:
        transport.abort()
