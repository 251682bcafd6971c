"""A client that speaks AMQP frame by frame, rightly or wrongly, and shows what the namespace answers."""

from __future__ import annotations

import asyncio
import itertools
import socket
from types import TracebackType
from typing import Any, Self, TypeVar

from twinbus.amqp import performatives as amqp
from twinbus.amqp import sections
from twinbus.amqp.frames import AMQP_HEADER, SASL_HEADER, TYPE_SASL, frame, split_frames
from twinbus.broker import Namespace
from twinbus.broker.security import ROOT_POLICY

MAX_FRAME = 65536
WINDOW = 0x7FFFFFFF
PATIENCE = 60.0  # seconds for something that should come at once
_P = TypeVar("_P")
_NUMBERS = itertools.count(1)


class Ended(Exception):  # noqa: N818 - an event that tests expect
    """The namespace ended the connection."""


class Peer:
    """One connection, in an `async with` block; nothing is said by itself."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self.name = f"peer-{next(_NUMBERS)}"
        self._buffer = bytearray()
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)  # else it grows to many megabytes by itself
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

    # ---- saying ----

    def write(self, *data: bytes) -> None:
        """Send bytes, all in one piece."""
        self._writer.write(b"".join(data))

    def send(self, *performatives: Any, channel: int = 0) -> None:
        """Send frames, all in one piece."""
        self.write(*(frame(channel, one) for one in performatives))

    async def drain(self) -> None:
        """Wait until the bytes have left, or nearly."""
        await self._writer.drain()

    def stop_reading(self) -> None:
        """Take nothing more from the network."""
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def end(self) -> None:
        """Say that nothing more will come."""
        self._writer.write_eof()

    async def authenticate(self, mechanism: str = "PLAIN", response: bytes | None = None) -> int:
        """SASL, by default with the root key, which gives every right; returns the outcome's code."""
        if mechanism == "PLAIN" and response is None:
            policy = self._namespace.policy(ROOT_POLICY)
            response = f"\0{policy.name}\0{policy.primary_key}".encode()
        self.write(SASL_HEADER)
        assert await self.header() == SASL_HEADER
        await self.expect(amqp.SaslMechanisms)
        self.write(frame(0, amqp.SaslInit(mechanism, response), frame_type=TYPE_SASL))
        return (await self.expect(amqp.SaslOutcome)).code

    async def open(self, mechanism: str = "PLAIN", **fields: Any) -> amqp.Open:
        """Everything up to an open connection; `fields` are those of the open frame."""
        assert await self.authenticate(mechanism) == 0
        return await self.start(**fields)

    async def start(self, **fields: Any) -> amqp.Open:
        """What follows SASL: the protocol header and the open frame."""
        self.write(AMQP_HEADER)
        assert await self.header() == AMQP_HEADER
        opened = amqp.Open(self.name, hostname="127.0.0.1", max_frame_size=MAX_FRAME)
        self.send(opened._replace(**fields))
        return await self.expect(amqp.Open)

    async def begin(self, channel: int = 0, **fields: Any) -> amqp.Begin:
        """A session."""
        begin = amqp.Begin(next_outgoing_id=0, incoming_window=WINDOW, outgoing_window=WINDOW)
        self.send(begin._replace(**fields), channel=channel)
        return await self.expect(amqp.Begin)

    async def attach_sender(self, entity: str, handle: int = 0, channel: int = 0) -> amqp.Flow:
        """A link to send by; returns the credit."""
        self.send(sender_attach(entity, handle), channel=channel)
        await self.expect(amqp.Attach)
        return await self.expect(amqp.Flow)

    async def attach_receiver(self, entity: str, handle: int = 0, channel: int = 0) -> amqp.Attach:
        """A link to receive by, without credit."""
        self.send(receiver_attach(entity, handle), channel=channel)
        return await self.expect(amqp.Attach)

    # ---- hearing ----

    async def header(self) -> bytes:
        """A protocol header; raises `Ended`."""
        while len(self._buffer) < 8:
            await self._read()
        header = bytes(self._buffer[:8])
        del self._buffer[:8]
        return header

    async def _read(self) -> None:
        try:
            data = await asyncio.wait_for(self._reader.read(1 << 16), PATIENCE)
        except ConnectionError as error:
            raise Ended(str(error)) from error
        if not data:
            raise Ended("the connection was closed")
        self._buffer += data

    async def next(self) -> Any:
        """The next performative; raises `Ended`."""
        while True:
            for _, _, body in split_frames(self._buffer, MAX_FRAME):
                if body:
                    return amqp.decode_performative(body, 0)[0]
            await self._read()

    async def rest(self) -> bytes:
        """Everything that still comes until the connection ends."""
        try:
            while True:
                await self._read()
        except Ended:
            return bytes(self._buffer)

    async def response(self) -> tuple[int, bytes]:
        """The status of the next answer of a management node, and the answer's body."""
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
        """The next performative of a kind; others before it are passed over. Raises `Ended`."""
        while True:
            performative = await self.next()
            if isinstance(performative, kind):
                return performative

    async def close_error(self) -> str | None:
        """The condition of the close frame, after which nothing comes; None if the connection ends without one."""
        condition = None
        try:
            while True:
                performative = await self.next()
                if isinstance(performative, amqp.Close):
                    assert isinstance(performative.error, amqp.Error)
                    condition = str(performative.error.condition)
        except Ended:
            return condition


def sender_attach(entity: str, handle: int = 0, name: str | None = None) -> amqp.Attach:
    link = name if name is not None else f"sender-{handle}"
    source, target = amqp.Source(link), amqp.Target(entity)
    return amqp.Attach(link, handle, amqp.ROLE_SENDER, 0, 0, source, target, initial_delivery_count=0)


def receiver_attach(entity: str, handle: int = 0) -> amqp.Attach:
    link = f"receiver-{handle}"
    return amqp.Attach(link, handle, amqp.ROLE_RECEIVER, 0, 1, amqp.Source(entity), amqp.Target(link))


def transfer(delivery: int, handle: int = 0, *, more: bool = False, payload: bytes = b"") -> bytes:
    """A frame of a delivery on channel 0; without payload a small message."""
    performative = amqp.Transfer(handle, delivery, delivery.to_bytes(4, "big"), 0, False, more)
    return frame(0, performative, payload or b"\x00\x53\x75\xa0\x01x")
