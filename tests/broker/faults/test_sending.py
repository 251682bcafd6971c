"""Faults that strike a send or a request to the management node, as the unmodified SDK sees them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)
from tests.broker.faults.bench import SHORT, STRUCK, Bench

from twinbus.broker import Fault, Kind, Operation

pytestmark = pytest.mark.asyncio(loop_scope="module")

SEND = frozenset({Operation.SEND})
MANAGEMENT = frozenset({Operation.MANAGEMENT})

# A fault, the SDK's exception, and how many messages are stored all the same.
ON_SEND = [
    pytest.param(Fault(Kind.RESET), ServiceBusConnectionError, 0, id="reset"),
    pytest.param(Fault(Kind.BLACKHOLE), OperationTimeoutError, 0, id="blackhole"),
    pytest.param(Fault(Kind.SLOW, delay=0.1), None, 1, id="slow"),
    pytest.param(Fault(Kind.DROP_ACK), OperationTimeoutError, 1, id="drop_ack"),
    pytest.param(Fault(Kind.DROP_ACK, then_reset=True), ServiceBusConnectionError, 1, id="drop_ack then reset"),
    pytest.param(Fault(Kind.REJECT), ServiceBusError, 0, id="reject"),
    pytest.param(
        Fault(Kind.REJECT, condition="amqp:not-found"), MessagingEntityNotFoundError, 0, id="reject as not found"
    ),
    pytest.param(
        Fault(Kind.REJECT, condition="amqp:unauthorized-access"), ServiceBusAuthorizationError, 0, id="reject as stranger"
    ),
    pytest.param(Fault(Kind.THROTTLE), ServiceBusServerBusyError, 0, id="throttle"),
    pytest.param(Fault(Kind.DETACH), ServiceBusConnectionError, 0, id="detach"),
    pytest.param(Fault(Kind.CLOSE), ServiceBusConnectionError, 0, id="close"),
    pytest.param(Fault(Kind.EXPIRE), ServiceBusConnectionError, 0, id="expire"),
    pytest.param(Fault(Kind.DISABLE), MessagingEntityDisabledError, 0, id="disable"),
    pytest.param(Fault(Kind.FILL), ServiceBusQuotaExceededError, 0, id="fill"),
]
ON_MANAGEMENT = [
    pytest.param(Fault(Kind.RESET), ServiceBusConnectionError, 0, id="reset"),
    pytest.param(Fault(Kind.BLACKHOLE), OperationTimeoutError, 0, id="blackhole"),
    pytest.param(Fault(Kind.SLOW, delay=0.1), None, 1, id="slow"),
    pytest.param(Fault(Kind.DROP_ACK), OperationTimeoutError, 1, id="drop_ack"),
    pytest.param(Fault(Kind.DROP_ACK, then_reset=True), ServiceBusConnectionError, 1, id="drop_ack then reset"),
    pytest.param(Fault(Kind.REJECT), ServiceBusError, 0, id="reject"),
    pytest.param(Fault(Kind.THROTTLE), ServiceBusServerBusyError, 0, id="throttle"),
    pytest.param(Fault(Kind.CLOSE), ServiceBusError, 0, id="close"),
    pytest.param(Fault(Kind.EXPIRE), ServiceBusError, 0, id="expire"),
    pytest.param(Fault(Kind.DISABLE), MessagingEntityDisabledError, 0, id="disable"),
    pytest.param(Fault(Kind.FILL), ServiceBusQuotaExceededError, 0, id="fill"),
]


@pytest.mark.parametrize("entity", [None, STRUCK], ids=["namespace", "entity"])
@pytest.mark.parametrize(("fault", "error", "stored"), ON_SEND)
async def test_a_struck_send_raises_what_the_sdk_raises_and_the_next_one_works(
    bench: Bench, fault: Fault, entity: str | None, error: type[Exception] | None, stored: int
) -> None:
    active = bench.namespace.faults.add(replace(fault, entity=entity, on=SEND, count=1))
    before = bench.activity.received
    if error is None:
        await bench.send()
    else:
        with pytest.raises(error) as raised:
            await bench.send(timeout=SHORT)
        assert type(raised.value) is error
    assert active.fired == 1
    assert bench.activity.received - before == stored
    await bench.send("after the fault")
    assert bench.activity.received - before == stored + 1
    assert active.fired == 1


@pytest.mark.parametrize("entity", [None, STRUCK], ids=["namespace", "entity"])
@pytest.mark.parametrize(("fault", "error", "stored"), ON_MANAGEMENT)
async def test_a_struck_request_raises_what_the_sdk_raises_and_the_next_one_works(
    bench: Bench, fault: Fault, entity: str | None, error: type[Exception] | None, stored: int
) -> None:
    active = bench.namespace.faults.add(replace(fault, entity=entity, on=MANAGEMENT, count=1))
    before = bench.scheduled
    if error is None:
        await bench.schedule()
    else:
        with pytest.raises(error):
            await bench.schedule(timeout=SHORT)
    assert active.fired == 1
    assert bench.scheduled - before == stored
    await bench.schedule()
    assert bench.scheduled - before == stored + 1


async def test_a_dropped_acknowledgement_leaves_the_message_in_the_queue(bench: Bench) -> None:
    bench.add(Kind.DROP_ACK, entity=STRUCK, count=1)
    with pytest.raises(OperationTimeoutError):
        await bench.send("acknowledged to nobody", timeout=SHORT)
    peeked = await bench.receiver.peek_messages(max_message_count=100, sequence_number=1)
    assert "acknowledged to nobody" in [str(message) for message in peeked]


async def test_a_reset_after_the_answer_lets_the_send_succeed(bench: Bench) -> None:
    active = bench.add(Kind.RESET, on=SEND, count=1, after_answer=True)
    await bench.send()
    assert active.fired == 1
    with pytest.raises(ServiceBusConnectionError):
        await bench.send()  # the SDK finds out that its connection is gone
    await bench.send()


async def test_a_rejection_carries_the_chosen_condition_and_description(bench: Bench) -> None:
    bench.add(Kind.REJECT, count=1, condition="com.microsoft:operation-cancelled", description="Not today.")
    with pytest.raises(ServiceBusError, match=r"Not today.*com\.microsoft:operation-cancelled"):
        await bench.send()


async def test_throttling_says_50009(bench: Bench) -> None:
    bench.add(Kind.THROTTLE, count=1)
    with pytest.raises(ServiceBusServerBusyError, match=r"50009.*wait 2 seconds"):
        await bench.send()


async def test_a_slow_send_takes_that_much_longer(bench: Bench) -> None:
    bench.add(Kind.SLOW, entity=STRUCK, on=SEND, delay=0.3)
    started = time.monotonic()
    await bench.send()
    assert time.monotonic() - started >= 0.3


async def test_slow_sends_are_done_in_the_order_they_came(bench: Bench) -> None:
    first = bench.activity.received
    bench.add(Kind.SLOW, entity=STRUCK, on=SEND, delay=0.2, count=1)  # only the first one is slow
    senders = [bench.sender.send_messages(ServiceBusMessage(f"slow {number}")) for number in range(3)]
    await asyncio.gather(*senders)
    peeked = await bench.receiver.peek_messages(max_message_count=100, sequence_number=first)
    assert [str(m) for m in peeked if str(m).startswith("slow")] == ["slow 0", "slow 1", "slow 2"]


async def test_a_black_holed_send_arrives_late_when_the_fault_ends(bench: Bench) -> None:
    active = bench.add(Kind.BLACKHOLE, entity=STRUCK, on=SEND)
    before = bench.activity.received
    with pytest.raises(OperationTimeoutError):
        await bench.send("late", timeout=SHORT)
    assert bench.activity.received == before
    bench.clear()
    await bench.until(lambda: bench.activity.received == before + 1)
    assert active.fired == 1
    await bench.send()


async def test_a_black_holed_send_ends_by_itself_after_its_seconds(bench: Bench) -> None:
    bench.add(Kind.BLACKHOLE, entity=STRUCK, on=SEND, seconds=0.3)
    started = time.monotonic()
    await bench.send("just in time")
    assert time.monotonic() - started >= 0.3


async def test_a_fault_for_some_seconds_is_over_after_them(bench: Bench) -> None:
    active = bench.add(Kind.THROTTLE, seconds=0.2)
    with pytest.raises(ServiceBusServerBusyError):
        await bench.send()
    await bench.until(lambda: active.ended)
    await bench.send()
    assert active.fired == 1


async def test_a_probability_strikes_the_same_sends_for_the_same_seed(bench: Bench) -> None:
    async def struck(seed: int) -> list[bool]:
        active = bench.add(Kind.THROTTLE, probability=0.5, seed=seed)
        outcomes = []
        for _ in range(20):
            try:
                await bench.send()
                outcomes.append(False)
            except ServiceBusServerBusyError:
                outcomes.append(True)
        bench.clear()
        assert active.fired == sum(outcomes)
        return outcomes

    first = await struck(3)
    assert True in first
    assert False in first
    assert await struck(3) == first


@pytest.mark.parametrize("kind", [Kind.DISABLE, Kind.FILL, Kind.THROTTLE, Kind.REJECT, Kind.BLACKHOLE, Kind.DROP_ACK])
async def test_a_fault_of_one_entity_spares_the_others(bench: Bench, kind: Kind) -> None:
    active = bench.add(kind, entity=STRUCK)
    fired = active.fired
    await bench.send_elsewhere()
    assert active.fired == fired


async def test_a_full_queue_can_still_be_looked_at_and_emptied(bench: Bench) -> None:
    message = await bench.locked()
    active = bench.add(Kind.FILL, entity=STRUCK)
    await bench.receiver.peek_messages()
    await bench.receiver.complete_message(message)
    assert active.fired == 0
    with pytest.raises(ServiceBusQuotaExceededError):
        await bench.schedule()
    assert active.fired == 1


async def test_a_batch_is_struck_once_and_as_a_whole(bench: Bench) -> None:
    active = bench.add(Kind.REJECT, on=SEND, count=1)
    before = bench.activity.received
    batch = [ServiceBusMessage(str(number)) for number in range(10)]
    with pytest.raises(ServiceBusError):
        await bench.sender.send_messages(batch)
    assert (active.fired, bench.activity.received) == (1, before)
    await bench.sender.send_messages(batch)
    assert bench.activity.received == before + 10
