"""The background: end of the interval, pings and recovery, counted at the namespace."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
from azure.servicebus.exceptions import MessagingEntityDisabledError, ServiceBusConnectionError
from tests.pairing.twins import Events, Twins, eventually, operations

from twinbus.emulator import AZURE, DEFAULT, Fault, FaultKind, QueueDescription
from twinbus.emulator import FaultPoint as At
from twinbus.ledger.recorder import OperationKind, Outcome, Stage
from twinbus.pairing.events import BacklogWarning, FailedOver, Faulted, PingFailed, PingSent, Recovered, Suspected
from twinbus.pairing.failover.entity_failover import Route
from twinbus.pairing.pairing_errors import AttemptTimeoutError
from twinbus.pairing.pairing_state import Entity, Pairing
from twinbus.servicebus.durations import TICKS_PER_SECOND

NUMBERS = itertools.count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[DEFAULT, AZURE], ids=["default", "azure"])
async def twins(request: pytest.FixtureRequest) -> AsyncIterator[Twins]:
    async with Twins.running(request.param) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def no_faults(twins: Twins) -> AsyncIterator[None]:
    yield
    twins.primary.faults.clear()
    twins.primary.deliver_pings = False


pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


def a_name() -> str:
    return f"orders-{next(NUMBERS)}"


@asynccontextmanager
async def at_work(twins: Twins, pairing: Pairing) -> AsyncIterator[Events]:
    """Run the background of a pairing."""
    events = Events(pairing)
    background = twins.background(pairing)
    await background.start()
    try:
        yield events
    finally:
        await background.close()


def fail(pairing: Pairing, entity: Entity) -> None:
    """Report a failed send to the primary."""
    pairing.sent_failed(entity, pairing.begin(entity), ServiceBusConnectionError(message="gone"))


def outage(twins: Twins, path: str, kind: FaultKind = FaultKind.REFUSE) -> int:
    """Make the entity unreachable; return the fault id to remove."""
    return twins.primary.faults.add(Fault(kind, entity=path, on=frozenset({At.ATTACH}))).id


# ---- the interval ----


async def test_one_failure_and_then_silence_still_fails_over_and_pings(twins: Twins) -> None:
    path = a_name()
    queue = await twins.queue(path)
    pairing = twins.pairing(failover_interval=0.3)
    async with at_work(twins, pairing) as events:
        entity = pairing.entity(path)
        fail(pairing, entity)
        assert pairing.route(entity).route is Route.PRIMARY
        await events.next(Suspected)
        await events.next(FailedOver)
        await events.next(PingSent)
        await events.next(Recovered)
        assert queue.activity.pings == 1
        assert queue.activity.received == 0


async def test_background_can_be_woken_from_any_thread(twins: Twins) -> None:
    path = a_name()
    await twins.queue(path)
    pairing = twins.pairing(failover_interval=0)
    async with at_work(twins, pairing) as events:
        threading.Thread(target=fail, args=(pairing, pairing.entity(path))).start()
        await events.next(Recovered)


async def test_failover_follows_the_clock_of_the_pairing(twins: Twins) -> None:
    path = a_name()
    await twins.queue(path)
    now = 1000.0
    pairing = twins.pairing(failover_interval=3600, clock=lambda: now)
    async with at_work(twins, pairing) as events:
        fail(pairing, pairing.entity(path))
        await events.next(Suspected)
        now += 3600
        pairing.wake()
        await events.next(FailedOver)
        await events.next(Recovered)


# ---- pings ----


async def test_an_entity_is_pinged_every_interval_until_a_ping_gets_through(twins: Twins) -> None:
    path = a_name()
    queue = await twins.queue(path)
    twins.primary.faults.add(Fault(FaultKind.REJECT, entity=path, on=frozenset({At.SEND}), count=2))
    pairing = twins.pairing(failover_interval=0)
    async with at_work(twins, pairing) as events:
        started = asyncio.get_running_loop().time()
        fail(pairing, pairing.entity(path))
        for _ in range(2):
            failed = await events.next(PingFailed)
            assert failed.next_ping_in == 1
        await events.next(Recovered)
        # One interval before the second ping and one before the third.
        assert asyncio.get_running_loop().time() - started >= 2
        assert len(events.all(PingSent)) == 3
        assert queue.activity.pings == 1


async def test_pings_stop_at_once_after_recovery(twins: Twins) -> None:
    path = a_name()
    queue = await twins.queue(path)
    pairing = twins.pairing(failover_interval=0)
    async with at_work(twins, pairing) as events:
        entity = pairing.entity(path)
        fail(pairing, entity)
        await events.next(Recovered)
        assert pairing.route(entity).route is Route.PRIMARY
        assert pairing.next_time() is None
        await asyncio.sleep(1.5)
        assert queue.activity.pings == 1


async def test_each_unavailable_entity_is_pinged_and_no_other(twins: Twins) -> None:
    paths = [a_name() for _ in range(3)]
    queues = [await twins.queue(path) for path in paths]
    pairing = twins.pairing(failover_interval=0)
    async with at_work(twins, pairing) as events:
        for path in paths:
            pairing.entity(path)
        for path in paths[:2]:
            fail(pairing, pairing.entity(path))
        recovered = {(await events.next(Recovered)).entity for _ in range(2)}
        assert recovered == set(paths[:2])
        assert [queue.activity.pings for queue in queues] == [1, 1, 0]


async def test_an_entity_with_sessions_is_pinged_with_a_session_id(twins: Twins) -> None:
    path = a_name()
    queue = await twins.queue(path, requires_session=True)
    pairing = twins.pairing(failover_interval=0)
    async with at_work(twins, pairing) as events:
        entity = pairing.entity(path)
        fail(pairing, entity)
        await events.next(Recovered)
        assert queue.activity.pings == 1
        assert entity.needs_session
        outcomes = [one.outcome for one in operations(pairing, OperationKind.PING)]
        assert outcomes == [Outcome.FAILED, Outcome.DONE]
        # It is remembered: the next one is right at once.
        fail(pairing, entity)
        await events.next(Recovered)
        assert queue.activity.pings == 2
        assert len(operations(pairing, OperationKind.PING)) == 3


@pytest.mark.parametrize("requires_session", [False, True])
async def test_a_topic_is_pinged_and_its_subscriptions_see_nothing(twins: Twins, requires_session: bool) -> None:
    path = a_name()
    topic, subscription = await twins.topic(path, requires_session=requires_session)
    pairing = twins.pairing(failover_interval=0)
    async with at_work(twins, pairing) as events:
        fail(pairing, pairing.entity(path))
        await events.next(Recovered)
        assert topic.activity.pings == 1
        assert subscription.counters.active == 0


async def test_every_ping_that_reached_the_namespace_is_recorded(twins: Twins) -> None:
    path = a_name()
    queue = await twins.queue(path)
    pairing = twins.pairing(failover_interval=0)
    async with at_work(twins, pairing) as events:
        for _ in range(2):
            ends = outage(twins, path, FaultKind.DETACH)
            fail(pairing, pairing.entity(path))
            await events.next(PingFailed)
            twins.primary.faults.remove(ends)
            await events.next(Recovered)
        recorded = operations(pairing, OperationKind.PING)
        assert {(one.stage, one.entity) for one in recorded} == {(Stage.PING, path)}
        assert [one.outcome for one in recorded if one.outcome is not Outcome.FAILED] == [Outcome.DONE] * 2
        assert queue.activity.pings == 2


async def test_ping_that_never_reached_the_namespace_is_recorded_and_not_billed(twins: Twins) -> None:
    path = a_name()
    queue = await twins.queue(path)
    pairing = twins.pairing(failover_interval=0)
    async with at_work(twins, pairing) as events:
        ends = outage(twins, path, FaultKind.DETACH)
        fail(pairing, pairing.entity(path))
        await events.next(PingFailed)
        first = operations(pairing, OperationKind.PING)[0]
        assert (first.stage, first.outcome, first.bytes, first.entity) == (Stage.PING, Outcome.FAILED, 0, path)
        assert first.error is not None
        assert queue.activity.pings == 0
        twins.primary.faults.remove(ends)


async def test_unanswered_ping_is_cancelled(twins: Twins) -> None:
    path = a_name()
    await twins.queue(path)
    twins.primary.faults.add(Fault(FaultKind.BLACKHOLE, entity=path))
    pairing = twins.pairing(failover_interval=0, attempt_timeout=0.5)
    async with at_work(twins, pairing) as events:
        started = asyncio.get_running_loop().time()
        fail(pairing, pairing.entity(path))
        failed = await events.next(PingFailed)
        assert isinstance(failed.error, AttemptTimeoutError)
        assert asyncio.get_running_loop().time() - started < 4


@pytest.mark.parametrize("gone", [False, True])
async def test_permanently_failing_ping_leaves_the_backlog_open(twins: Twins, gone: bool) -> None:
    path = a_name()
    if not gone:
        await twins.queue(path, status="Disabled")
    pairing = twins.pairing(failover_interval=0)
    async with at_work(twins, pairing) as events:
        entity = pairing.entity(path)
        fail(pairing, entity)
        failed = await events.next(PingFailed)
        assert gone or isinstance(failed.error, MessagingEntityDisabledError)
        await events.next(PingFailed)
        assert pairing.route(entity).route is Route.BACKLOG
        assert pairing.fault is None
        assert entity.last_error is not None
        assert entity.last_error is events.all(PingFailed)[-1].error


async def test_with_probe_link_an_opened_link_recovers_the_entity_unbilled(twins: Twins) -> None:
    path = a_name()
    queue = await twins.queue(path)
    ends = outage(twins, path, FaultKind.DETACH)
    pairing = twins.pairing(failover_interval=0, probe="link")
    async with at_work(twins, pairing) as events:
        fail(pairing, pairing.entity(path))
        await events.next(PingFailed)
        twins.primary.faults.remove(ends)
        await events.next(Recovered)
        assert (queue.activity.pings, queue.activity.received) == (0, 0)
        assert operations(pairing, OperationKind.PING, OperationKind.SEND) == []


async def test_pings_that_are_delivered_expire_after_a_second(twins: Twins) -> None:
    path = a_name()
    queue = await twins.queue(path)
    twins.primary.deliver_pings = True
    pairing = twins.pairing(failover_interval=0)
    async with at_work(twins, pairing) as events:
        fail(pairing, pairing.entity(path))
        await events.next(Recovered)
        assert queue.activity.received == 1
        await eventually(lambda: queue.counters.active == 0)


async def test_a_forced_failover_is_not_pinged(twins: Twins) -> None:
    path = a_name()
    queue = await twins.queue(path)
    pairing = twins.pairing()
    async with at_work(twins, pairing) as events:
        pairing.fail_over(path)
        assert (await events.next(FailedOver)).forced
        await asyncio.sleep(0.2)
        assert queue.activity.pings == 0
        assert pairing.route(pairing.entity(path)).route is Route.BACKLOG
        pairing.fail_back(path)
        assert (await events.next(Recovered)).forced


# ---- duplicate detection ----


def asked_for(pairing: Pairing) -> set[str]:
    """Return the entities whose properties were requested."""
    return {one.entity for one in operations(pairing, OperationKind.GET)}


async def test_duplicate_window_shorter_than_any_outage_warns_at_the_start(twins: Twins) -> None:
    long, short = a_name(), a_name()
    for path, seconds in ((long, 600), (short, 30)):
        window = seconds * TICKS_PER_SECOND
        description = QueueDescription(
            path, requires_duplicate_detection=True, duplicate_detection_history_time_window=window
        )
        await twins.primary.create(description)
    pairing = twins.pairing(failover_interval=60)
    for path in (long, short):
        pairing.entity(path)
    async with at_work(twins, pairing) as events:
        warning = await events.next(BacklogWarning)
        assert warning.entity == short
        assert "30 s" in warning.message
        await eventually(lambda: asked_for(pairing) >= {long, short})
        assert len(events.all(BacklogWarning)) == 1


async def test_outage_longer_than_the_duplicate_window_warns_once(twins: Twins) -> None:
    path, now = a_name(), 1000.0
    await twins.queue(path, requires_duplicate_detection=True)
    outage(twins, path, FaultKind.DETACH)
    pairing = twins.pairing(failover_interval=0, clock=lambda: now)
    entity = pairing.entity(path)
    async with at_work(twins, pairing) as events:
        await eventually(lambda: path in asked_for(pairing))
        fail(pairing, entity)
        await events.next(PingFailed)
        for _ in range(2):
            now += 601
            pairing.wake()
            await events.next(PingFailed)
        assert [one.entity for one in events.all(BacklogWarning)] == [path]


# ---- the end ----


async def test_closing_leaves_no_task_and_no_connection(twins: Twins) -> None:
    path = a_name()
    await twins.queue(path)
    twins.primary.faults.add(Fault(FaultKind.BLACKHOLE, entity=path))
    before = asyncio.all_tasks()
    pairing = twins.pairing(failover_interval=0)
    async with at_work(twins, pairing) as events:
        fail(pairing, pairing.entity(path))
        await events.next(PingSent)
        await eventually(lambda: twins.primary.connections)
    assert asyncio.all_tasks() <= before
    await eventually(lambda: not twins.primary.connections)
    pairing.wake()
    fail(pairing, pairing.entity("other"))


async def test_failing_background_faults_the_pairing(twins: Twins) -> None:
    pairing = twins.pairing()

    def broken() -> float:
        raise ZeroDivisionError

    async with at_work(twins, pairing) as events:
        pairing.clock = broken
        pairing.wake()
        faulted = await events.next(Faulted)
        assert isinstance(faulted.error.__cause__, ZeroDivisionError)
