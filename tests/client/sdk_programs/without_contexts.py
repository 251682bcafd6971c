"""Passes options, closes by hand, and finds out what was closed."""

import os

from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus.exceptions import ServiceBusError

client = ServiceBusClient.from_connection_string(
    os.environ["SERVICEBUS_CONNECTION_STR"],
    retry_total=5,
    retry_backoff_factor=0.1,
    retry_backoff_max=2,
    retry_mode="fixed",
    transport_type=TransportType.Amqp,
    http_proxy=None,
    user_agent="shop",
    custom_endpoint_address=None,
    connection_verify=None,
    uamqp_transport=False,
)
sender = client.get_queue_sender(os.environ["SERVICEBUS_QUEUE_NAME"], client_identifier="shop-1", socket_timeout=5)
try:
    sender.send_messages(ServiceBusMessage("by hand"), timeout=20)
    print(sender.entity_name == os.environ["SERVICEBUS_QUEUE_NAME"], sender.client_identifier)
    print(client.fully_qualified_namespace == sender.fully_qualified_namespace)
    sender.send_messages([])
    for wrong in ("a text", 17):
        try:
            sender.send_messages(wrong)
        except TypeError:
            print("no message")
    try:
        sender.send_messages(ServiceBusMessage("late"), timeout=0)
    except ValueError:
        print("no time")
finally:
    sender.close()
    sender.close()
try:
    sender.send_messages(ServiceBusMessage("late"))
except ValueError as error:
    print("closed", "already been shutdown" in str(error))
client.close()
client.close()
print(issubclass(ServiceBusError, Exception))
