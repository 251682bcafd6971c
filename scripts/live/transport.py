"""What the service offers on a new connection, read frame by frame: nothing of our client stands between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from twinbus.amqp import performatives as amqp
from twinbus.amqp.frames import AMQP_HEADER, SASL_HEADER, TYPE_SASL, frame, split_frames
from twinbus.amqp.performatives import decode_performative

from .checks import Seen, check
from .drill import Drill, Site

MAX_FRAME = 1 << 20


class Terms(NamedTuple):
    """What the peer says of itself before anybody has logged in."""

    tls: str | None
    mechanisms: list[str]
    open: amqp.Open
    begin: amqp.Begin


async def ask_terms(site: Site) -> Terms:
    """Say no more than is needed to be told the terms. Raises `OSError`, `DecodeError` or `EOFError`."""
    side = site.side
    name = side.endpoint.host if side.ssl_context is not None else None
    reader, writer = await asyncio.open_connection(
        side.endpoint.host, side.endpoint.dialled_port, ssl=side.ssl_context, server_hostname=name
    )
    try:
        writer.write(SASL_HEADER)
        await reader.readexactly(8)
        frames = _performatives(reader)
        mechanisms = (await anext(frames)).sasl_server_mechanisms
        writer.write(frame(0, amqp.SaslInit("ANONYMOUS", b"ANONYMOUS", side.endpoint.host), frame_type=TYPE_SASL))
        await anext(frames)
        writer.write(AMQP_HEADER)
        await reader.readexactly(8)
        writer.write(frame(0, amqp.Open("twinbus-live", side.endpoint.host, MAX_FRAME, 65535)))
        opened = await anext(frames)
        writer.write(frame(0, amqp.Begin(None, 0, 5000, 5000, 65535)))
        begun = await anext(frames)
        writer.write(frame(0, amqp.Close()))
        await writer.drain()
    finally:
        writer.close()
    secured = writer.get_extra_info("ssl_object")
    offered = [mechanisms] if isinstance(mechanisms, str) else list(mechanisms)
    return Terms(secured and secured.version(), [str(one) for one in offered], opened, begun)


async def _performatives(reader: asyncio.StreamReader) -> AsyncIterator[Any]:
    """Each frame with a performative in it."""
    while True:
        size = await reader.readexactly(4)
        data = size + await reader.readexactly(min(int.from_bytes(size, "big"), MAX_FRAME) - 4)
        for _, _, body in split_frames(bytearray(data), MAX_FRAME):
            if body:
                yield decode_performative(body, 0)[0]


@check(
    "the terms of a connection",
    "SASL MSSBCBS, PLAIN, ANONYMOUS, EXTERNAL; frames of 65536, 5000 channels, idle after 120 s, a window of 5000",
)
async def terms(drill: Drill, seen: Seen) -> None:
    site = drill.at_primary
    async with asyncio.timeout(site.times.answer):
        found = await ask_terms(site)
    seen.note(f"over {found.tls or 'plain text'}")
    seen.value("SASL", sorted(found.mechanisms), ["ANONYMOUS", "EXTERNAL", "MSSBCBS", "PLAIN"])
    seen.value("frames of", found.open.max_frame_size, 65536)
    seen.value("channel-max", found.open.channel_max, 4999)
    seen.value("idle after ms", found.open.idle_time_out, 120_000)
    seen.value("window", found.begin.incoming_window, 5000)
    seen.note(f"handle-max {found.begin.handle_max}")


CHECKS = (terms,)
