"""Mutates valid frames: their fields, bytes and order.

Field mutations keep the structure, so that most results decode and are refused later; byte mutations do not.
"""

from __future__ import annotations

import struct
import uuid
from random import Random
from typing import Any

from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec.encoding import encode
from twinbus.amqp.codec.performatives import described
from twinbus.amqp.codec.types import Array, Described, Symbol, Timestamp, UByte, UInt, ULong, UShort

from .scenes import Frame

NUMBERS = (0, 1, 2, 5, 127, 128, 255, 256, 4095, 65535, 65536, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
TEXTS = (
    "",
    "orders",
    "$cbs",
    "$management",
    "orders/$management",
    "baskets",
    "events",
    "x" * 300,
    "ü✓\U0001f600",
    "/",
    "..",
)
COMPOSITES = (amqp.Accepted(), amqp.Rejected(), amqp.Modified(True, True), amqp.Source("orders"), amqp.Declare())
_BITS = {UByte: 8, UShort: 16, UInt: 32, ULong: 64}
ODD_BYTES = (0x00, 0x40, 0x45, 0x53, 0x80, 0x94, 0xA0, 0xB0, 0xC0, 0xC1, 0xD0, 0xD1, 0xE0, 0xF0, 0xFF)


def some_value(random: Random, depth: int = 0) -> Any:
    """A random value of any AMQP type, often an edge case."""
    makers = [
        lambda: None,
        lambda: random.random() < 0.5,
        lambda: UInt(random.choice(NUMBERS)),
        lambda: ULong(random.choice(NUMBERS) << random.choice((0, 16, 32))),
        lambda: UShort(random.choice(NUMBERS) & 0xFFFF),
        lambda: UByte(random.choice(NUMBERS) & 0xFF),
        lambda: random.choice(NUMBERS) - 0x80000000,
        lambda: random.choice((0.0, -1.5, float("inf"), float("nan"))),
        lambda: Timestamp(random.choice((-(1 << 63), 0, (1 << 63) - 1, 1_794_000_000_000))),
        lambda: uuid.UUID(int=random.getrandbits(128)),
        lambda: random.randbytes(random.choice((0, 1, 16, 300))),
        lambda: random.choice(TEXTS),
        lambda: Symbol(random.choice(("", "amqp:not-found", "com.microsoft:session-filter", "x" * 40))),
        lambda: Array(0x70, [random.choice(NUMBERS) for _ in range(3)]),
        lambda: described(random.choice(COMPOSITES)),
    ]
    if depth < 3:
        makers += [
            lambda: [some_value(random, depth + 1) for _ in range(random.randrange(4))],
            lambda: {random.choice(TEXTS): some_value(random, depth + 1) for _ in range(random.randrange(3))},
            lambda: Described(Symbol("com.microsoft:timespan"), some_value(random, depth + 1)),
        ]
    return random.choice(makers)()


def like(value: Any, random: Random) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if type(value) in _BITS:
        return type(value)(random.choice(NUMBERS) & (1 << _BITS[type(value)]) - 1)
    if isinstance(value, Symbol):
        return Symbol(random.choice(("", "amqp:not-found", "x" * 40)))
    if isinstance(value, str):
        return random.choice(TEXTS)
    if isinstance(value, bytes):
        return random.randbytes(random.choice((0, 1, 4, 16, 32)))
    if isinstance(value, dict) and value:
        chosen = random.choice(list(value))
        return {**value, chosen: like(value[chosen], random)}
    return some_value(random) if value is not None and random.random() < 0.3 else value


def changed_fields(frame: Frame, random: Random) -> bytes:
    """The frame with one or two fields replaced, in its performative or a nested type."""
    outer = described(frame.performative)
    holder = outer
    # Sometimes descend into a source, target, state or error.
    while random.random() < 0.4:
        inner = [value for value in holder.value if isinstance(value, Described) and isinstance(value.value, list)]
        if not inner:
            break
        holder = random.choice(inner)
    for _ in range(random.randint(1, 2)):
        if not holder.value:
            break
        set_fields = [index for index, value in enumerate(holder.value) if value is not None]
        if set_fields and random.random() < 0.9:
            chosen = random.choice(set_fields)
            holder.value[chosen] = like(holder.value[chosen], random)
        else:
            holder.value[random.randrange(len(holder.value))] = some_value(random)
    if random.random() < 0.02:
        holder.value.append(some_value(random))
    body = encode(outer) + frame.payload
    return _head(len(body) + 8, frame) + body


def changed_address(frame: Frame, random: Random) -> bytes:
    """The frame on another channel, of another type, or for another handle."""
    other = Frame(frame.performative, frame.payload, frame.channel, frame.kind)
    choice = random.random()
    if choice < 0.4 and "handle" in frame.performative._fields:
        other.performative = frame.performative._replace(handle=random.choice((0, 1, 2, 3, 255, 256, 0xFFFFFFFF)))
    elif choice < 0.9:
        other.channel = random.choice((0, 1, 2, 4999, 5000, 65535))
    else:
        other.kind = random.randrange(256)
    return encoded(other)


def changed_payload(frame: Frame, random: Random) -> bytes:
    """The frame with a changed payload."""
    payload = frame.payload
    choice = random.randrange(4)
    if choice == 0:
        payload = payload[: random.randrange(len(payload) + 1)]
    elif choice == 1:
        payload = flipped(payload, random)
    elif choice == 2:
        payload = payload + payload[random.randrange(len(payload) + 1) :]
    else:
        payload = b"\x00\x53" + bytes((random.randrange(0x6F, 0x7A),)) + encode(some_value(random))
    return encoded(Frame(frame.performative, payload, frame.channel, frame.kind))


def changed_bytes(frame: Frame, random: Random) -> bytes:
    """The frame's bytes with some changed, removed or inserted; the length may be wrong."""
    data = encoded(frame)
    choice = random.randrange(5)
    if choice == 0:
        return flipped(data, random)
    if choice == 1:
        size = random.choice((0, 7, 8, len(data) - 1, len(data) + 1, 65536, 65537, 0xFFFFFFFF))
        return struct.pack(">I", size) + data[4:]
    if choice == 2:
        return data[:4] + bytes((random.randrange(256),)) + data[5:]  # where the body starts
    body = bytearray(data[8:])
    at = random.randrange(len(body) + 1)
    if choice == 3:
        del body[at : at + random.randint(1, 8)]
    else:
        body[at:at] = bytes(random.choice(ODD_BYTES) for _ in range(random.randint(1, 4)))
    return _head(len(body) + 8, frame) + bytes(body)


def flipped(data: bytes, random: Random) -> bytes:
    """Data with one to three bytes changed after the frame header."""
    changed = bytearray(data)
    for _ in range(random.randint(1, 3)):
        if len(changed) > 8:
            at = random.randrange(8, len(changed))
            changed[at] = random.choice((random.choice(ODD_BYTES), random.randrange(256), changed[at] ^ 1))
    return bytes(changed)


def mutated(frame: Frame, random: Random) -> bytes:
    """The bytes to send instead of a frame: a mutation, the frame twice, or nothing."""
    choice = random.random()
    if choice < 0.35 and frame.payload:
        return changed_payload(frame, random)
    if choice < 0.7:
        return changed_fields(frame, random)
    if choice < 0.8:
        return changed_address(frame, random)
    if choice < 0.9:
        return changed_bytes(frame, random)
    return encoded(frame) * 2 if choice < 0.95 else b""


def encoded(frame: Frame) -> bytes:
    """The encoded frame."""
    body = encode(described(frame.performative)) + frame.payload
    return _head(len(body) + 8, frame) + body


def _head(size: int, frame: Frame) -> bytes:
    return struct.pack(">IBBH", size, 2, frame.kind, frame.channel)
