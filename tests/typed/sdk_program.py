"""A typed program for the SDK, in which only the clients are ours. `test_typed_programs.py` runs mypy on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

from azure.core.credentials import TokenCredential
from azure.servicebus import (
    AutoLockRenewer,
    ServiceBusMessage,
    ServiceBusMessageBatch,
    ServiceBusReceiver,
    ServiceBusSender,
    aio,
)
from azure.servicebus import ServiceBusClient as SdkClient

from twinbus import PairedSender, PairedServiceBusClient, Receipt, Route, SendAvailabilityOptions
from twinbus import PairedServiceBusClient as ServiceBusClient
from twinbus.aio import PairedServiceBusClient as AsyncServiceBusClient


def send(sender: ServiceBusSender, messages: list[ServiceBusMessage]) -> list[int]:
    batch: ServiceBusMessageBatch = sender.create_message_batch()
    for message in messages:
        batch.add_message(message)
    sender.send_messages(batch, timeout=5)
    return sender.schedule_messages(messages, datetime.now(UTC))


def receive(receiver: ServiceBusReceiver) -> int:
    for message in receiver:
        receiver.complete_message(message)
    return len(receiver.receive_messages(max_message_count=10))


def use(client: SdkClient) -> None:
    with client, client.get_queue_sender("orders") as sender, client.get_queue_receiver("orders") as receiver:
        send(sender, [ServiceBusMessage("x")])
        receive(receiver)


def as_sdk_types(text: str, credential: TokenCredential) -> None:
    use(ServiceBusClient.from_connection_string(text, logging_enable=True))
    use(ServiceBusClient.from_connection_string(conn_str=text, retry_total=5, retry_mode="fixed"))
    use(ServiceBusClient("contoso.servicebus.windows.net", credential, retry_total=5))
    use(ServiceBusClient(fully_qualified_namespace="contoso", credential=credential, secondary="standby"))
    make: Callable[..., SdkClient] = ServiceBusClient
    use(make(text))
    with ServiceBusClient.from_connection_string(text) as client:
        renewer = AutoLockRenewer()
        receiver = client.get_subscription_receiver("news", "all", auto_lock_renewer=renewer, max_wait_time=5)
        receive(receiver)
        sender: ServiceBusSender = client.get_topic_sender(topic_name="news")
        ignore: Callable[[ServiceBusMessage], None] = sender.send_messages
        ignore(ServiceBusMessage("x"))


def as_our_types(primary: str, secondary: str) -> Receipt:
    options = SendAvailabilityOptions(enable_syphon=True)
    with PairedServiceBusClient(primary, secondary, options, name="shop") as client:
        sender: PairedSender = client.get_queue_sender("orders")
        receipt = sender.send_messages([{"body": "x"}])
        if receipt.route is Route.BACKLOG:
            print(receipt.queue)
        return receipt


async def use_async(client: aio.ServiceBusClient) -> None:
    async with client, client.get_queue_sender("orders") as sender:
        await use_async_sender(sender)
        async for message in client.get_queue_receiver("orders"):
            print(message)


async def use_async_sender(sender: aio.ServiceBusSender) -> None:
    task: asyncio.Task[None] = asyncio.create_task(sender.send_messages(ServiceBusMessage("x")))
    await task


async def main(text: str) -> Receipt:
    await use_async(AsyncServiceBusClient.from_connection_string(text))
    async with AsyncServiceBusClient(text, text) as client, client.get_topic_sender("news") as sender:
        return await sender.send_messages(ServiceBusMessage("x"))
