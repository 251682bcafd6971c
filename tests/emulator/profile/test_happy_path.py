"""The unmodified SDK keeps all rules of the azure profile."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import (
    AutoLockRenewer,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from tests.emulator.profile.conftest import QUEUE, Serve

from twinbus.emulator import AZURE, Namespace, QueueDescription, SubscriptionDescription, TopicDescription
from twinbus.emulator.server.thread_host import NamespaceThread

pytestmark = pytest.mark.slow

MESSAGES = 30
DELETE = ServiceBusReceiveMode.RECEIVE_AND_DELETE


async def test_send_receive_and_settle_with_the_asynchronous_client(serve: Serve) -> None:
    namespace = await serve()
    await namespace.create(QueueDescription("sessions", requires_session=True))
    async with AsyncServiceBusClient.from_connection_string(namespace.connection_string, retry_total=0) as client:
        async with client.get_queue_sender(QUEUE) as sender, client.get_queue_receiver(QUEUE) as receiver:
            await sender.send_messages(ServiceBusMessage("one"))
            await sender.send_messages([ServiceBusMessage(str(number)) for number in range(MESSAGES)])
            large = ServiceBusMessage(b"x" * 200_000)  # more than one frame
            await sender.send_messages(large)
            assert len(await receiver.peek_messages(max_message_count=5)) == 5
            received = []
            while len(received) < MESSAGES + 2:
                received += await receiver.receive_messages(max_message_count=MESSAGES, max_wait_time=5)
            await receiver.renew_message_lock(received[0])
            await receiver.abandon_message(received[0])
            await receiver.defer_message(received[1])
            await receiver.dead_letter_message(received[2], reason="test")
            for message in received[3:]:
                await receiver.complete_message(message)
            deferred = await receiver.receive_deferred_messages([received[1].sequence_number or 0])
            await receiver.complete_message(deferred[0])
            again = await receiver.receive_messages(max_wait_time=5)
            assert [str(message) for message in again] == ["one"]
            await receiver.complete_message(again[0])
            numbers = await sender.schedule_messages(
                [ServiceBusMessage("later")], datetime.now(UTC) + timedelta(hours=1)
            )
            await sender.cancel_scheduled_messages(numbers)
        async with client.get_queue_sender("sessions") as sender:
            await sender.send_messages([ServiceBusMessage("s", session_id="a"), ServiceBusMessage("t", session_id="a")])
        async with client.get_queue_receiver("sessions", session_id="a") as receiver:
            received = await receiver.receive_messages(max_message_count=2, max_wait_time=5)
            await receiver.session.set_state(b"state")
            assert await receiver.session.get_state() == b"state"
            await receiver.session.renew_lock()
            for message in received:
                await receiver.complete_message(message)
    entity = namespace.find(QUEUE)
    assert entity is not None
    assert (entity.counts.active, entity.counts.dead_letter, entity.counts.scheduled) == (0, 1, 0)


@pytest.fixture
def thread() -> Iterator[NamespaceThread]:
    with NamespaceThread(lambda: Namespace("contoso", profile=AZURE)) as running:
        running.run(running.namespace.create(QueueDescription(QUEUE)))
        running.run(running.namespace.create(TopicDescription("events")))
        running.run(running.namespace.create_subscription(SubscriptionDescription("events", "all")))
        yield running


def test_send_receive_and_settle_with_the_synchronous_client(thread: NamespaceThread) -> None:
    with ServiceBusClient.from_connection_string(thread.connection_string, retry_total=0) as client:
        with client.get_queue_sender(QUEUE) as sender, client.get_queue_receiver(QUEUE) as receiver:
            batch = sender.create_message_batch()
            for number in range(MESSAGES):
                batch.add_message(ServiceBusMessage(str(number)))
            sender.send_messages(batch)
            received = 0
            while received < MESSAGES:
                for message in receiver.receive_messages(max_message_count=10, max_wait_time=5):
                    receiver.complete_message(message)
                    received += 1
            sender.send_messages(ServiceBusMessage("dead"))
            (message,) = receiver.receive_messages(max_wait_time=5)
            with AutoLockRenewer() as renewer:
                renewer.register(receiver, message)
            receiver.dead_letter_message(message, reason="test")
        with client.get_queue_receiver(QUEUE, sub_queue=ServiceBusSubQueue.DEAD_LETTER, receive_mode=DELETE) as dead:
            assert [str(message) for message in dead.receive_messages(max_wait_time=5)] == ["dead"]
        with client.get_topic_sender("events") as sender, client.get_subscription_receiver("events", "all") as receiver:
            sender.send_messages(ServiceBusMessage("event"))
            (message,) = receiver.receive_messages(max_wait_time=5)
            receiver.complete_message(message)
