"""`record_receives` makes a plain SDK receiver record what arrives."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from azure.servicebus import (
    AutoLockRenewer,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from tests.client.threads import ThreadedTwins, eventually
from tests.namespace_internals import Queue
from tests.pairing.sdk_messages import typed, written_size

import twinbus
import twinbus.aio
from twinbus.emulator import DEFAULT, SubscriptionDescription, TopicDescription
from twinbus.ledger.ledger_reader import read_ledger
from twinbus.ledger.recorder import MemoryRecorder, NamespaceRole, Operation, OperationKind, Outcome, Stage
from twinbus.ledger.schema import to_operations
from twinbus.ledger.writer import LedgerWriter
from twinbus.pairing.failover.ping import ping_message
from twinbus.servicebus.durations import TICKS_PER_SECOND

pytestmark = pytest.mark.slow

KINDS = OperationKind
LONG = typed("LONG", 1000)


@pytest.fixture(scope="module")
def twins() -> Iterator[ThreadedTwins]:
    with ThreadedTwins.running(DEFAULT) as running:
        yield running


@pytest.fixture(scope="module")
def client(twins: ThreadedTwins) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(twins.texts[0], **twins.client_options) as opened:
        yield opened


@pytest_asyncio.fixture
async def aio_client(twins: ThreadedTwins) -> AsyncIterator[AsyncServiceBusClient]:
    async with AsyncServiceBusClient.from_connection_string(twins.texts[0], **twins.client_options) as opened:
        yield opened


def queue_with(twins: ThreadedTwins, client: ServiceBusClient, path: str, *texts: str, **properties: Any) -> Queue:
    queue = twins.queue(path, **properties)
    with client.get_queue_sender(path) as sender:
        for text in texts:
            message = ServiceBusMessage(text, message_id=f"id-{text}")
            if text == "ping":
                message = ping_message()
                message.time_to_live = None  # it must not expire before it is received
                message.message_id = "given by a service"
            sender.send_messages(message)
    return queue


def kinds(recorder: MemoryRecorder) -> list[tuple[OperationKind, str | None]]:
    return [(one.operation, one.message_id) for one in recorder.operations if one.outcome is not Outcome.EMPTY]


def test_operations_of_a_plain_receiver_are_recorded(twins: ThreadedTwins, client: ServiceBusClient) -> None:
    queue = queue_with(twins, client, "orders", "one", "two", "three", "four")
    [stored] = twins.primary.call(queue.peek, 0, 1)
    recorder = MemoryRecorder()
    with twinbus.record_receives(client.get_queue_receiver("orders"), recorder, client="shop") as receiver:
        messages = []
        while len(messages) < 4:
            messages += receiver.receive_messages(4 - len(messages), max_wait_time=10)
        receiver.complete_message(messages[0])
        receiver.abandon_message(messages[1])
        receiver.defer_message(messages[2])
        receiver.renew_message_lock(messages[3])
        receiver.dead_letter_message(messages[3], reason="test")
        receiver.receive_deferred_messages([messages[2].sequence_number or 0])
    assert kinds(recorder) == [
        *((KINDS.RECEIVE, f"id-{text}") for text in ("one", "two", "three", "four")),
        (KINDS.COMPLETE, "id-one"),
        (KINDS.ABANDON, "id-two"),
        (KINDS.DEFER, "id-three"),
        (KINDS.RENEW, "id-four"),
        (KINDS.DEAD_LETTER, "id-four"),
        (KINDS.RECEIVE, "id-three"),
    ]
    first = recorder.operations[0]
    assert (first.namespace, first.stage, first.entity) == (NamespaceRole.PRIMARY, Stage.PRIMARY_RECEIVE, "orders")
    assert (first.sequence_number, first.delivery_count) == (1, 0)
    # All that came, and not the body alone; the SDK does not tell how wide a number was written.
    assert first.bytes == pytest.approx(len(stored.encoded(bytes(16), 1)), abs=16)
    assert (first.pairing, first.client) == ("127", "shop")  # the first part of the host


@pytest.mark.parametrize("length", [10, 200_000], ids=["one frame", "several frames"])
def test_recorded_size_of_a_received_message_is_right_to_some_bytes(
    twins: ThreadedTwins, client: ServiceBusClient, length: int
) -> None:
    path = f"sized-{length}"
    queue = twins.queue(path)
    message = ServiceBusMessage(
        b"x" * length,
        message_id="m",
        time_to_live=timedelta(hours=1),
        application_properties={"text": "t", "number": 7, "long": LONG, "time": datetime.now(UTC), "none": None},  # type: ignore[dict-item]
    )
    with client.get_queue_sender(path) as sender:
        sender.send_messages(message)
    [stored] = twins.primary.call(queue.peek, 0, 1)
    recorder = MemoryRecorder()
    with twinbus.record_receives(client.get_queue_receiver(path), recorder) as receiver:
        [received] = receiver.receive_messages(1, max_wait_time=10)
        receiver.defer_message(received)
        assert received.sequence_number is not None
        receiver.complete_message(receiver.receive_deferred_messages([received.sequence_number])[0])
    direct, deferred = (one.bytes for one in recorder.operations if one.operation is KINDS.RECEIVE)
    assert direct == pytest.approx(len(stored.encoded(bytes(16), 1)), abs=24)
    # The lock token and the state of a deferred message come in another place.
    assert deferred == pytest.approx(direct, abs=64)
    # What was sent, and what the namespace has written beside it.
    assert written_size(message.raw_amqp_message) < direct < written_size(message.raw_amqp_message) + 200


def test_iterating_and_receive_and_delete_are_recorded(twins: ThreadedTwins, client: ServiceBusClient) -> None:
    queue_with(twins, client, "deleted", "one", "two")
    recorder = MemoryRecorder()
    plain = client.get_queue_receiver("deleted", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE, max_wait_time=1)
    with twinbus.record_receives(plain, recorder) as receiver:
        assert [str(message) for message in receiver] == ["one", "two"]
    assert kinds(recorder) == [(KINDS.RECEIVE, "id-one"), (KINDS.RECEIVE, "id-two")]


def test_record_receives_returns_the_same_receiver(client: ServiceBusClient, twins: ThreadedTwins) -> None:
    twins.queue("same")
    plain = client.get_queue_receiver("same")
    with twinbus.record_receives(plain, MemoryRecorder()) as receiver:
        assert receiver is plain
        assert isinstance(receiver, twinbus.RecordedReceiver)


def test_automatic_lock_renewals_are_recorded(twins: ThreadedTwins, client: ServiceBusClient) -> None:
    queue_with(twins, client, "renewed", "one", lock_duration=5 * TICKS_PER_SECOND)
    recorder = MemoryRecorder()
    with AutoLockRenewer() as renewer:
        plain = client.get_queue_receiver("renewed", auto_lock_renewer=renewer)
        with twinbus.record_receives(plain, recorder) as receiver:
            [message] = receiver.receive_messages(1, max_wait_time=10)
            eventually(lambda: (KINDS.RENEW, "id-one") in kinds(recorder))
            receiver.complete_message(message)


def test_a_ping_is_skipped_settled_and_recorded_without_an_id(twins: ThreadedTwins, client: ServiceBusClient) -> None:
    twins.primary.namespace.deliver_pings = True
    queue = queue_with(twins, client, "pinged", "ping", "one")
    recorder = MemoryRecorder()
    with twinbus.record_receives(client.get_queue_receiver("pinged"), recorder) as receiver:
        [message] = receiver.receive_messages(1, max_wait_time=10)
        assert str(message) == "one"
    assert [one for one in kinds(recorder) if one[0] is KINDS.RECEIVE] == [
        (KINDS.RECEIVE, None),
        (KINDS.RECEIVE, "id-one"),
    ]
    assert queue.activity.completed == 1


def test_subscriptions_and_dead_letter_queues_have_their_own_paths(
    twins: ThreadedTwins, client: ServiceBusClient
) -> None:
    namespace = twins.primary.namespace
    twins.primary.run(namespace.create(TopicDescription("events")))
    twins.primary.run(namespace.create_subscription(SubscriptionDescription("events", "all")))
    with client.get_topic_sender("events") as sender:
        sender.send_messages(ServiceBusMessage("one", message_id="id-one"))
    recorder = MemoryRecorder()
    with twinbus.record_receives(client.get_subscription_receiver("events", "all"), recorder) as receiver:
        receiver.dead_letter_message(receiver.receive_messages(1, max_wait_time=10)[0])
    dead = client.get_subscription_receiver("events", "all", sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    with twinbus.record_receives(dead, recorder) as receiver:
        receiver.complete_message(receiver.receive_messages(1, max_wait_time=10)[0])
    receives = [one.entity for one in recorder.operations if one.operation is KINDS.RECEIVE]
    assert receives == ["events/Subscriptions/all", "events/Subscriptions/all/$DeadLetterQueue"]


def test_recorded_rows_reach_a_ledger(twins: ThreadedTwins, client: ServiceBusClient, tmp_path: Path) -> None:
    queue_with(twins, client, "kept", "one")
    with (
        LedgerWriter(tmp_path) as ledger,
        twinbus.record_receives(client.get_queue_receiver("kept"), ledger, pairing="contoso") as receiver,
    ):
        receiver.complete_message(receiver.receive_messages(1, max_wait_time=10)[0])
    rows: list[Operation] = list(to_operations(read_ledger(tmp_path).table))
    assert Counter((row.pairing, row.operation, row.message_id) for row in rows) == {
        ("contoso", KINDS.RECEIVE, "id-one"): 1,
        ("contoso", KINDS.COMPLETE, "id-one"): 1,
    }


async def test_asynchronous_receiver_is_recorded_alike(
    twins: ThreadedTwins, client: ServiceBusClient, aio_client: AsyncServiceBusClient
) -> None:
    queue_with(twins, client, "awaited", "one", "two", "three")
    recorder = MemoryRecorder()
    plain = aio_client.get_queue_receiver("awaited", max_wait_time=1)
    async with twinbus.aio.record_receives(plain, recorder) as receiver:
        [message] = await receiver.receive_messages(1, max_wait_time=10)
        await receiver.complete_message(message)
        await receiver.complete_message(await anext(receiver))
        async for message in receiver:
            await receiver.renew_message_lock(message)
            await receiver.complete_message(message)
    assert kinds(recorder) == [
        (KINDS.RECEIVE, "id-one"),
        (KINDS.COMPLETE, "id-one"),
        (KINDS.RECEIVE, "id-two"),
        (KINDS.COMPLETE, "id-two"),
        (KINDS.RECEIVE, "id-three"),
        (KINDS.RENEW, "id-three"),
        (KINDS.COMPLETE, "id-three"),
    ]


def test_invalid_receiver_or_recorder_is_refused(twins: ThreadedTwins, client: ServiceBusClient) -> None:
    twins.queue("refused")
    plain = client.get_queue_receiver("refused")
    with pytest.raises(TypeError, match=r"recorder must have a method record, .* not str"):
        twinbus.record_receives(plain, "./ledger")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"receiver must be an azure\.servicebus\.aio\.ServiceBusReceiver"):
        twinbus.aio.record_receives(plain, MemoryRecorder())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"receiver must be an azure\.servicebus\.ServiceBusReceiver, not str"):
        twinbus.record_receives("orders", MemoryRecorder())  # type: ignore[arg-type]
    receiver = twinbus.record_receives(plain, MemoryRecorder())
    with pytest.raises(ValueError, match="the receiver of refused records already"):
        twinbus.record_receives(receiver, MemoryRecorder())
    receiver.close()
