"""A TCP proxy in front of a namespace that does to connections what networks do, at the worst moments.

It reads the frames that pass, so that it can strike at a point in the life of a message of a chosen entity (see
`proxy_frames.Point`), and it counts every time that something of that entity was really struck.
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

from .proxy_frames import Conversation, Passage, Point

LOOPBACK = "127.0.0.1"
CHUNK = 65536
CONNECT_SECONDS = 10.0
#: How long an acknowledgement gets to be read before the connection that brought it is reset.
READING = 0.05
CLOSING = 1.0
SLICE = 7  # bytes at most
MAX_SLICES = 400  # of one piece; what is left goes in one
_RESET = struct.pack("ii", 1, 0)  # linger for no time at all: close with a reset

#: How much of the frame at which an ambush strikes is still passed on.
Passing = Literal["nothing", "half", "all"]


class Weather(StrEnum):
    """What a network does to everything that passes, until it is over."""

    REFUSE = "refuse"  # connections are cut, and new ones refused
    BLACK_HOLE = "black-hole"  # nothing passes; when it is over what was held up arrives late
    ANSWERS_LOST = "answers-lost"  # what clients send arrives, what they are told does not
    HALF_OPEN = "half-open"  # the namespace has lost the connections of now and clients are not told; new ones are good
    SLOW = "slow"  # every piece is late
    SLICED = "sliced"  # everything comes in slices of a few bytes


def covers(entity: str | None, path: str) -> bool:
    """Whether `path` is the entity or something below it; None covers everything."""
    return entity is None or path == entity or path.startswith(entity + "/")


@dataclass(slots=True, eq=False)
class Struck:
    """How often something really happened, in all and by entity."""

    fired: int = 0
    by_entity: Counter[str] = field(default_factory=Counter)
    first_at: float | None = None
    happened: asyncio.Event = field(default_factory=asyncio.Event)

    def count(self, entities: Iterable[str]) -> None:
        self.fired += 1
        self.by_entity.update(entities)
        if self.first_at is None:
            self.first_at = time.monotonic()
        self.happened.set()

    def fired_at(self, entity: str) -> int:
        """How often it struck an entity, or what is below it."""
        return sum(count for path, count in self.by_entity.items() if covers(entity, path))


@dataclass(slots=True, eq=False)
class Ambush(Struck):
    """Waits for a frame, lets some of it pass, does `then`, and resets the connection. `times` bounds it.

    With `resets=False` it does `then` first, the frame passes, and the connection goes on.
    """

    point: Point = Point.TRANSFER
    entity: str | None = None
    passing: Passing = "nothing"
    times: int = 1
    resets: bool = True
    #: Done between the frame and the reset; gets what passes the whole frame on.
    then: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]] | None = None

    def awaits(self, passage: Passage) -> bool:
        return (
            self.fired < self.times
            and passage.point is self.point
            and any(covers(self.entity, path) for path in passage.entities)
        )


@dataclass(slots=True, eq=False)
class Spell(Struck):
    """Weather that lasts until it is cleared, over all connections or those of one entity."""

    weather: Weather = Weather.BLACK_HOLE
    entity: str | None = None
    delay: float = 0.0
    random: random.Random = field(default_factory=lambda: random.Random(0))
    is_over: asyncio.Event = field(default_factory=asyncio.Event)


class Proxy:
    """Passes connections on to a port of this machine for as long as it is entered."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._pipes: set[_Pipe] = set()
        self.ambushes: list[Ambush] = []
        self.spells: list[Spell] = []
        self.port = 0
        self.connections = 0

    async def __aenter__(self) -> Proxy:
        await self._listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.clear()
        self._stop_listening()
        for pipe in list(self._pipes):
            pipe.reset()
        await asyncio.gather(*(pipe.ended() for pipe in list(self._pipes)))

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, LOOPBACK, self.port, limit=CHUNK)
        self.port = self._server.sockets[0].getsockname()[1]

    def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        pipe = _Pipe(self, reader, writer)
        self._pipes.add(pipe)
        try:
            await pipe.run(self._target)
        finally:
            self._pipes.discard(pipe)

    # ---- what goes wrong ----

    def lie_in_wait(self, ambush: Ambush) -> Ambush:
        """Have it strike from now on."""
        self.ambushes.append(ambush)
        return ambush

    def begin(self, spell: Spell) -> Spell:
        """Let it begin now, for what is open and for what will be."""
        self.spells.append(spell)
        if spell.weather is Weather.REFUSE:
            self._stop_listening()
            for pipe in list(self._pipes):
                spell.count(pipe.entities)
                pipe.reset()
        elif spell.weather is Weather.HALF_OPEN:
            for pipe in list(self._pipes):
                if any(covers(spell.entity, path) for path in pipe.entities):
                    pipe.lose_target(spell)
        return spell

    async def end(self, spell: Spell) -> None:
        """Fair weather again: what a black hole held up is passed on, late; a half-open connection is reset, as it is
        when a packet of it gets through to where nobody knows it any more."""
        if spell in self.spells:
            self.spells.remove(spell)
        spell.is_over.set()
        for pipe in list(self._pipes):
            if pipe.lost_to is spell:
                pipe.reset()
        if spell.weather is Weather.REFUSE and self._server is None:
            await self._listen()

    def clear(self) -> None:
        """End everything, except that who was refused stays so: `end` listens again."""
        self.ambushes.clear()
        for spell in self.spells:
            spell.is_over.set()
        self.spells.clear()

    def reset_all(self) -> int:
        """Reset every connection; returns how many there were."""
        for pipe in (pipes := list(self._pipes)):
            pipe.reset()
        return len(pipes)


