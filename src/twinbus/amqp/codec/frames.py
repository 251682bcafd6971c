"""Reads and writes AMQP frames, and the protocol headers before them.

The frequent frames (transfer, disposition) have fast writers of their own; all others use `frame`. `split_frames`
never copies more than a partial frame.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
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
BATCH_FORMAT = 0x80013700  # the message-format of a transfer that holds many messages

_head = struct.Struct(">IBBH")
_whole = struct.Struct(">IBBH7sBBI2s16s8s")  # a whole transfer with a short handle and a lock token as its tag
_accepting = struct.Struct(">IBBH4sBBBBIBI6s")  # a whole frame: header, list, role, first, last, settled and outcome
_u32 = struct.Struct(">I")
_start = struct.Struct(">BBBBBI")  # size and count of a performative's list, and the first seven bytes of its fields
_ACCEPTED = b"\x00\x53\x24\x45"
_TRANSFER_OVERHEAD = 12  # descriptor, list header and the last six fields of a transfer
_TRANSFER_LIST = b"\x00\x53\x14\xc0"
_WHOLE_BYTES, _WHOLE = _whole.size, _TRANSFER_LIST + bytes((34, 11, 0x52))  # fields of 33 bytes, the handle's type
_NO_MORE = b"\x42\x40\x40\x40\x40\x40"
_TAG_OF_16, _SETTLED_END, _UNSETTLED_END = b"\xa0\x10", b"\x43\x41" + _NO_MORE, b"\x43\x42" + _NO_MORE
_DISPOSITION_LIST = b"\x00\x53\x15\xc0"
_FLAGS = {b"\x40": None, b"\x41": True, b"\x42": False, b"\x56\x00": False, b"\x56\x01": True}
# The possible ends of a transfer: a single message or a batch, any form of settled and more, then nulls or nothing.
# The values are the decoded fields and the field count.
_FORMATS = {b"\x43": 0, b"\x70\x80\x01\x37\x00": BATCH_FORMAT}
_TRANSFER_ENDS = {
    form + settled + more + b"\x40" * nulls: (_FORMATS[form], _FLAGS[settled], _FLAGS[more], 6 + nulls)
    for form in _FORMATS
    for settled in _FLAGS
    for more in _FLAGS
    for nulls in range(6)
}
# The possible ends of an accepting disposition: settled, the outcome, batchable or not. The values are the decoded
# fields and the field count.
_ACCEPTED_ENDS = {
    settled + _ACCEPTED + batchable: (_FLAGS[settled], _FLAGS.get(batchable), 6 if batchable else 5)
    for settled in _FLAGS
    for batchable in (b"", *_FLAGS)
}
_IS_ACCEPTED = Accepted()
# With batchable, which we never use: before 7.15 the SDK's network trace needs all fields of a disposition.
_SETTLED = b"\x41" + _ACCEPTED + b"\x40"


class FramingError(DecodeError):
    """The bytes are not a frame, or the frame is larger than negotiated."""


def frame(channel: int, performative: Any, payload: bytes = b"", frame_type: int = TYPE_AMQP) -> bytes:
    """Encode one frame."""
    out = bytearray(8)
    encode_performative(out, performative)
    out += payload
    _head.pack_into(out, 0, len(out), 2, frame_type, channel)
    return bytes(out)


def split_frames(buffer: bytearray, max_frame_size: int, data: bytes = b"") -> Iterable[tuple[int, int, bytes]]:
    """Take the complete frames from `buffer` and then `data`, as (type, channel, body).

    The start of an incomplete frame stays in the buffer. Raises `FramingError` for a malformed frame, or one larger
    than `max_frame_size`, as soon as its header has arrived.
    """
    if not buffer and len(data) >= 8:
        size, doff, frame_type, channel = _head.unpack_from(data)
        if size == len(data) <= max_frame_size and doff == 2:
            return ((frame_type, channel, data[8:]),)  # a single frame, from a client that waits for the answer
    return _split(buffer, max_frame_size, data)


def _split(buffer: bytearray, max_frame_size: int, data: bytes) -> Iterator[tuple[int, int, bytes]]:
    if buffer:
        buffer += data
        if len(buffer) < 8:
            return
        size, doff, _, _ = _head.unpack_from(buffer)
        if len(buffer) < size <= max_frame_size and 8 <= doff * 4 <= size:
            return  # an incomplete frame
        data = bytes(buffer)  # slicing bytes is cheaper than a view and a copy per frame
        buffer.clear()
    pos, end = 0, len(data)
    try:
        while end - pos >= 8:
            size, doff, frame_type, channel = _head.unpack_from(data, pos)
            start, stop = pos + doff * 4, pos + size
            if not 8 <= doff * 4 <= size <= max_frame_size:
                raise _bad_header(size, doff, max_frame_size)
            if stop > end:
                break
            pos = stop
            yield frame_type, channel, data[start:stop]
    finally:
        if pos < end:
            buffer[:0] = data[pos:]


def _bad_header(size: int, doff: int, max_frame_size: int) -> FramingError:
    if size > max_frame_size:
        return FramingError(f"a frame must have at most the negotiated {max_frame_size} bytes, got {size}")
    return FramingError(f"malformed frame header: size {size}, data offset {doff}")


def _read_accepting(body: bytes) -> tuple[Disposition, int] | None:
    try:
        size, count, code, second, third, number = _start.unpack_from(body, 4)
        if code == 0x56 and second == 1:  # from a receiver, in two bytes
            if third == 0x70:
                first, pos = number, 13
            elif third == 0x52:
                first, pos = number >> 24, 10
            else:
                return None
        elif code == 0x41:  # or in one
            if second == 0x70:
                first, pos = third << 24 | number >> 8, 12
            elif second == 0x52:
                first, pos = third, 9
            else:
                return None
        else:
            return None  # from a sender, which is rare
        end, last, code = 5 + size, None, body[pos]
        if code == 0x70:
            last, pos = _u32.unpack_from(body, pos + 1)[0], pos + 5
        elif code == 0x52:
            last, pos = body[pos + 1], pos + 2
        elif code == 0x40:
            pos += 1
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
        size, count, code, second, third, number = _start.unpack_from(body, 4)
        if code == 0x52:  # a handle in two bytes
            if third == 0x70:
                handle, delivery_id, pos = second, number, 13
            elif third == 0x52:
                handle, delivery_id, pos = second, number >> 24, 10
            else:
                return None
        elif code == 0x43:  # or 0 in one
            if second == 0x70:
                handle, delivery_id, pos = 0, third << 24 | number >> 8, 12
            elif second == 0x52:
                handle, delivery_id, pos = 0, third, 9
            else:
                return None
        else:
            return None
        if body[pos] != 0xA0:
            return None
        end, tag_end = 5 + size, pos + 2 + body[pos + 1]
        message_format, settled, more, written = _TRANSFER_ENDS[body[tag_end:end]]
    except (IndexError, KeyError, struct.error):
        return None
    if written != count or end > len(body):
        return None
    tag = body[pos + 2 : tag_end]
    fields = (handle, delivery_id, tag, message_format, settled, more, None, None, None, None, None)
    return tuple.__new__(Transfer, fields), end


#: Fast readers of transfers and accepting dispositions in the shape that clients write, by the first four bytes. They
#: return the performative and where its payload starts, or None for any other shape. Three times as fast as
#: `decode_performative`, which reads all shapes and explains errors.
FREQUENT: Mapping[bytes, Callable[[bytes], tuple[Any, int] | None]] = {
    _TRANSFER_LIST: _read_transfer,
    _DISPOSITION_LIST: _read_accepting,
}


def uint(value: int) -> bytes:
    """Encode a uint in its shortest form."""
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
    """Encode a delivery as one frame, or several if it exceeds the peer's frame size.

    Raises `EncodeError` for a tag of more than 32 bytes, or a `max_frame_size` that AMQP does not allow.
    """
    if len(tag) > 32:
        raise EncodeError(f"a delivery tag must have at most 32 bytes, got {len(tag)}")
    if handle < 256 and len(tag) == 16 and _WHOLE_BYTES + len(payload) <= max_frame_size:
        size, end = _WHOLE_BYTES + len(payload), _SETTLED_END if settled else _UNSETTLED_END
        head = _whole.pack(size, 2, TYPE_AMQP, channel, _WHOLE, handle, 0x70, delivery_id, _TAG_OF_16, tag, end)
        return [head + payload]
    settle = b"\x41" if settled else b"\x42"
    # handle, delivery-id, delivery-tag (at most 32 bytes), message-format 0, settled
    handle_field = bytes((0x52, handle)) if handle < 256 else b"\x70" + _u32.pack(handle)
    number = b"\x70" + _u32.pack(delivery_id)
    fields = b"".join((handle_field, number, bytes((0xA0, len(tag))), tag, b"\x43", settle))
    if 8 + _TRANSFER_OVERHEAD + len(fields) + len(payload) <= max_frame_size:
        return [_transfer(channel, fields, False, payload)]
    if max_frame_size < MIN_MAX_FRAME_SIZE:
        raise EncodeError(f"max-frame-size must be at least {MIN_MAX_FRAME_SIZE}, got {max_frame_size}")
    pos = max_frame_size - 8 - _TRANSFER_OVERHEAD - len(fields)
    out = [_transfer(channel, fields, True, payload[:pos])]
    fields = uint(handle) + b"\x40\x40\x40\x40"
    part_size = max_frame_size - 8 - _TRANSFER_OVERHEAD - len(fields)
    while pos < len(payload):
        out.append(_transfer(channel, fields, pos + part_size < len(payload), payload[pos : pos + part_size]))
        pos += part_size
    return out


def _transfer(channel: int, fields: bytes, more: bool, payload: bytes) -> bytes:
    return b"".join(
        (
            _head.pack(8 + _TRANSFER_OVERHEAD + len(fields) + len(payload), 2, TYPE_AMQP, channel),
            b"\x00\x53\x14\xc0",
            bytes((len(fields) + 7, 11)),
            fields,
            # more, then five unused fields: older clients index into the list without checking its length
            b"\x41\x40\x40\x40\x40\x40" if more else _NO_MORE,
            payload,
        )
    )


def disposition_frame(channel: int, role: bool, first: int, last: int, state: Any) -> bytes:
    """Encode a settled disposition of a range of deliveries. `state` None means accepted."""
    if state is None:
        return _accepting.pack(
            31,
            2,
            TYPE_AMQP,
            channel,
            _DISPOSITION_LIST,
            18,
            6,
            0x41 if role else 0x42,
            0x70,
            first,
            0x70,
            last,
            _SETTLED,
        )
    encoded = bytearray()
    encode_into(encoded, described(state))
    body = b"".join((b"\x41" if role else b"\x42", uint(first), uint(last), b"\x41", encoded, b"\x40"))
    if len(body) < 255:
        head = _DISPOSITION_LIST + bytes((len(body) + 1, 6))
    else:
        head = b"\x00\x53\x15\xd0" + _u32.pack(len(body) + 4) + _u32.pack(6)
    return _head.pack(8 + len(head) + len(body), 2, TYPE_AMQP, channel) + head + body
