"""The two clients of a pairing end together if, and only if, the application hosts the syphon."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage
from tests.client.threads import ThreadedTwins
from tests.client.threads import eventually as threads_eventually
from tests.pairing.twins import Twins, eventually

from twinbus import Condition, Event, Faulted, PairedClientFaultedError, Route, SendAvailabilityOptions, SyphonOptions
from twinbus.aio import PairedServiceBusClient
from twinbus.client import runtime
from twinbus.client.partnership import GRACE, Partnership, partner_of
from twinbus.emulator import DEFAULT, Fault, FaultKind
from twinbus.ledger.recorder import NamespaceRole

pytestmark = pytest.mark.slow

PRIMARY, SECONDARY = NamespaceRole.PRIMARY, NamespaceRole.SECONDARY
SHORT = 0.3  # seconds of grace where the tests need not wait for the real ones
ENOUGH = 2.0  # and where something is done within them, on a busy machine too


@pytest_asyncio.fixture
async def twins() -> AsyncIterator[Twins]:
    async with Twins.running(DEFAULT) as running:
        await running.queue("orders")
        yield running


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "GRACE", SHORT)


def client(twins: Twins, **changed: Any) -> PairedServiceBusClient:
    given = {"backlog_queue_count": 1, "enable_syphon": True, "primary_name": "contoso", **changed}
    options = SendAvailabilityOptions(**given, syphon=SyphonOptions(retry_min=0.1))
    return PairedServiceBusClient(*twins.sides(), options)


async def faulted(paired: PairedServiceBusClient) -> float:
    """Wait for the fault; return the seconds until it came."""
    started = asyncio.get_running_loop().time()
    seen: list[Event] = []
    paired.on_event(seen.append)
    await eventually(lambda: any(isinstance(event, Faulted) for event in seen))
    return asyncio.get_running_loop().time() - started


async def test_the_partner_of_a_closed_client_is_faulted_after_five_seconds(twins: Twins) -> None:
    async with client(twins) as paired:
        sender = paired.get_queue_sender("orders")
        await sender.send_messages(ServiceBusMessage("x"))
        await paired.secondary.close()
        assert 4.9 < await faulted(paired) < 10
        status = paired.status()
        assert status.condition is Condition.FAULTED
        assert (status.primary_condition, status.secondary_condition) == (Condition.FAULTED, Condition.CLOSED)
        assert status.fault is not None
        assert "the secondary client was closed" in status.fault
        for call in (lambda: paired.primary.get_queue_sender("orders"), lambda: paired.get_queue_sender("orders")):
            with pytest.raises(PairedClientFaultedError, match="secondary client was closed"):
                call()
        with pytest.raises(PairedClientFaultedError, match="secondary client was closed"):
            await sender.send_messages(ServiceBusMessage("y"))
        # The syphon has stopped: no client is connected to the secondary.
        await eventually(lambda: not twins.secondary.connections)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("side", ["primary", "secondary"])
async def test_the_partner_of_a_faulted_client_is_faulted_with_its_cause(twins: Twins, side: str) -> None:
    async with client(twins) as paired:
        ended, partner = getattr(paired, side), getattr(paired, "primary" if side == "secondary" else "secondary")
        cause = OSError("out of order")
        ended.fault("faulted by the test", cause)
        with pytest.raises(PairedClientFaultedError, match="faulted by the test") as raised:
            ended.get_queue_sender("orders")
        assert raised.value.cause is cause
        partner.get_queue_sender("orders")
        await eventually(
            lambda: getattr(paired.status(), f"{partner.role.name.lower()}_condition") is Condition.FAULTED
        )
        with pytest.raises(PairedClientFaultedError, match=f"{side} client has faulted"):
            partner.get_queue_sender("orders")


async def test_a_partner_that_is_closed_in_time_is_not_faulted(twins: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "GRACE", ENOUGH)
    async with client(twins) as paired:
        await paired.primary.close()
        await paired.secondary.close()
        await asyncio.sleep(1.5 * ENOUGH)
        status = paired.status()
        assert (status.condition, status.fault) == (Condition.CLOSED, None)
        assert (status.primary_condition, status.secondary_condition) == (Condition.CLOSED, Condition.CLOSED)


async def test_nothing_runs_or_is_connected_after_both_clients_were_closed(twins: Twins) -> None:
    before = asyncio.all_tasks()
    paired = client(twins)
    await paired.start()
    await paired.get_queue_sender("orders").send_messages(ServiceBusMessage("x"))
    await eventually(lambda: (syphon := paired.status().syphon) is not None and syphon.secondary_connected)
    await asyncio.gather(paired.secondary.close(), paired.primary.close())
    # The namespaces run on this loop, too: the tasks of their connections end when they have noticed.
    await eventually(lambda: not twins.primary.connections and not twins.secondary.connections)
    await eventually(lambda: asyncio.all_tasks() <= before)
    status = paired.status()
    assert status.condition is Condition.CLOSED
    assert status.syphon is not None
    assert (status.syphon.primary_connected, status.syphon.secondary_connected) == (False, False)
    with pytest.raises(ValueError, match="The client was closed"):
        paired.get_queue_sender("orders")


def test_no_thread_is_left_after_both_clients_were_closed() -> None:
    with ThreadedTwins.running(DEFAULT) as twins:
        twins.queue("orders")
        before = set(threading.enumerate())
        paired = twins.client(enable_syphon=True)
        paired.start()
        paired.get_queue_sender("orders").send_messages(ServiceBusMessage("x"))
        paired.primary.close()
        paired.secondary.close()
        assert paired.status().condition is Condition.CLOSED
        threads_eventually(lambda: set(threading.enumerate()) <= before)
        threads_eventually(lambda: twins.connections == 0)


@pytest.mark.usefixtures("short")
async def test_lost_connection_is_not_a_fault(twins: Twins) -> None:
    async with client(twins) as paired:
        sender = paired.get_queue_sender("orders")
        await sender.send_messages(ServiceBusMessage("x"))
        for namespace in (twins.primary, twins.secondary):
            await eventually(lambda one=namespace: one.connections)
            namespace.faults.add(Fault(FaultKind.RESET, seconds=SHORT))
        await asyncio.sleep(3 * SHORT)
        status = paired.status()
        assert status.condition is Condition.OPEN
        assert (status.primary_condition, status.secondary_condition) == (Condition.OPEN, Condition.OPEN)
        assert (await sender.send_messages(ServiceBusMessage("y"))).route is Route.PRIMARY


@pytest.mark.usefixtures("short")
async def test_without_a_syphon_the_partner_is_not_faulted(twins: Twins) -> None:
    async with client(twins, enable_syphon=False) as paired:
        sender = paired.get_queue_sender("orders")
        await paired.primary.close()
        await asyncio.sleep(2 * SHORT)
        status = paired.status()
        assert status.condition is Condition.OPEN
        assert (status.primary_condition, status.secondary_condition) == (Condition.CLOSED, Condition.OPEN)
        paired.secondary.get_queue_sender("contoso/x-servicebus-transfer/0")
        # That the application has closed the client itself is neither an outage nor a fault.
        with pytest.raises(ValueError, match="closed"):
            await sender.send_messages(ServiceBusMessage("y"))


async def test_closing_while_links_are_being_opened_leaves_no_task(twins: Twins) -> None:
    before = asyncio.all_tasks()
    paired = client(twins, enable_syphon=False)
    await paired.start()
    sender = paired.get_queue_sender("orders")
    await sender.send_messages(ServiceBusMessage("x"))
    sends = [asyncio.create_task(sender.send_messages(ServiceBusMessage("x"))) for _ in range(20)]
    await asyncio.sleep(0.05)
    await paired.close()
    await asyncio.gather(*sends, return_exceptions=True)
    for _ in range(10):  # what has ended takes a few turns of the event loop to go
        await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before


@pytest.mark.usefixtures("short")
async def test_closing_the_paired_client_faults_no_partner(twins: Twins) -> None:
    paired = client(twins)
    async with paired:
        pass
    await asyncio.sleep(2 * SHORT)
    assert paired.status().condition is Condition.CLOSED


def test_grace_period_is_five_seconds() -> None:
    assert GRACE == 5


def test_first_close_or_fault_decides() -> None:
    partnership = Partnership()
    assert partnership.closed(PRIMARY)
    assert not partnership.closed(PRIMARY)
    assert not partnership.faulted(PRIMARY, PairedClientFaultedError("late"))
    assert partnership.condition(PRIMARY) is Condition.CLOSED
    fault = partnership.fault_partner(PRIMARY)
    assert fault is not None
    assert partnership.fault(SECONDARY) is fault
    assert partnership.fault_partner(PRIMARY) is None
    assert not partnership.closed(SECONDARY)
    assert partnership.condition(SECONDARY) is Condition.FAULTED


def test_primary_and_secondary_are_partners() -> None:
    assert (partner_of(PRIMARY), partner_of(SECONDARY)) == (SECONDARY, PRIMARY)
