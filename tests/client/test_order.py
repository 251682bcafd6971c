"""`order="session"`: diverted messages are not overtaken, even after recovery."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import nullcontext, suppress
from typing import Any

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage
from tests.pairing.twins import Twins, eventually

from twinbus import Route, SendAvailabilityOptions, SyphonOptions
from twinbus.aio import PairedServiceBusClient
from twinbus.emulator import AZURE, DEFAULT, Fault, FaultKind, FaultPoint
from twinbus.pairing.events import Event, Recovered
from twinbus.pairing.sending import diverted_sessions as pairing_sessions
from twinbus.pairing.sending._async import handover
from twinbus.pairing.sending._async.synchronization import Waiter
from twinbus.pairing.sending.diverted_sessions import Session

pytestmark = pytest.mark.slow


@pytest_asyncio.fixture(params=[DEFAULT, AZURE], ids=["default", "azure"])
async def twins(request: pytest.FixtureRequest) -> AsyncIterator[Twins]:
    async with Twins.running(request.param) as running:
        await running.queue("orders", requires_session=True)
        yield running


def client(twins: Twins, **changed: Any) -> PairedServiceBusClient:
    given = {"backlog_queue_count": 3, "order": "session", "primary_name": "contoso", **changed}
    return PairedServiceBusClient(*twins.sides(), SendAvailabilityOptions(**given, syphon=SyphonOptions(retry_min=0.1)))


def numbered(number: int, session: str = "a") -> ServiceBusMessage:
    return ServiceBusMessage(str(number), session_id=session)


async def test_a_session_stays_diverted_until_none_of_it_is_left_in_the_backlog(twins: Twins) -> None:
    async with client(twins) as paired, paired.get_queue_sender("orders") as sender:
        paired.fail_over("orders")
        assert (await sender.send_messages(numbered(1))).route is Route.BACKLOG
        paired.fail_back("orders")
        # Directly it would overtake the first one. Another session has nothing to overtake.
        assert (await sender.send_messages(numbered(2))).route is Route.BACKLOG
        assert (await sender.send_messages(numbered(1, "b"))).route is Route.PRIMARY
        assert paired.status().diverted_sessions == 1
        async with client(twins, enable_syphon=True):
            await eventually(lambda: paired.status().diverted_sessions == 0)
        assert (await sender.send_messages(numbered(3))).route is Route.PRIMARY
        async with paired.get_queue_receiver("orders", session_id="a") as receiver:
            received: list[str] = []
            while len(received) < 3:
                received += map(str, await receiver.receive_messages(3, max_wait_time=10))
        assert received == ["1", "2", "3"]


async def test_a_session_keeps_its_order_over_failovers_while_the_syphon_runs(twins: Twins) -> None:
    total = 60
    async with client(twins, enable_syphon=True) as paired, paired.get_queue_sender("orders") as sender:
        routes = set()
        for number in range(total):
            if number % 20 == 5:
                paired.fail_over("orders")
            if number % 20 == 12:
                paired.fail_back("orders")
            routes.add((await sender.send_messages(numbered(number))).route)
            await asyncio.sleep(0.05 if number % 20 == 19 else 0)
        assert Route.BACKLOG in routes
        async with paired.get_queue_receiver("orders", session_id="a") as receiver:
            received: list[int] = []
            while len(received) < total:
                messages = await receiver.receive_messages(total, max_wait_time=10)
                assert messages, f"only {len(received)} have come"
                received += [int(str(message)) for message in messages]
        assert received == list(range(total))


@pytest.mark.parametrize("hosted", [True, False], ids=["hosted syphon", "syphon of another client"])
async def test_busy_sessions_are_back_within_seconds_of_the_recovery_and_in_order(twins: Twins, hosted: bool) -> None:
    """Steady traffic: a send is held until its session is out of the backlog, then goes to the primary."""
    changed = {"failover_interval": 0, "ping_primary_interval": 1, "attempt_timeout": 5}
    sessions = [f"busy-{number}" for number in range(4)]
    sent: dict[str, int] = dict.fromkeys(sessions, 0)
    routes: dict[str, Route] = {}
    is_over = asyncio.Event()
    async with (
        client(twins, enable_syphon=True, **changed) if not hosted else nullcontext(),
        client(twins, enable_syphon=hosted, **changed) as paired,
        paired.get_queue_sender("orders") as sender,
    ):
        recovered, loop = asyncio.Event(), asyncio.get_running_loop()

        def note(event: Event) -> None:
            if isinstance(event, Recovered):
                loop.call_soon_threadsafe(recovered.set)

        paired.on_event(note)

        async def send_steadily(session: str) -> None:
            while not is_over.is_set():
                routes[session] = (await sender.send_messages(numbered(sent[session], session))).route
                sent[session] += 1
                await asyncio.sleep(0.02)

        sending = [asyncio.create_task(send_steadily(session)) for session in sessions]
        await eventually(lambda: set(routes) == set(sessions))
        twins.primary_down()
        await eventually(lambda: set(routes.values()) == {Route.BACKLOG})
        before = dict(sent)
        await eventually(lambda: all(sent[session] > before[session] + 10 for session in sessions))
        twins.primary_up()
        async with asyncio.timeout(60):
            await recovered.wait()
        await eventually(lambda: set(routes.values()) == {Route.PRIMARY}, seconds=10)
        is_over.set()
        await asyncio.gather(*sending)
        assert paired.status().diverted_sessions == 0
        for session in sessions:
            async with paired.get_queue_receiver("orders", session_id=session) as receiver:
                received: list[int] = []
                while not received or received[-1] < sent[session] - 1:
                    messages = await receiver.receive_messages(200, max_wait_time=10)
                    assert messages, f"only {len(received)} of {session} have come"
                    received += [int(str(message)) for message in messages]
            assert list(dict.fromkeys(received)) == list(range(sent[session]))


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["timeout", "cancelled"])
async def test_a_busy_session_of_impatient_callers_is_back_within_seconds(twins: Twins, is_cancelled: bool) -> None:
    """None of them waits for as long as it takes to open a link to the backlog queue and look."""
    async with client(twins, enable_syphon=True) as paired, paired.get_queue_sender("orders") as sender:
        paired.fail_over("orders")
        await sender.send_messages(numbered(0))
        paired.fail_back("orders")
        async with asyncio.timeout(10):
            for number in itertools.count(1):
                with suppress(TimeoutError):
                    if is_cancelled:
                        async with asyncio.timeout(0.3):
                            receipt = await sender.send_messages(numbered(number))
                    else:
                        receipt = await sender.send_messages(numbered(number), timeout=0.3)
                    if receipt.route is Route.PRIMARY:
                        break
                await asyncio.sleep(0.01)


async def test_a_session_is_held_for_a_bounded_time_and_then_diverted_again(
    twins: Twins, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No syphon runs: the send is diverted after all, and for a while no other one is held."""
    for module in (handover, pairing_sessions):
        monkeypatch.setattr(module, "HOLD_SECONDS", 0.5)
    loop = asyncio.get_running_loop()
    async with client(twins) as paired, paired.get_queue_sender("orders") as sender:
        paired.fail_over("orders")
        await sender.send_messages(numbered(1))
        paired.fail_back("orders")
        started = loop.time()
        assert (await sender.send_messages(numbered(2))).route is Route.BACKLOG
        assert loop.time() - started >= 0.5
        held = paired._pairing.diverted_sessions
        assert held is not None
        assert held.held() == {}
        waiter: Waiter[bool] = Waiter()
        assert not held.hold(Session("orders", "a"), waiter, loop.time())


