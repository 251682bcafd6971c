"""The whole of it: senders that go on while the primary is killed, and a syphon that brings everything home.

Both namespaces are processes of their own. What arrived is read from the primary's database, not from what we think
we did.
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
from tests.broker.durability.ledger import StoredMessage
from tests.broker.durability.tables import Tables, read_tables
from tests.broker.wire import ServeProcess

from twinbus import Receipt, Recovered, Route, SendAvailabilityOptions, SyphonOptions
from twinbus.aio import PairedSender, PairedServiceBusClient
from twinbus.pairing.options import Order

pytestmark = pytest.mark.slow

SENDERS = 8
SESSIONS_EACH = 2  # of each sender and entity
OUTAGES = 2
DOWN_SECONDS = 3.0
ROUNDS_BETWEEN = 3  # messages to each entity, by each sender, between two outages
PATIENCE = 90.0


@dataclass(frozen=True)
class Destination:
    """A queue or topic; a topic has one subscription, where its messages are found."""

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
    """The primary's entities as the TOML file that `twinbus serve` reads."""
    lines = ["[namespaces.contoso]", "port = 0"]
    for one in DESTINATIONS:
        sessions = f"requires_session = {str(one.has_sessions).lower()}"
        if one.is_topic:
            lines += [f"[namespaces.contoso.topics.{one.path}.subscriptions.all]", sessions]
        else:
            detection = f"requires_duplicate_detection = {str(one.detects_duplicates).lower()}"
            lines += [f"[namespaces.contoso.queues.{one.path}]", sessions, detection]
    return "\n".join(lines) + "\n"


class Namespaces:
    """Two `twinbus serve` processes. The primary comes back at the same port, with what it had stored."""

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
        """What the two namespaces hold; they must be stopped."""
        return read_tables(self.folder / "primary" / "contoso"), read_tables(self.folder / "secondary" / "standby")


@pytest.fixture
def namespaces(tmp_path: Path) -> Iterator[Namespaces]:
    both = Namespaces(tmp_path)
    yield both
    both.stop()


@dataclass
class Sent:
    """What one run sent, by destination: in order, with the receipt of each."""

    receipts: dict[str, dict[str, Receipt]] = field(default_factory=dict)
    sessions: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def note(self, destination: Destination, session: str | None, message_id: str, receipt: Receipt) -> None:
        self.receipts.setdefault(destination.place, {})[message_id] = receipt
        if session is not None:
            self.sessions.setdefault((destination.place, session), []).append(message_id)

    @property
    def all(self) -> list[Receipt]:
        return [receipt for one in self.receipts.values() for receipt in one.values()]


class Crowd:
    """Eight tasks that send, each with senders of its own, until they are told to stop."""

    def __init__(self, client: PairedServiceBusClient) -> None:
        self._client = client
        self._is_over = False
        self._direct: Counter[int] = Counter()
        self.sent = Sent()

    def _sender(self, destination: Destination) -> PairedSender:
        make = self._client.get_topic_sender if destination.is_topic else self._client.get_queue_sender
        return make(destination.path)

    async def _send(self, number: int) -> None:
        # A quarter of the entities each, so that every entity has two: a connection for each pair would be too many.
        mine = [one for index, one in enumerate(DESTINATIONS) if (index + number) % 4 == 0]
        senders = [(one, self._sender(one)) for one in mine]
        for count in itertools.count():
            if self._is_over:
                break
            destination, sender = senders[count % len(senders)]
            session = f"{number}-{count // len(senders) % SESSIONS_EACH}" if destination.has_sessions else None
            message_id = f"{number}-{count}"
            message = ServiceBusMessage(b"x" * 200, message_id=message_id, session_id=session)
            receipt = await sender.send_messages(message)
            self.sent.note(destination, session, message_id, receipt)
            self._direct[number] += receipt.route is Route.PRIMARY

    async def all_well(self) -> None:
        """Return when every task has sent a few messages to the primary without interruption."""
        before = self._direct.copy()
        enough = ROUNDS_BETWEEN * len(DESTINATIONS) // 4
        async with asyncio.timeout(PATIENCE):
            while any(self._direct[number] - before[number] < enough for number in range(SENDERS)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def run(self, outages: Callable[[], Awaitable[None]]) -> None:
        """Send for as long as the outages take."""
        async with asyncio.TaskGroup() as group:
            for number in range(SENDERS):
                group.create_task(self._send(number))
            await outages()
            self._is_over = True


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
        await crowd.all_well()
        await asyncio.to_thread(namespaces.primary.kill)
        await asyncio.sleep(DOWN_SECONDS)
        await asyncio.to_thread(namespaces.primary.start)
    await crowd.all_well()


async def _run(namespaces: Namespaces, order: Order | None) -> Sent:
    """Send through the outages, wait until everything has been brought home, and stop."""
    client = PairedServiceBusClient.from_connection_strings(
        namespaces.primary_string, namespaces.secondary.connection_string("standby"), options=_options(order)
    )
    recovered: set[str] = set()
    async with client:
        client.on_event(lambda event: recovered.add(event.entity) if isinstance(event, Recovered) else None)
        crowd = Crowd(client)
        await crowd.run(lambda: _outages(namespaces, crowd))
        async with asyncio.timeout(PATIENCE):
            while not _is_home(client, crowd.sent):  # noqa: ASYNC110 - the brokers tell nobody that they are empty
                await asyncio.sleep(0.1)
    assert recovered
    namespaces.stop()
    return crowd.sent


def _is_home(client: PairedServiceBusClient, sent: Sent) -> bool:
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
        twice = {message_id for message_id, count in arrived.items() if count > 1}
        if destination.detects_duplicates:
            assert not twice, f"duplicated at {destination.place}, which has duplicate detection"
        # An attempt whose answer did not come may have been stored all the same; so may a move of the syphon.
        surprising = {one for one in twice if receipts[one].attempts == 1 and receipts[one].route is Route.PRIMARY}
        assert not surprising, f"duplicated at {destination.place}"


async def test_every_send_is_accepted_and_arrives_though_the_primary_is_killed(namespaces: Namespaces) -> None:
    sent = await _run(namespaces, None)
    _check(sent, *namespaces.stored())


async def test_with_order_by_session_every_session_arrives_in_order(namespaces: Namespaces) -> None:
    sent = await _run(namespaces, "session")
    primary, secondary = namespaces.stored()
    _check(sent, primary, secondary)
    for (place, session), message_ids in sent.sessions.items():
        arrived = [one.message_id for one in _arrived(primary, place) if one.session == session]
        # A second copy of an ambiguous attempt may come later; the first copies must be in order.
        assert list(dict.fromkeys(arrived)) == message_ids, f"{session} at {place}"
