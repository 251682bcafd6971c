"""Runs a client with 1,000 entities through an outage on a busy machine: `make bench-entities`.

Synchronous and asynchronous. Sends to every entity at the same moment, three times: while healthy, during the outage
and after it. No send may raise, nothing may fail over before the outage, and every entity must recover within twice the
ping interval.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusMessage
from bench.served import Served

from twinbus import PairedServiceBusClient, SendAvailabilityOptions, aio
from twinbus.pairing.events import BacklogQueueRetired, Event, FailedOver, Recovered, Suspected
from twinbus.pairing.failover.entity_failover import Route

BODY = b"x" * 256
PING_INTERVAL = 30.0
BUSY_LOOPS = 2
#: Timeout in seconds for every entity to fail over, or to recover.
WAIT_SECONDS = 600.0

SendAll = Callable[[], Awaitable[Counter[str]]]


@dataclass
class Report:
    """The figures of one kind of client. The field names are JSON keys."""

    client: str
    entities: int
    first_sends_s: float = 0.0
    sends_in_outage_s: float = 0.0
    back_after_s: float = 0.0
    close_s: float = 0.0
    false_events: Counter[str] = field(default_factory=Counter)
    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def expect(self, holds: bool, problem: str) -> None:
        if not holds:
            self.problems.append(problem)


@contextmanager
def busy_loops() -> Iterator[None]:
    """Run busy loops in separate processes."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY_LOOPS)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


class Outage:
    """Refuses new connections to the primary and cuts open ones."""

    def __init__(self, server: Served) -> None:
        self._server = server
        self._faults: list[str] = []

    def begin(self) -> None:
        path = "namespaces/contoso/faults"
        for kind in ("refuse", "reset"):
            self._faults.append(f"{path}/{self._server.control('POST', path, {'kind': kind})['id']}")

    def end(self) -> None:
        while self._faults:
            self._server.control("DELETE", self._faults.pop())


async def run_through_outage(report: Report, events: list[Event], send_all: SendAll, outage: Outage) -> None:
    """Send to all entities while healthy, during an outage and after it."""

    async def timed(phase: str) -> float:
        began = time.monotonic()
        report.outcomes[phase] = await send_all()
        return time.monotonic() - began

    async def wait_all_entities(kind: type[Event]) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while len({getattr(event, "entity", "") for event in events if isinstance(event, kind)}) < report.entities:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    report.first_sends_s = await timed("healthy")
    alarms = (Suspected, FailedOver, BacklogQueueRetired)
    report.false_events = Counter(type(event).__name__ for event in events if isinstance(event, alarms))
    await asyncio.to_thread(outage.begin)
    report.sends_in_outage_s = await timed("outage")
    await wait_all_entities(FailedOver)
    await asyncio.to_thread(outage.end)
    ended = time.monotonic()
    await wait_all_entities(Recovered)
    report.back_after_s = time.monotonic() - ended
    await timed("recovered")


def judge(report: Report) -> None:
    """Compare the figures with the promises."""
    for phase, route in (("healthy", Route.PRIMARY), ("outage", Route.BACKLOG), ("recovered", Route.PRIMARY)):
        outcomes = report.outcomes[phase]
        problem = f"{phase}: expected only {route.name}, got {dict(outcomes)}"
        report.expect(outcomes == {route.name: report.entities}, problem)
    report.expect(not report.false_events, f"events while healthy: {dict(report.false_events)}")
    limit = 2 * PING_INTERVAL
    report.expect(
        report.back_after_s <= limit, f"recovery: expected at most {limit:.0f} s, got {report.back_after_s:.1f} s"
    )


def outcome_of(receipt_or_error: Any) -> str:
    if isinstance(receipt_or_error, BaseException):
        return type(receipt_or_error).__name__
    name: str = receipt_or_error.route.name
    return name


async def run_async(report: Report, server: Served, options: SendAvailabilityOptions) -> None:
    events: list[Event] = []
    strings = server.connection_strings
    async with aio.PairedServiceBusClient(strings["contoso"], strings["standby"], options) as client:
        client.on_event(events.append)
        senders = [client.get_queue_sender(f"q{number}") for number in range(report.entities)]

        async def send_all() -> Counter[str]:
            sends = [sender.send_messages(ServiceBusMessage(BODY)) for sender in senders]
            return Counter(map(outcome_of, await asyncio.gather(*sends, return_exceptions=True)))

        await run_through_outage(report, events, send_all, Outage(server))
        began = time.monotonic()
    report.close_s = time.monotonic() - began


async def run_sync(report: Report, server: Served, options: SendAvailabilityOptions) -> None:
    events: list[Event] = []
    strings = server.connection_strings
    client = await asyncio.to_thread(PairedServiceBusClient, strings["contoso"], strings["standby"], options)
    client.on_event(events.append)
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(report.entities) as threads:
        await asyncio.to_thread(client.start)
        senders = [client.get_queue_sender(f"q{number}") for number in range(report.entities)]

        async def send_all() -> Counter[str]:
            sends = [loop.run_in_executor(threads, sender.send_messages, ServiceBusMessage(BODY)) for sender in senders]
            return Counter(map(outcome_of, await asyncio.gather(*sends, return_exceptions=True)))

        try:
            await run_through_outage(report, events, send_all, Outage(server))
        finally:
            began = time.monotonic()
            await asyncio.to_thread(client.close)
            report.close_s = time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entities", type=int, default=1000)
    parser.add_argument("--clients", nargs="+", choices=["sync", "async"], default=["async", "sync"])
    settings = parser.parse_args()
    logging.getLogger().setLevel(logging.CRITICAL)
    options = SendAvailabilityOptions(failover_interval=5, ping_primary_interval=PING_INTERVAL)
    queues = json.dumps([f"q{number}" for number in range(settings.entities)])
    config = (
        f'durability = "memory"\n[namespaces.standby]\nport = 0\n[namespaces.contoso]\nport = 0\nqueues = {queues}\n'
    )
    reports = []
    for kind in settings.clients:
        report = Report(kind, settings.entities)
        with tempfile.TemporaryDirectory() as folder, Served(Path(folder), config) as server, busy_loops():
            asyncio.run((run_sync if kind == "sync" else run_async)(report, server, options))
        judge(report)
        reports.append(report)
        for name, value in vars(report).items():
            print(f"  {name:18} {value:.1f}" if isinstance(value, float) else f"  {name:18} {value}")
    print(json.dumps([vars(report) for report in reports]))
    sys.exit(any(report.problems for report in reports))


if __name__ == "__main__":
    main()
