"""SPEC 8: additions that users asked for, as an application of either kind sees them."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import pytest
from tests.spec.namespace_pair import USER, NamespacePair, eventually, new_message
from tests.syphon.diverted import properties_of

from twinbus import EntityState, FailedOver, PingFailed, Recovered, Route, ScheduledInBacklogError, Suspected
from twinbus.emulator import FaultKind, FaultPoint


def in_an_hour() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


# ---- control and insight ----


def test_forced_failover_and_failback_show_in_status(namespaces: NamespacePair, kind: str) -> None:
    queue = namespaces.queue(namespaces.new_name())
    with namespaces.client(kind) as client:
        sender = client.get_queue_sender(queue.path)
        client.fail_over(queue.path)
        [entity] = client.status().entities
        assert (entity.state, entity.is_forced) == (EntityState.FAILED_OVER, True)
        assert sender.send_messages(new_message()).route is Route.BACKLOG
        client.fail_back(queue.path)
        assert sender.send_messages(new_message()).route is Route.PRIMARY
        assert [event.forced for event in client.seen.first(1, Recovered)] == [True]
        assert [event.forced for event in client.seen.all(FailedOver)] == [True]
        assert (queue.activity.received, queue.activity.pings, sum(namespaces.stored(client))) == (1, 0, 1)


def test_hosted_syphon_holds_back_forced_entity_until_fail_back(namespaces: NamespacePair, kind: str) -> None:
    held, other = namespaces.queue(namespaces.new_name()), namespaces.queue(namespaces.new_name())
    reached = namespaces.count_operations(held.path, FaultPoint.SEND, FaultPoint.ATTACH)
    with namespaces.client(kind, enable_syphon=True, backlog_queue_count=1) as client:
        backlog = namespaces.backlog(client)
        client.fail_over(held.path)
        namespaces.add_fault(other.path, count=1)
        for queue in (held, other):
            assert client.get_queue_sender(queue.path).send_messages(new_message()).route is Route.BACKLOG
        eventually(lambda: other.activity.received == 1)
        eventually(lambda: backlog.counters.deferred == 1)
        assert client.status().syphon.held_back == (held.path,)
        assert (reached.fired, held.activity.received) == (0, 0)
        client.fail_back(held.path)
        eventually(lambda: held.activity.received == 1)
        assert client.status().syphon.held_back == ()


def test_forced_failover_during_outage_holds_back_the_syphon(namespaces: NamespacePair, kind: str) -> None:
    queue = namespaces.queue(namespaces.new_name())
    down = namespaces.add_fault(queue.path)
    with namespaces.client(kind, enable_syphon=True, backlog_queue_count=1, ping_primary_interval=1800) as client:
        assert client.get_queue_sender(queue.path).send_messages(new_message()).route is Route.BACKLOG
        client.seen.next(PingFailed)
        client.fail_over(queue.path)
        assert [event.forced for event in client.seen.first(2, FailedOver)] == [False, True]
        eventually(lambda: client.status().syphon.held_back == (queue.path,))
        namespaces.repair(down)
        reached = namespaces.count_operations(queue.path, FaultPoint.SEND)
        eventually(lambda: namespaces.backlog(client).counters.deferred == 1)
        assert (reached.fired, queue.activity.received) == (0, 0)
        client.fail_back(queue.path)
        eventually(lambda: queue.activity.received == 1)


def test_logs_report_failover_without_bodies_or_keys(
    namespaces: NamespacePair, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = namespaces.queue(namespaces.new_name())
    with caplog.at_level(logging.DEBUG, "twinbus"), namespaces.client(kind, enable_syphon=True) as client:
        namespaces.add_fault(queue.path, count=1)
        client.get_queue_sender(queue.path).send_messages(new_message("the secret body"))
        client.seen.next(Recovered)
        eventually(lambda: queue.activity.received == 1)
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("twinbus")]
    name = client.status().name
    assert f"{name}: {queue.path} has failed over: its messages go to the backlog" in lines
    assert f"{name}: {queue.path} is back: its messages go to the primary" in lines
    key = namespaces.primary.connection_string.split("SharedAccessKey=")[1].split(";")[0]
    assert not [line for line in lines if "the secret body" in line or key in line]


# ---- order within a session ----


def test_session_maps_to_same_queue_in_every_client(namespaces: NamespacePair) -> None:
    name = namespaces.new_name("contoso")
    options = {"primary_name": name, "backlog_queue_count": 3, "order": "session"}
    with namespaces.client("sync", **options) as first, namespaces.client("aio", **options) as second:
        chosen = []
        for client in (first, second):
            client.fail_over("orders")
            sender = client.get_queue_sender("orders")
            chosen.append([sender.send_messages(new_message(session_id=str(number))).queue for number in range(8)])
    assert chosen[0] == chosen[1]
    assert len(set(chosen[0])) > 1


def test_diverted_session_stays_diverted_until_drained(namespaces: NamespacePair) -> None:
    """For the synchronous client; for the asynchronous one see tests/client/test_order.py."""
    kind = "sync"
    queue = namespaces.queue(namespaces.new_name(), requires_session=True)
    with namespaces.client(kind, order="session") as client:
        sender = client.get_queue_sender(queue.path)
        client.fail_over(queue.path)
        assert sender.send_messages(new_message("1", session_id="a")).route is Route.BACKLOG
        client.fail_back(queue.path)
        assert sender.send_messages(new_message("2", session_id="a")).route is Route.BACKLOG
        assert sender.send_messages(new_message("1", session_id="b")).route is Route.PRIMARY
        assert client.status().diverted_sessions == 1
        with namespaces.client(kind, primary_name=client.name, order="session", enable_syphon=True):
            eventually(lambda: client.status().diverted_sessions == 0)
        assert sender.send_messages(new_message("3", session_id="a")).route is Route.PRIMARY
        with client.get_queue_receiver(queue.path, session_id="a") as receiver:
            received: list[str] = []
            while len(received) < 3:
                received += map(str, receiver.receive_messages(3, max_wait_time=10))
        assert received == ["1", "2", "3"]


# ---- scheduling ----


def test_schedule_in_failover_returns_negative_number_that_cannot_be_cancelled(
    namespaces: NamespacePair, kind: str
) -> None:
    queue = namespaces.queue(namespaces.new_name())
    with namespaces.client(kind, enable_syphon=True) as client:
        sender = client.get_queue_sender(queue.path)
        [direct] = sender.schedule_messages(new_message(), in_an_hour())
        client.fail_over(queue.path)
        numbers = sender.schedule_messages([new_message(), new_message()], in_an_hour())
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


def test_existing_queues_need_no_manage_right(namespaces: NamespacePair, kind: str) -> None:
    name = namespaces.new_name("contoso")
    with namespaces.client(kind, primary_name=name):
        pass
    with namespaces.client(kind, primary_name=name, signed_by=USER, create_backlog=False) as client:
        client.fail_over("orders")
        assert client.get_queue_sender("orders").send_messages(new_message()).route is Route.BACKLOG
        assert sum(namespaces.stored(client)) == 1


def test_sender_opens_lazily(namespaces: NamespacePair, kind: str) -> None:
    queue = namespaces.queue(namespaces.new_name())
    attaches = namespaces.count_operations(queue.path, FaultPoint.ATTACH)
    with namespaces.client(kind) as client, client.get_queue_sender(queue.path) as sender:
        assert attaches.fired == 0
        sender.send_messages(new_message())
        assert attaches.fired == 1


# ---- after recovery ----


def test_failure_on_probation_fails_over_at_once_and_doubles_ping_interval(
    namespaces: NamespacePair, kind: str
) -> None:
    queue = namespaces.queue(namespaces.new_name())
    with namespaces.client(kind, failover_interval=3600) as client:
        client.fail_over(queue.path)
        client.fail_back(queue.path)
        assert client.status().entities[0].state is EntityState.PROBATION
        namespaces.add_fault(queue.path)
        assert client.get_queue_sender(queue.path).send_messages(new_message()).route is Route.BACKLOG
        assert client.status().entities[0].state is EntityState.FAILED_OVER
        assert client.seen.next(PingFailed).next_ping_in == 2
        assert client.seen.all(Suspected) == []


# ---- duplicates ----


def test_duplicate_detection_removes_copy_of_timed_out_attempt(namespaces: NamespacePair, kind: str) -> None:
    queue, plain = (
        namespaces.queue(namespaces.new_name(), requires_duplicate_detection=True),
        namespaces.queue(namespaces.new_name()),
    )
    with namespaces.client(kind, attempt_timeout=1, enable_syphon=True, backlog_queue_count=1) as client:
        for destination in (queue, plain):
            namespaces.add_fault(destination.path, FaultKind.DROP_ACK, count=1)
            assert client.get_queue_sender(destination.path).send_messages(new_message()).route is Route.BACKLOG
        eventually(lambda: namespaces.backlog(client).activity.completed == 2)
    # The copy was moved from the backlog; it stays only without duplicate detection.
    assert (queue.activity.received, plain.activity.received) == (1, 2)
    assert (
        len({properties_of(message.encoded())[0] for message in namespaces.messages(plain)}) == 1
    )  # the id is the same
