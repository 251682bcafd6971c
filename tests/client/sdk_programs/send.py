"""Sends one message, a list, full batches and to a topic."""

import os

from azure.servicebus import ServiceBusClient, ServiceBusMessage

CONNECTION_STR = os.environ["SERVICEBUS_CONNECTION_STR"]
QUEUE_NAME = os.environ["SERVICEBUS_QUEUE_NAME"]
SESSION_QUEUE_NAME = os.environ["SERVICEBUS_SESSION_QUEUE_NAME"]
TOPIC_NAME = os.environ["SERVICEBUS_TOPIC_NAME"]


def send_single_message(sender):
    sender.send_messages(ServiceBusMessage("a single message"))


def send_a_list_of_messages(sender):
    sender.send_messages([ServiceBusMessage(f"message {i} of a list") for i in range(3)])


def send_batches(sender):
    batch = sender.create_message_batch(max_size_in_bytes=1024)
    for number in range(10):
        message = ServiceBusMessage(f"message {number} of a batch".ljust(200))
        try:
            batch.add_message(message)
        except ValueError:
            sender.send_messages(batch)
            batch = sender.create_message_batch(max_size_in_bytes=1024)
            batch.add_message(message)
    if len(batch) > 0:
        sender.send_messages(batch)


servicebus_client = ServiceBusClient.from_connection_string(conn_str=CONNECTION_STR, logging_enable=True)
with servicebus_client:
    queue_sender = servicebus_client.get_queue_sender(queue_name=QUEUE_NAME)
    with queue_sender:
        send_single_message(queue_sender)
        send_a_list_of_messages(queue_sender)
        send_batches(queue_sender)
    with servicebus_client.get_queue_sender(SESSION_QUEUE_NAME) as session_sender:
        session_sender.send_messages([ServiceBusMessage(f"red {i}", session_id="red") for i in range(2)])
    with servicebus_client.get_topic_sender(topic_name=TOPIC_NAME) as topic_sender:
        send_single_message(topic_sender)
print("sent")
