"""Sends and settlements within a transaction are stored together or not at all.

The Python SDK has no transactions, so they are spoken as the other official clients speak them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.emulator.contract.bus import LOCK_OVER, Bus, QueueUnderTest, SubscriptionUnderTest, peek, until
from tests.emulator.raw_client import Delivery, RawClient, RawReceiver, RawSender, RefusedError, encoded_message

from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec.encoding import encode
from twinbus.amqp.codec.frames import frame
from twinbus.amqp.codec.performatives import described
from twinbus.amqp.codec.types import Symbol
from twinbus.emulator import Fault, FaultKind
from twinbus.emulator.protocol.transactions import MAX_STEPS

pytestmark = pytest.mark.asyncio(loop_scope="module")


class TransactionalClient(RawClient):
    """A client that returns the outcome of each delivery it sent."""

    def __init__(self, connection_string: str) -> None:
        super().__init__(connection_string)
        self._states: dict[int, Any] = {}
        self.coordinator: RawSender

    def _on_disposition(self, disposition: amqp.Disposition) -> None:
        if disposition.role is amqp.ROLE_RECEIVER:
            last = disposition.first if disposition.last is None else disposition.last
            self._states.update((number, disposition.state) for number in range(disposition.first, last + 1))
        super()._on_disposition(disposition)

    async def open_coordinator(self) -> None:
        self.coordinator = link = RawSender(self, len(self._links), "coordinator")
        attach = amqp.Attach(link.name, link.handle, amqp.ROLE_SENDER, 0, 0, amqp.Source(link.name))
        target = amqp.Coordinator(Symbol("amqp:local-transactions"))
        await self._attach(link, attach._replace(target=target, initial_delivery_count=0))

    async def via(self, sender_path: str, destination: str) -> RawSender:
        """Open a sender to `destination` via another entity."""
        link = RawSender(self, len(self._links), f"via-{destination}")
        attach = amqp.Attach(link.name, link.handle, amqp.ROLE_SENDER, 0, 0, amqp.Source(link.name))
        properties = {Symbol("com.microsoft:transfer-destination-address"): destination}
        target = amqp.Target(sender_path)
        await self._attach(link, attach._replace(target=target, initial_delivery_count=0, properties=properties))
        return link

    async def _state_of(self, link: RawSender, payload: bytes, state: Any = None) -> Any:
        """Send a message and return its delivery state; raises `RefusedError`."""
        number, self._next_delivery = self._next_delivery, self._next_delivery + 1
        answered: asyncio.Future[None] = self._loop.create_future()
        self._sent[number] = lambda error: answered.set_exception(error) if error else answered.set_result(None)
        transfer = amqp.Transfer(link.handle, number, number.to_bytes(4, "big"), 0, False, False, state=state)
        self._write(frame(0, transfer, payload))
        await self._within(answered)
        return self._states.pop(number)

    async def declare(self) -> bytes:
        state = await self._state_of(self.coordinator, _request(amqp.Declare()))
        assert type(state) is amqp.Declared
        return state.txn_id

    async def discharge(self, transaction: bytes, *, fail: bool = False) -> None:
        state = await self._state_of(self.coordinator, _request(amqp.Discharge(transaction, fail)))
        assert type(state) is amqp.Accepted

    async def send(self, link: RawSender, name: str, transaction: bytes) -> None:
        state = await self._state_of(link, encoded_message(name), amqp.TransactionalState(transaction))
        assert state == amqp.TransactionalState(transaction, amqp.Accepted())


def _request(body: Any) -> bytes:
    return b"\x00\x53\x77" + encode(described(body))


class Inbox:
    """The deliveries to a receiver."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[Delivery] = asyncio.Queue()

    async def next(self) -> Delivery:
        return await asyncio.wait_for(self.messages.get(), 10)


@pytest_asyncio.fixture(loop_scope="module")
async def client(bus: Bus) -> AsyncIterator[TransactionalClient]:
    async with TransactionalClient(bus.namespace.connection_string) as connected:
        await connected.put_token("")
        await connected.open_coordinator()
        yield connected


async def receiver_of(client: RawClient, path: str) -> tuple[RawReceiver, Inbox]:
    inbox = Inbox()
    receiver = await client.receiver(path, inbox.messages.put_nowait)
    receiver.grant(10)
    return receiver, inbox


async def ids(bus: Bus, path: str) -> list[str]:
    receiver = bus.client.get_queue_receiver(path)
    await bus.open(receiver)
    return [str(message.message_id) for message in await peek(receiver)]


