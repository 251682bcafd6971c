"""The synchronous client: the common case of every feature. Details are tested with the asynchronous client."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
    ServiceBusSender,
)
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    ServiceBusAuthenticationError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)
from tests.emulator.contract.bus import DELETE, LOCK_OVER, LOCK_SECONDS, PATIENCE, SettableClock, let_pass, texts
from tests.emulator.wire import administration

from twinbus.emulator import Namespace, QueueDescription, SubscriptionDescription, TopicDescription
from twinbus.emulator.entities.queue import Queue
from twinbus.emulator.server.thread_host import NamespaceThread
from twinbus.servicebus.durations import TICKS_PER_SECOND

pytestmark = pytest.mark.slow

LOCK = LOCK_SECONDS * TICKS_PER_SECOND


class SyncBus:
    """A namespace on a thread and a client for it.

    The SDK sleeps over each link that it opens or closes, so that is done for all of them side by side.
    """

    def __init__(self, thread: NamespaceThread, clock: SettableClock) -> None:
        self.thread = thread
        self.clock = clock
        self.client = ServiceBusClient.from_connection_string(thread.connection_string, retry_total=0)
        self._pool = ThreadPoolExecutor(8)
        self._links: list[Any] = []
        self._numbers = itertools.count(1)

    def queue(self, **properties: Any) -> str:
        path = f"queue-{next(self._numbers)}"
        self.thread.run(self.thread.namespace.create(QueueDescription(path, lock_duration=LOCK, **properties)))
        return path

    def topic(self, *subscriptions: str) -> str:
        path = f"topic-{next(self._numbers)}"
        namespace = self.thread.namespace
        self.thread.run(namespace.create(TopicDescription(path)))
        for name in subscriptions:
            self.thread.run(namespace.create_subscription(SubscriptionDescription(path, name, lock_duration=LOCK)))
        return path

    def open(self, *links: Any) -> Any:
        """Open links concurrently."""
        self._links += links
        list(self._pool.map(lambda link: link.__enter__(), links))
        return links[0] if len(links) == 1 else links

    def open_queue(self, **properties: Any) -> tuple[ServiceBusSender, ServiceBusReceiver]:
        path = self.queue(**properties)
        sender, receiver = self.open(self.client.get_queue_sender(path), self.client.get_queue_receiver(path))
        return sender, receiver

    def broker_queue(self, path: str) -> Queue:
        node = self.thread.call(self.thread.namespace.entities.resolve, path)
        assert node is not None
        return node.queue

    def advance(self, seconds: float) -> None:
        self.thread.run(let_pass(self.thread.namespace, self.clock, seconds))

    def close(self) -> None:
        list(self._pool.map(lambda link: link.close(), self._links))
        self.client.close()
        self._pool.shutdown()


@pytest.fixture(scope="module")
def bus() -> Iterator[SyncBus]:
    clock = SettableClock()
    with NamespaceThread(lambda: Namespace("contoso", clock=clock)) as thread:
        running = SyncBus(thread, clock)
        yield running
        running.close()


def receive(receiver: ServiceBusReceiver, count: int = 1) -> list[ServiceBusReceivedMessage]:
    received: list[ServiceBusReceivedMessage] = []
    while len(received) < count:
        more = receiver.receive_messages(max_message_count=count - len(received), max_wait_time=PATIENCE)
        assert more, f"{len(received)} messages came, not {count}"
        received += more
    return received


def peek(receiver: ServiceBusReceiver) -> list[ServiceBusReceivedMessage]:
    return receiver.peek_messages(max_message_count=100, sequence_number=1)


def test_single_messages_lists_and_batches_arrive_in_order(bus: SyncBus) -> None:
    sender, receiver = bus.open_queue()
    sender.send_messages(ServiceBusMessage("one"))
    sender.send_messages([ServiceBusMessage("two"), ServiceBusMessage("three")])
    batch = sender.create_message_batch()
    batch.add_message(ServiceBusMessage("four"))
    batch.add_message(ServiceBusMessage("five"))
    sender.send_messages(batch)
    assert texts(receive(receiver, 5)) == ["one", "two", "three", "four", "five"]


def test_a_completed_message_is_gone_and_an_abandoned_one_comes_again(bus: SyncBus) -> None:
    sender, receiver = bus.open_queue()
    sender.send_messages([ServiceBusMessage("one"), ServiceBusMessage("two")])
    first, second = receive(receiver, 2)
    receiver.complete_message(first)
    receiver.abandon_message(second)
    [again] = receive(receiver)
    assert (str(again), again.delivery_count) == ("two", 1)
    assert texts(peek(receiver)) == ["two"]


def test_a_lock_can_be_renewed_and_expires(bus: SyncBus) -> None:
    sender, receiver = bus.open_queue()
    sender.send_messages(ServiceBusMessage("one"))
    [message] = receive(receiver)
    bus.advance(LOCK_SECONDS - 10)
    receiver.renew_message_lock(message)
    bus.advance(LOCK_SECONDS - 10)
    assert bus.broker_queue(receiver.entity_path).locked == 1
    bus.advance(LOCK_OVER)
    with pytest.raises(MessageLockLostError):
        receiver.complete_message(message)
    [again] = receive(receiver)
    assert again.delivery_count == 1


def test_a_deferred_message_is_received_by_its_sequence_number(bus: SyncBus) -> None:
    sender, receiver = bus.open_queue()
    sender.send_messages(ServiceBusMessage("one"))
    [message] = receive(receiver)
    receiver.defer_message(message)
    [peeked] = peek(receiver)
    assert peeked.state == ServiceBusMessageState.DEFERRED
    [deferred] = receiver.receive_deferred_messages(message.sequence_number)
    receiver.complete_message(deferred)
    with pytest.raises(MessageNotFoundError):
        receiver.receive_deferred_messages(message.sequence_number)


def test_a_dead_letter_has_reason_and_description(bus: SyncBus) -> None:
    sender, receiver = bus.open_queue()
    sender.send_messages(ServiceBusMessage("bad"))
    receiver.dead_letter_message(receive(receiver)[0], reason="Unreadable", error_description="It is not JSON.")
    dead_letters = bus.open(bus.client.get_queue_receiver(receiver.entity_path, sub_queue="deadletter"))
    [dead] = receive(dead_letters)
    assert (dead.dead_letter_reason, dead.dead_letter_error_description) == ("Unreadable", "It is not JSON.")
    dead_letters.complete_message(dead)
    assert peek(dead_letters) == []


def test_a_message_abandoned_too_often_is_dead_lettered(bus: SyncBus) -> None:
    sender, receiver = bus.open_queue(max_delivery_count=1)
    sender.send_messages(ServiceBusMessage("bad"))
    receiver.abandon_message(receive(receiver)[0])
    dead_letters = bus.open(bus.client.get_queue_receiver(receiver.entity_path, sub_queue="deadletter"))
    assert receive(dead_letters)[0].dead_letter_reason == "MaxDeliveryCountExceeded"


def test_receive_and_delete_takes_messages_out(bus: SyncBus) -> None:
    path = bus.queue()
    sender, receiver = bus.open(
        bus.client.get_queue_sender(path), bus.client.get_queue_receiver(path, receive_mode=DELETE)
    )
    sender.send_messages([ServiceBusMessage("one"), ServiceBusMessage("two")])
    assert texts(receive(receiver, 2)) == ["one", "two"]
    assert peek(receiver) == []


def test_scheduled_messages_wait_and_can_be_cancelled(bus: SyncBus) -> None:
    sender, receiver = bus.open_queue()
    due = bus.clock.in_seconds(20)
    numbers = sender.schedule_messages([ServiceBusMessage("later"), ServiceBusMessage("never")], due)
    sender.cancel_scheduled_messages(numbers[1])
    [peeked] = peek(receiver)
    assert peeked.state == ServiceBusMessageState.SCHEDULED
    bus.advance(21)
    [message] = receive(receiver)
    assert str(message) == "later"
    assert message.enqueued_time_utc >= message.scheduled_enqueue_time_utc
    assert message.sequence_number > numbers[0]


def test_an_expired_message_is_dead_lettered(bus: SyncBus) -> None:
    sender, receiver = bus.open_queue(dead_lettering_on_message_expiration=True)
    sender.send_messages(ServiceBusMessage("short", time_to_live=timedelta(seconds=10)))
    bus.advance(11)
    dead_letters = bus.open(bus.client.get_queue_receiver(receiver.entity_path, sub_queue="deadletter"))
    assert receive(dead_letters)[0].dead_letter_reason == "TTLExpiredException"


def test_a_duplicate_is_dropped(bus: SyncBus) -> None:
    sender, receiver = bus.open_queue(requires_duplicate_detection=True)
    sender.send_messages(ServiceBusMessage("one", message_id="a"))
    sender.send_messages(ServiceBusMessage("again", message_id="a"))
    assert texts(peek(receiver)) == ["one"]


def test_each_subscription_gets_every_message(bus: SyncBus) -> None:
    topic = bus.topic("first", "second")
    sender, first, second = bus.open(
        bus.client.get_topic_sender(topic),
        bus.client.get_subscription_receiver(topic, "first"),
        bus.client.get_subscription_receiver(topic, "second"),
    )
    sender.send_messages([ServiceBusMessage("one"), ServiceBusMessage("two")])
    assert texts(receive(first, 2)) == ["one", "two"]
    assert texts(receive(second, 2)) == ["one", "two"]


def test_a_session_is_received_in_order_by_one_receiver(bus: SyncBus) -> None:
    path = bus.queue(requires_session=True)
    sender, receiver = bus.open(bus.client.get_queue_sender(path), bus.client.get_queue_receiver(path, session_id="a"))
    sender.send_messages([ServiceBusMessage(text, session_id=text[0]) for text in ("a1", "b1", "a2")])
    assert texts(receive(receiver, 2)) == ["a1", "a2"]
    with pytest.raises(SessionCannotBeLockedError):
        bus.client.get_queue_receiver(path, session_id="a").__enter__()
    free = bus.open(bus.client.get_queue_receiver(path, session_id=NEXT_AVAILABLE_SESSION))
    assert free.session.session_id == "b"
    assert sorted(bus.client.list_queue_sessions(path)) == ["a", "b"]


def test_a_session_has_a_state_and_a_lock_that_expires(bus: SyncBus) -> None:
    path = bus.queue(requires_session=True)
    receiver = bus.open(bus.client.get_queue_receiver(path, session_id="a"))
    receiver.session.set_state("half done")
    assert receiver.session.get_state() == b"half done"
    bus.advance(LOCK_SECONDS - 10)
    receiver.session.renew_lock()
    bus.advance(LOCK_SECONDS - 10)
    receiver.session.set_state(None)
    assert receiver.session.get_state() is None
    bus.advance(LOCK_OVER)
    with pytest.raises(SessionLockLostError):
        receiver.session.renew_lock()


def test_a_session_queue_refuses_a_message_without_a_session_id(bus: SyncBus) -> None:
    sender = bus.open(bus.client.get_queue_sender(bus.queue(requires_session=True)))
    with pytest.raises(ServiceBusError, match="SessionId was not set"):
        sender.send_messages(ServiceBusMessage("lost"))


def test_limits_raise_specific_errors(bus: SyncBus) -> None:
    sender, _ = bus.open_queue()
    queue = bus.broker_queue(sender.entity_name)
    queue.limits.max_message_bytes = 2000
    with pytest.raises(MessageSizeExceededError):
        sender.send_messages(ServiceBusMessage(b"x" * 2000))
    queue.limits.max_bytes = 1000
    with pytest.raises(ServiceBusQuotaExceededError):
        sender.send_messages(ServiceBusMessage(b"x" * 1500))


def test_an_unknown_queue_is_not_found(bus: SyncBus) -> None:
    links: list[Any] = [bus.client.get_queue_sender("nowhere"), bus.client.get_queue_receiver("nowhere")]
    for link in links:
        # The service refuses the token, and the SDK reports every refused token as a failed authentication.
        with pytest.raises(ServiceBusAuthenticationError) as caught:
            link.__enter__()
        assert caught.value.inner_exception.status_code == 404


def test_pings_never_arrive(bus: SyncBus) -> None:
    sender, receiver = bus.open_queue()
    sender.send_messages(ServiceBusMessage(b"", content_type="application/vnd.ms-servicebus-ping"))
    sender.send_messages(ServiceBusMessage("marker"))
    assert texts(receive(receiver)) == ["marker"]
    assert bus.broker_queue(sender.entity_name).activity.pings == 1


def test_a_long_receive_gets_a_message_as_soon_as_it_arrives(bus: SyncBus) -> None:
    sender, receiver = bus.open_queue()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(receiver.receive_messages, max_wait_time=15 * 60)
        sender.send_messages(ServiceBusMessage("one"))
        assert texts(waiting.result(PATIENCE)) == ["one"]


def test_a_receiver_can_be_iterated(bus: SyncBus) -> None:
    sender, receiver = bus.open_queue()
    sender.send_messages([ServiceBusMessage(str(number)) for number in range(5)])
    seen = []
    for message in receiver:
        seen.append(str(message))
        receiver.complete_message(message)
        if len(seen) == 5:
            break
    assert seen == ["0", "1", "2", "3", "4"]
    assert peek(receiver) == []


def test_counts_agree_with_the_administration_client(bus: SyncBus) -> None:
    sender, receiver = bus.open_queue()
    sender.send_messages([ServiceBusMessage("one"), ServiceBusMessage("two")])
    sender.schedule_messages(ServiceBusMessage("later"), bus.clock.in_seconds(60))
    receiver.dead_letter_message(receive(receiver)[0])
    with administration(bus.thread.connection_string) as admin:
        properties = admin.get_queue_runtime_properties(sender.entity_name)
    assert properties.active_message_count == 1
    assert properties.dead_letter_message_count == 1
    assert properties.scheduled_message_count == 1
