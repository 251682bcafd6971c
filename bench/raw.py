"""A minimal AMQP client with almost no cost, to measure the namespace itself.

Frames are encoded before the clock starts, and received frames are counted, not decoded. It still follows the
protocol: SASL, link credit, an outcome for every delivery.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec import sections
from twinbus.amqp.codec.encoding import encode
from twinbus.amqp.codec.frames import AMQP_HEADER, SASL_HEADER, TYPE_SASL, frame
from twinbus.servicebus.connection_strings import ConnectionString

MAX_FRAME = 65536
READ_BYTES = 1 << 18
WRITE_BYTES = 1 << 17
STEP_SECONDS = 60.0  # timeout for an answer
WIDE_ID = 1 << 16  # delivery ids from here on take five bytes each, so that all frames have the same size

_head = struct.Struct(">IBBH")
_TRANSFER = b"\x00\x53\x14"


def encoded_messages(count: int, size: int) -> list[bytes]:
    """Messages with an id and a body of `size` bytes."""
    body = b"\x00\x53\x75\xb0" + struct.pack(">I", size) + b"x" * size
    return [sections.list_section(sections.PROPERTIES, [encode(f"{number:032x}")]) + body for number in range(count)]


def transfers(messages: list[bytes]) -> bytes:
    """The messages as consecutive transfer frames of equal size."""
    return b"".join(
        frame(0, amqp.Transfer(0, WIDE_ID + number, struct.pack(">I", number), 0, False, False), message)
        for number, message in enumerate(messages)
    )


def _delivery_count(disposition: amqp.Disposition) -> int:
    last = disposition.first if disposition.last is None else disposition.last
    return last - disposition.first + 1


class RawClient:
    """A connection with one session and one link, as a context manager."""

    def __init__(self, connection_string: str) -> None:
        self._address = ConnectionString.parse(connection_string)
        self._received = bytearray()
        self._granted = 0

    def __enter__(self) -> RawClient:
        address = self._address
        self._socket = socket.create_connection((address.host, address.port), STEP_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        key = f"\0{address.key_name}\0{address.key}".encode()
        self._socket.sendall(SASL_HEADER + frame(0, amqp.SaslInit("PLAIN", key), frame_type=TYPE_SASL))
        self._read_header()
        self._expect(amqp.SaslOutcome)
        opening = frame(0, amqp.Open("bench", max_frame_size=MAX_FRAME))
        begin = frame(0, amqp.Begin(None, 0, 0x7FFFFFFF, 0x7FFFFFFF))
        self._socket.sendall(AMQP_HEADER + opening + begin)
        self._read_header()
        self._expect(amqp.Begin)
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    # ---- measured operations ----

    def attach_sender(self, queue: str) -> None:
        """Attach the link for `send`."""
        target = amqp.Target(queue)
        self._attach(amqp.Attach("send", 0, amqp.ROLE_SENDER, 0, 0, amqp.Source("bench"), target, None, None, 0))
        flow = self._expect(amqp.Flow)
        self._granted = (flow.delivery_count or 0) + flow.link_credit

    def send(self, frames: bytes, count: int) -> None:
        """Send `count` transfers of equal size as fast as credit allows, and wait until all are accepted."""
        size = len(frames) // count
        accepted = 0
        # Credit limits what is sent; it is read in every iteration because flows raise it.
        for performative in self._exchange(frames, lambda: self._granted * size):
            if type(performative) is amqp.Disposition:
                if type(performative.state) is not amqp.Accepted:
                    raise RuntimeError(f"expected the outcome accepted, got {performative.state}")
                accepted += _delivery_count(performative)
                if accepted == count:
                    return
            elif type(performative) is amqp.Flow and performative.link_credit is not None:
                self._granted = (performative.delivery_count or 0) + performative.link_credit

    def attach_receiver(self, queue: str) -> None:
        """Attach the link for `receive` and `settle`."""
        self._attach(amqp.Attach("receive", 0, amqp.ROLE_RECEIVER, 0, 1, amqp.Source(queue), amqp.Target("bench")))

    def receive(self, count: int) -> range:
        """Grant credit for `count` messages and wait for them; return their delivery ids."""
        received = 0
        flow = frame(0, amqp.Flow(1, 0x7FFFFFFF, 0, 0x7FFFFFFF, handle=0, delivery_count=0, link_credit=count))
        for kind in self._exchange(flow, lambda: len(flow)):
            if kind is amqp.Transfer:
                received += 1
                if received == count:
                    return range(1, count + 1)
        raise AssertionError("unreachable")

    def settle(self, frames: bytes, count: int) -> None:
        """Send the outcomes of `count` deliveries and wait until all are confirmed."""
        confirmed = 0
        for performative in self._exchange(frames, lambda: len(frames)):
            if type(performative) is amqp.Disposition:
                if type(performative.state) is not amqp.Accepted:
                    raise RuntimeError(f"expected the outcome accepted, got {performative.state}")
                confirmed += _delivery_count(performative)
                if confirmed == count:
                    return

    # ---- frames ----

    def _attach(self, attach: amqp.Attach) -> None:
        self._socket.sendall(frame(0, attach))
        answer = self._expect(amqp.Attach)
        if answer.source is None or answer.target is None:
            raise RuntimeError(f"the link was refused: {self._expect(amqp.Detach).error}")

    def _exchange(self, data: bytes, allowed: Any) -> Iterator[Any]:
        """Write `data` up to `allowed()` bytes, and yield what arrives."""
        view, sent = memoryview(data), 0
        deadline = time.monotonic() + STEP_SECONDS
        while time.monotonic() < deadline:
            limit = min(len(data), allowed())
            readable, writable, _ = select.select(
                [self._socket], [self._socket] if sent < limit else [], [], STEP_SECONDS
            )
            if writable:
                sent += self._socket.send(view[sent : min(limit, sent + WRITE_BYTES)], socket.MSG_DONTWAIT)
            if readable:
                yield from self._read()
        raise TimeoutError(f"the namespace did not answer within {STEP_SECONDS:g} s")

    def _read(self) -> list[Any]:
        """Read received frames: decoded performatives, but only the class `Transfer` for transfers."""
        data = self._socket.recv(READ_BYTES)
        if not data:
            raise ConnectionError("the namespace closed the connection")
        buffer = self._received
        buffer += data
        frames: list[Any] = []
        pos, end = 0, len(buffer)
        while end - pos >= 8:
            size, offset, _, _ = _head.unpack_from(buffer, pos)
            if end - pos < size:
                break
            start = pos + 4 * offset
            if buffer.startswith(_TRANSFER, start):
                frames.append(amqp.Transfer)
            elif start < pos + size:
                performative, _ = amqp.decode_performative(bytes(buffer[start : pos + size]), 0)
                if type(performative) is amqp.Close:
                    raise ConnectionError(f"the namespace closed the connection: {performative.error}")
                frames.append(performative)
            pos += size
        del buffer[:pos]
        return frames

    def _read_header(self) -> None:
        while len(self._received) < 8:
            self._received += self._socket.recv(8 - len(self._received))
        del self._received[:8]

    def _expect(self, kind: type) -> Any:
        """Read frames up to the next one of this kind, and return it."""
        while True:
            for performative in self._read_one():
                if type(performative) is kind:
                    return performative

    def _read_one(self) -> Iterator[Any]:
        while len(self._received) < 4:
            self._received += self._socket.recv(4 - len(self._received))
        size = int.from_bytes(self._received[:4], "big")
        while len(self._received) < size:
            self._received += self._socket.recv(size - len(self._received))
        body = bytes(self._received[4 * self._received[4] : size])
        del self._received[:size]
        if body:
            yield amqp.decode_performative(body, 0)[0]


def accepted(deliveries: range) -> bytes:
    """One disposition frame per delivery, as a client sends that completes messages one by one."""
    return b"".join(
        frame(0, amqp.Disposition(amqp.ROLE_RECEIVER, number, number, False, amqp.Accepted())) for number in deliveries
    )
