"""A destination that stores messages and never says so: how soon that is noticed, and how many copies it costs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from tests.syphon.bus import eventually
from tests.syphon.pumping import Pair, bodies, numbered

from twinbus.broker import DEFAULT, Fault, Kind
from twinbus.broker.faults import ActiveFault, Operation
from twinbus.ledger import OperationKind
from twinbus.ledger.recorder import Outcome
from twinbus.syphon.restorer import LOCK_SECONDS

LOCK = 5  # seconds, the shortest that the service has
MESSAGES = 5
TRIES = 4


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with Pair(DEFAULT, lock_seconds=LOCK) as running:
        await running.create("orders")
        yield running


def lose_answers(pair: Pair, **more: int) -> ActiveFault:
    return pair.primary.faults.add(Fault(Kind.DROP_ACK, "orders", frozenset({Operation.SEND}), **more))


async def test_the_bound_of_two_copies_holds_however_long_answers_are_lost(pair: Pair) -> None:
    lost = lose_answers(pair)
    await pair.put(numbered("orders", range(MESSAGES)))
    async with pair.running():
        await eventually(lambda: pair.rows(OperationKind.PING) >= TRIES)
        assert pair.queue("orders").activity.received == MESSAGES  # the tries were pings
        assert lost.fired >= MESSAGES + TRIES
        assert pair.backlog.counters.deferred == MESSAGES
        pair.primary.faults.clear()
        await eventually(lambda: pair.is_backlog_empty)
    copies = Counter(await pair.arrived("orders"))
    assert set(copies) == set(bodies(range(MESSAGES)))
    assert max(copies.values()) == 2


async def test_it_gives_up_on_an_answer_before_a_lock_is_half_over(pair: Pair) -> None:
    lose_answers(pair)
    await pair.put(numbered("orders", [1]))
    async with pair.running() as host:
        await eventually(lambda: host.status().down == ("orders",))
        sends = [row for row in pair.recorder.operations if row.operation is OperationKind.SEND]
        assert [row.outcome for row in sends] == [Outcome.UNKNOWN]
        assert sends[0].latency_us is not None
        assert LOCK / 3 <= sends[0].latency_us / 1e6 < LOCK / 2 + 1
        assert pair.rows(OperationKind.RENEW) == 0
        pair.primary.faults.clear()
        await eventually(lambda: pair.is_backlog_empty)


async def test_a_lock_duration_that_nobody_told_is_respected_too(pair: Pair) -> None:
    lose_answers(pair)
    await pair.put(numbered("orders", [1]))
    async with pair.running(lock_seconds=None) as host:
        started = asyncio.get_running_loop().time()
        await eventually(lambda: host.status().down == ("orders",))
        assert asyncio.get_running_loop().time() - started < LOCK_SECONDS / 3
        pair.primary.faults.clear()
        await eventually(lambda: pair.is_backlog_empty)


async def test_a_drain_until_empty_asks_with_a_ping_and_moves_what_is_left(pair: Pair) -> None:
    lose_answers(pair, count=MESSAGES)
    await pair.put(numbered("orders", range(MESSAGES)))
    report = await pair.drain()
    assert (report.total.moved, report.total.parked) == (MESSAGES, 0)
    assert pair.rows(OperationKind.PING) == 1
    assert set(Counter(await pair.arrived("orders")).values()) == {2}


async def test_a_drain_until_empty_ends_while_answers_are_lost(pair: Pair) -> None:
    lose_answers(pair)
    await pair.put(numbered("orders", range(MESSAGES)))
    report = await pair.drain()
    assert (report.total.moved, report.total.parked) == (0, MESSAGES)
    assert pair.queue("orders").activity.received == MESSAGES


async def test_a_queue_with_sessions_answers_by_refusing_the_ping() -> None:
    async with Pair(DEFAULT, lock_seconds=LOCK) as pair:
        await pair.create("orders", requires_session=True)
        lose_answers(pair, count=1)
        await pair.put(numbered("orders", [1], session="s"))
        report = await pair.drain()
        assert report.total.moved == 1
        assert pair.queue("orders").activity.received == 2


async def test_without_pings_a_message_is_the_try(pair: Pair) -> None:
    lose_answers(pair)
    await pair.put(numbered("orders", [1]))
    async with pair.running(probe="link"):
        await eventually(lambda: pair.queue("orders").activity.received == 3)
        assert pair.rows(OperationKind.PING) == 0
        pair.primary.faults.clear()
        await eventually(lambda: pair.is_backlog_empty)


async def test_a_connection_that_is_lost_with_the_answer_costs_at_most_four_copies(pair: Pair) -> None:
    cut = pair.primary.faults.add(Fault(Kind.DROP_ACK, "orders", frozenset({Operation.SEND}), then_reset=True))
    await pair.put(numbered("orders", [1]))
    async with pair.running():
        await eventually(lambda: pair.rows(OperationKind.PING) >= TRIES)
        assert pair.queue("orders").activity.received <= 3
        assert cut.fired >= TRIES
        pair.primary.faults.clear()
        await eventually(lambda: pair.is_backlog_empty)
    assert 2 <= len(await pair.arrived("orders")) <= 4
