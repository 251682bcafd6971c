"""The counts of the administration API match the messages sent, received and settled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from tests.emulator.contract.bus import LOCK_OVER, Bus, QueueUnderTest, SubscriptionUnderTest
from tests.emulator.wire import async_administration

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def admin(bus: Bus) -> AsyncIterator[ServiceBusAdministrationClient]:
    async with async_administration(bus.namespace.connection_string) as client:
        yield client


async def counts(admin: ServiceBusAdministrationClient, entity: QueueUnderTest) -> dict[str, int]:
    """The counts of a queue that are not zero."""
    properties = await admin.get_queue_runtime_properties(entity.path)
    counts_by_name = {
        "active": properties.active_message_count,
        "dead": properties.dead_letter_message_count,
        "scheduled": properties.scheduled_message_count,
        "transfer": properties.transfer_message_count,
        "transfer dead": properties.transfer_dead_letter_message_count,
        "total": properties.total_message_count,
    }
    return {name: count for name, count in counts_by_name.items() if count}


async def test_a_new_queue_has_no_messages(bus: Bus, admin: ServiceBusAdministrationClient) -> None:
    assert await counts(admin, await QueueUnderTest.create(bus)) == {}


async def test_active_messages_are_counted(bus: Bus, admin: ServiceBusAdministrationClient) -> None:
    entity = await bus.spare(QueueUnderTest)
    await entity.put("one", "two", "three")
    assert await counts(admin, entity) == {"active": 3, "total": 3}


async def test_a_locked_message_counts_as_active(bus: Bus, admin: ServiceBusAdministrationClient) -> None:
    entity = await bus.spare(QueueUnderTest)
    await entity.put("one", "two")
    await entity.receive_one()
    assert await counts(admin, entity) == {"active": 2, "total": 2}


async def test_a_completed_message_is_not_counted(bus: Bus, admin: ServiceBusAdministrationClient) -> None:
    entity = await bus.spare(QueueUnderTest)
    await entity.put("one", "two")
    await entity.receiver.complete_message(await entity.receive_one())
    assert await counts(admin, entity) == {"active": 1, "total": 1}


async def test_a_redelivered_message_is_counted_once(bus: Bus, admin: ServiceBusAdministrationClient) -> None:
    entity = await bus.spare(QueueUnderTest)
    await entity.put("one")
    await entity.receiver.abandon_message(await entity.receive_one())
    await entity.receive_one()
    await bus.advance(LOCK_OVER)
    await entity.receive_one()
    assert await counts(admin, entity) == {"active": 1, "total": 1}


async def test_dead_letters_are_counted(bus: Bus, admin: ServiceBusAdministrationClient) -> None:
    entity = await bus.spare(QueueUnderTest)
    await entity.put("one", "two")
    await entity.receiver.dead_letter_message(await entity.receive_one())
    assert await counts(admin, entity) == {"active": 1, "dead": 1, "total": 2}


async def test_scheduled_messages_are_counted_until_they_are_due(
    bus: Bus, admin: ServiceBusAdministrationClient
) -> None:
    entity = await bus.spare(QueueUnderTest)
    messages = [ServiceBusMessage("one"), ServiceBusMessage("two")]
    numbers = await entity.sender.schedule_messages(messages, bus.clock.in_seconds(10))
    assert await counts(admin, entity) == {"scheduled": 2, "total": 2}
    await entity.sender.cancel_scheduled_messages(numbers[0])
    assert await counts(admin, entity) == {"scheduled": 1, "total": 1}
    await bus.advance(11)
    await entity.receive_one()
    assert await counts(admin, entity) == {"active": 1, "total": 1}


async def test_expired_messages_count_as_dead_letters(bus: Bus, admin: ServiceBusAdministrationClient) -> None:
    entity = await QueueUnderTest.open(bus, dead_lettering_on_message_expiration=True)
    await entity.put("one", "two", time_to_live=timedelta(seconds=10))
    await bus.advance(11)
    dead_letters = await entity.open_dead_letters()
    assert len(await dead_letters.peek_messages(max_message_count=10)) == 2
    assert await counts(admin, entity) == {"dead": 2, "total": 2}


async def test_a_deferred_message_counts_as_active(bus: Bus, admin: ServiceBusAdministrationClient) -> None:
    entity = await bus.spare(QueueUnderTest)
    await entity.put("one", "two")
    await entity.receiver.defer_message(await entity.receive_one())
    assert await counts(admin, entity) == {"active": 2, "total": 2}


async def test_the_size_grows_and_shrinks_with_the_messages(bus: Bus, admin: ServiceBusAdministrationClient) -> None:
    entity = await bus.spare(QueueUnderTest)
    await entity.put("x" * 10_000)
    properties = await admin.get_queue_runtime_properties(entity.path)
    assert 10_000 <= properties.size_in_bytes < 11_000
    await entity.receiver.complete_message(await entity.receive_one())
    properties = await admin.get_queue_runtime_properties(entity.path)
    assert properties.size_in_bytes == 0


async def test_pings_are_not_counted(bus: Bus, admin: ServiceBusAdministrationClient) -> None:
    entity = await bus.spare(QueueUnderTest)
    await entity.put("", content_type="application/vnd.ms-servicebus-ping")
    assert await counts(admin, entity) == {}


async def test_a_topic_counts_its_subscriptions_and_scheduled_messages(
    bus: Bus, admin: ServiceBusAdministrationClient
) -> None:
    entity = await bus.spare(SubscriptionUnderTest)
    await entity.sender.schedule_messages(ServiceBusMessage("later"), bus.clock.in_seconds(60))
    properties = await admin.get_topic_runtime_properties(entity.topic)
    assert (properties.subscription_count, properties.scheduled_message_count) == (1, 1)


async def test_a_subscription_counts_active_messages_and_dead_letters(
    bus: Bus, admin: ServiceBusAdministrationClient
) -> None:
    entity = await bus.spare(SubscriptionUnderTest)
    await entity.put("one", "two", "three")
    await entity.receiver.dead_letter_message(await entity.receive_one())
    properties = await admin.get_subscription_runtime_properties(entity.topic, "all")
    assert properties.active_message_count == 2
    assert properties.dead_letter_message_count == 1
    assert properties.total_message_count == 3
