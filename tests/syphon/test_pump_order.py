"""With `order="session"` every session arrives in order, whatever fails."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from tests.emulator.contract.bus import let_pass
from tests.syphon.bus import MOMENT, body_of, connect, eventually, receive
from tests.syphon.pumping import BACKLOG, Pair, counting, envelope, numbered, take_all

from twinbus.emulator import AZURE, DEFAULT, Fault, FaultKind, FaultPoint, Namespace
from twinbus.ledger import OperationKind
from twinbus.syphon import RELEASE
from twinbus.syphon.host import SyphonHost

pytestmark = pytest.mark.slow

ON_SEND = frozenset({FaultPoint.SEND})
SESSIONS = [f"s{number}" for number in range(7)]


def of_sessions(count: int, destination: str = "orders", start: int = 0) -> list[bytes]:
    """Interleaved messages of several sessions, each with its session and position."""
    chosen = random.Random(count)
    places: dict[str, int] = defaultdict(lambda: start)
    messages = []
    for _ in range(count):
        session = chosen.choice(SESSIONS)
        messages.append(envelope(destination, f"{session} {places[session]}".encode(), session=session))
        places[session] += 1
    return messages


async def sessions_of(pair: Pair, path: str = "orders") -> dict[str, list[int]]:
    """What arrived of each session, in order, without a copy of the last message."""
    found: dict[str, list[int]] = defaultdict(list)
    for payload in await take_all(pair.primary, path):
        session, place = body_of(payload).decode().split()
        if not found[session] or found[session][-1] != int(place):
            found[session].append(int(place))
    return found


async def assert_in_order(pair: Pair, count: int, path: str = "orders") -> None:
    found = await sessions_of(pair, path)
    assert {session: places == list(range(len(places))) for session, places in found.items()} == dict.fromkeys(
        found, True
    )
    assert sum(map(len, found.values())) == count


async def test_session_is_sent_one_by_one_without_blocking_others(pair: Pair) -> None:
    await pair.put(of_sessions(400))
    report = await pair.drain(order="session")
    assert report.total.moved == 400
    await assert_in_order(pair, 400)


async def test_at_most_one_message_of_a_session_is_in_flight(pair: Pair) -> None:
    await pair.put(of_sessions(60))
    silence = pair.primary.faults.add(Fault(FaultKind.BLACKHOLE, "orders", ON_SEND))
    async with pair.running(order="session"):
        await eventually(lambda: silence.fired >= 5)
        await asyncio.sleep(3 * MOMENT)
        assert silence.fired <= len(SESSIONS)
        pair.primary.faults.remove(silence.id)
        await eventually(lambda: pair.is_backlog_empty)
    await assert_in_order(pair, 60)


async def test_messages_without_a_session_do_not_wait(pair: Pair) -> None:
    await pair.put(numbered("orders", range(30)))
    silence = pair.primary.faults.add(Fault(FaultKind.BLACKHOLE, "orders", ON_SEND))
    async with pair.running(order="session"):
        await eventually(lambda: silence.fired == 10)
        pair.primary.faults.remove(silence.id)
        await pair.until("orders", 30)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(FaultKind.REJECT, "orders", ON_SEND, probability=0.1, seed=1, condition="amqp:internal-error"),
        Fault(FaultKind.REJECT, "orders", ON_SEND, probability=0.1, seed=2, condition="x:try-again"),
        Fault(FaultKind.THROTTLE, "orders", ON_SEND, probability=0.03, seed=3),
        Fault(FaultKind.DETACH, "orders", ON_SEND, probability=0.03, seed=4),
        Fault(FaultKind.RESET, "orders", ON_SEND, probability=0.01, seed=5),
    ],
    ids=["failing", "refusing", "busy", "detaching", "resetting"],
)
async def test_the_order_survives_failures_of_the_destination(pair: Pair, fault: Fault) -> None:
    await pair.put(of_sessions(300))
    pair.primary.faults.add(fault)
    async with pair.running(order="session", options={"poison_tries": 100}):
        await eventually(lambda: pair.is_backlog_empty)
    await assert_in_order(pair, 300)


async def test_poison_message_does_not_stop_its_session(pair: Pair) -> None:
    await pair.put(of_sessions(30))
    pair.primary.faults.add(Fault(FaultKind.REJECT, "orders", ON_SEND, count=1, condition="x:poison"))
    report = await pair.drain(order="session", options={"poison_tries": 1})
    assert (report.total.poison, report.total.moved) == (1, 29)
    for places in (await sessions_of(pair)).values():
        assert places == sorted(places)


async def test_the_order_survives_a_destination_that_is_down(pair: Pair) -> None:
    await pair.put(of_sessions(100))
    down = pair.primary.faults.add(Fault(FaultKind.DISABLE, "orders"))
    async with pair.running(order="session"):
        await eventually(lambda: pair.backlog.counters.deferred == 100)
        pair.primary.faults.remove(down.id)
        await eventually(lambda: pair.is_backlog_empty)
    await assert_in_order(pair, 100)


async def test_the_order_survives_an_outage_of_the_primary(pair: Pair) -> None:
    await pair.put(of_sessions(600))
    async with pair.running(order="session") as host:
        await pair.until("orders", 100)
        faults = [pair.primary.faults.add(Fault(kind)) for kind in (FaultKind.REFUSE, FaultKind.RESET)]
        await eventually(lambda: not host.status().primary_connected)
        for fault in faults:
            pair.primary.faults.remove(fault.id)
        await eventually(lambda: pair.is_backlog_empty)
    await assert_in_order(pair, 600)


async def test_order_waits_for_a_message_locked_by_a_killed_client() -> None:
    async with Pair(DEFAULT) as pair:
        await pair.create("orders")
        await pair.put(of_sessions(40))
        async with connect(pair.secondary) as connection:
            _, inbox = await receive(connection, BACKLOG, 10)
            await inbox.take(10)
        # That client was killed: ten messages are locked, and newer ones are available.
        async with pair.running(order="session", lock_seconds=4):
            await eventually(lambda: pair.rows(OperationKind.ABANDON) > 0)
            assert pair.queue("orders").activity.received == 0
            await let_pass(pair.secondary, pair.clock, 61)
            await eventually(lambda: pair.is_backlog_empty)
        await assert_in_order(pair, 40)


async def test_order_waits_for_a_locked_message_in_the_middle() -> None:
    async with Pair(DEFAULT) as pair:
        await pair.create("orders")
        await pair.put(of_sessions(40))
        async with connect(pair.secondary) as connection:
            receiver, inbox = await receive(connection, BACKLOG, 10)
            deliveries = await inbox.take(10)
            await receiver.settled(deliveries[0], RELEASE, 10)
        async with pair.running(order="session", lock_seconds=4):
            await eventually(lambda: pair.rows(OperationKind.ABANDON) > 0)
            await pair.until("orders", 1)
            assert pair.queue("orders").activity.received == 1
            await let_pass(pair.secondary, pair.clock, 61)
            await eventually(lambda: pair.is_backlog_empty)
        await assert_in_order(pair, 40)


@asynccontextmanager
async def one_under_way_and_one_deferred(pair: Pair) -> AsyncIterator[SyphonHost]:
    """The first message of a session was sent without an answer, and the second one is deferred."""
    first, second = (envelope("orders", b"s %d" % number, session="s") for number in range(2))
    silence = pair.primary.faults.add(Fault(FaultKind.BLACKHOLE, "orders", ON_SEND))
    async with pair.running(order="session") as host:
        await pair.put([first])
        await eventually(lambda: silence.fired == 1)
        host.hold_back("orders")
        await pair.put([second])
        await eventually(lambda: pair.backlog.counters.deferred == 1)
        yield host


async def test_abandoned_message_is_not_overtaken_by_a_deferred_one(pair: Pair) -> None:
    async with one_under_way_and_one_deferred(pair) as host:
        pair.secondary.faults.add(Fault(FaultKind.SLOW, BACKLOG, frozenset({FaultPoint.RECEIVE}), delay=10 * MOMENT))
        pair.primary.faults.clear()
        host.let_go("orders")
        cut = pair.primary.faults.add(Fault(FaultKind.RESET))
        await eventually(lambda: pair.rows(OperationKind.ABANDON) == 1)
        pair.primary.faults.remove(cut.id)
        await eventually(lambda: pair.is_backlog_empty)
    await assert_in_order(pair, 2)


async def test_nothing_is_fetched_while_an_older_message_is_in_flight(pair: Pair) -> None:
    async with one_under_way_and_one_deferred(pair) as host:
        fetches = counting(pair.secondary, BACKLOG, FaultPoint.MANAGEMENT)
        host.let_go("orders")
        await asyncio.sleep(10 * MOMENT)
        assert fetches.fired == 0
        pair.primary.faults.clear()
        await eventually(lambda: pair.is_backlog_empty)
    await assert_in_order(pair, 2)


async def test_the_order_survives_a_throttled_primary() -> None:
    async with Pair(DEFAULT) as pair:
        await pair.primary.close()
        pair.primary = Namespace("contoso", profile=replace(AZURE, throttle=100))
        await pair.primary.start()
        await pair.create("orders")
        await pair.put(of_sessions(300))
        async with pair.running(order="session"):
            await eventually(lambda: pair.is_backlog_empty)
        await assert_in_order(pair, 300)


async def test_without_order_a_session_is_pipelined_like_everything_else(pair: Pair) -> None:
    await pair.put(of_sessions(30))
    silence = pair.primary.faults.add(Fault(FaultKind.BLACKHOLE, "orders", ON_SEND))
    async with pair.running():
        await eventually(lambda: silence.fired == 10)
        pair.primary.faults.remove(silence.id)
        await pair.until("orders", 30)
