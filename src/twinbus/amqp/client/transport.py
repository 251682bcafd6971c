"""Opens the transport of a connection: TCP or WebSockets, plain or TLS, directly or through a proxy."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import ssl

import aiohttp

from .endpoint import Endpoint
from .errors import ConnectionLostError

SUBPROTOCOL = "AMQPWSB10"
#: Bytes of one sent WebSocket message: peers expect no more than the largest frame.
MAX_SENT = 65536
#: Bytes of one received message: the peer may put many frames into it.
MAX_RECEIVED = 16 << 20


async def open_transport(endpoint: Endpoint, context: ssl.SSLContext | None, protocol: asyncio.Protocol) -> None:
    """Connect `protocol` to a namespace. Without a `context`, TLS trusts the machine's certificate authorities.

    Raises `ConnectionLostError`. It has no timeout of its own.
    """
    context = (context or default_context()) if endpoint.tls else None
    try:
        if endpoint.websocket:
            await _open_websocket(endpoint, context, protocol)
        else:
            await asyncio.get_running_loop().create_connection(
                lambda: protocol,
                endpoint.host,
                endpoint.effective_port,
                ssl=context,
                server_hostname=endpoint.host if context is not None else None,
            )
    except (OSError, UnicodeError, aiohttp.ClientError) as error:
        through = "" if endpoint.proxy is None else f" through the proxy {endpoint.proxy}"
        raise ConnectionLostError(f"{endpoint} cannot be reached{through}: {_cause_text(error)}") from _safe_cause(
            error
        )


async def _open_websocket(endpoint: Endpoint, context: ssl.SSLContext | None, protocol: asyncio.Protocol) -> None:
    proxy = endpoint.proxy
    login = None if proxy is None else proxy.authorization
    session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), cookie_jar=aiohttp.DummyCookieJar())
    try:
        websocket = await session.ws_connect(
            endpoint.websocket_url,
            protocols=[SUBPROTOCOL],
            ssl=context if context is not None else True,
            proxy=None if proxy is None else proxy.url,
            proxy_headers=None if login is None else {aiohttp.hdrs.PROXY_AUTHORIZATION: login},
            max_msg_size=MAX_RECEIVED,
        )
        transport = WebSocketTransport(session, websocket, protocol)
    except BaseException:
        await session.close()
        raise
    protocol.connection_made(transport)


class WebSocketTransport(asyncio.Transport):
    """Carries the bytes of a connection in binary WebSocket messages.

    One task reads and one writes. When either ends, everything is closed and the protocol's `connection_lost` is
    called.
    """

    def __init__(
        self, session: aiohttp.ClientSession, websocket: aiohttp.ClientWebSocketResponse, protocol: asyncio.Protocol
    ) -> None:
        super().__init__()
        self._session = session
        self._websocket = websocket
        self._protocol = protocol
        self._socket = _copy(websocket.get_extra_info("socket"))
        self._outgoing: list[bytes] = []
        self._size = 0
        self._high = MAX_SENT
        self._is_blocked = False
        self._is_closing = False
        self._wakeup = asyncio.Event()
        self._carrier = asyncio.get_running_loop().create_task(self._carry())

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = MAX_SENT if high is None else high

    def is_closing(self) -> bool:
        return self._is_closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._outgoing.append(bytes(data))
        self._size += len(data)
        self._wakeup.set()
        if self._size > self._high and not self._is_blocked:
            self._is_blocked = True
            self._protocol.pause_writing()

    def close(self) -> None:
        """Send what was written, then close."""
        self._is_closing = True
        self._wakeup.set()

    def abort(self) -> None:
        """Close at once. That ends reading, and with it everything else."""
        self.close()
        with contextlib.suppress(OSError):  # already closed
            self._socket.shutdown(socket.SHUT_RDWR)

    async def _carry(self) -> None:
        writing = asyncio.create_task(self._write())
        error: Exception | None = None
        try:
            await self._read()
        except (OSError, aiohttp.ClientError) as raised:
            error = raised
        finally:
            if not self._is_closing:
                self.abort()
            await asyncio.wait((writing,))  # waits for the peer's answer to our close
            self.abort()  # else TLS would shut down in its own time, with the socket open
            self._socket.close()
            await self._session.close()
            self._protocol.connection_lost(error)

    async def _read(self) -> None:
        """Pass on data until the peer closes or the connection ends."""
        while True:
            message = await self._websocket.receive()
            if message.type is aiohttp.WSMsgType.BINARY:
                self._protocol.data_received(message.data)
            elif message.type is aiohttp.WSMsgType.ERROR:
                raise ConnectionError(f"the WebSocket failed: {message.data}")
            else:
                return

    async def _write(self) -> None:
        try:
            while self._outgoing or not self._is_closing:
                await self._wakeup.wait()
                self._wakeup.clear()
                data, self._outgoing, self._size = b"".join(self._outgoing), [], 0
                for at in range(0, len(data), MAX_SENT):
                    await self._websocket.send_bytes(data[at : at + MAX_SENT])
                if self._is_blocked and self._size <= self._high:
                    self._is_blocked = False
                    self._protocol.resume_writing()
            await self._websocket.close()
        except (OSError, aiohttp.ClientError):
            self.abort()  # the reader then ends and reports the cause


def _copy(owned: socket.socket | None) -> socket.socket:
    """Duplicate a socket to shut the connection down with: not every event loop allows that on its own."""
    if owned is None:
        raise ConnectionResetError("the connection was lost right after it opened")
    return socket.fromfd(owned.fileno(), owned.family, owned.type)


@functools.cache
def default_context() -> ssl.SSLContext:
    """TLS that trusts the machine's certificate authorities. Cached: reading them is slow."""
    return ssl.create_default_context()


def _cause_text(error: Exception) -> str:
    """The cause as the proxy, the peer or the system put it, without the library's own wording."""
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"it answered {error.status} {error.message}".rstrip()
    if isinstance(error, aiohttp.WSServerHandshakeError):
        return f"the peer answered {error.status} and opened no WebSocket"
    if isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno) if error.errno > 0 else str(error.strerror)
    return str(error) or type(error).__name__


def _safe_cause(error: Exception) -> Exception:
    """The exception to chain: aiohttp's proxy error holds the request headers, and so the password."""
    if isinstance(error, aiohttp.ClientResponseError):
        return ConnectionError(f"HTTP status {error.status}")
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error
    return error
