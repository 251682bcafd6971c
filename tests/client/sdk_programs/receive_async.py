"""Receives, peeks, abandons, defers, dead-letters, and renews locks."""

import asyncio
import os

from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.aio import AutoLockRenewer, ServiceBusClient

QUEUE_NAME = os.environ["SERVICEBUS_QUEUE_NAME"]


async def main():
    async with ServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STR"]) as client:
        async with client.get_queue_sender(QUEUE_NAME) as sender:
            await sender.send_messages([ServiceBusMessage(f"order {i}", message_id=str(i)) for i in range(6)])

        async with client.get_queue_receiver(QUEUE_NAME, max_wait_time=5) as receiver:
            print("peeked", len(await receiver.peek_messages(max_message_count=6)))
            first, second, third = await receiver.receive_messages(max_message_count=3, max_wait_time=5)
            await receiver.complete_message(first)
            await receiver.defer_message(second)
            await receiver.dead_letter_message(third, reason="test", error_description="not wanted")
            (deferred,) = await receiver.receive_deferred_messages(second.sequence_number)
            await receiver.complete_message(deferred)

        renewer = AutoLockRenewer(max_lock_renewal_duration=30)
        async with client.get_queue_receiver(QUEUE_NAME, max_wait_time=2, auto_lock_renewer=renewer) as receiver:
            async for message in receiver:
                await receiver.renew_message_lock(message)
                print("received", str(message))
                await receiver.complete_message(message)
                if message.message_id == "4":
                    break
        await renewer.close()

        dead = client.get_queue_receiver(QUEUE_NAME, sub_queue=ServiceBusSubQueue.DEAD_LETTER, max_wait_time=5)
        async with dead:
            for message in await dead.receive_messages():
                print("dead", message.dead_letter_reason)
                await dead.complete_message(message)

        mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
        async with client.get_queue_receiver(queue_name=QUEUE_NAME, receive_mode=mode, max_wait_time=2) as receiver:
            print("deleted", [str(message) async for message in receiver])


asyncio.run(main())
