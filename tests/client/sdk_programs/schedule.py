"""Schedules one message and a list of them."""

import os
from datetime import UTC, datetime, timedelta

from azure.servicebus import ServiceBusClient, ServiceBusMessage

with ServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STR"]) as client:
    sender = client.get_queue_sender(queue_name=os.environ["SERVICEBUS_QUEUE_NAME"])
    with sender:
        at = datetime.now(UTC) + timedelta(seconds=1)
        numbers = sender.schedule_messages(ServiceBusMessage("for later"), at)
        numbers += sender.schedule_messages([ServiceBusMessage(f"for later {i}") for i in range(4)], at)
        print(f"scheduled {len(set(numbers))}")