class _Pipe:
    """One connection."""

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._talk = Conversation()
        self._client = reader, writer
        self._target: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        #: The spell that took the other end away without a word.
        self.lost_to: Spell | None = None
        self._is_reset = False
        self._is_struck = False
        self._end = asyncio.Event()

    @property
    def entities(self) -> set[str]:
        return self._talk.entities

    async def run(self, port: int) -> None:
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._held_up({""})
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
            if self.lost_to is not None:  # the client is not told that the other end is gone
                await asyncio.wait(tasks)
        except (OSError, TimeoutError):
            self._is_reset = True  # nobody is there: the client is to see it as it is
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._close()
            self._end.set()

    async def ended(self) -> None:
        await self._end.wait()

    def reset(self) -> None:
        """Cut both ends with a TCP reset."""
        self._is_reset = True
        for _, writer in self._ends():
            _abort(writer)

    def lose_target(self, spell: Spell) -> None:
        self.lost_to = spell
        spell.count(self.entities)
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
                async with asyncio.timeout(CLOSING):  # a peer that does not read must not hold us up
                    await writer.wait_closed()

    # ---- one direction ----

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, by_client: bool) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(CHUNK):
                for passage in self._talk.fed(data, by_client):
                    if not await self._pass(passage, writer, by_client):
                        return
            await self._held_up(self.entities or {""})
            if (rest := self._talk.rest(by_client)) and self.lost_to is None:
                await self._write(rest, writer)

    async def _pass(self, passage: Passage, writer: asyncio.StreamWriter, by_client: bool) -> bool:
        """Whether the connection goes on."""
        if self._is_struck:
            return False
        for ambush in self._proxy.ambushes:
            if ambush.awaits(passage):
                await self._strike(ambush, passage, writer)
                if ambush.resets:
                    return False
                break
        # A connection that has not said what it wants belongs to nobody yet.
        entities = passage.entities or self.entities or {""}
        if self.lost_to is not None:
            return True
        await self._held_up(entities)
        for spell in self._spells(Weather.ANSWERS_LOST, entities):
            if not by_client:
                spell.count(entities)
                return True
        for spell in self._spells(Weather.SLOW, entities):
            spell.count(entities)
            await asyncio.sleep(spell.delay)
        for spell in self._spells(Weather.SLICED, entities):
            spell.count(entities)
            await self._write_sliced(passage.raw, writer, spell.random)
            return True
        await self._write(passage.raw, writer)
        return True

    def _spells(self, weather: Weather, entities: Iterable[str]) -> list[Spell]:
        found = [one for one in self._proxy.spells if one.weather is weather]
        return [one for one in found if one.entity is None or any(covers(one.entity, path) for path in entities)]

    async def _held_up(self, entities: Iterable[str]) -> None:
        for spell in self._spells(Weather.BLACK_HOLE, entities):
            spell.count(entities)
            await spell.is_over.wait()

    async def _strike(self, ambush: Ambush, passage: Passage, writer: asyncio.StreamWriter) -> None:
        ambush.count(passage.entities)
        self._is_struck = ambush.resets  # nothing more passes, the other way neither
        if ambush.resets and ambush.passing != "nothing":
            raw = passage.raw if ambush.passing == "all" else passage.raw[: len(passage.raw) // 2]
            with contextlib.suppress(ConnectionError):
                await self._write(raw, writer)
                await asyncio.sleep(READING)
        if ambush.then is not None:
            await ambush.then(lambda: self._write(passage.raw, writer))
        if ambush.resets:
            self.reset()

    async def _write(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    async def _write_sliced(self, data: bytes, writer: asyncio.StreamWriter, chance: random.Random) -> None:
        pos = 0
        for _ in range(MAX_SLICES):
            if pos >= len(data):
                return
            size = chance.randint(1, SLICE)
            await self._write(data[pos : pos + size], writer)
            await asyncio.sleep(0)  # so that each slice leaves alone
            pos += size
        await self._write(data[pos:], writer)


def _abort(writer: asyncio.StreamWriter) -> None:
    """Close with a reset, and drop what was not sent yet."""
    transport = writer.transport
    if transport.is_closing():
        return
    with contextlib.suppress(OSError):  # the peer may be gone already
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()
