"""The synchronous SDK, with a namespace on a thread of its own that another thread breaks and mends."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSender
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusConnectionError, ServiceBusServerBusyError
from tests.broker.faults.bench import SHORT

from twinbus.broker import Fault, Kind, Namespace, QueueDescription
from twinbus.broker.background import NamespaceThread
from twinbus.broker.faults import ActiveFault

# The SDK drops the sockets of connections that were cut without closing them.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

QUEUE = "orders"


@pytest.fixture(scope="module")
def thread() -> Iterator[NamespaceThread]:
    with NamespaceThread(lambda: Namespace("contoso")) as running:
        running.run(running.namespace.create(QueueDescription(QUEUE)))
        yield running
    gc.collect()


@pytest.fixture(scope="module")
def sender(thread: NamespaceThread) -> Iterator[ServiceBusSender]:
    with (
        ServiceBusClient.from_connection_string(thread.connection_string, retry_total=0) as client,
        client.get_queue_sender(QUEUE) as opened,
    ):
        yield opened


def add(thread: NamespaceThread, fault: Fault) -> ActiveFault:
    return thread.call(thread.namespace.faults.add, fault)


def received(thread: NamespaceThread) -> int:
    entity = thread.namespace.find(QUEUE)
    assert entity is not None
    return entity.queue.activity.received


def test_a_broken_namespace_refuses_and_works_again_on_the_same_port(
    thread: NamespaceThread, sender: ServiceBusSender
) -> None:
    sender.send_messages(ServiceBusMessage("x"))
    add(thread, Fault(Kind.REFUSE))
    add(thread, Fault(Kind.RESET))
    for _ in range(2):
        with pytest.raises(ServiceBusConnectionError):
            sender.send_messages(ServiceBusMessage("x"))
    thread.call(thread.namespace.faults.clear)
    sender.send_messages(ServiceBusMessage("x"))


def test_an_open_sender_in_a_black_hole_times_out_and_its_message_arrives_late(
    thread: NamespaceThread, sender: ServiceBusSender
) -> None:
    sender.send_messages(ServiceBusMessage("x"))
    before = received(thread)
    add(thread, Fault(Kind.BLACKHOLE))
    with pytest.raises(OperationTimeoutError):
        sender.send_messages(ServiceBusMessage("late"), timeout=SHORT)
    assert received(thread) == before
    thread.call(thread.namespace.faults.clear)
    sender.send_messages(ServiceBusMessage("x"))
    assert received(thread) == before + 2


def test_throttling_is_retried_by_a_client_that_retries(thread: NamespaceThread) -> None:
    active = add(thread, Fault(Kind.THROTTLE, count=2))
    with (
        ServiceBusClient.from_connection_string(thread.connection_string, retry_backoff_factor=0.01) as client,
        client.get_queue_sender(QUEUE) as retrying,
    ):
        retrying.send_messages(ServiceBusMessage("x"))
        assert active.fired == 2
        add(thread, Fault(Kind.THROTTLE, count=4))
        with pytest.raises(ServiceBusServerBusyError):
            retrying.send_messages(ServiceBusMessage("x"))
