"""The synchronous SDK against a namespace on another thread, with faults."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSender
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusConnectionError, ServiceBusServerBusyError
from tests.emulator.faults.bench import SHORT

from twinbus.emulator import Fault, FaultKind, Namespace, QueueDescription
from twinbus.emulator.faults.fault_plan import ActiveFault
from twinbus.emulator.server.thread_host import NamespaceThread

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


def test_sync_client_works_again_after_refuse_and_reset_faults(
    thread: NamespaceThread, sender: ServiceBusSender
) -> None:
    sender.send_messages(ServiceBusMessage("x"))
    add(thread, Fault(FaultKind.REFUSE))
    add(thread, Fault(FaultKind.RESET))
    for _ in range(2):
        with pytest.raises(ServiceBusConnectionError):
            sender.send_messages(ServiceBusMessage("x"))
    thread.call(thread.namespace.faults.clear)
    sender.send_messages(ServiceBusMessage("x"))


def test_sync_send_into_a_black_hole_times_out_and_is_stored_later(
    thread: NamespaceThread, sender: ServiceBusSender
) -> None:
    sender.send_messages(ServiceBusMessage("x"))
    before = received(thread)
    add(thread, Fault(FaultKind.BLACKHOLE))
    with pytest.raises(OperationTimeoutError):
        sender.send_messages(ServiceBusMessage("late"), timeout=SHORT)
    assert received(thread) == before
    thread.call(thread.namespace.faults.clear)
    sender.send_messages(ServiceBusMessage("x"))
    assert received(thread) == before + 2


def test_sync_client_retries_throttled_sends(thread: NamespaceThread) -> None:
    active = add(thread, Fault(FaultKind.THROTTLE, count=2))
    with (
        ServiceBusClient.from_connection_string(thread.connection_string, retry_backoff_factor=0.01) as client,
        client.get_queue_sender(QUEUE) as retrying,
    ):
        retrying.send_messages(ServiceBusMessage("x"))
        assert active.fired == 2
        add(thread, Fault(FaultKind.THROTTLE, count=4))
        with pytest.raises(ServiceBusServerBusyError):
            retrying.send_messages(ServiceBusMessage("x"))
