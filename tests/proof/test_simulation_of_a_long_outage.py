"""The syphon through hours of virtual time: what an outage costs that lets it in and then breaks off what it begins."""

from __future__ import annotations

import asyncio
from random import Random
from typing import cast

from tests.syphon.pumping import BACKLOG, numbered

from twinbus.broker.message import Arrival
from twinbus.proof.simulation.amqp import SimulatedSide
from twinbus.proof.simulation.network import Fault, Process, SimulatedNamespace, Weather
from twinbus.proof.simulation.trace import Trace
from twinbus.proof.simulation.virtual_time import VirtualLoop
from twinbus.syphon.connector import Side
from twinbus.syphon.host import SyphonHost
from twinbus.syphon.terms import Terms

HOUR = 3600.0
COUNT = 100
#: The longest pause between two tries.
RETRY_MAX = 120.0


class Bench:
    """A backlog of messages for two destinations, and a syphon with its usual pauses."""

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
            one for number in range(COUNT) for path in ("bills", "orders") for one in numbered(path, [number])
        ]

    def _namespace(self, name: str) -> SimulatedNamespace:
        return SimulatedNamespace(name, self.loop, self._random, self._trace, lambda message_id: None)

    async def last(self, seconds: float) -> None:
        """The outage lasts so long, then everything is well."""
        self.backlog.put([Arrival(payload) for payload in self._payloads])
        process = Process("syphon")
        sides = [cast(Side, SimulatedSide(one, process)) for one in (self.primary, self.secondary)]
        host = SyphonHost(*sides, [BACKLOG], Terms(lock_seconds=60.0))
        self.primary.begin(self._fault)
        await host.start()
        await asyncio.sleep(seconds)
        self.during = self.count("deliver"), self.count("released"), self.count("manage"), self.count("connect")
        self.arrived_during = len(self.primary.queue("orders").messages)
        self.primary.end(self._fault)
        while self.backlog.messages:  # noqa: ASYNC110 - it comes of many small things
            await asyncio.sleep(1.0)
        await host.close()

    def count(self, word: str) -> int:
        return sum(line.split()[1] == word for line in self._trace.lines)

    def arrived(self, path: str) -> list[str]:
        queue = self.primary.queue(path)
        return [queue.ids[number] for number in sorted(queue.messages)]


def test_an_hour_of_broken_transfers_costs_a_few_receives_for_each_message_and_a_try_every_two_minutes() -> None:
    bench = Bench(Fault(Weather.RESET_BEFORE, "contoso", None, 0.0, HOUR))
    bench.loop.run(bench.last(HOUR), 2 * HOUR)
    delivered, released, requests, connections = bench.during
    # Each of them once, and again those that were on their way when the connection was lost at the beginning.
    assert delivered == 2 * COUNT + released
    assert released <= 2 * COUNT
    # Each try of a destination is a fetch and a giving back; the looks at the start come on top.
    assert requests <= 2 * 2 * (HOUR / RETRY_MAX + 10) + 10
    assert connections <= 2 * (HOUR / RETRY_MAX + 10)
    for path in ("orders", "bills"):
        assert bench.arrived(path) == [f"{path}-{number}" for number in range(COUNT)]


def test_a_destination_that_breaks_the_connection_is_tried_ever_less_often_while_the_other_drains() -> None:
    bench = Bench(Fault(Weather.RESET_BEFORE, "contoso", "bills", 0.0, HOUR))
    bench.loop.run(bench.last(HOUR), 2 * HOUR)
    assert bench.arrived_during >= COUNT
    assert set(bench.arrived("orders")) == {f"orders-{number}" for number in range(COUNT)}
    assert bench.arrived("bills") == [f"bills-{number}" for number in range(COUNT)]
    delivered, released, requests, connections = bench.during
    assert delivered == 2 * COUNT + released
    assert released <= 2 * COUNT
    assert requests <= 2 * (HOUR / RETRY_MAX + 10) + 2 * COUNT
    assert connections <= HOUR / RETRY_MAX + 20
