"""Entities as a namespace keeps them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.emulator.raw_client import RawClient, RefusedError, encoded_message

from twinbus.amqp.codec.encoding import encode
from twinbus.amqp.codec.types import Described, Symbol, Timestamp, ULong
from twinbus.emulator import Namespace, QueueDescription, TopicDescription
from twinbus.emulator.entities.entity_directory import MAX_KEY
from twinbus.emulator.storage.store import StoreError
from twinbus.servicebus.durations import TICKS_PER_SECOND
from twinbus.servicebus.entity_descriptions import InvalidDescriptionError, SubscriptionDescription


async def test_changed_lock_duration_applies_to_dead_letters() -> None:
    async with Namespace("contoso") as namespace:
        created = await namespace.create(QueueDescription("orders", max_delivery_count=3))
        updated = await namespace.update(replace(created.description, lock_duration=30 * TICKS_PER_SECOND))
        dead_letter = updated.queue.dead_letter
        assert dead_letter is not None
        assert dead_letter.limits.lock_ms == updated.queue.limits.lock_ms == 30_000
        assert dead_letter.limits.max_delivery_count > updated.queue.limits.max_delivery_count


@pytest.mark.parametrize("name", ["requires_session", "requires_duplicate_detection", "enable_partitioning"])
async def test_queue_properties_fixed_at_creation_cannot_change(name: str) -> None:
    async with Namespace("contoso") as namespace:
        created = await namespace.create(QueueDescription("orders"))
        with pytest.raises(InvalidDescriptionError, match=name):
            await namespace.update(replace(created.description, **{name: True}))
        entity = namespace.find("orders")
        assert entity is not None
        assert entity.description == created.description


async def test_topic_message_size_limit_applies_to_its_subscriptions() -> None:
    async with Namespace("contoso") as namespace:
        await namespace.create(TopicDescription("events", max_message_size_in_kilobytes=1024))
        subscription = await namespace.create_subscription(SubscriptionDescription("events", "all"))
        async with RawClient(namespace.connection_string) as client:
            await client.put_token("events")
            sender = await client.sender("events")
            await sender.send(encoded_message("large", bytes(1_000_000)))
            with pytest.raises(RefusedError, match="limit of 'events' is 1048576 bytes"):
                await sender.send(encoded_message("larger", bytes(1_100_000)))
        assert subscription.queue.counters.active == 1


async def test_a_message_of_the_largest_size_can_be_scheduled() -> None:
    async with Namespace("contoso") as namespace:
        entity = await namespace.create(QueueDescription("orders", max_message_size_in_kilobytes=8192))
        async with RawClient(namespace.connection_string) as client:
            await client.put_token("orders")
            due = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(1 << 50)}
            annotations = encode(Described(ULong(0x72), due))
            message = annotations + encoded_message("large", bytes(8_000_000))
            body = {"messages": [{"message": message, "message-id": "large"}]}
            assert len((await client.manage("orders", "schedule-message", body))["sequence-numbers"]) == 1
        assert entity.queue.counters.scheduled == 1


async def test_creating_is_refused_when_entity_keys_are_exhausted(tmp_path: Path) -> None:
    async with Namespace("contoso", data=tmp_path) as namespace:
        await namespace.create(QueueDescription("orders"))
        namespace.entities._next_key = MAX_KEY  # as after two million creations
        await namespace.create(QueueDescription("last"))
        with pytest.raises(StoreError, match="2,097,151 entities"):
            await namespace.create(QueueDescription("one-more"))
        assert namespace.entities.resolve("last") is not None
    async with Namespace("contoso", data=tmp_path) as namespace:
        assert namespace.entities.resolve("last") is not None
        with pytest.raises(StoreError, match="2,097,151 entities"):
            await namespace.create(QueueDescription("one-more"))
