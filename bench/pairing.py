"""Measures the sender's overhead, a shared sender, failover time and the syphon's speed: `make bench-pairing`.

Compares our sender with the SDK's in interleaved pairs of short blocks, in one run against one `twinbus serve` process.
A ratio is given with the 95 % interval of the medians of resampled pairs. `QUICK=1` does a tenth. The last line is one
JSON object of the ratios.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from bench import shared_sender, syphon
from bench.served import Served
from rich.console import Console
from rich.table import Table

from twinbus.emulator import Fault, FaultKind, Namespace, NamespaceThread, QueueDescription
from twinbus.pairing import namespace as namespaces
from twinbus.pairing.failover.entity_failover import Route
from twinbus.pairing.options import SendAvailabilityOptions
from twinbus.pairing.pairing_state import Pairing
from twinbus.pairing.sending._async.sender import PairedSender as AsyncPairedSender
from twinbus.pairing.sending._sync.sender import PairedSender

QUICK = bool(os.environ.get("QUICK"))
PAIRS = 40 if QUICK else 400
BODY = b"x" * 1024
BLOCK = 25  # messages sent one by one per block
LIST = 100  # messages in a list or batch
ATTEMPT_TIMEOUT = 2.0
OUTAGES = 1 if QUICK else 5
BACKLOG = "contoso/x-servicebus-transfer/0"

Block = Callable[[], None]


class Figure(NamedTuple):
    """A ratio of our sender to the SDK's, with its interval."""

    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.ratio:.3f}  ({self.low:.3f} to {self.high:.3f})"


def served(folder: Path) -> Served:
    """A server process with a primary and a secondary, not started yet."""
    return Served(
        folder,
        'durability = "memory"\n'
        '[namespaces.contoso]\nport = 0\nqueues = ["sdk", "paired", "diverted"]\n'
        f'[namespaces.standby]\nport = 0\nqueues = ["sdk", "{BACKLOG}"]\n',
    )


# ---- healthy, and after failover ----


def singles(send: Callable[[Any], Any]) -> Block:
    def block() -> None:
        for _ in range(BLOCK):
            send(ServiceBusMessage(BODY))

    return block


def lists(send: Callable[[Any], Any]) -> Block:
    def block() -> None:
        send([ServiceBusMessage(BODY) for _ in range(LIST)])

    return block


def batches(sender: Any) -> Block:
    def block() -> None:
        batch = sender.create_message_batch()
        for _ in range(LIST):
            batch.add_message(ServiceBusMessage(BODY))
        sender.send_messages(batch)

    return block


def async_singles(runner: asyncio.Runner, sender: Any) -> Block:
    async def block() -> None:
        for _ in range(BLOCK):
            await sender.send_messages(ServiceBusMessage(BODY))

    return lambda: runner.run(block())


def async_lists(runner: asyncio.Runner, sender: Any) -> Block:
    async def block() -> None:
        await sender.send_messages([ServiceBusMessage(BODY) for _ in range(LIST)])

    return lambda: runner.run(block())


def async_batches(runner: asyncio.Runner, sender: Any) -> Block:
    async def block() -> None:
        batch = await sender.create_message_batch()
        for _ in range(LIST):
            batch.add_message(ServiceBusMessage(BODY))
        await sender.send_messages(batch)

    return lambda: runner.run(block())


def timed(block: Block) -> tuple[float, float]:
    cpu, start = time.process_time(), time.perf_counter()
    block()
    return time.perf_counter() - start, time.process_time() - cpu


def figure(ratios: list[float]) -> Figure:
    rng = random.Random(1)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(1000))
    return Figure(statistics.median(ratios), medians[25], medians[974])


def compare(sdk: Block, ours: Block) -> tuple[Figure, Figure]:
    """The ratios of our rate and of our CPU time to the SDK's."""
    rates, cpus = [], []
    for number in range(PAIRS + 1):
        first, second = (sdk, ours) if number % 2 else (ours, sdk)
        results = {first: timed(first), second: timed(second)}
        if number:  # the first pair only opens the links
            rates.append(results[sdk][0] / results[ours][0])
            cpus.append(results[ours][1] / results[sdk][1])
    return figure(rates), figure(cpus)


def sync_client(connection_string: str) -> ServiceBusClient:
    """A client as a paired client creates it for its senders: without SDK retries."""
    return namespaces.Namespace.from_connection_string(connection_string).sync_client(retry_total=0)


