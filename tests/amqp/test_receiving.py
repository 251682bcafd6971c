"""Receiving with the AMQP client: credit, locks, settlements."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from tests.syphon.bus import (
    MOMENT,
    PATIENCE,
    Inbox,
    Outcomes,
    annotations_of,
    body_of,
    connect,
    eventually,
    message,
    properties_of,
    receive,
    send_all,
)

from twinbus.amqp.codec import sections
from twinbus.emulator import Fault, FaultKind, FaultPoint, Namespace, QueueDescription
from twinbus.servicebus.durations import TICKS_PER_SECOND
from twinbus.syphon import (
    ABANDON,
    ACCEPT,
    DEFER,
    RELEASE,
    AmqpError,
    AnswerTimeoutError,
    Connection,
    ConnectionLostError,
    Delivery,
    LinkDetachedError,
    RejectedError,
    dead_letter,
)

ON_SETTLE = frozenset({FaultPoint.SETTLE})


async def put(connection: Connection, *bodies: bytes, path: str = "orders") -> None:
    sender = await connection.attach_sender(path)
    assert set((await send_all(sender, [message(body) for body in bodies])).values()) == {None}
    await sender.close()


def counts(namespace: Namespace, path: str = "orders") -> tuple[int, int]:
    """The namespace's counts of active and deferred messages of a queue."""
    node = namespace.entities.resolve(path)
    assert node is not None
    return node.queue.counters.active, node.queue.counters.deferred


# ---- credit ----


async def test_receiver_gets_no_more_messages_than_its_credit(connection: Connection) -> None:
    await put(connection, b"1", b"2", b"3", b"4", b"5")
    receiver, inbox = await receive(connection, "orders", 2)
    await inbox.take(2)
    assert receiver.credit == 0
    await asyncio.sleep(MOMENT)
    assert len(inbox) == 0
    receiver.add_credit(1)
    receiver.add_credit(1)
    assert [body_of(delivery.payload) for delivery in await inbox.take(2)] == [b"3", b"4"]


async def test_standing_credit_waits_for_messages(connection: Connection) -> None:
    receiver, inbox = await receive(connection, "orders", 10)
    assert receiver.credit == 10
    await put(connection, b"late")
    assert body_of((await inbox.take_one()).payload) == b"late"
    assert receiver.credit == 9


async def test_renewed_credit_is_a_poll_unless_a_message_arrived(connection: Connection, namespace: Namespace) -> None:
    node = namespace.entities.resolve("orders")
    assert node is not None
    receiver, inbox = await receive(connection, "orders", 10)
    receiver.renew_credit()
    receiver.renew_credit()
    await eventually(lambda: node.queue.activity.polls == 2)
    receiver.probe()  # a probe is not a poll
    receiver.add_credit(1)  # nor is more credit
    await put(connection, b"late")
    await inbox.take_one()
    receiver.renew_credit()  # this poll got a message
    await receiver.stop(PATIENCE)  # and this one was stopped early
    assert (node.queue.activity.polls, node.queue.activity.delivered) == (2, 1)


async def test_stopped_receiver_gets_nothing_until_it_grants_credit(connection: Connection) -> None:
    receiver, inbox = await receive(connection, "orders", 100)
    await receiver.stop(PATIENCE)
    assert receiver.credit == 0
    await put(connection, b"after")
    await asyncio.sleep(MOMENT)
    assert len(inbox) == 0
    receiver.add_credit(5)
    assert body_of((await inbox.take_one()).payload) == b"after"
    assert receiver.credit == 4


async def test_stopping_delivers_messages_in_flight_first(connection: Connection) -> None:
    await put(connection, *(b"%d" % number for number in range(20)))
    receiver, inbox = await receive(connection, "orders", 100)
    await receiver.stop(PATIENCE)
    arrived = len(inbox)
    assert receiver.credit == 0
    await asyncio.sleep(MOMENT)
    assert len(inbox) == arrived


async def test_stopping_receiver_grants_no_credit(connection: Connection) -> None:
    await put(connection, b"1", b"2", b"3")
    inbox = Inbox()

    def one_more(delivery: Delivery) -> None:
        inbox(delivery)
        receiver.add_credit(1)

    receiver = await connection.attach_receiver("orders", one_more, credit=2)
    await receiver.stop(PATIENCE)
    assert receiver.credit == 0


async def test_stopping_times_out(namespace: Namespace, connection: Connection) -> None:
    receiver, _ = await receive(connection, "orders", 10)
    await eventually(lambda: receiver.is_attached)
    namespace.faults.add(Fault(FaultKind.BLACKHOLE))
    with pytest.raises(AnswerTimeoutError, match="did not return the credit within"):
        await receiver.stop(MOMENT)
    namespace.faults.clear()


