"""A TCP proxy that injects network faults in front of a namespace.

It parses the AMQP frames that pass, so that it can strike at a chosen point in the life of a message of one entity (see
`proxy_frames.FaultPoint`), and counts how often a fault really hit something.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from .proxy_frames import FaultPoint, FrameTracker, StreamPiece

LOOPBACK = "127.0.0.1"
CHUNK = 65536
CONNECT_SECONDS = 10.0
#: Seconds the client gets to read an acknowledgement before its connection is reset.
READ_SECONDS = 0.05
CLOSE_SECONDS = 1.0
MAX_SLICE = 7  # bytes at most
MAX_SLICES = 400  # per piece; the rest is sent at once
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER with 0 seconds: close with a TCP reset

#: How much of the frame that triggered a fault is still passed on.
PassedPart = Literal["nothing", "half", "all"]


class FaultKind(StrEnum):
    """What the network does to everything that passes, while the fault lasts."""

    REFUSE = "refuse"  # connections are cut, and new ones refused
    BLACK_HOLE = "black-hole"  # nothing passes; held-up data arrives when the fault ends
    ANSWERS_LOST = "answers-lost"  # requests arrive, answers do not
    HALF_OPEN = "half-open"  # existing connections lead nowhere, unnoticed by clients; new ones work
    SLOW = "slow"  # every piece is delayed
    SLICED = "sliced"  # everything arrives a few bytes at a time


def covers(entity: str | None, path: str) -> bool:
    """Whether `path` is the entity or below it; `None` covers everything."""
    return entity is None or path == entity or path.startswith(entity + "/")


@dataclass(slots=True, eq=False)
class FiredCount:
    """How often a fault really hit something, in total and by entity."""

    fired: int = 0
    by_entity: Counter[str] = field(default_factory=Counter)
    first_at: float | None = None
    has_fired: asyncio.Event = field(default_factory=asyncio.Event)

    def count(self, entities: Iterable[str]) -> None:
        self.fired += 1
        self.by_entity.update(entities)
        if self.first_at is None:
            self.first_at = time.monotonic()
        self.has_fired.set()

    def fired_at(self, entity: str) -> int:
        """How often the fault hit an entity or something below it."""
        return sum(count for path, count in self.by_entity.items() if covers(entity, path))


@dataclass(slots=True, eq=False)
class FrameFault(FiredCount):
    """Waits for a matching frame, passes part of it, calls `then` and resets the connection, at most `times` times.

    With `resets=False` it calls `then`, passes the frame, and keeps the connection.
    """

    point: FaultPoint = FaultPoint.TRANSFER
    entity: str | None = None
    passing: PassedPart = "nothing"
    times: int = 1
    resets: bool = True
    #: Called between the frame and the reset, with a function that passes the whole frame on.
    then: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]] | None = None

    def matches(self, piece: StreamPiece) -> bool:
        return (
            self.fired < self.times
            and piece.point is self.point
            and any(covers(self.entity, path) for path in piece.entities)
        )


@dataclass(slots=True, eq=False)
class LastingFault(FiredCount):
    """A fault that lasts until it is ended, for all connections or those of one entity."""

    kind: FaultKind = FaultKind.BLACK_HOLE
    entity: str | None = None
    delay: float = 0.0
    random: random.Random = field(default_factory=lambda: random.Random(0))
    has_ended: asyncio.Event = field(default_factory=asyncio.Event)


class Proxy:
    """Async context manager that forwards connections to a local port."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._connections: set[_ProxiedConnection] = set()
        self.frame_faults: list[FrameFault] = []
        self.lasting_faults: list[LastingFault] = []
        self.port = 0
        self.connection_count = 0

    async def __aenter__(self) -> Proxy:
        await self._listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.clear()
        self._stop_listening()
        for connection in list(self._connections):
            connection.reset()
        await asyncio.gather(*(connection.wait_closed() for connection in list(self._connections)))

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, LOOPBACK, self.port, limit=CHUNK)
        self.port = self._server.sockets[0].getsockname()[1]

    def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        connection = _ProxiedConnection(self, reader, writer)
        self._connections.add(connection)
        try:
            await connection.run(self._target)
        finally:
            self._connections.discard(connection)

    # ---- faults ----

    def arm(self, fault: FrameFault) -> FrameFault:
        """Activate a fault that waits for a frame."""
        self.frame_faults.append(fault)
        return fault

    def begin(self, fault: LastingFault) -> LastingFault:
        """Start a lasting fault, for open and future connections."""
        self.lasting_faults.append(fault)
        if fault.kind is FaultKind.REFUSE:
            self._stop_listening()
            for connection in list(self._connections):
                fault.count(connection.entities)
                connection.reset()
        elif fault.kind is FaultKind.HALF_OPEN:
            for connection in list(self._connections):
                if any(covers(fault.entity, path) for path in connection.entities):
                    connection.lose_target(fault)
        return fault

    async def end(self, fault: LastingFault) -> None:
        """End a lasting fault. Data held up by a black hole is passed on late; half-open connections are reset, as when
        a packet reaches a peer that no longer knows the connection."""
        if fault in self.lasting_faults:
            self.lasting_faults.remove(fault)
        fault.has_ended.set()
        for connection in list(self._connections):
            if connection.half_open_fault is fault:
                connection.reset()
        if fault.kind is FaultKind.REFUSE and self._server is None:
            await self._listen()

    def clear(self) -> None:
        """Remove all faults. A proxy that refuses connections stays closed until `end` is called."""
        self.frame_faults.clear()
        for fault in self.lasting_faults:
            fault.has_ended.set()
        self.lasting_faults.clear()

    def reset_all(self) -> int:
        """Reset every connection; return their number."""
        for connection in (connections := list(self._connections)):
            connection.reset()
        return len(connections)


