"""Schedules one message and a list of them."""

import asyncio
import os
from datetime import UTC, datetime, timedelta

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient


async def main():
    client = ServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STR"])
    async with client, client.get_queue_sender(queue_name=os.environ["SERVICEBUS_QUEUE_NAME"]) as sender:
        at = datetime.now(UTC) + timedelta(seconds=1)
        numbers = await sender.schedule_messages(ServiceBusMessage("for later"), at)
        numbers += await sender.schedule_messages([ServiceBusMessage(f"for later {i}") for i in range(4)], at)
        print(f"scheduled {len(set(numbers))}")


asyncio.run(main())