@pytest.mark.parametrize("credit", [0, -1, 1_000_001])
async def test_credit_out_of_bounds_is_refused(connection: Connection, credit: int) -> None:
    receiver = await connection.attach_receiver("orders", Inbox())
    with pytest.raises(ValueError, match="1 or more, with a total credit of at most 1000000"):
        receiver.add_credit(credit)


# ---- settling ----


async def test_a_completed_message_is_gone(namespace: Namespace, connection: Connection) -> None:
    await put(connection, b"1")
    receiver, inbox = await receive(connection, "orders", 1)
    delivery = await inbox.take_one()
    assert not delivery.settled
    await receiver.settled(delivery, ACCEPT, PATIENCE)
    assert counts(namespace) == (0, 0)


async def test_each_settlement_has_an_outcome(namespace: Namespace, connection: Connection) -> None:
    await put(connection, *(b"%d" % number for number in range(500)))
    receiver, inbox = await receive(connection, "orders", 500)
    outcomes = Outcomes()
    # Odd ones first, so that the ranges have holes.
    deliveries = await inbox.take(500)
    for delivery in [*deliveries[1::2], *deliveries[::2]]:
        receiver.settle(delivery, ACCEPT, outcomes.on(delivery.id))
    assert set((await outcomes.all(500)).values()) == {None}
    assert receiver.pending == 0
    assert counts(namespace) == (0, 0)


@pytest.mark.parametrize("outcome", [ABANDON, RELEASE])
async def test_released_message_is_delivered_again(connection: Connection, outcome: Any) -> None:
    await put(connection, b"1")
    receiver, inbox = await receive(connection, "orders", 1)
    await receiver.settled(await inbox.take_one(), outcome, PATIENCE)
    receiver.add_credit(1)
    again = await inbox.take_one()
    delivery_count = sections.list_fields(sections.split_sections(again.payload).header, 5)[4]
    assert delivery_count == (1 if outcome is ABANDON else 0)


async def test_deferred_message_is_not_delivered_again(namespace: Namespace, connection: Connection) -> None:
    await put(connection, b"1")
    receiver, inbox = await receive(connection, "orders", 2)
    await receiver.settled(await inbox.take_one(), DEFER, PATIENCE)
    assert counts(namespace) == (0, 1)
    await asyncio.sleep(MOMENT)
    assert len(inbox) == 0


async def test_a_dead_letter_carries_its_reason(connection: Connection) -> None:
    await put(connection, b"1")
    receiver, inbox = await receive(connection, "orders", 1)
    await receiver.settled(await inbox.take_one(), dead_letter("TooOld", "it expired in the backlog"), PATIENCE)
    _, dead = await receive(connection, "orders/$DeadLetterQueue", 1)
    found = properties_of((await dead.take_one()).payload)
    assert found["DeadLetterReason"] == "TooOld"
    assert found["DeadLetterErrorDescription"] == "it expired in the backlog"


async def test_dead_letter_reason_may_be_long(connection: Connection) -> None:
    await put(connection, b"1")
    receiver, inbox = await receive(connection, "orders", 1)
    await receiver.settled(await inbox.take_one(), dead_letter("r" * 1000, "d" * 3000), PATIENCE)
    _, dead = await receive(connection, "orders/$DeadLetterQueue", 1)
    assert properties_of((await dead.take_one()).payload)["DeadLetterErrorDescription"] == "d" * 3000


async def test_refused_settlement_has_a_reason_and_does_not_affect_others(
    namespace: Namespace, connection: Connection
) -> None:
    await put(connection, b"1", b"2", b"3")
    receiver, inbox = await receive(connection, "orders", 3)
    deliveries = await inbox.take(3)
    namespace.faults.add(Fault(FaultKind.REJECT, "orders", ON_SETTLE, count=1, condition="x:no", description="not now"))
    outcomes = Outcomes()
    for delivery in deliveries:
        receiver.settle(delivery, ACCEPT, outcomes.on(delivery.id))
    seen = await outcomes.all(3)
    refused = seen[deliveries[0].id]
    assert isinstance(refused, RejectedError)
    assert (refused.condition, refused.description) == ("x:no", "not now")
    assert [seen[delivery.id] for delivery in deliveries[1:]] == [None, None]


