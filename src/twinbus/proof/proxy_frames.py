"""What passes through the proxy: frames, and the entity that each transfer and disposition is about."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, NamedTuple

from twinbus.amqp import performatives as amqp
from twinbus.amqp.frames import FREQUENT
from twinbus.amqp.types import DecodeError

_HEADER = b"AMQP"
_HEADER_SIZE = 8
_size = struct.Struct(">I")
_channel = struct.Struct(">H")
# Frame bodies that say something about links and deliveries: begin, attach, transfer, disposition, detach.
_INTERESTING = {b"\x00\x53" + bytes((code,)) for code in (0x11, 0x12, 0x14, 0x15, 0x16)}
_MANAGEMENT = "/$management"
MAX_FRAME = 1 << 20


class Point(StrEnum):
    """A moment in the life of a message at which the proxy can strike. The peer that sends has sent the frame, the
    other one has not got it."""

    TRANSFER = "transfer"  # a client sends a message
    OUTCOME = "outcome"  # the namespace has stored it and says so
    DELIVERY = "delivery"  # the namespace hands a message to a receiver
    SETTLEMENT = "settlement"  # the receiver completes, defers or gives it back
    DETACH = "detach"  # the namespace ends a link


class Passage(NamedTuple):
    """A frame, or any other piece of the stream, with the point that it stands for and the entities it is about."""

    raw: bytes
    point: Point | None = None
    entities: frozenset[str] = frozenset()


def entity_of(address: Any) -> str:
    """The path in an address: clients write `amqps://host:port/path` or the path alone."""
    text = address if isinstance(address, str) else ""
    if "://" in text:
        text = text.split("://", 1)[1].partition("/")[2]
    return text.strip("/").lower()


class Conversation:
    """Follows one AMQP connection in both directions. What is not AMQP passes as it is."""

    def __init__(self) -> None:
        self._buffers = {True: bytearray(), False: bytearray()}
        self._is_foreign = False
        #: Links of the client by channel and handle, of the namespace by its own.
        self._links: dict[tuple[bool, int, int], str] = {}
        self._channels: dict[int, int] = {}
        #: Unsettled deliveries by the side that sent them, the client's channel and the delivery id.
        self._open: dict[tuple[bool, int, int], str] = {}
        #: All entities that the client has attached to, with those it receives from.
        self.entities: set[str] = set()

    def fed(self, data: bytes, by_client: bool) -> Iterator[Passage]:
        """The complete frames that `data` brings, in order."""
        buffer = self._buffers[by_client]
        buffer += data
        if by_client and not self._is_foreign and len(buffer) >= len(_HEADER) and not self.entities and not self._links:
            # Only the first bytes can tell, but a later look at a frame header does no harm: its first byte is 0.
            self._is_foreign = buffer[0] != 0 and not buffer.startswith(_HEADER)
        if self._is_foreign:
            yield Passage(bytes(buffer))
            buffer.clear()
            return
        while (raw := _first(buffer)) is not None:
            del buffer[: len(raw)]
            yield self._passage(raw, by_client)

    def rest(self, by_client: bool) -> bytes:
        """The beginning of a frame whose end never came."""
        return bytes(self._buffers[by_client])

    def _passage(self, raw: bytes, by_client: bool) -> Passage:
        body = raw[raw[4] * 4 :] if not raw.startswith(_HEADER) else b""
        if body[:3] not in _INTERESTING:
            return Passage(raw)
        try:
            read = FREQUENT.get(body[:4])
            found = (read(body) if read else None) or amqp.decode_performative(body, 0)
        except DecodeError:
            return Passage(raw)  # the namespace will say what is wrong with it
        performative, number = found[0], _channel.unpack_from(raw, 6)[0]
        channel = number if by_client else self._channels.get(number, number)
        match performative:
            case amqp.Begin():
                if not by_client and performative.remote_channel is not None:
                    self._channels[number] = performative.remote_channel
            case amqp.Attach():
                self._attached(performative, channel, by_client)
            case amqp.Transfer():
                return self._transferred(raw, performative, channel, by_client)
            case amqp.Detach() if not by_client and performative.error is not None:
                entity = self._links.get((False, channel, performative.handle), "")
                return Passage(raw, Point.DETACH, frozenset({entity}))
            case amqp.Disposition():
                return self._settled(raw, performative, channel, by_client)
        return Passage(raw)

    def _attached(self, attach: amqp.Attach, channel: int, by_client: bool) -> None:
        sends = attach.role is amqp.ROLE_SENDER
        # The entity is at the namespace's end of the link, whichever way messages go.
        end = attach.target if sends == by_client else attach.source
        entity = entity_of(getattr(end, "address", None))
        if entity and not entity.startswith("$"):
            self._links[by_client, channel, attach.handle] = entity
            self.entities.add(entity)

    def _transferred(self, raw: bytes, transfer: amqp.Transfer, channel: int, by_client: bool) -> Passage:
        entity = self._links.get((by_client, channel, transfer.handle))
        if entity is None:
            return Passage(raw)
        if entity.endswith(_MANAGEMENT):
            # A request is answered by a message: its disposition says only that it was read.
            return Passage(raw, Point.TRANSFER if by_client else Point.OUTCOME, frozenset({entity}))
        if transfer.delivery_id is not None and not transfer.settled:
            self._open[by_client, channel, transfer.delivery_id] = entity
        return Passage(raw, Point.TRANSFER if by_client else Point.DELIVERY, frozenset({entity}))

    def _settled(self, raw: bytes, disposition: amqp.Disposition, channel: int, by_client: bool) -> Passage:
        if disposition.role is not amqp.ROLE_RECEIVER:
            return Passage(raw)  # the sender's word about its own deliveries changes nothing here
        last = disposition.first if disposition.last is None else disposition.last
        found = {
            self._open.pop((not by_client, channel, number), None) for number in range(disposition.first, last + 1)
        }
        entities = frozenset(one for one in found if one is not None)
        point = Point.SETTLEMENT if by_client else Point.OUTCOME
        return Passage(raw, point, entities) if entities else Passage(raw)


def _first(buffer: bytearray) -> bytes | None:
    """The first whole frame or protocol header, or None while it is not there."""
    if len(buffer) < _HEADER_SIZE:
        return None
    size = _HEADER_SIZE if buffer.startswith(_HEADER) else _size.unpack_from(buffer)[0]
    if not _HEADER_SIZE <= size <= MAX_FRAME:
        return bytes(buffer)  # no frame at all: let the peer judge
    return bytes(buffer[:size]) if len(buffer) >= size else None
