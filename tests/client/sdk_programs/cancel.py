"""Schedules messages and cancels them."""

import os
from datetime import UTC, datetime, timedelta

from azure.servicebus import ServiceBusClient, ServiceBusMessage

with (
    ServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STR"]) as client,
    client.get_queue_sender(os.environ["SERVICEBUS_QUEUE_NAME"]) as sender,
):
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    one = sender.schedule_messages(ServiceBusMessage("one"), tomorrow)
    two = sender.schedule_messages([ServiceBusMessage("two"), ServiceBusMessage("three")], tomorrow)
    sender.cancel_scheduled_messages(one[0])
    sender.cancel_scheduled_messages(two)
    print("cancelled", len(one + two))