def async_client(connection_string: str) -> AsyncServiceBusClient:
    """The asynchronous variant of `sync_client`."""
    return namespaces.Namespace.from_connection_string(connection_string).async_client(retry_total=0)


def new_pairing(**options: Any) -> Pairing:
    return Pairing(SendAvailabilityOptions(backlog_queue_count=1, **options), "contoso")


def compare_all(strings: dict[str, str]) -> dict[str, tuple[Figure, Figure]]:
    """Measure rate and CPU for every row of the table."""
    results = {}
    with ExitStack() as stack:
        clients = {name: stack.enter_context(sync_client(text)) for name, text in strings.items()}
        healthy, over = new_pairing(), new_pairing()
        over.fail_over("diverted")
        sdk = stack.enter_context(clients["contoso"].get_queue_sender("sdk"))
        standby = stack.enter_context(clients["standby"].get_queue_sender("sdk"))
        ours = stack.enter_context(PairedSender(healthy, "paired", clients["contoso"], clients["standby"]))
        diverted = stack.enter_context(PairedSender(over, "diverted", clients["contoso"], clients["standby"]))
        rows: dict[str, tuple[Block, Block]] = {
            "sync, one by one": (singles(sdk.send_messages), singles(ours.send_messages)),
            "sync, lists of 100": (lists(sdk.send_messages), lists(ours.send_messages)),
            "sync, batches of 100": (batches(sdk), batches(ours)),
            "sync, diverted, one by one": (singles(standby.send_messages), singles(diverted.send_messages)),
            "sync, diverted, lists of 100": (lists(standby.send_messages), lists(diverted.send_messages)),
        }
        for name, (sdk_block, our_block) in rows.items():
            results[name] = compare(sdk_block, our_block)
            print(name, *results[name], sep="  ", file=sys.stderr)
    with asyncio.Runner() as runner:
        results |= compare_async(runner, strings)
    return results


def compare_async(runner: asyncio.Runner, strings: dict[str, str]) -> dict[str, tuple[Figure, Figure]]:
    healthy, over = new_pairing(), new_pairing()
    over.fail_over("diverted")

    async def open_all() -> tuple[list[Any], list[Any]]:
        clients = {name: async_client(text) for name, text in strings.items()}
        senders = [
            clients["contoso"].get_queue_sender("sdk"),
            clients["standby"].get_queue_sender("sdk"),
            AsyncPairedSender(healthy, "paired", clients["contoso"], clients["standby"]),
            AsyncPairedSender(over, "diverted", clients["contoso"], clients["standby"]),
        ]
        return list(clients.values()), senders

    async def close_all() -> None:
        for closable in (*senders, *clients):
            await closable.close()

    clients, senders = runner.run(open_all())
    sdk, standby, ours, diverted = senders
    rows = {
        "aio, one by one": (async_singles(runner, sdk), async_singles(runner, ours)),
        "aio, lists of 100": (async_lists(runner, sdk), async_lists(runner, ours)),
        "aio, batches of 100": (async_batches(runner, sdk), async_batches(runner, ours)),
        "aio, diverted, one by one": (async_singles(runner, standby), async_singles(runner, diverted)),
    }
    results = {}
    for name, (sdk_block, our_block) in rows.items():
        results[name] = compare(sdk_block, our_block)
        print(name, *results[name], sep="  ", file=sys.stderr)
    runner.run(close_all())
    return results


# ---- outages ----


class NamespacePair:
    """Two namespaces in this process, and faults in the primary."""

    def __init__(self, primary: NamespaceThread, standby: NamespaceThread) -> None:
        self.primary = primary
        self.standby = standby

    @classmethod
    @contextmanager
    def set_up(cls) -> Iterator[NamespacePair]:
        with (
            NamespaceThread(lambda: Namespace("contoso")) as primary,
            NamespaceThread(lambda: Namespace("standby")) as standby,
        ):
            primary.run(primary.namespace.create(QueueDescription("orders")))
            standby.run(standby.namespace.create(QueueDescription(BACKLOG)))
            yield cls(primary, standby)

    @contextmanager
    def outage(self, kind: FaultKind) -> Iterator[None]:
        faults = self.primary.namespace.faults
        self.primary.call(faults.add, Fault(kind))
        if kind is FaultKind.REFUSE:  # a namespace that is down also loses its connections
            self.primary.call(faults.add, Fault(FaultKind.RESET))
        try:
            yield
        finally:
            self.primary.call(faults.clear)

    def stored(self) -> int:
        return self.standby.call(lambda: self.standby.namespace.find(BACKLOG).queue.activity.received)  # type: ignore[union-attr]


