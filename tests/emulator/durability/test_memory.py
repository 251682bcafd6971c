"""A long queue stays on disk: memory does not grow with it, and opening does not read it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from tests.emulator.raw_client import ConnectionGoneError, Delivery, RawClient, RefusedError, encoded_message
from tests.emulator.wire import ServeProcess, administration

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the resident memory from /proc")

QUEUE = "orders"
BODY = b"x" * 1024
WARM_UP = 20_000
MESSAGES = 200_000
# The messages take more than 200 MB; only caches, buffers and one group may be in memory.
GROWTH_MB = 60.0
OPEN_MB = 40.0


def _resident_mb(serve: ServeProcess) -> float:
    assert serve.process is not None
    status = Path(f"/proc/{serve.process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")) / 1024


async def _send(client: RawClient, count: int) -> None:
    sender = await client.sender(QUEUE)
    left = count
    finished = asyncio.Event()

    def outcome(error: RefusedError | ConnectionGoneError | None) -> None:
        nonlocal left
        assert error is None, error
        left -= 1
        if left == 0:
            finished.set()

    message = encoded_message("the same for all", BODY)
    for _ in range(count):
        if sender.credit <= 0:
            await sender.room()
        sender.submit(message, outcome)
    await finished.wait()


async def _receive(client: RawClient, count: int) -> None:
    left = count
    finished = asyncio.Event()

    def outcome(error: RefusedError | ConnectionGoneError | None) -> None:
        nonlocal left
        assert error is None, error
        left -= 1
        if left == 0:
            finished.set()

    def on_message(delivery: Delivery) -> None:
        receiver.settle(delivery, outcome)

    receiver = await client.receiver(QUEUE, on_message)
    receiver.grant(count)
    await finished.wait()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_memory_does_not_grow_with_the_queue(tmp_path: Path) -> None:
    options = ("--namespace", "contoso=0", "--durability", "normal")
    with ServeProcess(tmp_path, *options) as serve:
        empty = _resident_mb(serve)
        connection_string = serve.connection_string("contoso")
        administration(connection_string).create_queue(QUEUE)
        async with RawClient(connection_string) as client:
            await client.put_token(QUEUE)
            await _send(client, WARM_UP)
            await _receive(client, WARM_UP)
            before = _resident_mb(serve)
            await _send(client, MESSAGES)
            after = _resident_mb(serve)
        assert after - before < GROWTH_MB, f"{MESSAGES} stored messages took {after - before:.0f} MB"
        serve.kill()
        serve.start()
        opened = _resident_mb(serve)
        assert opened - empty < OPEN_MB, f"opening {MESSAGES} messages took {opened - empty:.0f} MB"
        connection_string = serve.connection_string("contoso")
        properties = administration(connection_string).get_queue_runtime_properties(QUEUE)
        assert properties.active_message_count == MESSAGES
        async with RawClient(connection_string) as client:
            await client.put_token(QUEUE)
            await _receive(client, WARM_UP)
        assert _resident_mb(serve) - before < GROWTH_MB
    print(f"resident: empty {empty:.0f}, before {before:.0f}, after {after:.0f}, opened {opened:.0f} MB")
