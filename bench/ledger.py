"""What the ledger costs a sender, and how fast it is written, read and compacted: `make bench-ledger`.

Sends go through the SDK to a real `twinbus serve` process, in turns with and without a ledger, so that ratios hold even
on a noisy machine. `QUICK=1` does a tenth. The last line is one JSON object.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from bench.served import Served
from rich.console import Console
from rich.table import Table

from twinbus.ledger.compact import compact
from twinbus.ledger.proof import Proof
from twinbus.ledger.reading import read_ledger
from twinbus.ledger.recorder import (
    NamespaceRole,
    NullRecorder,
    Operation,
    OperationKind,
    Outcome,
    Stage,
    send_operation,
)
from twinbus.ledger.rotation import Rotation
from twinbus.ledger.writer import LedgerWriter

QUICK = bool(os.environ.get("QUICK"))
SENDS = 1_000 if QUICK else 10_000
ROWS = 50_000 if QUICK else 500_000
FLUSHES = 20 if QUICK else 100
FLUSH_ROWS = 200
SMALL_FILES = 100 if QUICK else 1_000
SMALL_ROWS = 200
BODY = b"x" * 1024
BUDGET_PERCENT = 2.0
STOP_SECONDS = 60.0
DAY_US = 86_400_000_000
# As on the way of a send: to name a member of an enum takes half a microsecond on Python 3.11.
PRIMARY, SEND, DIRECT, DONE = NamespaceRole.PRIMARY, OperationKind.SEND, Stage.DIRECT, Outcome.DONE


def an_operation(message_id: str, latency_us: int) -> Operation:
    return send_operation(
        "contoso",
        "client-1",
        PRIMARY,
        "orders",
        SEND,
        DIRECT,
        DONE,
        message_id,
        "orders",
        None,
        1,
        1200,
        None,
        latency_us,
    )


def served(folder: Path) -> Served:
    """A process with one queue, which is to be started."""
    return Served(folder, 'durability = "memory"\n[namespaces.bench]\nport = 0\nqueues = ["orders"]\n')


def measure_sends(connection_string: str, ledger: Path) -> dict[str, float]:
    """What a send costs its thread in CPU, recorded or not, in turns: so both meet the same disturbances."""
    spent: dict[bool, list[float]] = {False: [], True: []}
    with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_queue_sender("orders") as sender,
        # Files are written meanwhile, as in a process that sends a lot.
        LedgerWriter(ledger, rotation=Rotation(rows=SENDS // 5)) as writer,
    ):
        for number in range(2 * SENDS):
            message_id, is_recorded = uuid.uuid4().hex, number % 2 == 0
            message = ServiceBusMessage(BODY, message_id=message_id)
            cpu, started = time.thread_time(), time.perf_counter()
            sender.send_messages(message)
            if is_recorded:
                writer.record(an_operation(message_id, int((time.perf_counter() - started) * 1e6)))
            spent[is_recorded].append((time.thread_time() - cpu) * 1e6)
    plain, recorded = statistics.median(spent[False]), statistics.median(spent[True])
    return {"send_us": plain, "difference_us": recorded - plain}


def measure_rows(ledger: Path) -> dict[str, float]:
    """What a row costs: the caller of `record`, and in all with the writer's thread."""
    ids = [uuid.uuid4().hex for _ in range(ROWS)]
    null = NullRecorder()
    started = time.perf_counter()
    for number, message_id in enumerate(ids):
        null.record(an_operation(message_id, number))
    making = time.perf_counter() - started
    with LedgerWriter(ledger, buffer_rows=ROWS + 1, rotation=Rotation(rows=ROWS)) as writer:
        # A third of it stays below what wakes the thread, so that the caller is measured alone.
        part = ROWS // 3
        started = time.perf_counter()
        for number, message_id in enumerate(ids[:part]):
            writer.record(an_operation(message_id, number))
        recording = time.perf_counter() - started
        cpu, started = time.process_time(), time.perf_counter()
        writer.request_flush().result(STOP_SECONDS)
        writing, writing_cpu = time.perf_counter() - started, time.process_time() - cpu
    size = sum(file.stat().st_size for file in ledger.rglob("*.parquet"))
    return {
        "make_us": making / ROWS * 1e6,
        "record_us": recording / part * 1e6,
        "write_cpu_us": writing_cpu / part * 1e6,
        "rows_per_second": part / writing,
        "bytes_per_row": size / part,
    }


