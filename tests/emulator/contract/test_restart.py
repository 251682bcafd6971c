"""A namespace that is stopped and started again on the same data folder keeps its state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
import pytest_asyncio
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusMessageState
from tests.emulator.contract.bus import (
    Bus,
    EntityUnderTest,
    QueueUnderTest,
    SessionQueueUnderTest,
    SubscriptionUnderTest,
    peek,
    receive,
    texts,
)

from twinbus.emulator import QueueDescription, SubscriptionDescription
from twinbus.emulator.auth.security import ROOT_POLICY
from twinbus.servicebus.durations import TICKS_PER_SECOND
from twinbus.servicebus.entity_descriptions import AnyDescription

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

_Entity = TypeVar("_Entity", bound=EntityUnderTest)
FAR = 3600  # seconds


@dataclass
class Before:
    """The state before the namespace was stopped."""

    entities: dict[str, EntityUnderTest]
    numbers: dict[str, int]
    descriptions: dict[str, AnyDescription]
    counts: dict[str, Any]
    policy: Any
    created_at: float


@dataclass
class Restarted:
    before: Before
    bus: Bus

    async def open(self, kind: type[_Entity], name: str, **options: Any) -> _Entity:
        """The entity of this name, with new links."""
        entity = kind(self.bus, self.before.entities[name].path)
        await entity.connect(**options)
        return entity


async def _fill(bus: Bus) -> Before:
    """Create every state that must survive a restart; each entity belongs to one test."""
    kinds: dict[str, tuple[type[EntityUnderTest], dict[str, Any]]] = {
        "active": (QueueUnderTest, {}),
        "locked": (QueueUnderTest, {}),
        "abandoned": (QueueUnderTest, {}),
        "deferred": (QueueUnderTest, {}),
        "scheduled": (QueueUnderTest, {}),
        "dead": (QueueUnderTest, {}),
        "duplicates": (QueueUnderTest, {"requires_duplicate_detection": True}),
        "expiring": (QueueUnderTest, {"dead_lettering_on_message_expiration": True}),
        "sessions": (SessionQueueUnderTest, {}),
        "topic": (SubscriptionUnderTest, {}),
        "scheduled topic": (SubscriptionUnderTest, {}),
    }
    opened = await asyncio.gather(*(kind.open(bus, **properties) for kind, properties in kinds.values()))
    entities = dict(zip(kinds, opened, strict=True))
    numbers: dict[str, int] = {}

    await entities["active"].put("one", "two", "three")
    await entities["active"].receiver.complete_message(await entities["active"].receive_one())
    await entities["locked"].put("one")
    await entities["locked"].receive_one()
    await entities["abandoned"].put("one")
    await entities["abandoned"].receiver.abandon_message(await entities["abandoned"].receive_one())
    await entities["deferred"].put("one")
    deferred = await entities["deferred"].receive_one()
    await entities["deferred"].receiver.defer_message(deferred)
    numbers["deferred"] = deferred.sequence_number
    later = [ServiceBusMessage("later"), ServiceBusMessage("cancelled")]
    due = bus.clock.in_seconds(FAR)
    numbers["later"], numbers["cancelled"] = await entities["scheduled"].sender.schedule_messages(later, due)
    await entities["dead"].put("bad")
    await entities["dead"].receiver.dead_letter_message(await entities["dead"].receive_one(), reason="Unreadable")
    await entities["duplicates"].put("one", message_id="a")
    await entities["expiring"].put("short", time_to_live=timedelta(seconds=FAR))
    sessions = entities["sessions"]
    await sessions.put("a1", "a2")
    await sessions.receive_one()
    await sessions.receiver.session.set_state("half done")
    await entities["topic"].put("one")
    await entities["scheduled topic"].sender.schedule_messages(ServiceBusMessage("later"), due)

    namespace = bus.namespace
    special = QueueDescription(
        "special",
        lock_duration=45 * TICKS_PER_SECOND,
        max_size_in_megabytes=5120,
        requires_session=True,
        max_delivery_count=2147483647,
        user_metadata="grüße ✓",
    )
    await namespace.create(special)
    await namespace.update(replace(special, max_delivery_count=7))
    await namespace.create_subscription(
        SubscriptionDescription(_topic(entities["topic"]), "second", max_delivery_count=3)
    )
    described = [*namespace.queues(), *namespace.topics()]
    return Before(
        entities,
        numbers,
        {view.description.path: view.description for view in described},
        {view.description.path: (view.counts, view.size_in_bytes) for view in described},
        namespace.policy(ROOT_POLICY),
        namespace.created_at,
    )


def _topic(entity: EntityUnderTest) -> str:
    return entity.path.partition("/")[0]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def restarted(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Restarted]:
    data: Path = tmp_path_factory.mktemp("data")
    async with Bus(data=data) as first:
        before = await _fill(first)
    async with Bus(data=data) as second:
        yield Restarted(before, second)


async def test_descriptions_are_kept(restarted: Restarted) -> None:
    namespace = restarted.bus.namespace
    current = {view.description.path: view.description for view in [*namespace.queues(), *namespace.topics()]}
    assert current == restarted.before.descriptions
    special = current["special"]
    assert isinstance(special, QueueDescription)
    assert special.max_delivery_count == 7


async def test_subscriptions_are_kept(restarted: Restarted) -> None:
    node = restarted.bus.namespace.entities.resolve(
        _topic(restarted.before.entities["topic"]) + "/Subscriptions/second"
    )
    assert node is not None
    assert node.queue.limits.max_delivery_count == 3


async def test_counts_and_sizes_are_kept(restarted: Restarted) -> None:
    namespace = restarted.bus.namespace
    described = [*namespace.queues(), *namespace.topics()]
    current = {view.description.path: (view.counts, view.size_in_bytes) for view in described}
    for name in ("dead", "deferred", "expiring", "scheduled topic"):  # no test changes what is in these
        path = restarted.before.entities[name].path.partition("/")[0]
        assert current[path] == restarted.before.counts[path]


async def test_keys_are_kept(restarted: Restarted) -> None:
    assert restarted.bus.namespace.policy(ROOT_POLICY) == restarted.before.policy


async def test_creation_time_of_the_namespace_is_kept(restarted: Restarted) -> None:
    assert restarted.bus.namespace.created_at == restarted.before.created_at


async def test_messages_are_kept_in_order_and_completed_ones_stay_gone(restarted: Restarted) -> None:
    entity = await restarted.open(QueueUnderTest, "active")
    received = await entity.receive(2)
    assert texts(received) == ["two", "three"]
    assert await entity.peek_texts() == ["two", "three"]


async def test_sequence_numbers_continue(restarted: Restarted) -> None:
    entity = await restarted.open(QueueUnderTest, "abandoned")
    await entity.put("new")
    old, new = await entity.receive(2)
    assert new.sequence_number > old.sequence_number


async def test_the_delivery_count_is_kept(restarted: Restarted) -> None:
    entity = await restarted.open(QueueUnderTest, "abandoned")
    [message] = [message for message in await entity.peek() if str(message) == "one"]
    assert message.delivery_count == 1


async def test_a_locked_message_is_unlocked(restarted: Restarted) -> None:
    entity = await restarted.open(QueueUnderTest, "locked")
    assert texts(await entity.receive()) == ["one"]


async def test_a_deferred_message_is_received_by_its_sequence_number(restarted: Restarted) -> None:
    entity = await restarted.open(QueueUnderTest, "deferred")
    [peeked] = await entity.peek()
    assert peeked.state == ServiceBusMessageState.DEFERRED
    [deferred] = await entity.receiver.receive_deferred_messages(restarted.before.numbers["deferred"])
    assert str(deferred) == "one"


async def test_a_scheduled_message_can_be_cancelled(restarted: Restarted) -> None:
    entity = await restarted.open(QueueUnderTest, "scheduled")
    await entity.sender.cancel_scheduled_messages(restarted.before.numbers["cancelled"])
    assert await entity.peek_texts() == ["later"]


async def test_dead_letters_are_kept(restarted: Restarted) -> None:
    entity = QueueUnderTest(restarted.bus, restarted.before.entities["dead"].path)
    [dead] = await peek(await entity.open_dead_letters())
    assert (str(dead), dead.dead_letter_reason) == ("bad", "Unreadable")


async def test_a_duplicate_is_still_dropped(restarted: Restarted) -> None:
    entity = await restarted.open(QueueUnderTest, "duplicates")
    await entity.put("again", message_id="a")
    assert await entity.peek_texts() == ["one"]


async def test_a_session_keeps_its_state_and_messages_and_is_free(restarted: Restarted) -> None:
    entity = SessionQueueUnderTest(restarted.bus, restarted.before.entities["sessions"].path)
    receiver = await entity.open_session(NEXT_AVAILABLE_SESSION)
    assert receiver.session.session_id == "a"
    assert await receiver.session.get_state() == b"half done"
    assert texts(await receive(receiver, 2)) == ["a1", "a2"]


async def test_each_subscription_keeps_its_messages(restarted: Restarted) -> None:
    entity = await restarted.open(SubscriptionUnderTest, "topic")
    assert texts(await entity.receive()) == ["one"]
    await entity.put("two")
    second = restarted.bus.client.get_subscription_receiver(entity.topic, "second")
    await restarted.bus.open(second)
    assert texts(await receive(second)) == ["two"]


async def test_messages_due_or_expired_while_stopped_are_handled_at_start(
    tmp_path: Path,
) -> None:
    async with Bus(data=tmp_path) as first:
        queue = await QueueUnderTest.open(first, dead_lettering_on_message_expiration=True)
        topic = await SubscriptionUnderTest.open(first)
        due = first.clock.in_seconds(60)
        for entity in (queue, topic):
            await entity.sender.schedule_messages(ServiceBusMessage("later"), due)
        await queue.put("short", time_to_live=timedelta(seconds=30))
    second = Bus(data=tmp_path)
    second.clock.ahead = 61
    async with second:
        queue, topic = QueueUnderTest(second, queue.path), SubscriptionUnderTest(second, topic.path)
        await queue.connect()
        assert texts(await queue.receive()) == ["later"]
        assert await queue.peek_texts() == ["later"]
        assert texts(await peek(await queue.open_dead_letters())) == ["short"]
        await topic.connect()
        assert texts(await topic.receive()) == ["later"]
