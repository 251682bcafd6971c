"""Passes options, closes by hand, and finds out what was closed."""

import asyncio
import os

from azure.servicebus import ServiceBusMessage, TransportType
from azure.servicebus.aio import ServiceBusClient


async def main():
    client = ServiceBusClient.from_connection_string(
        os.environ["SERVICEBUS_CONNECTION_STR"],
        retry_total=5,
        retry_backoff_factor=0.1,
        retry_backoff_max=2,
        retry_mode="fixed",
        transport_type=TransportType.Amqp,
        http_proxy=None,
        user_agent="shop",
        custom_endpoint_address=None,
        connection_verify=None,
        uamqp_transport=False,
    )
    sender = client.get_queue_sender(os.environ["SERVICEBUS_QUEUE_NAME"], client_identifier="shop-1", socket_timeout=5)
    try:
        await sender.send_messages(ServiceBusMessage("by hand"), timeout=20)
        print(sender.entity_name == os.environ["SERVICEBUS_QUEUE_NAME"], sender.client_identifier)
        print(client.fully_qualified_namespace == sender.fully_qualified_namespace)
        await sender.send_messages([])
        for wrong in ("a text", 17):
            try:
                await sender.send_messages(wrong)
            except TypeError:
                print("no message")
        try:
            await sender.send_messages(ServiceBusMessage("late"), timeout=0)
        except ValueError:
            print("no time")
    finally:
        await sender.close()
        await sender.close()
    try:
        await sender.send_messages(ServiceBusMessage("late"))
    except ValueError as error:
        print("closed", "already been shutdown" in str(error))
    await client.close()
    await client.close()


asyncio.run(main())
