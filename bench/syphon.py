"""Measures the speed of the syphon: a part of `make bench-pairing`.

Compares in interleaved rounds over the same two `twinbus serve` processes: `twinbus syphon --until-empty` as a process;
a plain SDK loop that receives, sends and completes one message at a time; the SDK only receiving batches of 100; and
raw frames into the primary, as fast as it accepts them.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage
from bench.raw import RawClient, encoded_messages, transfers
from bench.served import Served
from rich.console import Console
from rich.table import Table

from twinbus.envelope.wrapping import wrap

QUICK = bool(os.environ.get("QUICK"))
ROUNDS = 1 if QUICK else 3
MOVED = 4_000 if QUICK else 40_000  # messages per round of the syphon
LOOPED = 200 if QUICK else 1_500  # messages of the plain loop
RECEIVED = 1_000 if QUICK else 10_000  # messages that the SDK only receives
SIZE = 1024
LIST = 100
DESTINATIONS = ("first", "second")
BACKLOG = "contoso/x-servicebus-transfer/0"


def served(name: str, queues: tuple[str, ...], folder: Path) -> Served:
    """A server process with one namespace, not started yet."""
    config = f'durability = "normal"\n[namespaces.{name}]\nport = 0\nqueues = {json.dumps(queues)}\n'
    return Served(folder / name, config)


@dataclass
class Samples:
    """Messages per second of each method, and CPU seconds per message of the syphon and of both namespaces."""

    rates: dict[str, list[float]] = field(default_factory=dict)
    pump_cpu: list[float] = field(default_factory=list)
    broker_cpu: list[float] = field(default_factory=list)

    def add(self, method: str, count: int, seconds: float) -> None:
        self.rates.setdefault(method, []).append(count / seconds)


class Bench:
    """The two namespaces, with open links."""

    def __init__(self, primary: Served, secondary: Served, stack: ExitStack) -> None:
        self.primary = primary
        self.secondary = secondary
        clients = [
            stack.enter_context(ServiceBusClient.from_connection_string(server.connection_string))
            for server in (primary, secondary)
        ]
        self.to_backlog = stack.enter_context(clients[1].get_queue_sender(BACKLOG))
        self.from_backlog = stack.enter_context(clients[1].get_queue_receiver(BACKLOG))
        self.to_primary = stack.enter_context(clients[0].get_queue_sender(DESTINATIONS[0]))
        self.raw = transfers(encoded_messages(MOVED, SIZE))

    def fill(self, count: int) -> None:
        """Put messages into the backlog as a sender in failover does."""
        body = b"x" * SIZE
        for start in range(0, count, LIST):
            batch = self.to_backlog.create_message_batch()
            for number in range(start, start + LIST):
                message = ServiceBusMessage(body, message_id=f"{number:032x}")
                batch.add_message(wrap(message, DESTINATIONS[number % 2]))
            self.to_backlog.send_messages(batch)

    def syphon(self, samples: Samples) -> None:
        """Measure `twinbus syphon --until-empty` by its own report, without the start of Python."""
        self.fill(MOVED)
        command = [sys.executable, "-m", "twinbus", "syphon", "--until-empty", "--queues", "1", "--json"]
        environment = os.environ | {
            "TWINBUS_PRIMARY": self.primary.connection_string,
            "TWINBUS_SECONDARY": self.secondary.connection_string,
        }
        before, brokers = resource.getrusage(resource.RUSAGE_CHILDREN), self._brokers_cpu()
        completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        result = json.loads(completed.stdout.splitlines()[-1])
        if result["moved"] != MOVED:
            raise RuntimeError(f"expected {MOVED} moved messages, got {result['moved']}")
        samples.add("syphon", MOVED, result["seconds"])
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        samples.pump_cpu.append(used / MOVED)
        samples.broker_cpu.append((self._brokers_cpu() - brokers) / MOVED)

    def _brokers_cpu(self) -> float:
        return self.primary.cpu() + self.secondary.cpu()

    def plain_loop(self, samples: Samples) -> None:
        """Measure a loop with the SDK alone, which loses AMQP types."""
        self.fill(LOOPED)
        count, start = 0, time.perf_counter()
        while count < LOOPED:
            for message in self.from_backlog.receive_messages(1, max_wait_time=10):
                self.to_primary.send_messages(ServiceBusMessage(b"".join(message.body), message_id=message.message_id))
                self.from_backlog.complete_message(message)
                count += 1
        samples.add("plain SDK loop", LOOPED, time.perf_counter() - start)

    def sdk_receive(self, samples: Samples) -> None:
        """Measure only receiving, in batches; settling is not counted."""
        self.fill(RECEIVED)
        messages: list[ServiceBusReceivedMessage] = []
        start = time.perf_counter()
        while len(messages) < RECEIVED:
            messages += self.from_backlog.receive_messages(LIST, max_wait_time=10)
        samples.add("SDK batch receive alone", RECEIVED, time.perf_counter() - start)
        for message in messages:
            self.from_backlog.complete_message(message)

    def raw_frames(self, samples: Samples) -> None:
        """Measure the maximum rate of the primary on one connection."""
        with RawClient(self.primary.connection_string) as client:
            client.attach_sender(DESTINATIONS[1])
            start = time.perf_counter()
            client.send(self.raw, MOVED)
            samples.add("raw frames into the primary", MOVED, time.perf_counter() - start)


def measure(folder: Path) -> Samples:
    """Measure all rounds; the first is a warm-up."""
    folder.mkdir(exist_ok=True)
    with ExitStack() as stack:
        primary = stack.enter_context(served("contoso", DESTINATIONS, folder))
        secondary = stack.enter_context(served("standby", (BACKLOG,), folder))
        bench = Bench(primary, secondary, stack)
        methods: tuple[Callable[[Samples], None], ...] = (
            bench.syphon,
            bench.plain_loop,
            bench.sdk_receive,
            bench.raw_frames,
        )
        samples = Samples()
        for number in range(ROUNDS + 1):
            round_samples = samples if number else Samples()
            for method in methods:
                method(round_samples)
            print(f"syphon, round {number} of {ROUNDS}", file=sys.stderr)
    return samples


def report(samples: Samples, console: Console) -> dict[str, float]:
    """Print the table; return the ratios."""
    rates = {method: statistics.median(values) for method, values in samples.rates.items()}
    table = Table(title=f"moving {SIZE} byte messages from the backlog, median of {ROUNDS} rounds")
    for heading in ("", "messages/s", "syphon / this"):
        table.add_column(heading, justify="left" if not heading else "right")
    for method, rate in rates.items():
        table.add_row(method, f"{rate:,.0f}", f"{rates['syphon'] / rate:.2f}")
    console.print(table)
    pump, broker = statistics.median(samples.pump_cpu), statistics.median(samples.broker_cpu)
    console.print(
        f"CPU per message: syphon {pump * 1e6:.0f} µs (with its start), both namespaces {broker * 1e6:.0f} µs"
    )
    return {
        "syphon_over_plain_loop": round(rates["syphon"] / rates["plain SDK loop"], 2),
        "syphon_over_sdk_receive": round(rates["syphon"] / rates["SDK batch receive alone"], 2),
        "syphon_over_raw_frames": round(rates["syphon"] / rates["raw frames into the primary"], 3),
        "syphon_cpu_over_brokers_cpu": round(pump / broker, 3),
    }
