"""A recording TCP proxy, and the shape of the frames in a recording."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from twinbus.amqp.codec.decoding import decode
from twinbus.amqp.codec.performatives import BY_CODE
from twinbus.amqp.codec.types import Described

HEADERS = (b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\x00\x00")


class Recorded(NamedTuple):
    """A frame of a client: its kind, its fields with exact types, its payload."""

    kind: str
    fields: dict[str, Any]
    payload: bytes


class Recorder:
    """Listens on a port in front of another one, in an `async with` block."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server: asyncio.Server
        self._said: list[bytearray] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Recorder:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def port(self) -> int:
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target)
        said = bytearray()
        self._said.append(said)
        for pump in (self._pump(reader, server_writer, said), self._pump(server_reader, writer, bytearray())):
            task = asyncio.create_task(pump)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    @staticmethod
    async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, said: bytearray) -> None:
        try:
            while data := await reader.read(65536):
                said += data
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            return  # one side went away: so does the other
        finally:
            writer.close()

    def frames(self) -> list[Recorded]:
        """The frames that clients sent, by connection."""
        return [recorded for said in self._said for recorded in parse(bytes(said))]


def parse(said: bytes) -> list[Recorded]:
    """The frames in the bytes of one client, SASL included."""
    found, pos = [], 0
    while pos < len(said):
        if said[pos : pos + 8] in HEADERS:
            pos += 8
            continue
        size = int.from_bytes(said[pos : pos + 4], "big")
        body = said[pos + 4 * said[pos + 4] : pos + size]
        pos += size
        if body:
            value, end = decode(body)
            kind, fields = named(value)
            found.append(Recorded(kind, fields, body[end:]))
    return found


def named(value: Described) -> tuple[str, dict[str, Any]]:
    """A described list as its name and its fields by name."""
    kind = BY_CODE[int(value.descriptor)]
    names: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
    return kind.__name__, dict(zip(names, value.value, strict=False))


def shape(value: Any) -> Any:
    """The type of a value without the value. Null, missing and empty are the same."""
    if value is None:
        return None
    if isinstance(value, Described):
        if isinstance(value.descriptor, int) and int(value.descriptor) in BY_CODE:
            kind, fields = named(value)
            return kind, shapes(fields)
        return "described", str(value.descriptor)
    if isinstance(value, dict):
        return "map", frozenset(type(key).__name__ for key in value)
    return type(value).__name__


def shapes(fields: dict[str, Any]) -> dict[str, Any]:
    """The shape of each present field."""
    return {name: found for name, value in fields.items() if (found := shape(value)) is not None}
