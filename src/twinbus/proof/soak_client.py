"""The application of a soak, a process of its own so that it can be looked at: `python -m twinbus.proof.soak_client`.

It sends and receives through both clients, the asynchronous one and its synchronous twin, each with a syphon. On
standard output it tells what it is about to send, what it was told and what it got, a JSON array in a line each.
SIGUSR1 ends the sending; it goes on receiving until it is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from twinbus import PairedServiceBusClient, SendAvailabilityOptions, SyphonOptions, aio

from .matrix_traffic import BATCH, SEND_TIMEOUT, SUBSCRIPTIONS, opened

Kind = Literal["single", "batch", "topic", "session", "scheduled"]
Twin = Literal["aio", "sync"]

KINDS: tuple[Kind, ...] = ("single", "batch", "topic", "session", "scheduled")
TWINS: tuple[Twin, ...] = ("aio", "sync")
#: The variable that holds its orders: they have keys in them, which are nobody's business on a command line.
ORDERS = "TWINBUS_PROOF_SOAK"
PAUSE = 0.2  # seconds between two calls of a sender
SESSION = 20  # messages, then the next session begins: the ids of sessions never end
SENDER_LIFE = 300  # calls, then a sender is closed and another one made
RECEIVER_LIFE = 20.0  # seconds; a receiver of the SDK does not notice that its connection leads nowhere
BACK_OFF = 0.5  # seconds
SCHEDULED_IN = 1.0  # seconds
# How the SDK's receivers end when their connection does.
_RECEIVE_ERRORS = (ServiceBusError, OSError, ValueError, AttributeError, TypeError)


@dataclass(frozen=True, slots=True)
class Orders:
    """Where to, and how."""

    primary: str
    secondary: str
    options: dict[str, Any]

    def as_environment(self) -> dict[str, str]:
        return {ORDERS: json.dumps(asdict(self))}


def pairing_of(twin: Twin) -> str:
    """The first part of the paths of a twin's backlog queues."""
    return f"soak-{twin}"


def entity_of(twin: Twin, kind: Kind) -> str:
    return f"{twin}-{kind}"


def content_of(message_id: str) -> str:
    """The body of the message with this id."""
    return f"body of {message_id}"


_telling = threading.Lock()


def tell(*words: object) -> None:
    with _telling:  # whole lines, whoever tells
        sys.stdout.write(json.dumps(words) + "\n")
        sys.stdout.flush()


class Load:
    """What one sender sends, call by call, without the calls themselves."""

    def __init__(self, twin: Twin, kind: Kind) -> None:
        self.kind, self.entity = kind, entity_of(twin, kind)
        self._counts = itertools.count()

    def next(self) -> list[ServiceBusMessage]:
        """The messages of the next call, which is told of."""
        count = next(self._counts)
        session = f"session-{count // SESSION}" if self.kind == "session" else None
        ids = [f"{count}-{index}" for index in range(BATCH if self.kind == "batch" else 1)]
        for message_id in ids:
            tell("attempt", self.entity, message_id, session)
        return [ServiceBusMessage(content_of(one), message_id=one, session_id=session) for one in ids]

    def accepted(self, messages: list[ServiceBusMessage], answer: Any) -> None:
        """`answer` is a receipt, or the numbers of scheduled messages, which are negative in the backlog."""
        route = ("backlog" if answer[0] < 0 else "primary") if isinstance(answer, list) else answer.route.value
        for one in messages:
            tell("accepted", self.entity, one.message_id, route)

    def refused(self, error: ServiceBusError) -> None:
        tell("refused", self.entity, type(error).__name__)

    def call(self, sender: Any, messages: list[ServiceBusMessage]) -> Any:
        """Begins the call; of the asynchronous twin it is to be awaited."""
        if self.kind == "scheduled":
            at = datetime.now(UTC) + timedelta(seconds=SCHEDULED_IN)
            return sender.schedule_messages(messages, at, timeout=SEND_TIMEOUT)
        return sender.send_messages(messages if self.kind == "batch" else messages[0], timeout=SEND_TIMEOUT)

    def sender(self, client: Any) -> Any:
        make = client.get_topic_sender if self.kind == "topic" else client.get_queue_sender
        return make(self.entity)


def sources(client: Any, twin: Twin) -> list[tuple[str, Callable[[], Any]]]:
    """Where messages arrive, each with what makes a receiver."""
    topic, sessions = entity_of(twin, "topic"), entity_of(twin, "session")
    plain = [entity_of(twin, kind) for kind in KINDS if kind not in ("topic", "session")]
    return [
        *((one, partial(client.get_queue_receiver, one)) for one in plain),
        *((f"{topic}/{one}", partial(client.get_subscription_receiver, topic, one)) for one in SUBSCRIPTIONS),
        (sessions, partial(client.get_queue_receiver, sessions, session_id=NEXT_AVAILABLE_SESSION)),
    ]


