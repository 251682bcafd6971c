"""Full outage test: senders continue while the primary is killed, and the syphon drains the backlog.

Both namespaces are processes. Arrivals are read from the primary's database, independent of the senders' records.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from tests.emulator.durability.ledger import StoredMessage
from tests.emulator.durability.tables import Tables, read_tables
from tests.emulator.wire import ServeProcess

from twinbus import Receipt, Recovered, Route, SendAvailabilityOptions, SyphonOptions
from twinbus.aio import PairedSender, PairedServiceBusClient
from twinbus.pairing.options import Order

pytestmark = pytest.mark.slow

SENDERS = 8
SESSIONS_EACH = 2  # per sender and entity
OUTAGES = 2
DOWN_SECONDS = 3.0
ROUNDS_BETWEEN = 3  # messages per sender and entity between two outages
WAIT_SECONDS = 90.0


@dataclass(frozen=True)
class Destination:
    """A queue, or a topic with one subscription that collects its messages."""

    path: str
    is_topic: bool = False
    has_sessions: bool = False
    detects_duplicates: bool = False

    @property
    def place(self) -> str:
        return f"{self.path}/all" if self.is_topic else self.path


DESTINATIONS = [
    *(Destination(f"queue-{number}") for number in range(6)),
    *(Destination(f"strict-{number}", detects_duplicates=True) for number in range(4)),
    *(Destination(f"sessions-{number}", has_sessions=True) for number in range(4)),
    *(Destination(f"topic-{number}", is_topic=True) for number in range(4)),
    *(Destination(f"topic-sessions-{number}", is_topic=True, has_sessions=True) for number in range(2)),
]


def _configuration() -> str:
    """The primary's entities as a configuration file for `twinbus serve`."""
    lines = ["[namespaces.contoso]", "port = 0"]
    for destination in DESTINATIONS:
        sessions = f"requires_session = {str(destination.has_sessions).lower()}"
        if destination.is_topic:
            lines += [f"[namespaces.contoso.topics.{destination.path}.subscriptions.all]", sessions]
        else:
            detection = f"requires_duplicate_detection = {str(destination.detects_duplicates).lower()}"
            lines += [f"[namespaces.contoso.queues.{destination.path}]", sessions, detection]
    return "\n".join(lines) + "\n"


