"""Reads and writes the bytes of one connection: headers, login, frames, keep-alive.

Writes are coalesced once per turn of the event loop. Frames go to their session. Every failure goes through `fail`,
which gives its reason to everything that waits for the connection.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import twinbus
from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec.frames import (
    AMQP_HEADER,
    EMPTY_FRAME,
    FREQUENT,
    MIN_MAX_FRAME_SIZE,
    SASL_HEADER,
    TYPE_AMQP,
    TYPE_SASL,
    FramingError,
    frame,
    split_frames,
)
from twinbus.amqp.codec.performatives import decode_performative
from twinbus.amqp.codec.types import DecodeError, Symbol

from .errors import AmqpError, AuthenticationFailedError, ConnectionLostError

if TYPE_CHECKING:
    from .session import Session

logger = logging.getLogger("twinbus.amqp.client.wire")

MAX_FRAME_SIZE = 65536
CHANNEL_MAX = 4999
WRITE_HIGH_WATER = 1 << 20
# Frames are written as soon as this many are queued, so that the peer works while we encode more.
FRAMES_PER_WRITE = 128
# In order of preference. Tokens authorize each link, so the login proves nothing.
MECHANISMS = ("ANONYMOUS", "MSSBCBS")
CLOSED_HERE = "the connection was closed here"
MIN_TICK, MAX_TICK = 0.01, 1.0


class Wire(asyncio.Protocol):
    """Our end of a connection."""

    def __init__(self, hostname: str, idle_timeout: float, on_lost: Callable[[AmqpError], None]) -> None:
        """The connection fails when the peer has sent nothing for `idle_timeout` seconds."""
        self._loop = asyncio.get_running_loop()
        self._hostname = hostname
        self._idle_timeout = idle_timeout
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._out: list[bytes] = []
        self._flush_scheduled = False
        self._stage = self._read_header
        self._logged_in = False
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None
        self._keep_alive: float | None = None
        self._ours: dict[int, Session] = {}
        self._theirs: dict[int, Session] = {}
        self.error: AmqpError | None = None
        self.blocked = False
        self.max_frame_size = MIN_MAX_FRAME_SIZE
        self.channel_max = 0
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self.last_read = self.last_write = self._loop.time()

    # ---- called by asyncio ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        self.write(SASL_HEADER)

    def data_received(self, data: bytes) -> None:
        self.last_read = self._loop.time()
        self._buffer += data
        try:
            while self.error is None and self._stage():
                pass
        except FramingError as error:
            self._violated("amqp:connection:framing-error", str(error))
        except DecodeError as error:
            self._violated("amqp:decode-error", str(error))
        except AmqpError as error:
            self.fail(error)
        except Exception as error:
            # Only a callback of a link's user raises anything else. Going on would lose track of deliveries.
            logger.exception("A callback raised on the connection to %s", self._hostname)
            lost = ConnectionLostError(f"ended here because a callback raised {type(error).__name__}")
            lost.__cause__ = error
            self.fail(lost)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self.error is None:
            self.error = ConnectionLostError(
                f"the connection was cut: {exc}" if exc else "the peer ended the connection"
            )
            self.error.__cause__ = exc
        self._transport = None
        self._buffer.clear()
        self._out.clear()
        if self._timer is not None:
            self._timer.cancel()
        sessions = list(self._ours.values())
        self._ours.clear()
        self._theirs.clear()
        for session in sessions:
            session.lost(self.error)
        if not self.opened.done():
            self.opened.set_exception(self.error)
            self.opened.exception()  # mark it as retrieved: the opening task may be gone
        self.lost.set_result(None)
        self._on_lost(self.error)

    def pause_writing(self) -> None:
        self.blocked = True

    def resume_writing(self) -> None:
        self.blocked = False
        for session in list(self._ours.values()):
            session.wake()

    # ---- ending ----

    def fail(self, error: AmqpError) -> None:
        """Abort the connection. The first error is the one reported."""
        if self.error is None:
            self.error = error
        if self._transport is not None:
            self._transport.abort()

    async def end(self, error: AmqpError) -> None:
        """Abort the connection, and wait until it is gone."""
        self.fail(error)
        if self._transport is not None:
            await asyncio.wait([self.lost])

    def _violated(self, condition: str, reason: str) -> None:
        """Fail the connection over a protocol violation, after a close frame with the reason."""
        if self.opened.done() and self.error is None:
            self.write(frame(0, amqp.Close(amqp.Error(condition, reason, {}))))
            self._flush()
        self.fail(ConnectionLostError(f"the peer broke the protocol: {reason}", condition))

    async def close(self, seconds: float) -> None:
        """Send a close frame and wait at most `seconds` for the answer. The connection is gone afterwards."""
        try:
            if self.error is None and self.opened.done() and self._transport is not None:
                if not self._closing:
                    self._closing = True
                    self.write(frame(0, amqp.Close()))
                    self._flush()
                await asyncio.wait([self.lost], timeout=seconds)
        finally:
            await self.end(ConnectionLostError(CLOSED_HERE))

    # ---- reading ----

    def _read_header(self) -> bool:
        if len(self._buffer) < 8:
            return False
        header = bytes(self._buffer[:8])
        del self._buffer[:8]
        if header != (AMQP_HEADER if self._logged_in else SASL_HEADER):
            raise ConnectionLostError(f"expected an AMQP 1.0 header from the peer, got {header!r}")
        if self._logged_in:
            self.write(frame(0, self._open_frame()))
            self._stage = self._read_frames
        else:
            self._stage = self._read_login
        return True

    def _read_login(self) -> bool:
        for frame_type, _, body in split_frames(self._buffer, MAX_FRAME_SIZE):
            if frame_type != TYPE_SASL:
                raise FramingError(f"expected a SASL frame during the login, got type {frame_type}")
            performative, _ = decode_performative(body, 0)
            if type(performative) is amqp.SaslMechanisms:
                offered = performative.sasl_server_mechanisms
                offered = [offered] if isinstance(offered, str) else offered
                chosen = next((mechanism for mechanism in MECHANISMS if mechanism in offered), None)
                if chosen is None:
                    raise AuthenticationFailedError(
                        f"the peer offers none of the SASL mechanisms {', '.join(MECHANISMS)}"
                    )
                init = amqp.SaslInit(chosen, chosen.encode() if chosen == "ANONYMOUS" else None, self._hostname)
                self.write(frame(0, init, frame_type=TYPE_SASL))
            elif type(performative) is amqp.SaslOutcome:
                if performative.code != 0:
                    raise AuthenticationFailedError(f"the peer refused the login with code {performative.code}")
                self._logged_in = True
                self.write(AMQP_HEADER)
                self._stage = self._read_header
                return True
            else:
                raise FramingError(f"unexpected {type(performative).__name__} frame during the login")
        return False

    def _open_frame(self) -> amqp.Open:
        return amqp.Open(
            container_id=f"twinbus-{uuid.uuid4()}",
            hostname=self._hostname,
            max_frame_size=MAX_FRAME_SIZE,
            channel_max=CHANNEL_MAX,
            # Half of ours, so that a conforming peer is heard twice before we give up.
            idle_time_out=int(self._idle_timeout * 500),
            properties={Symbol("product"): "twinbus", Symbol("version"): twinbus.__version__},
        )

    def _read_frames(self) -> bool:
        theirs = self._theirs
        for frame_type, number, body in split_frames(self._buffer, MAX_FRAME_SIZE):
            if frame_type != TYPE_AMQP:
                raise FramingError(f"expected a frame of type {TYPE_AMQP}, got {frame_type}")
            if not body:
                continue
            read = FREQUENT.get(body[:4])
            performative, pos = (read(body) if read else None) or decode_performative(body, 0)
            session = theirs.get(number)
            if session is not None and type(performative) is amqp.Transfer:
                session.on_transfer(performative, body[pos:])
            else:
                self._handle(number, performative, session)
            if self.error is not None:
                return False
        return False

    def _handle(self, number: int, performative: Any, session: Session | None) -> None:
        kind = type(performative)
        if kind is amqp.Open:
            self._on_open(performative)
        elif kind is amqp.Close:
            self._on_close(performative)
        elif kind is amqp.Begin:
            ours = self._ours.get(performative.remote_channel)
            if ours is None or number in self._theirs:
                self._violated("amqp:not-allowed", "the peer began a session that was not requested")
                return
            self._theirs[number] = ours
            ours.on_begin(performative)
        elif session is None:
            return  # late frames of an ended session
        elif kind is amqp.End:
            del self._theirs[number]
            session.on_end(performative)
        else:
            session.handle(performative)

    def _on_open(self, opened: amqp.Open) -> None:
        size = opened.max_frame_size if opened.max_frame_size is not None else MAX_FRAME_SIZE
        if self.opened.done() or size < MIN_MAX_FRAME_SIZE:
            self._violated("amqp:invalid-field", f"a second open, or a frame size below {MIN_MAX_FRAME_SIZE}")
            return
        self.max_frame_size = min(size, MAX_FRAME_SIZE)
        self.channel_max = min(CHANNEL_MAX, 65535 if opened.channel_max is None else opened.channel_max)
        if opened.idle_time_out:
            self._keep_alive = opened.idle_time_out / 2000
        if not self.opened.done():
            self.opened.set_result(None)
        self._tick()

    def _on_close(self, close: amqp.Close) -> None:
        if self._closing:
            self.error = ConnectionLostError(CLOSED_HERE)
        else:
            self.write(frame(0, amqp.Close()))
            self._flush()
            error = close.error or amqp.Error("", "the peer closed the connection")
            self.error = ConnectionLostError(error.description or "", error.condition, error.info)
        if self._transport is not None:
            self._transport.close()
            # A peer that does not read would hold up the close for ever.
            self._set_timer(MAX_TICK, self.fail, self.error)

    # ---- sessions ----

    def add_session(self, make: Callable[[int], Session]) -> Session:
        """Add a session on a free channel. Raises `AmqpError` if there is none, or the connection's error."""
        self.check()
        number = next((channel for channel in range(self.channel_max + 1) if channel not in self._ours), None)
        if number is None:
            raise AmqpError(f"the peer allows at most {self.channel_max + 1} sessions", "amqp:not-allowed")
        session = self._ours[number] = make(number)
        return session

    def forget_session(self, number: int) -> None:
        self._ours.pop(number, None)

    # ---- writing ----

    def check(self) -> None:
        """Raise the connection's error if it has ended."""
        if self.error is not None:
            raise self.error.with_traceback(None)
        if self._closing:
            raise ConnectionLostError(CLOSED_HERE)

    def write(self, data: bytes) -> None:
        """Queue bytes to be written at the end of this turn of the event loop."""
        out = self._out
        out.append(data)
        if len(out) >= FRAMES_PER_WRITE:
            self._write_out()
        elif not self._flush_scheduled:
            self.flush_soon()

    def flush_soon(self) -> None:
        """Write what the sessions collected at the end of this turn."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        for session in self._ours.values():
            session.write_collected()
        self._flush_scheduled = False
        self._write_out()

    def _write_out(self) -> None:
        if self._out and self._transport is not None:
            self.last_write = self._loop.time()
            self._transport.write(b"".join(self._out))
        self._out.clear()

    # ---- time ----

    def _tick(self) -> None:
        now = self._loop.time()
        if now - self.last_read > self._idle_timeout:
            self.fail(ConnectionLostError(f"the peer sent nothing for {self._idle_timeout:g} seconds"))
            return
        if self._keep_alive is not None and now - self.last_write >= self._keep_alive:
            self.write(EMPTY_FRAME)
        for session in list(self._ours.values()):
            session.tick(now)
        waits = [MAX_TICK, self._idle_timeout / 4, *(session.outcome_timeout / 4 for session in self._ours.values())]
        if self._keep_alive is not None:
            # Early is fine, late is not.
            waits.append(self._keep_alive / 4)
        self._set_timer(max(MIN_TICK, min(waits)), self._tick)

    def _set_timer(self, seconds: float, call: Callable[..., None], *args: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, call, *args)
