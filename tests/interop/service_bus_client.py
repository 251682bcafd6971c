"""Exercises an older Service Bus SDK for Python, and prints a JSON line per feature.

Runs in an environment of its own. Its orders come as one JSON argument: {connection_string, ca_file}. It knows no
development namespaces, so everything is over TLS; its administration client trusts what `REQUESTS_CA_BUNDLE` names.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import SessionCannotBeLockedError
from azure.servicebus.management import (
    CorrelationRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
)

WAIT = 10


def say(event: str, **found: Any) -> None:
    print(json.dumps({"event": event, **found}), flush=True)


def text(message: ServiceBusReceivedMessage) -> str:
    return b"".join(message.body).decode()


def receive(receiver: ServiceBusReceiver, count: int) -> list[ServiceBusReceivedMessage]:
    """Receive `count` messages: the SDK may return fewer at a time."""
    found: list[ServiceBusReceivedMessage] = []
    while len(found) < count:
        some = receiver.receive_messages(count - len(found), max_wait_time=WAIT)
        if not some:
            break
        found += some
    return found


def administration(admin: ServiceBusAdministrationClient) -> None:
    admin.create_queue("orders", lock_duration=timedelta(minutes=1), max_delivery_count=3)
    admin.create_queue("baskets", requires_session=True)
    admin.create_topic("events")
    admin.create_subscription("events", "red")
    queue = admin.get_queue("orders")
    admin.update_queue(queue, max_delivery_count=5)
    say(
        "administration",
        queues=[one.name for one in admin.list_queues()],
        lock_duration="PT1M" if queue.lock_duration == timedelta(minutes=1) else str(queue.lock_duration),
        max_delivery_count=admin.get_queue("orders").max_delivery_count,
        missing="nothing" in [one.name for one in admin.list_topics()],
    )


def send_and_receive(client: ServiceBusClient) -> None:
    with client.get_queue_sender("orders") as sender, client.get_queue_receiver("orders") as receiver:
        when = datetime.fromtimestamp(1_794_000_000, UTC)
        properties = {"text": "grüße", "number": 7, "yes": True, "when": when}
        message = ServiceBusMessage(
            '{"order": 1}', message_id="one", time_to_live=timedelta(minutes=1), application_properties=properties
        )
        sender.send_messages(message)
        batch = sender.create_message_batch()
        for body in ("two", "three"):
            batch.add_message(ServiceBusMessage(body))
        sender.send_messages(batch)
        first, second, third = receive(receiver, 3)
        received = {key.decode(): value for key, value in (first.application_properties or {}).items()}
        received["text"] = received["text"].decode()
        say(
            "sent",
            body=json.loads(text(first)),
            id=first.message_id,
            properties=received,
            count=len(batch),
            bodies=[text(second), text(third)],
            time_to_live=first.time_to_live / timedelta(milliseconds=1),
        )
        receiver.complete_message(first)
        receiver.renew_message_lock(second)
        receiver.abandon_message(second)
        receiver.defer_message(third)
        (again,) = receive(receiver, 1)
        (deferred,) = receiver.receive_deferred_messages([third.sequence_number])
        peeked = receiver.peek_messages(10)
        say(
            "settled",
            again=text(again),
            delivery_count=again.delivery_count,
            deferred=text(deferred),
            peeked=len(peeked),
        )
        receiver.complete_message(again)
        receiver.complete_message(deferred)


def dead_letter(client: ServiceBusClient) -> None:
    with client.get_queue_sender("orders") as sender, client.get_queue_receiver("orders") as receiver:
        sender.send_messages(ServiceBusMessage("broken"))
        (message,) = receive(receiver, 1)
        receiver.dead_letter_message(message, reason="broken", error_description="no price")
    with client.get_queue_receiver("orders", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead:
        (letter,) = receive(dead, 1)
        description = letter.dead_letter_error_description
        say("dead_letter", body=text(letter), reason=letter.dead_letter_reason, description=description)
        dead.complete_message(letter)


def schedule(client: ServiceBusClient) -> None:
    with client.get_queue_sender("orders") as sender, client.get_queue_receiver("orders") as receiver:
        due = datetime.now(UTC) + timedelta(seconds=2)
        messages = [ServiceBusMessage("later"), ServiceBusMessage("never")]
        kept, cancelled = sender.schedule_messages(messages, due)
        sender.cancel_scheduled_messages(cancelled)
        (peeked,) = receiver.peek_messages(1, sequence_number=kept)
        (message,) = receive(receiver, 1)
        assert message.enqueued_time_utc is not None
        say(
            "schedule",
            peeked=peeked.state.name.lower(),
            body=text(message),
            # What travels is whole milliseconds.
            early=message.enqueued_time_utc < due - timedelta(milliseconds=1),
            arrived_early=datetime.now(UTC) < due,
        )
        receiver.complete_message(message)


def sessions(client: ServiceBusClient) -> None:
    with client.get_queue_sender("baskets") as sender:
        bodies = [ServiceBusMessage(str(number), session_id=name) for number, name in enumerate("aba")]
        sender.send_messages(bodies)
    with client.get_queue_receiver("baskets", session_id="a") as first:
        messages = receive(first, 2)
        first.session.set_state(b'{"seen": 2}')
        first.session.renew_lock()
        state = json.loads(first.session.get_state())
        for message in messages:
            first.complete_message(message)
        try:
            with client.get_queue_receiver("baskets", session_id="a"):
                refused = False
        except SessionCannotBeLockedError:
            refused = True
        with client.get_queue_receiver("baskets", session_id=NEXT_AVAILABLE_SESSION) as other:
            (message,) = receive(other, 1)
            other.complete_message(message)
            found = [int(text(message)) for message in messages]
            say("sessions", bodies=found, state=state, refused=refused, next=other.session.session_id)


def rules(client: ServiceBusClient, admin: ServiceBusAdministrationClient) -> None:
    red = SqlRuleFilter("color = 'red'")
    admin.create_rule("events", "red", "color", filter=red, action=SqlRuleAction("SET seen = 1"))
    admin.delete_rule("events", "red", "$Default")
    urgent = CorrelationRuleFilter(label="urgent", properties={"region": 7})
    admin.create_rule("events", "red", "subject", filter=urgent)
    refused = ""
    try:
        admin.create_rule("events", "red", "bad", filter=SqlRuleFilter("color ="))
    except Exception as error:  # any of the SDK's: it is the text that counts
        refused = str(error)
    with client.get_topic_sender("events") as sender, client.get_subscription_receiver("events", "red") as receiver:
        passes = ServiceBusMessage("passes", application_properties={"color": "red"})
        does_not = ServiceBusMessage("does not", application_properties={"color": "blue"})
        correlates = ServiceBusMessage("correlates", subject="urgent", application_properties={"region": 7})
        sender.send_messages([passes, does_not, correlates])
        received = receive(receiver, 2)
        say(
            "rules",
            names=sorted(rule.name for rule in admin.list_rules("events", "red")),
            refused=refused,
            bodies=[text(message) for message in received],
            seen=[(message.application_properties or {}).get(b"seen") for message in received],
        )
        for message in received:
            receiver.complete_message(message)


def main() -> None:
    orders = json.loads(sys.argv[1])
    admin = ServiceBusAdministrationClient.from_connection_string(orders["connection_string"])
    client = ServiceBusClient.from_connection_string(
        orders["connection_string"], connection_verify=orders["ca_file"], retry_total=0
    )
    with admin, client:
        administration(admin)
        send_and_receive(client)
        dead_letter(client)
        schedule(client)
        sessions(client)
        rules(client, admin)
        left = admin.get_queue_runtime_properties("orders").total_message_count
        admin.delete_queue("orders")
        say("counted", left=left, deleted="orders" not in [one.name for one in admin.list_queues()])


if __name__ == "__main__":
    main()
