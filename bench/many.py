"""Measures a namespace with many entities, connections and subscriptions: `make bench-many`.

Creates 10,000 entities, 5,000 idle connections, a flood of half-open connections and 1,000 subscriptions on one real
`twinbus serve` process, and reports its memory, CPU and times. `QUICK=1` does a tenth. The last line is one JSON
object.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import statistics
import tempfile
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import aiohttp
from bench.raw import RawClient, encoded_messages, transfers
from bench.served import Served
from bench.subscriptions import fan_out

from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec.frames import AMQP_HEADER, SASL_HEADER, TYPE_SASL, frame
from twinbus.emulator import sign
from twinbus.servicebus.connection_strings import ConnectionString

SCALE = 10 if os.environ.get("QUICK") else 1
ENTITIES = 10_000 // SCALE
CONNECTIONS = 5_000 // SCALE
FLOOD = 2_000  # connections, twice the limit of half-open ones
PAUSE = 2.0  # seconds before a closed connection reconnects
IDLE_SECONDS = 30 if SCALE == 1 else 5
SENDS = 200
GOOD = 50  # proper connections opened in a row during the flood
PARALLEL = 100  # requests and connection attempts
WAIT_SECONDS = 120.0
CONFIG = 'durability = "normal"\n[namespaces.many]\nport = 0\n'
WINDOW = 0x7FFFFFFF
QUEUE = "<entry xmlns='http://www.w3.org/2005/Atom'><content><QueueDescription xmlns='{}'/></content></entry>".format(
    "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
)


def send_times(client: RawClient) -> list[float]:
    """The durations of consecutive sends."""
    frames = transfers(encoded_messages(1, 1024))
    times = []
    for _ in range(SENDS):
        started = time.perf_counter()
        client.send(frames, 1)
        times.append(time.perf_counter() - started)
    return times


def milliseconds(times: list[float]) -> tuple[float, float]:
    """The median and the 99th percentile."""
    return statistics.median(times) * 1000, statistics.quantiles(times, n=100)[98] * 1000


async def create_entities(served: Served) -> float:
    """Create queues over the administration API; return the seconds it took."""
    address = ConnectionString.parse(served.connection_string)
    token = sign(f"http://{address.host}", address.key_name, address.key, time.time() + 3600)
    limit = asyncio.Semaphore(PARALLEL)
    base = f"http://{address.host}:{address.port}"
    async with aiohttp.ClientSession(headers={"Authorization": token}) as session:

        async def create(number: int) -> None:
            async with limit, session.put(f"{base}/queue-{number}", data=QUEUE) as answer:
                if answer.status != 201:
                    raise RuntimeError(f"creating queue {number}: expected status 201, got {answer.status}")

        started = time.perf_counter()
        await asyncio.gather(*(create(number) for number in range(ENTITIES)))
        return time.perf_counter() - started


async def connect(served: Served, number: int, stack: AsyncExitStack, limit: asyncio.Semaphore) -> None:
    """Open a connection with a waiting receiver on its own queue, as the SDK does."""
    address = ConnectionString.parse(served.connection_string)
    key = f"\0{address.key_name}\0{address.key}".encode()
    queue = f"queue-{number % ENTITIES}"
    attach = amqp.Attach("link", 0, amqp.ROLE_RECEIVER, 0, 1, amqp.Source(queue), amqp.Target("bench"))
    hello = b"".join(
        (
            SASL_HEADER,
            frame(0, amqp.SaslInit("PLAIN", key), frame_type=TYPE_SASL),
            AMQP_HEADER,
            frame(0, amqp.Open(f"idle-{number}", address.host)),
            frame(0, amqp.Begin(None, 0, WINDOW, WINDOW)),
            frame(0, attach),
            frame(0, amqp.Flow(0, WINDOW, 0, WINDOW, 0, 0, 10, echo=True)),
        )
    )
    async with limit:
        reader, writer = await asyncio.open_connection(address.host, address.port)
        stack.callback(_abort, writer)
        writer.write(hello)
        async with asyncio.timeout(WAIT_SECONDS):
            received = b""
            while b"\x00\x53\x12" not in received or b"\x00\x53\x13" not in received:  # attach and flow
                data = await reader.read(1 << 16)
                if not data:
                    raise RuntimeError(f"connection {number} was closed")
                received += data


def _abort(writer: asyncio.StreamWriter) -> None:
    """Abort a connection. A function with an argument keeps the writer, which would close when collected."""
    writer.transport.abort()


async def hold_connections(served: Served, client: RawClient, result: dict[str, Any]) -> None:
    """Measure the cost of idle connections, and the time of a send meanwhile."""
    before = served.memory()
    limit = asyncio.Semaphore(PARALLEL)
    async with AsyncExitStack() as stack:
        started, cpu = time.perf_counter(), served.cpu()
        await asyncio.gather(*(connect(served, number, stack, limit) for number in range(1, CONNECTIONS + 1)))
        result["connect_seconds"] = time.perf_counter() - started
        result["connect_cpu_ms_each"] = (served.cpu() - cpu) / CONNECTIONS * 1000
        result["connections_mb"] = served.memory()
        result["connection_kb_each"] = (served.memory() - before) / CONNECTIONS * 1024
        cpu = served.cpu()
        await asyncio.sleep(IDLE_SECONDS)
        result["idle_cpu_percent"] = (served.cpu() - cpu) / IDLE_SECONDS * 100
        times = await asyncio.to_thread(send_times, client)
        result["send_ms_with_connections"], result["send_p99_ms_with_connections"] = milliseconds(times)
    result["connections"] = CONNECTIONS
    print(
        f"{CONNECTIONS:,} connections, each with a receiver: opened in {result['connect_seconds']:.1f} s,"
        f" {result['connection_kb_each']:.1f} KB and {result['connect_cpu_ms_each']:.2f} ms of CPU each;"
        f" idle they use {result['idle_cpu_percent']:.1f} % of a core"
    )


async def half_open(served: Served, counter: list[int]) -> None:
    """Connect, send half of the handshake, and reconnect when closed."""
    address = ConnectionString.parse(served.connection_string)
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            counter[0] += 1
            try:
                writer.write(SASL_HEADER)
                while await reader.read(1 << 16):
                    pass
            finally:
                writer.transport.abort()
        await asyncio.sleep(PAUSE)


async def in_flood(served: Served, client: RawClient, counter: list[int]) -> tuple[list[float], list[float], int]:
    """Durations of sends and new connections while the whole flood reconnects, and the number of closed ones."""
    sends: list[float] = []
    opened: list[float] = []
    closed, start, deadline = 0, counter[0], time.perf_counter() + WAIT_SECONDS
    while counter[0] - start < FLOOD:  # reconnections come in short waves
        if time.perf_counter() > deadline:
            raise RuntimeError(f"expected {FLOOD} reconnections within {WAIT_SECONDS:g} s, got {counter[0] - start}")
        sends += await asyncio.to_thread(send_times, client)
        async with AsyncExitStack() as stack:
            for number in range(1, GOOD + 1):
                started = time.perf_counter()
                try:
                    await connect(served, number, stack, asyncio.Semaphore())
                    opened.append(time.perf_counter() - started)
                except (RuntimeError, OSError):
                    closed += 1
    return sends, opened, closed


async def flood(served: Served, client: RawClient, result: dict[str, Any]) -> None:
    """Measure other clients during a flood of half-open connections above the namespace's limit."""
    counter = [0]
    tasks = [asyncio.create_task(half_open(served, counter)) for _ in range(FLOOD)]
    try:
        await asyncio.sleep(5)
        sends, opened, closed = await in_flood(served, client, counter)
        result["send_ms_in_flood"], result["send_p99_ms_in_flood"] = milliseconds(sends)
        result["connect_ms_in_flood"], result["connect_p99_ms_in_flood"] = milliseconds(opened)
        result["good_in_flood"], result["good_cut_in_flood"] = len(opened) + closed, closed
        result["flood_mb"] = served.memory()
        result["flood_came"] = counter[0]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    result["flood"] = FLOOD
    print(
        f"{FLOOD:,} half-open connections that reconnect when closed ({result['flood_came']:,} connections):"
        f" a send takes {result['send_ms_in_flood']:.2f} ms (99 %: {result['send_p99_ms_in_flood']:.2f}), a new"
        f" connection {result['connect_ms_in_flood']:.1f} ms (99 %: {result['connect_p99_ms_in_flood']:.1f};"
        f" {result['good_cut_in_flood']} of {result['good_in_flood']} were closed),"
        f" {result['flood_mb']:.1f} MB resident"
    )


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    result: dict[str, Any] = {"entities": ENTITIES}
    with tempfile.TemporaryDirectory(prefix="twinbus-many-") as name:
        served = Served(Path(name), CONFIG)
        result["start_empty_seconds"] = served.start()
        try:
            result["empty_mb"] = served.memory()
            result["start_empty_cpu_seconds"] = cpu = served.cpu()
            result["create_seconds"] = asyncio.run(create_entities(served))
            result["create_cpu_ms_each"] = (served.cpu() - cpu) / ENTITIES * 1000
            result["stop_seconds"] = served.stop()
            result["start_seconds"] = served.start()
            result["start_cpu_seconds"] = served.cpu()
            result["entities_mb"] = served.memory()
            print(
                f"{ENTITIES:,} queues: created in {result['create_seconds']:.1f} s"
                f" ({result['create_cpu_ms_each']:.2f} ms of CPU each); started with them in"
                f" {result['start_seconds']:.2f} s (empty: {result['start_empty_seconds']:.2f} s) and"
                f" {result['start_cpu_seconds']:.2f} s of CPU (empty: {result['start_empty_cpu_seconds']:.2f} s),"
                f" {result['entities_mb']:.1f} MB resident (empty: {result['empty_mb']:.1f} MB)"
            )
            with RawClient(served.connection_string) as client:
                client.attach_sender("queue-0")
                result["send_ms"], result["send_p99_ms"] = milliseconds(send_times(client))
                asyncio.run(hold_connections(served, client, result))
                asyncio.run(flood(served, client, result))
        finally:
            served.stop()
        result |= fan_out(Path(name) / "subscriptions", SCALE)
    print(json.dumps({key: round(value, 3) for key, value in result.items()}))


if __name__ == "__main__":
    main()
