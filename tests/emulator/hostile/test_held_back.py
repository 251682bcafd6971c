"""Faults hold a bounded amount of memory per client; at the limit its connection is not read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusSender
from tests.emulator.faults.bench import until
from tests.emulator.frame_peer import ConnectionEndedError, Peer
from tests.emulator.raw_client import Delivery, RawClient, encoded_message

from twinbus.emulator import Fault, FaultKind, FaultPoint, Namespace, QueueDescription
from twinbus.emulator.entities.queue import Queue
from twinbus.emulator.faults import gates, outage
from twinbus.emulator.protocol import links

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("serving")]

FEW = 5
MANY = 4 * FEW
HOUR = 3600.0
SEND = frozenset({FaultPoint.SEND})
RECEIVE = frozenset({FaultPoint.RECEIVE})
SETTLE = frozenset({FaultPoint.SETTLE})
CONNECT = frozenset({FaultPoint.CONNECT})


@pytest_asyncio.fixture(loop_scope="module")
async def queue(namespace: Namespace, request: pytest.FixtureRequest) -> AsyncIterator[Queue]:
    """A queue for one test; faults are cleared afterwards."""
    path = f"held-{abs(hash(request.node.name))}"
    await namespace.create(QueueDescription(path))
    yield namespace.entities.resolve(path).queue  # type: ignore[union-attr]
    namespace.faults.clear()


@pytest.fixture(params=["number", "bytes"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Message size of which `FEW` messages reach the held limit of a link."""
    if request.param == "number":
        monkeypatch.setattr(gates, "MAX_HELD", FEW)
        return 1
    monkeypatch.setattr(gates, "MAX_HELD_BYTES", FEW * 1000)
    return 1000


class Client(RawClient):
    """A raw client that knows its server connection."""

    async def open(self, namespace: Namespace, queue: Queue) -> None:
        before = set(namespace.connections)
        await self.__aenter__()
        (self.connection,) = namespace.connections - before
        await self.put_token(queue.path)

    @property
    def is_read(self) -> bool:
        transport = self.connection._transport
        return transport is not None and transport.is_reading()


@pytest_asyncio.fixture(loop_scope="module")
async def client(namespace: Namespace, queue: Queue) -> AsyncIterator[Client]:
    connected = Client(namespace.connection_string)
    await connected.open(namespace, queue)
    yield connected
    await connected.__aexit__()


class Answers:
    """Collects the outcomes of concurrent operations."""

    def __init__(self) -> None:
        self.errors: list[Exception | None] = []

    def __call__(self, error: Exception | None) -> None:
        self.errors.append(error)

    async def all_succeed(self, count: int) -> None:
        await until(lambda: len(self.errors) == count)
        assert self.errors == [None] * count


async def others_are_served(namespace: Namespace, queue: Queue) -> None:
    """Use another connection, which also gives the namespace time to read more."""
    async with RawClient(namespace.connection_string) as other:
        await other.put_token(queue.path)


async def fill(namespace: Namespace, queue: Queue, count: int, size: int = 1) -> list[str]:
    names = [str(number) for number in range(count)]
    async with RawClient(namespace.connection_string) as other:
        await other.put_token(queue.path)
        sender = await other.sender(queue.path)
        for name in names:
            await sender.send(encoded_message(name, bytes(size)))
    return names


async def taken(namespace: Namespace, queue: Queue, count: int) -> list[str]:
    deliveries: list[Delivery] = []
    async with RawClient(namespace.connection_string) as other:
        await other.put_token(queue.path)
        (await other.receiver(queue.path, deliveries.append, deletes=True)).grant(count)
        await until(lambda: len(deliveries) == count)
    return [delivery.message_id for delivery in deliveries]


@pytest.mark.parametrize(
    "fault",
    [Fault(FaultKind.BLACKHOLE, on=SEND), Fault(FaultKind.SLOW, on=SEND, delay=HOUR)],
    ids=["blackhole", "slow"],
)
async def test_sender_is_not_read_while_too_many_sends_are_held(
    namespace: Namespace, queue: Queue, client: Client, size: int, fault: Fault
) -> None:
    sender = await client.sender(queue.path)
    await sender.room()
    active = namespace.faults.add(fault)
    answers = Answers()
    names = [str(number) for number in range(MANY)]
    for name in names[:FEW]:
        assert client.is_read
        sender.submit(encoded_message(name, bytes(size)), answers)
    await until(lambda: not client.is_read)
    for name in names[FEW:]:
        sender.submit(encoded_message(name, bytes(size)), answers)
    await others_are_served(namespace, queue)
    assert (active.fired, answers.errors, queue.counters.active) == (FEW, [], 0)
    namespace.faults.clear()
    await answers.all_succeed(MANY)
    assert client.is_read
    assert await taken(namespace, queue, MANY) == names


