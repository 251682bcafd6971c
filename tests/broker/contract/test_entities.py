"""Links to entities that are not there, were deleted, are disabled, or are of another kind."""

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
from tests.broker.contract.bus import PATIENCE, Bus, QueuePlace, SubscriptionPlace, texts

from twinbus.broker import QueueDescription
from twinbus.broker.descriptions import EntityStatus

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
    # The service already refuses the token for it, and the SDK calls every refused token a failed authentication.
    with pytest.raises(ServiceBusAuthenticationError) as caught:
        await bus.open(opener(bus.client))
    assert caught.value.inner_exception.status_code == 404


async def test_a_subscription_that_does_not_exist_is_not_found_though_its_topic_does(bus: Bus) -> None:
    place = await SubscriptionPlace.create(bus)
    with pytest.raises(MessagingEntityNotFoundError):
        await bus.open(bus.client.get_subscription_receiver(place.topic, "other"))


async def test_paths_are_not_case_sensitive(bus: Bus) -> None:
    place = await QueuePlace.create(bus)
    place.path = place.path.upper()
    await place.connect()
    await place.put("one")
    assert texts(await place.receive()) == ["one"]


async def test_a_path_may_have_several_segments(bus: Bus) -> None:
    path = "contoso/x-servicebus-transfer/0"
    await bus.namespace.create(QueueDescription(path))
    place = QueuePlace(bus, path)
    await place.connect()
    await place.put("one")
    assert texts(await place.receive()) == ["one"]


async def test_a_receiver_that_waits_learns_that_its_queue_was_deleted(bus: Bus) -> None:
    place = await QueuePlace.open(bus)
    waiting = asyncio.create_task(place.receiver.receive_messages(max_wait_time=900))
    await bus.namespace.delete(place.path)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(MessagingEntityNotFoundError):
            await waiting


async def test_nothing_is_sent_to_a_deleted_queue(bus: Bus) -> None:
    place = await QueuePlace.open(bus)
    await bus.namespace.delete(place.path)
    with pytest.raises(ServiceBusError):  # the SDK only notices that its link is gone
        await place.sender.send_messages(ServiceBusMessage("one"))
    with pytest.raises(ServiceBusAuthenticationError) as caught:
        await place.sender.send_messages(ServiceBusMessage("one"))
    assert caught.value.inner_exception.status_code == 404


async def test_deleting_a_queue_leaves_those_alone_whose_names_begin_with_its_own(bus: Bus) -> None:
    await bus.namespace.create(QueueDescription("shop"))
    await bus.namespace.create(QueueDescription("shop/eu"))
    place = QueuePlace(bus, "shop/eu")
    await place.connect()
    await bus.namespace.delete("shop")
    await place.put("one")
    assert texts(await place.receive()) == ["one"]


async def test_a_receiver_of_a_subscription_learns_that_its_topic_was_deleted(bus: Bus) -> None:
    place = await SubscriptionPlace.open(bus)
    waiting = asyncio.create_task(place.receiver.receive_messages(max_wait_time=900))
    await bus.namespace.delete(place.topic)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(MessagingEntityNotFoundError):
            await waiting


async def test_a_queue_made_again_is_empty(bus: Bus) -> None:
    place = await QueuePlace.open(bus)
    await place.put("old")
    await bus.namespace.delete(place.path)
    await bus.namespace.create(QueueDescription(place.path))
    again = QueuePlace(bus, place.path)
    await again.connect()
    await again.put("new")
    assert texts(await again.receive()) == ["new"]
    assert await again.peek_texts() == ["new"]


async def _with_status(bus: Bus, status: EntityStatus) -> QueuePlace:
    place = await QueuePlace.create(bus)
    entity = bus.namespace.find(place.path)
    assert entity is not None
    await bus.namespace.update(replace(entity.description, status=status.value))
    return place


@pytest.mark.parametrize("status", [EntityStatus.DISABLED, EntityStatus.SEND_DISABLED])
async def test_nothing_is_sent_to_a_disabled_queue(bus: Bus, status: EntityStatus) -> None:
    place = await _with_status(bus, status)
    with pytest.raises(MessagingEntityDisabledError):
        await bus.open(place.new_sender())


@pytest.mark.parametrize("status", [EntityStatus.DISABLED, EntityStatus.RECEIVE_DISABLED])
async def test_nothing_is_received_from_a_disabled_queue(bus: Bus, status: EntityStatus) -> None:
    place = await _with_status(bus, status)
    with pytest.raises(MessagingEntityDisabledError):
        await bus.open(place.new_receiver())


async def test_a_queue_disabled_for_receiving_takes_messages(bus: Bus) -> None:
    place = await _with_status(bus, EntityStatus.RECEIVE_DISABLED)
    sender = place.new_sender()
    await bus.open(sender)
    await sender.send_messages(ServiceBusMessage("one"))
    assert place.queue.counters.active == 1


async def test_a_topic_cannot_be_received_from(bus: Bus) -> None:
    place = await SubscriptionPlace.create(bus)
    with pytest.raises(ServiceBusError, match="received from a topic's subscriptions"):
        await bus.open(bus.client.get_queue_receiver(place.topic))


async def test_a_subscription_cannot_be_sent_to(bus: Bus) -> None:
    place = await SubscriptionPlace.create(bus)
    with pytest.raises(ServiceBusError, match="sent to a topic"):
        await bus.open(bus.client.get_queue_sender(place.path))
