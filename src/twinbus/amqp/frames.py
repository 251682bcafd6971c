"""Frames: the envelope of everything on an AMQP connection, and the protocol headers before the first one.

The frames that carry the load (transfer, disposition) have writers of their own; the rest goes through
`frame`. Reading is one function, `split_frames`, that never copies more than a partial frame.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from .encoding import encode_into
from .performatives import Accepted, Disposition, Transfer, described, encode_performative
from .types import DecodeError, EncodeError

AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"
EMPTY_FRAME = b"\x00\x00\x00\x08\x02\x00\x00\x00"

TYPE_AMQP = 0
TYPE_SASL = 1
MIN_MAX_FRAME_SIZE = 512

_head = struct.Struct(">IBBH")
_u32 = struct.Struct(">I")
_ACCEPTED = b"\x00\x53\x24\x45"
_TRANSFER_OVERHEAD = 12  # descriptor, list header and the last six fields of a transfer
_TRANSFER_LIST = b"\x00\x53\x14\xc0"
_DISPOSITION_LIST = b"\x00\x53\x15\xc0"
_FLAGS = {b"\x40": None, b"\x41": True, b"\x42": False, b"\x56\x00": False, b"\x56\x01": True}
# How a transfer ends: settled and more in any form, then nulls or nothing. With both values and the field count.
_TRANSFER_ENDS = {
    settled + more + b"\x40" * nulls: (_FLAGS[settled], _FLAGS[more], 6 + nulls)
    for settled in _FLAGS
    for more in _FLAGS
    for nulls in range(6)
}
# How a disposition that accepts ends: settled, the outcome, and batchable or not. With `settled` and the field count.
_ACCEPTED_ENDS = {
    settled + _ACCEPTED + batchable: (_FLAGS[settled], _FLAGS.get(batchable), 6 if batchable else 5)
    for settled in _FLAGS
    for batchable in (b"", *_FLAGS)
}
_IS_ACCEPTED = Accepted()


class FramingError(DecodeError):
    """The bytes do not form a frame, or the frame is larger than was agreed."""


def frame(channel: int, performative: Any, payload: bytes = b"", frame_type: int = TYPE_AMQP) -> bytes:
    """One whole frame."""
    out = bytearray(8)
    encode_performative(out, performative)
    out += payload
    _head.pack_into(out, 0, len(out), 2, frame_type, channel)
    return bytes(out)


def split_frames(buffer: bytearray, max_frame_size: int) -> Iterator[tuple[int, int, bytes]]:
    """Take the complete frames off the front of `buffer`: (type, channel, body), one after the other.

    What is left in the buffer is the beginning of the next frame. Raises `FramingError` for a frame that is
    malformed or larger than `max_frame_size`, as soon as its header is there.
    """
    if len(buffer) < 8:
        return
    size, doff, _, _ = _head.unpack_from(buffer)
    if len(buffer) < size <= max_frame_size and 8 <= doff * 4 <= size:
        return  # a good frame, but not all of it
    data = bytes(buffer)  # slices of bytes are cheaper than a view and a copy for each frame
    pos, end = 0, len(data)
    try:
        while end - pos >= 8:
            size, doff, frame_type, channel = _head.unpack_from(data, pos)
            if size > max_frame_size:
                raise FramingError(f"a frame of {size} bytes is larger than the agreed {max_frame_size}")
            if size < 8 or doff < 2 or doff * 4 > size:
                raise FramingError(f"a frame header with size {size} and data offset {doff} is malformed")
            if end - pos < size:
                break
            body = data[pos + doff * 4 : pos + size]
            pos += size
            yield frame_type, channel, body
    finally:
        if pos:
            del buffer[:pos]


def read_frequent(body: bytes) -> tuple[Transfer | Disposition, int] | None:
    """A transfer, or a disposition that accepts, in the shape that clients write; None for everything else.

    With the performative comes where its payload starts. A shortcut, three times as fast: `decode_performative` reads
    these too, and says what is wrong with the rest.
    """
    if body.startswith(_TRANSFER_LIST):
        return _read_transfer(body)
    if body.startswith(_DISPOSITION_LIST):
        return _read_accepting(body)
    return None


def _read_accepting(body: bytes) -> tuple[Disposition, int] | None:
    try:
        end, count, pos = 5 + body[4], body[5], 6
        if body[pos] == 0x41:
            pos += 1
        elif body[pos] == 0x56 and body[pos + 1] == 1:
            pos += 2
        else:
            return None  # a sender's word, which is rare
        if body[pos] == 0x70:
            first, pos = _u32.unpack_from(body, pos + 1)[0], pos + 5
        elif body[pos] == 0x52:
            first, pos = body[pos + 1], pos + 2
        else:
            return None
        if body[pos] == 0x40:
            last, pos = None, pos + 1
        elif body[pos] == 0x70:
            last, pos = _u32.unpack_from(body, pos + 1)[0], pos + 5
        elif body[pos] == 0x52:
            last, pos = body[pos + 1], pos + 2
        else:
            return None
        settled, batchable, written = _ACCEPTED_ENDS[body[pos:end]]
    except (IndexError, KeyError, struct.error):
        return None
    if written != count or end > len(body):
        return None
    return tuple.__new__(Disposition, (True, first, last, settled, _IS_ACCEPTED, batchable)), end


def _read_transfer(body: bytes) -> tuple[Transfer, int] | None:
    try:
        end, count, pos = 5 + body[4], body[5], 6
        if body[pos] == 0x52:
            handle, pos = body[pos + 1], pos + 2
        elif body[pos] == 0x43:
            handle, pos = 0, pos + 1
        else:
            return None
        if body[pos] == 0x70:
            delivery_id, pos = _u32.unpack_from(body, pos + 1)[0], pos + 5
        elif body[pos] == 0x52:
            delivery_id, pos = body[pos + 1], pos + 2
        else:
            return None
        if body[pos] != 0xA0:
            return None
        tag, pos = body[pos + 2 : pos + 2 + body[pos + 1]], pos + 2 + body[pos + 1]
        if body[pos] == 0x43:
            message_format, pos = 0, pos + 1
        elif body[pos] == 0x70:
            message_format, pos = _u32.unpack_from(body, pos + 1)[0], pos + 5
        else:
            return None
        settled, more, written = _TRANSFER_ENDS[body[pos:end]]
    except (IndexError, KeyError, struct.error):
        return None
    if written != count or end > len(body):
        return None
    fields = (handle, delivery_id, tag, message_format, settled, more, None, None, None, None, None)
    return tuple.__new__(Transfer, fields), end


def uint(value: int) -> bytes:
    """An AMQP uint in its shortest form."""
    if value < 256:
        return bytes((0x52, value)) if value else b"\x43"
    return b"\x70" + _u32.pack(value)


def transfer_frames(
    channel: int,
    handle: int,
    delivery_id: int,
    tag: bytes,
    settled: bool,
    payload: bytes,
    max_frame_size: int,
) -> list[bytes]:
    """A delivery as one frame, or as many as the peer's frame size asks for.

    Raises `EncodeError` for a tag of more than 32 bytes, or a `max_frame_size` that AMQP does not allow.
    """
    if len(tag) > 32:
        raise EncodeError(f"a delivery tag has at most 32 bytes, not {len(tag)}")
    settle = b"\x41" if settled else b"\x42"
    # handle, delivery-id, delivery-tag (at most 32 bytes), message-format 0, settled
    fields = b"".join((uint(handle), uint(delivery_id), bytes((0xA0, len(tag))), tag, b"\x43", settle))
    if 8 + _TRANSFER_OVERHEAD + len(fields) + len(payload) <= max_frame_size:
        return [_transfer(channel, fields, False, payload)]
    if max_frame_size < MIN_MAX_FRAME_SIZE:
        raise EncodeError(f"max-frame-size must be at least {MIN_MAX_FRAME_SIZE}, not {max_frame_size}")
    pos = max_frame_size - 8 - _TRANSFER_OVERHEAD - len(fields)
    out = [_transfer(channel, fields, True, payload[:pos])]
    fields = uint(handle) + b"\x40\x40\x40\x40"
    room = max_frame_size - 8 - _TRANSFER_OVERHEAD - len(fields)
    while pos < len(payload):
        out.append(_transfer(channel, fields, pos + room < len(payload), payload[pos : pos + room]))
        pos += room
    return out


def _transfer(channel: int, fields: bytes, more: bool, payload: bytes) -> bytes:
    return b"".join(
        (
            _head.pack(8 + _TRANSFER_OVERHEAD + len(fields) + len(payload), 2, TYPE_AMQP, channel),
            b"\x00\x53\x14\xc0",
            bytes((len(fields) + 7, 11)),
            fields,
            # more, then the five fields we never use: older clients index into the list without looking
            b"\x41\x40\x40\x40\x40\x40" if more else b"\x42\x40\x40\x40\x40\x40",
            payload,
        )
    )


def disposition_frame(channel: int, role: bool, first: int, last: int, state: Any) -> bytes:
    """A settled disposition of a range of deliveries; `state` None means accepted."""
    body = b"".join((b"\x41" if role else b"\x42", uint(first), uint(last), b"\x41"))
    if state is None:
        body += _ACCEPTED
    else:
        encoded = bytearray()
        encode_into(encoded, described(state))
        body += encoded
    if len(body) < 255:
        head = _DISPOSITION_LIST + bytes((len(body) + 1, 5))
    else:
        head = b"\x00\x53\x15\xd0" + _u32.pack(len(body) + 4) + _u32.pack(5)
    return _head.pack(8 + len(head) + len(body), 2, TYPE_AMQP, channel) + head + body
