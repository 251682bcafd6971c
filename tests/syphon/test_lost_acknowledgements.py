"""A destination that stores messages without acknowledging them: how soon it is noticed, and how many copies result."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from tests.syphon.bus import eventually
from tests.syphon.pumping import BACKLOG, Pair, bodies, numbered

from twinbus.emulator import DEFAULT, ActiveFault, Fault, FaultKind, FaultPoint
from twinbus.ledger import OperationKind
from twinbus.ledger.recorder import Outcome
from twinbus.syphon.receiving.restorer import LOCK_SECONDS

LOCK = 5  # seconds, the shortest that the service allows
MESSAGES = 5
TRIES = 4


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with Pair(DEFAULT, lock_seconds=LOCK) as running:
        await running.create("orders")
        yield running


def lose_answers(pair: Pair, **more: int) -> ActiveFault:
    return pair.primary.faults.add(Fault(FaultKind.DROP_ACK, "orders", frozenset({FaultPoint.SEND}), **more))


async def test_at_most_two_copies_arrive_however_long_answers_are_lost(pair: Pair) -> None:
    lost = lose_answers(pair)
    await pair.put(numbered("orders", range(MESSAGES)))
    async with pair.running():
        await eventually(lambda: pair.rows(OperationKind.PING) >= TRIES)
        assert pair.queue("orders").activity.received == MESSAGES  # the probes were pings
        assert lost.fired >= MESSAGES + TRIES
        assert pair.backlog.counters.deferred == MESSAGES
        pair.primary.faults.clear()
        await eventually(lambda: pair.is_backlog_empty)
    copies = Counter(await pair.arrived("orders"))
    assert set(copies) == set(bodies(range(MESSAGES)))
    assert max(copies.values()) == 2


async def test_outcome_timeout_is_less_than_half_a_lock(pair: Pair) -> None:
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


async def test_outcome_timeout_respects_an_estimated_lock_duration(pair: Pair) -> None:
    lose_answers(pair)
    await pair.put(numbered("orders", [1]))
    async with pair.running(lock_seconds=None) as host:
        started = asyncio.get_running_loop().time()
        await eventually(lambda: host.status().down == ("orders",))
        assert asyncio.get_running_loop().time() - started < LOCK_SECONDS / 3
        pair.primary.faults.clear()
        await eventually(lambda: pair.is_backlog_empty)


async def test_drain_pings_a_silent_destination_and_moves_the_rest(pair: Pair) -> None:
    lose_answers(pair, count=MESSAGES)
    await pair.put(numbered("orders", range(MESSAGES)))
    report = await pair.drain()
    assert (report.total.moved, report.total.deferred) == (MESSAGES, 0)
    assert pair.rows(OperationKind.PING) == 1
    assert set(Counter(await pair.arrived("orders")).values()) == {2}


async def test_drain_ends_while_answers_are_lost(pair: Pair) -> None:
    lose_answers(pair)
    await pair.put(numbered("orders", range(MESSAGES)))
    report = await pair.drain()
    assert (report.total.moved, report.total.deferred) == (0, MESSAGES)
    assert pair.queue("orders").activity.received == MESSAGES


async def test_refused_ping_counts_as_an_answer() -> None:
    async with Pair(DEFAULT, lock_seconds=LOCK) as pair:
        await pair.create("orders", requires_session=True)
        lose_answers(pair, count=1)
        await pair.put(numbered("orders", [1], session="s"))
        report = await pair.drain()
        assert report.total.moved == 1
        assert pair.queue("orders").activity.received == 2


async def test_without_pings_a_message_is_the_probe(pair: Pair) -> None:
    lose_answers(pair)
    await pair.put(numbered("orders", [1]))
    async with pair.running(probe="link"):
        await eventually(lambda: pair.queue("orders").activity.received == 3)
        assert pair.rows(OperationKind.PING) == 0
        pair.primary.faults.clear()
        await eventually(lambda: pair.is_backlog_empty)


async def test_connection_lost_with_the_answer_costs_at_most_four_copies(pair: Pair) -> None:
    cut = pair.primary.faults.add(Fault(FaultKind.DROP_ACK, "orders", frozenset({FaultPoint.SEND}), then_reset=True))
    await pair.put(numbered("orders", [1]))
    async with pair.running():
        await eventually(lambda: pair.rows(OperationKind.PING) >= TRIES)
        assert pair.queue("orders").activity.received <= 3
        assert cut.fired >= TRIES
        pair.primary.faults.clear()
        await eventually(lambda: pair.is_backlog_empty)
    assert 2 <= len(await pair.arrived("orders")) <= 4


async def test_message_with_the_number_of_one_that_was_deleted_with_its_queue_is_moved(pair: Pair) -> None:
    """A queue that is created again numbers from 1: the number alone does not tell that a message was moved before."""
    refused = Fault(FaultKind.REJECT, BACKLOG, frozenset({FaultPoint.SETTLE}), count=1)
    fault = pair.secondary.faults.add(refused)
    await pair.put(numbered("orders", [1]))
    async with pair.running():
        await eventually(lambda: fault.fired == 1)
        await pair.secondary.delete(BACKLOG)
        await pair.create_backlog()
        await pair.put(numbered("orders", [2]))
        await eventually(lambda: pair.is_backlog_empty)
    assert await pair.arrived("orders") == bodies([1, 2])
