"""Measures the speed of the syphon on Spark: a part of `make bench-pipeline`.

Moves the same backlog each time, in ten queues of one namespace; both namespaces are `twinbus serve` processes.
Compares `twinbus syphon --until-empty` in one process with Spark with 1, 2, 4 and 10 pumps. Both keep a ledger. The
time counts from the first look at the backlog to the end, without the start of Python and Spark.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSender
from bench.syphon import served
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from twinbus.envelope.wrapping import wrap
from twinbus.spark.draining.drain_loop import DrainSettings, SparkDrain
from twinbus.spark.session import running_spark
from twinbus.syphon.connector import Side

QUICK = bool(os.environ.get("QUICK"))
MESSAGES = int(os.environ.get("MESSAGES", "4000" if QUICK else "200000"))
PUMPS = (1, 2, 4, 10)
SIZE = 1024
LIST = 100
DESTINATIONS = ("first", "second")
QUEUES = tuple(f"contoso/x-servicebus-transfer/{index}" for index in range(10))


@dataclass
class Samples:
    """Messages per second: in one process, and by number of pumps on Spark."""

    in_process: float = 0.0
    on_spark: dict[int, float] = field(default_factory=dict)
    #: Start time of Spark in seconds, and slices of each drain.
    start_seconds: float = 0.0
    slices: dict[int, int] = field(default_factory=dict)


class Bench:
    """The two namespaces, with open links to the backlog."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._primary = stack.enter_context(served("contoso", DESTINATIONS, folder))
        self._secondary = stack.enter_context(served("standby", QUEUES, folder))
        client = stack.enter_context(ServiceBusClient.from_connection_string(self._secondary.connection_string))
        self._senders: list[ServiceBusSender] = [
            stack.enter_context(client.get_queue_sender(queue)) for queue in QUEUES
        ]

    def fill(self, count: int) -> None:
        """Put messages into the backlog as senders in failover do."""
        body = b"x" * SIZE
        for start in range(0, count, LIST):
            sender = self._senders[start // LIST % len(QUEUES)]
            batch = sender.create_message_batch()
            for number in range(start, start + LIST):
                message = ServiceBusMessage(body, message_id=f"{number:032x}")
                batch.add_message(wrap(message, DESTINATIONS[number % 2]))
            sender.send_messages(batch)

    def in_process(self) -> float:
        self.fill(MESSAGES)
        command = [sys.executable, "-m", "twinbus", "syphon", "--until-empty", "--json", "--primary-name", "contoso"]
        environment = os.environ | {
            "TWINBUS_PRIMARY": self._primary.connection_string,
            "TWINBUS_SECONDARY": self._secondary.connection_string,
            "TWINBUS_LEDGER": str(self._folder / "ledger"),
        }
        completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=1800)
        result = json.loads(completed.stdout.splitlines()[-1])
        return _rate("the process", result["moved"], result["seconds"])

    def on_spark(self, spark: SparkSession, pumps: int, count: int) -> tuple[float, int]:
        self.fill(count)
        primary, secondary = (
            Side.from_connection_string(server.connection_string) for server in (self._primary, self._secondary)
        )
        settings = DrainSettings(pairing="contoso", pumps=pumps, ledger=str(self._folder / "ledger"))
        report = asyncio.run(SparkDrain(spark, primary, secondary, QUEUES, settings).run())
        if report.drain.total.moved != count:
            raise RuntimeError(f"expected {count} moved messages, got {report.drain.total.moved}")
        return count / report.drain.seconds, report.slices


def _rate(drain: str, moved: int, seconds: float) -> float:
    if moved != MESSAGES:
        raise RuntimeError(f"{drain}: expected {MESSAGES} moved messages, got {moved}")
    return moved / seconds


def measure(folder: Path) -> Samples:
    """Measure one run of each; Spark warms up on a few messages first."""
    folder.mkdir(exist_ok=True)
    samples = Samples()
    with ExitStack() as stack:
        bench = Bench(folder, stack)
        samples.in_process = bench.in_process()
        print(f"in one process: {samples.in_process:,.0f} messages per second", file=sys.stderr)
        started = time.perf_counter()
        with running_spark(slots=max(PUMPS) + 2) as spark:
            samples.start_seconds = time.perf_counter() - started
            bench.on_spark(spark, max(PUMPS), 1_000)
            for pumps in PUMPS:
                samples.on_spark[pumps], samples.slices[pumps] = bench.on_spark(spark, pumps, MESSAGES)
                print(f"Spark, {pumps} pumps: {samples.on_spark[pumps]:,.0f} messages per second", file=sys.stderr)
    return samples


def report(samples: Samples, console: Console) -> dict[str, float]:
    """Print the table; return the ratios."""
    table = Table(
        title=f"moving {MESSAGES:,} messages of {SIZE} bytes from {len(QUEUES)} backlog queues, with a ledger"
    )
    for heading in ("", "messages/s", "/ one process", "slices"):
        table.add_column(heading, justify="left" if not heading else "right")
    table.add_row("twinbus syphon, one process", f"{samples.in_process:,.0f}", "1.00", "")
    for pumps, rate in samples.on_spark.items():
        name = f"twinbus syphon --spark, {pumps} pump{'s' if pumps > 1 else ''}"
        table.add_row(name, f"{rate:,.0f}", f"{rate / samples.in_process:.2f}", str(samples.slices[pumps]))
    console.print(table)
    console.print(f"Spark start: {samples.start_seconds:.1f} s, not included; {os.cpu_count()} cores")
    first = samples.on_spark[PUMPS[0]]
    return {
        **{f"spark_{n}_over_process": round(rate / samples.in_process, 3) for n, rate in samples.on_spark.items()},
        **{f"spark_{n}_over_1": round(rate / first, 3) for n, rate in samples.on_spark.items() if n > 1},
    }


def main() -> None:
    logging.getLogger("twinbus").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="twinbus-bench-") as folder:
        samples = measure(Path(folder))
    print(json.dumps(report(samples, Console(width=120))))


if __name__ == "__main__":
    main()