async def test_sends_become_visible_at_the_commit(bus: Bus, client: TransactionalClient) -> None:
    one, two = await QueueUnderTest.create(bus), await QueueUnderTest.create(bus)
    senders = [await client.sender(entity.path) for entity in (one, two)]
    transaction = await client.declare()
    for sender, name in zip(senders, ("first", "second"), strict=True):
        await client.send(sender, name, transaction)
    assert one.queue.counters.active == two.queue.counters.active == 0
    await client.discharge(transaction)
    assert (await ids(bus, one.path), await ids(bus, two.path)) == (["first"], ["second"])


async def test_rollback_discards_sends(bus: Bus, client: TransactionalClient) -> None:
    entity = await QueueUnderTest.create(bus)
    sender = await client.sender(entity.path)
    transaction = await client.declare()
    await client.send(sender, "never", transaction)
    await client.discharge(transaction, fail=True)
    await client.send(sender, "sent", other := await client.declare())
    await client.discharge(other)
    assert await ids(bus, entity.path) == ["sent"]


async def test_completion_and_send_commit_together(bus: Bus, client: TransactionalClient) -> None:
    source, target = await QueueUnderTest.create(bus), await SubscriptionUnderTest.create(bus)
    plain = await client.sender(source.path)
    await plain.send(encoded_message("in"))
    receiver, inbox = await receiver_of(client, source.path)
    delivery = await inbox.next()
    transaction = await client.declare()
    await client.send(await client.sender(target.topic), "out", transaction)
    await receiver.settled(delivery, amqp.TransactionalState(transaction, amqp.Accepted()))
    assert (source.queue.counters.active, target.queue.counters.active) == (1, 0)
    await client.discharge(transaction)
    assert (source.queue.counters.active, target.queue.counters.active) == (0, 1)
    assert source.queue.locked == 0


async def test_a_message_stays_locked_after_a_rollback_and_can_be_settled(
    bus: Bus, client: TransactionalClient
) -> None:
    entity = await QueueUnderTest.create(bus)
    await (await client.sender(entity.path)).send(encoded_message("in"))
    receiver, inbox = await receiver_of(client, entity.path)
    delivery = await inbox.next()
    transaction = await client.declare()
    await receiver.settled(delivery, amqp.TransactionalState(transaction, amqp.Accepted()))
    await client.discharge(transaction, fail=True)
    assert (entity.queue.counters.active, entity.queue.locked) == (1, 1)
    await receiver.settled(delivery)
    assert entity.queue.counters.active == 0


@pytest.mark.parametrize(
    ("outcome", "where"),
    [(amqp.Rejected(), "/$DeadLetterQueue"), (amqp.Modified(True), ""), (amqp.Modified(None, True), "")],
)
async def test_every_settlement_can_be_part_of_a_transaction(
    bus: Bus, client: TransactionalClient, outcome: Any, where: str
) -> None:
    entity = await QueueUnderTest.create(bus)
    await (await client.sender(entity.path)).send(encoded_message("in"))
    receiver, inbox = await receiver_of(client, entity.path)
    delivery = await inbox.next()
    transaction = await client.declare()
    await receiver.settled(delivery, amqp.TransactionalState(transaction, outcome))
    assert entity.queue.locked == 1
    await client.discharge(transaction)
    await until(lambda: sum(_held(bus, entity.path + where)) == 1)


def _held(bus: Bus, path: str) -> tuple[int, int]:
    counters = bus.broker_queue(path).counters
    return counters.active, counters.deferred


async def test_lost_lock_rolls_everything_back(bus: Bus, client: TransactionalClient) -> None:
    source, target = await QueueUnderTest.create(bus), await QueueUnderTest.create(bus)
    await (await client.sender(source.path)).send(encoded_message("in"))
    receiver, inbox = await receiver_of(client, source.path)
    delivery = await inbox.next()
    transaction = await client.declare()
    await client.send(await client.sender(target.path), "out", transaction)
    await receiver.settled(delivery, amqp.TransactionalState(transaction, amqp.Accepted()))
    await bus.advance(LOCK_OVER)
    with pytest.raises(RefusedError, match="message-lock-lost"):
        await client.discharge(transaction)
    assert target.queue.counters.active == target.queue.used_bytes == 0
    assert source.queue.counters.active == 1


async def test_full_queue_at_the_commit_rolls_everything_back(bus: Bus, client: TransactionalClient) -> None:
    roomy, small = await QueueUnderTest.create(bus), await QueueUnderTest.create(bus)
    transaction = await client.declare()
    await client.send(await client.sender(roomy.path), "one", transaction)
    await client.send(await client.sender(small.path), "two", transaction)
    small.queue.limits.max_bytes = 1
    with pytest.raises(RefusedError, match=r"rollback.*resource-limit-exceeded"):
        await client.discharge(transaction)
    assert roomy.queue.counters.active == roomy.queue.used_bytes == 0


