"""One port for everything: AMQP and HTTP, each plain or over TLS, told apart by the first bytes.

The first byte is looked at without taking it from the socket, because a TLS handshake must find it there. What
is inside, plain or decrypted, is decided by a small protocol that hands the connection on.
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

from .newcomers import Newcomers

logger = logging.getLogger("twinbus.broker.listener")

TLS_HANDSHAKE = 0x16
FIRST_BYTES_TIMEOUT = 30.0
BACKLOG = 1024
# In one turn of the event loop: in a flood, what those before them have said is read before more are let in.
ACCEPTED_AT_ONCE = 64
ACCEPT_PAUSE = 0.5
# The largest segment size that Linux lets a client set. Loopback segments grow beyond it, and the SDK's asyncio client
# before 7.15 reads the size of a TLS connection and sets it again, which then fails with "Invalid argument".
MAX_SEGMENT_SIZE = 32767
_LINGER_ZERO = struct.pack("ii", 1, 0)

Factory = Callable[[], asyncio.Protocol]


class Switch(asyncio.Protocol):
    """Waits for the first bytes and puts the right protocol in its own place."""

    def __init__(self, amqp: Factory, http: Factory, newcomers: Newcomers, newcomer: object) -> None:
        """`newcomer` is who the connection was among the newcomers before it came here."""
        self._amqp = amqp
        self._http = http
        self._newcomers = newcomers
        self._newcomer = newcomer
        self._transport: asyncio.Transport | None = None
        self._start = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._timer = asyncio.get_running_loop().call_later(FIRST_BYTES_TIMEOUT, self._transport.abort)
        self._newcomers.enter(self._newcomer, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        self._start += data
        if len(self._start) < 4 and b"AMQP".startswith(self._start):
            return
        assert self._transport is not None
        assert self._timer is not None
        self._timer.cancel()
        self._newcomers.leave(self._newcomer)
        protocol = self._amqp() if self._start.startswith(b"AMQP") else self._http()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(self._start)

    def connection_lost(self, exc: Exception | None) -> None:
        self._newcomers.leave(self._newcomer)
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
        arriving: Callable[[socket.socket], bool],
        newcomers: Newcomers,
    ) -> None:
        """`arriving` sees each socket first and may keep it (a fault), by returning false."""
        self.host = host
        self.port = port
        self._amqp = amqp
        self._http = http
        self._tls = tls
        self._arriving = arriving
        self._newcomers = newcomers
        self._socket: socket.socket | None = None
        self._kept: socket.socket | None = None
        self._loop = asyncio.get_running_loop()
        self._silent: dict[socket.socket, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_listening(self) -> bool:
        return self._socket is not None

    def start(self) -> None:
        """Bind and listen; raises `OSError` if the port is taken."""
        if self._socket is not None:
            return
        listening, self._kept = self._kept or self._bind(), None
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
            why = error.strerror or error
            raise OSError(error.errno, f"cannot listen on {self.host}, port {self.port}: {why}") from error
        return bound

    def stop(self) -> None:
        """Stop listening: new connections are refused by the operating system. The port stays ours."""
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
            try:
                self._kept = self._bind()  # bound and not listening, so that nobody else takes the port
            except OSError as error:
                logger.warning("port %d could not be kept: %s", self.port, error)

    async def close(self) -> None:
        """Stop listening and let go of connections that never said anything."""
        self.stop()
        if self._kept is not None:
            self._kept.close()
            self._kept = None
        for silent in list(self._silent):
            self._forget(silent)
            silent.close()
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
                # Most likely there are no file handles left: asking again at once would only burn time.
                logger.warning("no connection can be accepted for %g s: %s", ACCEPT_PAUSE, error)
                self._loop.remove_reader(self._socket.fileno())
                self._loop.call_later(ACCEPT_PAUSE, self._accept_again, self._socket)
                return
            accepted.setblocking(False)
            if accepted.family in (socket.AF_INET, socket.AF_INET6):
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._arriving(accepted):
                self.serve(accepted)

    def _accept_again(self, listening: socket.socket) -> None:
        if listening is self._socket:
            self._loop.add_reader(listening.fileno(), self._accept)

    def serve(self, accepted: socket.socket) -> None:
        """Look at the first byte when it is there."""
        timer = self._loop.call_later(FIRST_BYTES_TIMEOUT, self._give_up, accepted)
        self._silent[accepted] = timer
        self._loop.add_reader(accepted.fileno(), self._peek, accepted)
        self._newcomers.enter(accepted, lambda: self._give_up(accepted))

    def _forget(self, accepted: socket.socket) -> None:
        self._loop.remove_reader(accepted.fileno())
        self._silent.pop(accepted).cancel()
        self._newcomers.leave(accepted)

    def _give_up(self, accepted: socket.socket) -> None:
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
        self._newcomers.enter(accepted, task.cancel)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, accepted: socket.socket, context: ssl.SSLContext | None) -> None:
        timeout = FIRST_BYTES_TIMEOUT if context is not None else None
        try:
            await self._loop.connect_accepted_socket(
                lambda: Switch(self._amqp, self._http, self._newcomers, accepted),
                accepted,
                ssl=context,
                ssl_handshake_timeout=timeout,
            )
        except (OSError, ssl.SSLError, ConnectionError) as error:
            logger.info("a connection ended before it began: %s", error)
            self._newcomers.leave(accepted)
            accepted.close()
        except asyncio.CancelledError:
            accepted.close()
            raise


def reset(connection: socket.socket) -> None:
    """Close a socket with a TCP reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
    connection.close()
