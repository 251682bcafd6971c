"""Measures the ledger's cost for a sender and its read, write and compaction speed: `make bench-ledger`.

Sends go through the SDK to a real `twinbus serve` process, alternately with and without a ledger, so that ratios hold
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

from twinbus.ledger.compaction import compact
from twinbus.ledger.durable_rows import Proof
from twinbus.ledger.file_rotation import Rotation
from twinbus.ledger.ledger_reader import read_ledger
from twinbus.ledger.recorder import (
    NamespaceRole,
    NullRecorder,
    Operation,
    OperationKind,
    Outcome,
    Stage,
    send_operation,
)
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
# Constants as on the send path: access to an enum member takes half a microsecond on Python 3.11.
PRIMARY, SEND, DIRECT, DONE = NamespaceRole.PRIMARY, OperationKind.SEND, Stage.DIRECT, Outcome.DONE


def make_operation(message_id: str, latency_us: int) -> Operation:
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
    """A server process with one queue, not started yet."""
    return Served(folder, 'durability = "memory"\n[namespaces.bench]\nport = 0\nqueues = ["orders"]\n')


def measure_sends(connection_string: str, ledger: Path) -> dict[str, float]:
    """CPU time of a send with and without recording, alternately, so that noise affects both."""
    spent: dict[bool, list[float]] = {False: [], True: []}
    with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_queue_sender("orders") as sender,
        # Small files, so that they are written meanwhile, as in a busy process.
        LedgerWriter(ledger, rotation=Rotation(rows=SENDS // 5)) as writer,
    ):
        for number in range(2 * SENDS):
            message_id, is_recorded = uuid.uuid4().hex, number % 2 == 0
            message = ServiceBusMessage(BODY, message_id=message_id)
            cpu, started = time.thread_time(), time.perf_counter()
            sender.send_messages(message)
            if is_recorded:
                writer.record(make_operation(message_id, int((time.perf_counter() - started) * 1e6)))
            spent[is_recorded].append((time.thread_time() - cpu) * 1e6)
    plain, recorded = statistics.median(spent[False]), statistics.median(spent[True])
    return {"send_us": plain, "difference_us": recorded - plain}


def measure_rows(ledger: Path) -> dict[str, float]:
    """Cost of a row: for the caller of `record`, and in the writer's thread."""
    ids = [uuid.uuid4().hex for _ in range(ROWS)]
    null = NullRecorder()
    started = time.perf_counter()
    for number, message_id in enumerate(ids):
        null.record(make_operation(message_id, number))
    making = time.perf_counter() - started
    with LedgerWriter(ledger, buffer_rows=ROWS + 1, rotation=Rotation(rows=ROWS)) as writer:
        # A third of the buffer does not wake the writer's thread, so that only the caller is measured.
        part = ROWS // 3
        started = time.perf_counter()
        for number, message_id in enumerate(ids[:part]):
            writer.record(make_operation(message_id, number))
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
    """Time of a durable flush: some rows, one file, fsync."""
    seconds = []
    with LedgerWriter(ledger, rotation=Rotation(flush_seconds=0.0)) as writer:
        proof = Proof(writer)
        for _ in range(FLUSHES):
            for number in range(FLUSH_ROWS):
                proof.record(make_operation(f"m-{number}", number))
            started = time.perf_counter()
            proof.flush()
            seconds.append(time.perf_counter() - started)
    seconds.sort()
    return {"flush_ms": statistics.median(seconds) * 1e3, "flush_p95_ms": seconds[int(0.95 * len(seconds))] * 1e3}


def measure_compaction(ledger: Path) -> dict[str, float]:
    """Read small files, compact them, and read the result."""
    with LedgerWriter(ledger, rotation=Rotation(rows=SMALL_ROWS), buffer_rows=SMALL_FILES * SMALL_ROWS) as writer:
        for number in range(SMALL_FILES * SMALL_ROWS):
            writer.record(make_operation(f"m-{number}", number))
    started = time.perf_counter()
    rows = read_ledger(ledger).table.num_rows
    reading = time.perf_counter() - started
    started = time.perf_counter()
    compact(ledger, now_us=lambda: time.time_ns() // 1000 + 3 * DAY_US)
    compacting = time.perf_counter() - started
    started = time.perf_counter()
    if read_ledger(ledger).table.num_rows != rows:
        raise RuntimeError("compaction changed the number of rows")
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
        ("SDK send, CPU of its thread, median", f"{result['send_us']:.0f} µs"),
        ("additional CPU with a recorded row", f"{result['difference_us']:+.1f} µs"),
        ("creating and recording a row, in bulk", f"{result['record_us']:.2f} µs"),
        ("  of which creating it", f"{result['make_us']:.2f} µs"),
        ("writing a row, CPU of the writer's thread", f"{result['write_cpu_us']:.2f} µs"),
        (f"overhead in the sending thread (aim: below {BUDGET_PERCENT:g} %)", f"{result['sender_percent']:.2f} %"),
        ("overhead in total", f"{result['total_percent']:.2f} %"),
        ("rows written per second", f"{result['rows_per_second']:,.0f}"),
        ("bytes per row in a large file", f"{result['bytes_per_row']:.1f}"),
        (
            f"flush of {FLUSH_ROWS} rows, median and 95 %",
            f"{result['flush_ms']:.1f} / {result['flush_p95_ms']:.1f} ms",
        ),
        (f"rows read per second, files of {SMALL_ROWS} rows", f"{result['read_small_rows_per_second']:,.0f}"),
        ("rows compacted per second", f"{result['compact_rows_per_second']:,.0f}"),
        ("rows read per second, compacted", f"{result['read_compacted_rows_per_second']:,.0f}"),
    ):
        table.add_row(label, value)
    Console(highlight=False).print(table)
    print(json.dumps({key: round(value, 2) for key, value in result.items()}))


if __name__ == "__main__":
    main()
