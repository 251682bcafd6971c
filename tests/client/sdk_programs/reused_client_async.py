"""Enters the context of one client again and again, each time on another event loop."""

import asyncio
import os

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

client = ServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STR"])


async def send(text):
    async with client, client.get_queue_sender(os.environ["SERVICEBUS_QUEUE_NAME"]) as sender:
        await sender.send_messages(ServiceBusMessage(text))
        print("sent", text)


for number in range(3):
    asyncio.run(send(str(number)))
