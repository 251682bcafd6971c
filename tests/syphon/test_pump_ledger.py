"""The syphon with a required ledger: nothing is completed before its rows are durable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.syphon.bus import MOMENT, PATIENCE, eventually
from tests.syphon.pumping import BACKLOG, Pair, bodies, counting, numbered

from twinbus.amqp.client.errors import AnswerTimeoutError
from twinbus.emulator import AZURE, DEFAULT, Fault, FaultKind, FaultPoint, Profile
from twinbus.ledger import MemoryRecorder, OperationKind, Outcome
from twinbus.pairing.events import Event, EventBus, PumpStopped
from twinbus.syphon import AmqpError
from twinbus.syphon.settlement.ledger_gate import OnDurable
from twinbus.syphon.until_empty import QUIET_SECONDS

pytestmark = pytest.mark.slow

LOCK = 6.0  # seconds
MESSAGES = 100


@pytest.fixture(params=[DEFAULT, AZURE], ids=["default", "azure"])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    async with Pair(request.param, LOCK) as running:
        await running.create("orders")
        yield running


class Ledger:
    """A ledger whose flushes the test confirms or fails."""

    def __init__(self) -> None:
        self.asked: list[OnDurable] = []
        self.error: BaseException | None = None
        self.answers = False
        self.times = 0

    def flush(self, then: OnDurable) -> None:
        self.times += 1
        if self.answers or self.error is not None:
            asyncio.get_running_loop().call_soon(then, self.error)
        else:
            self.asked.append(then)

    def answer(self) -> None:
        asked, self.asked = self.asked, []
        for then in asked:
            then(None)


async def test_message_is_completed_only_after_its_rows_are_durable(pair: Pair) -> None:
    ledger = Ledger()
    await pair.put(numbered("orders", range(5)))
    settles = counting(pair.secondary, BACKLOG, FaultPoint.SETTLE)
    async with pair.running(flush=ledger.flush):
        await pair.until("orders", 5)
        await asyncio.sleep(MOMENT)
        assert settles.fired == 0
        while not pair.is_backlog_empty:
            ledger.answer()
            await asyncio.sleep(0.01)
    assert settles.fired == 5


async def test_message_is_dead_lettered_only_after_its_row_is_durable(pair: Pair) -> None:
    ledger, recorder = Ledger(), MemoryRecorder()
    await pair.put(numbered(BACKLOG, [1]))  # it would loop
    settles = counting(pair.secondary, BACKLOG, FaultPoint.SETTLE)
    async with pair.running(flush=ledger.flush, recorder=recorder):
        await eventually(lambda: bool(ledger.asked))
        await asyncio.sleep(MOMENT)
        assert settles.fired == 0
        assert outcomes(recorder) == [Outcome.PLANNED]
        ledger.answer()
        await eventually(lambda: settles.fired == 1)
        await eventually(lambda: len(outcomes(recorder)) == 2)
    assert outcomes(recorder) == [Outcome.PLANNED, Outcome.DONE]
    assert len(await pair.dead_letters()) == 1


def outcomes(recorder: MemoryRecorder) -> list[Outcome]:
    return [one.outcome for one in recorder.operations if one.operation is OperationKind.DEAD_LETTER]


async def test_failing_ledger_keeps_dead_letters_in_the_queue(pair: Pair) -> None:
    ledger = Ledger()
    ledger.error = OSError("disk full")
    await pair.put(numbered(BACKLOG, [1]))
    with pytest.raises(AmqpError, match="the ledger failed: OSError"):
        await pair.drain(flush=ledger.flush)
    assert (pair.backlog.counters.active, pair.backlog.locked) == (1, 0)
    report = await pair.drain()
    assert report.total.poison == 1


@pytest.mark.parametrize("profile", [DEFAULT, AZURE], ids=["default", "azure"])
async def test_until_empty_does_not_end_while_the_ledger_is_slow(
    profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = 1.0  # longer than a busy machine takes to deliver the first message
    monkeypatch.setattr("twinbus.syphon.until_empty.QUIET_SECONDS", calm)
    ledger = Ledger()
    async with Pair(profile) as pair:
        await pair.create("orders")
        await pair.put(numbered("orders", range(5)))
        draining = asyncio.create_task(pair.drain(flush=ledger.flush))
        await pair.until("orders", 5)
        await asyncio.sleep(calm * 1.5)
        # Nothing arrived or was settled. A drain that is about to end asks for no more messages.
        await pair.put(numbered("orders", range(5, 10)))
        await pair.until("orders", 10)
        ledger.answers = True
        ledger.answer()
        report = await draining
    assert report.total.moved == 10


async def test_slow_ledger_causes_no_abandoned_messages_in_a_drain(pair: Pair) -> None:
    def flush(then: OnDurable) -> None:
        asyncio.get_running_loop().call_later(QUIET_SECONDS * 1.5, then, None)

    await pair.put(numbered("orders", range(1000)))
    # Right after each flush nothing is unsettled, and nothing has arrived for a while.
    pair.secondary.faults.add(
        Fault(FaultKind.SLOW, BACKLOG, frozenset({FaultPoint.RECEIVE}), delay=QUIET_SECONDS * 0.6)
    )
    settles = counting(pair.secondary, BACKLOG, FaultPoint.SETTLE)
    report = await pair.drain(flush=flush)
    assert report.total.moved == 1000
    activity = pair.backlog.activity
    assert (activity.delivered, activity.completed, settles.fired) == (1000, 1000, 1000)


async def test_message_arriving_during_the_final_scan_is_moved_not_abandoned(pair: Pair) -> None:
    # The broker delivers messages later than the drain waits for them.
    pair.secondary.faults.add(Fault(FaultKind.SLOW, BACKLOG, frozenset({FaultPoint.RECEIVE}), delay=QUIET_SECONDS * 2))
    await pair.put(numbered("orders", range(100)))
    settles = counting(pair.secondary, BACKLOG, FaultPoint.SETTLE)
    await pair.drain()
    assert (pair.backlog.activity.delivered, settles.fired) == (100, 100)
    assert pair.is_backlog_empty


# ---- a ledger that fails ----


@asynccontextmanager
async def promptly(seconds: float) -> AsyncIterator[None]:
    """Well below a lock duration and the close timeout."""
    async with asyncio.timeout(seconds):
        yield


async def test_failing_ledger_stops_the_pump_and_completes_nothing(pair: Pair) -> None:
    ledger = Ledger()
    ledger.error = OSError("disk full")
    await pair.put(numbered("orders", range(MESSAGES)))
    async with promptly(LOCK / 2):
        with pytest.raises(AmqpError, match="the ledger failed: OSError") as caught:
            await pair.drain(flush=ledger.flush)
    assert caught.value.__cause__ is ledger.error
    assert pair.backlog.activity.completed == 0
    assert pair.backlog.counters.active == MESSAGES
    assert pair.backlog.locked == 0  # the next attempt need not wait for locks


async def test_silent_ledger_times_out_after_a_third_of_the_lock(pair: Pair) -> None:
    loop, times = asyncio.get_running_loop(), []
    await pair.put(numbered("orders", range(MESSAGES)))
    async with promptly(LOCK):
        with pytest.raises(AmqpError, match=r"the ledger stored nothing within 2\.1 seconds") as caught:
            await pair.drain(flush=lambda then: times.append(loop.time()))
    assert isinstance(caught.value.__cause__, AnswerTimeoutError)
    assert len(times) == 1
    assert loop.time() - times[0] >= LOCK / 3
    # Nothing was received after the ledger stalled, and nothing is locked.
    assert pair.backlog.activity.delivered < MESSAGES
    assert (pair.backlog.activity.completed, pair.backlog.locked) == (0, 0)
    assert pair.backlog.counters.active == MESSAGES


async def test_unsent_messages_are_abandoned_when_the_ledger_fails(pair: Pair) -> None:
    ledger = Ledger()
    await pair.put(numbered("orders", range(MESSAGES)))
    async with promptly(LOCK / 2):
        drain = asyncio.create_task(pair.drain(flush=ledger.flush, options={"rate": 20}))
        await pair.until("orders", 2)
        ledger.asked.pop()(OSError("disk full"))
        with pytest.raises(AmqpError, match="the ledger failed"):
            await drain
    assert pair.queue("orders").activity.received < 20
    assert pair.backlog.locked == 0
    assert pair.backlog.counters.active == MESSAGES


async def test_deferred_messages_stay_deferred_when_the_ledger_fails(pair: Pair) -> None:
    await pair.put(numbered("later", range(20)))
    await pair.drain()
    assert pair.backlog.counters.deferred == 20
    await pair.create("later")
    ledger = Ledger()
    ledger.error = OSError("disk full")
    async with promptly(LOCK / 2):
        with pytest.raises(AmqpError, match="the ledger failed"):
            await pair.drain(flush=ledger.flush)
    assert pair.backlog.counters.deferred == 20
    ledger.error, ledger.answers = None, True
    async with asyncio.timeout(PATIENCE):
        await pair.drain(flush=ledger.flush)
    assert pair.is_backlog_empty


async def test_running_syphon_resumes_with_the_ledger_and_sends_nothing_twice(pair: Pair) -> None:
    ledger = Ledger()
    ledger.error = OSError("disk full")
    await pair.put(numbered("orders", range(MESSAGES)))
    async with pair.running(flush=ledger.flush):
        await pair.until("orders", 1)
        await eventually(lambda: pair.backlog.locked == 0)
        received = pair.queue("orders").activity.received
        await asyncio.sleep(MOMENT * 3)  # meanwhile it keeps asking the ledger and receives nothing
        assert pair.queue("orders").activity.received == received < MESSAGES
        assert (pair.backlog.activity.completed, pair.backlog.locked) == (0, 0)
        ledger.error, ledger.answers = None, True
        await eventually(lambda: pair.is_backlog_empty)
    assert sorted(await pair.arrived("orders")) == sorted(bodies(range(MESSAGES)))


async def test_syphon_waiting_for_the_ledger_sends_nothing_to_the_namespaces(pair: Pair) -> None:
    await pair.put(numbered("later", range(20)))
    await pair.drain()
    await pair.create("later")
    ledger = Ledger()
    ledger.error = OSError("disk full")
    asked = counting(
        pair.secondary, BACKLOG, FaultPoint.ATTACH, FaultPoint.RECEIVE, FaultPoint.SETTLE, FaultPoint.MANAGEMENT
    )
    async with pair.running(flush=ledger.flush):
        await eventually(lambda: ledger.times >= 2)  # it gave up and keeps asking the ledger
        before = asked.fired
        await eventually(lambda: ledger.times >= 4)
        assert asked.fired == before
        assert pair.queue("later").activity.received == 1


async def test_syphon_waiting_for_the_ledger_can_be_closed(pair: Pair) -> None:
    ledger = Ledger()
    ledger.error = OSError("disk full")
    await pair.put(numbered("orders", range(5)))
    before = asyncio.all_tasks()
    host = pair.host(flush=ledger.flush, options={"retry_min": 60, "retry_max": 60})
    await host.start()
    await pair.until("orders", 1)
    await eventually(lambda: pair.backlog.locked == 0)
    async with promptly(LOCK / 2):
        await host.close()
    assert asyncio.all_tasks() == before


# ---- a ledger that answers late ----


async def test_late_durable_messages_are_completed_not_abandoned(pair: Pair) -> None:
    loop = asyncio.get_running_loop()
    ledger = Ledger()
    await pair.put(numbered("orders", range(MESSAGES)))
    async with promptly(2 * LOCK):
        drain = asyncio.create_task(pair.drain(flush=ledger.flush))
        await eventually(lambda: ledger.asked)
        asked_at = loop.time()
        # The deadline has passed, and the locks still hold.
        await eventually(lambda: loop.time() - asked_at > LOCK / 3 * 1.2)
        assert (pair.backlog.activity.completed, pair.backlog.locked) == (0, pair.backlog.activity.delivered)
        while not drain.done():
            ledger.answer()
            await asyncio.sleep(0.01)
        with pytest.raises(AmqpError, match="the ledger stored nothing within"):
            await drain
    received = pair.queue("orders").activity.received
    assert 0 < pair.backlog.activity.completed == received
    assert pair.backlog.locked == 0
    ledger.answers = True
    await pair.drain(flush=ledger.flush)
    assert pair.is_backlog_empty
    assert sorted(await pair.arrived("orders")) == sorted(bodies(range(MESSAGES)))  # no duplicates


async def test_stopped_pump_publishes_an_event(pair: Pair) -> None:
    ledger, events = Ledger(), EventBus()
    ledger.error = OSError("disk full")
    seen: list[Event] = []
    events.subscribe(seen.append)
    await pair.put(numbered("orders", range(5)))
    with pytest.raises(AmqpError, match="the ledger failed") as caught:
        await pair.drain(flush=ledger.flush, events=events)
    stopped = [event for event in seen if isinstance(event, PumpStopped)]
    assert [(one.queue, one.error) for one in stopped] == [(BACKLOG, caught.value)]
