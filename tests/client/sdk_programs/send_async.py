"""Sends one message, a list, full batches and to a topic, and several at the same time."""

import asyncio
import os

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

CONNECTION_STR = os.environ["SERVICEBUS_CONNECTION_STR"]
QUEUE_NAME = os.environ["SERVICEBUS_QUEUE_NAME"]
SESSION_QUEUE_NAME = os.environ["SERVICEBUS_SESSION_QUEUE_NAME"]
TOPIC_NAME = os.environ["SERVICEBUS_TOPIC_NAME"]


async def send_batches(sender):
    batch = await sender.create_message_batch(max_size_in_bytes=1024)
    for number in range(10):
        message = ServiceBusMessage(f"message {number} of a batch".ljust(200))
        try:
            batch.add_message(message)
        except ValueError:
            await sender.send_messages(batch)
            batch = await sender.create_message_batch(max_size_in_bytes=1024)
            batch.add_message(message)
    if len(batch) > 0:
        await sender.send_messages(batch)


async def main():
    client = ServiceBusClient.from_connection_string(conn_str=CONNECTION_STR, logging_enable=True)
    async with client:
        sender = client.get_queue_sender(queue_name=QUEUE_NAME)
        async with sender:
            await sender.send_messages(ServiceBusMessage("a single message"))
            await asyncio.gather(*(sender.send_messages(ServiceBusMessage(f"message {i}")) for i in range(3)))
            await send_batches(sender)
        async with client.get_queue_sender(SESSION_QUEUE_NAME) as session_sender:
            await session_sender.send_messages([ServiceBusMessage(f"red {i}", session_id="red") for i in range(2)])
        async with client.get_topic_sender(topic_name=TOPIC_NAME) as topic_sender:
            await topic_sender.send_messages([ServiceBusMessage("for the topic")])
    print("sent")


asyncio.run(main())