async def test_sender_is_read_below_the_held_limit(
    namespace: Namespace, queue: Queue, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "MAX_HELD", FEW)
    sender = await client.sender(queue.path)
    await sender.room()
    active = namespace.faults.add(Fault(FaultKind.BLACKHOLE, entity=queue.path, on=SEND))
    answers = Answers()
    for number in range(FEW - 1):
        sender.submit(encoded_message(str(number)), answers)
    await until(lambda: active.fired == FEW - 1)
    await client.put_token(queue.path)
    assert client.is_read
    namespace.faults.clear()
    await answers.all_succeed(FEW - 1)


@pytest.mark.parametrize(
    "fault",
    [Fault(FaultKind.BLACKHOLE, on=RECEIVE), Fault(FaultKind.SLOW, on=RECEIVE, delay=HOUR)],
    ids=["blackhole", "slow"],
)
async def test_receiver_with_too_many_held_deliveries_gets_no_more(
    namespace: Namespace, queue: Queue, client: Client, size: int, fault: Fault
) -> None:
    names = await fill(namespace, queue, MANY, size)
    deliveries: list[Delivery] = []
    receiver = await client.receiver(queue.path, deliveries.append)
    active = namespace.faults.add(fault)
    receiver.grant(10 * MANY)
    await until(lambda: active.fired == FEW)
    await others_are_served(namespace, queue)
    assert (active.fired, deliveries) == (FEW, [])
    assert (queue.counters.active, queue.locked) == (MANY, FEW)
    namespace.faults.clear()
    await until(lambda: len(deliveries) == MANY)
    assert [delivery.message_id for delivery in deliveries] == names


async def test_receive_and_delete_takes_a_bounded_number_of_undelivered_messages(
    namespace: Namespace, queue: Queue, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "MAX_RESERVED", FEW)
    names = await fill(namespace, queue, MANY)
    deliveries: list[Delivery] = []
    receiver = await client.receiver(queue.path, deliveries.append, deletes=True)
    active = namespace.faults.add(Fault(FaultKind.BLACKHOLE, entity=queue.path, on=RECEIVE))
    receiver.grant(10 * MANY)
    await until(lambda: active.fired == FEW)
    await others_are_served(namespace, queue)
    assert (active.fired, deliveries, queue.counters.active) == (FEW, [], MANY - FEW)
    namespace.faults.clear()
    await until(lambda: len(deliveries) == MANY)
    assert [delivery.message_id for delivery in deliveries] == names


async def test_receiver_is_not_read_while_too_many_settlements_are_held(
    namespace: Namespace, queue: Queue, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "MAX_HELD", FEW)
    await fill(namespace, queue, MANY)
    deliveries: list[Delivery] = []
    receiver = await client.receiver(queue.path, deliveries.append)
    receiver.grant(MANY)
    await until(lambda: len(deliveries) == MANY)
    active = namespace.faults.add(Fault(FaultKind.BLACKHOLE, entity=queue.path, on=SETTLE))
    answers = Answers()
    for delivery in deliveries[:FEW]:
        receiver.settle(delivery, answers)
    await until(lambda: not client.is_read)
    for delivery in deliveries[FEW:]:
        receiver.settle(delivery, answers)
    await others_are_served(namespace, queue)
    assert (active.fired, answers.errors, queue.counters.active) == (FEW, [], MANY)
    namespace.faults.clear()
    await answers.all_succeed(MANY)
    assert (queue.counters.active, queue.locked) == (0, 0)


async def test_held_sends_are_stored_after_the_sender_disconnected(
    namespace: Namespace, queue: Queue, client: Client, size: int
) -> None:
    sender = await client.sender(queue.path)
    await sender.room()
    namespace.faults.add(Fault(FaultKind.BLACKHOLE, entity=queue.path, on=SEND))
    names = [str(number) for number in range(FEW)]
    for name in names:
        sender.submit(encoded_message(name, bytes(size)), Answers())
    await until(lambda: not client.is_read)
    client.abort()
    await client.lost
    namespace.faults.clear()
    assert await taken(namespace, queue, FEW) == names
    await until(lambda: client.connection not in namespace.connections)


