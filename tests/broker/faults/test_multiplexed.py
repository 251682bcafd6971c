"""Several links on one connection, which the SDK never has: a fault of one entity strikes its link and no other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.broker.faults.bench import SHORT, until
from tests.broker.raw_client import Delivery, Gone, RawClient, RawSender, Refused, encoded_message

from twinbus.broker import Fault, Kind, Namespace, Operation, QueueDescription

STRUCK, SPARED = "orders", "invoices"
SEND = frozenset({Operation.SEND})
ATTACH = frozenset({Operation.ATTACH})
MESSAGE = encoded_message("m")
DELAY = 1.5  # seconds, longer than a busy machine takes for what is not slow


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


async def test_a_slow_entity_slows_its_own_link_only(
    namespace: Namespace, senders: tuple[RawSender, RawSender]
) -> None:
    struck, spared = senders
    namespace.faults.add(Fault(Kind.SLOW, entity=STRUCK, delay=DELAY))
    started = time.monotonic()
    slow = [asyncio.create_task(struck.send(encoded_message(str(number)))) for number in range(20)]
    await asyncio.sleep(0)
    await spared.send(MESSAGE)
    assert time.monotonic() - started < DELAY
    assert not any(task.done() for task in slow)
    await asyncio.gather(*slow)
    # They were under way together, so they are late together and not one after the other.
    assert DELAY <= time.monotonic() - started < 10 * DELAY


async def test_slow_sends_are_stored_in_the_order_they_came(
    namespace: Namespace, client: RawClient, senders: tuple[RawSender, RawSender]
) -> None:
    namespace.faults.add(Fault(Kind.SLOW, entity=STRUCK, on=SEND, delay=0.1, probability=0.5, seed=2))
    await asyncio.gather(*(senders[0].send(encoded_message(str(number))) for number in range(50)))
    namespace.faults.clear()
    deliveries: list[Delivery] = []
    receiver = await client.receiver(STRUCK, deliveries.append, deletes=True)
    receiver.grant(50)
    await until(lambda: len(deliveries) == 50)
    assert [one.message_id for one in deliveries] == [str(number) for number in range(50)]


async def test_a_black_holed_entity_holds_its_own_link_only(
    namespace: Namespace, senders: tuple[RawSender, RawSender]
) -> None:
    struck, spared = senders
    active = namespace.faults.add(Fault(Kind.BLACKHOLE, entity=STRUCK))
    held = [asyncio.create_task(struck.send(MESSAGE)) for _ in range(5)]
    await asyncio.sleep(0)
    for _ in range(5):
        await spared.send(MESSAGE)
    assert (active.fired, received(namespace, STRUCK)) == (5, 0)
    namespace.faults.clear()
    await asyncio.gather(*held)
    assert received(namespace, STRUCK) == 5


async def test_what_a_black_hole_holds_is_stored_even_if_the_client_has_gone(namespace: Namespace) -> None:
    async with RawClient(namespace.connection_string) as client:
        await client.put_token(STRUCK)
        sender = await client.sender(STRUCK)
        active = namespace.faults.add(Fault(Kind.BLACKHOLE, entity=STRUCK))
        sending = asyncio.create_task(sender.send(MESSAGE))
        await until(lambda: active.fired == 1)
        client.abort()
        with pytest.raises(Gone):
            await sending
    await until(lambda: not namespace.connections)
    namespace.faults.clear()
    await until(lambda: received(namespace, STRUCK) == 1)


async def test_what_a_black_hole_holds_of_one_client_is_bounded(
    namespace: Namespace, senders: tuple[RawSender, RawSender]
) -> None:
    active = namespace.faults.add(Fault(Kind.BLACKHOLE, entity=STRUCK))
    outcomes: list[object] = []
    for number in range(200):
        senders[0].submit(encoded_message(str(number), bytes(50_000)), outcomes.append)
    # 10 MB are under way; the namespace stops reading after one.
    await until(lambda: active.fired >= 20)
    await asyncio.sleep(SHORT)
    assert active.fired < 60
    namespace.faults.clear()
    await until(lambda: len(outcomes) == 200)
    assert set(outcomes) == {None}


async def test_a_detached_link_leaves_the_others_of_its_connection(
    namespace: Namespace, client: RawClient, senders: tuple[RawSender, RawSender]
) -> None:
    struck, spared = senders
    namespace.faults.add(Fault(Kind.DETACH, entity=STRUCK))
    await until(lambda: struck.error is not None)
    assert struck.error is not None
    assert struck.error.condition == "amqp:link:detach-forced"
    await spared.send(MESSAGE)
    namespace.faults.clear()
    again = await client.sender(STRUCK)
    await again.send(MESSAGE)


async def test_an_expired_token_of_one_entity_leaves_the_others(
    namespace: Namespace, client: RawClient, senders: tuple[RawSender, RawSender]
) -> None:
    struck, spared = senders
    namespace.faults.add(Fault(Kind.EXPIRE, entity=STRUCK, on=SEND, count=1))
    struck.submit(MESSAGE, lambda error: None)
    await until(lambda: struck.error is not None)
    assert struck.error is not None
    assert struck.error.condition == "amqp:unauthorized-access"
    with pytest.raises(Refused, match="unauthorized-access"):
        await client.sender(STRUCK)
    await spared.send(MESSAGE)
    await client.put_token(STRUCK)
    await (await client.sender(STRUCK)).send(MESSAGE)


async def test_a_slow_attach_holds_up_nobody_else(namespace: Namespace, client: RawClient) -> None:
    active = namespace.faults.add(Fault(Kind.SLOW, entity=STRUCK, on=ATTACH, delay=DELAY))
    started = time.monotonic()
    attaching = asyncio.create_task(client.sender(STRUCK))
    await until(lambda: active.fired == 1)
    await (await client.sender(SPARED)).send(MESSAGE)
    assert time.monotonic() - started < DELAY
    await (await attaching).send(MESSAGE)
    assert time.monotonic() - started >= DELAY


async def test_credit_given_before_a_slow_attach_is_answered_is_not_lost(
    namespace: Namespace, client: RawClient, senders: tuple[RawSender, RawSender]
) -> None:
    await senders[0].send(MESSAGE)
    active = namespace.faults.add(Fault(Kind.SLOW, entity=STRUCK, on=ATTACH, delay=0.2))
    deliveries: list[Delivery] = []
    attaching = asyncio.create_task(client.receiver(STRUCK, deliveries.append))
    await until(lambda: active.fired == 1)
    client.flow(max(client._links), 0, 1)  # the handle of the link that is being attached
    await attaching
    await until(lambda: len(deliveries) == 1)


async def test_slow_and_refused_come_together(namespace: Namespace, senders: tuple[RawSender, RawSender]) -> None:
    namespace.faults.add(Fault(Kind.SLOW, entity=STRUCK, on=SEND, delay=0.2))
    namespace.faults.add(Fault(Kind.THROTTLE, entity=STRUCK))
    started = time.monotonic()
    with pytest.raises(Refused, match="server-busy"):
        await senders[0].send(MESSAGE)
    assert time.monotonic() - started >= 0.2
