"""What a publish costs with many subscriptions: `make bench-many` ends with it."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from bench.raw import RawClient, encoded_messages, transfers
from bench.served import Served

SUBSCRIPTIONS = (1, 10, 100, 1000, 2000)
ROUNDS = 5
#: Published together, whatever the number of subscriptions: what is stored together has its share of the cost.
MESSAGES = 10
#: Copies that are made in one measurement, about, and how often messages are published for them at most.
COPIES = 10_000
MOST_TIMES = 50
RULE = "color = 'red' OR sys.Label IS NULL"


def _config() -> str:
    """A topic for each number of subscriptions, every other one of them with a SQL rule."""
    lines = ['durability = "memory"', "[namespaces.many]", "port = 0"]
    for count in SUBSCRIPTIONS:
        topic = f"namespaces.many.topics.to-{count}"
        lines += [f"[{topic}]", "max_size_in_megabytes = 5120", f"[{topic}.subscriptions]"]
        for number in range(count):
            lines.append(f's{number} = {{ rules = {{ red = "{RULE}" }} }}' if number % 2 else f"s{number} = {{}}")
    return "\n".join(lines)


def _publish(served: Served, topic: str) -> float:
    """Seconds of CPU that the namespace took for some messages."""
    with RawClient(served.connection_string) as client:
        client.attach_sender(topic)
        frames = transfers(encoded_messages(MESSAGES, 1024))
        before = served.cpu()
        client.send(frames, MESSAGES)
        return served.cpu() - before


def fan_out(folder: Path, scale: int) -> dict[str, Any]:
    """CPU microseconds for each copy of a published message, by the number of subscriptions; half have a SQL rule."""
    found: dict[int, list[float]] = {count: [] for count in SUBSCRIPTIONS}
    with Served(folder, _config()) as served:
        for _ in range(ROUNDS):
            for count in SUBSCRIPTIONS:
                times = min(MOST_TIMES, max(1, COPIES // scale // count // MESSAGES))
                took = sum(_publish(served, f"to-{count}") for _ in range(times))
                found[count].append(took / times / MESSAGES / count * 1e6)
    each = {count: statistics.median(times) for count, times in found.items()}
    for count, microseconds in each.items():
        print(f"{count:>5,} subscriptions: {microseconds:6.1f} µs of CPU for each copy of a message")
    ratio = each[1000] / each[100]
    print(f"a copy to one of 1,000 over one to one of 100: {ratio:.2f}")
    return {f"copy_us_{count}": each[count] for count in SUBSCRIPTIONS} | {"copy_1000_over_100": ratio}
