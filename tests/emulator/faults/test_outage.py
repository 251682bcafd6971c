"""Faults of connections and existing links: refuse, reset, black hole, detach."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    OperationTimeoutError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
)
from tests.emulator.faults.bench import PATIENCE, SHORT, Bench, Place, unanswered, until

from twinbus.amqp.codec.frames import SASL_HEADER
from twinbus.emulator import FaultKind, FaultPoint

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

CONNECT = frozenset({FaultPoint.CONNECT})


@contextlib.asynccontextmanager
async def raw_connection(bench: Bench) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A new connection that has sent a SASL header."""
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.namespace.port)
    try:
        writer.write(SASL_HEADER)
        yield reader, writer
    finally:
        writer.transport.abort()


async def is_served(bench: Bench) -> bool:
    """Whether a new connection gets an answer to its SASL header."""
    try:
        async with raw_connection(bench) as (reader, _):
            return await reader.readexactly(8) == SASL_HEADER
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return False


async def sends(place: Place) -> bool:
    """Whether a send works, perhaps after the SDK notices that its connection is gone."""
    for _ in range(2):
        with contextlib.suppress(ServiceBusError):
            await place.send()
            return True
    return False


# ---- refuse ----


async def test_refuse_fault_closes_the_port_and_reopens_the_same_port(bench: Bench) -> None:
    port = bench.namespace.port
    active = bench.add(FaultKind.REFUSE)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    assert active.fired == 1
    bench.clear()
    assert bench.namespace.port == port
    assert await is_served(bench)


async def test_refuse_fault_affects_new_connections_only(bench: Bench) -> None:
    new_client = await bench.place()
    bench.add(FaultKind.REFUSE)
    await bench.shared.send()
    with pytest.raises(ServiceBusConnectionError):
        await new_client.send()
    bench.clear()
    await new_client.send()


async def test_port_stays_reserved_during_a_refuse_fault(bench: Bench) -> None:
    bench.add(FaultKind.REFUSE)
    with socket.socket() as other, pytest.raises(OSError) as taken:  # noqa: PT011 - the number says which
        other.bind(("127.0.0.1", bench.namespace.port))
    assert taken.value.errno == errno.EADDRINUSE


async def test_timed_refuse_fault_ends_by_itself(bench: Bench) -> None:
    active = bench.add(FaultKind.REFUSE, seconds=0.2)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", bench.namespace.port)
    await until(lambda: active.ended)
    assert await is_served(bench)


async def test_refuse_fault_with_a_count_resets_that_many_connections(bench: Bench) -> None:
    active = bench.add(FaultKind.REFUSE, count=2)
    assert [await is_served(bench) for _ in range(3)] == [False, False, True]
    assert active.fired == 2


# ---- new connections ----


@pytest.mark.parametrize("kind", [FaultKind.REFUSE, FaultKind.RESET])
async def test_connect_fault_with_a_probability_resets_some_connections(bench: Bench, kind: FaultKind) -> None:
    active = bench.add(kind, on=CONNECT, probability=0.5, seed=5)
    served = [await is_served(bench) for _ in range(12)]
    assert active.fired == served.count(False)
    assert {True, False} == set(served)
    await bench.shared.send()


async def test_slow_connect_fault_delays_the_first_answer(bench: Bench) -> None:
    active = bench.add(FaultKind.SLOW, on=CONNECT, delay=0.3)
    started = time.monotonic()
    assert await is_served(bench)
    assert time.monotonic() - started >= 0.3
    assert active.fired == 1


async def test_black_holed_connection_is_served_when_the_fault_ends(bench: Bench) -> None:
    active = bench.add(FaultKind.BLACKHOLE, on=CONNECT, count=1)
    async with raw_connection(bench) as (reader, _):
        assert await is_served(bench)  # only the first is held
        assert active.fired == 1
        bench.add(FaultKind.THROTTLE, count=1)  # another fault does not release it
        assert bench.namespace.faults.find(active.id) is active
        reading = asyncio.create_task(reader.readexactly(8))
        await unanswered(asyncio.shield(reading))
        bench.namespace.faults.remove(active.id)
        assert await reading == SASL_HEADER


# ---- existing connections and links ----