class _ProxiedConnection:
    """One client connection and its counterpart to the namespace."""

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._tracker = FrameTracker()
        self._client = reader, writer
        self._target: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        #: The fault that silently removed the other end.
        self.half_open_fault: LastingFault | None = None
        self._is_reset = False
        self._has_fired = False
        self._closed = asyncio.Event()

    @property
    def entities(self) -> set[str]:
        return self._tracker.entities

    async def run(self, port: int) -> None:
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._wait_for_black_hole({""})
            async with asyncio.timeout(CONNECT_SECONDS):
                self._target = await asyncio.open_connection(LOOPBACK, port, limit=CHUNK)
            for _, writer in (self._client, self._target):
                writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._is_reset:
                self.reset()
            tasks = [
                asyncio.create_task(self._pass_on(self._client[0], self._target[1], by_client=True)),
                asyncio.create_task(self._pass_on(self._target[0], self._client[1], by_client=False)),
            ]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if self.half_open_fault is not None:  # half-open: the client must not notice
                await asyncio.wait(tasks)
        except (OSError, TimeoutError):
            self._is_reset = True  # the target is unreachable: show the client the same
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._close()
            self._closed.set()

    async def wait_closed(self) -> None:
        await self._closed.wait()

    def reset(self) -> None:
        """Cut both ends with a TCP reset."""
        self._is_reset = True
        for _, writer in self._ends():
            _abort(writer)

    def lose_target(self, fault: LastingFault) -> None:
        self.half_open_fault = fault
        fault.count(self.entities)
        if self._target is not None:
            _abort(self._target[1])

    def _ends(self) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        return [end for end in (self._client, self._target) if end is not None]

    async def _close(self) -> None:
        for _, writer in self._ends():
            if self._is_reset:
                _abort(writer)
            writer.close()
        for _, writer in self._ends():
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):  # do not wait for a peer that does not read
                    await writer.wait_closed()

    # ---- one direction ----

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, by_client: bool) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(CHUNK):
                for piece in self._tracker.feed(data, by_client):
                    if not await self._pass(piece, writer, by_client):
                        return
            await self._wait_for_black_hole(self.entities or {""})
            if (rest := self._tracker.rest(by_client)) and self.half_open_fault is None:
                await self._write(rest, writer)

    async def _pass(self, piece: StreamPiece, writer: asyncio.StreamWriter, by_client: bool) -> bool:
        """Pass a piece on, faults permitting. Returns whether the connection goes on."""
        if self._has_fired:
            return False
        for frame_fault in self._proxy.frame_faults:
            if frame_fault.matches(piece):
                await self._fire(frame_fault, piece, writer)
                if frame_fault.resets:
                    return False
                break
        # Before its first attach a connection belongs to no entity.
        entities = piece.entities or self.entities or {""}
        if self.half_open_fault is not None:
            return True
        await self._wait_for_black_hole(entities)
        for fault in self._faults(FaultKind.ANSWERS_LOST, entities):
            if not by_client:
                fault.count(entities)
                return True
        for fault in self._faults(FaultKind.SLOW, entities):
            fault.count(entities)
            await asyncio.sleep(fault.delay)
        for fault in self._faults(FaultKind.SLICED, entities):
            fault.count(entities)
            await self._write_sliced(piece.raw, writer, fault.random)
            return True
        await self._write(piece.raw, writer)
        return True

    def _faults(self, kind: FaultKind, entities: Iterable[str]) -> list[LastingFault]:
        return [
            fault
            for fault in self._proxy.lasting_faults
            if fault.kind is kind and (fault.entity is None or any(covers(fault.entity, path) for path in entities))
        ]

    async def _wait_for_black_hole(self, entities: Iterable[str]) -> None:
        for fault in self._faults(FaultKind.BLACK_HOLE, entities):
            fault.count(entities)
            await fault.has_ended.wait()

    async def _fire(self, fault: FrameFault, piece: StreamPiece, writer: asyncio.StreamWriter) -> None:
        fault.count(piece.entities)
        self._has_fired = fault.resets  # nothing more passes in either direction
        if fault.resets and fault.passing != "nothing":
            raw = piece.raw if fault.passing == "all" else piece.raw[: len(piece.raw) // 2]
            with contextlib.suppress(ConnectionError):
                await self._write(raw, writer)
                await asyncio.sleep(READ_SECONDS)
        if fault.then is not None:
            await fault.then(lambda: self._write(piece.raw, writer))
        if fault.resets:
            self.reset()

    async def _write(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    async def _write_sliced(self, data: bytes, writer: asyncio.StreamWriter, rng: random.Random) -> None:
        pos = 0
        for _ in range(MAX_SLICES):
            if pos >= len(data):
                return
            size = rng.randint(1, MAX_SLICE)
            await self._write(data[pos : pos + size], writer)
            await asyncio.sleep(0)  # so that each slice is sent on its own
            pos += size
        await self._write(data[pos:], writer)


def _abort(writer: asyncio.StreamWriter) -> None:
    """Close with a TCP reset and drop unsent data."""
    transport = writer.transport
    if transport.is_closing():
        return
    with contextlib.suppress(OSError):  # the peer may have closed already
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()
