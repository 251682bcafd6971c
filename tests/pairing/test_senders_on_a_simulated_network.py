"""Senders whose links end, are refused or run out, on a simulated network with a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any, cast

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from twinbus.pairing.core import Pairing
from twinbus.pairing.events import Event
from twinbus.pairing.failover import Route
from twinbus.pairing.options import SendAvailabilityOptions
from twinbus.pairing.sending._async.sender import PairedSender
from twinbus.proof.simulation.network import Fault, Process, SimulatedNamespace, Weather
from twinbus.proof.simulation.sdk import SimulatedClient
from twinbus.proof.simulation.trace import Trace
from twinbus.proof.simulation.virtual_time import VirtualLoop

LIMIT = 600.0


class Bench:
    """A pairing with one queue and one backlog queue."""

    def __init__(self, **options: Any) -> None:
        self.loop = VirtualLoop()
        self.trace = Trace(self.loop.time, True)
        self._random = Random(1)
        self.primary, self.secondary = self._namespace("contoso"), self._namespace("standby")
        self.primary.add_queue("orders")
        given = {"backlog_queue_count": 1, "failover_interval": 0, "attempt_timeout": 1, **options}
        self.pairing = Pairing(SendAvailabilityOptions(**given), "contoso", clock=self.loop.time, random=Random(2))
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
        """How many lines of the trace have a word in them."""
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
        fault = Fault(Weather.BUSY, "contoso", "orders", 0.0, 3.0)
        bench.primary.begin(fault)
        bench.loop.call_later(3.0, bench.primary.end, fault)
        messages = [ServiceBusMessage("one", message_id=f"{number}") for number in range(64)]
        receipts = await asyncio.gather(*(sender.send_messages(one) for one in messages))
        assert {one.route for one in receipts} == {Route.PRIMARY}
        await sender.close()

    bench.run(work())
    assert bench.events == []
