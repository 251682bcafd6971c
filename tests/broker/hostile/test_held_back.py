"""What a fault holds back takes a bounded share of memory: then the client is not listened to until the fault ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusSender
from tests.broker.faults.bench import until
from tests.broker.frame_peer import Ended, Peer
from tests.broker.raw_client import Delivery, RawClient, encoded_message

from twinbus.broker import Fault, Kind, Namespace, Operation, QueueDescription, gates, links, outage
from twinbus.broker.queue import Queue

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("serving")]

FEW = 5
MANY = 4 * FEW
HOUR = 3600.0
SEND = frozenset({Operation.SEND})
RECEIVE = frozenset({Operation.RECEIVE})
SETTLE = frozenset({Operation.SETTLE})
CONNECT = frozenset({Operation.CONNECT})


@pytest_asyncio.fixture(loop_scope="module")
async def queue(namespace: Namespace, request: pytest.FixtureRequest) -> AsyncIterator[Queue]:
    """A queue for the test alone; its faults end with the test."""
    path = f"held-{abs(hash(request.node.name))}"
    await namespace.create(QueueDescription(path))
    yield namespace.entities.resolve(path).queue  # type: ignore[union-attr]
    namespace.faults.clear()


@pytest.fixture(params=["number", "bytes"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The size of messages of which a few are as much as may be held back."""
    if request.param == "number":
        monkeypatch.setattr(gates, "MAX_HELD", FEW)
        return 1
    monkeypatch.setattr(gates, "MAX_HELD_BYTES", FEW * 1000)
    return 1000


class Client(RawClient):
    """A client with everything to try one queue."""

    async def open(self, namespace: Namespace, queue: Queue) -> None:
        before = set(namespace.connections)
        await self.__aenter__()
        (self.connection,) = namespace.connections - before
        await self.put_token(queue.path)

    @property
    def is_heard(self) -> bool:
        transport = self.connection._transport
        return transport is not None and transport.is_reading()


@pytest_asyncio.fixture(loop_scope="module")
async def client(namespace: Namespace, queue: Queue) -> AsyncIterator[Client]:
    connected = Client(namespace.connection_string)
    await connected.open(namespace, queue)
    yield connected
    await connected.__aexit__()


class Answers:
    """What became of operations that were all begun at once."""

    def __init__(self) -> None:
        self.errors: list[Exception | None] = []

    def __call__(self, error: Exception | None) -> None:
        self.errors.append(error)

    async def all_good(self, count: int) -> None:
        await until(lambda: len(self.errors) == count)
        assert self.errors == [None] * count


async def others_are_served(namespace: Namespace, queue: Queue) -> None:
    """By another connection; meanwhile the namespace would have read what it may read."""
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
    return [one.message_id for one in deliveries]


@pytest.mark.parametrize(
    "fault", [Fault(Kind.BLACKHOLE, on=SEND), Fault(Kind.SLOW, on=SEND, delay=HOUR)], ids=["blackhole", "slow"]
)
async def test_a_sender_is_not_read_while_too_many_sends_are_held_back_and_loses_none(
    namespace: Namespace, queue: Queue, client: Client, size: int, fault: Fault
) -> None:
    sender = await client.sender(queue.path)
    await sender.room()
    active = namespace.faults.add(fault)
    answers = Answers()
    names = [str(number) for number in range(MANY)]
    for name in names[:FEW]:
        assert client.is_heard
        sender.submit(encoded_message(name, bytes(size)), answers)
    await until(lambda: not client.is_heard)
    for name in names[FEW:]:
        sender.submit(encoded_message(name, bytes(size)), answers)
    await others_are_served(namespace, queue)
    assert (active.fired, answers.errors, queue.counters.active) == (FEW, [], 0)
    namespace.faults.clear()
    await answers.all_good(MANY)
    assert client.is_heard
    assert await taken(namespace, queue, MANY) == names


