"""Faults that hit connections, and what is already there: refusing, cutting, freezing, detaching."""

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
from tests.broker.faults.bench import PATIENCE, SHORT, Bench, Place, unanswered, until

from twinbus.amqp.frames import SASL_HEADER
from twinbus.broker import Kind, Operation

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

CONNECT = frozenset({Operation.CONNECT})


@contextlib.asynccontextmanager
async def stranger(bench: Bench) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A new connection that has said its first word."""
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.namespace.port)
    try:
        writer.write(SASL_HEADER)
        yield reader, writer
    finally:
        writer.transport.abort()


async def is_served(bench: Bench) -> bool:
    """Whether a new connection gets an answer to its first word."""
    try:
        async with stranger(bench) as (reader, _):
            return await reader.readexactly(8) == SASL_HEADER
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return False


async def sends(place: Place) -> bool:
    """Whether a send works, after the SDK has found out that its connection is gone."""
    for _ in range(2):
        with contextlib.suppress(ServiceBusError):
            await place.send()
            return True
    return False


# ---- refuse ----


async def test_refused_means_refused_by_the_operating_system_and_afterwards_on_the_same_port(bench: Bench) -> None:
    port = bench.namespace.port
    active = bench.add(Kind.REFUSE)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    assert active.fired == 1
    bench.clear()
    assert bench.namespace.port == port
    assert await is_served(bench)


async def test_refusing_leaves_open_connections_alone_and_new_clients_see_a_connection_error(bench: Bench) -> None:
    newcomer = await bench.place()
    bench.add(Kind.REFUSE)
    await bench.shared.send()
    with pytest.raises(ServiceBusConnectionError):
        await newcomer.send()
    bench.clear()
    await newcomer.send()


async def test_nobody_else_can_take_the_port_while_it_is_refused(bench: Bench) -> None:
    bench.add(Kind.REFUSE)
    with socket.socket() as other, pytest.raises(OSError) as taken:  # noqa: PT011 - the number says which
        other.bind(("127.0.0.1", bench.namespace.port))
    assert taken.value.errno == errno.EADDRINUSE


async def test_refusing_for_some_seconds_ends_by_itself(bench: Bench) -> None:
    active = bench.add(Kind.REFUSE, seconds=0.2)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", bench.namespace.port)
    await until(lambda: active.ended)
    assert await is_served(bench)


async def test_refusing_a_count_cuts_so_many_new_connections(bench: Bench) -> None:
    active = bench.add(Kind.REFUSE, count=2)
    assert [await is_served(bench) for _ in range(3)] == [False, False, True]
    assert active.fired == 2


# ---- connections that are coming ----


@pytest.mark.parametrize("kind", [Kind.REFUSE, Kind.RESET])
async def test_some_new_connections_are_cut(bench: Bench, kind: Kind) -> None:
    active = bench.add(kind, on=CONNECT, probability=0.5, seed=5)
    served = [await is_served(bench) for _ in range(12)]
    assert active.fired == served.count(False)
    assert {True, False} == set(served)
    await bench.shared.send()


async def test_a_slow_connection_is_served_late(bench: Bench) -> None:
    active = bench.add(Kind.SLOW, on=CONNECT, delay=0.3)
    started = time.monotonic()
    assert await is_served(bench)
    assert time.monotonic() - started >= 0.3
    assert active.fired == 1


async def test_a_connection_into_a_black_hole_is_served_late_when_the_fault_ends(bench: Bench) -> None:
    active = bench.add(Kind.BLACKHOLE, on=CONNECT, count=1)
    async with stranger(bench) as (reader, _):
        assert await is_served(bench)  # only the first one is held
        assert active.fired == 1
        bench.add(Kind.THROTTLE, count=1)  # another fault does not free it
        assert bench.namespace.faults.find(active.id) is active
        reading = asyncio.create_task(reader.readexactly(8))
        await unanswered(asyncio.shield(reading))
        bench.namespace.faults.remove(active.id)
        assert await reading == SASL_HEADER


# ---- what is there already ----


async def test_a_reset_cuts_what_is_connected_and_what_connects(bench: Bench) -> None:
    place = await bench.place()
    await place.send()
    connected = len(bench.namespace.connections)
    active = bench.add(Kind.RESET)
    assert active.fired == connected > 0
    with pytest.raises(ServiceBusConnectionError):
        await place.send()
    with pytest.raises(ServiceBusConnectionError):
        await place.send()
    assert active.fired > connected
    bench.clear()
    assert await sends(place)
    assert await sends(bench.shared)


async def test_a_reset_of_one_entity_cuts_its_connections_only(bench: Bench) -> None:
    place = await bench.place()
    await asyncio.gather(place.send(), bench.shared.send())
    before = set(bench.namespace.connections)
    active = bench.add(Kind.RESET, entity=place.path)
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
        (Kind.CLOSE, "entity", ServiceBusError),
        (Kind.EXPIRE, "entity", ServiceBusAuthorizationError),
        (Kind.DETACH, "entity", ServiceBusConnectionError),
        (Kind.DISABLE, "entity", MessagingEntityDisabledError),
        (Kind.EXPIRE, "namespace", ServiceBusAuthorizationError),
    ],
)
async def test_links_that_are_open_are_struck_at_once(
    bench: Bench, kind: Kind, scope: str, error: type[ServiceBusError]
) -> None:
    place = await bench.place()
    await place.send()
    active = bench.add(kind, entity=place.path if scope == "entity" else None)
    assert active.fired >= 1
    assert not [link for link in bench.namespace.entity_links() if link.path == place.path]
    # The first send finds the link gone, the second one cannot open it or is struck itself.
    with pytest.raises(ServiceBusError):
        await place.send()
    with pytest.raises(error):
        await place.send()
    bench.clear()
    assert await sends(place)
    assert await sends(bench.shared)


# ---- the whole namespace in a black hole ----


async def test_in_a_black_hole_nothing_answers_and_what_was_sent_arrives_late(bench: Bench) -> None:
    place = await bench.place()
    await place.send("early")
    await place.receiver.__aenter__()
    before = place.received
    active = bench.add(Kind.BLACKHOLE)
    assert active.fired == len(bench.namespace.connections) > 0
    with pytest.raises(OperationTimeoutError):
        await place.send("late", SHORT)
    fired = active.fired
    async with stranger(bench) as (reader, _):
        reading = asyncio.create_task(reader.readexactly(8))
        await unanswered(asyncio.shield(reading))
        assert place.received == before
        assert active.fired == fired + 1
        bench.clear()
        assert await asyncio.wait_for(reading, PATIENCE) == SASL_HEADER
    await until(lambda: place.received == before + 1)
    await place.send("at once")
    assert await place.peek_texts() == ["early", "late", "at once"]


async def test_a_black_hole_also_swallows_requests_over_http(bench: Bench) -> None:
    url = f"http://127.0.0.1:{bench.namespace.port}/healthz"
    async with aiohttp.ClientSession() as session:
        async with session.get(url) as answer:
            assert answer.status == 200
        bench.add(Kind.BLACKHOLE)
        # The connection is open already, so the request is not held by the listener.
        asking = asyncio.create_task(session.get(url))
        await unanswered(asyncio.shield(asking))
        bench.clear()
        async with await asking as answer:
            assert answer.status == 200


async def test_a_black_hole_for_some_seconds_delays_what_comes_meanwhile(bench: Bench) -> None:
    assert await sends(bench.shared)
    started = time.monotonic()
    bench.add(Kind.BLACKHOLE, seconds=0.3)
    await bench.shared.send()
    assert time.monotonic() - started >= 0.3


async def test_the_namespace_can_stop_while_it_is_broken() -> None:
    async with Bench() as bench:
        for kind in (Kind.REFUSE, Kind.BLACKHOLE):
            bench.add(kind)
        bench.clear()
        async with stranger(bench):
            bench.add(Kind.BLACKHOLE)
            bench.add(Kind.SLOW, delay=60)
            async with stranger(bench):
                await until(lambda: bench.namespace.faults.find(3) is not None)
