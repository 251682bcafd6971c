"""Measures what the embedded namespace costs, compared with the SDK that uses it: `make bench-broker`.

All figures come from one run against real `twinbus serve` processes, in interleaved rounds, so that ratios hold on a
noisy machine. `QUICK=1` does a tenth; `AGAINST=<commit>` alternates with the namespace of that commit. The last line is
one JSON object of the ratios.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from bench.floor import MinimalServer
from bench.raw import RawClient, accepted, encoded_messages, transfers
from bench.served import Served
from rich.console import Console
from rich.table import Table

QUICK = bool(os.environ.get("QUICK"))
# Many short rounds, because the speed of a machine varies over seconds.
ROUNDS = 3 if QUICK else 9
SIZE = 1024
BATCH = 100
SDK_SINGLE = 100 if QUICK else 500
SDK_MANY = 500 if QUICK else 3_000
RAW = 1_000 if QUICK else 10_000
BARE = 100 if QUICK else 1_000
DURABILITIES = ("full", "normal", "memory")
AGAINST = os.environ.get("AGAINST", "")


@dataclass
class Sample:
    """One measurement: messages, seconds, and the CPU seconds of both sides."""

    messages: int
    seconds: float
    broker: float
    client: float


def served(durability: str, folder: Path, source: Path | None = None) -> Served:
    """A server process of this or another source, not started yet."""
    config = f'durability = "{durability}"\n[namespaces.{durability}]\nport = 0\nqueues = ["sdk", "raw"]\n'
    return Served(folder / durability, config, source)


@contextmanager
def measured(server: Served, messages: int, into: list[Sample]) -> Iterator[None]:
    broker, client, start = server.cpu(), time.process_time(), time.perf_counter()
    yield
    seconds = time.perf_counter() - start
    into.append(Sample(messages, seconds, server.cpu() - broker, time.process_time() - client))


def sdk_round(server: Served, rows: dict[str, list[Sample]]) -> None:
    """Send one by one, send in batches, receive and complete; the queue is empty before and after."""
    body = b"x" * SIZE
    with ExitStack() as stack:
        client = stack.enter_context(ServiceBusClient.from_connection_string(server.connection_string))
        sender = stack.enter_context(client.get_queue_sender("sdk"))
        receiver = stack.enter_context(client.get_queue_receiver("sdk"))
        with measured(server, SDK_SINGLE, rows["SDK send, one by one"]):
            for _ in range(SDK_SINGLE):
                sender.send_messages(ServiceBusMessage(body))
        batches = [[ServiceBusMessage(body) for _ in range(BATCH)] for _ in range(SDK_MANY // BATCH)]
        with measured(server, SDK_MANY, rows["SDK send, batches of 100"]):
            for batch in batches:
                sender.send_messages(batch)
        count, left = 0, SDK_SINGLE + SDK_MANY
        samples: list[Sample] = []
        with measured(server, left, samples):
            while count < left:
                messages = receiver.receive_messages(BATCH, max_wait_time=10)
                if not messages:
                    raise RuntimeError(f"{left - count} messages did not come back")
                for message in messages:
                    receiver.complete_message(message)
                count += len(messages)
        rows["SDK receive(100) and complete"] += samples


def raw_round(server: Served, rows: dict[str, list[Sample]], frames: bytes) -> None:
    """The same without the SDK: pipelined frames, encoded before the clock starts."""
    with RawClient(server.connection_string) as client:
        client.attach_sender("raw")
        with measured(server, RAW, rows["raw send, pipelined"]):
            client.send(frames, RAW)
    with RawClient(server.connection_string) as client:
        client.attach_receiver("raw")
        with measured(server, RAW, rows["raw deliver"]):
            deliveries = client.receive(RAW)
        outcomes = accepted(deliveries)
        with measured(server, RAW, rows["raw settle"]):
            client.settle(outcomes, RAW)


ROWS = (
    "SDK send, one by one",
    "SDK send, batches of 100",
    "SDK receive(100) and complete",
    "raw send, pipelined",
    "raw deliver",
    "raw settle",
)


def median(samples: list[Sample], figure: Callable[[Sample], float]) -> float:
    return statistics.median(figure(sample) for sample in samples)


Samples = dict[str, list[Sample]]
Results = dict[str, Samples]


def empty() -> Results:
    return {durability: {row: [] for row in ROWS} for durability in DURABILITIES}


def identifier(row: str, durability: str) -> str:
    return f"{row.replace(',', '').replace(' ', '_').replace('(100)', '')}_{durability}"


def rate(sample: Sample) -> float:
    return sample.messages / sample.seconds


def broker_cpu(sample: Sample) -> float:
    return 1e6 * sample.broker / sample.messages


def client_cpu(sample: Sample) -> float:
    return 1e6 * sample.client / sample.messages


def report(results: Results) -> dict[str, Any]:
    table = Table(title=f"{SIZE} byte messages, median of {ROUNDS} rounds")
    for heading in ("", "durability", "messages/s", "broker µs", "client µs", "broker/client CPU", "per broker core-s"):
        table.add_column(heading, justify="left" if heading in ("", "durability") else "right")
    ratios: dict[str, Any] = {}
    for row in ROWS:
        for durability in DURABILITIES:
            samples = results[durability][row]
            broker, client = median(samples, broker_cpu), median(samples, client_cpu)
            per_core = 1e6 / broker if broker else float("inf")
            share = broker / client if client else float("inf")
            figures = (f"{median(samples, rate):,.0f}", f"{broker:.1f}", f"{client:.1f}")
            table.add_row(row, durability, *figures, f"{share:.2f}", f"{per_core:,.0f}")
            name = identifier(row, durability)
            if row.startswith("SDK"):
                ratios[f"broker_cpu_over_client_cpu_{name}"] = round(share, 3)
            else:
                ratios[f"per_core_second_{name}"] = round(per_core)
    Console(width=120).print(table)
    ratios["raw_sends_per_core_second_normal"] = ratios["per_core_second_raw_send_pipelined_normal"]
    return ratios


def report_floor(floor: dict[bool, list[float]], results: Results) -> dict[str, float]:
    """Print the minimum cost of any server, relative to a client that completes one message at a time."""
    client = median(results["normal"]["SDK receive(100) and complete"], client_cpu)
    ratios: dict[str, float] = {}
    for syncs, samples in floor.items():
        cpu = 1e6 * statistics.median(samples[1:])
        action = "syncs twelve bytes and answers" if syncs else "only answers"
        print(f"a server that {action}: {cpu:.0f} µs, {cpu / client:.2f} of the client's CPU to complete")
        name = "bare_sync_and_answer" if syncs else "bare_answer"
        ratios[f"{name}_over_client_cpu"] = round(cpu / client, 3)
    return ratios


def compare(results: Results, before: Results) -> dict[str, float]:
    """Compare this source with that of AGAINST, row by row."""
    table = Table(title=f"compared with {AGAINST}")
    for heading in ("", "durability", "rate", "broker's CPU"):
        table.add_column(heading, justify="left" if heading in ("", "durability") else "right")
    ratios: dict[str, float] = {}
    for row in ROWS:
        for durability in DURABILITIES:
            now, then = results[durability][row], before[durability][row]
            speed = median(now, rate) / median(then, rate)
            cpu = median(now, broker_cpu) / (median(then, broker_cpu) or float("nan"))
            table.add_row(row, durability, f"{speed:.2f}", f"{cpu:.2f}")
            name = identifier(row, durability)
            ratios |= {f"rate_over_before_{name}": round(speed, 3), f"cpu_over_before_{name}": round(cpu, 3)}
    for name in ("rate", "cpu"):
        ratios[f"{name}_over_before"] = round(
            statistics.geometric_mean(value for key, value in ratios.items() if key.startswith(name)), 3
        )
    table.add_row("geometric mean", "", f"{ratios['rate_over_before']:.2f}", f"{ratios['cpu_over_before']:.2f}")
    Console(width=120).print(table)
    return ratios


def source_of(commit: str, folder: Path) -> Path:
    """Extract the source of a commit; return its folder."""
    archive = subprocess.run(["git", "archive", commit, "src"], check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], check=True, input=archive)
    return folder / "src"


def main() -> None:
    frames = transfers(encoded_messages(RAW, SIZE))
    results, before = empty(), empty()
    with tempfile.TemporaryDirectory(prefix="twinbus-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        source = source_of(AGAINST, folder) if AGAINST else None
        servers: list[tuple[Served, Results, str]] = []
        for durability in DURABILITIES:
            now = stack.enter_context(served(durability, folder / "now"))
            servers.append((now, results, durability))
            if source:
                then = stack.enter_context(served(durability, folder / "before", source))
                servers.append((then, before, durability))
        bare = {syncs: stack.enter_context(MinimalServer(folder, syncs)) for syncs in (False, True)}
        floor: dict[bool, list[float]] = {syncs: [] for syncs in bare}
        for number in range(ROUNDS + 1):  # the first round is a warm-up
            servers.reverse()  # the order can make a difference
            for server, into, durability in servers:
                rows = (into if number else empty())[durability]
                raw_round(server, rows, frames)
                sdk_round(server, rows)
            for syncs, minimal in bare.items():
                floor[syncs].append(minimal.cpu_of(BARE))
            print(f"round {number} of {ROUNDS}", file=sys.stderr)
    ratios = report(results) | report_floor(floor, results)
    if AGAINST:
        ratios |= compare(results, before)
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