async def test_messages_are_sent_via_another_entity(bus: Bus, client: TransactionalClient) -> None:
    via, target = await QueueUnderTest.create(bus), await QueueUnderTest.create(bus)
    transaction = await client.declare()
    await client.send(await client.via(via.path, target.path), "there", transaction)
    await client.discharge(transaction)
    assert await ids(bus, target.path) == ["there"]
    assert via.queue.counters.active == 0
    with pytest.raises(RefusedError, match="not-found"):
        await client.via(via.path, "nowhere")


async def test_an_unknown_transaction_is_refused(bus: Bus, client: TransactionalClient) -> None:
    entity = await QueueUnderTest.create(bus)
    sender = await client.sender(entity.path)
    for use in (client.send(sender, "lost", b"none"), client.discharge(b"none")):
        with pytest.raises(RefusedError, match="transaction:unknown-id"):
            await use
    done = await client.declare()
    await client.discharge(done)
    with pytest.raises(RefusedError, match="transaction:unknown-id"):
        await client.discharge(done)


async def test_transaction_holds_at_most_100_messages(bus: Bus, client: TransactionalClient) -> None:
    entity = await QueueUnderTest.create(bus)
    sender = await client.sender(entity.path)
    transaction = await client.declare()
    for number in range(MAX_STEPS):
        await client.send(sender, str(number), transaction)
    with pytest.raises(RefusedError, match=str(MAX_STEPS)):
        await client.send(sender, "one too many", transaction)
    await client.discharge(transaction)
    assert entity.queue.counters.active == MAX_STEPS


async def test_closing_the_connection_rolls_back(bus: Bus) -> None:
    entity = await QueueUnderTest.create(bus)
    async with TransactionalClient(bus.namespace.connection_string) as client:
        await client.put_token("")
        await client.open_coordinator()
        await client.send(await client.sender(entity.path), "never", await client.declare())
    await until(lambda: not any(connection.transactions.is_busy for connection in bus.namespace.connections))
    assert entity.queue.counters.active == 0


async def test_a_coordinator_needs_a_token(bus: Bus) -> None:
    async with TransactionalClient(bus.namespace.connection_string) as client:
        with pytest.raises(RefusedError, match="unauthorized"):
            await client.open_coordinator()


async def test_a_request_to_management_cannot_be_part_of_a_transaction(bus: Bus, client: TransactionalClient) -> None:
    entity = await QueueUnderTest.create(bus)
    sender = await client.sender(f"{entity.path}/$management")
    state = amqp.TransactionalState(await client.declare())
    with pytest.raises(RefusedError, match="not-implemented"):
        await client._state_of(sender, encoded_message("schedule"), state)


async def test_invalid_coordinator_request_is_refused(bus: Bus, client: TransactionalClient) -> None:
    for payload in (encoded_message("m"), b"\x00\x53\x77" + encode("declare"), b"junk"):
        with pytest.raises(RefusedError):
            await client._state_of(client.coordinator, payload)
    assert await client.declare()


async def test_committed_transaction_survives_a_restart(tmp_path: Any) -> None:
    async with Bus(data=tmp_path) as before:
        entities = [await QueueUnderTest.create(before) for _ in range(2)]
        async with TransactionalClient(before.namespace.connection_string) as client:
            await client.put_token("")
            await client.open_coordinator()
            committed, open_one = await client.declare(), await client.declare()
            for entity in entities:
                sender = await client.sender(entity.path)
                await client.send(sender, "kept", committed)
                await client.send(sender, "lost", open_one)
            await client.discharge(committed)
    async with Bus(data=tmp_path) as after:
        assert [await ids(after, entity.path) for entity in entities] == [["kept"], ["kept"]]


async def test_faults_strike_within_a_transaction(bus: Bus, client: TransactionalClient) -> None:
    entity = await QueueUnderTest.create(bus)
    sender = await client.sender(entity.path)
    transaction = await client.declare()
    fault = bus.namespace.faults.add(Fault(FaultKind.REJECT, entity=entity.path, condition="amqp:internal-error"))
    try:
        with pytest.raises(RefusedError, match="internal-error"):
            await client.send(sender, "refused", transaction)
    finally:
        bus.namespace.faults.remove(fault.id)
    await client.discharge(transaction)
    assert entity.queue.counters.active == 0
