"""Accepts AMQP and HTTP, plain or over TLS, on one port.

The first byte tells TLS from plain. It is peeked, because the TLS handshake must read it again. `ProtocolDetector`
then tells AMQP from HTTP by the first bytes of the plain or decrypted stream.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import struct
import sys
from collections.abc import Callable
from typing import cast

from .unauthenticated import UnauthenticatedConnections

logger = logging.getLogger("twinbus.emulator.server.listener")

TLS_HANDSHAKE = 0x16
FIRST_BYTES_TIMEOUT = 30.0
BACKLOG = 1024
# Per turn of the event loop, so that a flood of new connections does not delay reading from accepted ones.
ACCEPTED_AT_ONCE = 64
ACCEPT_PAUSE = 0.5
# The largest segment size that Linux lets a client set. Loopback segments grow beyond it, and the SDK's asyncio client
# before 7.15 reads the size of a TLS connection and sets it again, which then fails with "Invalid argument".
MAX_SEGMENT_SIZE = 32767
_LINGER_ZERO = struct.pack("ii", 1, 0)

Factory = Callable[[], asyncio.Protocol]


class ProtocolDetector(asyncio.Protocol):
    """Waits for the first bytes, then replaces itself with the AMQP or HTTP protocol."""

    def __init__(self, amqp: Factory, http: Factory, unauthenticated: UnauthenticatedConnections, key: object) -> None:
        """`key` is the connection's key among the unauthenticated connections."""
        self._amqp = amqp
        self._http = http
        self._unauthenticated = unauthenticated
        self._key = key
        self._transport: asyncio.Transport | None = None
        self._first_bytes = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._timer = asyncio.get_running_loop().call_later(FIRST_BYTES_TIMEOUT, self._transport.abort)
        self._unauthenticated.add(self._key, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        self._first_bytes += data
        if len(self._first_bytes) < 4 and b"AMQP".startswith(self._first_bytes):
            return
        assert self._transport is not None
        assert self._timer is not None
        self._timer.cancel()
        self._unauthenticated.remove(self._key)
        protocol = self._amqp() if self._first_bytes.startswith(b"AMQP") else self._http()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(self._first_bytes)

    def connection_lost(self, exc: Exception | None) -> None:
        self._unauthenticated.remove(self._key)
        if self._timer is not None:
            self._timer.cancel()


class Listener:
    """Accepts connections on one address. It can stop listening and start again on the same port."""

    def __init__(
        self,
        host: str,
        port: int,
        amqp: Factory,
        http: Factory,
        tls: Callable[[], ssl.SSLContext | None],
        admit: Callable[[socket.socket], bool],
        unauthenticated: UnauthenticatedConnections,
    ) -> None:
        """`admit` is called with each accepted socket; it returns false to keep the socket (a fault)."""
        self.host = host
        self.port = port
        self._amqp = amqp
        self._http = http
        self._tls = tls
        self._admit = admit
        self._unauthenticated = unauthenticated
        self._socket: socket.socket | None = None
        self._reserved: socket.socket | None = None
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[socket.socket, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_listening(self) -> bool:
        return self._socket is not None

    def start(self) -> None:
        """Bind and listen; raises `OSError` if the port is taken."""
        if self._socket is not None:
            return
        listening, self._reserved = self._reserved or self._bind(), None
        try:
            listening.listen(BACKLOG)
        except OSError:
            listening.close()
            raise
        self.port = listening.getsockname()[1]
        self._socket = listening
        self._loop.add_reader(listening.fileno(), self._accept)

    def _bind(self) -> socket.socket:
        bound = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if sys.platform == "linux":
                bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, MAX_SEGMENT_SIZE)
            bound.bind((self.host, self.port))
            bound.setblocking(False)
        except OSError as error:
            bound.close()
            cause = error.strerror or error
            raise OSError(error.errno, f"cannot listen on {self.host}, port {self.port}: {cause}") from error
        return bound

    def stop(self) -> None:
        """Stop listening: the operating system refuses new connections. The port stays reserved."""
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
            try:
                self._reserved = self._bind()  # bound but not listening, so that no other process takes the port
            except OSError as error:
                logger.warning("reserving port %d failed: %s", self.port, error)

    async def close(self) -> None:
        """Stop listening and close connections that have sent nothing yet."""
        self.stop()
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None
        for waiting in list(self._waiting):
            self._forget(waiting)
            waiting.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            if self._socket is None:
                return
            try:
                accepted, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                # Most likely out of file handles: retrying at once would only burn CPU.
                logger.warning(
                    "accepting a connection on port %d failed, trying again in %g s: %s", self.port, ACCEPT_PAUSE, error
                )
                self._loop.remove_reader(self._socket.fileno())
                self._loop.call_later(ACCEPT_PAUSE, self._resume_accepting, self._socket)
                return
            accepted.setblocking(False)
            if accepted.family in (socket.AF_INET, socket.AF_INET6):
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._admit(accepted):
                self.serve(accepted)

    def _resume_accepting(self, listening: socket.socket) -> None:
        if listening is self._socket:
            self._loop.add_reader(listening.fileno(), self._accept)

    def serve(self, accepted: socket.socket) -> None:
        """Wait for the first byte of an accepted socket, then serve it."""
        timer = self._loop.call_later(FIRST_BYTES_TIMEOUT, self._drop, accepted)
        self._waiting[accepted] = timer
        self._loop.add_reader(accepted.fileno(), self._peek, accepted)
        self._unauthenticated.add(accepted, lambda: self._drop(accepted))

    def _forget(self, accepted: socket.socket) -> None:
        self._loop.remove_reader(accepted.fileno())
        self._waiting.pop(accepted).cancel()
        self._unauthenticated.remove(accepted)

    def _drop(self, accepted: socket.socket) -> None:
        self._forget(accepted)
        accepted.close()

    def _peek(self, accepted: socket.socket) -> None:
        try:
            first = accepted.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        self._forget(accepted)
        if not first:
            accepted.close()
            return
        context = None
        if first[0] == TLS_HANDSHAKE:
            context = self._tls()
            if context is None:
                accepted.close()
                return
        task = self._loop.create_task(self._connect(accepted, context))
        self._tasks.add(task)
        self._unauthenticated.add(accepted, task.cancel)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, accepted: socket.socket, context: ssl.SSLContext | None) -> None:
        timeout = FIRST_BYTES_TIMEOUT if context is not None else None
        try:
            await self._loop.connect_accepted_socket(
                lambda: ProtocolDetector(self._amqp, self._http, self._unauthenticated, accepted),
                accepted,
                ssl=context,
                ssl_handshake_timeout=timeout,
            )
        except (OSError, ssl.SSLError, ConnectionError) as error:
            logger.info("opening an accepted connection failed: %s", error)
            self._unauthenticated.remove(accepted)
            accepted.close()
        except asyncio.CancelledError:
            accepted.close()
            raise


def reset(connection: socket.socket) -> None:
    """Close a socket with a TCP reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
    connection.close()
