"""Schedules messages and cancels them."""

import asyncio
import os
from datetime import UTC, datetime, timedelta

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient


async def main():
    async with (
        ServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STR"]) as client,
        client.get_queue_sender(os.environ["SERVICEBUS_QUEUE_NAME"]) as sender,
    ):
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        one = await sender.schedule_messages(ServiceBusMessage("one"), tomorrow)
        two = await sender.schedule_messages([ServiceBusMessage("two"), ServiceBusMessage("three")], tomorrow)
        await sender.cancel_scheduled_messages(one[0])
        await sender.cancel_scheduled_messages(two)
        print("cancelled", len(one + two))


asyncio.run(main())