async def test_client_that_is_not_read_does_not_count_as_idle(
    namespace: Namespace, queue: Queue, client: Client, size: int
) -> None:
    sender = await client.sender(queue.path)
    await sender.room()
    namespace.faults.add(Fault(FaultKind.BLACKHOLE, entity=queue.path, on=SEND))
    answers = Answers()
    for number in range(FEW):
        sender.submit(encoded_message(str(number), bytes(size)), answers)
    await until(lambda: not client.is_read)
    much_later = namespace.loop_time() + HOUR
    client.connection.tick(much_later)
    assert not client.connection.closing
    namespace.faults.clear()
    await answers.all_succeed(FEW)
    client.connection.tick(much_later)
    await client.lost
    assert "idle for longer" in str(client.reason)


# ---- many links of one connection ----


@pytest.fixture(params=["number", "bytes"])
def size_together(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Message size of which `FEW` messages, over all links, reach the held limit of a connection."""
    if request.param == "number":
        monkeypatch.setattr(gates, "MAX_HELD_TOGETHER", FEW)
        return 1
    monkeypatch.setattr(gates, "MAX_HELD_BYTES_TOGETHER", FEW * 1000)
    return 1000


async def test_client_is_not_read_at_the_held_limit_over_all_its_links(
    namespace: Namespace, queue: Queue, client: Client, size_together: int
) -> None:
    senders = [await client.sender(queue.path) for _ in range(MANY)]
    for sender in senders:
        await sender.room()
    active = namespace.faults.add(Fault(FaultKind.BLACKHOLE, entity=queue.path, on=SEND))
    answers = Answers()
    for number, sender in enumerate(senders[:FEW]):
        assert client.is_read
        sender.submit(encoded_message(str(number), bytes(size_together)), answers)
    await until(lambda: not client.is_read)
    for number, sender in enumerate(senders[FEW:], FEW):
        sender.submit(encoded_message(str(number), bytes(size_together)), answers)
    await others_are_served(namespace, queue)
    assert (active.fired, answers.errors, queue.counters.active) == (FEW, [], 0)
    namespace.faults.clear()
    await answers.all_succeed(MANY)
    assert client.is_read


async def test_client_gets_no_more_deliveries_at_the_held_limit_over_all_its_links(
    namespace: Namespace, queue: Queue, client: Client, size_together: int
) -> None:
    names = await fill(namespace, queue, MANY, size_together)
    deliveries: list[Delivery] = []
    receivers = [await client.receiver(queue.path, deliveries.append) for _ in range(MANY)]
    active = namespace.faults.add(Fault(FaultKind.BLACKHOLE, entity=queue.path, on=RECEIVE))
    for receiver in receivers:
        receiver.grant(1)
    await until(lambda: active.fired == FEW)
    await others_are_served(namespace, queue)
    assert (active.fired, deliveries, queue.locked) == (FEW, [], FEW)
    namespace.faults.clear()
    await until(lambda: len(deliveries) == MANY)
    assert sorted(delivery.message_id for delivery in deliveries) == sorted(names)


# ---- connections ----


@pytest.fixture
def _room_for_few(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "MAX_HELD_CONNECTIONS", FEW)


async def connected(namespace: Namespace, stack: AsyncExitStack) -> Peer:
    return await stack.enter_async_context(Peer(namespace))


@pytest.mark.usefixtures("_room_for_few")
@pytest.mark.parametrize(
    "fault",
    [Fault(FaultKind.BLACKHOLE, on=CONNECT), Fault(FaultKind.SLOW, on=CONNECT, delay=HOUR)],
    ids=["blackhole", "slow"],
)
async def test_connection_beyond_the_held_limit_is_reset_and_held_ones_are_served_later(
    namespace: Namespace, well_behaved: ServiceBusSender, fault: Fault
) -> None:
    active = namespace.faults.add(fault)
    async with AsyncExitStack() as stack:
        peers = [await connected(namespace, stack) for _ in range(FEW)]
        await until(lambda: active.fired == FEW)
        opening = [asyncio.create_task(peer.open()) for peer in peers]
        for _ in range(2):
            with pytest.raises((ConnectionEndedError, ConnectionResetError)):
                await (await connected(namespace, stack)).open()
        await well_behaved.send_messages(ServiceBusMessage("on an existing connection"))
        assert not any(task.done() for task in opening)
        namespace.faults.clear()
        await asyncio.gather(*opening)
        await (await connected(namespace, stack)).open()


@pytest.mark.usefixtures("_room_for_few")
async def test_connection_without_a_fault_is_served_while_others_are_held(namespace: Namespace) -> None:
    active = namespace.faults.add(Fault(FaultKind.BLACKHOLE, on=CONNECT, count=FEW))
    async with AsyncExitStack() as stack:
        for _ in range(FEW):
            await connected(namespace, stack)
        await until(lambda: active.fired == FEW)
        await (await connected(namespace, stack)).open()
