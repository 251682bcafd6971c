"""Operations that are delayed, held or never answered, and the bounds of a fault."""

from __future__ import annotations

import asyncio
import time

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)
from tests.emulator.faults.bench import MANY, SHORT, Bench, unanswered, until

from twinbus.emulator import FaultKind, FaultPoint

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SEND = frozenset({FaultPoint.SEND})
RECEIVE = frozenset({FaultPoint.RECEIVE})
SETTLE = frozenset({FaultPoint.SETTLE})


async def test_a_dropped_acknowledgement_leaves_the_message_in_the_queue(bench: Bench) -> None:
    place = bench.shared
    bench.add(FaultKind.DROP_ACK, entity=place.path, count=1)
    with pytest.raises(OperationTimeoutError):
        await place.send("never acknowledged", SHORT)
    assert "never acknowledged" in await place.peek_texts()


async def test_a_reset_after_the_answer_lets_the_send_succeed(bench: Bench) -> None:
    place = await bench.place()
    await place.send()
    active = bench.add(FaultKind.RESET, entity=place.path, on=SEND, count=1, after_answer=True)
    await place.send()
    assert (active.fired, place.received) == (1, 2)
    with pytest.raises(ServiceBusConnectionError):
        await place.send()  # the SDK notices that its connection is gone
    await place.send()


async def test_a_rejection_carries_the_chosen_condition_and_description(bench: Bench) -> None:
    bench.add(FaultKind.REJECT, count=1, condition="com.microsoft:operation-cancelled", description="Not today.")
    with pytest.raises(ServiceBusError, match=r"Not today.*com\.microsoft:operation-cancelled"):
        await bench.shared.send()


async def test_throttling_error_contains_50009(bench: Bench) -> None:
    bench.add(FaultKind.THROTTLE, count=1)
    with pytest.raises(ServiceBusServerBusyError, match=r"50009.*wait 2 seconds"):
        await bench.shared.send()


async def test_batch_is_struck_once_as_a_whole(bench: Bench) -> None:
    place = await bench.place()
    active = bench.add(FaultKind.THROTTLE, entity=place.path, on=SEND, count=1)
    batch = [ServiceBusMessage(str(number)) for number in range(10)]
    with pytest.raises(ServiceBusServerBusyError):
        await place.sender.send_messages(batch)
    assert (active.fired, place.received) == (1, 0)
    await place.sender.send_messages(batch)
    assert place.received == 10


async def test_full_queue_can_still_be_peeked_and_emptied(bench: Bench) -> None:
    place = await bench.place()
    message = await place.locked()
    active = bench.add(FaultKind.FILL, entity=place.path)
    await place.receiver.peek_messages()
    await place.receiver.complete_message(message)
    assert active.fired == 0
    with pytest.raises(ServiceBusQuotaExceededError):
        await place.schedule()
    assert active.fired == 1


# ---- slow ----


async def test_slow_send_takes_the_delay_longer(bench: Bench) -> None:
    bench.add(FaultKind.SLOW, entity=bench.shared.path, on=SEND, delay=0.3)
    started = time.monotonic()
    await bench.shared.send()
    assert time.monotonic() - started >= 0.3


async def test_slow_deliveries_arrive_late_and_in_order(bench: Bench) -> None:
    place = await bench.place()
    await place.sender.send_messages([ServiceBusMessage(str(number)) for number in range(5)])
    await place.receiver.__aenter__()
    bench.add(FaultKind.SLOW, entity=place.path, on=RECEIVE, delay=0.2, count=1)  # only the first one is slow
    started, received = time.monotonic(), []
    while len(received) < 5:
        received += await place.receiver.receive_messages(max_message_count=5, max_wait_time=2)
    assert time.monotonic() - started >= 0.2
    assert [str(message) for message in received] == ["0", "1", "2", "3", "4"]


async def test_removing_a_slow_fault_releases_held_operations(bench: Bench) -> None:
    place = bench.shared
    active = bench.add(FaultKind.SLOW, entity=place.path, on=SEND, delay=3600)
    sending = asyncio.create_task(place.send())
    await until(lambda: active.fired == 1)
    bench.namespace.faults.remove(active.id)
    await sending


# ---- black hole ----


