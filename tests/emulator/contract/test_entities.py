"""Links to entities that are missing, deleted, disabled or of another kind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusError,
)
from tests.emulator.contract.bus import PATIENCE, Bus, QueueUnderTest, SubscriptionUnderTest, texts

from twinbus.emulator import QueueDescription
from twinbus.servicebus.entity_descriptions import EntityStatus

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


OPENERS: dict[str, Callable[[ServiceBusClient], Any]] = {
    "queue sender": lambda client: client.get_queue_sender("nowhere"),
    "queue receiver": lambda client: client.get_queue_receiver("nowhere"),
    "dead-letter receiver": lambda client: client.get_queue_receiver("nowhere", sub_queue="deadletter"),
    "session receiver": lambda client: client.get_queue_receiver("nowhere", session_id="a"),
    "topic sender": lambda client: client.get_topic_sender("nowhere"),
    "subscription receiver": lambda client: client.get_subscription_receiver("nowhere", "all"),
}


@pytest.mark.parametrize("opener", OPENERS.values(), ids=OPENERS)
async def test_an_entity_that_does_not_exist_is_not_found(bus: Bus, opener: Callable[[ServiceBusClient], Any]) -> None:
    # The service already refuses the token, and the SDK reports every refused token as a failed authentication.
    with pytest.raises(ServiceBusAuthenticationError) as caught:
        await bus.open(opener(bus.client))
    assert caught.value.inner_exception.status_code == 404


async def test_missing_subscription_of_an_existing_topic_is_not_found(bus: Bus) -> None:
    entity = await SubscriptionUnderTest.create(bus)
    with pytest.raises(MessagingEntityNotFoundError):
        await bus.open(bus.client.get_subscription_receiver(entity.topic, "other"))


async def test_paths_are_not_case_sensitive(bus: Bus) -> None:
    entity = await QueueUnderTest.create(bus)
    entity.path = entity.path.upper()
    await entity.connect()
    await entity.put("one")
    assert texts(await entity.receive()) == ["one"]


async def test_a_path_may_have_several_segments(bus: Bus) -> None:
    path = "contoso/x-servicebus-transfer/0"
    await bus.namespace.create(QueueDescription(path))
    entity = QueueUnderTest(bus, path)
    await entity.connect()
    await entity.put("one")
    assert texts(await entity.receive()) == ["one"]


async def test_waiting_receiver_is_detached_when_its_queue_is_deleted(bus: Bus) -> None:
    entity = await QueueUnderTest.open(bus)
    waiting = asyncio.create_task(entity.receiver.receive_messages(max_wait_time=900))
    await bus.namespace.delete(entity.path)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(MessagingEntityNotFoundError):
            await waiting


async def test_nothing_is_sent_to_a_deleted_queue(bus: Bus) -> None:
    entity = await QueueUnderTest.open(bus)
    await bus.namespace.delete(entity.path)
    with pytest.raises(ServiceBusError):  # the SDK only sees the detached link
        await entity.sender.send_messages(ServiceBusMessage("one"))
    with pytest.raises(ServiceBusAuthenticationError) as caught:
        await entity.sender.send_messages(ServiceBusMessage("one"))
    assert caught.value.inner_exception.status_code == 404


async def test_deleting_a_queue_keeps_queues_with_the_same_prefix(bus: Bus) -> None:
    await bus.namespace.create(QueueDescription("shop"))
    await bus.namespace.create(QueueDescription("shop/eu"))
    entity = QueueUnderTest(bus, "shop/eu")
    await entity.connect()
    await bus.namespace.delete("shop")
    await entity.put("one")
    assert texts(await entity.receive()) == ["one"]


async def test_subscription_receiver_is_detached_when_its_topic_is_deleted(bus: Bus) -> None:
    entity = await SubscriptionUnderTest.open(bus)
    waiting = asyncio.create_task(entity.receiver.receive_messages(max_wait_time=900))
    await bus.namespace.delete(entity.topic)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(MessagingEntityNotFoundError):
            await waiting


async def test_recreated_queue_is_empty(bus: Bus) -> None:
    entity = await QueueUnderTest.open(bus)
    await entity.put("old")
    await bus.namespace.delete(entity.path)
    await bus.namespace.create(QueueDescription(entity.path))
    again = QueueUnderTest(bus, entity.path)
    await again.connect()
    await again.put("new")
    assert texts(await again.receive()) == ["new"]
    assert await again.peek_texts() == ["new"]


async def _with_status(bus: Bus, status: EntityStatus) -> QueueUnderTest:
    entity = await QueueUnderTest.create(bus)
    view = bus.namespace.find(entity.path)
    assert view is not None
    await bus.namespace.update(replace(view.description, status=status.value))
    return entity


@pytest.mark.parametrize("status", [EntityStatus.DISABLED, EntityStatus.SEND_DISABLED])
async def test_nothing_is_sent_to_a_disabled_queue(bus: Bus, status: EntityStatus) -> None:
    entity = await _with_status(bus, status)
    with pytest.raises(MessagingEntityDisabledError):
        await bus.open(entity.new_sender())


@pytest.mark.parametrize("status", [EntityStatus.DISABLED, EntityStatus.RECEIVE_DISABLED])
async def test_nothing_is_received_from_a_disabled_queue(bus: Bus, status: EntityStatus) -> None:
    entity = await _with_status(bus, status)
    with pytest.raises(MessagingEntityDisabledError):
        await bus.open(entity.new_receiver())


async def test_a_queue_disabled_for_receiving_takes_messages(bus: Bus) -> None:
    entity = await _with_status(bus, EntityStatus.RECEIVE_DISABLED)
    sender = entity.new_sender()
    await bus.open(sender)
    await sender.send_messages(ServiceBusMessage("one"))
    assert entity.queue.counters.active == 1


async def test_a_topic_cannot_be_received_from(bus: Bus) -> None:
    entity = await SubscriptionUnderTest.create(bus)
    with pytest.raises(ServiceBusError, match="received from a topic's subscriptions"):
        await bus.open(bus.client.get_queue_receiver(entity.topic))


async def test_a_subscription_cannot_be_sent_to(bus: Bus) -> None:
    entity = await SubscriptionUnderTest.create(bus)
    with pytest.raises(ServiceBusError, match="sent to a topic"):
        await bus.open(bus.client.get_queue_sender(entity.path))
