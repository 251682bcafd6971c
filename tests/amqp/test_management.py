"""Management requests of the AMQP client."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from tests.syphon.bus import (
    MOMENT,
    PATIENCE,
    body_of,
    connect,
    message,
    properties_of,
    receive,
    send_all,
    sequence_number,
)

from twinbus.emulator import Fault, FaultKind, FaultPoint, Namespace
from twinbus.syphon import (
    DEFER,
    AnswerTimeoutError,
    Connection,
    ConnectionLostError,
    LinkDetachedError,
    RequestFailedError,
    Settlement,
)

ON_MANAGEMENT = frozenset({FaultPoint.MANAGEMENT})


async def deferred(connection: Connection, *bodies: bytes) -> list[int]:
    """Send messages and defer them. Returns their sequence numbers."""
    sender = await connection.attach_sender("orders")
    await send_all(sender, [message(body) for body in bodies])
    receiver, inbox = await receive(connection, "orders", len(bodies))
    deliveries = await inbox.take(len(bodies))
    for delivery in deliveries:
        await receiver.settled(delivery, DEFER, PATIENCE)
    await receiver.close()
    return [sequence_number(delivery.payload) for delivery in deliveries]


async def test_peeking_does_not_remove_messages(connection: Connection) -> None:
    sender = await connection.attach_sender("orders")
    await send_all(sender, [message(b"%d" % number) for number in range(10)])
    management = await connection.management("orders")
    found = await management.peek_messages(1, 4)
    assert [body_of(payload) for payload in found] == [b"0", b"1", b"2", b"3"]
    rest = await management.peek_messages(sequence_number(found[-1]) + 1, 100)
    assert [body_of(payload) for payload in rest] == [b"4", b"5", b"6", b"7", b"8", b"9"]


async def test_peeking_an_empty_queue_returns_nothing(connection: Connection) -> None:
    management = await connection.management("orders")
    assert await management.peek_messages(1, 10) == []


async def test_peek_result_may_span_many_frames(connection: Connection) -> None:
    sender = await connection.attach_sender("orders")
    await send_all(sender, [message(b"x" * 200_000)] * 5)
    management = await connection.management("orders")
    assert [len(body_of(payload)) for payload in await management.peek_messages(1, 5)] == [200_000] * 5


async def test_deferred_messages_are_received_by_number_and_settled(connection: Connection) -> None:
    numbers = await deferred(connection, b"a", b"b", b"c")
    management = await connection.management("orders")
    found = await management.receive_deferred([numbers[2], numbers[0]])
    assert {body_of(one.payload) for one in found} == {b"a", b"c"}
    await management.settle([one.lock_token for one in found], Settlement.COMPLETED)
    assert [body_of(payload) for payload in await management.peek_messages(1, 10)] == [b"b"]


async def test_a_deferred_message_that_is_abandoned_stays_deferred(connection: Connection) -> None:
    numbers = await deferred(connection, b"a")
    management = await connection.management("orders")
    for _ in range(2):
        found = await management.receive_deferred(numbers)
        await management.settle([found[0].lock_token], Settlement.ABANDONED)


async def test_a_deferred_message_can_be_dead_lettered_with_a_reason(connection: Connection) -> None:
    numbers = await deferred(connection, b"a")
    management = await connection.management("orders")
    (found,) = await management.receive_deferred(numbers)
    await management.settle([found.lock_token], Settlement.DEAD_LETTERED, reason="Poison", description="no handler")
    _, dead = await receive(connection, "orders/$DeadLetterQueue", 1)
    properties = properties_of((await dead.take_one()).payload)
    assert (properties["DeadLetterReason"], properties["DeadLetterErrorDescription"]) == (
        "Poison",
        "no handler",
    )


async def test_unknown_sequence_number_fails_with_its_condition(connection: Connection) -> None:
    numbers = await deferred(connection, b"a")
    management = await connection.management("orders")
    with pytest.raises(RequestFailedError) as caught:
        await management.receive_deferred([*numbers, 999])
    assert caught.value.status == 404
    assert caught.value.condition == "com.microsoft:message-not-found"


async def test_locks_are_renewed(connection: Connection) -> None:
    sender = await connection.attach_sender("orders")
    await send_all(sender, [message()] * 2)
    _, inbox = await receive(connection, "orders", 2)
    deliveries = await inbox.take(2)
    management = await connection.management("orders")
    ends = await management.renew_locks([delivery.lock_token for delivery in deliveries])
    assert len(ends) == 2
    assert all(isinstance(end, int) for end in ends)


async def test_unknown_lock_cannot_be_renewed(connection: Connection) -> None:
    management = await connection.management("orders")
    with pytest.raises(RequestFailedError) as caught:
        await management.renew_locks([uuid.uuid4()])
    assert caught.value.condition == "com.microsoft:message-lock-lost"


async def test_concurrent_requests_get_their_own_answers(connection: Connection) -> None:
    sender = await connection.attach_sender("orders")
    await send_all(sender, [message(b"%d" % number) for number in range(60)])
    management = await connection.management("orders")
    answers = await asyncio.gather(*(management.peek_messages(number, 1) for number in range(1, 61)))
    assert [body_of(payloads[0]) for payloads in answers] == [b"%d" % number for number in range(60)]


async def test_requests_beyond_the_nodes_credit_are_all_answered(connection: Connection) -> None:
    management = await connection.management("orders")
    for _ in range(250):
        assert await management.peek_messages(1, 1) == []


async def test_busy_entity_fails_with_its_condition(namespace: Namespace, connection: Connection) -> None:
    management = await connection.management("orders")
    namespace.faults.add(Fault(FaultKind.THROTTLE, "orders", ON_MANAGEMENT, count=1))
    with pytest.raises(RequestFailedError) as caught:
        await management.peek_messages(1, 1)
    assert (caught.value.status, caught.value.condition) == (503, "com.microsoft:server-busy")
    assert await management.peek_messages(1, 1) == []


async def test_request_times_out_and_the_node_stays_usable(namespace: Namespace, connection: Connection) -> None:
    management = await connection.management("orders")
    namespace.faults.add(Fault(FaultKind.DROP_ACK, "orders", ON_MANAGEMENT, count=1))
    with pytest.raises(AnswerTimeoutError, match=r"'orders/\$management' did not answer within"):
        await management.peek_messages(1, 1, seconds=1.0)
    assert connection.error is None, "the namespace took the request, so it is alive"
    assert await management.peek_messages(1, 1) == []


async def test_request_into_a_black_hole_fails_the_connection(namespace: Namespace) -> None:
    async with connect(namespace) as connection:
        management = await connection.management("orders")
        namespace.faults.add(Fault(FaultKind.BLACKHOLE))
        with pytest.raises(AnswerTimeoutError):
            await management.peek_messages(1, 1, seconds=MOMENT)
        assert isinstance(await connection.wait_lost(), AnswerTimeoutError)
        assert management.error is not None
        namespace.faults.clear()


async def test_connection_reset_fails_pending_requests(namespace: Namespace, connection: Connection) -> None:
    management = await connection.management("orders")
    namespace.faults.add(Fault(FaultKind.RESET, on=ON_MANAGEMENT))
    with pytest.raises(ConnectionLostError):
        await management.peek_messages(1, 1)


async def test_closed_node_can_be_attached_again(connection: Connection) -> None:
    management = await connection.management("orders")
    await management.close()
    with pytest.raises(LinkDetachedError, match="closed here"):
        await management.peek_messages(1, 1)
    again = await connection.management("orders")
    assert await again.peek_messages(1, 1) == []


@pytest.mark.parametrize("count", [0, 5001])
async def test_item_count_out_of_bounds_is_refused(connection: Connection, count: int) -> None:
    management = await connection.management("orders")
    with pytest.raises(ValueError, match="sequence_numbers must have 1 to 5000 items"):
        await management.receive_deferred(list(range(count)))
    with pytest.raises(ValueError, match="tokens must have 1 to 5000 items"):
        await management.renew_locks([uuid.uuid4()] * count)
    with pytest.raises(ValueError, match="count must be 1 to"):
        await management.peek_messages(1, 0)
