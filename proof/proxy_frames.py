"""Parses the AMQP frames that pass the proxy, and finds their entities."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, NamedTuple

from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec.frames import FREQUENT
from twinbus.amqp.codec.types import DecodeError

_HEADER = b"AMQP"
_HEADER_SIZE = 8
_size = struct.Struct(">I")
_channel = struct.Struct(">H")
# Performatives about links and deliveries: begin, attach, transfer, disposition, detach.
_INTERESTING = {b"\x00\x53" + bytes((code,)) for code in (0x11, 0x12, 0x14, 0x15, 0x16)}
_MANAGEMENT = "/$management"
MAX_FRAME = 1 << 20


class FaultPoint(StrEnum):
    """A moment in the life of a message at which the proxy can strike: the frame was sent, but has not arrived yet."""

    TRANSFER = "transfer"  # a client sends a message
    OUTCOME = "outcome"  # the namespace stored it and acknowledges
    DELIVERY = "delivery"  # the namespace hands a message to a receiver
    SETTLEMENT = "settlement"  # the receiver completes, defers or releases it
    DETACH = "detach"  # the namespace ends a link


class StreamPiece(NamedTuple):
    """A frame, or any other piece of the stream, with its fault point and its entities."""

    raw: bytes
    point: FaultPoint | None = None
    entities: frozenset[str] = frozenset()


def entity_of(address: Any) -> str:
    """The entity path of an address, which is `amqps://host:port/path` or the path alone."""
    text = address if isinstance(address, str) else ""
    if "://" in text:
        text = text.split("://", 1)[1].partition("/")[2]
    return text.strip("/").lower()


class FrameTracker:
    """Follows one AMQP connection in both directions; other protocols pass unparsed."""

    def __init__(self) -> None:
        self._buffers = {True: bytearray(), False: bytearray()}
        self._is_not_amqp = False
        #: Entity of each link, by (sent by the client, channel, handle).
        self._links: dict[tuple[bool, int, int], str] = {}
        self._channels: dict[int, int] = {}
        #: Entity of each unsettled delivery, by (sent by the client, client's channel, delivery id).
        self._unsettled: dict[tuple[bool, int, int], str] = {}
        #: All entities that the client has attached to, for sending or receiving.
        self.entities: set[str] = set()

    def feed(self, data: bytes, by_client: bool) -> Iterator[StreamPiece]:
        """Yield the frames that `data` completes, in order."""
        buffer = self._buffers[by_client]
        buffer += data
        if (
            by_client
            and not self._is_not_amqp
            and len(buffer) >= len(_HEADER)
            and not self.entities
            and not self._links
        ):
            # Only the first bytes tell. Checking a later frame header is harmless: its first byte is 0.
            self._is_not_amqp = buffer[0] != 0 and not buffer.startswith(_HEADER)
        if self._is_not_amqp:
            yield StreamPiece(bytes(buffer))
            buffer.clear()
            return
        while (raw := _first_frame(buffer)) is not None:
            del buffer[: len(raw)]
            yield self._classify(raw, by_client)

    def rest(self, by_client: bool) -> bytes:
        """The incomplete frame that is left in the buffer."""
        return bytes(self._buffers[by_client])

    def _classify(self, raw: bytes, by_client: bool) -> StreamPiece:
        body = raw[raw[4] * 4 :] if not raw.startswith(_HEADER) else b""
        if body[:3] not in _INTERESTING:
            return StreamPiece(raw)
        try:
            decode = FREQUENT.get(body[:4])
            decoded = (decode(body) if decode else None) or amqp.decode_performative(body, 0)
        except DecodeError:
            return StreamPiece(raw)  # the namespace will report the error
        performative, number = decoded[0], _channel.unpack_from(raw, 6)[0]
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
                return StreamPiece(raw, FaultPoint.DETACH, frozenset({entity}))
            case amqp.Disposition():
                return self._settled(raw, performative, channel, by_client)
        return StreamPiece(raw)

    def _attached(self, attach: amqp.Attach, channel: int, by_client: bool) -> None:
        sends = attach.role is amqp.ROLE_SENDER
        # The entity is at the namespace's end of the link, in either direction.
        end = attach.target if sends == by_client else attach.source
        entity = entity_of(getattr(end, "address", None))
        if entity and not entity.startswith("$"):
            self._links[by_client, channel, attach.handle] = entity
            self.entities.add(entity)

    def _transferred(self, raw: bytes, transfer: amqp.Transfer, channel: int, by_client: bool) -> StreamPiece:
        entity = self._links.get((by_client, channel, transfer.handle))
        if entity is None:
            return StreamPiece(raw)
        if entity.endswith(_MANAGEMENT):
            # The answer to a request is a message; the disposition only says that the request was read.
            return StreamPiece(raw, FaultPoint.TRANSFER if by_client else FaultPoint.OUTCOME, frozenset({entity}))
        if transfer.delivery_id is not None and not transfer.settled:
            self._unsettled[by_client, channel, transfer.delivery_id] = entity
        return StreamPiece(raw, FaultPoint.TRANSFER if by_client else FaultPoint.DELIVERY, frozenset({entity}))

    def _settled(self, raw: bytes, disposition: amqp.Disposition, channel: int, by_client: bool) -> StreamPiece:
        if disposition.role is not amqp.ROLE_RECEIVER:
            return StreamPiece(raw)  # a sender settling its own deliveries is no fault point
        last = disposition.first if disposition.last is None else disposition.last
        settled = {
            self._unsettled.pop((not by_client, channel, number), None) for number in range(disposition.first, last + 1)
        }
        entities = frozenset(entity for entity in settled if entity is not None)
        point = FaultPoint.SETTLEMENT if by_client else FaultPoint.OUTCOME
        return StreamPiece(raw, point, entities) if entities else StreamPiece(raw)


def _first_frame(buffer: bytearray) -> bytes | None:
    """The first complete frame or protocol header, or `None`."""
    if len(buffer) < _HEADER_SIZE:
        return None
    size = _HEADER_SIZE if buffer.startswith(_HEADER) else _size.unpack_from(buffer)[0]
    if not _HEADER_SIZE <= size <= MAX_FRAME:
        return bytes(buffer)  # not a frame: let the peer report it
    return bytes(buffer[:size]) if len(buffer) >= size else None
