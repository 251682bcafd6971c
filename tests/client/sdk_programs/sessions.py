"""Sends to sessions, and receives from one by name and from the next that is free, with state."""

import os

from azure.servicebus import NEXT_AVAILABLE_SESSION, AutoLockRenewer, ServiceBusClient, ServiceBusMessage

QUEUE_NAME = os.environ["SERVICEBUS_SESSION_QUEUE_NAME"]

with ServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STR"]) as client:
    with client.get_queue_sender(QUEUE_NAME) as sender:
        for session_id in ("red", "blue"):
            sender.send_messages([ServiceBusMessage(f"{session_id} {i}", session_id=session_id) for i in range(2)])

    renewer = AutoLockRenewer()
    with client.get_queue_receiver(QUEUE_NAME, session_id="red", max_wait_time=2) as receiver:
        session = receiver.session
        renewer.register(receiver, session, max_lock_renewal_duration=10)
        session.set_state("OPEN")
        for message in receiver:
            print("received", str(message))
            receiver.complete_message(message)
        session.renew_lock()
        print("state", session.session_id, session.get_state())
    renewer.close()

    with client.get_queue_receiver(QUEUE_NAME, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=5) as receiver:
        messages = receiver.receive_messages(max_message_count=2)
        print("next", receiver.session.session_id, len(messages) > 0)