class Namespaces:
    """Two `twinbus serve` processes. The primary restarts on the same port with the same data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        config = folder / "primary.toml"
        config.write_text(_configuration())
        with ServeProcess(folder / "primary", "--config", str(config)) as first:
            port = first.ready["namespaces"]["contoso"]["port"]
            self.primary_string = first.connection_string("contoso")
        config.write_text(config.read_text().replace("port = 0", f"port = {port}"))
        self.primary = ServeProcess(folder / "primary", "--config", str(config))
        self.secondary = ServeProcess(folder / "secondary", "--namespace", "standby=0")
        self.primary.start()
        self.secondary.start()

    def stop(self) -> None:
        self.primary.stop()
        self.secondary.stop()

    def stored(self) -> tuple[Tables, Tables]:
        """The contents of both namespaces, which must be stopped."""
        return read_tables(self.folder / "primary" / "contoso"), read_tables(self.folder / "secondary" / "standby")


@pytest.fixture
def namespaces(tmp_path: Path) -> Iterator[Namespaces]:
    both = Namespaces(tmp_path)
    yield both
    both.stop()


@dataclass
class Sent:
    """The messages and receipts of one run, by destination, in order."""

    receipts: dict[str, dict[str, Receipt]] = field(default_factory=dict)
    sessions: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def record(self, destination: Destination, session: str | None, message_id: str, receipt: Receipt) -> None:
        self.receipts.setdefault(destination.place, {})[message_id] = receipt
        if session is not None:
            self.sessions.setdefault((destination.place, session), []).append(message_id)

    @property
    def all(self) -> list[Receipt]:
        return [receipt for receipts in self.receipts.values() for receipt in receipts.values()]


class Crowd:
    """Eight tasks, each with its own senders, that send until stopped."""

    def __init__(self, client: PairedServiceBusClient) -> None:
        self._client = client
        self._is_stopped = False
        self._direct: Counter[int] = Counter()
        self.sent = Sent()

    def _sender(self, destination: Destination) -> PairedSender:
        make = self._client.get_topic_sender if destination.is_topic else self._client.get_queue_sender
        return make(destination.path)

    async def _send(self, number: int) -> None:
        # Each task sends to a quarter of the entities, so that every entity has two tasks; all pairs need too many
        # connections.
        senders = [
            (destination, self._sender(destination))
            for index, destination in enumerate(DESTINATIONS)
            if (index + number) % 4 == 0
        ]
        for count in itertools.count():
            if self._is_stopped:
                break
            destination, sender = senders[count % len(senders)]
            session = f"{number}-{count // len(senders) % SESSIONS_EACH}" if destination.has_sessions else None
            message_id = f"{number}-{count}"
            message = ServiceBusMessage(b"x" * 200, message_id=message_id, session_id=session)
            receipt = await sender.send_messages(message)
            self.sent.record(destination, session, message_id, receipt)
            self._direct[number] += receipt.route is Route.PRIMARY

    async def wait_healthy(self) -> None:
        """Wait until every task has sent some more messages to the primary."""
        before = self._direct.copy()
        count_each = ROUNDS_BETWEEN * len(DESTINATIONS) // 4
        async with asyncio.timeout(WAIT_SECONDS):
            while any(self._direct[number] - before[number] < count_each for number in range(SENDERS)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def run(self, outages: Callable[[], Awaitable[None]]) -> None:
        """Send while `outages` runs."""
        async with asyncio.TaskGroup() as group:
            for number in range(SENDERS):
                group.create_task(self._send(number))
            await outages()
            self._is_stopped = True


def _options(order: Order | None) -> SendAvailabilityOptions:
    return SendAvailabilityOptions(
        backlog_queue_count=3,
        failover_interval=0.5,
        ping_primary_interval=1,
        attempt_timeout=5,
        enable_syphon=True,
        order=order,
        syphon=SyphonOptions(retry_min=0.2, retry_max=2),
    )


async def _outages(namespaces: Namespaces, crowd: Crowd) -> None:
    for _ in range(OUTAGES):
        await crowd.wait_healthy()
        await asyncio.to_thread(namespaces.primary.kill)
        await asyncio.sleep(DOWN_SECONDS)
        await asyncio.to_thread(namespaces.primary.start)
    await crowd.wait_healthy()


async def _run(namespaces: Namespaces, order: Order | None) -> Sent:
    """Send through the outages, wait until the backlog is drained, and stop."""
    client = PairedServiceBusClient.from_connection_strings(
        namespaces.primary_string, namespaces.secondary.connection_string("standby"), options=_options(order)
    )
    recovered: set[str] = set()
    async with client:
        client.on_event(lambda event: recovered.add(event.entity) if isinstance(event, Recovered) else None)
        crowd = Crowd(client)
        await crowd.run(lambda: _outages(namespaces, crowd))
        async with asyncio.timeout(WAIT_SECONDS):
            while not _is_drained(client, crowd.sent):  # noqa: ASYNC110 - there is no event for an empty backlog
                await asyncio.sleep(0.1)
    assert recovered
    namespaces.stop()
    return crowd.sent


def _is_drained(client: PairedServiceBusClient, sent: Sent) -> bool:
    syphon = client.status().syphon
    assert syphon is not None
    moved = sum(tally.moved for queue in syphon.queues for tally in queue.destinations.values())
    diverted = sum(receipt.route is Route.BACKLOG for receipt in sent.all)
    return moved >= diverted and all(queue.in_flight == 0 for queue in syphon.queues)


def _arrived(primary: Tables, place: str) -> list[StoredMessage]:
    return primary.messages.get(place, [])


def _check(sent: Sent, primary: Tables, secondary: Tables) -> None:
    assert sum(len(messages) for messages in secondary.messages.values()) == 0
    assert sum(receipt.route is Route.BACKLOG for receipt in sent.all) > 100
    assert sum(receipt.route is Route.PRIMARY for receipt in sent.all) > 100
    for destination in DESTINATIONS:
        receipts = sent.receipts[destination.place]
        arrived = Counter(message.message_id for message in _arrived(primary, destination.place))
        assert not receipts.keys() - arrived.keys(), f"lost at {destination.place}"
        assert not arrived.keys() - receipts.keys(), f"unexpected at {destination.place}"
        duplicated = {message_id for message_id, count in arrived.items() if count > 1}
        if destination.detects_duplicates:
            assert not duplicated, f"duplicated at {destination.place}, which has duplicate detection"
        # An attempt without an answer may have been stored anyway, and so may a move of the syphon.
        unexplained = {
            message_id
            for message_id in duplicated
            if receipts[message_id].attempts == 1 and receipts[message_id].route is Route.PRIMARY
        }
        assert not unexplained, f"duplicated at {destination.place}"


async def test_every_send_arrives_although_the_primary_is_killed(namespaces: Namespaces) -> None:
    sent = await _run(namespaces, None)
    _check(sent, *namespaces.stored())


async def test_sessions_arrive_in_order_with_session_order(namespaces: Namespaces) -> None:
    sent = await _run(namespaces, "session")
    primary, secondary = namespaces.stored()
    _check(sent, primary, secondary)
    for (place, session), message_ids in sent.sessions.items():
        arrived = [message.message_id for message in _arrived(primary, place) if message.session == session]
        # Duplicates of unanswered attempts may arrive later; first copies must be in order.
        assert list(dict.fromkeys(arrived)) == message_ids, f"{session} at {place}"
