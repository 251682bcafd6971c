"""The primary stores messages but never acknowledges: the number of copies is bounded."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusReceiver
from tests.pairing.twins import Twins, eventually

from twinbus import PairedServiceBusClient as SyncClient
from twinbus import Route, SendAvailabilityOptions, SyphonOptions
from twinbus.aio import PairedServiceBusClient
from twinbus.emulator import DEFAULT, Fault, FaultKind, FaultPoint, QueueDescription
from twinbus.ledger.recorder import MemoryRecorder, OperationKind, Outcome
from twinbus.servicebus.durations import TICKS_PER_SECOND

pytestmark = pytest.mark.slow

LOCK_SECONDS = 5
TRIES = 4  # pings without an answer: before, each of them was a copy
OPTIONS = SendAvailabilityOptions(
    backlog_queue_count=1,
    failover_interval=0,
    ping_primary_interval=1,
    attempt_timeout=2,
    enable_syphon=True,
    primary_name="contoso",
    syphon=SyphonOptions(retry_min=0.1, retry_max=0.2),
)


@pytest_asyncio.fixture
async def twins() -> AsyncIterator[Twins]:
    async with Twins.running(DEFAULT) as running:
        await running.queue("orders")
        backlog = QueueDescription(
            "contoso/x-servicebus-transfer/0",
            lock_duration=LOCK_SECONDS * TICKS_PER_SECOND,
            max_delivery_count=2147483647,
        )
        await running.secondary.create(backlog)
        yield running


async def take_all(receiver: ServiceBusReceiver) -> Counter[str]:
    ids: Counter[str] = Counter()
    while messages := await receiver.receive_messages(max_message_count=100, max_wait_time=1):
        for message in messages:
            ids[str(message.message_id)] += 1
            await receiver.complete_message(message)
    return ids


# While the connection stays: the attempt, the syphon's, and the one that is answered. If the connection is cut with
# each answer: the attempt and its repetition on a fresh link, three of the syphon, and the one that is answered.
@pytest.mark.parametrize(("then_reset", "most"), [(False, 3), (True, 6)])
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_the_copies_of_a_message_are_bounded_however_long_answers_are_lost(
    twins: Twins, kind: str, then_reset: bool, most: int
) -> None:
    recorder = MemoryRecorder()
    arguments = (*twins.sides(), OPTIONS)
    paired = PairedServiceBusClient(*arguments, recorder=recorder)
    if kind == "async":
        async with paired.get_queue_sender("orders") as sender:
            await go_through_an_outage(twins, recorder, lambda one: sender.send_messages(one), then_reset)
    else:
        with SyncClient(*arguments, recorder=recorder) as threaded:
            sending = threaded.get_queue_sender("orders").send_messages
            await go_through_an_outage(twins, recorder, lambda one: asyncio.to_thread(sending, one), then_reset)
            await asyncio.to_thread(threaded.close)
    copies = await take_all(paired.get_queue_receiver("orders"))
    await paired.close()
    assert set(copies) == {"before", "lost"}
    assert 2 <= copies["lost"] <= most
    assert copies["before"] == 1


async def go_through_an_outage(twins: Twins, recorder: MemoryRecorder, send: object, then_reset: bool) -> None:
    assert callable(send)
    await send(ServiceBusMessage("x", message_id="before"))
    twins.primary.faults.add(Fault(FaultKind.DROP_ACK, "orders", frozenset({FaultPoint.SEND}), then_reset=then_reset))
    receipt = await send(ServiceBusMessage("x", message_id="lost"))
    assert receipt.route is Route.BACKLOG

    def pings() -> int:
        rows = [row for row in recorder.operations if row.operation is OperationKind.PING]
        return sum(row.outcome is Outcome.UNKNOWN for row in rows)

    await eventually(lambda: pings() >= 2 * TRIES)
    twins.primary.faults.clear()
    await eventually(lambda: twins.backlog(0).activity.completed == 1)
