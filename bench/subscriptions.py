"""Measures the cost of publishing to many subscriptions: the last part of `make bench-many`."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from bench.raw import RawClient, encoded_messages, transfers
from bench.served import Served

SUBSCRIPTIONS = (1, 10, 100, 1000, 2000)
ROUNDS = 5
#: Messages per publish, the same for every number of subscriptions, because storing together shares the cost.
MESSAGES = 10
#: Approximate number of copies per measurement, and maximum number of publishes for them.
COPIES = 10_000
MAX_PUBLISHES = 50
RULE = "color = 'red' OR sys.Label IS NULL"


def _config() -> str:
    """A topic for medians number of subscriptions; every second subscription has a SQL rule."""
    lines = ['durability = "memory"', "[namespaces.many]", "port = 0"]
    for count in SUBSCRIPTIONS:
        topic = f"namespaces.many.topics.to-{count}"
        lines += [f"[{topic}]", "max_size_in_megabytes = 5120", f"[{topic}.subscriptions]"]
        for number in range(count):
            lines.append(f's{number} = {{ rules = {{ red = "{RULE}" }} }}' if number % 2 else f"s{number} = {{}}")
    return "\n".join(lines)


def _publish(served: Served, topic: str) -> float:
    """CPU seconds of the namespace for one publish."""
    with RawClient(served.connection_string) as client:
        client.attach_sender(topic)
        frames = transfers(encoded_messages(MESSAGES, 1024))
        before = served.cpu()
        client.send(frames, MESSAGES)
        return served.cpu() - before


def fan_out(folder: Path, scale: int) -> dict[str, Any]:
    """CPU microseconds per copy of a published message, by number of subscriptions; half have a SQL rule."""
    samples: dict[int, list[float]] = {count: [] for count in SUBSCRIPTIONS}
    with Served(folder, _config()) as served:
        for _ in range(ROUNDS):
            for count in SUBSCRIPTIONS:
                times = min(MAX_PUBLISHES, max(1, COPIES // scale // count // MESSAGES))
                took = sum(_publish(served, f"to-{count}") for _ in range(times))
                samples[count].append(took / times / MESSAGES / count * 1e6)
    medians = {count: statistics.median(times) for count, times in samples.items()}
    for count, microseconds in medians.items():
        print(f"{count:>5,} subscriptions: {microseconds:6.1f} µs of CPU per copy of a message")
    ratio = medians[1000] / medians[100]
    print(f"cost per copy, 1,000 subscriptions / 100 subscriptions: {ratio:.2f}")
    return {f"copy_us_{count}": medians[count] for count in SUBSCRIPTIONS} | {"copy_1000_over_100": ratio}
