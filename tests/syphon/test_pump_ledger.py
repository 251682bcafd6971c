"""The syphon and a ledger that has to be waited for: nothing is completed that it does not have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.syphon.bus import MOMENT, PATIENCE, eventually
from tests.syphon.pumping import BACKLOG, Pair, bodies, counting, numbered

from twinbus.broker import AZURE, DEFAULT, Fault, Kind, Operation, Profile
from twinbus.ledger import MemoryRecorder, OperationKind, Outcome
from twinbus.pairing.events import Event, EventBus, PumpStopped
from twinbus.syphon import AmqpError
from twinbus.syphon.drain import CALM
from twinbus.syphon.errors import TimedOut
from twinbus.syphon.ledger_gate import OnDurable

pytestmark = pytest.mark.slow

LOCK = 6.0  # seconds
MESSAGES = 100


@pytest.fixture(params=[DEFAULT, AZURE], ids=["default", "azure"])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    async with Pair(request.param, LOCK) as running:
        await running.create("orders")
        yield running


class Ledger:
    """Is asked to make rows durable, and does so when it is told, or fails."""

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


async def test_with_a_ledger_nothing_is_completed_before_its_rows_are_durable(pair: Pair) -> None:
    ledger = Ledger()
    await pair.put(numbered("orders", range(5)))
    settles = counting(pair.secondary, BACKLOG, Operation.SETTLE)
    async with pair.running(flush=ledger.flush):
        await pair.until("orders", 5)
        await asyncio.sleep(MOMENT)
        assert settles.fired == 0
        while not pair.is_backlog_empty:
            ledger.answer()
            await asyncio.sleep(0.01)
    assert settles.fired == 5


async def test_nothing_is_dead_lettered_before_the_ledger_knows(pair: Pair) -> None:
    ledger, recorder = Ledger(), MemoryRecorder()
    await pair.put(numbered(BACKLOG, [1]))  # it would go in circles
    settles = counting(pair.secondary, BACKLOG, Operation.SETTLE)
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


async def test_a_ledger_that_fails_keeps_what_was_to_be_dead_lettered_in_the_queue(pair: Pair) -> None:
    ledger = Ledger()
    ledger.error = OSError("disk full")
    await pair.put(numbered(BACKLOG, [1]))
    with pytest.raises(AmqpError, match="the ledger failed: OSError"):
        await pair.drain(flush=ledger.flush)
    assert (pair.backlog.counters.active, pair.backlog.locked) == (1, 0)
    report = await pair.drain()
    assert report.total.poison == 1


@pytest.mark.parametrize("profile", [DEFAULT, AZURE], ids=["default", "azure"])
async def test_until_empty_does_not_take_waiting_for_the_ledger_for_the_end(
    profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = 1.0  # longer than a busy machine takes to bring the first message
    monkeypatch.setattr("twinbus.syphon.drain.CALM", calm)
    ledger = Ledger()
    async with Pair(profile) as pair:
        await pair.create("orders")
        await pair.put(numbered("orders", range(5)))
        draining = asyncio.create_task(pair.drain(flush=ledger.flush))
        await pair.until("orders", 5)
        await asyncio.sleep(calm * 1.5)
        # Nothing came, and nothing was settled: who waits for the end asks for no more messages.
        await pair.put(numbered("orders", range(5, 10)))
        await pair.until("orders", 10)
        ledger.answers = True
        ledger.answer()
        report = await draining
    assert report.total.moved == 10


async def test_nothing_is_given_back_while_a_drain_waits_for_the_ledger_again_and_again(pair: Pair) -> None:
    def flush(then: OnDurable) -> None:
        asyncio.get_running_loop().call_later(CALM * 1.5, then, None)

    await pair.put(numbered("orders", range(1000)))
    # For a moment after each flush nothing is here, and nothing has come for long.
    pair.secondary.faults.add(Fault(Kind.SLOW, BACKLOG, frozenset({Operation.RECEIVE}), delay=CALM * 0.6))
    settles = counting(pair.secondary, BACKLOG, Operation.SETTLE)
    report = await pair.drain(flush=flush)
    assert report.total.moved == 1000
    activity = pair.backlog.activity
    assert (activity.delivered, activity.completed, settles.fired) == (1000, 1000, 1000)


async def test_what_comes_while_a_drain_looks_for_the_end_is_moved_not_given_back(pair: Pair) -> None:
    # The broker takes longer over its messages than the drain waits for them.
    pair.secondary.faults.add(Fault(Kind.SLOW, BACKLOG, frozenset({Operation.RECEIVE}), delay=CALM * 2))
    await pair.put(numbered("orders", range(100)))
    settles = counting(pair.secondary, BACKLOG, Operation.SETTLE)
    await pair.drain()
    assert (pair.backlog.activity.delivered, settles.fired) == (100, 100)
    assert pair.is_backlog_empty


# ---- a ledger that fails ----


@asynccontextmanager
async def promptly(seconds: float) -> AsyncIterator[None]:
    """What is done here is done long before a lock ends, or a close gives up waiting."""
    async with asyncio.timeout(seconds):
        yield


async def test_a_ledger_that_fails_stops_the_pump_at_once_and_completes_nothing(pair: Pair) -> None:
    ledger = Ledger()
    ledger.error = OSError("disk full")
    await pair.put(numbered("orders", range(MESSAGES)))
    async with promptly(LOCK / 2):
        with pytest.raises(AmqpError, match="the ledger failed: OSError") as caught:
            await pair.drain(flush=ledger.flush)
    assert caught.value.__cause__ is ledger.error
    assert pair.backlog.activity.completed == 0
    assert pair.backlog.counters.active == MESSAGES
    assert pair.backlog.locked == 0  # nobody has to wait for locks before the next try


async def test_a_ledger_that_does_not_answer_is_waited_for_during_a_third_of_the_lock(pair: Pair) -> None:
    loop, times = asyncio.get_running_loop(), []
    await pair.put(numbered("orders", range(MESSAGES)))
    async with promptly(LOCK):
        with pytest.raises(AmqpError, match=r"nothing was durable within 2\.1 seconds") as caught:
            await pair.drain(flush=lambda then: times.append(loop.time()))
    assert isinstance(caught.value.__cause__, TimedOut)
    assert len(times) == 1
    assert loop.time() - times[0] >= LOCK / 3
    # No more was taken than before the ledger stalled, and nothing is held.
    assert pair.backlog.activity.delivered < MESSAGES
    assert (pair.backlog.activity.completed, pair.backlog.locked) == (0, 0)
    assert pair.backlog.counters.active == MESSAGES


async def test_what_was_not_sent_when_the_ledger_failed_is_given_back(pair: Pair) -> None:
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


async def test_what_was_set_aside_stays_so_when_the_ledger_fails(pair: Pair) -> None:
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


async def test_a_syphon_that_runs_goes_on_when_the_ledger_does_and_sends_nothing_twice(pair: Pair) -> None:
    ledger = Ledger()
    ledger.error = OSError("disk full")
    await pair.put(numbered("orders", range(MESSAGES)))
    async with pair.running(flush=ledger.flush):
        await pair.until("orders", 1)
        await eventually(lambda: pair.backlog.locked == 0)
        received = pair.queue("orders").activity.received
        await asyncio.sleep(MOMENT * 3)  # it asks the ledger again and again meanwhile, and takes nothing
        assert pair.queue("orders").activity.received == received < MESSAGES
        assert (pair.backlog.activity.completed, pair.backlog.locked) == (0, 0)
        ledger.error, ledger.answers = None, True
        await eventually(lambda: pair.is_backlog_empty)
    assert sorted(await pair.arrived("orders")) == sorted(bodies(range(MESSAGES)))


async def test_a_syphon_that_waits_for_its_ledger_asks_nothing_of_the_namespaces(pair: Pair) -> None:
    await pair.put(numbered("later", range(20)))
    await pair.drain()
    await pair.create("later")
    ledger = Ledger()
    ledger.error = OSError("disk full")
    asked = counting(
        pair.secondary, BACKLOG, Operation.ATTACH, Operation.RECEIVE, Operation.SETTLE, Operation.MANAGEMENT
    )
    async with pair.running(flush=ledger.flush):
        await eventually(lambda: ledger.times >= 2)  # it has given up, and asks the ledger again and again
        before = asked.fired
        await eventually(lambda: ledger.times >= 4)
        assert asked.fired == before
        assert pair.queue("later").activity.received == 1


async def test_a_syphon_that_waits_for_its_ledger_can_be_closed(pair: Pair) -> None:
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


async def test_what_becomes_durable_late_is_completed_and_not_given_back(pair: Pair) -> None:
    loop = asyncio.get_running_loop()
    ledger = Ledger()
    await pair.put(numbered("orders", range(MESSAGES)))
    async with promptly(2 * LOCK):
        drain = asyncio.create_task(pair.drain(flush=ledger.flush))
        await eventually(lambda: ledger.asked)
        asked_at = loop.time()
        # Its time is over, and the locks hold yet.
        await eventually(lambda: loop.time() - asked_at > LOCK / 3 * 1.2)
        assert (pair.backlog.activity.completed, pair.backlog.locked) == (0, pair.backlog.activity.delivered)
        while not drain.done():
            ledger.answer()
            await asyncio.sleep(0.01)
        with pytest.raises(AmqpError, match="nothing was durable within"):
            await drain
    received = pair.queue("orders").activity.received
    assert 0 < pair.backlog.activity.completed == received
    assert pair.backlog.locked == 0
    ledger.answers = True
    await pair.drain(flush=ledger.flush)
    assert pair.is_backlog_empty
    assert sorted(await pair.arrived("orders")) == sorted(bodies(range(MESSAGES)))  # nothing came twice


async def test_a_pump_that_has_stopped_is_an_event(pair: Pair) -> None:
    ledger, events = Ledger(), EventBus()
    ledger.error = OSError("disk full")
    seen: list[Event] = []
    events.subscribe(seen.append)
    await pair.put(numbered("orders", range(5)))
    with pytest.raises(AmqpError, match="the ledger failed") as caught:
        await pair.drain(flush=ledger.flush, events=events)
    stopped = [event for event in seen if isinstance(event, PumpStopped)]
    assert [(one.queue, one.error) for one in stopped] == [(BACKLOG, caught.value)]
