"""Limits of open transactions: their number, their size and their age."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest
import pytest_asyncio
from tests.emulator.contract.test_transactions import TransactionalClient, receiver_of
from tests.emulator.faults.bench import PATIENCE, until
from tests.emulator.hostile.conftest import QUEUE
from tests.emulator.raw_client import RefusedError, encoded_message

from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec.encoding import encode
from twinbus.amqp.codec.frames import frame
from twinbus.emulator import Namespace, QueueDescription
from twinbus.emulator.entities.message import BATCH_FORMAT
from twinbus.emulator.entities.queue import Queue
from twinbus.emulator.protocol import transactions

FEW = 3
SMALLEST = b"\x00\x53\x77\x40"


# On the loop of the test alone, as one of them sets its clock.
@pytest_asyncio.fixture
async def namespace() -> AsyncIterator[Namespace]:
    async with Namespace("contoso") as running:
        await running.create(QueueDescription(QUEUE))
        yield running


@pytest.fixture
def queue(namespace: Namespace) -> Queue:
    entity = namespace.find(QUEUE)
    assert entity is not None
    return entity.queue


class Client(TransactionalClient):
    """A client that sends within a transaction."""

    async def __aenter__(self) -> Client:
        await super().__aenter__()
        await self.put_token("")
        await self.open_coordinator()
        self.link = await self.sender(QUEUE)
        return self

    async def enlist(self, name: str, transaction: bytes, size: int = 1) -> None:
        payload = encoded_message(name, bytes(size))
        state = await self._state_of(self.link, payload, amqp.TransactionalState(transaction))
        assert state == amqp.TransactionalState(transaction, amqp.Accepted())

    async def enlist_batch(self, count: int, transaction: bytes) -> None:
        """Send N nearly empty messages in one delivery."""
        number, self._next_delivery = self._next_delivery, self._next_delivery + 1
        answered: asyncio.Future[None] = self._loop.create_future()
        self._sent[number] = lambda error: answered.set_exception(error) if error else answered.set_result(None)
        state = amqp.TransactionalState(transaction)
        transfer = amqp.Transfer(self.link.handle, number, b"batch", BATCH_FORMAT, False, False, state=state)
        self._write(frame(0, transfer, (b"\x00\x53\x75" + encode(SMALLEST)) * count))
        await self._within(answered)


@pytest_asyncio.fixture
async def client(namespace: Namespace) -> AsyncIterator[Client]:
    async with Client(namespace.connection_string) as connected:
        yield connected


async def answered(work: Coroutine[Any, Any, None]) -> None:
    await asyncio.wait_for(work, PATIENCE)


async def stored(client: Client, queue: Queue) -> list[str]:
    """Receive and delete all messages; returns their ids."""
    names = []
    receiver, inbox = await receiver_of(client, QUEUE)
    for _ in range(queue.counters.active):
        delivery = await inbox.next()
        names.append(delivery.message_id)
        await answered(receiver.settled(delivery))
    return names


async def test_transaction_beyond_the_limit_is_refused(
    namespace: Namespace, client: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "MAX_OPEN", FEW)
    opened = [await client.declare() for _ in range(FEW)]
    for _ in range(2):
        with pytest.raises(
            RefusedError, match=f"resource-limit-exceeded: A connection can have {FEW} open transactions"
        ):
            await client.declare()
    async with Client(namespace.connection_string) as other:
        await other.enlist("other", transaction := await other.declare())
        await other.discharge(transaction)
    for number, transaction in enumerate(opened):
        await client.enlist(str(number), transaction)
    await client.discharge(opened[0])
    await client.enlist("next", again := await client.declare())
    with pytest.raises(RefusedError, match="open transactions"):
        await client.declare()
    for transaction in (*opened[1:], again):
        await client.discharge(transaction)
    assert await stored(client, queue) == ["other", "0", "1", "2", "next"]


async def test_bytes_of_open_transactions_are_bounded(
    namespace: Namespace, client: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "MAX_BYTES", 25_000)
    one, two = await client.declare(), await client.declare()
    await client.enlist("first", one, 10_000)
    await client.enlist("second", two, 10_000)
    for transaction in (one, two):
        with pytest.raises(RefusedError, match="resource-limit-exceeded: Open transactions can hold 25000 bytes"):
            await client.enlist("refused", transaction, 10_000)
    async with Client(namespace.connection_string) as other:
        await other.enlist("other", transaction := await other.declare(), 10_000)
        await other.discharge(transaction)
    await client.discharge(one)
    await client.enlist("third", two, 10_000)
    await client.discharge(two)
    await client.enlist("rolled back", again := await client.declare(), 20_000)
    await client.discharge(again, fail=True)
    await client.enlist("last", again := await client.declare(), 20_000)
    await client.discharge(again)
    assert await stored(client, queue) == ["other", "first", "second", "third", "last"]


async def test_empty_messages_in_transactions_count_their_overhead(
    client: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "MAX_BYTES", 100_000)
    transaction = await client.declare()
    await client.enlist_batch(300, transaction)
    with pytest.raises(RefusedError, match="100000 bytes"):
        await client.enlist_batch(300, transaction)
    await client.discharge(transaction)
    assert queue.counters.active == 300


async def test_transaction_is_rolled_back_after_two_minutes(
    namespace: Namespace, client: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.link.send(encoded_message("locked"))
    receiver, inbox = await receiver_of(client, QUEUE)
    delivery = await inbox.next()
    loop = asyncio.get_running_loop()
    real_time = loop.time
    transaction = await client.declare()
    of_transaction = amqp.TransactionalState(transaction, amqp.Accepted())
    await answered(receiver.settled(delivery, of_transaction))
    monkeypatch.setattr(loop, "time", lambda: real_time() + 119)
    await client.enlist("never", transaction)
    (connection,) = namespace.connections
    assert connection.transactions.is_busy
    monkeypatch.setattr(loop, "time", lambda: real_time() + 121)
    await until(lambda: not connection.transactions.is_busy)
    for late in (client.enlist("late", transaction), client.discharge(transaction)):
        with pytest.raises(RefusedError, match=r"transaction:unknown-id.*not discharged within 120 s is rolled back"):
            await late
    assert (queue.counters.active, queue.locked) == (1, 1)
    with pytest.raises(RefusedError, match="transaction:unknown-id"):
        await answered(receiver.settled(delivery, of_transaction))
    await answered(receiver.settled(delivery))
    assert (queue.counters.active, queue.locked) == (0, 0)


async def test_settlement_refused_by_a_full_transaction_can_be_made_without_it(
    client: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "MAX_STEPS", 1)
    for name in ("within", "without"):
        await client.link.send(encoded_message(name))
    receiver, inbox = await receiver_of(client, QUEUE)
    within, without = await inbox.next(), await inbox.next()
    transaction = await client.declare()
    of_transaction = amqp.TransactionalState(transaction, amqp.Accepted())
    await answered(receiver.settled(within, of_transaction))
    for _ in range(2):
        with pytest.raises(RefusedError, match="resource-limit-exceeded: A transaction can hold 1 messages"):
            await answered(receiver.settled(without, of_transaction))
    await answered(receiver.settled(without))
    assert (queue.counters.active, queue.locked) == (1, 1)
    await client.discharge(transaction)
    assert (queue.counters.active, queue.locked) == (0, 0)
