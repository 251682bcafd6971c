"""A client that sends AMQP frame by frame, valid or not, and returns the answers."""

from __future__ import annotations

import asyncio
import itertools
import socket
from types import TracebackType
from typing import Any, Self, TypeVar

from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec import sections
from twinbus.amqp.codec.frames import AMQP_HEADER, SASL_HEADER, TYPE_SASL, frame, split_frames
from twinbus.emulator import Namespace
from twinbus.emulator.auth.security import ROOT_POLICY

MAX_FRAME = 65536
WINDOW = 0x7FFFFFFF
PATIENCE = 60.0  # seconds to wait for an answer
_P = TypeVar("_P")
_NUMBERS = itertools.count(1)


class ConnectionEndedError(Exception):
    """The namespace ended the connection."""


class Peer:
    """One connection, in an `async with` block; it sends nothing by itself."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self.name = f"peer-{next(_NUMBERS)}"
        self._buffer = bytearray()
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)  # otherwise the kernel grows it to megabytes
        raw.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", self._namespace.port))
        except OSError:
            raw.close()
            raise
        self._reader, self._writer = await asyncio.open_connection(sock=raw)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._writer.transport.abort()

    # ---- sending ----

    def write(self, *data: bytes) -> None:
        """Send bytes in one write."""
        self._writer.write(b"".join(data))

    def send(self, *performatives: Any, channel: int = 0) -> None:
        """Send frames in one write."""
        self.write(*(frame(channel, performative) for performative in performatives))

    async def drain(self) -> None:
        """Wait until the write buffer has room."""
        await self._writer.drain()

    def stop_reading(self) -> None:
        """Stop reading from the socket."""
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def end(self) -> None:
        """Shut down the sending direction."""
        self._writer.write_eof()

    async def authenticate(self, mechanism: str = "PLAIN", response: bytes | None = None) -> int:
        """Authenticate with SASL, by default with the root key; returns the outcome code."""
        if mechanism == "PLAIN" and response is None:
            policy = self._namespace.policy(ROOT_POLICY)
            response = f"\0{policy.name}\0{policy.primary_key}".encode()
        self.write(SASL_HEADER)
        assert await self.header() == SASL_HEADER
        await self.expect(amqp.SaslMechanisms)
        self.write(frame(0, amqp.SaslInit(mechanism, response), frame_type=TYPE_SASL))
        return (await self.expect(amqp.SaslOutcome)).code

    async def open(self, mechanism: str = "PLAIN", **fields: Any) -> amqp.Open:
        """Authenticate and open the connection; `fields` are those of the open frame."""
        assert await self.authenticate(mechanism) == 0
        return await self.start(**fields)

    async def start(self, **fields: Any) -> amqp.Open:
        """Send the AMQP header and the open frame, after SASL."""
        self.write(AMQP_HEADER)
        assert await self.header() == AMQP_HEADER
        opened = amqp.Open(self.name, hostname="127.0.0.1", max_frame_size=MAX_FRAME)
        self.send(opened._replace(**fields))
        return await self.expect(amqp.Open)

    async def begin(self, channel: int = 0, **fields: Any) -> amqp.Begin:
        """Begin a session."""
        begin = amqp.Begin(next_outgoing_id=0, incoming_window=WINDOW, outgoing_window=WINDOW)
        self.send(begin._replace(**fields), channel=channel)
        return await self.expect(amqp.Begin)

    async def attach_sender(self, entity: str, handle: int = 0, channel: int = 0) -> amqp.Flow:
        """Attach a sender; returns the flow with its credit."""
        self.send(sender_attach(entity, handle), channel=channel)
        await self.expect(amqp.Attach)
        return await self.expect(amqp.Flow)

    async def attach_receiver(self, entity: str, handle: int = 0, channel: int = 0) -> amqp.Attach:
        """Attach a receiver without credit."""
        self.send(receiver_attach(entity, handle), channel=channel)
        return await self.expect(amqp.Attach)

    # ---- receiving ----

    async def header(self) -> bytes:
        """Read a protocol header; raises `ConnectionEndedError`."""
        while len(self._buffer) < 8:
            await self._read()
        header = bytes(self._buffer[:8])
        del self._buffer[:8]
        return header

    async def _read(self) -> None:
        try:
            data = await asyncio.wait_for(self._reader.read(1 << 16), PATIENCE)
        except ConnectionError as error:
            raise ConnectionEndedError(str(error)) from error
        if not data:
            raise ConnectionEndedError("the connection was closed")
        self._buffer += data

    async def next(self) -> Any:
        """The next performative; raises `ConnectionEndedError`."""
        while True:
            for _, _, body in split_frames(self._buffer, MAX_FRAME):
                if body:
                    return amqp.decode_performative(body, 0)[0]
            await self._read()

    async def rest(self) -> bytes:
        """Read until the connection ends."""
        try:
            while True:
                await self._read()
        except ConnectionEndedError:
            return bytes(self._buffer)

    async def response(self) -> tuple[int, bytes]:
        """The status and body of the next management response."""
        while True:
            for _, _, body in split_frames(self._buffer, MAX_FRAME):
                performative, pos = amqp.decode_performative(body, 0) if body else (None, 0)
                assert not isinstance(performative, amqp.Close), performative
                if isinstance(performative, amqp.Transfer):
                    parts = sections.split_sections(body[pos:])
                    entries = dict(sections.map_entries(parts.application_properties))
                    return int(sections.entry_value(entries["statusCode"])), parts.body
            await self._read()

    async def expect(self, kind: type[_P]) -> _P:
        """The next performative of a kind, skipping others; raises `ConnectionEndedError`."""
        while True:
            performative = await self.next()
            if isinstance(performative, kind):
                return performative

    async def close_error(self) -> str | None:
        """Read to the end; the condition of the close frame, None without a close frame."""
        condition = None
        try:
            while True:
                performative = await self.next()
                if isinstance(performative, amqp.Close):
                    assert isinstance(performative.error, amqp.Error)
                    condition = str(performative.error.condition)
        except ConnectionEndedError:
            return condition


def sender_attach(entity: str, handle: int = 0, name: str | None = None) -> amqp.Attach:
    link = name if name is not None else f"sender-{handle}"
    source, target = amqp.Source(link), amqp.Target(entity)
    return amqp.Attach(link, handle, amqp.ROLE_SENDER, 0, 0, source, target, initial_delivery_count=0)


def receiver_attach(entity: str, handle: int = 0) -> amqp.Attach:
    link = f"receiver-{handle}"
    return amqp.Attach(link, handle, amqp.ROLE_RECEIVER, 0, 1, amqp.Source(entity), amqp.Target(link))


def transfer(delivery: int, handle: int = 0, *, more: bool = False, payload: bytes = b"") -> bytes:
    """A transfer frame on channel 0; by default with a small message."""
    performative = amqp.Transfer(handle, delivery, delivery.to_bytes(4, "big"), 0, False, more)
    return frame(0, performative, payload or b"\x00\x53\x75\xa0\x01x")
