"""An asynchronous client belongs to the event loop on which it was first used."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusMessage

from twinbus import Route, SendAvailabilityOptions
from twinbus.aio import PairedServiceBusClient
from twinbus.testing import TwinNamespaces, twin_namespaces

OPTIONS = SendAvailabilityOptions(backlog_queue_count=1, failover_interval=0)


@pytest.fixture
def twins() -> Iterator[TwinNamespaces]:
    with twin_namespaces() as made:
        made.primary.create_queue("orders")
        yield made


def test_sender_and_client_are_refused_on_a_second_event_loop(twins: TwinNamespaces) -> None:
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    try:
        client = PairedServiceBusClient(twins.primary.connection_string, twins.secondary.connection_string, OPTIONS)
        sender = client.get_queue_sender("orders")
        message = ServiceBusMessage("1")
        assert first.run_until_complete(sender.send_messages(message)).route is Route.PRIMARY
        calls = [
            lambda: sender.send_messages(message),
            lambda: sender.send_messages(message, timeout=5),
            lambda: sender.create_message_batch(),
            lambda: sender.close(),
            lambda: client.get_queue_sender("orders").send_messages(message),
            client.start,
            client.close,
        ]
        for call in calls:
            with pytest.raises(RuntimeError, match=r"^The client was used on another event loop before"):
                second.run_until_complete(call())
        # Nothing was tried, and the client is as good as before on its own loop.
        assert not client.status().entities[0].error
        sender = client.get_queue_sender("orders")
        assert first.run_until_complete(sender.send_messages(message)).attempts == 1
        assert twins.primary.message_count("orders") == 2
        first.run_until_complete(client.close())
    finally:
        first.close()
        second.close()


def test_client_can_be_created_before_its_event_loop(twins: TwinNamespaces) -> None:
    client = PairedServiceBusClient(twins.primary.connection_string, twins.secondary.connection_string, OPTIONS)
    sender = client.get_queue_sender("orders")

    async def send() -> Route:
        async with client, sender:
            return (await sender.send_messages(ServiceBusMessage("1"))).route

    assert asyncio.run(send()) is Route.PRIMARY
