"""Enters the context of one client again and again."""

import os

from azure.servicebus import ServiceBusClient, ServiceBusMessage

client = ServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STR"])


def send(text):
    with client, client.get_queue_sender(os.environ["SERVICEBUS_QUEUE_NAME"]) as sender:
        sender.send_messages(ServiceBusMessage(text))
        print("sent", text)


for number in range(3):
    send(str(number))
