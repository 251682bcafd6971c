"""SPEC 1: what pairing does for an application, as the namespaces count it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusAuthorizationError
from tests.spec.namespace_pair import Client, NamespacePair, backlog_path, eventually, new_message
from tests.syphon.diverted import entries_of

from twinbus import Diverted, EntityFailedOverError, EntityState, FailedOver, PingFailed, Recovered, Route, Suspected
from twinbus.amqp.codec import sections
from twinbus.emulator import FaultKind, FaultPoint
from twinbus.ledger.recorder import OperationKind, Outcome


def in_an_hour() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


def batch_of(sender: Any) -> Any:
    batch = sender.create_message_batch()
    batch.add_message(new_message())
    return batch


# ---- while the primary is healthy ----


def test_healthy_primary_gets_message_as_the_sdk_sends_it(namespaces: NamespacePair, kind: str) -> None:
    paired_queue, sdk_queue = namespaces.queue(namespaces.new_name()), namespaces.queue(namespaces.new_name())
    message = new_message(
        "hello",
        message_id="m",
        session_id="s",
        correlation_id="c",
        subject="order",
        application_properties={"n": 1, "t": "x"},
        scheduled_enqueue_time_utc=datetime(2020, 1, 1, tzinfo=UTC),
    )
    with (
        ServiceBusClient.from_connection_string(namespaces.primary.connection_string) as sdk,
        sdk.get_queue_sender(sdk_queue.path) as sender,
    ):
        sender.send_messages(message)
    with namespaces.client(kind) as client:
        client.get_queue_sender(paired_queue.path).send_messages(message)
        assert namespaces.stored(client) == [0, 0]
    [arrived], [expected] = namespaces.messages(paired_queue), namespaces.messages(sdk_queue)
    by_pairing, by_sdk = (sections.split_sections(message.encoded()) for message in (arrived, expected))
    for name in ("header", "properties", "application_properties", "body"):
        assert getattr(by_pairing, name) == getattr(by_sdk, name), name
    assert entries_of(by_pairing.message_annotations) == entries_of(by_sdk.message_annotations)


def test_healthy_primary_gets_no_pings_and_raises_no_events(namespaces: NamespacePair, kind: str) -> None:
    queue = namespaces.queue(namespaces.new_name())
    with namespaces.client(kind) as client:
        sender = client.get_queue_sender(queue.path)
        for _ in range(3):
            assert sender.send_messages(new_message()).route is Route.PRIMARY
        assert (queue.activity.received, queue.activity.pings, client.seen.events) == (3, 0, [])
        assert client.status().entities[0].state is EntityState.HEALTHY


# ---- the syphon is optional ----


def test_no_client_receives_from_the_backlog_without_enable_syphon(namespaces: NamespacePair, kind: str) -> None:
    queue = namespaces.queue(namespaces.new_name())
    with namespaces.client(kind, backlog_queue_count=1) as client:
        client.fail_over(queue.path)
        assert client.get_queue_sender(queue.path).send_messages(new_message()).route is Route.BACKLOG
        assert client.status().syphon is None
        assert namespaces.receivers(backlog_path(client.name, 0)) == 0
        assert namespaces.backlog(client).activity.delivered == 0


def test_enable_syphon_runs_one_pump_per_backlog_queue_until_close(namespaces: NamespacePair, kind: str) -> None:
    paths = [backlog_path("contoso-pumps-" + kind, index) for index in range(3)]
    with namespaces.client(kind, primary_name=f"contoso-pumps-{kind}", backlog_queue_count=3, enable_syphon=True):
        eventually(lambda: [namespaces.receivers(path) for path in paths] == [1, 1, 1])
    eventually(lambda: [namespaces.receivers(path) for path in paths] == [0, 0, 0])


# ---- failover ----


def assert_all_calls_are_diverted(client: Client, sender: Any) -> None:
    """Try every method of a sender."""
    assert sender.send_messages(new_message()).route is Route.BACKLOG
    assert sender.send_messages([new_message(), new_message()]).route is Route.BACKLOG
    assert sender.send_messages(batch_of(sender)).route is Route.BACKLOG
    assert sender.schedule_messages(new_message(), in_an_hour())[0] < 0
    with pytest.raises(EntityFailedOverError):
        sender.cancel_scheduled_messages(1)


def test_after_failover_the_primary_gets_only_pings_from_all_senders(namespaces: NamespacePair, kind: str) -> None:
    queue = namespaces.queue(namespaces.new_name())
    with namespaces.client(kind) as client:
        failing, unaware = (client.get_queue_sender(queue.path) for _ in range(2))
        attaches = namespaces.count_operations(queue.path, FaultPoint.ATTACH)
        management = namespaces.count_operations(queue.path, FaultPoint.MANAGEMENT)
        assert unaware.send_messages(new_message()).route is Route.PRIMARY
        refused = namespaces.add_fault(queue.path)
        assert failing.send_messages(new_message()).route is Route.BACKLOG
        late = client.get_queue_sender(queue.path.upper())
        for sender in (failing, unaware, late):
            assert_all_calls_are_diverted(client, sender)
        client.seen.next(PingFailed)
        namespaces.repair(refused)
        client.seen.next(Recovered)

        pings = [row.outcome for row in client.recorder.operations if row.operation is OperationKind.PING]
        assert len(pings) >= 2
        assert (pings.count(Outcome.DONE), queue.activity.pings) == (1, 1)
        # One send of the failing sender was refused, and all pings but the last.
        assert refused.fired == 1 + len(pings) - 1
        # One link per sender that tried the primary, and a fresh one per ping.
        assert (attaches.fired, management.fired) == (2 + len(pings), 0)
        assert queue.activity.received == 1
        assert sum(namespaces.stored(client)) == 1 + 3 * 5


def test_failover_is_per_entity_queue_or_topic(namespaces: NamespacePair, kind: str) -> None:
    queue, (topic, subscription) = (
        namespaces.queue(namespaces.new_name()),
        namespaces.topic(namespaces.new_name("events")),
    )
    with namespaces.client(kind, ping_primary_interval=1800) as client:
        to_queue, to_topic = client.get_queue_sender(queue.path), client.get_topic_sender(topic.path)
        namespaces.add_fault(queue.path)
        assert to_queue.send_messages(new_message()).route is Route.BACKLOG
        assert to_topic.send_messages(new_message()).route is Route.PRIMARY
        assert (queue.activity.received, subscription.counters.active) == (0, 1)
        client.fail_back(queue.path)
        namespaces.clear()
        namespaces.add_fault(topic.path)
        assert to_topic.send_messages(new_message()).route is Route.BACKLOG
        assert to_queue.send_messages(new_message()).route is Route.PRIMARY
        assert (queue.activity.received, subscription.counters.active) == (1, 1)


def test_one_failure_without_further_sends_fails_over_and_pings(namespaces: NamespacePair, kind: str) -> None:
    queue = namespaces.queue(namespaces.new_name())
    with namespaces.client(kind, failover_interval=1) as client:
        namespaces.add_fault(queue.path, count=1)
        client.get_queue_sender(queue.path).send_messages(new_message())
        began = client.seen.next(Suspected).at
        assert 1 <= (client.seen.next(FailedOver).at - began).total_seconds() < 5
        client.seen.next(Recovered)
        assert (queue.activity.pings, queue.activity.received) == (1, 0)


def test_failure_that_does_not_count_causes_no_failover(namespaces: NamespacePair, kind: str) -> None:
    queue = namespaces.queue(namespaces.new_name())
    with namespaces.client(kind) as client:
        sender = client.get_queue_sender(queue.path)
        namespaces.add_fault(queue.path, FaultKind.REJECT, condition="amqp:unauthorized-access", count=1)
        with pytest.raises(ServiceBusAuthorizationError):
            sender.send_messages(new_message())
        assert sender.send_messages(new_message()).route is Route.PRIMARY
        client.fail_over(queue.path)
        assert [event.forced for event in client.seen.first(1, FailedOver)] == [True]
        assert client.seen.all(Diverted) == []
