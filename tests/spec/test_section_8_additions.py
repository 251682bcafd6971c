"""SPEC 8: what users missed, seen by an application of either kind."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import pytest
from tests.spec.house import USER, House, eventually, text
from tests.syphon.diverted import properties_of

from twinbus import EntityState, FailedOver, PingFailed, Recovered, Route, ScheduledInBacklogError, Suspected
from twinbus.broker import Kind, Operation


def in_an_hour() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


# ---- control and insight ----


def test_failover_and_failback_can_be_forced_and_the_status_says_so(house: House, kind: str) -> None:
    queue = house.queue(house.a_name())
    with house.client(kind) as client:
        sender = client.get_queue_sender(queue.path)
        client.fail_over(queue.path)
        [entity] = client.status().entities
        assert (entity.state, entity.is_forced) == (EntityState.FAILED_OVER, True)
        assert sender.send_messages(text()).route is Route.BACKLOG
        client.fail_back(queue.path)
        assert sender.send_messages(text()).route is Route.PRIMARY
        assert [event.forced for event in client.seen.first(1, Recovered)] == [True]
        assert [event.forced for event in client.seen.all(FailedOver)] == [True]
        assert (queue.activity.received, queue.activity.pings, sum(house.stored(client))) == (1, 0, 1)


def test_the_hosted_syphon_leaves_an_entity_alone_that_was_failed_over_by_hand_until_it_is_failed_back(
    house: House, kind: str
) -> None:
    held, other = house.queue(house.a_name()), house.queue(house.a_name())
    reached = house.counting(held.path, Operation.SEND, Operation.ATTACH)
    with house.client(kind, enable_syphon=True, backlog_queue_count=1) as client:
        backlog = house.backlog(client)
        client.fail_over(held.path)
        house.strike(other.path, count=1)
        for queue in (held, other):
            assert client.get_queue_sender(queue.path).send_messages(text()).route is Route.BACKLOG
        eventually(lambda: other.activity.received == 1)
        eventually(lambda: backlog.counters.deferred == 1)
        assert client.status().syphon.held_back == (held.path,)
        assert (reached.fired, held.activity.received) == (0, 0)
        client.fail_back(held.path)
        eventually(lambda: held.activity.received == 1)
        assert client.status().syphon.held_back == ()


def test_a_failover_by_hand_during_an_outage_holds_the_syphon_back_as_well(house: House, kind: str) -> None:
    queue = house.queue(house.a_name())
    down = house.strike(queue.path)
    with house.client(kind, enable_syphon=True, backlog_queue_count=1, ping_primary_interval=1800) as client:
        assert client.get_queue_sender(queue.path).send_messages(text()).route is Route.BACKLOG
        client.seen.next(PingFailed)
        client.fail_over(queue.path)
        assert [event.forced for event in client.seen.first(2, FailedOver)] == [False, True]
        eventually(lambda: client.status().syphon.held_back == (queue.path,))
        house.mend(down)
        reached = house.counting(queue.path, Operation.SEND)
        eventually(lambda: house.backlog(client).counters.deferred == 1)
        assert (reached.fired, queue.activity.received) == (0, 0)
        client.fail_back(queue.path)
        eventually(lambda: queue.activity.received == 1)


def test_logs_tell_of_the_failover_and_hold_no_body_and_no_key(
    house: House, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = house.queue(house.a_name())
    with caplog.at_level(logging.DEBUG, "twinbus"), house.client(kind, enable_syphon=True) as client:
        house.strike(queue.path, count=1)
        client.get_queue_sender(queue.path).send_messages(text("the secret body"))
        client.seen.next(Recovered)
        eventually(lambda: queue.activity.received == 1)
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("twinbus")]
    name = client.status().name
    assert f"{name}: {queue.path} has failed over: its messages go to the backlog" in ours
    assert f"{name}: {queue.path} is back: its messages go to the primary" in ours
    key = house.primary.connection_string.split("SharedAccessKey=")[1].split(";")[0]
    assert not [line for line in ours if "the secret body" in line or key in line]


# ---- order within a session ----


def test_the_queue_of_a_session_is_the_same_for_every_client_and_sessions_are_spread(house: House) -> None:
    name = house.a_name("contoso")
    options = {"primary_name": name, "backlog_queue_count": 3, "order": "session"}
    with house.client("sync", **options) as one, house.client("aio", **options) as other:
        chosen = []
        for client in (one, other):
            client.fail_over("orders")
            sender = client.get_queue_sender("orders")
            chosen.append([sender.send_messages(text(session_id=str(number))).queue for number in range(8)])
    assert chosen[0] == chosen[1]
    assert len(set(chosen[0])) > 1


def test_a_session_of_which_one_message_is_diverted_stays_diverted_until_none_of_it_is_left(house: House) -> None:
    """The synchronous client; for the other one see tests/client/test_order.py."""
    kind = "sync"
    queue = house.queue(house.a_name(), requires_session=True)
    with house.client(kind, order="session") as client:
        sender = client.get_queue_sender(queue.path)
        client.fail_over(queue.path)
        assert sender.send_messages(text("1", session_id="a")).route is Route.BACKLOG
        client.fail_back(queue.path)
        assert sender.send_messages(text("2", session_id="a")).route is Route.BACKLOG
        assert sender.send_messages(text("1", session_id="b")).route is Route.PRIMARY
        assert client.status().diverted_sessions == 1
        with house.client(kind, primary_name=client.name, order="session", enable_syphon=True):
            eventually(lambda: client.status().diverted_sessions == 0)
        assert sender.send_messages(text("3", session_id="a")).route is Route.PRIMARY
        with client.get_queue_receiver(queue.path, session_id="a") as receiver:
            received: list[str] = []
            while len(received) < 3:
                received += map(str, receiver.receive_messages(3, max_wait_time=10))
        assert received == ["1", "2", "3"]


# ---- scheduling ----


def test_what_is_scheduled_in_failover_has_a_negative_number_that_cancels_nothing_and_waits_at_the_primary(
    house: House, kind: str
) -> None:
    queue = house.queue(house.a_name())
    with house.client(kind, enable_syphon=True) as client:
        sender = client.get_queue_sender(queue.path)
        [direct] = sender.schedule_messages(text(), in_an_hour())
        client.fail_over(queue.path)
        numbers = sender.schedule_messages([text(), text()], in_an_hour())
        assert len(set(numbers)) == 2
        assert max(numbers) < 0 < direct
        client.fail_back(queue.path)
        eventually(lambda: queue.counters.scheduled == 3)
        with pytest.raises(ScheduledInBacklogError, match=str(numbers[0])):
            sender.cancel_scheduled_messages([direct, *numbers])
        assert queue.counters.scheduled == 3
        sender.cancel_scheduled_messages(direct)
        assert queue.counters.scheduled == 2


# ---- starting ----


def test_existing_queues_need_no_manage_right(house: House, kind: str) -> None:
    name = house.a_name("contoso")
    with house.client(kind, primary_name=name):
        pass
    with house.client(kind, primary_name=name, signed_by=USER, create_backlog=False) as client:
        client.fail_over("orders")
        assert client.get_queue_sender("orders").send_messages(text()).route is Route.BACKLOG
        assert sum(house.stored(client)) == 1


def test_a_sender_opens_lazily(house: House, kind: str) -> None:
    queue = house.queue(house.a_name())
    attaches = house.counting(queue.path, Operation.ATTACH)
    with house.client(kind) as client, client.get_queue_sender(queue.path) as sender:
        assert attaches.fired == 0
        sender.send_messages(text())
        assert attaches.fired == 1


# ---- after recovery ----


def test_on_probation_one_failure_on_a_fresh_link_goes_straight_back_and_the_ping_interval_doubles(
    house: House, kind: str
) -> None:
    queue = house.queue(house.a_name())
    with house.client(kind, failover_interval=3600) as client:
        client.fail_over(queue.path)
        client.fail_back(queue.path)
        assert client.status().entities[0].state is EntityState.PROBATION
        house.strike(queue.path)
        assert client.get_queue_sender(queue.path).send_messages(text()).route is Route.BACKLOG
        assert client.status().entities[0].state is EntityState.FAILED_OVER
        assert client.seen.next(PingFailed).next_ping_in == 2
        assert client.seen.all(Suspected) == []


# ---- duplicates ----


def test_duplicate_detection_removes_the_copy_of_an_attempt_that_timed_out_and_arrived(house: House, kind: str) -> None:
    queue, plain = house.queue(house.a_name(), requires_duplicate_detection=True), house.queue(house.a_name())
    with house.client(kind, attempt_timeout=1, enable_syphon=True, backlog_queue_count=1) as client:
        for one in (queue, plain):
            house.strike(one.path, Kind.DROP_ACK, count=1)
            assert client.get_queue_sender(one.path).send_messages(text()).route is Route.BACKLOG
        eventually(lambda: house.backlog(client).activity.completed == 2)
    # The copy was taken out of the backlog and sent; only where nobody looks for duplicates it is there twice.
    assert (queue.activity.received, plain.activity.received) == (1, 2)
    assert len({properties_of(one.encoded())[0] for one in house.messages(plain)}) == 1  # the id is the same
