"""Receives, peeks, abandons, defers, dead-letters, and renews locks."""

import os

from azure.servicebus import (
    AutoLockRenewer,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)

QUEUE_NAME = os.environ["SERVICEBUS_QUEUE_NAME"]

with ServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STR"]) as client:
    with client.get_queue_sender(QUEUE_NAME) as sender:
        sender.send_messages([ServiceBusMessage(f"order {i}", message_id=str(i)) for i in range(6)])

    with client.get_queue_receiver(QUEUE_NAME, max_wait_time=5) as receiver:
        print("peeked", len(receiver.peek_messages(max_message_count=6)))
        first, second, third = receiver.receive_messages(max_message_count=3, max_wait_time=5)
        receiver.complete_message(first)
        receiver.defer_message(second)
        receiver.dead_letter_message(third, reason="test", error_description="not wanted")
        (deferred,) = receiver.receive_deferred_messages(second.sequence_number)
        receiver.complete_message(deferred)

    renewer = AutoLockRenewer(max_lock_renewal_duration=30)
    with client.get_queue_receiver(QUEUE_NAME, max_wait_time=2, auto_lock_renewer=renewer) as receiver:
        for message in receiver:
            receiver.renew_message_lock(message)
            print("received", str(message))
            receiver.complete_message(message)
            if message.message_id == "4":
                break
    renewer.close()

    with client.get_queue_receiver(QUEUE_NAME, sub_queue=ServiceBusSubQueue.DEAD_LETTER, max_wait_time=5) as dead:
        for message in dead.receive_messages():
            print("dead", message.dead_letter_reason)
            dead.complete_message(message)

    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with client.get_queue_receiver(queue_name=QUEUE_NAME, receive_mode=mode, max_wait_time=2) as receiver:
        print("deleted", [str(message) for message in receiver])
