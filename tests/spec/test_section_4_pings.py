"""SPEC 4: what a ping is, how many there are, and who gets to see one."""

from __future__ import annotations

import itertools

import pytest
from tests.spec.house import House, text
from tests.syphon.bus import body_of
from tests.syphon.diverted import header_of, properties_of

from twinbus import PingFailed, PingSent, Recovered, Route
from twinbus.ledger.recorder import OperationKind

CONTENT_TYPE = 6
SESSION = 10


@pytest.mark.parametrize("requires_session", [False, True])
def test_a_ping_is_empty_has_its_content_type_lives_for_a_second_and_has_a_session_where_needed(
    house: House, kind: str, requires_session: bool
) -> None:
    queue = house.queue(house.a_name(), requires_session=requires_session)
    house.primary.namespace.deliver_pings = True
    with house.client(kind) as client:
        house.strike(queue.path, count=1)
        client.get_queue_sender(queue.path).send_messages(text(session_id="s"))
        client.seen.next(Recovered)
        [ping] = house.messages(queue)
    payload = ping.encoded()
    fields = properties_of(payload)
    assert (body_of(payload), fields[CONTENT_TYPE]) == (b"", "application/vnd.ms-servicebus-ping")
    assert header_of(payload)[2] == 1000
    assert (fields[SESSION] is not None) is requires_session
    row = [one for one in client.recorder.operations if one.operation is OperationKind.PING][-1]
    assert row.bytes == ping.size


def test_an_unavailable_entity_is_pinged_once_an_interval_by_each_client_however_many_senders_it_has(
    house: House,
) -> None:
    queue = house.queue(house.a_name())
    with house.client("sync") as one, house.client("aio") as other:
        down = house.strike(queue.path)
        tries = 0
        for client in (one, other):
            for _ in range(3):
                assert client.get_queue_sender(queue.path).send_messages(text()).route is Route.BACKLOG
            tries += 1  # only the first of its senders has tried the primary
        for client in (one, other):
            for _ in range(2):
                client.seen.next(PingFailed)
        house.mend(down)
        for client in (one, other):
            client.seen.next(Recovered)
            sent = [event.at for event in client.seen.all(PingSent)]
            gaps = [(later - earlier).total_seconds() for earlier, later in itertools.pairwise(sent)]
            assert min(gaps) > 0.9
        pings = one.rows(OperationKind.PING, queue.path) + other.rows(OperationKind.PING, queue.path)
        assert pings == (down.fired - tries) + queue.activity.pings
        assert queue.activity.pings == 2


def test_pings_stop_as_soon_as_the_entity_is_back(house: House) -> None:
    queue, other = house.queue(house.a_name()), house.queue(house.a_name())
    with house.client("sync") as client:
        house.strike(queue.path, count=1)
        client.get_queue_sender(queue.path).send_messages(text())
        client.seen.next(Recovered)
        # Another entity shows that the clock goes on: an interval passes.
        house.strike(other.path)
        client.get_queue_sender(other.path).send_messages(text())
        for _ in range(2):
            client.seen.next(PingFailed)
        assert queue.activity.pings == 1
        assert client.rows(OperationKind.PING, queue.path) == 1


def test_a_probe_by_link_sends_nothing_and_is_not_billed(house: House, kind: str) -> None:
    queue = house.queue(house.a_name())
    with house.client(kind, probe="link") as client:
        house.strike(queue.path, count=1)
        sender = client.get_queue_sender(queue.path)
        assert sender.send_messages(text()).route is Route.BACKLOG
        client.seen.next(Recovered)
        assert (queue.activity.pings, queue.activity.received, client.rows(OperationKind.PING)) == (0, 0, 0)
        assert sender.send_messages(text()).route is Route.PRIMARY
