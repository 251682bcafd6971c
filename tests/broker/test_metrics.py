"""`GET /metrics`: what Prometheus would read."""

from __future__ import annotations

import re
from urllib.request import urlopen

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from twinbus.broker import Namespace, NamespaceConfig, QueueDescription, SubscriptionDescription, TopicDescription
from twinbus.broker.background import NamespaceThread
from twinbus.broker.config import QueueConfig, TopicConfig

LINE = re.compile(r'(?P<name>[a-z_]+)\{(?P<labels>[a-z_]+="[^"\\]*"(?:,[a-z_]+="[^"\\]*")*)\} (?P<value>[0-9.]+)')


def samples(port: int) -> dict[str, float]:
    """Every series by its name and labels; each line must be in the format."""
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        lines = answer.read().decode().splitlines()
    found, families = {}, set()
    for line in lines:
        if line.startswith("# "):
            families.add(line.split()[2])
            continue
        match = LINE.fullmatch(line)
        assert match, line
        assert match["name"] in families
        key = f"{match['name']}{{{match['labels']}}}"
        assert key not in found
        found[key] = float(match["value"])
    return found


def test_what_was_sent_and_completed_is_in_the_metrics() -> None:
    topic = TopicConfig(TopicDescription("events"), (SubscriptionDescription("events", "all"),))
    config = NamespaceConfig("contoso", port=0, queues=(QueueConfig(QueueDescription("orders")),), topics=(topic,))
    with (
        NamespaceThread(lambda: Namespace(config)) as thread,
        ServiceBusClient.from_connection_string(thread.connection_string) as client,
        client.get_queue_sender("orders") as sender,
        client.get_queue_receiver("orders") as receiver,
    ):
        sender.send_messages([ServiceBusMessage(str(number)) for number in range(3)])
        [completed], [dead] = (receiver.receive_messages(1, max_wait_time=5) for _ in range(2))
        receiver.complete_message(completed)
        receiver.dead_letter_message(dead)
        found = samples(thread.namespace.port)
    of = 'namespace="contoso",entity="orders"'
    assert found[f"twinbus_received_total{{{of}}}"] == 3
    assert found[f"twinbus_delivered_total{{{of}}}"] >= 2
    assert found[f"twinbus_completed_total{{{of}}}"] == 1
    assert found[f'twinbus_messages{{{of},state="active"}}'] == 1
    assert found[f'twinbus_messages{{{of},state="dead_letter"}}'] == 1
    assert found[f"twinbus_size_bytes{{{of}}}"] > 0
    assert found['twinbus_connections{namespace="contoso"}'] == 2
    assert found['twinbus_messages{namespace="contoso",entity="events/Subscriptions/all",state="active"}'] == 0
