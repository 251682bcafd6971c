"""Mutated conversations with a namespace, in this process and over real sockets."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.emulator.faults.bench import until
from tests.emulator.fuzz.mutations import encoded, mutated
from tests.emulator.fuzz.scenes import Answers, Frame, Scenes, Step, create_entities, opening_frames
from tests.emulator.fuzz.watch import Watch

from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec.frames import AMQP_HEADER, SASL_HEADER, split_frames
from twinbus.emulator import Namespace
from twinbus.emulator.protocol.connection import Connection

TURNS = 3  # turns of the event loop after some frames
PATIENCE = 30.0  # seconds until a connection must have ended
SLOW_SECONDS = 5.0  # limit of one in-process conversation
#: Conversations per namespace. It is then discarded, so that growing memory means a leak.
GENERATION = 2000
FEW = 10
_REMEMBERED_CODES = frozenset(range(0x14, 0x19))  # transfer, disposition, detach, end and close


class Wire(asyncio.Transport):
    """An in-process transport that keeps only the answers that later frames need."""

    def __init__(self, namespace: Namespace) -> None:
        super().__init__()
        self.answers = Answers()
        self.conditions: set[str] = set()
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._buffer = bytearray()
        self._headers = 0
        self._closing = False
        self._connection = Connection(namespace)
        self._connection.connection_made(self)

    def feed(self, data: bytes) -> None:
        """Send bytes as the client."""
        if not self._closing:
            self._connection.data_received(data)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            asyncio.get_running_loop().call_soon(self._lose)

    abort = close

    def _lose(self) -> None:
        self._connection.connection_lost(None)
        self.lost.set_result(None)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._buffer += data
        while self._headers < 2 and self._buffer.startswith(b"AMQP"):
            del self._buffer[:8]
            self._headers += 1
            self._read_answers()
        self._read_answers()

    def _read_answers(self) -> None:
        if self._buffer.startswith(b"AMQP"):
            return
        for _, _, body in split_frames(self._buffer, 1 << 20):
            if not body or body[2] not in _REMEMBERED_CODES:
                continue
            performative, _ = amqp.decode_performative(body, 0)
            if isinstance(performative, amqp.Transfer) and performative.delivery_tag:
                self.answers.tags.append(performative.delivery_tag)
                del self.answers.tags[:-10]
            elif isinstance(performative, amqp.Disposition) and isinstance(performative.state, amqp.Declared):
                self.answers.transactions.append(performative.state.txn_id)
            elif isinstance(performative, (amqp.Close, amqp.End, amqp.Detach)) and performative.error is not None:
                self.conditions.add(str(performative.error.condition))
            if self._buffer.startswith(b"AMQP"):
                return


@dataclass(slots=True)
class Count:
    """Counters of a run."""

    conversations: int = 0
    frames: int = 0
    changed: int = 0
    slowest: float = 0.0


class Conversation:
    """One conversation, determined by the seed and its number."""

    def __init__(self, namespace: Namespace, seed: int, number: int) -> None:
        self.random = Random(f"{seed}/{number}")
        self._namespace = namespace
        # Most open without changes and some change little, so that they get far.
        self._rate = self.random.choice((0.05, 0.2, 0.5, 0.9))
        self._opening_rate = self._rate if self.random.random() < 0.1 else 0.0
        self.changed = 0
        self.frames = 0

    def __iter__(self) -> Iterator[tuple[float, Step]]:
        """The steps, each with its probability of being mutated."""
        for step in opening_frames(self._namespace):
            yield self._opening_rate, step
        channels = [iter(Scenes(self._namespace, self.random, channel).steps()) for channel in range(self._channels())]
        while channels:
            chosen = self.random.choice(channels)
            step = next(chosen, None)
            if step is None:
                channels.remove(chosen)
            else:
                yield self._rate, step
        yield self._rate, Frame(amqp.Close())

    def _channels(self) -> int:
        return self.random.choice((1, 1, 1, 2, 3))

    def pieces(self, answers: Answers) -> Iterator[bytes]:
        """The bytes to send, in pieces."""
        headers = [SASL_HEADER, AMQP_HEADER]
        held = b""
        for rate, step in self:
            if headers:
                header = headers.pop(0)
                yield header if rate == 0 or self.random.random() > 0.1 else self.random.randbytes(8)
            frame = step if isinstance(step, Frame) else step(answers)
            self.frames += 1
            if self.random.random() < rate:
                self.changed += 1
                data = mutated(frame, self.random)
            else:
                data = encoded(frame)
            held, data = b"", held + data
            if rate and self.random.random() < 0.05:  # send it after the next frame
                held, data = data, b""
            cut = self.random.randrange(len(data) + 1) if self.random.random() < 0.1 else 0
            yield from (data[:cut], data[cut:])
        yield held


async def converse(namespace: Namespace, seed: int, number: int, count: Count, watch: Watch) -> None:
    """Run one mutated conversation in process."""
    talk, wire = Conversation(namespace, seed, number), Wire(namespace)
    started = time.perf_counter()
    for piece in talk.pieces(wire.answers):
        wire.feed(piece)
        if wire.is_closing():
            break
        if talk.random.random() < 0.3:
            for _ in range(TURNS):
                await asyncio.sleep(0)
    wire.close()
    await asyncio.wait_for(wire.lost, PATIENCE)
    count.slowest = max(count.slowest, time.perf_counter() - started)
    count.conversations += 1
    count.frames += talk.frames
    count.changed += talk.changed
    watch.check(f"conversation {number} of seed {seed}", "amqp:internal-error" in wire.conditions)


async def converse_over_socket(namespace: Namespace, seed: int, number: int, count: Count, watch: Watch) -> None:
    """Run one over a socket; answers are read at the end only, so lock tokens are guessed."""
    talk = Conversation(namespace, seed, number)
    reader, writer = await asyncio.open_connection("127.0.0.1", namespace.port)
    try:
        writer.write(b"".join(talk.pieces(Answers())))
        writer.write_eof()
        async with asyncio.timeout(PATIENCE):
            answer = await reader.read()
    except ConnectionError:
        answer = b""
    finally:
        writer.transport.abort()
    count.conversations += 1
    count.frames += talk.frames
    count.changed += talk.changed
    watch.check(f"conversation {number} of seed {seed}, over a socket", b"amqp:internal-error" in answer)


async def is_served(namespace: Namespace) -> None:
    """Assert that a valid conversation succeeds."""
    wire = Wire(namespace)
    random = Random(0)
    wire.feed(SASL_HEADER + encoded(_frame(opening_frames(namespace)[0])))
    wire.feed(AMQP_HEADER + encoded(_frame(opening_frames(namespace)[1])))
    for step in Scenes(namespace, random, 0).steps():
        wire.feed(encoded(step if isinstance(step, Frame) else step(wire.answers)))
        await asyncio.sleep(0)
    assert not wire.is_closing(), wire.conditions
    wire.feed(encoded(Frame(amqp.Close())))
    await asyncio.wait_for(wire.lost, PATIENCE)
    assert not wire.conditions, wire.conditions


def _frame(step: Step) -> Frame:
    assert isinstance(step, Frame)
    return step


async def fuzz_frames(seed: int, changed: int, watch: Watch, *, over_sockets: bool = False) -> Count:
    """Run conversations until `changed` frames were mutated; raises `AssertionError` on any failure."""
    count, speak = Count(), converse_over_socket if over_sockets else converse
    while count.changed < changed:
        async with Namespace("fuzz") as namespace:
            await create_entities(namespace)
            for _ in range(GENERATION):
                await speak(namespace, seed, count.conversations, count, watch)
                if count.changed >= changed:
                    break
            await is_served(namespace)
            await _assert_nothing_is_left(namespace)
        watch.generation(count.changed)
    assert count.slowest < SLOW_SECONDS, f"a conversation took {count.slowest:.1f} s"
    return count


async def _assert_nothing_is_left(namespace: Namespace) -> None:
    """Assert that all connections have ended and are freed."""
    try:
        await until(lambda: not namespace.connections)
    except TimeoutError:
        # It may be a client of another test that looks for the server which had this port before.
        left = [(link.container, type(link._transport).__name__, link.closing) for link in namespace.connections]
        raise AssertionError(f"connections (container, transport, closing) that did not end: {left}") from None
    await namespace.store.commit([])
    gc.collect()
    alive = [item for item in gc.get_objects() if isinstance(item, Connection) and item.namespace is namespace]
    # A waiting loop may still hold the last one in a variable.
    assert len(alive) < FEW, f"{len(alive)} connections are still held"