async def test_one_message_less_than_the_bound_leaves_the_sender_heard(
    namespace: Namespace, queue: Queue, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "MAX_HELD", FEW)
    sender = await client.sender(queue.path)
    await sender.room()
    active = namespace.faults.add(Fault(Kind.BLACKHOLE, entity=queue.path, on=SEND))
    answers = Answers()
    for number in range(FEW - 1):
        sender.submit(encoded_message(str(number)), answers)
    await until(lambda: active.fired == FEW - 1)
    await client.put_token(queue.path)
    assert client.is_heard
    namespace.faults.clear()
    await answers.all_good(FEW - 1)


@pytest.mark.parametrize(
    "fault", [Fault(Kind.BLACKHOLE, on=RECEIVE), Fault(Kind.SLOW, on=RECEIVE, delay=HOUR)], ids=["blackhole", "slow"]
)
async def test_a_queue_gives_no_more_to_a_receiver_that_too_much_is_held_back_from(
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
    assert [one.message_id for one in deliveries] == names


async def test_no_more_is_deleted_for_a_receiver_than_may_be_on_its_way_to_it(
    namespace: Namespace, queue: Queue, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "MAX_RESERVED", FEW)
    names = await fill(namespace, queue, MANY)
    deliveries: list[Delivery] = []
    receiver = await client.receiver(queue.path, deliveries.append, deletes=True)
    active = namespace.faults.add(Fault(Kind.BLACKHOLE, entity=queue.path, on=RECEIVE))
    receiver.grant(10 * MANY)
    await until(lambda: active.fired == FEW)
    await others_are_served(namespace, queue)
    assert (active.fired, deliveries, queue.counters.active) == (FEW, [], MANY - FEW)
    namespace.faults.clear()
    await until(lambda: len(deliveries) == MANY)
    assert [one.message_id for one in deliveries] == names


async def test_a_receiver_is_not_read_while_too_many_settlements_are_held_back_and_all_are_done(
    namespace: Namespace, queue: Queue, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "MAX_HELD", FEW)
    await fill(namespace, queue, MANY)
    deliveries: list[Delivery] = []
    receiver = await client.receiver(queue.path, deliveries.append)
    receiver.grant(MANY)
    await until(lambda: len(deliveries) == MANY)
    active = namespace.faults.add(Fault(Kind.BLACKHOLE, entity=queue.path, on=SETTLE))
    answers = Answers()
    for delivery in deliveries[:FEW]:
        receiver.settle(delivery, answers)
    await until(lambda: not client.is_heard)
    for delivery in deliveries[FEW:]:
        receiver.settle(delivery, answers)
    await others_are_served(namespace, queue)
    assert (active.fired, answers.errors, queue.counters.active) == (FEW, [], MANY)
    namespace.faults.clear()
    await answers.all_good(MANY)
    assert (queue.counters.active, queue.locked) == (0, 0)


async def test_what_is_held_back_is_stored_although_its_sender_has_gone_away(
    namespace: Namespace, queue: Queue, client: Client, size: int
) -> None:
    sender = await client.sender(queue.path)
    await sender.room()
    namespace.faults.add(Fault(Kind.BLACKHOLE, entity=queue.path, on=SEND))
    names = [str(number) for number in range(FEW)]
    for name in names:
        sender.submit(encoded_message(name, bytes(size)), Answers())
    await until(lambda: not client.is_heard)
    client.abort()
    await client.lost
    namespace.faults.clear()
    assert await taken(namespace, queue, FEW) == names
    await until(lambda: client.connection not in namespace.connections)


async def test_a_client_that_is_not_read_is_not_taken_for_idle(
    namespace: Namespace, queue: Queue, client: Client, size: int
) -> None:
    sender = await client.sender(queue.path)
    await sender.room()
    namespace.faults.add(Fault(Kind.BLACKHOLE, entity=queue.path, on=SEND))
    answers = Answers()
    for number in range(FEW):
        sender.submit(encoded_message(str(number), bytes(size)), answers)
    await until(lambda: not client.is_heard)
    much_later = namespace.loop_time() + HOUR
    client.connection.tick(much_later)
    assert not client.connection.closing
    namespace.faults.clear()
    await answers.all_good(FEW)
    client.connection.tick(much_later)
    await client.lost
    assert "idle for longer" in str(client.reason)


# ---- many links of one connection ----


@pytest.fixture(params=["number", "bytes"])
def size_together(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The size of messages of which a few, over all links, are as much as may be held back of a connection."""
    if request.param == "number":
        monkeypatch.setattr(gates, "MAX_HELD_TOGETHER", FEW)
        return 1
    monkeypatch.setattr(gates, "MAX_HELD_BYTES_TOGETHER", FEW * 1000)
    return 1000


async def test_a_client_is_not_read_while_too_much_is_held_back_over_all_its_links(
    namespace: Namespace, queue: Queue, client: Client, size_together: int
) -> None:
    senders = [await client.sender(queue.path) for _ in range(MANY)]
    for sender in senders:
        await sender.room()
    active = namespace.faults.add(Fault(Kind.BLACKHOLE, entity=queue.path, on=SEND))
    answers = Answers()
    for number, sender in enumerate(senders[:FEW]):
        assert client.is_heard
        sender.submit(encoded_message(str(number), bytes(size_together)), answers)
    await until(lambda: not client.is_heard)
    for number, sender in enumerate(senders[FEW:], FEW):
        sender.submit(encoded_message(str(number), bytes(size_together)), answers)
    await others_are_served(namespace, queue)
    assert (active.fired, answers.errors, queue.counters.active) == (FEW, [], 0)
    namespace.faults.clear()
    await answers.all_good(MANY)
    assert client.is_heard


async def test_queues_give_no_more_to_a_client_that_too_much_is_held_back_from_over_all_its_links(
    namespace: Namespace, queue: Queue, client: Client, size_together: int
) -> None:
    names = await fill(namespace, queue, MANY, size_together)
    deliveries: list[Delivery] = []
    receivers = [await client.receiver(queue.path, deliveries.append) for _ in range(MANY)]
    active = namespace.faults.add(Fault(Kind.BLACKHOLE, entity=queue.path, on=RECEIVE))
    for receiver in receivers:
        receiver.grant(1)
    await until(lambda: active.fired == FEW)
    await others_are_served(namespace, queue)
    assert (active.fired, deliveries, queue.locked) == (FEW, [], FEW)
    namespace.faults.clear()
    await until(lambda: len(deliveries) == MANY)
    assert sorted(one.message_id for one in deliveries) == sorted(names)


# ---- connections ----


@pytest.fixture
def _room_for_few(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "MAX_HELD_CONNECTIONS", FEW)


async def connected(namespace: Namespace, stack: AsyncExitStack) -> Peer:
    return await stack.enter_async_context(Peer(namespace))


@pytest.mark.usefixtures("_room_for_few")
@pytest.mark.parametrize(
    "fault", [Fault(Kind.BLACKHOLE, on=CONNECT), Fault(Kind.SLOW, on=CONNECT, delay=HOUR)], ids=["blackhole", "slow"]
)
async def test_a_connection_beyond_those_that_are_held_back_is_cut_and_those_are_served_in_the_end(
    namespace: Namespace, well_behaved: ServiceBusSender, fault: Fault
) -> None:
    active = namespace.faults.add(fault)
    async with AsyncExitStack() as stack:
        peers = [await connected(namespace, stack) for _ in range(FEW)]
        await until(lambda: active.fired == FEW)
        opening = [asyncio.create_task(peer.open()) for peer in peers]
        for _ in range(2):
            with pytest.raises((Ended, ConnectionResetError)):
                await (await connected(namespace, stack)).open()
        await well_behaved.send_messages(ServiceBusMessage("on a connection that was there before"))
        assert not any(task.done() for task in opening)
        namespace.faults.clear()
        await asyncio.gather(*opening)
        await (await connected(namespace, stack)).open()


@pytest.mark.usefixtures("_room_for_few")
async def test_a_connection_that_no_fault_strikes_is_served_however_many_are_held_back(namespace: Namespace) -> None:
    active = namespace.faults.add(Fault(Kind.BLACKHOLE, on=CONNECT, count=FEW))
    async with AsyncExitStack() as stack:
        for _ in range(FEW):
            await connected(namespace, stack)
        await until(lambda: active.fired == FEW)
        await (await connected(namespace, stack)).open()
