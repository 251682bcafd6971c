"""`twinbus demo`: two namespaces, a pairing, an outage, and whether everything arrived."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import typer
from azure.servicebus import ServiceBusMessage
from rich.console import Console

from twinbus import (
    Event,
    FailedOver,
    Moved,
    PairedSender,
    PairedServiceBusClient,
    PingFailed,
    Receipt,
    Recovered,
    Route,
    SendAvailabilityOptions,
)
from twinbus.broker import Fault, Kind, Namespace, QueueDescription
from twinbus.broker.background import NamespaceThread

from .logs import LogFormat, configure_logs

QUEUE = "orders"
MESSAGES = 20  # before, during and after the outage
PATIENCE = 30.0

OPTIONS = SendAvailabilityOptions(
    backlog_queue_count=2, failover_interval=0, ping_primary_interval=1, attempt_timeout=5, enable_syphon=True
)


def demo() -> None:
    """See sends outlive their namespace: two embedded ones, paired, and one of them broken on purpose.

    Exit code 1 if a message was lost.

    Example: twinbus demo
    """
    configure_logs(LogFormat.TEXT, "error")  # what the pairing logs, the demo prints
    console = Console(highlight=False)
    with ExitStack() as stack:
        primary = stack.enter_context(_running("contoso", console))
        standby = stack.enter_context(_running("contoso-standby", console))
        primary.run(primary.namespace.create(QueueDescription(QUEUE)))
        client = stack.enter_context(
            PairedServiceBusClient.from_connection_strings(
                primary.connection_string, standby.connection_string, options=OPTIONS
            )
        )
        watch = Watch(console)
        stack.callback(client.on_event(watch))
        sender = stack.enter_context(client.get_queue_sender(QUEUE))
        receipts = _send(console, sender, "all is well")

        console.print("\n[bold]contoso stops answering[/]")
        for kind in (Kind.REFUSE, Kind.RESET):
            primary.call(primary.namespace.faults.add, Fault(kind))
        receipts += _send(console, sender, "contoso is down")

        console.print("\n[bold]contoso is back[/]")
        primary.call(primary.namespace.faults.clear)
        watch.wait_for(Recovered)
        receipts += _send(console, sender, "all is well again")
        watch.wait_until_moved(sum(receipt.route is Route.BACKLOG for receipt in receipts))

        if not _verdict(console, client, receipts):
            raise typer.Exit(1)


@contextmanager
def _running(name: str, console: Console) -> Iterator[NamespaceThread]:
    with NamespaceThread(lambda: Namespace(name)) as thread:
        console.print(f"{name} listens on 127.0.0.1:{thread.namespace.port}")
        yield thread


class Watch:
    """Prints what the pairing tells, and waits for it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._changed = threading.Condition()
        self._seen: set[type[Event]] = set()
        self._moved = 0

    def __call__(self, event: Event) -> None:
        match event:
            case FailedOver():
                self._console.print(f"  {event.entity} has failed over: its messages go to the backlog")
            case PingFailed():
                self._console.print(f"  a ping of {event.entity} did not get through")
            case Recovered():
                self._console.print(f"  a ping got through: messages for {event.entity} go to contoso again")
            case Moved():
                self._console.print(f"  the syphon has moved {event.count} messages from {event.queue}")
        with self._changed:
            self._seen.add(type(event))
            self._moved += event.count if isinstance(event, Moved) else 0
            self._changed.notify_all()

    def wait_for(self, kind: type[Event]) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: kind in self._seen, PATIENCE):
                raise TimeoutError(f"no {kind.__name__} within {PATIENCE:g} s")

    def wait_until_moved(self, count: int) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._moved >= count, PATIENCE):
                raise TimeoutError(f"only {self._moved} of {count} messages were moved within {PATIENCE:g} s")


def _send(console: Console, sender: PairedSender, when: str) -> list[Receipt]:
    receipts, slowest = [], 0.0
    for number in range(MESSAGES):
        started = time.perf_counter()
        receipts.append(sender.send_messages(ServiceBusMessage(f"{when}: order {number}")))
        slowest = max(slowest, time.perf_counter() - started)
    routes = Counter("contoso" if receipt.route is Route.PRIMARY else "the backlog" for receipt in receipts)
    where = " and ".join(f"{count} by {route}" for route, count in routes.items())
    console.print(f"{when}: {MESSAGES} sends accepted, {where}; the slowest took {slowest:.2f} s")
    return receipts


def _verdict(console: Console, client: PairedServiceBusClient, receipts: list[Receipt]) -> bool:
    """Receive everything and compare; true if nothing is missing."""
    sent = {message_id for receipt in receipts for message_id in receipt.message_ids}
    arrived: Counter[str] = Counter()
    with client.get_queue_receiver(QUEUE) as receiver:
        while sent - arrived.keys():
            messages = receiver.receive_messages(max_message_count=100, max_wait_time=5)
            if not messages:
                break
            for message in messages:
                arrived[str(message.message_id)] += 1
                receiver.complete_message(message)
    lost, unexpected = len(sent - arrived.keys()), len(arrived.keys() - sent)
    duplicated = sum(count > 1 for count in arrived.values())
    console.print(
        f"\n[bold]acknowledged {len(sent)}, arrived {len(arrived)}, lost {lost}, unexpected {unexpected},"
        f" duplicated {duplicated}[/]"
    )
    return not lost
