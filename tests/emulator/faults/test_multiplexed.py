"""Entity faults strike only their link of a multiplexed connection, which the SDK never has."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.emulator.faults.bench import SHORT, until
from tests.emulator.raw_client import ConnectionGoneError, Delivery, RawClient, RawSender, RefusedError, encoded_message

from twinbus.emulator import Fault, FaultKind, FaultPoint, Namespace, QueueDescription

STRUCK, SPARED = "orders", "invoices"
SEND = frozenset({FaultPoint.SEND})
ATTACH = frozenset({FaultPoint.ATTACH})
MESSAGE = encoded_message("m")
DELAY = 1.5  # seconds; longer than other operations take on a busy machine


@pytest_asyncio.fixture
async def namespace() -> AsyncIterator[Namespace]:
    async with Namespace("contoso") as running:
        for name in (STRUCK, SPARED):
            await running.create(QueueDescription(name))
        yield running


@pytest_asyncio.fixture
async def client(namespace: Namespace) -> AsyncIterator[RawClient]:
    async with RawClient(namespace.connection_string) as connected:
        for name in (STRUCK, SPARED):
            await connected.put_token(name)
        yield connected


@pytest_asyncio.fixture
async def senders(client: RawClient) -> tuple[RawSender, RawSender]:
    return await client.sender(STRUCK), await client.sender(SPARED)


def received(namespace: Namespace, queue: str) -> int:
    entity = namespace.find(queue)
    assert entity is not None
    return entity.queue.activity.received


async def test_slow_fault_of_an_entity_delays_only_its_links(
    namespace: Namespace, senders: tuple[RawSender, RawSender]
) -> None:
    struck, spared = senders
    namespace.faults.add(Fault(FaultKind.SLOW, entity=STRUCK, delay=DELAY))
    started = time.monotonic()
    slow = [asyncio.create_task(struck.send(encoded_message(str(number)))) for number in range(20)]
    await asyncio.sleep(0)
    await spared.send(MESSAGE)
    assert time.monotonic() - started < DELAY
    assert not any(task.done() for task in slow)
    await asyncio.gather(*slow)
    # The delays overlap, as the sends were in flight together.
    assert DELAY <= time.monotonic() - started < 10 * DELAY


async def test_slow_sends_are_stored_in_order(
    namespace: Namespace, client: RawClient, senders: tuple[RawSender, RawSender]
) -> None:
    namespace.faults.add(Fault(FaultKind.SLOW, entity=STRUCK, on=SEND, delay=0.1, probability=0.5, seed=2))
    await asyncio.gather(*(senders[0].send(encoded_message(str(number))) for number in range(50)))
    namespace.faults.clear()
    deliveries: list[Delivery] = []
    receiver = await client.receiver(STRUCK, deliveries.append, deletes=True)
    receiver.grant(50)
    await until(lambda: len(deliveries) == 50)
    assert [delivery.message_id for delivery in deliveries] == [str(number) for number in range(50)]


async def test_black_hole_of_an_entity_holds_only_its_links(
    namespace: Namespace, senders: tuple[RawSender, RawSender]
) -> None:
    struck, spared = senders
    active = namespace.faults.add(Fault(FaultKind.BLACKHOLE, entity=STRUCK))
    held = [asyncio.create_task(struck.send(MESSAGE)) for _ in range(5)]
    await asyncio.sleep(0)
    for _ in range(5):
        await spared.send(MESSAGE)
    assert (active.fired, received(namespace, STRUCK)) == (5, 0)
    namespace.faults.clear()
    await asyncio.gather(*held)
    assert received(namespace, STRUCK) == 5


async def test_black_holed_send_is_stored_after_the_client_disconnected(namespace: Namespace) -> None:
    async with RawClient(namespace.connection_string) as client:
        await client.put_token(STRUCK)
        sender = await client.sender(STRUCK)
        active = namespace.faults.add(Fault(FaultKind.BLACKHOLE, entity=STRUCK))
        sending = asyncio.create_task(sender.send(MESSAGE))
        await until(lambda: active.fired == 1)
        client.abort()
        with pytest.raises(ConnectionGoneError):
            await sending
    await until(lambda: not namespace.connections)
    namespace.faults.clear()
    await until(lambda: received(namespace, STRUCK) == 1)


async def test_black_hole_holds_a_bounded_amount_per_client(
    namespace: Namespace, senders: tuple[RawSender, RawSender]
) -> None:
    active = namespace.faults.add(Fault(FaultKind.BLACKHOLE, entity=STRUCK))
    outcomes: list[object] = []
    for number in range(200):
        senders[0].submit(encoded_message(str(number), bytes(50_000)), outcomes.append)
    # 10 MB are in flight; the namespace stops reading after 1 MB.
    await until(lambda: active.fired >= 20)
    await asyncio.sleep(SHORT)
    assert active.fired < 60
    namespace.faults.clear()
    await until(lambda: len(outcomes) == 200)
    assert set(outcomes) == {None}


async def test_detach_fault_spares_other_links_of_the_connection(
    namespace: Namespace, client: RawClient, senders: tuple[RawSender, RawSender]
) -> None:
    struck, spared = senders
    namespace.faults.add(Fault(FaultKind.DETACH, entity=STRUCK))
    await until(lambda: struck.error is not None)
    assert struck.error is not None
    assert struck.error.condition == "amqp:link:detach-forced"
    await spared.send(MESSAGE)
    namespace.faults.clear()
    again = await client.sender(STRUCK)
    await again.send(MESSAGE)


async def test_expire_fault_of_one_entity_spares_the_others(
    namespace: Namespace, client: RawClient, senders: tuple[RawSender, RawSender]
) -> None:
    struck, spared = senders
    namespace.faults.add(Fault(FaultKind.EXPIRE, entity=STRUCK, on=SEND, count=1))
    struck.submit(MESSAGE, lambda error: None)
    await until(lambda: struck.error is not None)
    assert struck.error is not None
    assert struck.error.condition == "amqp:unauthorized-access"
    with pytest.raises(RefusedError, match="unauthorized-access"):
        await client.sender(STRUCK)
    await spared.send(MESSAGE)
    await client.put_token(STRUCK)
    await (await client.sender(STRUCK)).send(MESSAGE)


async def test_slow_attach_does_not_delay_other_links(namespace: Namespace, client: RawClient) -> None:
    active = namespace.faults.add(Fault(FaultKind.SLOW, entity=STRUCK, on=ATTACH, delay=DELAY))
    started = time.monotonic()
    attaching = asyncio.create_task(client.sender(STRUCK))
    await until(lambda: active.fired == 1)
    await (await client.sender(SPARED)).send(MESSAGE)
    assert time.monotonic() - started < DELAY
    await (await attaching).send(MESSAGE)
    assert time.monotonic() - started >= DELAY


async def test_credit_sent_before_a_slow_attach_is_answered_counts(
    namespace: Namespace, client: RawClient, senders: tuple[RawSender, RawSender]
) -> None:
    await senders[0].send(MESSAGE)
    active = namespace.faults.add(Fault(FaultKind.SLOW, entity=STRUCK, on=ATTACH, delay=0.2))
    deliveries: list[Delivery] = []
    attaching = asyncio.create_task(client.receiver(STRUCK, deliveries.append))
    await until(lambda: active.fired == 1)
    client.flow(max(client._links), 0, 1)  # the handle of the attaching link
    await attaching
    await until(lambda: len(deliveries) == 1)


async def test_slow_and_throttle_faults_combine(namespace: Namespace, senders: tuple[RawSender, RawSender]) -> None:
    namespace.faults.add(Fault(FaultKind.SLOW, entity=STRUCK, on=SEND, delay=0.2))
    namespace.faults.add(Fault(FaultKind.THROTTLE, entity=STRUCK))
    started = time.monotonic()
    with pytest.raises(RefusedError, match="server-busy"):
        await senders[0].send(MESSAGE)
    assert time.monotonic() - started >= 0.2
