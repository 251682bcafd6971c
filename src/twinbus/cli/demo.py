"""`twinbus demo`: two namespaces, real messages, one broken on purpose, and what the SDK makes of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import ServiceBusError
from rich.console import Console

from twinbus.broker import Fault, Kind, Namespace, QueueDescription
from twinbus.broker.background import NamespaceThread

QUEUE = "orders"
MESSAGES = 20


def demo() -> None:
    """See two embedded namespaces work, and one of them break.

    Example: twinbus demo
    """
    console = Console(highlight=False)
    with ExitStack() as stack:
        primary = stack.enter_context(_running("contoso", console))
        standby = stack.enter_context(_running("contoso-standby", console))
        senders = {one.namespace.name: stack.enter_context(_sender(one)) for one in (primary, standby)}
        for one in (primary, standby):
            receiver = stack.enter_context(_receiver(one))
            console.print(_exchange(one.namespace.name, senders[one.namespace.name], receiver))
        console.print("\n[bold]contoso stops answering[/]")
        primary.call(primary.namespace.faults.add, Fault(Kind.REFUSE))
        primary.call(primary.namespace.faults.add, Fault(Kind.RESET))
        for name, sender in senders.items():
            console.print(_try(name, sender))
        console.print("\n[bold]contoso is back[/]")
        primary.call(primary.namespace.faults.clear)
        for name, sender in senders.items():
            console.print(_try(name, sender))
        for one in (primary, standby):
            entity = one.namespace.find(QUEUE)
            assert entity is not None
            console.print(f"  {one.namespace.name}: {entity.counts.active} message(s) in {QUEUE}")


@contextmanager
def _running(name: str, console: Console) -> Iterator[NamespaceThread]:
    with NamespaceThread(lambda: Namespace(name)) as thread:
        thread.run(thread.namespace.create(QueueDescription(QUEUE)))
        console.print(f"[bold]{name}[/] listens on 127.0.0.1:{thread.namespace.port}")
        yield thread


@contextmanager
def _sender(thread: NamespaceThread) -> Iterator[ServiceBusSender]:
    # No retries: the demo shows what an outage looks like, not how long one can wait for it to end.
    with (
        ServiceBusClient.from_connection_string(thread.connection_string, retry_total=0) as client,
        client.get_queue_sender(QUEUE) as sender,
    ):
        yield sender


@contextmanager
def _receiver(thread: NamespaceThread) -> Iterator[ServiceBusReceiver]:
    with (
        ServiceBusClient.from_connection_string(thread.connection_string) as client,
        client.get_queue_receiver(QUEUE, max_wait_time=5) as receiver,
    ):
        yield receiver


def _exchange(name: str, sender: ServiceBusSender, receiver: ServiceBusReceiver) -> str:
    started = time.perf_counter()
    sender.send_messages([ServiceBusMessage(f"order {number}") for number in range(MESSAGES)])
    received = 0
    while received < MESSAGES:
        batch = receiver.receive_messages(MESSAGES, max_wait_time=5)
        for message in batch:
            receiver.complete_message(message)
        received += len(batch)
        if not batch:
            break
    seconds = time.perf_counter() - started
    return f"  {name}: sent {MESSAGES}, received and completed {received} in {seconds:.2f} s"


def _try(name: str, sender: ServiceBusSender) -> str:
    started = time.perf_counter()
    try:
        sender.send_messages(ServiceBusMessage("one more order"), timeout=5)
    except ServiceBusError as error:
        seconds = time.perf_counter() - started
        return f"  {name}: [red]the send failed[/] after {seconds:.2f} s with {type(error).__name__}"
    return f"  {name}: [green]the send was accepted[/] in {time.perf_counter() - started:.2f} s"
