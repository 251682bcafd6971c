"""SPEC 4: the form of a ping, the number of pings, and their visibility."""

from __future__ import annotations

import itertools

import pytest
from tests.spec.namespace_pair import NamespacePair, new_message
from tests.syphon.bus import body_of
from tests.syphon.diverted import header_of, properties_of

from twinbus import PingFailed, PingSent, Recovered, Route
from twinbus.ledger.recorder import OperationKind

CONTENT_TYPE = 6
SESSION = 10


@pytest.mark.parametrize("requires_session", [False, True])
def test_ping_has_content_type_one_second_to_live_and_session_if_required(
    namespaces: NamespacePair, kind: str, requires_session: bool
) -> None:
    queue = namespaces.queue(namespaces.new_name(), requires_session=requires_session)
    namespaces.primary.namespace.deliver_pings = True
    with namespaces.client(kind) as client:
        namespaces.add_fault(queue.path, count=1)
        client.get_queue_sender(queue.path).send_messages(new_message(session_id="s"))
        client.seen.next(Recovered)
        [ping] = namespaces.messages(queue)
    payload = ping.encoded()
    fields = properties_of(payload)
    assert (body_of(payload), fields[CONTENT_TYPE]) == (b"", "application/vnd.ms-servicebus-ping")
    assert header_of(payload)[2] == 1000
    assert (fields[SESSION] is not None) is requires_session
    row = [row for row in client.recorder.operations if row.operation is OperationKind.PING][-1]
    assert row.bytes == ping.size


def test_each_client_pings_an_entity_once_per_interval(
    namespaces: NamespacePair,
) -> None:
    queue = namespaces.queue(namespaces.new_name())
    with namespaces.client("sync") as first, namespaces.client("aio") as second:
        down = namespaces.add_fault(queue.path)
        attempts = 0
        for client in (first, second):
            for _ in range(3):
                assert client.get_queue_sender(queue.path).send_messages(new_message()).route is Route.BACKLOG
            attempts += 1  # only the first of its senders tries the primary
        for client in (first, second):
            for _ in range(2):
                client.seen.next(PingFailed)
        namespaces.repair(down)
        for client in (first, second):
            client.seen.next(Recovered)
            sent = [event.at for event in client.seen.all(PingSent)]
            gaps = [(later - earlier).total_seconds() for earlier, later in itertools.pairwise(sent)]
            assert min(gaps) > 0.9
        pings = first.rows(OperationKind.PING, queue.path) + second.rows(OperationKind.PING, queue.path)
        assert pings == (down.fired - attempts) + queue.activity.pings
        assert queue.activity.pings == 2


def test_pings_stop_when_the_entity_recovers(namespaces: NamespacePair) -> None:
    queue, other = namespaces.queue(namespaces.new_name()), namespaces.queue(namespaces.new_name())
    with namespaces.client("sync") as client:
        namespaces.add_fault(queue.path, count=1)
        client.get_queue_sender(queue.path).send_messages(new_message())
        client.seen.next(Recovered)
        # Pings of another entity show that an interval has passed.
        namespaces.add_fault(other.path)
        client.get_queue_sender(other.path).send_messages(new_message())
        for _ in range(2):
            client.seen.next(PingFailed)
        assert queue.activity.pings == 1
        assert client.rows(OperationKind.PING, queue.path) == 1


def test_link_probe_sends_nothing_and_is_not_billed(namespaces: NamespacePair, kind: str) -> None:
    queue = namespaces.queue(namespaces.new_name())
    with namespaces.client(kind, probe="link") as client:
        namespaces.add_fault(queue.path, count=1)
        sender = client.get_queue_sender(queue.path)
        assert sender.send_messages(new_message()).route is Route.BACKLOG
        client.seen.next(Recovered)
        assert (queue.activity.pings, queue.activity.received, client.rows(OperationKind.PING)) == (0, 0, 0)
        assert sender.send_messages(new_message()).route is Route.PRIMARY