def _got(place: str, message: Any) -> None:
    tell("received", place, message.message_id, message.sequence_number, message.session_id, str(message))


class AsyncApplication:
    """The asynchronous twin: tasks of one loop."""

    def __init__(self, client: aio.PairedServiceBusClient, is_over: threading.Event) -> None:
        self._client, self._is_over = client, is_over

    async def send(self, load: Load) -> None:
        while not self._is_over.is_set():
            async with load.sender(self._client) as sender:
                for _ in range(SENDER_LIFE):
                    if self._is_over.is_set():
                        break
                    messages = load.next()
                    try:
                        load.accepted(messages, await load.call(sender, messages))
                    except ServiceBusError as error:
                        load.refused(error)
                    await asyncio.sleep(PAUSE)

    async def receive(self, place: str, make: Callable[[], Any]) -> None:
        while True:
            ends = time.monotonic() + RECEIVER_LIFE
            try:
                async with opened(make()) as receiver:
                    while time.monotonic() < ends:
                        found = await receiver.receive_messages(max_message_count=20, max_wait_time=1)
                        for message in found:
                            _got(place, message)
                            await receiver.complete_message(message)
                        if receiver.session is not None and not found:
                            break  # the next session
            except _RECEIVE_ERRORS:
                await asyncio.sleep(BACK_OFF)


class SyncApplication:
    """The synchronous twin: a thread for each sender and receiver."""

    def __init__(self, client: PairedServiceBusClient, is_over: threading.Event) -> None:
        self._client, self._is_over = client, is_over

    def send(self, load: Load) -> None:
        while not self._is_over.is_set():
            with load.sender(self._client) as sender:
                for _ in range(SENDER_LIFE):
                    if self._is_over.is_set():
                        break
                    messages = load.next()
                    try:
                        load.accepted(messages, load.call(sender, messages))
                    except ServiceBusError as error:
                        load.refused(error)
                    time.sleep(PAUSE)

    def receive(self, place: str, make: Callable[[], Any]) -> None:
        while True:
            ends = time.monotonic() + RECEIVER_LIFE
            try:
                with contextlib.closing(make()) as receiver:
                    while time.monotonic() < ends:
                        found = receiver.receive_messages(max_message_count=20, max_wait_time=1)
                        for message in found:
                            _got(place, message)
                            receiver.complete_message(message)
                        if receiver.session is not None and not found:
                            break  # the next session
            except _RECEIVE_ERRORS:
                time.sleep(BACK_OFF)


def _end_with_thread(what: threading.ExceptHookArgs) -> None:
    """A thread that dies of what it did not expect must not go unnoticed."""
    print(f"{what.thread}: {what.exc_type.__name__}", file=sys.stderr, flush=True)
    os._exit(1)


async def run(orders: Orders) -> None:
    """Until the process ends."""
    # What goes wrong is told by errors, and there is much of it.
    logging.disable(logging.CRITICAL)
    is_over = threading.Event()
    threading.excepthook = _end_with_thread
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, is_over.set)

    def arguments(twin: Twin) -> dict[str, Any]:
        options = SendAvailabilityOptions(
            **orders.options,
            primary_name=pairing_of(twin),
            enable_syphon=True,
            order="session",
            syphon=SyphonOptions(retry_min=0.1, retry_max=1.0),
        )
        return {"options": options, "retry_total": 5, "retry_backoff_factor": 0.1}

    ends = orders.primary, orders.secondary
    # The synchronous client is opened and used in threads only: it must not hold up the loop of its twin.
    sync_client = await asyncio.to_thread(PairedServiceBusClient.from_connection_strings, *ends, **arguments("sync"))
    await asyncio.to_thread(sync_client.start)
    async with aio.PairedServiceBusClient.from_connection_strings(*ends, **arguments("aio")) as client:
        tasks, threads = AsyncApplication(client, is_over), SyncApplication(sync_client, is_over)
        receiving = [asyncio.create_task(tasks.receive(*one)) for one in sources(client, "aio")]
        for source in sources(sync_client, "sync"):
            threading.Thread(target=threads.receive, args=source, daemon=True).start()
        senders = [threading.Thread(target=threads.send, args=[Load("sync", kind)], daemon=True) for kind in KINDS]
        for thread in senders:
            thread.start()
        await asyncio.gather(*(tasks.send(Load("aio", kind)) for kind in KINDS))
        for thread in senders:
            await asyncio.to_thread(thread.join)
        tell("quiet")
        await asyncio.gather(*receiving)


if __name__ == "__main__":
    asyncio.run(run(Orders(**json.loads(os.environ[ORDERS]))))
