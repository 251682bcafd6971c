"""Sends to sessions, and receives from one by name and from the next that is free, with state."""

import asyncio
import os

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.aio import AutoLockRenewer, ServiceBusClient

QUEUE_NAME = os.environ["SERVICEBUS_SESSION_QUEUE_NAME"]


async def main():
    async with ServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STR"]) as client:
        async with client.get_queue_sender(QUEUE_NAME) as sender:
            for session_id in ("red", "blue"):
                messages = [ServiceBusMessage(f"{session_id} {i}", session_id=session_id) for i in range(2)]
                await sender.send_messages(messages)

        renewer = AutoLockRenewer()
        async with client.get_queue_receiver(QUEUE_NAME, session_id="red", max_wait_time=2) as receiver:
            session = receiver.session
            renewer.register(receiver, session, max_lock_renewal_duration=10)
            await session.set_state("OPEN")
            async for message in receiver:
                print("received", str(message))
                await receiver.complete_message(message)
            await session.renew_lock()
            print("state", session.session_id, await session.get_state())
        await renewer.close()

        receiver = client.get_queue_receiver(QUEUE_NAME, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=5)
        async with receiver:
            messages = await receiver.receive_messages(max_message_count=2)
            print("next", receiver.session.session_id, len(messages) > 0)


asyncio.run(main())
