"""Runs the application of a soak in its own process: `python -m proof.soak.soak_client`.

It sends and receives through the asynchronous and the synchronous client, each with a syphon. It prints every attempt,
outcome and arrival as a JSON array, one per line. SIGUSR1 stops sending; receiving continues until the process is
ended.
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

from ..matrix.traffic import BATCH, SEND_TIMEOUT, SUBSCRIPTIONS, opened

Kind = Literal["single", "batch", "topic", "session", "scheduled"]
Twin = Literal["aio", "sync"]

KINDS: tuple[Kind, ...] = ("single", "batch", "topic", "session", "scheduled")
TWINS: tuple[Twin, ...] = ("aio", "sync")
#: Environment variable with the orders, which contain keys and must not be on the command line.
ORDERS = "TWINBUS_PROOF_SOAK"
PAUSE = 0.2  # seconds between two calls of a sender
SESSION = 20  # messages per session; then a new session id is used
SENDER_LIFE = 300  # calls per sender; then it is replaced
RECEIVER_LIFE = 20.0  # seconds per receiver, because the SDK does not notice a half-open connection
BACK_OFF = 0.5  # seconds
SCHEDULED_IN = 1.0  # seconds
# Errors of the SDK's receivers when their connection is lost.
_RECEIVE_ERRORS = (ServiceBusError, OSError, ValueError, AttributeError, TypeError)


@dataclass(frozen=True, slots=True)
class Orders:
    """Where to send, and the pairing options."""

    primary: str
    secondary: str
    options: dict[str, Any]

    def as_environment(self) -> dict[str, str]:
        return {ORDERS: json.dumps(asdict(self))}


def pairing_of(twin: Twin) -> str:
    """The pairing name, which is the first part of backlog queue paths."""
    return f"soak-{twin}"


def entity_of(twin: Twin, kind: Kind) -> str:
    return f"{twin}-{kind}"


def content_of(message_id: str) -> str:
    """The body of the message with this id."""
    return f"body of {message_id}"


_output_lock = threading.Lock()


def print_record(*values: object) -> None:
    with _output_lock:  # threads must not interleave lines
        sys.stdout.write(json.dumps(values) + "\n")
        sys.stdout.flush()


class Load:
    """Creates the messages of one sender and records their outcome."""

    def __init__(self, twin: Twin, kind: Kind) -> None:
        self.kind, self.entity = kind, entity_of(twin, kind)
        self._counts = itertools.count()

    def next(self) -> list[ServiceBusMessage]:
        """Create the messages of the next call and print the attempt."""
        count = next(self._counts)
        session = f"session-{count // SESSION}" if self.kind == "session" else None
        ids = [f"{count}-{index}" for index in range(BATCH if self.kind == "batch" else 1)]
        for message_id in ids:
            print_record("attempt", self.entity, message_id, session)
        return [
            ServiceBusMessage(content_of(message_id), message_id=message_id, session_id=session) for message_id in ids
        ]

    def accepted(self, messages: list[ServiceBusMessage], answer: Any) -> None:
        """Print the outcome. `answer` is a receipt, or sequence numbers, which are negative in the backlog."""
        route = ("backlog" if answer[0] < 0 else "primary") if isinstance(answer, list) else answer.route.value
        for message in messages:
            print_record("accepted", self.entity, message.message_id, route)

    def refused(self, error: ServiceBusError) -> None:
        print_record("refused", self.entity, type(error).__name__)

    def call(self, sender: Any, messages: list[ServiceBusMessage]) -> Any:
        """Send or schedule messages; the asynchronous client's result must be awaited."""
        if self.kind == "scheduled":
            at = datetime.now(UTC) + timedelta(seconds=SCHEDULED_IN)
            return sender.schedule_messages(messages, at, timeout=SEND_TIMEOUT)
        return sender.send_messages(messages if self.kind == "batch" else messages[0], timeout=SEND_TIMEOUT)

    def sender(self, client: Any) -> Any:
        make = client.get_topic_sender if self.kind == "topic" else client.get_queue_sender
        return make(self.entity)


