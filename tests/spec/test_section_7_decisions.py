"""SPEC 7: decisions where the sources disagree, as an application sees them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessagingEntityDisabledError
from tests.pairing.paired import Stage
from tests.pairing.test_sender_failover import SettableClock
from tests.spec.namespace_pair import NamespacePair, backlog_path, eventually, new_message
from tests.syphon.bus import properties_of as application_properties

from twinbus import (
    BacklogQueueRestored,
    BacklogQueueRetired,
    EntityState,
    FailedOver,
    FailoverPolicy,
    PingFailed,
    Recovered,
    Route,
    Suspected,
)
from twinbus.emulator import AZURE, FaultKind, FaultPoint, QueueDescription

COOLDOWN = 60.0


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage.set_up(AZURE) as running:
        yield running


# ---- what starts the timer ----


def test_disabled_entity_counts_with_documented_policy_only(namespaces: NamespacePair, kind: str) -> None:
    queue = namespaces.queue(namespaces.new_name())
    namespaces.add_fault(queue.path, FaultKind.DISABLE)
    with namespaces.client(kind) as client:
        with pytest.raises(MessagingEntityDisabledError):
            client.get_queue_sender(queue.path).send_messages(new_message())
        client.fail_over(queue.path)
        assert [event.forced for event in client.seen.first(1, FailedOver)] == [True]
        assert client.seen.all(Suspected) == []
    documented = FailoverPolicy.documented()
    with namespaces.client(kind, policy=documented, ping_primary_interval=1800) as client:
        assert client.get_queue_sender(queue.path).send_messages(new_message()).route is Route.BACKLOG


# ---- the failed message while the timer runs ----


def test_suspect_entity_is_tried_first_and_failed_message_is_diverted(namespaces: NamespacePair, kind: str) -> None:
    queue = namespaces.queue(namespaces.new_name())
    with namespaces.client(kind, failover_interval=3600, backlog_queue_count=1) as client:
        sender = client.get_queue_sender(queue.path)
        attaches, down = namespaces.count_operations(queue.path, FaultPoint.ATTACH), namespaces.add_fault(queue.path)
        for number in range(3):
            receipt = sender.send_messages(new_message(message_id=str(number)))
            assert (receipt.route, receipt.message_ids) == (Route.BACKLOG, (str(number),))
        assert (down.fired, attaches.fired) == (3, 3)  # each on a fresh link, otherwise the failure would not count
        assert client.status().entities[0].state is EntityState.SUSPECT
        namespaces.repair(down)
        assert sender.send_messages(new_message()).route is Route.PRIMARY
        assert client.status().entities[0].state is EntityState.HEALTHY
        assert (queue.activity.received, queue.activity.pings, namespaces.stored(client, 1)) == (1, 0, [3])


# ---- the rotation ----


def test_retired_queue_is_unused_until_its_cooldown_ends(stage: Stage, kind: str) -> None:
    clock = SettableClock()
    with stage.pair(kind, clock=clock, backlog_cooldown=COOLDOWN, backlog_queue_count=2) as pair:
        pair.pairing.fail_over(pair.path)
        sender, late = pair.sender(), pair.sender()
        full = sender.send_messages(new_message()).queue
        index = pair.stored.index(1)
        pair.strike_queue(index, FaultKind.FILL)
        other = sender.send_messages(new_message()).queue
        assert other != full
        stage.clear()
        clock.now += COOLDOWN - 1
        assert late.send_messages(new_message()).queue == sender.send_messages(new_message()).queue == other
        clock.now += 1
        pair.strike_queue(1 - index, FaultKind.FILL)
        assert sender.send_messages(new_message()).queue == full
        assert [event.queue for event in pair.events.all(BacklogQueueRestored)] == [full]
        assert pair.stored[index] == 2
        stage.clear()


def test_longest_retired_queue_is_tried_when_all_are_retired(stage: Stage, kind: str) -> None:
    clock = SettableClock()
    with stage.pair(kind, clock=clock, backlog_cooldown=COOLDOWN) as pair:
        pair.pairing.fail_over(pair.path)
        for index in (1, 2, 0):
            pair.pairing.queue_failed(index, OSError("gone"))
            clock.now += 1
        assert len(pair.events.all(BacklogQueueRetired)) == 3
        assert pair.sender().send_messages(new_message()).queue == pair.pairing.queue_path(1)
        assert pair.stored == [0, 1, 0]


# ---- pings that fail for good ----


def test_permanently_failing_ping_is_reported_and_sends_stay_diverted(namespaces: NamespacePair, kind: str) -> None:
    queue = namespaces.queue(namespaces.new_name())
    with namespaces.client(kind, failover_interval=0.5) as client:
        sender = client.get_queue_sender(queue.path)
        namespaces.add_fault(queue.path, count=1)
        assert sender.send_messages(new_message()).route is Route.BACKLOG
        namespace = namespaces.primary.namespace
        namespaces.primary.run(namespace.update(QueueDescription(queue.path, status="Disabled")))
        assert isinstance(client.seen.next(PingFailed).error, MessagingEntityDisabledError)
        assert sender.send_messages(new_message()).route is Route.BACKLOG
        [entity] = client.status().entities
        assert (entity.state, entity.error) == (EntityState.FAILED_OVER, "MessagingEntityDisabledError")
        namespaces.primary.run(namespace.update(QueueDescription(queue.path)))
        client.seen.next(Recovered)
        assert sender.send_messages(new_message()).route is Route.PRIMARY
        assert (queue.activity.received, sum(namespaces.stored(client))) == (1, 2)


# ---- time to live ----


@pytest.mark.parametrize("ttl", ["remaining", "restart"])
def test_time_in_backlog_counts_with_remaining_and_expired_message_is_dead_lettered(
    namespaces: NamespacePair, kind: str, ttl: str
) -> None:
    queue = namespaces.queue(namespaces.new_name())
    with namespaces.client(kind, backlog_queue_count=1) as client:
        client.fail_over(queue.path)
        client.get_queue_sender(queue.path).send_messages(new_message(time_to_live=timedelta(seconds=1)))
        backlog = namespaces.backlog(client)
        [stored] = namespaces.messages(backlog)
        # The message stays in the queue: only the syphon treats it as expired. (The SDK rounds to seconds.)
        eventually(lambda: backlog.env.now_ms() > stored.enqueued_at + 1100)
        assert backlog.counters.active == 1
        options = {"primary_name": client.name, "backlog_queue_count": 1, "enable_syphon": True, "ttl": ttl}
        with namespaces.client(kind, **options):
            eventually(lambda: backlog.counters.active == 0)
    dead = namespaces.secondary.namespace.entities.resolve(f"{backlog_path(client.name, 0)}/$DeadLetterQueue")
    assert dead is not None
    reasons = [
        application_properties(message.encoded())["DeadLetterReason"] for message in namespaces.messages(dead.queue)
    ]
    is_expired = ttl == "remaining"
    assert (queue.activity.received, reasons) == ((0, ["ExpiredInBacklog"]) if is_expired else (1, []))


# ---- deliberate differences while healthy ----


def test_missing_message_id_is_generated_and_returned_in_receipt(namespaces: NamespacePair, kind: str) -> None:
    queue = namespaces.queue(namespaces.new_name())
    with namespaces.client(kind) as client:
        # A ServiceBusMessage always has an id.
        receipt = client.get_queue_sender(queue.path).send_messages(AmqpAnnotatedMessage(data_body=b"no id"))
        with client.get_queue_receiver(queue.path) as receiver:
            [message] = receiver.peek_messages()
    assert message.message_id
    assert receipt.message_ids == (message.message_id,)
    assert (receipt.route, receipt.entity, receipt.queue, receipt.attempts) == (Route.PRIMARY, queue.path, None, 1)
