"""What the driver sees of the backlog queues, with nothing but the right to listen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.pipeline.drain.backlogs import FIRST, QUEUES, Backlogs
from tests.syphon.bus import connect, eventually, receive
from tests.syphon.pumping import numbered, take_all

from twinbus.emulator import Fault, FaultKind
from twinbus.ledger import OperationKind
from twinbus.spark.draining.backlog_survey import Backlog
from twinbus.syphon import ACCEPT, DEFER, RELEASE, AmqpError


@pytest.fixture
async def backlog(pair: Backlogs) -> AsyncIterator[Backlog]:
    found = Backlog(pair.sides[1], QUEUES, pair.recorder, "contoso", "driver")
    yield found
    await found.close()


async def test_a_short_queue_is_seen_whole(pair: Backlogs, backlog: Backlog) -> None:
    await pair.put([*numbered("orders", range(30)), *numbered("bills", range(12))])
    async with connect(pair.secondary) as connection:
        receiver, inbox = await receive(connection, FIRST, 2)
        for delivery in await inbox.take(2):
            await receiver.settled(delivery, DEFER, 10)
    survey = await backlog.survey()
    assert [(depth.active, depth.deferred) for depth in survey.depths] == [(40, 2), (0, 0), (0, 0)]
    assert survey.destinations == {"orders", "bills"}
    assert survey.missing == ()


async def test_a_long_queue_is_estimated_by_few_looks_and_its_far_destinations_are_met(
    pair: Backlogs, backlog: Backlog
) -> None:
    await pair.put([*numbered("orders", range(8_000)), *numbered("bills", range(2_000))])
    survey = await backlog.survey()
    assert survey.active == pytest.approx(10_000, rel=0.1)
    assert survey.destinations == {"orders", "bills"}
    looks = pair.rows(OperationKind.PEEK)
    assert looks < 50
    await backlog.survey()
    assert pair.rows(OperationKind.PEEK) - looks < looks  # it remembers where the end was


async def test_gaps_are_not_counted_as_messages(pair: Backlogs, backlog: Backlog) -> None:
    await pair.put(numbered("orders", range(6_000)))
    # Everything but the first and the last 300 is gone, as if other syphons had been here.
    queue = pair.backlog
    async with connect(pair.secondary) as connection:
        receiver, inbox = await receive(connection, FIRST, 6_000)
        deliveries = await inbox.take(6_000)
        for delivery in deliveries[300:-300]:
            receiver.settle(delivery, ACCEPT, lambda error: None)
        for delivery in [*deliveries[:300], *deliveries[-300:]]:
            receiver.settle(delivery, RELEASE, lambda error: None)
        await eventually(lambda: queue.counters.active == 600 and queue.locked == 0)
    assert 500 < (await backlog.survey()).active < 1_500  # of 6,000 numbers


async def test_queues_that_do_not_exist_are_named(pair: Backlogs) -> None:
    lost = "contoso/x-servicebus-transfer/9"
    backlog = Backlog(pair.sides[1], (FIRST, lost), pair.recorder, "", "")
    survey = await backlog.survey()
    await backlog.close()
    assert survey.missing == (lost,)
    assert [depth.queue for depth in survey.depths] == [FIRST]


async def test_a_lost_connection_is_made_anew(pair: Backlogs, backlog: Backlog) -> None:
    await pair.put(numbered("orders", range(3)))
    await backlog.survey()
    fault = pair.secondary.faults.add(Fault(FaultKind.RESET))
    with pytest.raises(AmqpError):
        await backlog.survey()
    pair.secondary.faults.remove(fault.id)
    assert (await backlog.survey()).active == 3


async def test_a_glance_sees_what_is_left_of_a_survey_by_one_look_a_queue(pair: Backlogs, backlog: Backlog) -> None:
    await pair.put(numbered("orders", range(1_000)))
    assert (await backlog.survey()).active == pytest.approx(1_000, rel=0.1)
    looks = pair.rows(OperationKind.PEEK)
    assert await backlog.glance() == pytest.approx(1_000, rel=0.1)
    assert pair.rows(OperationKind.PEEK) == looks + 1  # the other queues were empty
    async with connect(pair.secondary) as connection:
        receiver, inbox = await receive(connection, FIRST, 700)
        for number, delivery in enumerate(await inbox.take(700)):
            await receiver.settled(delivery, DEFER if number < 10 else ACCEPT, 10)
    assert await backlog.glance() == pytest.approx(300, abs=100)  # deferred messages do not count
    await take_all(pair.secondary, FIRST)
    assert await backlog.glance() == 0


# ---- waiting ----


async def test_waiting_ends_with_the_first_message_which_stays_where_it_was(pair: Backlogs, backlog: Backlog) -> None:
    waiting = asyncio.create_task(backlog.wait(900))
    await pair.put_in(QUEUES[2], numbered("orders", range(2)))
    async with asyncio.timeout(20):
        assert await waiting
    queue = pair.backlog_of(QUEUES[2])
    assert (queue.counters.active, queue.locked) == (2, 0)
    assert len(await take_all(pair.secondary, QUEUES[2])) == 2
    assert (pair.rows(OperationKind.RECEIVE), pair.rows(OperationKind.ABANDON)) == (1, 1)


async def test_a_wait_that_gets_nothing_is_one_poll_for_each_queue_and_period(pair: Backlogs, backlog: Backlog) -> None:
    assert not await backlog.wait(0.2, 0.5)
    assert pair.rows(OperationKind.POLL) == 2 * len(QUEUES)
    assert pair.rows(OperationKind.RECEIVE) == 0


async def test_to_wait_where_no_queue_exists_is_an_error(pair: Backlogs) -> None:
    backlog = Backlog(pair.sides[1], ("contoso/x-servicebus-transfer/9",), pair.recorder, "", "")
    with pytest.raises(AmqpError, match="not-found"):
        await backlog.wait(900)
    await backlog.close()
