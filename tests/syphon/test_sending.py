"""Sending through the client: pipelined, within credit and window, with an outcome for each message."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.syphon.bus import MOMENT, PATIENCE, Outcomes, body_of, connect, eventually, message, receive, send_all

from twinbus.broker import AZURE, Fault, Kind, Namespace, Operation, Profile, QueueDescription, TopicDescription
from twinbus.broker.descriptions import SubscriptionDescription
from twinbus.syphon import (
    AmqpError,
    Connection,
    ConnectionLost,
    LinkDetached,
    MessageTooLarge,
    NoRoom,
    Rejected,
    TimedOut,
)

ON_SEND = frozenset({Operation.SEND})


async def test_a_message_that_is_accepted_is_there(connection: Connection) -> None:
    sender = await connection.attach_sender("orders")
    await sender.deliver(message(b"one"), PATIENCE)
    _, inbox = await receive(connection, "orders", 1)
    assert body_of((await inbox.take_one()).payload) == b"one"


async def test_many_messages_are_under_way_at_once_and_each_has_an_outcome(connection: Connection) -> None:
    sender = await connection.attach_sender("orders")
    bodies = [b"%d" % number for number in range(3000)]
    outcomes = await send_all(sender, [message(body) for body in bodies])
    assert set(outcomes.values()) == {None}
    assert sender.pending == 0
    receiver, inbox = await receive(connection, "orders", 1000)
    found = []
    while len(found) < len(bodies):
        found += [body_of(delivery.payload) for delivery in await inbox.take(1000)]
        receiver.add_credit(1000)
    assert found == bodies


async def test_a_large_message_goes_out_and_comes_back_in_many_frames(connection: Connection) -> None:
    sender = await connection.attach_sender("orders")
    body = bytes(range(256)) * 800
    await sender.deliver(message(body), PATIENCE)
    _, inbox = await receive(connection, "orders", 1)
    assert body_of((await inbox.take_one()).payload) == body


async def test_large_and_small_messages_take_turns_without_harm(connection: Connection) -> None:
    sender = await connection.attach_sender("orders")
    bodies = [bytes([number]) * (200_000 if number % 3 else 10) for number in range(30)]
    await send_all(sender, [message(body) for body in bodies])
    _, inbox = await receive(connection, "orders", 30)
    assert [body_of(delivery.payload) for delivery in await inbox.take(30)] == bodies


async def test_one_rejected_message_does_not_fail_its_neighbours(namespace: Namespace, connection: Connection) -> None:
    sender = await connection.attach_sender("orders")
    outcomes = Outcomes()
    namespace.faults.add(Fault(Kind.REJECT, "orders", ON_SEND, count=1, condition="x:no", description="not this one"))
    for number in range(5):
        sender.send(message(), outcomes.on(number))
    seen = await outcomes.all(5)
    rejected = seen.pop(0)
    assert isinstance(rejected, Rejected)
    assert (rejected.condition, rejected.description) == ("x:no", "not this one")
    assert set(seen.values()) == {None}
    assert sender.error is None


async def test_messages_reach_a_topic(namespace: Namespace, connection: Connection) -> None:
    await namespace.create(TopicDescription("events"))
    await namespace.create_subscription(SubscriptionDescription("events", "all"))
    sender = await connection.attach_sender("events")
    await sender.deliver(message(b"news"), PATIENCE)
    _, inbox = await receive(connection, "events/Subscriptions/all", 1)
    assert body_of((await inbox.take_one()).payload) == b"news"


async def test_a_throttled_namespace_answers_server_busy_to_the_messages_beyond_its_rate() -> None:
    async with Namespace("contoso", profile=replace(AZURE, throttle=10)) as namespace:
        await namespace.create(QueueDescription("orders"))
        async with connect(namespace) as connection:
            sender = await connection.attach_sender("orders")
            outcomes = await send_all(sender, [message()] * 50)
    refused = [error for error in outcomes.values() if error is not None]
    assert refused
    assert {error.condition for error in refused} == {"com.microsoft:server-busy"}
    assert len(refused) < 50


# ---- room ----


@pytest.mark.parametrize("credit", [1, 2, 10])
async def test_credit_is_never_exceeded(credit: int) -> None:
    """The strict profile detaches a sender that sends without credit."""
    async with Namespace("contoso", profile=replace(AZURE, throttle=None, sender_credit=credit)) as namespace:
        await namespace.create(QueueDescription("orders"))
        async with connect(namespace) as connection:
            sender = await connection.attach_sender("orders")
            outcomes = await send_all(sender, [message()] * 100)
            assert set(outcomes.values()) == {None}
            assert sender.error is None


@pytest.mark.parametrize("window", [2, 3, 7])
async def test_the_window_of_the_session_is_never_exceeded(window: int) -> None:
    """The strict profile ends a session whose transfers go beyond its window; one message has four frames."""
    async with Namespace("contoso", profile=replace(AZURE, throttle=None, incoming_window=window)) as namespace:
        await namespace.create(QueueDescription("orders"))
        async with connect(namespace) as connection:
            sender = await connection.attach_sender("orders")
            payloads = [message(b"x" * size) for size in (10, 200_000, 10, 200_000, 10)] * 3
            assert set((await send_all(sender, payloads)).values()) == {None}


async def test_there_is_no_room_beyond_the_credit(namespace: Namespace, connection: Connection) -> None:
    sender = await connection.attach_sender("orders")
    await sender.wait_for_room(PATIENCE)
    outcomes, sent = Outcomes(), 0
    while sender.room:
        sender.send(message(), outcomes.on(sent))
        sent += 1
    assert sent == namespace.profile.sender_credit
    with pytest.raises(NoRoom):
        sender.send(message(), outcomes.on("too many"))
    await sender.wait_for_room(PATIENCE)
    assert sender.room
    assert "too many" not in await outcomes.all(sent)


async def test_waiting_for_room_ends_with_the_time(namespace: Namespace, connection: Connection) -> None:
    sender = await connection.attach_sender("orders")
    await sender.wait_for_room(PATIENCE)
    namespace.faults.add(Fault(Kind.BLACKHOLE, "orders", ON_SEND))
    outcomes = Outcomes()
    while sender.room:
        sender.send(message(), outcomes.on(sender.room))

    async def use_all_credit() -> None:
        # The namespace renews credit as messages come in, whether or not they are answered.
        while True:
            await sender.wait_for_room(MOMENT)
            sender.send(message(), lambda error: None)

    with pytest.raises(TimedOut, match="'orders' gave no credit within"):
        await use_all_credit()
    assert connection.error is None


async def test_a_message_larger_than_the_link_takes_is_refused_before_it_is_sent(connection: Connection) -> None:
    sender = await connection.attach_sender("orders")
    await sender.wait_for_room(PATIENCE)
    limit = sender.max_message_size
    assert limit == 256 * 1024
    with pytest.raises(MessageTooLarge, match=f"larger than the {limit} that 'orders' takes") as caught:
        sender.send(b"x" * (limit + 1), lambda error: None)
    assert (caught.value.size, caught.value.limit) == (limit + 1, limit)
    await sender.deliver(message(), PATIENCE)


# ---- links and connections that end ----


async def test_a_detached_link_gives_its_reason_to_everything_pending(
    namespace: Namespace, connection: Connection
) -> None:
    ends: list[AmqpError] = []
    sender = await connection.attach_sender("orders", on_end=ends.append)
    other = await connection.attach_sender("orders")
    fault = Fault(Kind.DETACH, "orders", ON_SEND, count=1, condition="amqp:link:detach-forced", description="go away")
    namespace.faults.add(fault)
    outcomes = Outcomes()
    await sender.wait_for_room(PATIENCE)
    for number in range(3):
        sender.send(message(), outcomes.on(number))
    for error in (await outcomes.all(3)).values():
        assert isinstance(error, LinkDetached)
        assert (error.condition, error.description) == ("amqp:link:detach-forced", "go away")
    assert ends == [sender.error]
    assert sender.room == 0
    with pytest.raises(LinkDetached, match="go away"):
        sender.send(message(), outcomes.on("late"))
    with pytest.raises(LinkDetached, match="go away"):
        await sender.wait_for_room(PATIENCE)
    await other.deliver(message(), PATIENCE)


async def test_a_sender_that_was_detached_can_be_attached_anew(namespace: Namespace, connection: Connection) -> None:
    sender = await connection.attach_sender("orders")
    namespace.faults.add(Fault(Kind.DETACH, "orders", ON_SEND, count=1))
    with pytest.raises(LinkDetached):
        await sender.deliver(message(), PATIENCE)
    sender = await connection.attach_sender("orders")
    await sender.deliver(message(), PATIENCE)


async def test_an_idle_sender_is_detached_by_the_strict_profile_and_says_so() -> None:
    async with Namespace("contoso", profile=replace(AZURE, link_idle=0.1)) as namespace:
        await namespace.create(QueueDescription("orders"))
        async with connect(namespace) as connection:
            ended: asyncio.Future[AmqpError] = asyncio.get_running_loop().create_future()
            await connection.attach_sender("orders", on_end=ended.set_result)
            error = await asyncio.wait_for(ended, PATIENCE)
            assert isinstance(error, LinkDetached)
            assert error.condition == "amqp:link:detach-forced"
            assert connection.error is None


async def test_a_link_that_is_refused_says_why(namespace: Namespace, connection: Connection) -> None:
    ends: list[AmqpError] = []
    namespace.faults.add(
        Fault(Kind.REJECT, "orders", frozenset({Operation.ATTACH}), condition="x:no", description="so")
    )
    with pytest.raises(LinkDetached) as caught:
        await connection.attach_sender("orders", on_end=ends.append)
    assert (caught.value.condition, caught.value.description) == ("x:no", "so")
    assert not ends, "a link that never was has no end"


async def test_a_reset_is_told_to_everything_pending(namespace: Namespace, connection: Connection) -> None:
    sender = await connection.attach_sender("orders")
    await sender.wait_for_room(PATIENCE)
    namespace.faults.add(Fault(Kind.BLACKHOLE, "orders", ON_SEND))
    outcomes = Outcomes()
    for number in range(3):
        sender.send(message(), outcomes.on(number))
    namespace.faults.add(Fault(Kind.RESET))
    assert {type(error) for error in (await outcomes.all(3)).values()} == {ConnectionLost}
    assert isinstance(connection.error, ConnectionLost)
    with pytest.raises(ConnectionLost):
        await connection.attach_sender("orders")


async def test_a_lost_acknowledgement_is_not_taken_for_a_rejection(
    namespace: Namespace, connection: Connection
) -> None:
    sender = await connection.attach_sender("orders")
    namespace.faults.add(Fault(Kind.DROP_ACK, "orders", ON_SEND, count=1, then_reset=True))
    with pytest.raises(ConnectionLost):
        await sender.deliver(message(b"arrived"), PATIENCE)
    async with connect(namespace) as again:
        _, inbox = await receive(again, "orders", 1)
        assert body_of((await inbox.take_one()).payload) == b"arrived"


async def test_an_entity_that_does_not_answer_loses_its_link_and_the_others_go_on(
    namespace: Namespace, profile: Profile
) -> None:
    await namespace.create(QueueDescription("silent"))
    async with connect(namespace, outcome_timeout=1.0) as connection:
        silent, orders = await connection.attach_sender("silent"), await connection.attach_sender("orders")
        await silent.wait_for_room(PATIENCE)
        await orders.wait_for_room(PATIENCE)
        namespace.faults.add(Fault(Kind.BLACKHOLE, "silent", ON_SEND))
        outcomes = Outcomes()
        silent.send(message(), outcomes.on("silent"))
        assert isinstance((await outcomes.all(1))["silent"], TimedOut)
        assert isinstance(silent.error, TimedOut)
        await orders.deliver(message(), PATIENCE)
        assert connection.error is None


async def test_a_black_hole_ends_the_connection_when_the_outcome_is_overdue(namespace: Namespace) -> None:
    async with connect(namespace, outcome_timeout=1.0) as connection:
        sender = await connection.attach_sender("orders")
        await sender.wait_for_room(PATIENCE)
        outcomes = Outcomes()
        namespace.faults.add(Fault(Kind.BLACKHOLE))
        sender.send(message(), outcomes.on(0))
        assert isinstance((await outcomes.all(1))[0], TimedOut)
        assert isinstance(connection.error, TimedOut)
        namespace.faults.clear()


async def test_closing_a_sender_frees_its_handle(namespace: Namespace, connection: Connection) -> None:
    for _ in range(5):
        sender = await connection.attach_sender("orders")
        await sender.deliver(message(), PATIENCE)
        await sender.close()
    assert len(connection._sessions) == 1
    assert connection._sessions[0].free_handles() == namespace.profile.handle_max - 1  # those of $cbs are in use
    with pytest.raises(LinkDetached, match="closed here"):
        sender.send(message(), lambda error: None)


async def test_more_links_than_a_session_takes_go_to_a_second_one() -> None:
    async with Namespace("contoso", profile=replace(AZURE, throttle=None, handle_max=3)) as namespace:
        await namespace.create(QueueDescription("orders"))
        async with connect(namespace) as connection:
            senders = [await connection.attach_sender("orders") for _ in range(10)]
            for sender in senders:
                await sender.deliver(message(), PATIENCE)
            assert len(connection._sessions) == 3


async def test_a_link_that_was_silent_for_long_can_be_told(connection: Connection) -> None:
    sender = await connection.attach_sender("orders")
    await sender.deliver(message(), PATIENCE)
    before = sender.last_activity
    await eventually(lambda: sender.idle_seconds > 0.05)
    await sender.deliver(message(), PATIENCE)
    assert sender.last_activity > before


async def test_a_callback_that_raises_ends_the_connection_and_is_its_cause(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    sender = await connection.attach_sender("orders")
    await sender.wait_for_room(PATIENCE)

    def broken(error: AmqpError | None) -> None:
        raise KeyError("a mistake in the pump")

    sender.send(message(), broken)
    error = await asyncio.wait_for(connection.wait_lost(), PATIENCE)
    assert isinstance(error.__cause__, KeyError)
    assert "a callback failed" in caplog.text
