"""Auto-forwarding between entities, and dead-lettering of messages that cannot be forwarded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.exceptions import ServiceBusError
from tests.emulator.contract.bus import Bus, peek, receive, texts, until
from tests.emulator.wire import async_administration

from twinbus.emulator import Fault, FaultKind, QueueDescription, SubscriptionDescription, TopicDescription
from twinbus.servicebus.durations import TICKS_PER_SECOND
from twinbus.servicebus.entity_descriptions import InvalidDescriptionError
from twinbus.servicebus.property_bounds import EntityStatus
from twinbus.servicebus.rule_descriptions import FilterKind, RuleDescription, Sql

pytestmark = pytest.mark.asyncio(loop_scope="module")

NOT_DELIVERED = "$Transfer/$DeadLetterQueue"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def admin(bus: Bus) -> AsyncIterator[ServiceBusAdministrationClient]:
    async with async_administration(bus.namespace.connection_string) as client:
        yield client


async def queue(bus: Bus, **properties: Any) -> str:
    path = bus.new_name("q")
    await bus.namespace.create(QueueDescription(path, **properties))
    return path


async def send(bus: Bus, path: str, *messages: ServiceBusMessage | str) -> None:
    sender = bus.client.get_queue_sender(path)
    await bus.open(sender)
    batch = [ServiceBusMessage(message) if isinstance(message, str) else message for message in messages]
    await sender.send_messages(batch)


async def received(bus: Bus, path: str, count: int = 1, **options: Any) -> list[Any]:
    receiver = bus.client.get_queue_receiver(path, **options)
    await bus.open(receiver)
    return await receive(receiver, count)


async def chain(bus: Bus, length: int) -> list[str]:
    """Create queues, each of which forwards to the next."""
    paths = [await queue(bus)]
    for _ in range(length - 1):
        paths.insert(0, await queue(bus, forward_to=paths[0]))
    return paths


async def test_forwarding_keeps_order_and_properties(bus: Bus) -> None:
    first, last = await chain(bus, 2)
    kept = ServiceBusMessage(
        b"\x00\x01", message_id="m", subject="s", application_properties={"n": 7}, partition_key="p", session_id="p"
    )
    await send(bus, first, kept, *(str(number) for number in range(20)))
    messages = await received(bus, last, 21)
    assert texts(messages[1:]) == [str(number) for number in range(20)]
    assert b"".join(messages[0].body) == b"\x00\x01"
    assert (messages[0].message_id, messages[0].subject, messages[0].partition_key) == ("m", "s", "p")
    assert messages[0].application_properties == {b"n": 7}
    assert [message.enqueued_sequence_number for message in messages[:2]] == [1, 2]
    assert bus.broker_queue(first).counters.active == 0


async def test_message_is_forwarded_at_most_four_times(bus: Bus) -> None:
    paths = await chain(bus, 6)
    await send(bus, paths[1], "four hops")
    await send(bus, paths[0], "five hops")
    assert texts(await received(bus, paths[-1])) == ["four hops"]
    [lost] = await received(bus, paths[-2], sub_queue="transferdeadletter")
    assert str(lost) == "five hops"
    assert lost.dead_letter_reason == "MaxTransferHopCountExceeded"
    assert bus.broker_queue(paths[-1]).counters.active == 1


async def test_subscription_forwards_messages_that_match_its_rules(bus: Bus) -> None:
    target, topic = await queue(bus), bus.new_name("t")
    await bus.namespace.create(TopicDescription(topic))
    urgent = RuleDescription("urgent", Sql("priority > 5"), FilterKind.SQL)
    await bus.namespace.create_subscription(SubscriptionDescription(topic, "s", forward_to=target, rules=(urgent,)))
    sender = bus.client.get_topic_sender(topic)
    await bus.open(sender)
    # Messages that must not arrive are sent before the last one that must, so they would be there first.
    for number, priority in enumerate((1, 9, 5, 6)):
        await sender.send_messages(ServiceBusMessage(str(number), application_properties={"priority": priority}))
    assert texts(await received(bus, target, 2)) == ["1", "3"]
    assert bus.broker_queue(target).counters.last_sequence == 2
    assert bus.broker_queue(f"{topic}/Subscriptions/s").counters.last_sequence == 2


async def test_a_queue_forwards_to_a_topic(bus: Bus) -> None:
    topic = bus.new_name("t")
    await bus.namespace.create(TopicDescription(topic))
    for name in ("one", "two"):
        await bus.namespace.create_subscription(SubscriptionDescription(topic, name))
    await send(bus, await queue(bus, forward_to=topic), "to both")
    queues = [bus.broker_queue(f"{topic}/Subscriptions/{name}") for name in ("one", "two")]
    await until(lambda: [subscription.counters.active for subscription in queues] == [1, 1])


async def test_dead_letters_are_forwarded_and_name_their_source(bus: Bus) -> None:
    graveyard = await queue(bus)
    source = await queue(bus, forward_dead_lettered_messages_to=graveyard)
    await send(bus, source, "bad")
    receiver = bus.client.get_queue_receiver(source)
    await bus.open(receiver)
    await receiver.dead_letter_message((await receive(receiver))[0], reason="Unreadable")
    [dead] = await received(bus, graveyard)
    assert (str(dead), dead.dead_letter_reason, dead.dead_letter_source) == ("bad", "Unreadable", source)
    assert bus.broker_queue(f"{source}/$DeadLetterQueue").counters.active == 0


@pytest.mark.parametrize("cause", ["deleted", "disabled", "full", "session"])
async def test_undeliverable_message_goes_to_the_transfer_dead_letter_queue(
    bus: Bus, admin: ServiceBusAdministrationClient, cause: str
) -> None:
    target = await queue(bus, requires_session=cause == "session")
    source = await queue(bus, forward_to=target)
    if cause == "deleted":
        await bus.namespace.delete(target)
    elif cause == "disabled":
        await bus.namespace.update(QueueDescription(target, status=EntityStatus.SEND_DISABLED.value))
    elif cause == "full":
        bus.broker_queue(target).limits.max_bytes = 10
    await send(bus, source, "stranded")
    [stranded] = await received(bus, source, sub_queue="transferdeadletter")
    assert str(stranded) == "stranded"
    assert stranded.dead_letter_reason
    assert target in stranded.dead_letter_error_description
    properties = await admin.get_queue_runtime_properties(source)
    assert properties.transfer_dead_letter_message_count == properties.total_message_count == 1
    assert properties.active_message_count == 0


async def test_enabling_forwarding_moves_messages_and_detaches_receivers(bus: Bus) -> None:
    source, target = await queue(bus), await queue(bus)
    receiver = bus.client.get_queue_receiver(source)
    await bus.open(receiver)
    await send(bus, source, "old")
    await bus.namespace.update(QueueDescription(source, forward_to=target))
    assert texts(await received(bus, target)) == ["old"]
    with pytest.raises(ServiceBusError, match="auto-forwarding"):
        await receiver.receive_messages(max_wait_time=5)
    await bus.namespace.update(QueueDescription(source))
    await send(bus, source, "stays")
    assert texts(await received(bus, source)) == ["stays"]


async def test_receiver_of_a_forwarding_queue_is_refused(bus: Bus) -> None:
    first, _ = await chain(bus, 2)
    with pytest.raises(ServiceBusError, match="auto-forwarding"):
        await bus.open(bus.client.get_queue_receiver(first))


async def test_forwarded_message_keeps_its_remaining_time_to_live(bus: Bus) -> None:
    target = await queue(bus, dead_lettering_on_message_expiration=True)
    waits = QueueDescription(bus.new_name("q"))
    await bus.namespace.create(waits)
    await send(bus, waits.path, "long", ServiceBusMessage("short", time_to_live=timedelta(seconds=600)))
    await bus.advance(300)
    await bus.namespace.update(QueueDescription(waits.path, forward_to=target))
    await until(lambda: bus.broker_queue(target).counters.active == 2)
    await bus.advance(301)
    await until(lambda: bus.broker_queue(f"{target}/$DeadLetterQueue").counters.active == 1)


async def test_the_destination_detects_duplicates(bus: Bus) -> None:
    target = await queue(
        bus, requires_duplicate_detection=True, duplicate_detection_history_time_window=60 * TICKS_PER_SECOND
    )
    source = await queue(bus, forward_to=target)
    await send(bus, source, *(ServiceBusMessage("same", message_id="same") for _ in range(2)))
    await until(lambda: bus.broker_queue(source).counters.active == 0)
    assert bus.broker_queue(target).counters.active == 1


@pytest.mark.parametrize("dead_letters", [False, True])
async def test_a_loop_is_refused(bus: Bus, admin: ServiceBusAdministrationClient, dead_letters: bool) -> None:
    first, _, last = await chain(bus, 3)
    properties = await admin.get_queue(last)
    name = "forward_dead_lettered_messages_to" if dead_letters else "forward_to"
    with pytest.raises(HttpResponseError, match="would come back"):
        await admin.update_queue(properties, **{name: first})


async def test_a_loop_through_a_topic_is_refused(bus: Bus) -> None:
    topic = bus.new_name("t")
    await bus.namespace.create(TopicDescription(topic))
    source = await queue(bus, forward_to=topic)
    with pytest.raises(InvalidDescriptionError, match="would come back"):
        await bus.namespace.create_subscription(SubscriptionDescription(topic, "s", forward_to=source))


async def test_queue_that_forwards_to_itself_gives_up_after_four_hops(bus: Bus) -> None:
    path = await queue(bus)
    await bus.namespace.update(QueueDescription(path, forward_to=path))
    await send(bus, path, "round and round")
    [lost] = await received(bus, path, sub_queue="transferdeadletter")
    assert lost.dead_letter_reason == "MaxTransferHopCountExceeded"
    assert lost.sequence_number == 1
    assert bus.broker_queue(path).counters.last_sequence == 5


async def test_a_queue_with_sessions_forwards_session_by_session(bus: Bus) -> None:
    target = await queue(bus, requires_session=True)
    source = await queue(bus, requires_session=True)
    sent = [ServiceBusMessage(f"{number % 3}-{number}", session_id=str(number % 3)) for number in range(12)]
    await send(bus, source, *sent[:6])
    await bus.namespace.update(QueueDescription(source, requires_session=True, forward_to=target))
    await until(lambda: bus.broker_queue(target).counters.active == 6)
    await send(bus, source, *sent[6:])
    await until(lambda: bus.broker_queue(target).counters.active == 12)
    assert bus.broker_queue(source).counters.active == 0
    assert texts(await received(bus, target, 4, session_id="1")) == ["1-1", "1-4", "1-7", "1-10"]


@pytest.mark.parametrize(
    ("kind", "reason"), [(FaultKind.FILL, "DestinationQuotaExceeded"), (FaultKind.DISABLE, "ForwardingFailed")]
)
async def test_fault_at_the_destination_strikes_forwarded_messages(bus: Bus, kind: FaultKind, reason: str) -> None:
    source, destination = await chain(bus, 2)
    fault = bus.namespace.faults.add(Fault(kind, entity=destination))
    await send(bus, source, "stranded")
    [stranded] = await received(bus, source, sub_queue="transferdeadletter")
    assert (stranded.dead_letter_reason, fault.fired) == (reason, 1)
    bus.namespace.faults.remove(fault.id)
    await send(bus, source, "delivered")
    assert texts(await received(bus, destination)) == ["delivered"]


async def test_messages_waiting_to_be_forwarded_count_as_transfer(
    bus: Bus, admin: ServiceBusAdministrationClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = await chain(bus, 2)
    [forwarder] = bus.namespace.find(first).forwarders  # type: ignore[union-attr]
    monkeypatch.setattr(forwarder, "can_take", lambda: False)
    await send(bus, first, "waits")
    properties = await admin.get_queue_runtime_properties(first)
    assert (properties.transfer_message_count, properties.active_message_count) == (1, 0)


async def test_transfer_dead_letters_survive_a_restart(tmp_path: Any) -> None:
    async with Bus(data=tmp_path) as before:
        source = await queue(before, forward_to="nowhere")
        await send(before, source, "stranded")
        await until(lambda: before.broker_queue(f"{source}/{NOT_DELIVERED}").counters.active == 1)
    async with Bus(data=tmp_path) as after:
        receiver = after.client.get_queue_receiver(source, sub_queue="transferdeadletter")
        await after.open(receiver)
        assert texts(await peek(receiver)) == ["stranded"]
