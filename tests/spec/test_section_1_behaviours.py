"""SPEC 1: what pairing does for an application, counted at the namespaces."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusAuthorizationError
from tests.spec.house import Client, House, backlog_path, eventually, text
from tests.syphon.diverted import entries_of

from twinbus import Diverted, EntityFailedOverError, EntityState, FailedOver, PingFailed, Recovered, Route, Suspected
from twinbus.amqp import sections
from twinbus.broker import Kind, Operation
from twinbus.ledger.recorder import OperationKind, Outcome


def in_an_hour() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


def batch_of(sender: Any) -> Any:
    batch = sender.create_message_batch()
    batch.add_message(text())
    return batch


# ---- while the primary is healthy ----


def test_while_the_primary_is_healthy_a_message_arrives_as_the_sdk_sends_it(house: House, kind: str) -> None:
    ours, theirs = house.queue(house.a_name()), house.queue(house.a_name())
    message = text(
        "hello",
        message_id="m",
        session_id="s",
        correlation_id="c",
        subject="order",
        application_properties={"n": 1, "t": "x"},
        scheduled_enqueue_time_utc=datetime(2020, 1, 1, tzinfo=UTC),
    )
    with (
        ServiceBusClient.from_connection_string(house.primary.connection_string) as sdk,
        sdk.get_queue_sender(theirs.path) as sender,
    ):
        sender.send_messages(message)
    with house.client(kind) as client:
        client.get_queue_sender(ours.path).send_messages(message)
        assert house.stored(client) == [0, 0]
    [arrived], [expected] = house.messages(ours), house.messages(theirs)
    found, wanted = (sections.split_sections(one.encoded()) for one in (arrived, expected))
    for name in ("header", "properties", "application_properties", "body"):
        assert getattr(found, name) == getattr(wanted, name), name
    assert entries_of(found.message_annotations) == entries_of(wanted.message_annotations)


def test_while_the_primary_is_healthy_nothing_is_pinged_and_no_event_comes(house: House, kind: str) -> None:
    queue = house.queue(house.a_name())
    with house.client(kind) as client:
        sender = client.get_queue_sender(queue.path)
        for _ in range(3):
            assert sender.send_messages(text()).route is Route.PRIMARY
        assert (queue.activity.received, queue.activity.pings, client.seen.events) == (3, 0, [])
        assert client.status().entities[0].state is EntityState.HEALTHY


# ---- the syphon is optional ----


def test_without_the_option_nobody_receives_from_the_backlog(house: House, kind: str) -> None:
    queue = house.queue(house.a_name())
    with house.client(kind, backlog_queue_count=1) as client:
        client.fail_over(queue.path)
        assert client.get_queue_sender(queue.path).send_messages(text()).route is Route.BACKLOG
        assert client.status().syphon is None
        assert house.receivers(backlog_path(client.name, 0)) == 0
        assert house.backlog(client).activity.delivered == 0


def test_with_the_option_one_pump_runs_for_each_backlog_queue_and_ends_with_the_client(house: House, kind: str) -> None:
    paths = [backlog_path("contoso-pumps-" + kind, index) for index in range(3)]
    with house.client(kind, primary_name=f"contoso-pumps-{kind}", backlog_queue_count=3, enable_syphon=True):
        eventually(lambda: [house.receivers(path) for path in paths] == [1, 1, 1])
    eventually(lambda: [house.receivers(path) for path in paths] == [0, 0, 0])


# ---- failover ----


def sends(client: Client, sender: Any) -> None:
    """Everything that a sender can do."""
    assert sender.send_messages(text()).route is Route.BACKLOG
    assert sender.send_messages([text(), text()]).route is Route.BACKLOG
    assert sender.send_messages(batch_of(sender)).route is Route.BACKLOG
    assert sender.schedule_messages(text(), in_an_hour())[0] < 0
    with pytest.raises(EntityFailedOverError):
        sender.cancel_scheduled_messages(1)


def test_after_failover_the_primary_sees_pings_and_nothing_else_also_from_senders_that_saw_no_failure(
    house: House, kind: str
) -> None:
    queue = house.queue(house.a_name())
    with house.client(kind) as client:
        witness, stranger = (client.get_queue_sender(queue.path) for _ in range(2))
        attaches = house.counting(queue.path, Operation.ATTACH)
        management = house.counting(queue.path, Operation.MANAGEMENT)
        assert stranger.send_messages(text()).route is Route.PRIMARY
        refused = house.strike(queue.path)
        assert witness.send_messages(text()).route is Route.BACKLOG
        latecomer = client.get_queue_sender(queue.path.upper())
        for sender in (witness, stranger, latecomer):
            sends(client, sender)
        client.seen.next(PingFailed)
        house.mend(refused)
        client.seen.next(Recovered)

        pings = [row.outcome for row in client.recorder.operations if row.operation is OperationKind.PING]
        assert len(pings) >= 2
        assert (pings.count(Outcome.DONE), queue.activity.pings) == (1, 1)
        # What was refused is what the witness tried once, and the pings before the last.
        assert refused.fired == 1 + len(pings) - 1
        # A link for the stranger, one for the witness, and a fresh one for each ping.
        assert (attaches.fired, management.fired) == (2 + len(pings), 0)
        assert queue.activity.received == 1
        assert sum(house.stored(client)) == 1 + 3 * 5


def test_failover_is_per_entity_queue_or_topic(house: House, kind: str) -> None:
    queue, (topic, subscription) = house.queue(house.a_name()), house.topic(house.a_name("events"))
    with house.client(kind, ping_primary_interval=1800) as client:
        to_queue, to_topic = client.get_queue_sender(queue.path), client.get_topic_sender(topic.path)
        house.strike(queue.path)
        assert to_queue.send_messages(text()).route is Route.BACKLOG
        assert to_topic.send_messages(text()).route is Route.PRIMARY
        assert (queue.activity.received, subscription.counters.active) == (0, 1)
        client.fail_back(queue.path)
        house.clear()
        house.strike(topic.path)
        assert to_topic.send_messages(text()).route is Route.BACKLOG
        assert to_queue.send_messages(text()).route is Route.PRIMARY
        assert (queue.activity.received, subscription.counters.active) == (1, 1)


def test_one_failure_and_then_silence_fails_over_by_the_clock_and_pings(house: House, kind: str) -> None:
    queue = house.queue(house.a_name())
    with house.client(kind, failover_interval=1) as client:
        house.strike(queue.path, count=1)
        client.get_queue_sender(queue.path).send_messages(text())
        began = client.seen.next(Suspected).at
        assert 1 <= (client.seen.next(FailedOver).at - began).total_seconds() < 5
        client.seen.next(Recovered)
        assert (queue.activity.pings, queue.activity.received) == (1, 0)


def test_without_a_failure_that_counts_nothing_fails_over(house: House, kind: str) -> None:
    queue = house.queue(house.a_name())
    with house.client(kind) as client:
        sender = client.get_queue_sender(queue.path)
        house.strike(queue.path, Kind.REJECT, condition="amqp:unauthorized-access", count=1)
        with pytest.raises(ServiceBusAuthorizationError):
            sender.send_messages(text())
        assert sender.send_messages(text()).route is Route.PRIMARY
        client.fail_over(queue.path)
        assert [event.forced for event in client.seen.first(1, FailedOver)] == [True]
        assert client.seen.all(Diverted) == []
