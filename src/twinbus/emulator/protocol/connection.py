"""Serves one AMQP connection: reads and writes its frames, opens and closes it.

Output is written once per turn of the event loop. Malformed input closes the connection with an AMQP error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec.frames import (
    EMPTY_FRAME,
    FREQUENT,
    MIN_MAX_FRAME_SIZE,
    TYPE_AMQP,
    FramingError,
    frame,
    split_frames,
)
from twinbus.amqp.codec.performatives import Attach, Detach, Disposition, Flow, Transfer, decode_performative
from twinbus.amqp.codec.types import DecodeError

from ..auth.rights import Rights
from ..auth.security import Grant
from ..faults.fault_plan import FaultKind
from ..faults.gates import HeldOperations
from .channel import Channel
from .error_conditions import (
    CONNECTION_FORCED,
    DECODE_ERROR,
    FRAMING_ERROR,
    ILLEGAL_STATE,
    INVALID_FIELD,
    NOT_ALLOWED,
    NOT_FOUND,
    BrokerError,
)
from .handshake import Handshake
from .links import Budget
from .transactions import Transactions

if TYPE_CHECKING:
    from ..server.namespace import Namespace

logger = logging.getLogger("twinbus.emulator.protocol.connection")

HANDSHAKE_TIMEOUT = 60.0
WRITE_HIGH_WATER = 1 << 20
MAX_SHOWN = 100
MAX_UNREAD = 4 << 20
CLOSE_TIMEOUT = 5.0
LINGER_TIMEOUT = 2.0
_LINGER_ZERO = struct.pack("ii", 1, 0)
_UNREAD = "unread"
_ON_CHANNELS = (Transfer, Disposition, Flow, Attach, Detach)


class Connection(asyncio.Protocol):
    """The server's end of one AMQP connection."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.profile = namespace.profile
        self.container = ""
        self.peer_max_frame_size = 4096
        self.channels: dict[int, Channel] = {}
        self.rights = Rights(namespace.clock)
        self.budget = Budget()
        self.transactions = Transactions(namespace.store)
        self.held_operations = HeldOperations(self)
        self.frozen = False
        self.closing = False
        self._write_blocked = False
        self._unread_bytes = 0
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._outgoing: list[bytes] = []
        self._outgoing_size = 0
        self._unflushed = False
        self._is_collecting = False
        self._handshake = Handshake(namespace)
        self._opened = False
        self._peer_idle: float | None = None
        self._loop = asyncio.get_running_loop()
        self.opened_at = self.last_read = self.last_write = self.last_link = self._loop.time()
        self._read_holds: set[object] = set()
        self._abort_timer: asyncio.TimerHandle | None = None

    # ---- asyncio.Protocol ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        self.namespace.connections.add(self)
        self.namespace.unauthenticated.add(self, self.reset)
        blackhole = self.namespace.faults.namespace_fault(FaultKind.BLACKHOLE)
        if blackhole is not None and self.freeze():
            blackhole.fired += 1

    def data_received(self, data: bytes) -> None:
        """Handle received bytes. Their messages are committed together and their answers leave in one write."""
        if self.closing:
            return
        if data:
            self.last_read = self._loop.time()
        if self.frozen:
            self._buffer += data
            return
        store = self.namespace.store
        self._is_collecting = store.collecting = True
        try:
            if self._handshake.is_done:
                self._read_frames(data)
            else:
                self._read_handshake(data)
        except Exception as error:
            self._fail(error)
        is_pressed = store.write_collected()
        self._is_collecting = False
        if self._unflushed:
            self._flush()
        if is_pressed and store not in self._read_holds:
            self.hold_reading(store)
            store.when_relieved(lambda: self.release_reading(store))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = True
        self._transport = None
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        self._buffer.clear()
        for channel in self.channels.values():
            channel.drop()
        self.channels.clear()
        self.namespace.unauthenticated.remove(self)
        self.namespace.connection_ended(self)

    def pause_writing(self) -> None:
        self._write_blocked = True

    def resume_writing(self) -> None:
        self._write_blocked = False
        self._unread_bytes = 0
        self.release_reading(_UNREAD)
        self.wake_links()

    @property
    def blocked(self) -> bool:
        """Whether deliveries should wait: the client does not read, or faults hold too much."""
        return (
            self._write_blocked or self.frozen or self.held_operations.is_full or self._outgoing_size > WRITE_HIGH_WATER
        )

    def wake_links(self) -> None:
        for channel in list(self.channels.values()):
            channel.wake_links()

    # ---- faults and pressure ----

    def freeze(self) -> bool:
        """Stop reading and writing, like a network that swallows everything; false if frozen already."""
        if self.frozen:
            return False
        self.frozen = True
        self.hold_reading(FaultKind.BLACKHOLE)
        return True

    def thaw(self) -> None:
        """Go on reading and writing, including what was held meanwhile."""
        if not self.frozen:
            return
        self.frozen = False
        self.data_received(b"")
        self.release_reading(FaultKind.BLACKHOLE)
        self._flush()
        self.wake_links()

    def hold_reading(self, reason: object) -> None:
        """Stop reading until every reason is released."""
        if not self._read_holds and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._read_holds.add(reason)

    def release_reading(self, reason: object) -> None:
        if reason not in self._read_holds:
            return
        self._read_holds.remove(reason)
        if not self._read_holds and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def reset(self) -> None:
        """Cut the connection with a TCP reset."""
        if self._transport is None:
            return
        raw = self._transport.get_extra_info("socket")
        if raw is not None:
            # The socket under a WebSocket may be closed already.
            with contextlib.suppress(OSError, ValueError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
        self.closing = True
        self._transport.abort()

    def cut(self) -> None:
        """Write the answers so far, then reset the connection."""
        self._flush()
        self.reset()

    # ---- reading ----

    def guard(self, action: Callable[[], object]) -> None:
        """Call `action`; if it raises, close the connection with the matching error."""
        try:
            action()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Close the connection with the AMQP error for an exception."""
        if isinstance(error, FramingError):
            self.close(BrokerError(FRAMING_ERROR, str(error)), linger=True)
        elif isinstance(error, DecodeError):
            self.close(BrokerError(DECODE_ERROR, str(error)), linger=True)
        elif isinstance(error, BrokerError):
            self.close(error, linger=True)
        else:
            logger.error("handling a frame failed on a connection of %s", self.namespace.name, exc_info=error)
            self.close(BrokerError("amqp:internal-error", "The namespace could not process the frame."))

    def _read_handshake(self, data: bytes) -> None:
        """Answer protocol headers and SASL, then read the frames that follow."""
        handshake = self._handshake
        self._buffer += data
        while (
            not self.closing and not self.frozen and not handshake.is_done and (answer := handshake.read(self._buffer))
        ):
            self.send(answer)
            if handshake.is_refused:
                self._finish()
        if handshake.is_done:
            if handshake.grant is not None:
                self.trust("", handshake.grant)
            if not self.closing and not self.frozen:
                self._read_frames(b"")

    def _read_frames(self, data: bytes) -> None:
        channels = self.channels
        for frame_type, number, body in split_frames(self._buffer, self.profile.max_frame_size, data):
            if frame_type != TYPE_AMQP:
                raise FramingError(f"a frame of type {frame_type} is not expected here")
            if body:
                performative: Any
                read = FREQUENT.get(body[:4])
                performative, pos = (read(body) if read else None) or decode_performative(body, 0)
                kind = type(performative)
                channel = channels.get(number)
                if channel is None:
                    self._handle(number, performative)
                elif kind is Transfer:
                    channel.on_transfer(performative, body[pos:])
                elif kind is Disposition:
                    channel.on_disposition(performative)
                elif kind is Flow:
                    channel.on_flow(performative)
                elif kind is Attach:
                    channel.on_attach(performative)
                elif kind is Detach:
                    channel.on_detach(performative)
                else:
                    self._handle(number, performative)
            if self.closing or self.frozen:
                return

    def _handle(self, number: int, performative: Any) -> None:
        """Handle a frame of the connection, or for a channel that does not exist."""
        kind = type(performative)
        if kind is amqp.Open:
            self._on_open(number, performative)
        elif not self._opened:
            raise BrokerError(ILLEGAL_STATE, "The first frame of a connection must be an open.")
        elif kind is amqp.Begin:
            self._on_begin(number, performative)
        elif kind is amqp.End:
            channel = self.channels.pop(number, None)
            if channel is not None:
                channel.drop()
                self.send(frame(number, amqp.End()))
        elif kind is amqp.Close:
            self.send(frame(0, amqp.Close()))
            self._finish()
        elif kind not in _ON_CHANNELS:  # frames for an ended channel are just late
            raise BrokerError(NOT_ALLOWED, f"A {kind.__name__} frame is not expected here.")

    def _on_open(self, number: int, opened: amqp.Open) -> None:
        if self._opened or number != 0:
            raise BrokerError(NOT_ALLOWED, "A connection is opened once, on channel 0.")
        size = opened.max_frame_size if opened.max_frame_size is not None else 0xFFFFFFFF
        if size < MIN_MAX_FRAME_SIZE:
            raise BrokerError(INVALID_FIELD, f"max-frame-size must be at least {MIN_MAX_FRAME_SIZE}.")
        if self.profile.enforces:
            self._check_host(opened.hostname)
        self._opened = True
        if not self.rights.is_trusted:
            self.namespace.unauthenticated.add(self, self.reset)
        self.container = opened.container_id
        self.peer_max_frame_size = min(size, self.profile.max_frame_size)
        if opened.idle_time_out:
            self._peer_idle = opened.idle_time_out / 1000
        self.send(
            frame(
                0,
                amqp.Open(
                    container_id=self.namespace.name,
                    max_frame_size=self.profile.max_frame_size,
                    channel_max=self.profile.channel_max,
                    idle_time_out=int(self.profile.idle_timeout * 1000),
                ),
            )
        )

    def _check_host(self, host: str | None) -> None:
        """Require a host name of this namespace, by which the service finds the namespace."""
        if not host:
            raise BrokerError(INVALID_FIELD, "The open frame must name the host.")
        if not self.namespace.has_host_name(host):
            raise BrokerError(NOT_FOUND, f"There is no namespace at the host '{host[:MAX_SHOWN]}'.")

    def _on_begin(self, number: int, begin: amqp.Begin) -> None:
        if number in self.channels:
            raise BrokerError(NOT_ALLOWED, f"Channel {number} has a session already.")
        if number > self.profile.channel_max:
            raise BrokerError(NOT_ALLOWED, f"The highest channel is {self.profile.channel_max}.")
        channel = self.channels[number] = Channel(self, number, begin)
        channel.begin()

    # ---- writing ----

    def send(self, data: bytes) -> None:
        """Queue bytes, to be written at the end of this turn of the event loop."""
        self._outgoing.append(data)
        self._outgoing_size += len(data)
        if not self._unflushed:
            self.flush_soon()

    def flush_soon(self) -> None:
        """Flush at the end of this turn, including the channels' collected acknowledgements."""
        if not self._unflushed:
            self._unflushed = True
            if not self._is_collecting:
                self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._unflushed = True  # so that what the channels add now schedules no other flush
        for channel in self.channels.values():
            channel.before_flush()
        self._unflushed = False
        outgoing = self._outgoing
        if self.closing:  # no frame may follow the close
            outgoing.clear()
        if not outgoing or self._transport is None or self.frozen:
            return
        data = outgoing[0] if len(outgoing) == 1 else b"".join(outgoing)
        outgoing.clear()
        self._outgoing_size = 0
        self.last_write = self._loop.time()
        self._transport.write(data)
        if self._write_blocked:
            # The client does not read its answers: stop reading its requests.
            self._unread_bytes += len(data)
            if self._unread_bytes > MAX_UNREAD:
                self.hold_reading(_UNREAD)
        elif len(data) > WRITE_HIGH_WATER:
            self.wake_links()  # there was no room for more

    # ---- rights ----

    def trust(self, audience: str, grant: Grant) -> None:
        """Add a grant; the connection counts as authenticated now."""
        self.rights.remember(audience, grant)
        self.namespace.unauthenticated.remove(self)

    def expire_tokens(self, path: str, error: BrokerError) -> None:
        """Drop the grants that cover this path, and detach its links."""
        self.rights.forget(path)
        for channel in list(self.channels.values()):
            for link in list(channel.links.values()):
                if link.path is not None and link.path.lower() == path.lower():
                    channel.detach(link, error)

    def paths(self) -> set[str]:
        """The paths of the entities that this connection has links to."""
        links = [link for channel in self.channels.values() for link in channel.links.values()]
        return {link.path for link in links if link.path is not None}

    # ---- time ----

    def tick(self, now: float) -> None:
        """Once a second: keep the connection alive, and end what was idle too long."""
        if self.frozen or self._transport is None:
            return
        if not self._opened:
            if now - self.opened_at > HANDSHAKE_TIMEOUT:
                self.reset()
            return
        if self._peer_idle is not None and now - self.last_write >= self._peer_idle / 2:
            self.send(EMPTY_FRAME)
        if self._read_holds and self._read_holds != {_UNREAD}:
            return  # reading is held: the client may have sent frames, even a new token
        if now - self.last_read > self.profile.idle_timeout:
            self.close(BrokerError(CONNECTION_FORCED, "The connection was idle for longer than its idle time-out."))
            return
        had_links = bool(self.paths())  # the link to $cbs does not count
        for channel in list(self.channels.values()):
            channel.tick(now)
        if had_links:
            self.last_link = now
        elif self.profile.connection_idle is not None and now - self.last_link > self.profile.connection_idle:
            seconds = self.profile.connection_idle
            self.close(
                BrokerError(
                    CONNECTION_FORCED,
                    f"The connection was inactive for more than the allowed {seconds * 1000:.0f} milliseconds"
                    " and is closed by container 'LinkTracker'.",
                )
            )

    # ---- ending ----

    def close(self, error: BrokerError | None = None, *, linger: bool = False) -> None:
        """Send a close, with an error if given, and end the connection.

        With `linger`, incoming bytes are discarded for a moment: closing a socket with unread bytes would reset the
        connection, and the client would not read the error.
        """
        if self.closing:
            return
        if self._opened:
            self.send(frame(0, amqp.Close(None if error is None else error.performative())))
        elif error is not None and self._handshake.is_done:
            self.send(frame(0, amqp.Open(container_id=self.namespace.name)))
            self.send(frame(0, amqp.Close(error.performative())))
        if error is not None:
            logger.info("%s closed a connection: %s", self.namespace.name, error)
        self._finish(linger)

    def _finish(self, linger: bool = False) -> None:
        self._flush()
        self.closing = True
        for channel in self.channels.values():
            channel.drop()
        self.channels.clear()
        self._buffer.clear()
        if self._transport is None:
            return
        if linger and not self._read_holds and self._transport.can_write_eof():
            self._transport.write_eof()
            self._abort_timer = self._loop.call_later(LINGER_TIMEOUT, self._transport.abort)
        else:
            self._transport.close()
            # A client that does not read would keep the socket and its pending bytes forever.
            self._abort_timer = self._loop.call_later(CLOSE_TIMEOUT, self._transport.abort)
