"""Sends to a topic and receives from its subscription."""

import os

from azure.servicebus import ServiceBusClient, ServiceBusMessage

TOPIC_NAME = os.environ["SERVICEBUS_TOPIC_NAME"]
SUBSCRIPTION_NAME = os.environ["SERVICEBUS_SUBSCRIPTION_NAME"]

with ServiceBusClient.from_connection_string(conn_str=os.environ["SERVICEBUS_CONNECTION_STR"]) as client:
    with client.get_topic_sender(topic_name=TOPIC_NAME) as sender:
        sender.send_messages(ServiceBusMessage("news", subject="red", application_properties={"priority": 1}))
    receiver = client.get_subscription_receiver(
        topic_name=TOPIC_NAME, subscription_name=SUBSCRIPTION_NAME, max_wait_time=5, prefetch_count=5
    )
    with receiver:
        for message in receiver.receive_messages(max_message_count=10, max_wait_time=5):
            print("received", str(message), message.subject, message.application_properties)
            receiver.complete_message(message)
