"""One AMQP connection of a client: frames in and out, and how it begins and ends.

Bytes come in through asyncio's protocol interface and leave coalesced, once per turn of the event loop.
Anything malformed closes the connection with an AMQP error; the server goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from twinbus.amqp import performatives as amqp
from twinbus.amqp.frames import (
    EMPTY_FRAME,
    FREQUENT,
    MIN_MAX_FRAME_SIZE,
    TYPE_AMQP,
    FramingError,
    frame,
    split_frames,
)
from twinbus.amqp.performatives import Attach, Detach, Disposition, Flow, Transfer, decode_performative
from twinbus.amqp.types import DecodeError

from .channel import Channel
from .errors import (
    CONNECTION_FORCED,
    DECODE_ERROR,
    FRAMING_ERROR,
    ILLEGAL_STATE,
    INVALID_FIELD,
    NOT_ALLOWED,
    NOT_FOUND,
    BrokerError,
)
from .faults import Kind
from .gates import HeldBack
from .greeting import Greeting
from .links import Budget
from .rights import Rights
from .security import Grant
from .transactions import Transactions

if TYPE_CHECKING:
    from .namespace import Namespace

logger = logging.getLogger("twinbus.broker.connection")

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
    """The server's end of a connection."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.profile = namespace.profile
        self.container = ""
        self.peer_max_frame_size = 4096
        self.channels: dict[int, Channel] = {}
        self.rights = Rights(namespace.clock)
        self.budget = Budget()
        self.transactions = Transactions(namespace.store)
        self.held_back = HeldBack(self)
        self.frozen = False
        self.closing = False
        self._write_blocked = False
        self._unread = 0
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._out: list[bytes] = []
        self._out_size = 0
        self._unflushed = False
        self._collecting = False
        self._greeting = Greeting(namespace)
        self._opened = False
        self._peer_idle: float | None = None
        self._loop = asyncio.get_running_loop()
        self.opened_at = self.last_read = self.last_write = self.last_link = self._loop.time()
        self._holds: set[object] = set()
        self._ending: asyncio.TimerHandle | None = None

    # ---- asyncio's side ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        self.namespace.connections.add(self)
        self.namespace.newcomers.enter(self, self.reset)
        black = self.namespace.faults.standing(Kind.BLACKHOLE)
        if black is not None and self.freeze():
            black.fired += 1

    def data_received(self, data: bytes) -> None:
        """Handle what has been read. What it stores is committed together, and its answers leave in one write."""
        if self.closing:
            return
        if data:
            self.last_read = self._loop.time()
        if self.frozen:
            self._buffer += data
            return
        store = self.namespace.store
        self._collecting = store.collecting = True
        try:
            if self._greeting.is_done:
                self._read_frames(data)
            else:
                self._read_greeting(data)
        except Exception as error:
            self._fail(error)
        is_pressed = store.write_collected()
        self._collecting = False
        if self._unflushed:
            self._flush()
        if is_pressed and store not in self._holds:
            self.hold_reading(store)
            store.when_relieved(lambda: self.release_reading(store))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = True
        self._transport = None
        if self._ending is not None:
            self._ending.cancel()
        self._buffer.clear()
        for channel in self.channels.values():
            channel.drop()
        self.channels.clear()
        self.namespace.newcomers.leave(self)
        self.namespace.connection_ended(self)

    def pause_writing(self) -> None:
        self._write_blocked = True

    def resume_writing(self) -> None:
        self._write_blocked = False
        self._unread = 0
        self.release_reading(_UNREAD)
        self.wake_links()

    @property
    def blocked(self) -> bool:
        """Whether deliveries should wait: the client does not take what it has been sent, or a fault keeps too much."""
        return self._write_blocked or self.frozen or self.held_back.is_full or self._out_size > WRITE_HIGH_WATER

    def wake_links(self) -> None:
        for channel in list(self.channels.values()):
            channel.wake_links()

    # ---- faults and pressure ----

    def freeze(self) -> bool:
        """Stop reading and writing, as if the network had swallowed everything; false if it is so already."""
        if self.frozen:
            return False
        self.frozen = True
        self.hold_reading(Kind.BLACKHOLE)
        return True

    def thaw(self) -> None:
        """What was held up in both directions goes on, late."""
        if not self.frozen:
            return
        self.frozen = False
        self.data_received(b"")
        self.release_reading(Kind.BLACKHOLE)
        self._flush()
        self.wake_links()

    def hold_reading(self, why: object) -> None:
        """Read no more until everyone who asked for this has released it."""
        if not self._holds and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._holds.add(why)

    def release_reading(self, why: object) -> None:
        if why not in self._holds:
            return
        self._holds.remove(why)
        if not self._holds and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def reset(self) -> None:
        """Cut the connection with a TCP reset."""
        if self._transport is None:
            return
        raw = self._transport.get_extra_info("socket")
        if raw is not None:
            # The socket under a WebSocket is closed before this connection hears of it.
            with contextlib.suppress(OSError, ValueError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
        self.closing = True
        self._transport.abort()

    def cut(self) -> None:
        """Write what was answered so far, then reset."""
        self._flush()
        self.reset()

    # ---- reading ----

    def guard(self, act: Callable[[], object]) -> None:
        """Run `act`, and close the connection with the right error if it raises."""
        try:
            act()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Close the connection with the error that says what is wrong."""
        if isinstance(error, FramingError):
            self.close(BrokerError(FRAMING_ERROR, str(error)), linger=True)
        elif isinstance(error, DecodeError):
            self.close(BrokerError(DECODE_ERROR, str(error)), linger=True)
        elif isinstance(error, BrokerError):
            self.close(error, linger=True)
        else:
            logger.error("a connection of %s failed", self.namespace.name, exc_info=error)
            self.close(BrokerError("amqp:internal-error", "The namespace could not process the frame."))

    def _read_greeting(self, data: bytes) -> None:
        """Answer the protocol headers and SASL, then read what follows them."""
        greeting = self._greeting
        self._buffer += data
        while not self.closing and not self.frozen and not greeting.is_done and (answer := greeting.read(self._buffer)):
            self.send(answer)
            if greeting.is_refused:
                self._finish()
        if greeting.is_done:
            if greeting.grant is not None:
                self.trust("", greeting.grant)
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
        """A frame that is not for a channel which is there."""
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
        elif kind not in _ON_CHANNELS:  # frames on an ended channel are late, not wrong
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
            self.namespace.newcomers.enter(self, self.reset)
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
        """The service finds the namespace by the host name, so it must be given, and be one of ours."""
        if not host:
            raise BrokerError(INVALID_FIELD, "The open frame must name the host.")
        if not self.namespace.is_called(host):
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
        """Queue bytes; they leave together at the end of this turn of the event loop."""
        self._out.append(data)
        self._out_size += len(data)
        if not self._unflushed:
            self.flush_soon()

    def flush_soon(self) -> None:
        """Have the channels' collected acknowledgements written at the end of this turn."""
        if not self._unflushed:
            self._unflushed = True
            if not self._collecting:
                self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._unflushed = True  # what the channels add now goes along: no other turn is needed for it
        for channel in self.channels.values():
            channel.before_flush()
        self._unflushed = False
        out = self._out
        if self.closing:  # what was stored meanwhile: nothing may follow the last frame
            out.clear()
        if not out or self._transport is None or self.frozen:
            return
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        self._out_size = 0
        self.last_write = self._loop.time()
        self._transport.write(data)
        if self._write_blocked:
            # Answers to someone who does not read them: stop taking questions.
            self._unread += len(data)
            if self._unread > MAX_UNREAD:
                self.hold_reading(_UNREAD)
        elif len(data) > WRITE_HIGH_WATER:
            self.wake_links()  # there was no room for more

    # ---- rights ----

    def trust(self, audience: str, grant: Grant) -> None:
        """It has shown what it may do."""
        self.rights.remember(audience, grant)
        self.namespace.newcomers.leave(self)

    def expire_tokens(self, path: str, error: BrokerError) -> None:
        """Forget the tokens that reach this path, and detach its links."""
        self.rights.forget(path)
        for channel in list(self.channels.values()):
            for link in list(channel.links.values()):
                if link.path is not None and link.path.lower() == path.lower():
                    channel.detach(link, error)

    def paths(self) -> set[str]:
        """The entities that this connection has links to."""
        links = [link for channel in self.channels.values() for link in channel.links.values()]
        return {link.path for link in links if link.path is not None}

    # ---- time ----

    def tick(self, now: float) -> None:
        """Once a second: keep the connection alive, or end what was idle for too long."""
        if self.frozen or self._transport is None:
            return
        if not self._opened:
            if now - self.opened_at > HANDSHAKE_TIMEOUT:
                self.reset()
            return
        if self._peer_idle is not None and now - self.last_write >= self._peer_idle / 2:
            self.send(EMPTY_FRAME)
        if self._holds and self._holds != {_UNREAD}:
            return  # it may have said anything, and shown a new token: it is we who do not read
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
        """Say why, and end the connection.

        With `linger` what the client is still sending is taken and thrown away for a moment: closing a socket with
        unread bytes would reset the connection, and the client would never read why.
        """
        if self.closing:
            return
        if self._opened:
            self.send(frame(0, amqp.Close(None if error is None else error.performative())))
        elif error is not None and self._greeting.is_done:
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
        if linger and not self._holds and self._transport.can_write_eof():
            self._transport.write_eof()
            self._ending = self._loop.call_later(LINGER_TIMEOUT, self._transport.abort)
        else:
            self._transport.close()
            # A client that reads nothing would keep what is still to be written, and the socket, for ever.
            self._ending = self._loop.call_later(CLOSE_TIMEOUT, self._transport.abort)