async def test_a_backlog_queue_that_does_not_answer_keeps_no_session_of_another_queue(twins: Twins) -> None:
    async with client(twins, enable_syphon=True) as paired, paired.get_queue_sender("orders") as sender:
        paired.fail_over("orders")
        of_queue: dict[str | None, str] = {}
        for number in itertools.count():
            if len(of_queue) == 2:
                break
            receipt = await sender.send_messages(numbered(1, f"session-{number}"))
            of_queue.setdefault(receipt.queue, f"session-{number}")
        (silent_queue, stuck), (_, other) = of_queue.items()
        twins.secondary.faults.add(Fault(FaultKind.BLACKHOLE, entity=silent_queue))
        paired.fail_back("orders")
        sessions = paired._pairing.diverted_sessions
        assert sessions is not None
        sending = asyncio.create_task(sender.send_messages(numbered(2, stuck)))
        await eventually(lambda: sessions.held())
        assert (await sender.send_messages(numbered(2, other))).route is Route.PRIMARY
        twins.secondary.faults.clear()
        await sending


@pytest.mark.parametrize("create_backlog", [True, False])
async def test_a_session_whose_backlog_queue_was_deleted_goes_back_to_the_primary(
    twins: Twins, create_backlog: bool
) -> None:
    async with client(twins):
        pass  # it makes the queues
    async with client(twins, create_backlog=create_backlog) as paired, paired.get_queue_sender("orders") as sender:
        paired.fail_over("orders")
        queue = (await sender.send_messages(numbered(1))).queue
        assert queue is not None
        await twins.secondary.delete(queue)
        paired.fail_back("orders")
        assert (await sender.send_messages(numbered(2))).route is Route.PRIMARY


async def test_calls_of_one_session_take_turns_over_all_links(twins: Twins) -> None:
    twins.primary.faults.add(Fault(FaultKind.SLOW, delay=0.01, on=frozenset({FaultPoint.SEND})))
    async with client(twins) as paired, paired.get_queue_sender("orders") as sender:
        sends = (sender.send_messages(numbered(number, f"s{number % 4}")) for number in range(80))
        await asyncio.gather(*sends)
        for session in range(4):
            async with paired.get_queue_receiver("orders", session_id=f"s{session}") as receiver:
                received: list[int] = []
                while len(received) < 20:
                    received += [int(str(one)) for one in await receiver.receive_messages(20, max_wait_time=10)]
            assert received == list(range(session, 80, 4))
