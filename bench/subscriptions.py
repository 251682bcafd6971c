"""What a publish costs with many subscriptions: `make bench-many` ends with it."""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import replace
from typing import Any

from bench.raw import RawClient, encoded_messages, transfers

from twinbus.broker import SubscriptionDescription, TopicDescription
from twinbus.broker.background import NamespaceThread
from twinbus.broker.namespace import Namespace
from twinbus.broker.rules.descriptions import FilterKind, RuleDescription, Sql

SUBSCRIPTIONS = (1, 10, 100, 1000, 2000)
ROUNDS = 5
#: Published together, whatever the number of subscriptions: what is stored together has its share of the cost.
MESSAGES = 10
#: Copies that are made in one measurement, about, and how often messages are published for them at most.
COPIES = 10_000
MOST_TIMES = 50
RULE = RuleDescription("red", Sql("color = 'red' OR sys.Label IS NULL"), FilterKind.SQL, None, 0.0)


async def _create(namespace: Namespace) -> None:
    for count in SUBSCRIPTIONS:
        await namespace.create(TopicDescription(f"to-{count}", max_size_in_megabytes=5120))
        for number in range(count):
            subscription = SubscriptionDescription(f"to-{count}", f"s{number}")
            await namespace.create_subscription(replace(subscription, rules=(RULE,)) if number % 2 else subscription)


def _publish(connection_string: str, topic: str) -> float:
    """Seconds of CPU that it took to publish messages."""
    with RawClient(connection_string) as client:
        client.attach_sender(topic)
        frames = transfers(encoded_messages(MESSAGES, 1024))
        started = time.process_time()
        client.send(frames, MESSAGES)
        return time.process_time() - started


def fan_out(scale: int) -> dict[str, Any]:
    """CPU microseconds for each copy of a published message, by the number of subscriptions; half have a SQL rule."""
    found: dict[int, list[float]] = {count: [] for count in SUBSCRIPTIONS}
    with NamespaceThread(lambda: Namespace("many")) as served:
        served.run(asyncio.wait_for(_create(served.namespace), 100))
        for _ in range(ROUNDS):
            for count in SUBSCRIPTIONS:
                times = min(MOST_TIMES, max(1, COPIES // scale // count // MESSAGES))
                took = sum(_publish(served.connection_string, f"to-{count}") for _ in range(times))
                found[count].append(took / times / MESSAGES / count * 1e6)
    each = {count: statistics.median(times) for count, times in found.items()}
    for count, microseconds in each.items():
        print(f"{count:>5,} subscriptions: {microseconds:6.1f} µs of CPU for each copy of a message")
    ratio = each[1000] / each[100]
    print(f"a copy to one of 1,000 over one to one of 100: {ratio:.2f}")
    return {f"copy_us_{count}": each[count] for count in SUBSCRIPTIONS} | {"copy_1000_over_100": ratio}
