"""Measures memory use and start time with a million messages: `make bench-memory`.

First the messages pass through a queue in parts; then they are stored and the namespace is restarted. The last line is
one JSON object. `QUICK=1` uses a tenth; an argument sets the number of messages.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.raw import RawClient, accepted, encoded_messages, transfers
from bench.served import Served

SIZE = 1024
PART = 20_000
TOTAL = 100_000 if os.environ.get("QUICK") else 1_000_000
REPORTS = 10
QUEUE = "orders"
CONFIG = f"""
durability = "normal"
[namespaces.memory]
port = 0
[namespaces.memory.queues.{QUEUE}]
max_size_in_megabytes = 5120
"""
MEGABYTE = 1 << 20


def send(served: Served, frames: bytes) -> None:
    with RawClient(served.connection_string) as client:
        client.attach_sender(QUEUE)
        client.send(frames, PART)


def receive(served: Served, count: int) -> None:
    with RawClient(served.connection_string) as client:
        client.attach_receiver(QUEUE)
        client.settle(accepted(client.receive(count)), count)


def pass_through(served: Served, frames: bytes, parts: int) -> list[float]:
    """Send and receive part after part; return the memory after the first one and along the way."""
    memory: list[float] = []
    started = time.perf_counter()
    for number in range(1, parts + 1):
        send(served, frames)
        receive(served, PART)
        if number == 1 or number % max(1, parts // REPORTS) == 0:
            memory.append(served.memory())
            seconds = time.perf_counter() - started
            print(f"{number * PART:>9,} through the queue  {seconds:6.1f} s  {memory[-1]:6.1f} MB resident")
    return memory


def store(served: Served, frames: bytes, parts: int) -> list[float]:
    """Send part after part; return the memory before and along the way."""
    memory = [served.memory()]
    started = time.perf_counter()
    for number in range(1, parts + 1):
        send(served, frames)
        if number % max(1, parts // REPORTS) == 0:
            memory.append(served.memory())
            seconds = time.perf_counter() - started
            print(f"{number * PART:>9,} stored             {seconds:6.1f} s  {memory[-1]:6.1f} MB resident")
    return memory


def main() -> None:
    total = int(sys.argv[1]) if len(sys.argv) > 1 else TOTAL
    parts = max(1, total // PART)
    frames = transfers(encoded_messages(PART, SIZE))
    result: dict[str, Any] = {"messages": parts * PART}
    with tempfile.TemporaryDirectory(prefix="twinbus-memory-") as name:
        folder = Path(name)
        served = Served(folder, CONFIG)
        result["open_empty_seconds"] = served.start()
        try:
            through = pass_through(served, frames, parts)
            result |= {"through_first_mb": through[0], "through_last_mb": through[-1], "through_most_mb": max(through)}
            stored = store(served, frames, parts)
            result |= {"stored_before_mb": stored[0], "stored_last_mb": stored[-1], "stored_most_mb": max(stored)}
            served.stop()
            size = sum(file.stat().st_size for file in served.data.rglob("*") if file.is_file())
            result["database_mb"] = size / MEGABYTE
            result["open_full_seconds"] = served.start()
            result["open_full_mb"] = served.memory()
            started = time.perf_counter()
            receive(served, PART)
            result["first_part_seconds"] = time.perf_counter() - started
            result["first_part_mb"] = served.memory()
        finally:
            served.stop()
    print(
        f"{result['messages']:,} stored: {result['database_mb']:.0f} MB on disk, opened in"
        f" {result['open_full_seconds']:.2f} s (empty: {result['open_empty_seconds']:.2f} s) with"
        f" {result['open_full_mb']:.1f} MB resident; the first {PART:,} received in"
        f" {result['first_part_seconds']:.1f} s, then {result['first_part_mb']:.1f} MB"
    )
    print(json.dumps({key: round(value, 2) for key, value in result.items()}))


if __name__ == "__main__":
    main()
