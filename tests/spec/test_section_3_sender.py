"""SPEC 3: the form and place of a diverted message in the backlog, and its way to the destination."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from datetime import UTC, datetime, timedelta

from tests.amqp.amqp_values import same
from tests.spec.namespace_pair import NamespacePair, backlog_path, eventually, new_message
from tests.syphon.bus import properties_of as application_properties
from tests.syphon.diverted import entries_of, header_of, properties_of

from twinbus import PingFailed, Recovered, Route
from twinbus.amqp.codec import sections
from twinbus.amqp.codec.types import Described, Long, Symbol, Timestamp
from twinbus.emulator import QueueDescription
from twinbus.envelope import aliases

LATER = datetime(2100, 1, 1, tzinfo=UTC)
LATER_MS = int(LATER.timestamp() * 1000)
MANY = 64


def test_diverted_message_keeps_originals_under_typed_aliases(namespaces: NamespacePair, kind: str) -> None:
    message = new_message(
        session_id="s", time_to_live=timedelta(minutes=20), scheduled_enqueue_time_utc=LATER, message_id="m"
    )
    with namespaces.client(kind, backlog_queue_count=1) as client:
        client.fail_over("some/topic")
        client.get_topic_sender("some/topic").send_messages(message)
        [stored] = namespaces.messages(namespaces.backlog(client))
    payload = stored.encoded()
    fields = properties_of(payload)
    assert (stored.session, stored.expires_at, stored.due_at) == (None, None, None)
    assert header_of(payload)[2] is None  # time to live
    assert fields[8] is fields[9] is fields[10] is None  # expiry, creation, session
    annotations = entries_of(sections.split_sections(payload).message_annotations)
    assert not any(name == aliases.SCHEDULED_ANNOTATION for _, name in annotations)
    properties = application_properties(payload)
    created, expiry = properties.pop("x-twinbus-created"), properties.pop("x-twinbus-expiry")
    assert type(created) is type(expiry) is Timestamp
    assert expiry - created == 20 * 60_000
    assert same(
        dict(sorted(properties.items())),
        {
            "x-ms-path": "some/topic",
            "x-ms-scheduledenqueuetimeutc": Timestamp(LATER_MS),
            "x-ms-sessionid": "s",
            "x-ms-timetolive": Described(Symbol("com.microsoft:timespan"), Long(20 * 60 * 10_000_000)),
        },
    )
    assert fields[0] == "m"


def test_many_entities_share_one_backlog_queue_and_syphon_restores_messages(
    namespaces: NamespacePair, kind: str
) -> None:
    # A name that looks like a time: x-ms-path always holds the destination, never a time.
    queue, time_like = namespaces.queue(namespaces.new_name()), namespaces.queue(f"20990101T000000Z-{kind}")
    topic, subscription = namespaces.topic(namespaces.new_name("events"))
    sessions = namespaces.queue(namespaces.new_name(), requires_session=True)
    with namespaces.client(kind, backlog_queue_count=1) as client:
        for destination, sender in (
            (queue, client.get_queue_sender(queue.path)),
            (time_like, client.get_queue_sender(time_like.path)),
            (topic, client.get_topic_sender(topic.path)),
            (sessions, client.get_queue_sender(sessions.path)),
        ):
            client.fail_over(destination.path)
            assert sender.send_messages(new_message(session_id="s", message_id=destination.path)).route is Route.BACKLOG
        client.get_queue_sender(queue.path).send_messages(
            new_message(scheduled_enqueue_time_utc=LATER, time_to_live=timedelta(days=1), message_id="later")
        )
        assert namespaces.backlog(client).counters.active == 5
        with namespaces.client(kind, primary_name=client.name, backlog_queue_count=1, enable_syphon=True):
            eventually(lambda: namespaces.backlog(client).counters.active == 0)
    assert queue.counters.scheduled == 1
    for queue_with_message, path in (
        (time_like, time_like.path),
        (subscription, topic.path),
        (sessions, sessions.path),
    ):
        [arrived] = namespaces.messages(queue_with_message)
        fields = properties_of(arrived.encoded())
        assert (fields[0], fields[10], arrived.due_at) == (path, "s", None)
        assert application_properties(arrived.encoded()) == {}
    now, later = sorted(namespaces.messages(queue), key=lambda message: message.due_at or 0)
    assert (properties_of(now.encoded())[0], later.due_at) == (queue.path, LATER_MS)
    assert 0 <= 24 * 3600_000 - header_of(later.encoded())[2] < 60_000


def test_one_successful_ping_returns_all_senders_to_the_primary(namespaces: NamespacePair, kind: str) -> None:
    queue = namespaces.queue(namespaces.new_name())
    with namespaces.client(kind) as client:
        senders = [client.get_queue_sender(queue.path) for _ in range(3)]
        down = namespaces.add_fault(queue.path)
        assert [sender.send_messages(new_message()).route for sender in senders] == [Route.BACKLOG] * 3
        assert client.seen.next(PingFailed).next_ping_in == 1
        namespaces.repair(down)
        client.seen.next(Recovered)
        assert [sender.send_messages(new_message()).route for sender in senders] == [Route.PRIMARY] * 3
        assert (queue.activity.received, queue.activity.pings) == (3, 1)


def test_each_sender_picks_a_random_queue_and_keeps_it(namespaces: NamespacePair) -> None:
    name = namespaces.new_name("contoso")
    for index in range(MANY):
        namespaces.secondary.run(namespaces.secondary.namespace.create(QueueDescription(backlog_path(name, index))))
    program = f"""
        import json, sys
        from azure.servicebus import ServiceBusMessage
        from twinbus import PairedServiceBusClient, SendAvailabilityOptions
        options = SendAvailabilityOptions(backlog_queue_count={MANY}, primary_name="{name}", create_backlog=False)
        with PairedServiceBusClient(*sys.argv[1:], options) as client:
            client.fail_over("orders")
            senders = [client.get_queue_sender("orders") for _ in range(2)]
            chosen = [[sender.send_messages(ServiceBusMessage("x")).queue for _ in range(3)] for sender in senders]
        print(json.dumps(chosen))
    """
    texts = namespaces.primary.connection_string, namespaces.secondary.connection_string
    command = [sys.executable, "-c", textwrap.dedent(program), *texts]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    chosen = [queues for process in processes for queues in json.loads(process.communicate(timeout=60)[0])]
    assert len(chosen) == 6
    assert [len(set(queues)) for queues in chosen] == [1] * 6  # stays
    assert len({queues[0] for queues in chosen}) > 1  # all the same by chance in one of 64**5 runs
    stored = [namespaces.secondary.namespace.find(queues[0]) for queues in chosen]
    assert sum({entity.description.path: entity.queue.activity.received for entity in stored if entity}.values()) == 18
