"""A scripted AMQP peer, frame by frame, for unusual and wrong behaviour.

Its channels and handles differ from the client's, as the specification allows.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple, TypeVar

from tests.syphon.bus import PATIENCE

from twinbus.amqp.client.connection import Opening
from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec import sections
from twinbus.amqp.codec.encoding import encode
from twinbus.amqp.codec.frames import AMQP_HEADER, SASL_HEADER, TYPE_SASL, frame
from twinbus.amqp.codec.performatives import decode_performative
from twinbus.amqp.codec.types import Array, Int, Symbol
from twinbus.syphon import Connection, Endpoint, SasKey

CREDENTIAL = SasKey("policy", "key")
CHANNEL = 17  # ours, for the client's channel 0
_T = TypeVar("_T")


class Frame(NamedTuple):
    channel: int
    performative: Any
    payload: bytes


class Peer:
    """The server's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.empty_frames = 0
        self.opened: amqp.Open

    # ---- bytes ----

    async def read_bytes(self, count: int) -> bytes:
        return await asyncio.wait_for(self._reader.readexactly(count), PATIENCE)

    def write_bytes(self, data: bytes) -> None:
        self._writer.write(data)

    def close(self) -> None:
        self._writer.close()

    # ---- frames ----

    async def read(self) -> Frame:
        """Read the next frame that is not empty."""
        while True:
            head = await self.read_bytes(8)
            rest = await self.read_bytes(int.from_bytes(head[:4], "big") - 8)
            assert head[4] == 2
            if rest:
                performative, pos = decode_performative(rest, 0)
                return Frame(int.from_bytes(head[6:], "big"), performative, rest[pos:])
            self.empty_frames += 1

    async def expect(self, kind: type[_T]) -> _T:
        """Read the next frame and check its type."""
        found = (await self.read()).performative
        assert type(found) is kind, f"{found} is no {kind.__name__}"
        return found

    def write(self, performative: Any, payload: bytes = b"", channel: int = CHANNEL) -> None:
        self.write_bytes(frame(channel, performative, payload))

    # ---- conversations ----

    async def log_in(self, *mechanisms: str, code: int = 0) -> amqp.SaslInit:
        assert await self.read_bytes(8) == SASL_HEADER
        self.write_bytes(SASL_HEADER)
        offered = Array(0xA3, [Symbol(name) for name in mechanisms or ("PLAIN", "ANONYMOUS")])
        self.write_bytes(frame(0, amqp.SaslMechanisms(offered), frame_type=TYPE_SASL))
        init = await self.expect(amqp.SaslInit)
        self.write_bytes(frame(0, amqp.SaslOutcome(code), frame_type=TYPE_SASL))
        return init

    async def open(self, **fields: Any) -> None:
        """Log the client in and open the connection."""
        await self.log_in()
        assert await self.read_bytes(8) == AMQP_HEADER
        self.write_bytes(AMQP_HEADER)
        self.opened = await self.expect(amqp.Open)
        self.write(amqp.Open("peer", **{"max_frame_size": 65536, **fields}), channel=0)

    async def begin(self, **fields: Any) -> amqp.Begin:
        begin = await self.expect(amqp.Begin)
        answer = amqp.Begin(remote_channel=0, next_outgoing_id=7, incoming_window=1000, outgoing_window=1000)
        self.write(answer._replace(**fields))
        return begin

    async def attach(self, handle: int, **fields: Any) -> amqp.Attach:
        """Answer an attach with a handle of the peer."""
        asked = await self.expect(amqp.Attach)
        count = 5 if asked.role is amqp.ROLE_RECEIVER else None
        answer = amqp.Attach(
            asked.name,
            handle,
            not asked.role,
            asked.snd_settle_mode,
            asked.rcv_settle_mode,
            asked.source,
            asked.target,
            initial_delivery_count=count,
        )
        self.write(answer._replace(**fields))
        return asked

    def credit(self, handle: int, credit: int, **fields: Any) -> None:
        flow = amqp.Flow(0, 1000, 7, 1000, handle, 0, credit)
        self.write(flow._replace(**fields))

    async def take_token(self) -> tuple[amqp.Open, dict[str, Any]]:
        """Run the conversation up to the first token. Returns the open frame and the token's properties."""
        await self.open()
        await self.begin()
        await self.attach(40)  # the client's receiver
        await self.attach(41)  # and its sender
        await self.expect(amqp.Flow)
        self.credit(41, 100)
        _, transfer, payload = await self.read()
        properties = self.accept_token(transfer, payload)
        return self.opened, properties

    def accept_token(self, transfer: amqp.Transfer, payload: bytes) -> dict[str, Any]:
        parts = sections.split_sections(payload)
        message_id = sections.list_fields(parts.properties, 1)[0]
        entries = sections.map_entries(parts.application_properties)
        self.write(amqp.Disposition(amqp.ROLE_RECEIVER, transfer.delivery_id or 0, None, True, amqp.Accepted()))
        null = encode(None)
        answer = sections.list_section(sections.PROPERTIES, [null] * 5 + [encode(message_id)])
        answer += sections.map_section(sections.APPLICATION_PROPERTIES, [sections.entry("status-code", Int(202))])
        answer += b"\x00\x53\x77" + encode(None)
        self.write(amqp.Transfer(40, 0, b"t", 0, True), answer)
        return {str(key): sections.entry_value(raw) for key, raw in entries}


class Listening:
    """Listens on a port; `await listening.peer()` is the next client."""

    def __init__(self) -> None:
        self._peers: asyncio.Queue[Peer] = asyncio.Queue()
        self._all: list[Peer] = []
        self._server: asyncio.Server

    async def __aenter__(self) -> Listening:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        for peer in self._all:
            peer.close()
        self._server.close()
        await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        self._all.append(peer)
        self._peers.put_nowait(peer)

    async def peer(self) -> Peer:
        return await asyncio.wait_for(self._peers.get(), PATIENCE)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("127.0.0.1", self._server.sockets[0].getsockname()[1], tls=False)

    def connect(self, **options: Any) -> Opening:
        return Connection.open(self.endpoint, CREDENTIAL, **{"timeout": PATIENCE, **options})
