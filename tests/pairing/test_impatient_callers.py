"""Callers with short timeouts: the pairing finds out by a probe of its own."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from tests.pairing.twins import Twins, eventually

from twinbus import PairedServiceBusClient as SyncClient
from twinbus import Route, SendAvailabilityOptions
from twinbus.aio import PairedServiceBusClient
from twinbus.emulator import Fault, FaultKind, FaultPoint
from twinbus.pairing.events import BacklogQueueRetired, Event, FailedOver, Recovered, StarvedWarning, Suspected
from twinbus.pairing.sending.connection_slots import MAX_OPENING

CALLERS = 24
OPTIONS = {
    "backlog_queue_count": 3,
    "primary_name": "contoso",
    "attempt_timeout": 1.0,
    "failover_interval": 2.0,
    "ping_primary_interval": 1.0,
}


@pytest_asyncio.fixture
async def twins() -> AsyncIterator[Twins]:
    async with Twins.running() as running:
        await running.queue("orders")
        yield running


def seen(client: PairedServiceBusClient | SyncClient) -> list[Event]:
    events: list[Event] = []
    client.on_event(events.append)
    return events


def kinds(events: list[Event]) -> set[type[Event]]:
    return {type(event) for event in events}


@pytest.mark.parametrize("how", ["timeout", "asyncio.timeout"])
async def test_black_hole_is_detected_by_a_probe_with_impatient_callers(twins: Twins, how: str) -> None:
    async with PairedServiceBusClient(*twins.sides(), SendAvailabilityOptions(**OPTIONS)) as client:
        events = seen(client)
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("1"))
            twins.primary.faults.add(Fault(FaultKind.BLACKHOLE))
            while FailedOver not in kinds(events):
                try:
                    if how == "timeout":
                        await sender.send_messages(ServiceBusMessage("2"), timeout=0.2)
                    else:
                        async with asyncio.timeout(0.1):
                            await sender.send_messages(ServiceBusMessage("2"))
                except (ServiceBusError, TimeoutError):
                    pass
            twins.primary.faults.clear()
            await eventually(lambda: Recovered in kinds(events))


async def test_a_black_hole_is_found_for_impatient_threads(twins: Twins) -> None:
    with SyncClient(*twins.sides(), SendAvailabilityOptions(**OPTIONS)) as client:
        events = seen(client)

        def sends() -> None:
            with client.get_queue_sender("orders") as sender:
                sender.send_messages(ServiceBusMessage("1"))
                twins.primary.faults.add(Fault(FaultKind.BLACKHOLE))
                while FailedOver not in kinds(events):
                    with contextlib.suppress(ServiceBusError):
                        sender.send_messages(ServiceBusMessage("2"), timeout=0.2)

        await asyncio.to_thread(sends)


async def test_probe_clears_the_silence_of_impatient_callers(twins: Twins) -> None:
    async with PairedServiceBusClient(*twins.sides(), SendAvailabilityOptions(**OPTIONS)) as client:
        events = seen(client)
        machine = client._pairing.entity("orders").machine
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("1"))
            twins.primary.faults.add(Fault(FaultKind.SLOW, delay=0.2))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await sender.send_messages(ServiceBusMessage("2"))
            assert machine.evidence.silent_since is not None
            await eventually(lambda: machine.evidence.silent_since is None)
        assert kinds(events) == set()


async def test_a_silent_backlog_queue_is_found_and_retired(twins: Twins) -> None:
    async with PairedServiceBusClient(*twins.sides(), SendAvailabilityOptions(**OPTIONS)) as client:
        events = seen(client)
        client.fail_over("orders")
        async with client.get_queue_sender("orders") as sender:
            receipt = await sender.send_messages(ServiceBusMessage("1"))
            twins.secondary.faults.add(Fault(FaultKind.BLACKHOLE, entity=receipt.queue))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await sender.send_messages(ServiceBusMessage("2"))
            await eventually(lambda: BacklogQueueRetired in kinds(events))
            twins.secondary.faults.clear()
            assert (await sender.send_messages(ServiceBusMessage("3"))).queue != receipt.queue


@pytest.mark.parametrize("side", ["primary", "secondary"])
async def test_links_that_open_hide_no_outage_of_sends_from_many_callers(twins: Twins, side: str) -> None:
    """At any time another caller's link has just opened; that says nothing about the sends without an answer."""
    wanted = FailedOver if side == "primary" else BacklogQueueRetired
    async with PairedServiceBusClient(*twins.sides(), SendAvailabilityOptions(**OPTIONS)) as client:
        events = seen(client)
        async with client.get_queue_sender("orders") as sender:
            if side == "secondary":
                client.fail_over("orders")
                path = (await sender.send_messages(ServiceBusMessage("1"))).queue
                twins.secondary.faults.add(Fault(FaultKind.BLACKHOLE, path, frozenset({FaultPoint.SEND})))
            else:
                await sender.send_messages(ServiceBusMessage("1"))
                twins.primary.faults.add(Fault(FaultKind.BLACKHOLE, "orders", frozenset({FaultPoint.SEND})))

            async def call(number: int) -> None:
                await asyncio.sleep(number / CALLERS)
                while wanted not in kinds(events):
                    await sender.send_messages(ServiceBusMessage("2"))
                    await asyncio.sleep(0.02)

            async with asyncio.timeout(60):
                await asyncio.gather(*map(call, range(CALLERS)))


async def test_entities_without_an_answer_hold_up_no_other_entity(twins: Twins) -> None:
    """Their links that open take all places of the client for as long as an attempt; a healthy entity needs one."""
    names = [f"dead-{number}" for number in range(MAX_OPENING)]
    for name in (*names, "healthy"):
        await twins.queue(name)
        if name != "healthy":
            twins.primary.faults.add(Fault(FaultKind.BLACKHOLE, name))
    options = SendAvailabilityOptions(**{**OPTIONS, "attempt_timeout": 60.0})
    async with PairedServiceBusClient(*twins.sides(), options) as client:
        events = seen(client)
        dead = [
            asyncio.create_task(client.get_queue_sender(name).send_messages(ServiceBusMessage("1"))) for name in names
        ]
        await eventually(lambda: len(twins.primary.connections) >= len(names))
        async with client.get_queue_sender("healthy") as sender:
            receipt = await sender.send_messages(ServiceBusMessage("2"))
        assert receipt.route is Route.PRIMARY
        assert not events  # the attempts on the others are still under way
        for task in dead:
            task.cancel()
        await asyncio.gather(*dead, return_exceptions=True)


async def test_starved_event_loop_is_not_an_outage(twins: Twins) -> None:
    """The loop is blocked repeatedly while links open; that says nothing about the primary."""
    options = SendAvailabilityOptions(**{**OPTIONS, "failover_interval": 0})
    async with PairedServiceBusClient(*twins.sides(), options) as client:
        events = seen(client)
        ends = time.monotonic() + 4.0

        async def block() -> None:
            while time.monotonic() < ends:
                time.sleep(0.5)  # noqa: ASYNC251
                await asyncio.sleep(0)

        async with client.get_queue_sender("orders") as sender:
            blocking = asyncio.create_task(block())
            sends = [sender.send_messages(ServiceBusMessage(str(number))) for number in range(4)]
            await asyncio.gather(*sends, blocking)
        await eventually(lambda: StarvedWarning in kinds(events))
        client.fail_over("other")
        await eventually(lambda: FailedOver in kinds(events))
        assert [event.forced for event in events if isinstance(event, FailedOver)] == [True]
        assert not kinds(events) & {Suspected, BacklogQueueRetired}
        assert len([event for event in events if isinstance(event, StarvedWarning)]) == 1
