"""Senders whose links end, are refused or run out, on a simulated network with a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any, cast

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import MessagingEntityDisabledError
from proof.simulation.network import Fault, FaultKind, Process, SimulatedNamespace
from proof.simulation.sdk import SimulatedClient
from proof.simulation.trace import Trace
from proof.simulation.virtual_time import VirtualLoop

from twinbus.pairing.events import Diverted, Event
from twinbus.pairing.failover.entity_failover import Route
from twinbus.pairing.options import SendAvailabilityOptions
from twinbus.pairing.pairing_state import Pairing
from twinbus.pairing.sending._async.sender import PairedSender
from twinbus.pairing.sending.connection_slots import Connections

LIMIT = 600.0


class Bench:
    """A pairing with one queue and one backlog queue."""

    def __init__(self, **options: Any) -> None:
        self.loop = VirtualLoop()
        self.trace = Trace(self.loop.time, True)
        self._random = Random(1)
        self.primary, self.secondary = self._namespace("contoso"), self._namespace("standby")
        self.primary.add_queue("orders")
        received_ids = {"backlog_queue_count": 1, "failover_interval": 0, "attempt_timeout": 1, **options}
        self.pairing = Pairing(
            SendAvailabilityOptions(**received_ids), "contoso", clock=self.loop.time, random=Random(2)
        )
        self.secondary.add_queue(self.pairing.queue_path(0))
        self.events: list[Event] = []
        self.pairing.events.subscribe(self.events.append)

    def _namespace(self, name: str) -> SimulatedNamespace:
        return SimulatedNamespace(name, self.loop, self._random, self.trace, lambda message_id: None)

    def sender(self) -> PairedSender:
        clients = [
            cast(ServiceBusClient, SimulatedClient(one, Process("app"))) for one in (self.primary, self.secondary)
        ]
        return PairedSender(self.pairing, "orders", *clients)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        self.loop.run(work, LIMIT)

    def seen(self, word: str) -> int:
        """Return how many trace lines contain the word."""
        return sum(word in line for line in self.trace.lines)


def test_closing_a_sender_says_nothing_about_the_primary() -> None:
    """The link is new, and its connection is cut by ourselves while a call waits for the answer."""
    bench = Bench()

    async def work() -> None:
        sender = bench.sender()
        call = asyncio.create_task(sender.send_messages(ServiceBusMessage("one", message_id="one")))
        while not bench.seen("send app contoso"):  # noqa: ASYNC110 - time is virtual
            await asyncio.sleep(0.001)
        await sender.close()
        with pytest.raises(ValueError, match="closed"):
            await call

    bench.run(work())
    assert bench.events == []
    assert bench.seen("connect app standby") == 0


def test_callers_that_wait_for_a_link_are_not_diverted_while_the_primary_says_that_it_is_busy() -> None:
    bench = Bench(max_links=1)

    async def work() -> None:
        sender = bench.sender()
        await sender.send_messages(ServiceBusMessage("first", message_id="first"))
        fault = Fault(FaultKind.BUSY, "contoso", "orders", 0.0, 3.0)
        bench.primary.begin(fault)
        bench.loop.call_later(3.0, bench.primary.end, fault)
        messages = [ServiceBusMessage("one", message_id=f"{number}") for number in range(64)]
        receipts = await asyncio.gather(*(sender.send_messages(one) for one in messages))
        assert {one.route for one in receipts} == {Route.PRIMARY}
        await sender.close()

    bench.run(work())
    assert bench.events == []


class Pool:
    """A stub link pool; without callers it needs no link."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self.callers = 0
        connections.join(self)

    def open(self, now: float) -> bool:
        return self._connections.reserve(self, now, is_first=True)

    def idle_since(self) -> float | None:
        return None

    def evict(self) -> None:
        raise AssertionError("it has no idle link")

    def close_idle(self, now: float) -> None:
        """Do nothing: it has no links."""

    def grow(self) -> None:
        if self.callers and self.open(10.0):
            self.callers -= 1


def test_pool_without_callers_releases_its_reservation() -> None:
    connections = Connections(max_connections=1)
    busy, starved, other = (Pool(connections) for _ in range(3))
    assert busy.open(1.0)
    assert not starved.open(2.0)
    assert not other.open(3.0)
    other.callers = 1
    connections.release()
    assert other.callers == 0
    assert connections.starved_since() == float("inf")


def test_a_pool_is_not_starved_when_its_last_caller_has_left() -> None:
    bench = Bench(max_connections=1, max_links=2)

    async def work() -> None:
        first, second = bench.sender(), bench.sender()
        bench.primary.begin(Fault(FaultKind.SLOW, "contoso", None, 0.0, LIMIT))
        held = asyncio.create_task(first.send_messages(ServiceBusMessage("one"), timeout=60))
        await asyncio.sleep(0.1)
        waiting = asyncio.create_task(second.send_messages(ServiceBusMessage("two"), timeout=60))
        await asyncio.sleep(0.1)
        assert bench.pairing.primary_connections.starved_since() < float("inf")
        waiting.cancel()
        await asyncio.wait([waiting])
        assert bench.pairing.primary_connections.starved_since() == float("inf")
        held.cancel()
        await asyncio.wait([held])
        await asyncio.gather(first.close(), second.close())

    bench.run(work())


@pytest.mark.parametrize("is_diverted", [False, True])
def test_a_link_that_was_opened_and_not_used_is_not_fresh_any_more(is_diverted: bool) -> None:
    """The service detaches idle links: the next send fails, and is sent once more on a fresh link."""
    bench = Bench()
    namespace = bench.secondary if is_diverted else bench.primary

    async def work() -> None:
        sender = bench.sender()
        if is_diverted:
            bench.pairing.fail_over("orders")
            await sender.open_standby()
        else:
            await sender.create_message_batch()
        bench.events.clear()
        for wire in list(namespace.wires):
            wire.cut()
        receipt = await sender.send_messages(ServiceBusMessage("one"))
        assert receipt.route is (Route.BACKLOG if is_diverted else Route.PRIMARY)
        await sender.close()

    bench.run(work())
    assert [type(event) for event in bench.events] == ([Diverted] if is_diverted else [])


def test_disabled_entity_fails_all_callers_at_once() -> None:
    """Another link is always being opened for the next caller, and refused like the others."""
    bench = Bench(attempt_timeout=0.5)
    bench.primary.begin(Fault(FaultKind.DISABLED, "contoso", "orders", 0.0, LIMIT))

    async def work() -> None:
        sender = bench.sender()
        calls = []
        for _ in range(200):
            calls.append(asyncio.create_task(sender.send_messages(ServiceBusMessage("one"))))
            await asyncio.sleep(0.01)
        errors = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(error) for error in errors} == {MessagingEntityDisabledError}
        await sender.close()

    bench.run(work())
    assert bench.events == []


def test_a_call_that_waits_for_a_connection_is_not_diverted_while_others_are_answered() -> None:
    bench = Bench(max_connections=1, max_links=1)
    bench.primary.latencies = 0.05, 0.06

    async def work() -> None:
        first, second = bench.sender(), bench.sender()
        before = [asyncio.create_task(first.send_messages(ServiceBusMessage("one"))) for _ in range(30)]
        await asyncio.sleep(0.1)
        receipt = await second.send_messages(ServiceBusMessage("two"))
        assert receipt.route is Route.PRIMARY
        await asyncio.gather(*before)
        await asyncio.gather(first.close(), second.close())

    bench.run(work())
    assert bench.events == []
