"""Sending with the AMQP client: credit, window, outcomes."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.syphon.bus import MOMENT, PATIENCE, Outcomes, body_of, connect, eventually, message, receive, send_all

from twinbus.emulator import AZURE, Fault, FaultKind, FaultPoint, Namespace, Profile, QueueDescription, TopicDescription
from twinbus.servicebus.entity_descriptions import SubscriptionDescription
from twinbus.syphon import (
    AmqpError,
    AnswerTimeoutError,
    Connection,
    ConnectionLostError,
    LinkDetachedError,
    MessageTooLargeError,
    NoCreditError,
    RejectedError,
)

ON_SEND = frozenset({FaultPoint.SEND})


async def test_accepted_message_is_in_the_queue(connection: Connection) -> None:
    sender = await connection.attach_sender("orders")
    await sender.deliver(message(b"one"), PATIENCE)
    _, inbox = await receive(connection, "orders", 1)
    assert body_of((await inbox.take_one()).payload) == b"one"


async def test_many_messages_in_flight_each_have_an_outcome(connection: Connection) -> None:
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


async def test_large_message_is_sent_and_received_in_many_frames(connection: Connection) -> None:
    sender = await connection.attach_sender("orders")
    body = bytes(range(256)) * 800
    await sender.deliver(message(body), PATIENCE)
    _, inbox = await receive(connection, "orders", 1)
    assert body_of((await inbox.take_one()).payload) == body


async def test_large_and_small_messages_can_alternate(connection: Connection) -> None:
    sender = await connection.attach_sender("orders")
    bodies = [bytes([number]) * (200_000 if number % 3 else 10) for number in range(30)]
    await send_all(sender, [message(body) for body in bodies])
    _, inbox = await receive(connection, "orders", 30)
    assert [body_of(delivery.payload) for delivery in await inbox.take(30)] == bodies


async def test_one_rejected_message_does_not_fail_its_neighbours(namespace: Namespace, connection: Connection) -> None:
    sender = await connection.attach_sender("orders")
    outcomes = Outcomes()
    namespace.faults.add(
        Fault(FaultKind.REJECT, "orders", ON_SEND, count=1, condition="x:no", description="not this one")
    )
    for number in range(5):
        sender.send(message(), outcomes.on(number))
    seen = await outcomes.all(5)
    rejected = seen.pop(0)
    assert isinstance(rejected, RejectedError)
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


async def test_available_is_bounded_by_the_credit(namespace: Namespace, connection: Connection) -> None:
    sender = await connection.attach_sender("orders")
    await sender.wait_for_credit(PATIENCE)
    outcomes, sent = Outcomes(), 0
    while sender.available:
        sender.send(message(), outcomes.on(sent))
        sent += 1
    assert sent == namespace.profile.sender_credit
    with pytest.raises(NoCreditError):
        sender.send(message(), outcomes.on("too many"))
    await sender.wait_for_credit(PATIENCE)
    assert sender.available
    assert "too many" not in await outcomes.all(sent)


async def test_waiting_for_credit_times_out(namespace: Namespace, connection: Connection) -> None:
    sender = await connection.attach_sender("orders")
    await sender.wait_for_credit(PATIENCE)
    namespace.faults.add(Fault(FaultKind.BLACKHOLE, "orders", ON_SEND))
    outcomes = Outcomes()
    while sender.available:
        sender.send(message(), outcomes.on(sender.available))

    async def use_all_credit() -> None:
        # The namespace renews credit as messages arrive, answered or not.
        while True:
            await sender.wait_for_credit(MOMENT)
            sender.send(message(), lambda error: None)

    with pytest.raises(AnswerTimeoutError, match="'orders' gave no credit within"):
        await use_all_credit()
    assert connection.error is None


async def test_message_above_the_links_limit_is_refused_before_sending(connection: Connection) -> None:
    sender = await connection.attach_sender("orders")
    await sender.wait_for_credit(PATIENCE)
    limit = sender.max_message_size
    assert limit == 256 * 1024
    with pytest.raises(MessageTooLargeError, match=f"'orders' takes messages of at most {limit} bytes") as caught:
        sender.send(b"x" * (limit + 1), lambda error: None)
    assert (caught.value.size, caught.value.limit) == (limit + 1, limit)
    await sender.deliver(message(), PATIENCE)


# ---- links and connections that end ----


async def test_detached_link_fails_everything_pending_with_its_reason(
    namespace: Namespace, connection: Connection
) -> None:
    ends: list[AmqpError] = []
    sender = await connection.attach_sender("orders", on_end=ends.append)
    other = await connection.attach_sender("orders")
    fault = Fault(
        FaultKind.DETACH, "orders", ON_SEND, count=1, condition="amqp:link:detach-forced", description="go away"
    )
    namespace.faults.add(fault)
    outcomes = Outcomes()
    await sender.wait_for_credit(PATIENCE)
    for number in range(3):
        sender.send(message(), outcomes.on(number))
    for error in (await outcomes.all(3)).values():
        assert isinstance(error, LinkDetachedError)
        assert (error.condition, error.description) == ("amqp:link:detach-forced", "go away")
    assert ends == [sender.error]
    assert sender.available == 0
    with pytest.raises(LinkDetachedError, match="go away"):
        sender.send(message(), outcomes.on("late"))
    with pytest.raises(LinkDetachedError, match="go away"):
        await sender.wait_for_credit(PATIENCE)
    await other.deliver(message(), PATIENCE)


async def test_detached_sender_can_be_attached_again(namespace: Namespace, connection: Connection) -> None:
    sender = await connection.attach_sender("orders")
    namespace.faults.add(Fault(FaultKind.DETACH, "orders", ON_SEND, count=1))
    with pytest.raises(LinkDetachedError):
        await sender.deliver(message(), PATIENCE)
    sender = await connection.attach_sender("orders")
    await sender.deliver(message(), PATIENCE)


async def test_idle_sender_is_detached_by_the_strict_profile_with_a_reason() -> None:
    async with Namespace("contoso", profile=replace(AZURE, link_idle=0.1)) as namespace:
        await namespace.create(QueueDescription("orders"))
        async with connect(namespace) as connection:
            ended: asyncio.Future[AmqpError] = asyncio.get_running_loop().create_future()
            await connection.attach_sender("orders", on_end=ended.set_result)
            error = await asyncio.wait_for(ended, PATIENCE)
            assert isinstance(error, LinkDetachedError)
            assert error.condition == "amqp:link:detach-forced"
            assert connection.error is None


async def test_refused_link_raises_with_the_reason(namespace: Namespace, connection: Connection) -> None:
    ends: list[AmqpError] = []
    namespace.faults.add(
        Fault(FaultKind.REJECT, "orders", frozenset({FaultPoint.ATTACH}), condition="x:no", description="so")
    )
    with pytest.raises(LinkDetachedError) as caught:
        await connection.attach_sender("orders", on_end=ends.append)
    assert (caught.value.condition, caught.value.description) == ("x:no", "so")
    assert not ends, "a link that never was has no end"


async def test_connection_reset_fails_everything_pending(namespace: Namespace, connection: Connection) -> None:
    sender = await connection.attach_sender("orders")
    await sender.wait_for_credit(PATIENCE)
    namespace.faults.add(Fault(FaultKind.BLACKHOLE, "orders", ON_SEND))
    outcomes = Outcomes()
    for number in range(3):
        sender.send(message(), outcomes.on(number))
    namespace.faults.add(Fault(FaultKind.RESET))
    assert {type(error) for error in (await outcomes.all(3)).values()} == {ConnectionLostError}
    assert isinstance(connection.error, ConnectionLostError)
    with pytest.raises(ConnectionLostError):
        await connection.attach_sender("orders")


async def test_lost_acknowledgement_is_not_a_rejection(namespace: Namespace, connection: Connection) -> None:
    sender = await connection.attach_sender("orders")
    namespace.faults.add(Fault(FaultKind.DROP_ACK, "orders", ON_SEND, count=1, then_reset=True))
    with pytest.raises(ConnectionLostError):
        await sender.deliver(message(b"arrived"), PATIENCE)
    async with connect(namespace) as again:
        _, inbox = await receive(again, "orders", 1)
        assert body_of((await inbox.take_one()).payload) == b"arrived"


async def test_silent_entity_loses_its_link_and_the_others_go_on(namespace: Namespace, profile: Profile) -> None:
    await namespace.create(QueueDescription("silent"))
    async with connect(namespace, outcome_timeout=1.0) as connection:
        silent, orders = await connection.attach_sender("silent"), await connection.attach_sender("orders")
        await silent.wait_for_credit(PATIENCE)
        await orders.wait_for_credit(PATIENCE)
        namespace.faults.add(Fault(FaultKind.BLACKHOLE, "silent", ON_SEND))
        outcomes = Outcomes()
        silent.send(message(), outcomes.on("silent"))
        assert isinstance((await outcomes.all(1))["silent"], AnswerTimeoutError)
        assert isinstance(silent.error, AnswerTimeoutError)
        await orders.deliver(message(), PATIENCE)
        assert connection.error is None


async def test_a_black_hole_ends_the_connection_when_the_outcome_is_overdue(namespace: Namespace) -> None:
    async with connect(namespace, outcome_timeout=1.0) as connection:
        sender = await connection.attach_sender("orders")
        await sender.wait_for_credit(PATIENCE)
        outcomes = Outcomes()
        namespace.faults.add(Fault(FaultKind.BLACKHOLE))
        sender.send(message(), outcomes.on(0))
        assert isinstance((await outcomes.all(1))[0], AnswerTimeoutError)
        assert isinstance(connection.error, AnswerTimeoutError)
        namespace.faults.clear()


async def test_closing_a_sender_frees_its_handle(namespace: Namespace, connection: Connection) -> None:
    for _ in range(5):
        sender = await connection.attach_sender("orders")
        await sender.deliver(message(), PATIENCE)
        await sender.close()
    assert len(connection._sessions) == 1
    assert connection._sessions[0].free_handles() == namespace.profile.handle_max - 1  # those of $cbs are in use
    with pytest.raises(LinkDetachedError, match="closed here"):
        sender.send(message(), lambda error: None)


async def test_links_beyond_a_sessions_limit_use_a_second_session() -> None:
    async with Namespace("contoso", profile=replace(AZURE, throttle=None, handle_max=3)) as namespace:
        await namespace.create(QueueDescription("orders"))
        async with connect(namespace) as connection:
            senders = [await connection.attach_sender("orders") for _ in range(10)]
            for sender in senders:
                await sender.deliver(message(), PATIENCE)
            assert len(connection._sessions) == 3


async def test_idle_seconds_measures_silence_of_a_link(connection: Connection) -> None:
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
    await sender.wait_for_credit(PATIENCE)

    def broken(error: AmqpError | None) -> None:
        raise KeyError("a mistake in the pump")

    sender.send(message(), broken)
    error = await asyncio.wait_for(connection.wait_lost(), PATIENCE)
    assert isinstance(error.__cause__, KeyError)
    assert "A callback raised" in caplog.text