def sources(client: Any, twin: Twin) -> list[tuple[str, Callable[[], Any]]]:
    """The places where messages arrive, each with a function that opens a receiver."""
    topic, sessions = entity_of(twin, "topic"), entity_of(twin, "session")
    plain = [entity_of(twin, kind) for kind in KINDS if kind not in ("topic", "session")]
    return [
        *((queue, partial(client.get_queue_receiver, queue)) for queue in plain),
        *((f"{topic}/{name}", partial(client.get_subscription_receiver, topic, name)) for name in SUBSCRIPTIONS),
        (sessions, partial(client.get_queue_receiver, sessions, session_id=NEXT_AVAILABLE_SESSION)),
    ]


def _print_received(place: str, message: Any) -> None:
    print_record("received", place, message.message_id, message.sequence_number, message.session_id, str(message))


class AsyncApplication:
    """Uses the asynchronous client: one task per sender and receiver."""

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
            deadline = time.monotonic() + RECEIVER_LIFE
            try:
                async with opened(make()) as receiver:
                    while time.monotonic() < deadline:
                        messages = await receiver.receive_messages(max_message_count=20, max_wait_time=1)
                        for message in messages:
                            _print_received(place, message)
                            await receiver.complete_message(message)
                        if receiver.session is not None and not messages:
                            break  # the next session
            except _RECEIVE_ERRORS:
                await asyncio.sleep(BACK_OFF)


class SyncApplication:
    """Uses the synchronous client: one thread per sender and receiver."""

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
            deadline = time.monotonic() + RECEIVER_LIFE
            try:
                with contextlib.closing(make()) as receiver:
                    while time.monotonic() < deadline:
                        messages = receiver.receive_messages(max_message_count=20, max_wait_time=1)
                        for message in messages:
                            _print_received(place, message)
                            receiver.complete_message(message)
                        if receiver.session is not None and not messages:
                            break  # the next session
            except _RECEIVE_ERRORS:
                time.sleep(BACK_OFF)


def _exit_on_thread_error(args: threading.ExceptHookArgs) -> None:
    """Exit if a thread fails with an unexpected error."""
    print(f"{args.thread}: {args.exc_type.__name__}", file=sys.stderr, flush=True)
    os._exit(1)


async def run(orders: Orders) -> None:
    """Until the process deadline."""
    # Faults cause many warnings; errors are reported through exceptions.
    logging.disable(logging.CRITICAL)
    is_over = threading.Event()
    threading.excepthook = _exit_on_thread_error
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

    connection_strings = orders.primary, orders.secondary
    # The synchronous client is used in threads only: it must not block the event loop.
    sync_client = await asyncio.to_thread(
        PairedServiceBusClient.from_connection_strings, *connection_strings, **arguments("sync")
    )
    await asyncio.to_thread(sync_client.start)
    async with aio.PairedServiceBusClient.from_connection_strings(*connection_strings, **arguments("aio")) as client:
        async_application, sync_application = AsyncApplication(client, is_over), SyncApplication(sync_client, is_over)
        receiving = [asyncio.create_task(async_application.receive(*source)) for source in sources(client, "aio")]
        for source in sources(sync_client, "sync"):
            threading.Thread(target=sync_application.receive, args=source, daemon=True).start()
        senders = [
            threading.Thread(target=sync_application.send, args=[Load("sync", kind)], daemon=True) for kind in KINDS
        ]
        for thread in senders:
            thread.start()
        await asyncio.gather(*(async_application.send(Load("aio", kind)) for kind in KINDS))
        for thread in senders:
            await asyncio.to_thread(thread.join)
        print_record("quiet")
        await asyncio.gather(*receiving)


if __name__ == "__main__":
    asyncio.run(run(Orders(**json.loads(os.environ[ORDERS]))))
