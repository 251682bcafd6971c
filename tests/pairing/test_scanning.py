"""Diverted sessions are found at the start, and released when they have left the backlog."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.aio import ServiceBusClient
from tests.pairing.twins import Events, Twins, down, eventually, operations

from twinbus.emulator import AZURE, DEFAULT, Fault, FaultKind
from twinbus.emulator import FaultPoint as At
from twinbus.ledger.recorder import OperationKind, Outcome
from twinbus.pairing.backlog import session_scan as scanning
from twinbus.pairing.events import BacklogWarning
from twinbus.pairing.pairing_state import Pairing
from twinbus.pairing.sending.diverted_sessions import DivertedSessions

pytestmark = pytest.mark.slow

PATH = "contoso/x-servicebus-transfer/{}"


@pytest_asyncio.fixture(params=[DEFAULT, AZURE], ids=["default", "azure"])
async def twins(request: pytest.FixtureRequest) -> AsyncIterator[Twins]:
    async with Twins.running(request.param) as running:
        background = running.background(running.pairing())
        await background.start()  # makes the backlog queues
        await background.close()
        yield running


@pytest_asyncio.fixture
async def secondary(twins: Twins) -> AsyncIterator[ServiceBusClient]:
    async with twins.sides()[1].async_client() as client:
        yield client


def diverted(entity: str, session: str | None, body: str = "x") -> ServiceBusMessage:
    properties: dict[Any, Any] = {"x-ms-path": entity}
    if session is not None:
        properties["x-ms-sessionid"] = session
    return ServiceBusMessage(body, application_properties=properties)


async def put(client: ServiceBusClient, index: int, *messages: ServiceBusMessage) -> None:
    async with client.get_queue_sender(PATH.format(index)) as sender:
        await sender.send_messages(list(messages))


async def take(client: ServiceBusClient, index: int, count: int) -> None:
    """Receive and delete messages, as the syphon does when it moves them."""
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    async with client.get_queue_receiver(PATH.format(index), receive_mode=mode) as receiver:
        while count:
            count -= len(await receiver.receive_messages(count, max_wait_time=5))


def sessions_of(pairing: Pairing) -> DivertedSessions:
    assert pairing.diverted_sessions is not None
    return pairing.diverted_sessions


async def test_restarted_process_finds_diverted_sessions(twins: Twins, secondary: ServiceBusClient) -> None:
    await put(secondary, 1, diverted("orders", "a"), diverted("Invoices", "b"), diverted("orders", None))
    pairing = twins.pairing(order="session")
    background = twins.background(pairing)
    await background.start()
    try:
        sessions = sessions_of(pairing)
        assert sessions.queue_of("orders", "a") == 1
        assert sessions.queue_of("invoices", "b") == 1
        assert sessions.count == 2
    finally:
        await background.close()


async def test_restarted_process_uses_the_queue_with_the_newest_message(
    twins: Twins, secondary: ServiceBusClient
) -> None:
    await put(secondary, 0, diverted("orders", "a"))
    await put(secondary, 1, diverted("orders", "a"), diverted("orders", "b"))
    await put(secondary, 0, diverted("orders", "b"))
    pairing = twins.pairing(order="session")
    background = twins.background(pairing)
    await background.start()
    try:
        assert sessions_of(pairing).queue_of("orders", "a") == 1
        assert sessions_of(pairing).queue_of("orders", "b") == 0
    finally:
        await background.close()


async def test_a_session_is_released_when_none_of_it_is_left_in_the_backlog(
    twins: Twins, secondary: ServiceBusClient
) -> None:
    await put(secondary, 0, diverted("orders", "a"), diverted("orders", "a"), diverted("orders", "b"))
    pairing = twins.pairing(order="session")
    pairing.entity("orders")
    background = twins.background(pairing)
    await background.start()
    try:
        sessions = sessions_of(pairing)
        await take(secondary, 0, 2)
        await eventually(lambda: not sessions.is_diverted("orders", "a"))
        assert sessions.queue_of("orders", "b") == 0
        await take(secondary, 0, 1)
        await eventually(lambda: not sessions.is_diverted("orders", "b"))
        # Looking is no receiving: nothing was locked or delivered to us.
        assert twins.backlog(0).activity.delivered == 3
    finally:
        await background.close()


async def test_queues_are_not_scanned_for_failed_over_entities(twins: Twins, secondary: ServiceBusClient) -> None:
    await put(secondary, 0, diverted("orders", "a"))
    pairing = twins.pairing(order="session")
    pairing.fail_over("orders")
    background = twins.background(pairing)
    await background.start()
    try:
        at_the_start = len(operations(pairing, OperationKind.PEEK))
        assert at_the_start == 3  # one page and two ends
        await take(secondary, 0, 1)
        assert sessions_of(pairing).queue_of("orders", "a") == 0
        assert len(operations(pairing, OperationKind.PEEK)) == at_the_start
        pairing.fail_back("orders")
        await eventually(lambda: not sessions_of(pairing).is_diverted("orders", "a"))
    finally:
        await background.close()


async def test_scan_is_bounded_and_warns(
    twins: Twins, secondary: ServiceBusClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "PAGE", 2)
    monkeypatch.setattr(scanning, "MAX_PAGES", 2)
    await put(secondary, 0, *(diverted("orders", str(number)) for number in range(6)))
    pairing = twins.pairing(order="session")
    events = Events(pairing)
    background = twins.background(pairing)
    await background.start()
    await background.close()
    assert sessions_of(pairing).count == 4
    assert "more than 4 messages" in (await events.next(BacklogWarning)).message


async def test_unanswered_scan_is_cancelled_and_leaves_no_connection(twins: Twins) -> None:
    for index in range(2):
        twins.secondary.faults.add(Fault(FaultKind.BLACKHOLE, entity=PATH.format(index), on=frozenset({At.MANAGEMENT})))
    pairing = twins.pairing(order="session", attempt_timeout=0.5)
    background = twins.background(pairing)
    async with asyncio.timeout(30):
        await background.start()
        await background.close()
    assert {one.outcome for one in operations(pairing, OperationKind.PEEK)} == {Outcome.UNKNOWN}
    await eventually(lambda: not twins.secondary.connections)


async def test_unreachable_backlog_is_scanned_later(twins: Twins, secondary: ServiceBusClient) -> None:
    await put(secondary, 1, diverted("orders", "a"))
    down(twins.secondary)
    pairing = twins.pairing(order="session")
    background = twins.background(pairing)
    await background.start()
    try:
        assert sessions_of(pairing).count == 0
        twins.secondary.faults.clear()
        await eventually(lambda: sessions_of(pairing).queue_of("orders", "a") == 1)
    finally:
        await background.close()


async def test_queue_that_cannot_be_scanned_does_not_block_other_sessions(
    twins: Twins, secondary: ServiceBusClient
) -> None:
    for index in range(2):
        await put(secondary, index, diverted("orders", str(index)))
    pairing = twins.pairing(order="session")
    pairing.entity("orders")
    background = twins.background(pairing)
    await background.start()
    try:
        twins.secondary.faults.add(Fault(FaultKind.DISABLE, entity=PATH.format(0), on=frozenset({At.MANAGEMENT})))
        for index in range(2):
            await take(secondary, index, 1)
        await eventually(lambda: not sessions_of(pairing).is_diverted("orders", "1"), seconds=20)
        assert sessions_of(pairing).is_diverted("orders", "0")
    finally:
        await background.close()


async def test_queue_that_is_not_found_for_a_moment_keeps_its_sessions(
    twins: Twins, secondary: ServiceBusClient
) -> None:
    await put(secondary, 0, diverted("orders", "a"))
    pairing = twins.pairing(order="session")
    pairing.entity("orders")
    background = twins.background(pairing)
    await background.start()
    try:
        moment = Fault(
            FaultKind.REJECT, PATH.format(0), frozenset({At.MANAGEMENT}), condition="amqp:not-found", count=1
        )
        fault = twins.secondary.faults.add(moment)
        await eventually(lambda: fault.fired == 1)
        looks = len(operations(pairing, OperationKind.PEEK))
        await eventually(lambda: len(operations(pairing, OperationKind.PEEK)) > looks + 1)
        assert sessions_of(pairing).is_diverted("orders", "a")
    finally:
        await background.close()


async def test_sessions_of_a_deleted_queue_are_released_after_a_second_look(
    twins: Twins, secondary: ServiceBusClient
) -> None:
    await put(secondary, 0, diverted("orders", "a"))
    pairing = twins.pairing(order="session", create_backlog=False)
    pairing.entity("orders")
    background = twins.background(pairing)
    await background.start()
    try:
        await twins.secondary.delete(PATH.format(0))
        looks = len(operations(pairing, OperationKind.PEEK))
        await eventually(lambda: not sessions_of(pairing).is_diverted("orders", "a"))
        assert len(operations(pairing, OperationKind.PEEK)) >= looks + 2
    finally:
        await background.close()
