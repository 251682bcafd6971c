"""Checks what the service offers on a new connection, frame by frame, without our client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec.frames import AMQP_HEADER, SASL_HEADER, TYPE_SASL, frame, split_frames
from twinbus.amqp.codec.performatives import decode_performative

from .checks import Findings, check
from .drill import Drill, Site

MAX_FRAME = 1 << 20


class Terms(NamedTuple):
    """What the peer announces before authentication."""

    tls: str | None
    mechanisms: list[str]
    open: amqp.Open
    begin: amqp.Begin


async def ask_terms(site: Site) -> Terms:
    """Open a connection just far enough to learn the terms. Raises `OSError`, `DecodeError` or `EOFError`."""
    side = site.side
    name = side.endpoint.host if side.ssl_context is not None else None
    reader, writer = await asyncio.open_connection(
        side.endpoint.host, side.endpoint.effective_port, ssl=side.ssl_context, server_hostname=name
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
    return Terms(secured and secured.version(), [str(mechanism) for mechanism in offered], opened, begun)


async def _performatives(reader: asyncio.StreamReader) -> AsyncIterator[Any]:
    """Yield the performative of each frame."""
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
async def terms(drill: Drill, findings: Findings) -> None:
    site = drill.at_primary
    async with asyncio.timeout(site.times.answer):
        offered = await ask_terms(site)
    findings.note(f"over {offered.tls or 'plain text'}")
    findings.expect_equal("SASL", sorted(offered.mechanisms), ["ANONYMOUS", "EXTERNAL", "MSSBCBS", "PLAIN"])
    findings.expect_equal("frames of", offered.open.max_frame_size, 65536)
    findings.expect_equal("channel-max", offered.open.channel_max, 4999)
    findings.expect_equal("idle after ms", offered.open.idle_time_out, 120_000)
    findings.expect_equal("window", offered.begin.incoming_window, 5000)
    findings.note(f"handle-max {offered.begin.handle_max}")


CHECKS = (terms,)
