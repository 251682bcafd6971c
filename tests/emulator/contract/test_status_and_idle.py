"""Entity status (send or receive disabled) and deletion of idle entities."""

from __future__ import annotations

from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessagingEntityDisabledError, ServiceBusError
from tests.emulator.contract.bus import Bus, receive, texts, until

from twinbus.emulator import QueueDescription, SubscriptionDescription, TopicDescription
from twinbus.servicebus.durations import TICKS_PER_MINUTE
from twinbus.servicebus.property_bounds import EntityStatus

pytestmark = pytest.mark.asyncio(loop_scope="module")

IDLE = 5 * TICKS_PER_MINUTE
IDLE_OVER = 301


async def queue(bus: Bus, **properties: Any) -> str:
    path = bus.new_name("q")
    await bus.namespace.create(QueueDescription(path, **properties))
    return path


async def opened(bus: Bus, link: Any) -> Any:
    await bus.open(link)
    return link


async def test_a_send_disabled_queue_can_be_received_from(bus: Bus) -> None:
    path = await queue(bus)
    sender = await opened(bus, bus.client.get_queue_sender(path))
    receiver = await opened(bus, bus.client.get_queue_receiver(path))
    await sender.send_messages(ServiceBusMessage("before"))
    await bus.namespace.update(QueueDescription(path, status=EntityStatus.SEND_DISABLED.value))
    with pytest.raises(MessagingEntityDisabledError):
        await sender.send_messages(ServiceBusMessage("after"))
    assert texts(await receive(receiver)) == ["before"]


async def test_a_receive_disabled_queue_can_be_sent_to(bus: Bus) -> None:
    path = await queue(bus)
    sender = await opened(bus, bus.client.get_queue_sender(path))
    receiver = await opened(bus, bus.client.get_queue_receiver(path))
    await bus.namespace.update(QueueDescription(path, status=EntityStatus.RECEIVE_DISABLED.value))
    await sender.send_messages(ServiceBusMessage("waits"))
    with pytest.raises(MessagingEntityDisabledError):
        await receiver.receive_messages(max_wait_time=5)
    with pytest.raises(MessagingEntityDisabledError):
        await receiver.peek_messages()
    await bus.namespace.update(QueueDescription(path))
    assert texts(await receive(receiver)) == ["waits"]


async def test_a_message_that_was_locked_before_can_be_completed(bus: Bus) -> None:
    path = await queue(bus)
    sender = await opened(bus, bus.client.get_queue_sender(path))
    receiver = await opened(bus, bus.client.get_queue_receiver(path))
    await sender.send_messages(ServiceBusMessage("held"))
    [held] = await receive(receiver)
    await bus.namespace.update(QueueDescription(path, status=EntityStatus.RECEIVE_DISABLED.value))
    await receiver.complete_message(held)
    assert bus.broker_queue(path).counters.active == 0


@pytest.mark.parametrize("role", ["sender", "receiver"])
async def test_disabled_queue_refuses_every_link(bus: Bus, role: str) -> None:
    path = await queue(bus, status=EntityStatus.DISABLED.value)
    link: Any = bus.client.get_queue_sender(path) if role == "sender" else bus.client.get_queue_receiver(path)
    with pytest.raises(MessagingEntityDisabledError):
        await bus.open(link)


async def test_a_disabled_queue_schedules_nothing(bus: Bus) -> None:
    path = await queue(bus)
    sender = await opened(bus, bus.client.get_queue_sender(path))
    await bus.namespace.update(QueueDescription(path, status=EntityStatus.DISABLED.value))
    with pytest.raises(MessagingEntityDisabledError):
        await sender.schedule_messages(ServiceBusMessage("later"), bus.clock.in_seconds(60))


async def test_idle_queue_deletes_itself(bus: Bus) -> None:
    path = await queue(bus, auto_delete_on_idle=IDLE)
    sender = await opened(bus, bus.client.get_queue_sender(path))
    await bus.advance(IDLE_OVER - 100)
    await sender.send_messages(ServiceBusMessage("used"))
    await bus.advance(IDLE_OVER - 100)
    assert bus.namespace.find(path) is not None
    await bus.advance(101)
    await until(lambda: bus.namespace.find(path) is None)
    with pytest.raises(ServiceBusError):
        await sender.send_messages(ServiceBusMessage("too late"))


async def test_a_queue_with_a_receiver_or_a_scheduled_message_is_in_use(bus: Bus) -> None:
    received, scheduled, unused = [await queue(bus, auto_delete_on_idle=IDLE) for _ in range(3)]
    receiver = await opened(bus, bus.client.get_queue_receiver(received))
    sender = await opened(bus, bus.client.get_queue_sender(scheduled))
    await sender.schedule_messages(ServiceBusMessage("later"), bus.clock.in_seconds(1000))
    await bus.advance(IDLE_OVER)
    await until(lambda: bus.namespace.find(unused) is None)
    assert bus.namespace.find(received) is not None
    assert bus.namespace.find(scheduled) is not None
    await receiver.close()
    await bus.advance(IDLE_OVER)
    await until(lambda: bus.namespace.find(received) is None)


async def test_a_subscription_deletes_itself_and_leaves_its_topic(bus: Bus) -> None:
    topic = bus.new_name("t")
    await bus.namespace.create(TopicDescription(topic))
    for name, idle in (("short", IDLE), ("long", 2 * IDLE)):
        await bus.namespace.create_subscription(SubscriptionDescription(topic, name, auto_delete_on_idle=idle))
    await bus.advance(IDLE_OVER)
    entity: Any = bus.namespace.find(topic)
    await until(lambda: list(entity.subscriptions) == ["long"])


async def test_the_use_of_a_subscription_keeps_its_topic(bus: Bus) -> None:
    topic = bus.new_name("t")
    await bus.namespace.create(TopicDescription(topic, auto_delete_on_idle=IDLE))
    await bus.namespace.create_subscription(SubscriptionDescription(topic, "s"))
    unused = await queue(bus, auto_delete_on_idle=IDLE)
    await opened(bus, bus.client.get_subscription_receiver(topic, "s"))
    await bus.advance(IDLE_OVER)
    await until(lambda: bus.namespace.find(unused) is None)
    assert bus.namespace.find(topic) is not None