@pytest.mark.parametrize("outcome", [ACCEPT, ABANDON, DEFER, dead_letter("a", "b")], ids=lambda one: type(one).__name__)
async def test_expired_lock_fails_the_settlement(outcome: Any) -> None:
    clock = Clock()
    async with Namespace("contoso", clock=clock) as namespace:
        await namespace.create(QueueDescription("orders", lock_duration=5 * TICKS_PER_SECOND))
        async with connect(namespace) as connection:
            await put(connection, b"1")
            receiver, inbox = await receive(connection, "orders", 1)
            delivery = await inbox.take_one()
            clock.ahead = 10
            namespace.clock_was_set()
            with pytest.raises(RejectedError) as caught:
                await receiver.settled(delivery, outcome, PATIENCE)
            assert caught.value.condition == "com.microsoft:message-lock-lost"


class Clock:
    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


async def test_lock_token_matches_the_message(connection: Connection) -> None:
    await put(connection, b"1")
    receiver, inbox = await receive(connection, "orders", 1)
    delivery = await inbox.take_one()
    section = sections.split_sections(delivery.payload).delivery_annotations
    token = dict(sections.map_entries(section))["x-opt-lock-token"]
    assert sections.entry_value(token) == delivery.lock_token
    assert annotations_of(delivery.payload)["x-opt-locked-until"] > time.time() * 1000
    await receiver.settled(delivery, ACCEPT, PATIENCE)


async def test_settling_times_out_and_only_that_link_is_lost(namespace: Namespace) -> None:
    async with connect(namespace, outcome_timeout=1.0) as connection:
        await put(connection, b"1")
        receiver, inbox = await receive(connection, "orders", 1)
        delivery = await inbox.take_one()
        sender = await connection.attach_sender("orders")
        namespace.faults.add(Fault(FaultKind.BLACKHOLE, "orders", ON_SETTLE))
        outcomes = Outcomes()
        receiver.settle(delivery, ACCEPT, outcomes.on(0))
        assert isinstance((await outcomes.all(1))[0], AnswerTimeoutError)
        assert isinstance(receiver.error, AnswerTimeoutError)
        await sender.deliver(message(), PATIENCE)
        assert connection.error is None


# ---- ends ----


async def test_detached_receiver_has_the_reason(namespace: Namespace, connection: Connection) -> None:
    ended: asyncio.Future[AmqpError] = asyncio.get_running_loop().create_future()
    receiver = await connection.attach_receiver("orders", Inbox(), credit=1, on_end=ended.set_result)
    await namespace.delete("orders")
    error = await asyncio.wait_for(ended, PATIENCE)
    assert isinstance(error, LinkDetachedError)
    assert error.condition == "amqp:not-found"
    with pytest.raises(LinkDetachedError):
        receiver.add_credit(1)
    with pytest.raises(LinkDetachedError):
        await receiver.stop(PATIENCE)


async def test_closing_the_connection_ends_its_receivers(namespace: Namespace, connection: Connection) -> None:
    ended: asyncio.Future[AmqpError] = asyncio.get_running_loop().create_future()
    await connection.attach_receiver("orders", Inbox(), credit=1, on_end=ended.set_result)
    namespace.faults.add(Fault(FaultKind.CLOSE, condition="amqp:connection:forced", description="maintenance"))
    error = await asyncio.wait_for(ended, PATIENCE)
    assert isinstance(error, ConnectionLostError)
    assert (error.condition, error.description) == ("amqp:connection:forced", "maintenance")


async def test_stopping_a_receiver_whose_connection_is_cut_raises(namespace: Namespace, connection: Connection) -> None:
    receiver, _ = await receive(connection, "orders", 1)
    stopping = asyncio.create_task(receiver.stop(PATIENCE))
    namespace.faults.add(Fault(FaultKind.RESET))
    with pytest.raises(ConnectionLostError):
        await stopping


async def test_messages_of_a_closed_receiver_are_delivered_again(connection: Connection) -> None:
    await put(connection, b"1")
    receiver, inbox = await receive(connection, "orders", 1)
    first = await inbox.take_one()
    outcomes = Outcomes()
    receiver.settle(first, RELEASE, outcomes.on(0))
    assert (await outcomes.all(1))[0] is None
    await receiver.close()
    with pytest.raises(LinkDetachedError, match="closed here"):
        receiver.settle(first, ACCEPT, outcomes.on(1))
    _, inbox = await receive(connection, "orders", 1)
    assert body_of((await inbox.take_one()).payload) == b"1"


async def test_message_above_the_receivers_limit_detaches_it(connection: Connection) -> None:
    await put(connection, b"x" * 200_000)
    ended: asyncio.Future[AmqpError] = asyncio.get_running_loop().create_future()
    await connection.attach_receiver("orders", Inbox(), credit=1, max_message_size=100_000, on_end=ended.set_result)
    error = await asyncio.wait_for(ended, PATIENCE)
    assert error.condition == "amqp:link:message-size-exceeded"
    assert connection.error is None
