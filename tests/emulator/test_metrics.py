"""`GET /metrics` in the Prometheus text format."""

from __future__ import annotations

import re
from urllib.request import urlopen

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from twinbus.emulator import Namespace, NamespaceConfig, QueueDescription, SubscriptionDescription, TopicDescription
from twinbus.emulator.config.namespace_file import QueueConfig, TopicConfig
from twinbus.emulator.server.thread_host import NamespaceThread

LINE = re.compile(r'(?P<name>[a-z_]+)\{(?P<labels>[a-z_]+="[^"\\]*"(?:,[a-z_]+="[^"\\]*")*)\} (?P<value>[0-9.]+)')


def samples(port: int) -> dict[str, float]:
    """Every sample by name and labels; asserts that each line has the right format."""
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        lines = answer.read().decode().splitlines()
    values, families = {}, set()
    for line in lines:
        if line.startswith("# "):
            families.add(line.split()[2])
            continue
        match = LINE.fullmatch(line)
        assert match, line
        assert match["name"] in families
        key = f"{match['name']}{{{match['labels']}}}"
        assert key not in values
        values[key] = float(match["value"])
    return values


def test_metrics_count_sent_and_completed_messages() -> None:
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
        values = samples(thread.namespace.port)
    labels = 'namespace="contoso",entity="orders"'
    assert values[f"twinbus_received_total{{{labels}}}"] == 3
    assert values[f"twinbus_delivered_total{{{labels}}}"] >= 2
    assert values[f"twinbus_completed_total{{{labels}}}"] == 1
    assert values[f'twinbus_messages{{{labels},state="active"}}'] == 1
    assert values[f'twinbus_messages{{{labels},state="dead_letter"}}'] == 1
    assert values[f"twinbus_size_bytes{{{labels}}}"] > 0
    assert values['twinbus_connections{namespace="contoso"}'] == 2
    assert values['twinbus_messages{namespace="contoso",entity="events/Subscriptions/all",state="active"}'] == 0
