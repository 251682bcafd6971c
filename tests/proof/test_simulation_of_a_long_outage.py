"""Tests the cost of a long outage for the syphon, over hours of virtual time."""

from __future__ import annotations

import asyncio
from random import Random
from typing import cast

from proof.simulation.amqp import SimulatedSide
from proof.simulation.network import Fault, FaultKind, Process, SimulatedNamespace
from proof.simulation.trace import Trace
from proof.simulation.virtual_time import VirtualLoop
from tests.namespace_internals import Arrival
from tests.syphon.pumping import BACKLOG, numbered

from twinbus.syphon.connector import Side
from twinbus.syphon.host import SyphonHost
from twinbus.syphon.terms import Terms

HOUR = 3600.0
COUNT = 100
#: The longest pause between two attempts.
RETRY_MAX = 120.0


class Bench:
    """A backlog for two destinations, and a syphon with default retry pauses."""

    def __init__(self, fault: Fault) -> None:
        self.loop = VirtualLoop()
        self._trace = Trace(self.loop.time, True)
        self._random = Random(1)
        self.primary, self.secondary = self._namespace("contoso"), self._namespace("standby")
        self.primary.add_queue("orders")
        self.primary.add_queue("bills")
        self.backlog = self.secondary.add_queue(BACKLOG)
        self._fault = fault
        self._payloads = [
            payload for number in range(COUNT) for path in ("bills", "orders") for payload in numbered(path, [number])
        ]

    def _namespace(self, name: str) -> SimulatedNamespace:
        return SimulatedNamespace(name, self.loop, self._random, self._trace, lambda message_id: None)

    async def run_outage(self, seconds: float) -> None:
        """Run the syphon through an outage of `seconds`, then until the backlog is drained."""
        self.backlog.put([Arrival(payload) for payload in self._payloads])
        process = Process("syphon")
        sides = [cast(Side, SimulatedSide(namespace, process)) for namespace in (self.primary, self.secondary)]
        host = SyphonHost(*sides, [BACKLOG], Terms(lock_seconds=60.0))
        self.primary.begin(self._fault)
        await host.start()
        await asyncio.sleep(seconds)
        self.during = self.count("deliver"), self.count("released"), self.count("manage"), self.count("connect")
        self.arrived_during = len(self.primary.queue("orders").messages)
        self.primary.end(self._fault)
        while self.backlog.messages:  # noqa: ASYNC110 - there is no single event to wait for
            await asyncio.sleep(1.0)
        await host.close()

    def count(self, word: str) -> int:
        return sum(line.split()[1] == word for line in self._trace.lines)

    def arrived(self, path: str) -> list[str]:
        queue = self.primary.queue(path)
        return [queue.ids[number] for number in sorted(queue.messages)]


def test_hour_of_broken_transfers_costs_few_receives_and_attempts() -> None:
    bench = Bench(Fault(FaultKind.RESET_BEFORE, "contoso", None, 0.0, HOUR))
    bench.loop.run(bench.run_outage(HOUR), 2 * HOUR)
    delivered, released, requests, connections = bench.during
    # Each message once, plus those in transit when the connection was lost at the start.
    assert delivered == 2 * COUNT + released
    assert released <= 2 * COUNT
    # Each attempt at a destination fetches and releases messages; plus the initial peeks.
    assert requests <= 2 * 2 * (HOUR / RETRY_MAX + 10) + 10
    assert connections <= 2 * (HOUR / RETRY_MAX + 10)
    for path in ("orders", "bills"):
        assert bench.arrived(path) == [f"{path}-{number}" for number in range(COUNT)]


def test_broken_destination_backs_off_while_the_other_drains() -> None:
    bench = Bench(Fault(FaultKind.RESET_BEFORE, "contoso", "bills", 0.0, HOUR))
    bench.loop.run(bench.run_outage(HOUR), 2 * HOUR)
    assert bench.arrived_during >= COUNT
    assert set(bench.arrived("orders")) == {f"orders-{number}" for number in range(COUNT)}
    assert bench.arrived("bills") == [f"bills-{number}" for number in range(COUNT)]
    delivered, released, requests, connections = bench.during
    assert delivered == 2 * COUNT + released
    assert released <= 2 * COUNT
    assert requests <= 2 * (HOUR / RETRY_MAX + 10) + 2 * COUNT
    assert connections <= HOUR / RETRY_MAX + 20