async def test_reset_fault_cuts_existing_and_new_connections(bench: Bench) -> None:
    place = await bench.place()
    await place.send()
    connected = len(bench.namespace.connections)
    active = bench.add(FaultKind.RESET)
    assert active.fired == connected > 0
    with pytest.raises(ServiceBusConnectionError):
        await place.send()
    with pytest.raises(ServiceBusConnectionError):
        await place.send()
    assert active.fired > connected
    bench.clear()
    assert await sends(place)
    assert await sends(bench.shared)


async def test_reset_fault_of_an_entity_cuts_only_its_connections(bench: Bench) -> None:
    place = await bench.place()
    await asyncio.gather(place.send(), bench.shared.send())
    before = set(bench.namespace.connections)
    active = bench.add(FaultKind.RESET, entity=place.path)
    assert active.fired == 1
    await until(lambda: len(bench.namespace.connections) == len(before) - 1)
    with pytest.raises(ServiceBusConnectionError):
        await place.send()
    bench.clear()
    await bench.shared.send()
    assert await sends(place)


@pytest.mark.parametrize(
    ("kind", "scope", "error"),
    [
        (FaultKind.CLOSE, "entity", ServiceBusError),
        (FaultKind.EXPIRE, "entity", ServiceBusAuthorizationError),
        (FaultKind.DETACH, "entity", ServiceBusConnectionError),
        (FaultKind.DISABLE, "entity", MessagingEntityDisabledError),
        (FaultKind.EXPIRE, "namespace", ServiceBusAuthorizationError),
    ],
)
async def test_fault_without_points_strikes_open_links_at_once(
    bench: Bench, kind: FaultKind, scope: str, error: type[ServiceBusError]
) -> None:
    place = await bench.place()
    await place.send()
    active = bench.add(kind, entity=place.path if scope == "entity" else None)
    assert active.fired >= 1
    assert not [link for link in bench.namespace.entity_links() if link.path == place.path]
    # The first send notices that the link is gone; the second cannot attach or is struck itself.
    with pytest.raises(ServiceBusError):
        await place.send()
    with pytest.raises(error):
        await place.send()
    bench.clear()
    assert await sends(place)
    assert await sends(bench.shared)


# ---- the whole namespace in a black hole ----


async def test_namespace_black_hole_answers_nothing_until_it_ends(bench: Bench) -> None:
    place = await bench.place()
    await place.send("early")
    await place.receiver.__aenter__()
    before = place.received
    active = bench.add(FaultKind.BLACKHOLE)
    assert active.fired == len(bench.namespace.connections) > 0
    with pytest.raises(OperationTimeoutError):
        await place.send("late", SHORT)
    fired = active.fired
    async with raw_connection(bench) as (reader, _):
        reading = asyncio.create_task(reader.readexactly(8))
        await unanswered(asyncio.shield(reading))
        assert place.received == before
        assert active.fired == fired + 1
        bench.clear()
        assert await asyncio.wait_for(reading, PATIENCE) == SASL_HEADER
    await until(lambda: place.received == before + 1)
    await place.send("at once")
    assert await place.peek_texts() == ["early", "late", "at once"]


async def test_black_hole_also_holds_http_requests(bench: Bench) -> None:
    url = f"http://127.0.0.1:{bench.namespace.port}/healthz"
    async with aiohttp.ClientSession() as session:
        async with session.get(url) as answer:
            assert answer.status == 200
        bench.add(FaultKind.BLACKHOLE)
        # The connection is open already, so the listener does not hold the request.
        asking = asyncio.create_task(session.get(url))
        await unanswered(asyncio.shield(asking))
        bench.clear()
        async with await asking as answer:
            assert answer.status == 200


async def test_timed_namespace_black_hole_delays_a_send(bench: Bench) -> None:
    assert await sends(bench.shared)
    started = time.monotonic()
    bench.add(FaultKind.BLACKHOLE, seconds=0.3)
    await bench.shared.send()
    assert time.monotonic() - started >= 0.3


async def test_namespace_can_stop_while_faults_are_in_force() -> None:
    async with Bench() as bench:
        for kind in (FaultKind.REFUSE, FaultKind.BLACKHOLE):
            bench.add(kind)
        bench.clear()
        async with raw_connection(bench):
            bench.add(FaultKind.BLACKHOLE)
            bench.add(FaultKind.SLOW, delay=60)
            async with raw_connection(bench):
                await until(lambda: bench.namespace.faults.find(3) is not None)
