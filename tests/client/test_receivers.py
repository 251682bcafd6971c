"""Receivers of the paired client are the SDK's, but never show a ping."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.aio import AutoLockRenewer, ServiceBusReceiver, ServiceBusSender
from tests.namespace_internals import Queue
from tests.pairing.twins import Twins, eventually, operations
from tests.sdk_connection import needs_sdk

import twinbus
from twinbus.aio import PairedServiceBusClient
from twinbus.emulator import AZURE, DEFAULT
from twinbus.ledger.recorder import MemoryRecorder, OperationKind, Outcome, Stage
from twinbus.pairing.failover.ping import ping_message
from twinbus.servicebus.durations import TICKS_PER_SECOND

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

DELETE = ServiceBusReceiveMode.RECEIVE_AND_DELETE
NUMBERS = itertools.count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[DEFAULT, AZURE], ids=["default", "azure"])
async def twins(request: pytest.FixtureRequest) -> AsyncIterator[Twins]:
    """The primary delivers pings."""
    async with Twins.running(request.param) as running:
        running.primary.deliver_pings = True
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(twins: Twins) -> AsyncIterator[PairedServiceBusClient]:
    options = twinbus.SendAvailabilityOptions(backlog_queue_count=1)
    async with PairedServiceBusClient(*twins.sides(), options, recorder=MemoryRecorder()) as running:
        yield running


class Bench:
    """A queue with a sender of the SDK."""

    def __init__(self, queue: Queue, path: str, sender: ServiceBusSender) -> None:
        self.queue = queue
        self.path = path
        self.sender = sender

    async def put(self, *texts: str, session: str | None = None) -> None:
        """Send messages; "ping" is one."""
        for text in texts:
            message = ping_message(session) if text == "ping" else ServiceBusMessage(text, session_id=session)
            if text == "ping":
                message.time_to_live = None  # it must not expire before it is received
            await self.sender.send_messages(message)


@pytest_asyncio.fixture(loop_scope="module")
async def bench(twins: Twins, client: PairedServiceBusClient) -> AsyncIterator[Callable[..., Any]]:
    opened: list[ServiceBusSender] = []

    async def make(**properties: Any) -> Bench:
        path = f"orders-{next(NUMBERS)}"
        queue = await twins.queue(path, **properties)
        sender = client.primary.get_queue_sender(path)
        opened.append(sender)
        return Bench(queue, path, sender)

    yield make
    await asyncio.gather(*(sender.close() for sender in opened))


Make = Callable[..., Any]


async def test_a_ping_is_skipped_and_settled(client: PairedServiceBusClient, bench: Make) -> None:
    place = await bench()
    await place.put("one", "ping", "two")
    async with client.get_queue_receiver(place.path) as receiver:
        assert isinstance(receiver, ServiceBusReceiver)
        got: list[str] = []
        while len(got) < 2:
            messages = await receiver.receive_messages(3, max_wait_time=5)
            got += map(str, messages)
            for message in messages:
                await receiver.complete_message(message)
    assert got == ["one", "two"]
    assert place.queue.activity.completed == 3
    assert place.queue.counters.active == 0


async def test_receiver_keeps_waiting_after_pings(client: PairedServiceBusClient, bench: Make) -> None:
    place = await bench()
    await place.put("ping")
    async with client.get_queue_receiver(place.path) as receiver:
        receiving = asyncio.create_task(receiver.receive_messages(1, max_wait_time=20))
        await eventually(lambda: place.queue.activity.completed == 1)
        assert not receiving.done()
        await place.put("one")
        [message] = await receiving
        assert str(message) == "one"


async def test_receiver_respects_max_wait_time(client: PairedServiceBusClient, bench: Make) -> None:
    place = await bench()
    await place.put("ping", "ping")
    async with client.get_queue_receiver(place.path, max_wait_time=1) as receiver:
        started = asyncio.get_running_loop().time()
        assert await receiver.receive_messages(1) == []
        assert 0.9 < asyncio.get_running_loop().time() - started < 10
    assert place.queue.activity.completed == 2


async def test_receive_and_delete_shows_no_ping_either(client: PairedServiceBusClient, bench: Make) -> None:
    place = await bench()
    await place.put("ping", "one")
    async with client.get_queue_receiver(place.path, receive_mode="receiveanddelete") as receiver:
        [message] = await receiver.receive_messages(1, max_wait_time=10)
        assert str(message) == "one"


@pytest.mark.parametrize("by_next", [False, True])
async def test_iterating_shows_no_ping(client: PairedServiceBusClient, bench: Make, by_next: bool) -> None:
    place = await bench()
    await place.put("ping", "one", "ping", "ping", "two")
    got: list[str] = []
    async with client.get_queue_receiver(place.path, max_wait_time=3) as receiver:
        if by_next:
            for _ in range(2):
                message = await anext(receiver)
                got.append(str(message))
                await receiver.complete_message(message)
        else:
            async for message in receiver:
                got.append(str(message))
                await receiver.complete_message(message)
                if len(got) == 2:
                    break
    assert got == ["one", "two"]
    assert place.queue.activity.completed == 5


async def test_peeking_skips_pings(client: PairedServiceBusClient, bench: Make) -> None:
    place = await bench()
    await place.put("ping", "ping", "one", "ping")
    async with client.get_queue_receiver(place.path) as receiver:
        assert [str(message) for message in await receiver.peek_messages(2)] == ["one"]
        assert await receiver.peek_messages(2, sequence_number=4) == []


async def test_a_session_shows_no_ping(client: PairedServiceBusClient, bench: Make) -> None:
    place = await bench(requires_session=True)
    await place.put("ping", "one", session="a")
    async with client.get_queue_receiver(place.path, session_id=NEXT_AVAILABLE_SESSION) as receiver:
        [message] = await receiver.receive_messages(1, max_wait_time=10)
        assert (str(message), receiver.session.session_id) == ("one", "a")
        await receiver.complete_message(message)


async def test_a_subscription_shows_no_ping(twins: Twins, client: PairedServiceBusClient) -> None:
    path = f"events-{next(NUMBERS)}"
    _, subscription = await twins.topic(path)
    async with client.primary.get_topic_sender(path) as sender:
        await sender.send_messages([ping_message(), ServiceBusMessage("one")])
    async with client.get_subscription_receiver(path, "all") as receiver:
        [message] = await receiver.receive_messages(1, max_wait_time=10)
        assert str(message) == "one"
        await receiver.complete_message(message)
    assert subscription.counters.active == 0


async def test_receiver_operations_are_recorded(client: PairedServiceBusClient, bench: Make) -> None:
    place = await bench()
    await place.put("12345", "two", "three", "four")
    [stored] = place.queue.peek(0, 1)
    async with client.get_queue_receiver(place.path) as receiver:
        messages = []
        while len(messages) < 4:
            messages += await receiver.receive_messages(4 - len(messages), max_wait_time=10)
        await receiver.complete_message(messages[0])
        await receiver.abandon_message(messages[1])
        await receiver.defer_message(messages[2])
        await receiver.renew_message_lock(messages[3])
        await receiver.dead_letter_message(messages[3], reason="test")
        await receiver.receive_deferred_messages([messages[2].sequence_number or 0])
    pairing = client._pairing
    recorded = [one for one in operations(pairing, *OperationKind) if one.entity == place.path]
    received = [one for one in recorded if one.operation is OperationKind.RECEIVE]
    assert len(received) == 5
    assert (received[0].message_id, received[0].stage) == (messages[0].message_id, Stage.PRIMARY_RECEIVE)
    # All that came, and not the body alone; the SDK does not tell how wide a number was written.
    assert received[0].bytes == pytest.approx(len(stored.encoded(bytes(16), 1)), abs=16)
    assert [one.operation for one in recorded if one.operation is not OperationKind.RECEIVE] == [
        OperationKind.COMPLETE,
        OperationKind.ABANDON,
        OperationKind.DEFER,
        OperationKind.RENEW,
        OperationKind.DEAD_LETTER,
    ]
    async with client.get_queue_receiver(place.path, max_wait_time=0.5, receive_mode=DELETE) as receiver:
        await receiver.receive_messages(1)
        assert await receiver.receive_messages(1) == []
    last = [one for one in operations(pairing, OperationKind.RECEIVE) if one.entity == place.path][-1]
    assert (last.outcome, last.count) == (Outcome.EMPTY, 0)


async def test_manual_and_automatic_session_lock_renewals_are_recorded(
    client: PairedServiceBusClient, bench: Make
) -> None:
    place = await bench(requires_session=True, lock_duration=5 * TICKS_PER_SECOND)
    await place.put("one", session="a")

    def renewals() -> int:
        return sum(one.entity == place.path for one in operations(client._pairing, OperationKind.RENEW))

    async with AutoLockRenewer() as renewer, client.get_queue_receiver(place.path, session_id="a") as receiver:
        await receiver.session.renew_lock()
        assert renewals() == 1
        renewer.register(receiver, receiver.session)
        await eventually(lambda: renewals() == 2)


async def test_session_state_reads_and_writes_are_recorded(client: PairedServiceBusClient, bench: Make) -> None:
    place = await bench(requires_session=True)
    await place.put("one", session="a")
    async with client.get_queue_receiver(place.path, session_id="a") as receiver:
        await receiver.session.set_state(b"half way")
        assert await receiver.session.get_state() == b"half way"
    kinds = (OperationKind.SET_STATE, OperationKind.GET_STATE)
    recorded = [(one.entity, one.outcome) for kind in kinds for one in operations(client._pairing, kind)]
    assert recorded == [(place.path, Outcome.DONE)] * 2


@needs_sdk((7, 15), "listing sessions")
async def test_sessions_are_listed_as_the_sdk_does(client: PairedServiceBusClient, bench: Make) -> None:
    place = await bench(requires_session=True)
    await place.put("one", session="a")
    assert [session async for session in client.list_queue_sessions(place.path)] == ["a"]