async def test_black_holed_send_is_stored_when_the_fault_ends(bench: Bench) -> None:
    place = bench.shared
    active = bench.add(FaultKind.BLACKHOLE, entity=place.path, on=SEND)
    before = place.received
    with pytest.raises(OperationTimeoutError):
        await place.send("late", SHORT)
    assert place.received == before
    bench.clear()
    await until(lambda: place.received == before + 1)
    assert active.fired == 1
    await place.send()


async def test_timed_black_hole_ends_by_itself(bench: Bench) -> None:
    started = time.monotonic()
    bench.add(FaultKind.BLACKHOLE, entity=bench.shared.path, on=SEND, seconds=0.3)
    await bench.shared.send("just in time")
    assert time.monotonic() - started >= 0.3


async def test_black_hole_with_a_count_swallows_only_that_many(bench: Bench) -> None:
    place = bench.shared
    active = bench.add(FaultKind.BLACKHOLE, entity=place.path, on=SEND, count=1)
    before = place.received
    with pytest.raises(OperationTimeoutError):
        await place.send("swallowed", SHORT)
    await place.send("not swallowed")
    assert (active.fired, place.received) == (1, before + 1)
    bench.clear()
    await until(lambda: place.received == before + 2)


async def test_black_holed_delivery_arrives_when_the_fault_ends(bench: Bench) -> None:
    place = await bench.place()
    await asyncio.gather(place.send(), place.receiver.__aenter__())
    active = bench.add(FaultKind.BLACKHOLE, entity=place.path, on=RECEIVE)
    assert await place.receive(SHORT) == []
    assert active.fired == 1
    bench.clear()
    await place.complete_one()


async def test_black_holed_settlement_is_done_when_the_fault_ends(bench: Bench) -> None:
    place = await bench.place()
    message = await place.locked()
    active = bench.add(FaultKind.BLACKHOLE, entity=place.path, on=SETTLE, count=1)
    await unanswered(place.receiver.complete_message(message))
    assert (active.fired, place.completed) == (1, 0)
    bench.clear()
    await until(lambda: place.completed == 1)
    await place.send()
    await place.complete_one()


async def test_settlement_with_a_dropped_answer_is_done(bench: Bench) -> None:
    place = await bench.place()
    message = await place.locked()
    active = bench.add(FaultKind.DROP_ACK, entity=place.path, on=SETTLE, count=1)
    await unanswered(place.receiver.complete_message(message))
    assert (active.fired, place.completed) == (1, 1)
    await place.send()
    await place.complete_one()


async def test_receive_and_delete_loses_a_delivery_that_a_fault_refuses(bench: Bench) -> None:
    place = await bench.place()
    receiver = bench.client.get_queue_receiver(place.path, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    async with receiver:
        await place.send("lost")
        bench.add(FaultKind.DETACH, entity=place.path, on=RECEIVE, count=1)
        with pytest.raises(ServiceBusConnectionError):
            await receiver.receive_messages(max_wait_time=5)
        await place.send("kept")
        received = await receiver.receive_messages(max_wait_time=5)
        assert [str(message) for message in received] == ["kept"]


# ---- bounds ----


async def test_timed_fault_ends_by_itself(bench: Bench) -> None:
    active = bench.add(FaultKind.THROTTLE, seconds=0.2)
    with pytest.raises(ServiceBusServerBusyError):
        await bench.shared.send()
    await until(lambda: active.ended)
    await bench.shared.send()
    assert active.fired == 1


async def test_a_probability_strikes_the_same_sends_for_the_same_seed(bench: Bench) -> None:
    async def struck(seed: int) -> list[bool]:
        active = bench.add(FaultKind.THROTTLE, probability=0.5, seed=seed)
        outcomes = []
        for _ in range(20):
            try:
                await bench.shared.send()
                outcomes.append(False)
            except ServiceBusServerBusyError:
                outcomes.append(True)
        bench.clear()
        assert active.fired == sum(outcomes)
        return outcomes

    first = await struck(3)
    assert {True, False} == set(first)
    assert await struck(3) == first


async def test_entity_fault_does_not_strike_other_entities(bench: Bench) -> None:
    elsewhere = await bench.place()
    others = [bench.add(kind, entity=elsewhere.path, count=MANY, delay=9.0) for kind in FaultKind]
    await bench.shared.send()
    assert [active.fired for active in others] == [0] * len(others)
