"""Sends to a topic and receives from its subscription."""

import asyncio
import os

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

TOPIC_NAME = os.environ["SERVICEBUS_TOPIC_NAME"]
SUBSCRIPTION_NAME = os.environ["SERVICEBUS_SUBSCRIPTION_NAME"]


async def main():
    async with ServiceBusClient.from_connection_string(conn_str=os.environ["SERVICEBUS_CONNECTION_STR"]) as client:
        async with client.get_topic_sender(topic_name=TOPIC_NAME) as sender:
            message = ServiceBusMessage("news", subject="red", application_properties={"priority": 1})
            await sender.send_messages(message)
        receiver = client.get_subscription_receiver(
            topic_name=TOPIC_NAME, subscription_name=SUBSCRIPTION_NAME, max_wait_time=5, prefetch_count=5
        )
        async with receiver:
            for message in await receiver.receive_messages(max_message_count=10, max_wait_time=5):
                print("received", str(message), message.subject, message.application_properties)
                await receiver.complete_message(message)


asyncio.run(main())
