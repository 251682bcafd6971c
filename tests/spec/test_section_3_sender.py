"""SPEC 3: what a diverted message looks like in the backlog, where it is stored, and how it comes home."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from datetime import UTC, datetime, timedelta

from tests.amqp.amqp_values import same
from tests.spec.house import House, backlog_path, eventually, text
from tests.syphon.bus import properties_of as application_properties
from tests.syphon.diverted import entries_of, header_of, properties_of

from twinbus import PingFailed, Recovered, Route
from twinbus.amqp import sections
from twinbus.amqp.types import Described, Long, Symbol, Timestamp
from twinbus.broker import QueueDescription
from twinbus.pairing import aliases

LATER = datetime(2100, 1, 1, tzinfo=UTC)
LATER_MS = int(LATER.timestamp() * 1000)
MANY = 64


def test_in_the_backlog_the_originals_are_cleared_and_kept_under_typed_aliases(house: House, kind: str) -> None:
    message = text(session_id="s", time_to_live=timedelta(minutes=20), scheduled_enqueue_time_utc=LATER, message_id="m")
    with house.client(kind, backlog_queue_count=1) as client:
        client.fail_over("some/topic")
        client.get_topic_sender("some/topic").send_messages(message)
        [stored] = house.messages(house.backlog(client))
    payload = stored.encoded()
    fields = properties_of(payload)
    assert (stored.session, stored.expires_at, stored.due_at) == (None, None, None)
    assert header_of(payload)[2] is None  # time to live
    assert fields[8] is fields[9] is fields[10] is None  # expiry, creation, session
    annotations = entries_of(sections.split_sections(payload).message_annotations)
    assert not any(name == aliases.SCHEDULED_ANNOTATION for _, name in annotations)
    found = application_properties(payload)
    created, expiry = found.pop("x-twinbus-created"), found.pop("x-twinbus-expiry")
    assert type(created) is type(expiry) is Timestamp
    assert expiry - created == 20 * 60_000
    assert same(
        dict(sorted(found.items())),
        {
            "x-ms-path": "some/topic",
            "x-ms-scheduledenqueuetimeutc": Timestamp(LATER_MS),
            "x-ms-sessionid": "s",
            "x-ms-timetolive": Described(Symbol("com.microsoft:timespan"), Long(20 * 60 * 10_000_000)),
        },
    )
    assert fields[0] == "m"


def test_messages_for_many_entities_share_one_backlog_queue_and_the_syphon_translates_them_back(
    house: House, kind: str
) -> None:
    # A name that could be read as a time, for x-ms-path holds the destination and never a time.
    queue, timely = house.queue(house.a_name()), house.queue(f"20990101T000000Z-{kind}")
    topic, subscription = house.topic(house.a_name("events"))
    sessions = house.queue(house.a_name(), requires_session=True)
    with house.client(kind, backlog_queue_count=1) as client:
        for one, sender in (
            (queue, client.get_queue_sender(queue.path)),
            (timely, client.get_queue_sender(timely.path)),
            (topic, client.get_topic_sender(topic.path)),
            (sessions, client.get_queue_sender(sessions.path)),
        ):
            client.fail_over(one.path)
            assert sender.send_messages(text(session_id="s", message_id=one.path)).route is Route.BACKLOG
        client.get_queue_sender(queue.path).send_messages(
            text(scheduled_enqueue_time_utc=LATER, time_to_live=timedelta(days=1), message_id="later")
        )
        assert house.backlog(client).counters.active == 5
        with house.client(kind, primary_name=client.name, backlog_queue_count=1, enable_syphon=True):
            eventually(lambda: house.backlog(client).counters.active == 0)
    assert queue.counters.scheduled == 1
    for one, path in ((timely, timely.path), (subscription, topic.path), (sessions, sessions.path)):
        [arrived] = house.messages(one)
        fields = properties_of(arrived.encoded())
        assert (fields[0], fields[10], arrived.due_at) == (path, "s", None)
        assert application_properties(arrived.encoded()) == {}
    now, later = sorted(house.messages(queue), key=lambda one: one.due_at or 0)
    assert (properties_of(now.encoded())[0], later.due_at) == (queue.path, LATER_MS)
    assert 0 <= 24 * 3600_000 - header_of(later.encoded())[2] < 60_000


def test_as_soon_as_one_ping_succeeds_every_sender_of_the_entity_goes_to_the_primary(house: House, kind: str) -> None:
    queue = house.queue(house.a_name())
    with house.client(kind) as client:
        senders = [client.get_queue_sender(queue.path) for _ in range(3)]
        down = house.strike(queue.path)
        assert [one.send_messages(text()).route for one in senders] == [Route.BACKLOG] * 3
        assert client.seen.next(PingFailed).next_ping_in == 1
        house.mend(down)
        client.seen.next(Recovered)
        assert [one.send_messages(text()).route for one in senders] == [Route.PRIMARY] * 3
        assert (queue.activity.received, queue.activity.pings) == (3, 1)


def test_each_sender_of_each_process_picks_its_queue_at_random_and_stays(house: House) -> None:
    name = house.a_name("contoso")
    for index in range(MANY):
        house.secondary.run(house.secondary.namespace.create(QueueDescription(backlog_path(name, index))))
    program = f"""
        import json, sys
        from azure.servicebus import ServiceBusMessage
        from twinbus import PairedServiceBusClient, SendAvailabilityOptions
        options = SendAvailabilityOptions(backlog_queue_count={MANY}, primary_name="{name}", create_backlog=False)
        with PairedServiceBusClient(*sys.argv[1:], options) as client:
            client.fail_over("orders")
            senders = [client.get_queue_sender("orders") for _ in range(2)]
            chosen = [[one.send_messages(ServiceBusMessage("x")).queue for _ in range(3)] for one in senders]
        print(json.dumps(chosen))
    """
    texts = house.primary.connection_string, house.secondary.connection_string
    command = [sys.executable, "-c", textwrap.dedent(program), *texts]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    chosen = [queues for one in running for queues in json.loads(one.communicate(timeout=60)[0])]
    assert len(chosen) == 6
    assert [len(set(queues)) for queues in chosen] == [1] * 6  # stays
    assert len({queues[0] for queues in chosen}) > 1  # by chance the same in one of 64**5 runs
    stored = [house.secondary.namespace.find(queues[0]) for queues in chosen]
    assert sum({one.description.path: one.queue.activity.received for one in stored if one}.values()) == 18
