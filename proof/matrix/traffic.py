"""Runs the traffic of one cell: a pairing, senders, receivers, and a history."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import EntityStatus

from twinbus import (
    BacklogQueueRetired,
    Diverted,
    Event,
    FailedOver,
    Route,
    SendAvailabilityOptions,
    Suspected,
    SyphonOptions,
)
from twinbus.aio import PairedServiceBusClient
from twinbus.pairing.backlog.provisioning import PROPERTIES
from twinbus.pairing.failover.error_classification import FailoverPolicy
from twinbus.servicebus.entity_paths import BACKLOG_MARK, backlog_path

from ..history import History
from .cells import Cell
from .matrix_bench import POLL, Bench, until
from .namespace_processes import ChildProcess

SENDERS = 2
SESSIONS = 2  # per sender
SUBSCRIPTIONS = ("billing", "audit")
BACKLOG_QUEUES = 2
BATCH = 4
PAUSE = 0.02  # average seconds between two calls of a sender
SCHEDULED_IN = 1.0  # seconds
SEND_TIMEOUT = 12.0  # per call
#: Offset of sequence numbers per creation of the entity: a recreated entity starts again with 1.
NUMBERS = 10**9
LOCK = timedelta(seconds=5)
SESSION_LOCK = timedelta(minutes=1)  # never renewed, and must outlast the cell
BACK_OFF = 0.5  # seconds before a receiver retries
CLOSE_SECONDS = 5.0
#: Retries of the SDK, about 6 seconds in all.
RETRIES: dict[str, Any] = {"retry_total": 5, "retry_backoff_factor": 0.1}
#: Pairing options with short times, so that a cell takes seconds instead of minutes.
OPTIONS: dict[str, Any] = {
    "backlog_queue_count": BACKLOG_QUEUES,
    "failover_interval": 0.3,
    "ping_primary_interval": 1.0,
    "attempt_timeout": 2.0,
    "backlog_cooldown": 1.0,
}


class Traffic:
    """The traffic of a cell. `entity` is its queue or topic in the primary; it has its own backlog queues."""

    def __init__(
        self,
        bench: Bench,
        cell: Cell,
        name: str,
        *,
        syphon: bool = True,
        policy: FailoverPolicy | None = None,
        more_sessions: tuple[str, ...] = (),
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.cell = cell
        self.name = self.entity = name
        self.bench = bench
        places = [f"{name}/{subscription}" for subscription in SUBSCRIPTIONS] if cell.work == "topic" else [name]
        self.history = History(places={name: places})
        self.backlog = [backlog_path(name, index) for index in range(BACKLOG_QUEUES)]
        #: Common path prefix of the cell's backlog queues.
        self.backlog_root = f"{name}/{BACKLOG_MARK}"
        self._random = random.Random(f"{cell.seed} {cell.name}")
        #: Time to live in seconds of messages sent from now on.
        self.time_to_live: float | None = None
        pairing_options = SendAvailabilityOptions(
            **{**OPTIONS, **(options or {})},
            primary_name=name,
            enable_syphon=syphon,
            order="session" if cell.work == "session" else None,
            syphon=SyphonOptions(retry_min=0.1, retry_max=1.0),
            policy=policy or FailoverPolicy.availability(),
        )
        self._client = PairedServiceBusClient.from_connection_strings(
            bench.primary.connection_string, bench.secondary.connection_string, options=pairing_options, **RETRIES
        )
        self._may_send = asyncio.Event()
        self._is_over = False
        self._tasks: list[asyncio.Task[None]] = []
        self._receivers: list[asyncio.Task[None]] = []
        self._generation = 0
        #: Sessions of senders other than those of this class.
        self.more_sessions: tuple[str, ...] = more_sessions
        #: Processes that send or move messages of the cell; stopped with it.
        self.children: list[ChildProcess] = []
        self._listening: list[asyncio.Task[None]] = []
        #: Calls since `mark`, by sender: accepted by the primary, accepted by either namespace, raised.
        self.direct: Counter[int] = Counter()
        self.accepted: Counter[int] = Counter()
        self.raised: Counter[int] = Counter()
        self._mark = 0.0
        self._pending_calls = 0
        self._entities_made = 0
        self.fault_began_at: float | None = None
        self.failover_seconds: dict[int, float] = {}
        self.refused: Counter[str] = Counter()
        self.receive_errors: Counter[str] = Counter()
        #: Whether receivers take longer for each message than its lock lasts.
        self.receives_slowly = False
        self.diverted = 0
        self.failovers = 0
        #: Alarms since `mark`, by event name.
        self.alarms: Counter[str] = Counter()
        #: The backlog queue that stored the last message.
        self.last_queue: str | None = None
        #: The last time at which the backlog had no dead letters.
        self.without_dead_letters = 0.0

    # ---- start and close ----

    async def start(self) -> None:
        """Create the entities, open the client and receivers, and start sending."""
        await self.create_entity()
        await asyncio.gather(*map(self._create_backlog_queue, self.backlog))
        await self._client.start()
        self._client.on_event(self._on_event)
        self.reopen_receivers()
        self._tasks = [asyncio.create_task(self._send(number)) for number in range(SENDERS)]
        self.resume()

    async def create_entity(self) -> None:
        administration, cell = self.bench.primary.administration, self.cell
        self._entities_made += 1
        properties: dict[str, Any] = {"requires_duplicate_detection": cell.detects}
        if cell.work != "topic":
            sessions = cell.work == "session"
            lock = SESSION_LOCK if sessions else LOCK
            await administration.create_queue(self.entity, lock_duration=lock, requires_session=sessions, **properties)
            return
        # A topic without subscriptions discards messages, so sending is disabled until they exist.
        topic = await administration.create_topic(self.entity, status=EntityStatus.SEND_DISABLED, **properties)
        for name in SUBSCRIPTIONS:
            await administration.create_subscription(self.entity, name, lock_duration=LOCK)
        topic.status = EntityStatus.ACTIVE
        await administration.update_topic(topic)

    async def delete_entity(self) -> None:
        administration = self.bench.primary.administration
        await (administration.delete_topic if self.cell.work == "topic" else administration.delete_queue)(self.entity)

    async def _create_backlog_queue(self, path: str) -> None:
        # As the pairing creates them, but with a shorter lock: killed processes leave locks behind.
        await self.bench.secondary.administration.create_queue(path, **{**PROPERTIES, "lock_duration": LOCK})

    async def close(self) -> None:
        """Stop everything and delete the entities."""
        self._is_over = True
        self._end_receivers()
        tasks = [*self._tasks, *self._listening]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._receivers, return_exceptions=True)
        await asyncio.gather(*(child.stop() for child in self.children))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS * 2):
                await self._client.close()
        if self._entities_made:
            await self.delete_entity()
        await asyncio.gather(*map(self.bench.secondary.administration.delete_queue, self.backlog))

    def _on_event(self, event: Event) -> None:
        self.failovers += isinstance(event, FailedOver)
        if isinstance(event, (Suspected, FailedOver, BacklogQueueRetired)):
            self.alarms[type(event).__name__] += 1
        if isinstance(event, Diverted):
            self.last_queue = event.queue

    # ---- senders ----

    def pause(self) -> None:
        """Start no calls until `resume`."""
        self._may_send.clear()

    @property
    def is_idle(self) -> bool:
        """Whether no call is pending."""
        return not self._pending_calls

    def resume(self) -> None:
        self._may_send.set()

    async def stop_sending(self) -> None:
        """Stop the senders and wait for pending calls. Raises unexpected errors of senders."""
        self._is_over = True
        self.resume()
        await asyncio.gather(*self._tasks, *self._listening)

    def listen(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task that records the output of a child process, which must end before sending does."""
        self._listening.append(asyncio.create_task(work))

    def mark(self) -> None:
        """Reset the counters: count only calls that begin from now on."""
        self._mark = time.monotonic()
        self.direct.clear()
        self.accepted.clear()
        self.raised.clear()
        self.alarms.clear()

    def has_each(self, calls: int, count: Callable[[int], int]) -> bool:
        """Whether every sender has at least `calls` calls according to `count`, or has failed."""
        return all(count(number) >= calls or self._tasks[number].done() for number in range(SENDERS))

    def ended(self, number: int) -> int:
        return self.accepted[number] + self.raised[number]

    def new_sender(self) -> Any:
        """Open another sender to the entity, which is closed with the client."""
        make = self._client.get_topic_sender if self.cell.work == "topic" else self._client.get_queue_sender
        return make(self.entity)

    def acknowledge(self, message: ServiceBusMessage, route: Route) -> None:
        """Record that a message of another sender was accepted."""
        self.history.acknowledge(self.entity, str(message.message_id), route.value, at=time.time())
        self.diverted += route is Route.BACKLOG

    async def _send(self, number: int) -> None:
        sender = self.new_sender()
        count = 0
        while not self._is_over:
            await self._may_send.wait()
            count += 1
            await self._call(sender, number, count)
            await asyncio.sleep(PAUSE * (0.5 + self._random.random()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await sender.close()

    def _messages(self, number: int, count: int) -> list[ServiceBusMessage]:
        session = f"{number}-{count % SESSIONS}" if self.cell.work == "session" else None
        size = BATCH if self.cell.work == "batch" else 1
        time_to_live = None if self.time_to_live is None else timedelta(seconds=self.time_to_live)
        return [
            ServiceBusMessage(
                f"body of {number}-{count}-{index}",
                message_id=f"{number}-{count}-{index}",
                session_id=session,
                time_to_live=time_to_live,
            )
            for index in range(size)
        ]

    async def _call(self, sender: Any, number: int, count: int) -> None:
        messages = self._messages(number, count)
        for message in messages:
            self.history.attempt(
                self.entity,
                str(message.message_id),
                session=message.session_id,
                content=str(message),
                time_to_live=self.time_to_live,
                at=time.time(),
            )
        began = time.monotonic()
        self._pending_calls += 1
        try:
            route = await self._send_or_schedule(sender, messages)
        except ServiceBusError as error:
            self.refused[type(error).__name__] += 1
            if began >= self._mark:
                self.raised[number] += 1
            return
        finally:
            self._pending_calls -= 1
        self._note_accepted(number, route, began, messages)

    async def _send_or_schedule(self, sender: Any, messages: list[ServiceBusMessage]) -> Route:
        """Send or schedule messages; return the route by which they were accepted."""
        if self.cell.work != "scheduled":
            payload = messages if self.cell.work == "batch" else messages[0]
            receipt = await sender.send_messages(payload, timeout=SEND_TIMEOUT)
            return Route(receipt.route)
        at = datetime.now(UTC) + timedelta(seconds=SCHEDULED_IN)
        numbers = await sender.schedule_messages(messages, at, timeout=SEND_TIMEOUT)
        return Route.BACKLOG if numbers[0] < 0 else Route.PRIMARY

    def _note_accepted(self, number: int, route: Route, began: float, messages: list[ServiceBusMessage]) -> None:
        now = time.monotonic()
        for message in messages:
            self.history.acknowledge(self.entity, str(message.message_id), route.value, at=time.time())
        if route is Route.BACKLOG:
            self.diverted += len(messages)
            if self.fault_began_at is not None:
                self.failover_seconds.setdefault(number, now - self.fault_began_at)
        if began >= self._mark:
            self.accepted[number] += 1
            self.direct[number] += route is Route.PRIMARY

    # ---- receivers ----

    def _sources(self, client: PairedServiceBusClient) -> list[tuple[str, Callable[[], Any]]]:
        """The places where messages arrive, each with a function that opens a receiver."""
        if self.cell.work == "topic":
            return [
                (f"{self.entity}/{name}", partial(client.get_subscription_receiver, self.entity, name))
                for name in SUBSCRIPTIONS
            ]
        own_sessions = [f"{sender}-{session}" for sender in range(SENDERS) for session in range(SESSIONS)]
        sessions: list[str | None] = [*own_sessions, *self.more_sessions] if self.cell.work == "session" else [None]
        return [
            (self.entity, partial(client.get_queue_receiver, self.entity, session_id=session)) for session in sessions
        ]

    def reopen_receivers(self) -> None:
        """Replace all receivers: a receiver of the SDK does not notice a half-open connection."""
        self._end_receivers()
        self._receivers += [
            asyncio.create_task(self._receive(place, make, self._generation))
            for place, make in self._sources(self._client)
        ]

    def _end_receivers(self) -> None:
        self._generation += 1  # the SDK may swallow a cancellation while it closes
        for task in self._receivers:
            task.cancel()

    async def _receive(self, place: str, make: Callable[[], Any], generation: int) -> None:
        """Receive until the receivers are replaced, and reconnect after errors."""
        while generation == self._generation:
            try:
                async with opened(make()) as receiver:
                    while generation == self._generation:
                        for message in await receiver.receive_messages(max_message_count=20, max_wait_time=1):
                            self.history.receive(
                                place,
                                str(message.message_id),
                                (message.sequence_number or 0) + self._entities_made * NUMBERS,
                                session=message.session_id,
                                content=str(message),
                            )
                            if self.receives_slowly:
                                await asyncio.sleep(LOCK.total_seconds() + 0.5)
                            await receiver.complete_message(message)
            except (ServiceBusError, OSError, ValueError, AttributeError, TypeError) as error:
                # The SDK's receivers fail in many ways when their connection does.
                self.receive_errors[type(error).__name__] += 1
                await asyncio.sleep(BACK_OFF)

    # ---- recovery and drain ----

    async def recover(self, calls: int, seconds: float) -> bool:
        """Wait until every sender is back on the primary for `calls` calls, then pause. Returns whether all are."""
        await self.get_through(calls, seconds)
        self.pause()
        return self.has_each(calls, self.direct.__getitem__)

    async def get_through(self, calls: int, seconds: float) -> bool:
        """Wait until the primary has accepted `calls` calls of every sender. Returns whether it has."""
        return await until(lambda: self.has_each(calls, self.direct.__getitem__), seconds)

    @property
    def places(self) -> list[str]:
        """The namespace's own paths of the places where messages arrive."""
        if self.cell.work != "topic":
            return [self.entity]
        return [f"{self.entity}/Subscriptions/{name}" for name in SUBSCRIPTIONS]

    async def left(self) -> dict[str, int]:
        """Messages not yet moved or not yet received, by path, as the namespaces report them."""
        backlog = await self.bench.secondary.counts(self.backlog)
        arrived = await self.bench.primary.counts(self.places)
        if not any(counts["dead_letter"] for counts in backlog.values()):
            self.without_dead_letters = time.time()
        return {
            path: counts["active"] + counts["deferred"] + counts["scheduled"] + counts["locked"]
            for path, counts in {**backlog, **arrived}.items()
        }

    @property
    def not_accepted_by_primary(self) -> int:
        """Number of ended calls since `mark` that the primary did not accept."""
        return sum(self.accepted.values()) - sum(self.direct.values()) + sum(self.raised.values())

    async def received_all(self) -> None:
        """Wait until the receivers have everything; senders should be paused."""
        await until(lambda: self.history.missing() == 0, CLOSE_SECONDS * 4)

    async def drained(self, seconds: float) -> None:
        """Wait until nothing is left in two consecutive checks, and close the history."""
        deadline, empty_checks, left = time.monotonic() + seconds, 0, await self.left()
        while time.monotonic() < deadline and empty_checks < 2:
            empty_checks = 0 if any(left.values()) else empty_checks + 1
            await asyncio.sleep(POLL)
            left = await self.left()
        await self._read_dead_letters()
        if self.cell.work == "session":
            self.history.sort_by_sequence_number([self.entity])
        self.history.drained(left)

    async def _read_dead_letters(self) -> None:
        open_dead_letters = partial(self._client.secondary.get_queue_receiver, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
        for path, counts in (await self.bench.secondary.counts(self.backlog)).items():
            if not counts["dead_letter"]:
                continue
            async with opened(open_dead_letters(path)) as receiver:
                for message in await receiver.peek_messages(max_message_count=1000):
                    reason = message.dead_letter_reason or ""
                    self.history.dead_letter(self.entity, str(message.message_id), reason, at=self.without_dead_letters)


@contextlib.asynccontextmanager
async def opened(receiver: Any) -> AsyncIterator[Any]:
    """Context manager that closes a receiver within a bounded time, even on a half-open connection."""
    try:
        await receiver.__aenter__()
        yield receiver
    finally:
        with contextlib.suppress(TimeoutError, ServiceBusError, OSError, ValueError, AttributeError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await receiver.close()
