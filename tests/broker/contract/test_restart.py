"""A namespace that is stopped and started on the same data folder goes on where it was."""

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
from tests.broker.contract.bus import (
    Bus,
    Place,
    QueuePlace,
    SessionQueuePlace,
    SubscriptionPlace,
    peek,
    receive,
    texts,
)

from twinbus.broker import QueueDescription, SubscriptionDescription
from twinbus.broker.descriptions import AnyDescription
from twinbus.broker.durations import TICKS_PER_SECOND
from twinbus.broker.security import ROOT_POLICY

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

_Place = TypeVar("_Place", bound=Place)
FAR = 3600  # seconds


@dataclass
class Before:
    """What was there before the namespace was stopped."""

    places: dict[str, Place]
    numbers: dict[str, int]
    descriptions: dict[str, AnyDescription]
    counts: dict[str, Any]
    policy: Any
    created_at: float


@dataclass
class Restarted:
    before: Before
    bus: Bus

    async def open(self, kind: type[_Place], name: str, **options: Any) -> _Place:
        """The place of that name, with new links."""
        place = kind(self.bus, self.before.places[name].path)
        await place.connect(**options)
        return place


async def _fill(bus: Bus) -> Before:
    """Bring the namespace into every state that should outlive it; each place is one test's."""
    kinds: dict[str, tuple[type[Place], dict[str, Any]]] = {
        "active": (QueuePlace, {}),
        "locked": (QueuePlace, {}),
        "abandoned": (QueuePlace, {}),
        "deferred": (QueuePlace, {}),
        "scheduled": (QueuePlace, {}),
        "dead": (QueuePlace, {}),
        "duplicates": (QueuePlace, {"requires_duplicate_detection": True}),
        "expiring": (QueuePlace, {"dead_lettering_on_message_expiration": True}),
        "sessions": (SessionQueuePlace, {}),
        "topic": (SubscriptionPlace, {}),
        "scheduled topic": (SubscriptionPlace, {}),
    }
    opened = await asyncio.gather(*(kind.open(bus, **properties) for kind, properties in kinds.values()))
    places = dict(zip(kinds, opened, strict=True))
    numbers: dict[str, int] = {}

    await places["active"].put("one", "two", "three")
    await places["active"].receiver.complete_message(await places["active"].receive_one())
    await places["locked"].put("one")
    await places["locked"].receive_one()
    await places["abandoned"].put("one")
    await places["abandoned"].receiver.abandon_message(await places["abandoned"].receive_one())
    await places["deferred"].put("one")
    deferred = await places["deferred"].receive_one()
    await places["deferred"].receiver.defer_message(deferred)
    numbers["deferred"] = deferred.sequence_number
    later = [ServiceBusMessage("later"), ServiceBusMessage("cancelled")]
    due = bus.clock.in_seconds(FAR)
    numbers["later"], numbers["cancelled"] = await places["scheduled"].sender.schedule_messages(later, due)
    await places["dead"].put("bad")
    await places["dead"].receiver.dead_letter_message(await places["dead"].receive_one(), reason="Unreadable")
    await places["duplicates"].put("one", message_id="a")
    await places["expiring"].put("short", time_to_live=timedelta(seconds=FAR))
    sessions = places["sessions"]
    await sessions.put("a1", "a2")
    await sessions.receive_one()
    await sessions.receiver.session.set_state("half done")
    await places["topic"].put("one")
    await places["scheduled topic"].sender.schedule_messages(ServiceBusMessage("later"), due)

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
        SubscriptionDescription(_topic(places["topic"]), "second", max_delivery_count=3)
    )
    described = [*namespace.queues(), *namespace.topics()]
    return Before(
        places,
        numbers,
        {entity.description.path: entity.description for entity in described},
        {entity.description.path: (entity.counts, entity.size_in_bytes) for entity in described},
        namespace.policy(ROOT_POLICY),
        namespace.created_at,
    )


def _topic(place: Place) -> str:
    return place.path.partition("/")[0]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def restarted(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Restarted]:
    data: Path = tmp_path_factory.mktemp("data")
    async with Bus(data=data) as first:
        before = await _fill(first)
    async with Bus(data=data) as second:
        yield Restarted(before, second)


async def test_descriptions_are_kept(restarted: Restarted) -> None:
    namespace = restarted.bus.namespace
    found = {entity.description.path: entity.description for entity in [*namespace.queues(), *namespace.topics()]}
    assert found == restarted.before.descriptions
    special = found["special"]
    assert isinstance(special, QueueDescription)
    assert special.max_delivery_count == 7


async def test_subscriptions_are_kept(restarted: Restarted) -> None:
    node = restarted.bus.namespace.entities.resolve(_topic(restarted.before.places["topic"]) + "/Subscriptions/second")
    assert node is not None
    assert node.queue.limits.max_delivery_count == 3


