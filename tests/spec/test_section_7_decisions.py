"""SPEC 7: where the sources disagree, what we do, seen by an application."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessagingEntityDisabledError
from tests.pairing.paired import Stage
from tests.pairing.test_sender_failover import SettableClock
from tests.spec.house import House, backlog_path, eventually, text
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
from twinbus.broker import AZURE, Kind, Operation, QueueDescription

COOLDOWN = 60.0


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage.set_up(AZURE) as running:
        yield running


# ---- what starts the timer ----


def test_a_disabled_entity_counts_with_the_documented_policy_only(house: House, kind: str) -> None:
    queue = house.queue(house.a_name())
    house.strike(queue.path, Kind.DISABLE)
    with house.client(kind) as client:
        with pytest.raises(MessagingEntityDisabledError):
            client.get_queue_sender(queue.path).send_messages(text())
        client.fail_over(queue.path)
        assert [event.forced for event in client.seen.first(1, FailedOver)] == [True]
        assert client.seen.all(Suspected) == []
    documented = FailoverPolicy.documented()
    with house.client(kind, policy=documented, ping_primary_interval=1800) as client:
        assert client.get_queue_sender(queue.path).send_messages(text()).route is Route.BACKLOG


# ---- the failed message while the timer runs ----


def test_while_the_timer_runs_each_send_tries_the_primary_first_and_the_failed_message_itself_is_diverted(
    house: House, kind: str
) -> None:
    queue = house.queue(house.a_name())
    with house.client(kind, failover_interval=3600, backlog_queue_count=1) as client:
        sender = client.get_queue_sender(queue.path)
        attaches, down = house.counting(queue.path, Operation.ATTACH), house.strike(queue.path)
        for number in range(3):
            receipt = sender.send_messages(text(message_id=str(number)))
            assert (receipt.route, receipt.message_ids) == (Route.BACKLOG, (str(number),))
        assert (down.fired, attaches.fired) == (3, 3)  # each on a fresh link, or it would be no verdict
        assert client.status().entities[0].state is EntityState.SUSPECT
        house.mend(down)
        assert sender.send_messages(text()).route is Route.PRIMARY
        assert client.status().entities[0].state is EntityState.HEALTHY
        assert (queue.activity.received, queue.activity.pings, house.stored(client, 1)) == (1, 0, [3])


# ---- the rotation ----


def test_a_retired_queue_is_used_by_nobody_until_its_cool_down_is_over(stage: Stage, kind: str) -> None:
    clock = SettableClock()
    with stage.pair(kind, clock=clock, backlog_cooldown=COOLDOWN, backlog_queue_count=2) as pair:
        pair.pairing.fail_over(pair.path)
        sender, late = pair.sender(), pair.sender()
        full = sender.send_messages(text()).queue
        index = pair.stored.index(1)
        pair.strike_queue(index, Kind.FILL)
        other = sender.send_messages(text()).queue
        assert other != full
        stage.clear()
        clock.now += COOLDOWN - 1
        assert late.send_messages(text()).queue == sender.send_messages(text()).queue == other
        clock.now += 1
        pair.strike_queue(1 - index, Kind.FILL)
        assert sender.send_messages(text()).queue == full
        assert [one.queue for one in pair.events.all(BacklogQueueRestored)] == [full]
        assert pair.stored[index] == 2
        stage.clear()


def test_if_all_queues_are_retired_the_one_retired_longest_ago_is_tried_before_giving_up(
    stage: Stage, kind: str
) -> None:
    clock = SettableClock()
    with stage.pair(kind, clock=clock, backlog_cooldown=COOLDOWN) as pair:
        pair.pairing.fail_over(pair.path)
        for index in (1, 2, 0):
            pair.pairing.queue_failed(index, OSError("gone"))
            clock.now += 1
        assert len(pair.events.all(BacklogQueueRetired)) == 3
        assert pair.sender().send_messages(text()).queue == pair.pairing.queue_path(1)
        assert pair.stored == [0, 1, 0]


# ---- pings that fail for good ----


def test_a_ping_that_fails_for_good_is_reported_and_sends_keep_going_to_the_backlog(house: House, kind: str) -> None:
    queue = house.queue(house.a_name())
    with house.client(kind, failover_interval=0.5) as client:
        sender = client.get_queue_sender(queue.path)
        house.strike(queue.path, count=1)
        assert sender.send_messages(text()).route is Route.BACKLOG
        namespace = house.primary.namespace
        house.primary.run(namespace.update(QueueDescription(queue.path, status="Disabled")))
        assert isinstance(client.seen.next(PingFailed).error, MessagingEntityDisabledError)
        assert sender.send_messages(text()).route is Route.BACKLOG
        [entity] = client.status().entities
        assert (entity.state, entity.error) == (EntityState.FAILED_OVER, "MessagingEntityDisabledError")
        house.primary.run(namespace.update(QueueDescription(queue.path)))
        client.seen.next(Recovered)
        assert sender.send_messages(text()).route is Route.PRIMARY
        assert (queue.activity.received, sum(house.stored(client))) == (1, 2)


# ---- time to live ----


@pytest.mark.parametrize("ttl", ["remaining", "restart"])
def test_time_in_the_backlog_counts_unless_it_restarts_and_what_expired_there_is_dead_lettered_with_a_reason(
    house: House, kind: str, ttl: str
) -> None:
    queue = house.queue(house.a_name())
    with house.client(kind, backlog_queue_count=1) as client:
        client.fail_over(queue.path)
        client.get_queue_sender(queue.path).send_messages(text(time_to_live=timedelta(seconds=1)))
        backlog = house.backlog(client)
        [stored] = house.messages(backlog)
        # The message stays where it is: only the syphon says that it is late. (The SDK knows no part of a second.)
        eventually(lambda: backlog.env.now_ms() > stored.enqueued_at + 1100)
        assert backlog.counters.active == 1
        options = {"primary_name": client.name, "backlog_queue_count": 1, "enable_syphon": True, "ttl": ttl}
        with house.client(kind, **options):
            eventually(lambda: backlog.counters.active == 0)
    dead = house.secondary.namespace.entities.resolve(f"{backlog_path(client.name, 0)}/$DeadLetterQueue")
    assert dead is not None
    reasons = [application_properties(one.encoded())["DeadLetterReason"] for one in house.messages(dead.queue)]
    expired = ttl == "remaining"
    assert (queue.activity.received, reasons) == ((0, ["ExpiredInBacklog"]) if expired else (1, []))


# ---- deliberate differences while healthy ----


def test_a_missing_message_id_is_filled_in_and_told_in_the_receipt(house: House, kind: str) -> None:
    queue = house.queue(house.a_name())
    with house.client(kind) as client:
        # A message of the SDK's own class always has one.
        receipt = client.get_queue_sender(queue.path).send_messages(AmqpAnnotatedMessage(data_body=b"no id"))
        with client.get_queue_receiver(queue.path) as receiver:
            [message] = receiver.peek_messages()
    assert message.message_id
    assert receipt.message_ids == (message.message_id,)
    assert (receipt.route, receipt.entity, receipt.queue, receipt.attempts) == (Route.PRIMARY, queue.path, None, 1)