def measure_flushes(ledger: Path) -> dict[str, float]:
    """How long proof takes: some rows, one file, fsync."""
    seconds = []
    with LedgerWriter(ledger, rotation=Rotation(flush_seconds=0.0)) as writer:
        proof = Proof(writer)
        for _ in range(FLUSHES):
            for number in range(FLUSH_ROWS):
                proof.record(an_operation(f"m-{number}", number))
            started = time.perf_counter()
            proof.flush()
            seconds.append(time.perf_counter() - started)
    seconds.sort()
    return {"flush_ms": statistics.median(seconds) * 1e3, "flush_p95_ms": seconds[int(0.95 * len(seconds))] * 1e3}


def measure_compaction(ledger: Path) -> dict[str, float]:
    """Small files, read as they are, compacted, and read again."""
    with LedgerWriter(ledger, rotation=Rotation(rows=SMALL_ROWS), buffer_rows=SMALL_FILES * SMALL_ROWS) as writer:
        for number in range(SMALL_FILES * SMALL_ROWS):
            writer.record(an_operation(f"m-{number}", number))
    started = time.perf_counter()
    rows = read_ledger(ledger).table.num_rows
    reading = time.perf_counter() - started
    started = time.perf_counter()
    compact(ledger, now_us=lambda: time.time_ns() // 1000 + 3 * DAY_US)
    compacting = time.perf_counter() - started
    started = time.perf_counter()
    if read_ledger(ledger).table.num_rows != rows:
        raise RuntimeError("the compaction changed the number of rows")
    return {
        "read_small_rows_per_second": rows / reading,
        "compact_rows_per_second": rows / compacting,
        "read_compacted_rows_per_second": rows / (time.perf_counter() - started),
    }


def main() -> None:
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="twinbus-ledger-") as name:
        folder = Path(name)
        with served(folder) as server:
            result |= measure_sends(server.connection_string, folder / "sends")
        result |= measure_rows(folder / "rows")
        result |= measure_flushes(folder / "flushes")
        result |= measure_compaction(folder / "compaction")
    result["sender_percent"] = 100 * result["difference_us"] / result["send_us"]
    result["total_percent"] = 100 * (result["difference_us"] + result["write_cpu_us"]) / result["send_us"]
    table = Table("", "", box=None, pad_edge=False, show_header=False)
    for label, value in (
        ("a send of the SDK, CPU of its thread, median", f"{result['send_us']:.0f} µs"),
        ("the same with its row made and recorded", f"{result['difference_us']:+.1f} µs"),
        ("making a row and recording it, many at once", f"{result['record_us']:.2f} µs"),
        ("  of which making it", f"{result['make_us']:.2f} µs"),
        ("writing a row, CPU of the writer's thread, beside the sends", f"{result['write_cpu_us']:.2f} µs"),
        (f"on the way of the send (aim: below {BUDGET_PERCENT:g} %)", f"{result['sender_percent']:.2f} %"),
        ("in all", f"{result['total_percent']:.2f} %"),
        ("rows written a second", f"{result['rows_per_second']:,.0f}"),
        ("bytes a row in a large file", f"{result['bytes_per_row']:.1f}"),
        (
            f"a flush of {FLUSH_ROWS} rows, median and 95 %",
            f"{result['flush_ms']:.1f} / {result['flush_p95_ms']:.1f} ms",
        ),
        (f"rows read a second, files of {SMALL_ROWS}", f"{result['read_small_rows_per_second']:,.0f}"),
        ("rows compacted a second", f"{result['compact_rows_per_second']:,.0f}"),
        ("rows read a second, compacted", f"{result['read_compacted_rows_per_second']:,.0f}"),
    ):
        table.add_row(label, value)
    Console(highlight=False).print(table)
    print(json.dumps({key: round(value, 2) for key, value in result.items()}))


if __name__ == "__main__":
    main()
