"""Soaks one shared async sender for ten minutes, with cancelled callers: `make bench-soak`.

Each send takes 30 ms.

*healthy*: nothing may be diverted, no event published, no call may fail, and memory may not grow.

*outage*: after a tenth of the time the primary refuses connections, for half of the time. Of ten backlog queues one is
deleted before that, one is disabled and one becomes full while the sender uses it. Every call that was not cancelled
must be accepted. At the end the backlog is drained and everything received: nothing may be lost, and only messages
whose first attempt had no clear outcome may be duplicated.

Message ids are numbers, and the state of each is a preallocated byte, so that memory use can be compared.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode
from bench.callers import percentile
from bench.served import Served
from proof.soak.soak_samples import Sample, courses_of, take_sample

from twinbus import SendAvailabilityOptions, aio
from twinbus.pairing.events import BacklogQueueRetired, Event
from twinbus.pairing.failover.entity_failover import Route
from twinbus.pairing.namespace import Namespace

QUEUE = "orders"
BODY = b"x" * 256
DELAY = 0.03
CANCELLED_SHARE = 0.05
#: Maximum of concurrent calls; with more the sender does not keep up, and the soak ends.
MAX_CALLS = 5_000
#: Timeouts in seconds: for the last calls, for the effect of a fault, and for the drain.
END_SECONDS, EFFECT_SECONDS, DRAIN_SECONDS = 60.0, 60.0, 600.0
SAMPLE_EVERY = 1.0
RECEIVE = 1_000

# States of a message.
UNSENT, ACCEPTED, RETRIED, CANCELLED, FAILED = range(5)


@dataclass
class Report:
    """The result of a scenario. The field names are JSON keys."""

    scenario: str
    seconds: float
    sent: int = 0
    cancelled: int = 0
    diverted: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    p50: float = 0.0
    p99: float = 0.0
    #: Resident megabytes and sockets of this process: medians of the first and last third.
    memory_first: float = 0.0
    memory_last: float = 0.0
    sockets_first: float = 0.0
    sockets_last: float = 0.0
    #: Accepted messages that were lost or duplicated, and cancelled ones that arrived anyway.
    lost: int = 0
    duplicated: int = 0
    unexplained_duplicates: int = 0
    cancelled_but_arrived: int = 0
    problems: list[str] = field(default_factory=list)

    def show(self) -> None:
        print(f"{self.scenario}, {self.seconds:.0f} s")
        for label, value in (
            ("sent / cancelled / diverted", f"{self.sent:,} / {self.cancelled:,} / {self.diverted:,}"),
            ("errors", dict(self.errors) or "none"),
            ("events", dict(self.events) or "none"),
            ("p50 / p99, s", f"{self.p50:.3f} / {self.p99:.3f}"),
            ("memory, first / last third, MB", f"{self.memory_first:.1f} / {self.memory_last:.1f}"),
            ("sockets, first / last third", f"{self.sockets_first:.0f} / {self.sockets_last:.0f}"),
            ("lost", self.lost),
            ("duplicated / unexplained", f"{self.duplicated} / {self.unexplained_duplicates}"),
            ("cancelled but arrived", self.cancelled_but_arrived),
        ):
            print(f"  {label:38} {value}")

    def to_json(self) -> dict[str, Any]:
        return {name: round(value, 3) if isinstance(value, float) else value for name, value in vars(self).items()}


class Traffic:
    """Calls one shared sender at a steady rate, and cancels some calls."""

    def __init__(self, sender: aio.PairedSender, rate: float, seconds: float, seed: int) -> None:
        self._sender = sender
        self._rate = rate
        self._seconds = seconds
        self._random = random.Random(seed)
        self._calls: set[asyncio.Task[None]] = set()
        count = int(rate * seconds)
        self.states = bytearray(count)
        self._latencies = array("f", bytes(4 * count))
        self.sent = self.diverted = 0
        self.errors: Counter[str] = Counter()
        #: The last used backlog queue.
        self.queue: str | None = None

    async def run(self) -> None:
        """Send until the time is up, and wait for the last calls."""
        began = time.monotonic()
        for number in range(len(self.states)):
            await asyncio.sleep(max(0.0, began + number / self._rate - time.monotonic()))
            if len(self._calls) >= MAX_CALLS:
                self.errors[f"more than {MAX_CALLS} concurrent calls"] += 1
                break
            call = asyncio.create_task(self._call(number))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
            if self._random.random() < CANCELLED_SHARE:
                asyncio.get_running_loop().call_later(self._random.uniform(0, DELAY), call.cancel)
        if self._calls:
            _, late = await asyncio.wait(self._calls, timeout=END_SECONDS)
            self.errors.update(["a call that did not end"] * len(late))

    async def _call(self, number: int) -> None:
        began = time.perf_counter()
        self.sent += 1
        try:
            receipt = await self._sender.send_messages(ServiceBusMessage(BODY, message_id=str(number)))
        except asyncio.CancelledError:
            self.states[number] = CANCELLED
            raise
        except Exception as error:
            self.states[number] = FAILED
            self.errors[type(error).__name__] += 1
            return
        self._latencies[number] = time.perf_counter() - began
        self.states[number] = ACCEPTED if receipt.attempts == 1 else RETRIED
        if receipt.route is Route.BACKLOG:
            self.diverted += 1
            self.queue = receipt.queue

    def latencies(self) -> list[float]:
        return sorted(seconds for seconds in self._latencies if seconds)


class NamespacePair:
    """Two namespaces in one server process, and actions on them."""

    def __init__(self, folder: Path) -> None:
        self.server = Served(
            folder,
            'durability = "memory"\n[namespaces.standby]\nport = 0\n'
            f'[namespaces.contoso]\nport = 0\nqueues = ["{QUEUE}"]\n',
        )

    @property
    def primary(self) -> str:
        return self.server.connection_strings["contoso"]

    @property
    def secondary(self) -> str:
        return self.server.connection_strings["standby"]

    async def fault(self, namespace: str, **fault: Any) -> str:
        """Add a fault; return its path for `end`."""
        path = f"namespaces/{namespace}/faults"
        added = await asyncio.to_thread(self.server.control, "POST", path, fault)
        return f"{path}/{added['id']}"

    async def end(self, fault: str) -> None:
        await asyncio.to_thread(self.server.control, "DELETE", fault)

    async def set_status(self, queue: str, status: str) -> None:
        async with Namespace.from_connection_string(self.secondary).administration() as admin:
            properties = await admin.get_queue(queue)
            properties.status = status
            await admin.update_queue(properties)

    async def delete(self, queue: str) -> None:
        async with Namespace.from_connection_string(self.secondary).administration() as admin:
            await admin.delete_queue(queue)

    def drain(self) -> None:
        """Drain the backlog with `twinbus syphon`. Raises `RuntimeError` if it fails."""
        command = [sys.executable, "-m", "twinbus", "syphon", "--until-empty", "--primary-name", "contoso", "--json"]
        environment = os.environ | {"TWINBUS_PRIMARY": self.primary, "TWINBUS_SECONDARY": self.secondary}
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=DRAIN_SECONDS, check=False
        )
        if result.returncode:
            raise RuntimeError(
                f"the syphon failed with exit code {result.returncode}: {result.stdout[-500:]} {result.stderr[-500:]}"
            )

    def arrivals(self, count: int) -> bytearray:
        """Receive everything; return the number of arrivals of each message."""
        counts = bytearray(count)
        with (
            ServiceBusClient.from_connection_string(self.primary) as client,
            client.get_queue_receiver(QUEUE, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver,
        ):
            while messages := receiver.receive_messages(RECEIVE, max_wait_time=2):
                for message in messages:
                    number = int(message.message_id or "")
                    counts[number] = min(255, counts[number] + 1)
        return counts


async def until(holds: Callable[[], bool], event: str) -> None:
    """Wait until `holds()` is true, and print the event. Raises `TimeoutError` if it takes too long."""
    async with asyncio.timeout(EFFECT_SECONDS):
        while not holds():  # noqa: ASYNC110 - there is no single event to wait for
            await asyncio.sleep(0.05)
    print(f"  {event}", file=sys.stderr)


class Soak:
    """Runs one scenario with its own client and sender."""

    def __init__(self, namespaces: NamespacePair, scenario: str, settings: argparse.Namespace) -> None:
        self._namespaces = namespaces
        self._settings = settings
        self.report = Report(scenario, settings.seconds)
        self._samples: list[Sample] = []

    async def run(self) -> Report:
        namespaces, settings, report = self._namespaces, self._settings, self.report
        is_outage = report.scenario == "outage"
        slow = [await namespaces.fault(name, kind="slow", delay=DELAY, on=["send"]) for name in ("contoso", "standby")]
        # The defaults for ten minutes, proportionally shorter for a shorter soak.
        interval = max(1.0, min(60.0, settings.seconds / 10))
        options = SendAvailabilityOptions(failover_interval=interval, ping_primary_interval=interval)
        async with aio.PairedServiceBusClient(namespaces.primary, namespaces.secondary, options) as client:
            sender = client.get_queue_sender(QUEUE)
            if is_outage:
                await self._delete_used_queue(client, sender)
            client.on_event(self._count_event)
            traffic = Traffic(sender, settings.rate, settings.seconds, settings.seed)
            async with self._sampling():
                sending = asyncio.create_task(traffic.run())
                try:
                    if is_outage:
                        await self._outage(traffic)
                    await sending
                finally:
                    sending.cancel()
        for fault in slow:
            await namespaces.end(fault)
        self._count(traffic, is_outage)
        if is_outage:
            await asyncio.to_thread(namespaces.drain)
        self._compare(traffic.states, await asyncio.to_thread(namespaces.arrivals, len(traffic.states)))
        self._judge(is_outage)
        return report

    def _count_event(self, event: Event) -> None:
        if isinstance(event, BacklogQueueRetired):
            self.report.events[f"BacklogQueueRetired: {type(event.error).__name__}"] += 1
        else:
            self.report.events[type(event).__name__] += 1

    @asynccontextmanager
    async def _sampling(self) -> AsyncIterator[None]:
        async def sample() -> None:
            while True:
                self._samples.append(take_sample(os.getpid()))
                await asyncio.sleep(SAMPLE_EVERY)

        sampling = asyncio.create_task(sample())
        try:
            yield
        finally:
            sampling.cancel()

    # ---- faults ----

    async def _delete_used_queue(self, client: aio.PairedServiceBusClient, sender: aio.PairedSender) -> None:
        """Delete the backlog queue that the sender uses, which a forced failover reveals."""
        client.fail_over(QUEUE)
        receipt = await sender.send_messages(ServiceBusMessage(BODY, message_id="0"))
        client.fail_back(QUEUE)
        assert receipt.queue is not None
        await self._namespaces.delete(receipt.queue)
        print(f"  deleted {receipt.queue}", file=sys.stderr)

    async def _outage(self, traffic: Traffic) -> None:
        namespaces, seconds = self._namespaces, self._settings.seconds
        await asyncio.sleep(seconds / 10)
        # "refuse" affects new connections only; open ones must be reset.
        outage = [await namespaces.fault("contoso", kind=kind) for kind in ("refuse", "reset")]
        print("  the primary is down", file=sys.stderr)
        began = time.monotonic()
        await until(lambda: traffic.queue is not None, "the first message was diverted")
        await asyncio.sleep(seconds / 10)
        disabled = traffic.queue
        assert disabled is not None
        await namespaces.set_status(disabled, "Disabled")
        await until(lambda: traffic.queue != disabled, f"disabled {disabled}")
        await asyncio.sleep(seconds / 10)
        full = traffic.queue
        await namespaces.fault("standby", kind="fill", entity=full)
        await until(lambda: traffic.queue != full, f"filled {full}")
        await asyncio.sleep(max(0.0, began + seconds / 2 - time.monotonic()))
        for fault in outage:
            await namespaces.end(fault)
        print("  the primary is back", file=sys.stderr)
        await namespaces.set_status(disabled, "Active")

    # ---- results ----

    def _count(self, traffic: Traffic, is_outage: bool) -> None:
        report, latencies = self.report, traffic.latencies()
        report.sent, report.diverted = traffic.sent, traffic.diverted
        report.cancelled = traffic.states.count(CANCELLED)
        report.errors = traffic.errors
        report.p50, report.p99 = percentile(latencies, 0.5), percentile(latencies, 0.99)
        courses = {course.measure: course for course in courses_of("sender", self._samples)}
        report.memory_first, report.memory_last = courses["memory"].first, courses["memory"].last
        report.sockets_first, report.sockets_last = courses["sockets"].first, courses["sockets"].last
        for measure in ("memory",) if is_outage else ("memory", "sockets", "threads"):
            course = courses[measure]
            if not course.is_flat:
                report.problems.append(
                    f"{measure}: expected at most {course.allowed:.1f} in the last third, got {course.last:.1f}"
                )

    def _compare(self, states: bytearray, arrivals: bytearray) -> None:
        report = self.report
        for state, count in zip(states, arrivals, strict=True):
            report.lost += state in (ACCEPTED, RETRIED) and not count
            report.cancelled_but_arrived += state == CANCELLED and bool(count)
            report.duplicated += count > 1
            report.unexplained_duplicates += count > 1 and state not in (RETRIED, CANCELLED)

    def _judge(self, is_outage: bool) -> None:
        report = self.report
        problem_counts = {
            f"{report.errors.total()} calls failed": report.errors.total(),
            f"{report.lost} messages lost": report.lost,
            f"{report.unexplained_duplicates} messages duplicated after one attempt": report.unexplained_duplicates,
        }
        if not is_outage:
            problem_counts[f"{report.diverted} messages diverted"] = report.diverted
            problem_counts[f"{report.events.total()} events published"] = report.events.total()
        elif len([name for name in report.events if name.startswith("BacklogQueueRetired")]) < 3:
            report.problems.append("expected the three broken backlog queues to be retired, got fewer")
        report.problems += [problem for problem, count in problem_counts.items() if count]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="seconds to send per scenario (default: %(default)s)"
    )
    parser.add_argument("--rate", type=float, default=200.0, help="sends per second (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed for cancelled callers")
    parser.add_argument("--scenario", choices=("healthy", "outage", "both"), default="both")
    settings = parser.parse_args()
    if not 30 <= settings.seconds <= 86_400 or not 1 <= settings.rate <= 2_000:
        parser.error(
            f"expected --seconds from 30 to 86400, got {settings.seconds:g};"
            f" expected --rate from 1 to 2000, got {settings.rate:g}"
        )
    return settings


def main() -> None:
    settings = arguments()
    logging.disable(logging.CRITICAL)  # faults are injected on purpose
    reports = []
    for scenario in ("healthy", "outage") if settings.scenario == "both" else (settings.scenario,):
        with tempfile.TemporaryDirectory(prefix="twinbus-soak-") as folder:
            namespaces = NamespacePair(Path(folder))
            with namespaces.server:
                reports.append(asyncio.run(Soak(namespaces, scenario, settings).run()))
        reports[-1].show()
    print(json.dumps({report.scenario: report.to_json() for report in reports}))
    for report in reports:
        for problem in report.problems:
            print(f"WRONG: {report.scenario}: {problem}", file=sys.stderr)
    sys.exit(any(report.problems for report in reports))


if __name__ == "__main__":
    main()