def fresh_pairing() -> Pairing:
    return new_pairing(failover_interval=0, attempt_timeout=ATTEMPT_TIMEOUT)


def sync_outage(pair: NamespacePair, kind: FaultKind, warm: bool) -> float:
    """Seconds from a call during an outage until the message is in the backlog."""
    with (
        sync_client(pair.primary.connection_string) as primary,
        sync_client(pair.standby.connection_string) as standby,
        PairedSender(fresh_pairing(), "orders", primary, standby) as sender,
    ):
        if warm:
            sender.send_messages(ServiceBusMessage(BODY))
            sender.open_standby()
        before = pair.stored()
        with pair.outage(kind):
            start = time.perf_counter()
            receipt = sender.send_messages(ServiceBusMessage(BODY))
            seconds = time.perf_counter() - start
        assert (receipt.route, pair.stored()) == (Route.BACKLOG, before + 1)
    return seconds


async def async_outage(pair: NamespacePair, kind: FaultKind, warm: bool) -> float:
    async with (
        async_client(pair.primary.connection_string) as primary,
        async_client(pair.standby.connection_string) as standby,
        AsyncPairedSender(fresh_pairing(), "orders", primary, standby) as sender,
    ):
        if warm:
            await sender.send_messages(ServiceBusMessage(BODY))
            await sender.open_standby()
        before = pair.stored()
        with pair.outage(kind):
            start = time.perf_counter()
            receipt = await sender.send_messages(ServiceBusMessage(BODY))
            seconds = time.perf_counter() - start
        assert (receipt.route, pair.stored()) == (Route.BACKLOG, before + 1)
    return seconds


def outages() -> dict[str, tuple[float, float]]:
    """For each kind of outage, the longest time until the first message was diverted, and its bound."""
    results = {}
    with NamespacePair.set_up() as pair:
        for kind, name in ((FaultKind.REFUSE, "refused"), (FaultKind.BLACKHOLE, "black hole")):
            for warm in (False, True):
                refused_bound = 1.0 if warm else 1.5
                bound = refused_bound if kind is FaultKind.REFUSE else ATTEMPT_TIMEOUT + 1
                how = "warm" if warm else "cold"
                results[f"sync, {name}, {how}"] = (
                    max(sync_outage(pair, kind, warm) for _ in range(OUTAGES)),
                    bound,
                )
                results[f"aio, {name}, {how}"] = (
                    max(asyncio.run(async_outage(pair, kind, warm)) for _ in range(OUTAGES)),
                    bound,
                )
    return results


# ---- the report ----


def report(
    rates: dict[str, tuple[Figure, Figure]], times: dict[str, tuple[float, float]], console: Console
) -> dict[str, float]:
    table = Table(title=f"our sender / SDK sender, {len(BODY)} byte messages, {PAIRS} interleaved pairs")
    for heading in ("", "rate (95 % interval)", "CPU (95 % interval)"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, (rate, cpu) in rates.items():
        table.add_row(name, str(rate), str(cpu))
    console.print(table)
    table = Table(title=f"time from the call to the first diverted message, maximum of {OUTAGES}")
    for heading in ("", "seconds", "bound"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, (seconds, bound) in times.items():
        table.add_row(name, f"{seconds:.2f}", f"{bound:.2f}")
    console.print(table)
    ratios = {f"rate_{key(name)}": round(rate.ratio, 3) for name, (rate, _) in rates.items()}
    ratios |= {f"cpu_{key(name)}": round(cpu.ratio, 3) for name, (_, cpu) in rates.items()}
    return ratios | {f"bound_{key(name)}": round(seconds / bound, 3) for name, (seconds, bound) in times.items()}


def key(name: str) -> str:
    return name.replace(",", "").replace(" ", "_")


def main() -> None:
    logging.getLogger("twinbus").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="twinbus-bench-") as folder:
        with served(Path(folder)) as server:
            strings = server.connection_strings
            rates = compare_all(strings)
        shared = shared_sender.measure(Path(folder) / "shared")
        moved = syphon.measure(Path(folder) / "syphon")
    console = Console(width=120)
    figures = report(rates, outages(), console)
    figures |= shared_sender.report(shared, console)
    print(json.dumps(figures | syphon.report(moved, console)))


if __name__ == "__main__":
    main()