async def test_counts_and_sizes_are_kept(restarted: Restarted) -> None:
    namespace = restarted.bus.namespace
    described = [*namespace.queues(), *namespace.topics()]
    found = {entity.description.path: (entity.counts, entity.size_in_bytes) for entity in described}
    for name in ("dead", "deferred", "expiring", "scheduled topic"):  # no test changes what is in these
        path = restarted.before.places[name].path.partition("/")[0]
        assert found[path] == restarted.before.counts[path]


async def test_keys_are_kept(restarted: Restarted) -> None:
    assert restarted.bus.namespace.policy(ROOT_POLICY) == restarted.before.policy


async def test_the_namespace_remembers_when_it_was_made(restarted: Restarted) -> None:
    assert restarted.bus.namespace.created_at == restarted.before.created_at


async def test_messages_are_kept_in_order_and_completed_ones_stay_gone(restarted: Restarted) -> None:
    place = await restarted.open(QueuePlace, "active")
    received = await place.receive(2)
    assert texts(received) == ["two", "three"]
    assert await place.peek_texts() == ["two", "three"]


async def test_sequence_numbers_go_on(restarted: Restarted) -> None:
    place = await restarted.open(QueuePlace, "abandoned")
    await place.put("new")
    old, new = await place.receive(2)
    assert new.sequence_number > old.sequence_number


async def test_the_delivery_count_is_kept(restarted: Restarted) -> None:
    place = await restarted.open(QueuePlace, "abandoned")
    [message] = [message for message in await place.peek() if str(message) == "one"]
    assert message.delivery_count == 1


async def test_a_locked_message_is_free(restarted: Restarted) -> None:
    place = await restarted.open(QueuePlace, "locked")
    assert texts(await place.receive()) == ["one"]


async def test_a_deferred_message_is_received_by_its_sequence_number(restarted: Restarted) -> None:
    place = await restarted.open(QueuePlace, "deferred")
    [peeked] = await place.peek()
    assert peeked.state == ServiceBusMessageState.DEFERRED
    [deferred] = await place.receiver.receive_deferred_messages(restarted.before.numbers["deferred"])
    assert str(deferred) == "one"


async def test_a_scheduled_message_can_be_cancelled(restarted: Restarted) -> None:
    place = await restarted.open(QueuePlace, "scheduled")
    await place.sender.cancel_scheduled_messages(restarted.before.numbers["cancelled"])
    assert await place.peek_texts() == ["later"]


async def test_dead_letters_are_kept(restarted: Restarted) -> None:
    place = QueuePlace(restarted.bus, restarted.before.places["dead"].path)
    [dead] = await peek(await place.open_dead_letters())
    assert (str(dead), dead.dead_letter_reason) == ("bad", "Unreadable")


async def test_a_duplicate_is_still_dropped(restarted: Restarted) -> None:
    place = await restarted.open(QueuePlace, "duplicates")
    await place.put("again", message_id="a")
    assert await place.peek_texts() == ["one"]


async def test_a_session_keeps_its_state_and_messages_and_is_free(restarted: Restarted) -> None:
    place = SessionQueuePlace(restarted.bus, restarted.before.places["sessions"].path)
    receiver = await place.open_session(NEXT_AVAILABLE_SESSION)
    assert receiver.session.session_id == "a"
    assert await receiver.session.get_state() == b"half done"
    assert texts(await receive(receiver, 2)) == ["a1", "a2"]


async def test_each_subscription_keeps_its_messages(restarted: Restarted) -> None:
    place = await restarted.open(SubscriptionPlace, "topic")
    assert texts(await place.receive()) == ["one"]
    await place.put("two")
    second = restarted.bus.client.get_subscription_receiver(place.topic, "second")
    await restarted.bus.open(second)
    assert texts(await receive(second)) == ["two"]


async def test_what_became_due_or_expired_meanwhile_is_handled_at_the_start(
    tmp_path: Path,
) -> None:
    async with Bus(data=tmp_path) as first:
        queue = await QueuePlace.open(first, dead_lettering_on_message_expiration=True)
        topic = await SubscriptionPlace.open(first)
        due = first.clock.in_seconds(60)
        for place in (queue, topic):
            await place.sender.schedule_messages(ServiceBusMessage("later"), due)
        await queue.put("short", time_to_live=timedelta(seconds=30))
    second = Bus(data=tmp_path)
    second.clock.ahead = 61
    async with second:
        queue, topic = QueuePlace(second, queue.path), SubscriptionPlace(second, topic.path)
        await queue.connect()
        assert texts(await queue.receive()) == ["later"]
        assert await queue.peek_texts() == ["later"]
        assert texts(await peek(await queue.open_dead_letters())) == ["short"]
        await topic.connect()
        assert texts(await topic.receive()) == ["later"]
