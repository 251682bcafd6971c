"""The client against a peer with unusual or wrong behaviour."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from tests.amqp.peer import CHANNEL, Listening, Peer
from tests.syphon.bus import PATIENCE, Inbox, Outcomes, eventually, message

from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec.frames import AMQP_HEADER, EMPTY_FRAME
from twinbus.syphon import (
    ACCEPT,
    DEFER,
    AmqpError,
    AnswerTimeoutError,
    AuthenticationFailedError,
    Connection,
    ConnectionLostError,
    LinkDetachedError,
    ModifiedError,
    Receiver,
    RejectedError,
    ReleasedError,
    Sender,
)

HANDLE = 99  # the peer's, for the link under test
WINDOW = 5000


@pytest.fixture
async def listening() -> AsyncIterator[Listening]:
    async with Listening() as server:
        yield server


async def together(client: Awaitable[Any], server: Awaitable[Any]) -> tuple[Any, Any]:
    return await asyncio.gather(client, server)


@pytest.fixture
async def pair(listening: Listening) -> AsyncIterator[tuple[Connection, Peer]]:
    """An open connection and its peer."""
    opening = asyncio.ensure_future(_opened(listening))
    peer = await listening.peer()
    await peer.open()
    connection = await opening
    yield connection, peer
    await connection.close(0.1)


async def _opened(listening: Listening, **options: Any) -> Connection:
    connection: Connection = await listening.connect(**options)
    return connection


async def tokens(peer: Peer) -> None:
    """Run the conversation from the first session to the first token."""
    await peer.begin()
    await peer.attach(40)
    await peer.attach(41)
    await peer.expect(amqp.Flow)
    peer.credit(41, 100)
    _, transfer, payload = await peer.read()
    peer.accept_token(transfer, payload)


async def attached_sender(connection: Connection, peer: Peer, **options: Any) -> Sender:
    async def serve() -> None:
        await tokens(peer)
        await peer.attach(HANDLE)

    sender, _ = await together(connection.attach_sender("q", **options), serve())
    return sender  # type: ignore[no-any-return]


async def attached_receiver(connection: Connection, peer: Peer, on_delivery: Any, **options: Any) -> Receiver:
    async def serve() -> None:
        await tokens(peer)
        await peer.attach(HANDLE)

    receiver, _ = await together(connection.attach_receiver("q", on_delivery, **options), serve())
    return receiver  # type: ignore[no-any-return]


def delivery(number: int, **fields: Any) -> amqp.Transfer:
    return amqp.Transfer(HANDLE, number, number.to_bytes(16, "big"), 0, False)._replace(**fields)


# ---- opening ----


async def test_the_open_frame_names_the_host_without_its_port(pair: tuple[Connection, Peer]) -> None:
    _, peer = pair
    assert peer.opened.hostname == "127.0.0.1"
    assert peer.opened.max_frame_size == 65536
    assert peer.opened.idle_time_out == 60_000


async def test_anonymous_login_is_preferred_over_mssbcbs(listening: Listening) -> None:
    for offered, chosen in ((("MSSBCBS", "ANONYMOUS"), "ANONYMOUS"), (("PLAIN", "MSSBCBS"), "MSSBCBS")):
        opening = asyncio.ensure_future(_opened(listening))
        peer = await listening.peer()
        assert (await peer.log_in(*offered)).mechanism == chosen
        peer.close()
        with pytest.raises(ConnectionLostError):
            await opening


async def test_peer_without_a_known_login_mechanism_is_reported(listening: Listening) -> None:
    opening = asyncio.ensure_future(_opened(listening))
    peer = await listening.peer()
    logging_in = asyncio.ensure_future(peer.log_in("PLAIN"))
    with pytest.raises(AuthenticationFailedError, match="offers none of the SASL mechanisms ANONYMOUS, MSSBCBS"):
        await opening
    with pytest.raises(asyncio.IncompleteReadError):
        await logging_in


async def test_refused_login_raises_authentication_failed(listening: Listening) -> None:
    opening = asyncio.ensure_future(_opened(listening))
    peer = await listening.peer()
    await peer.log_in(code=1)
    with pytest.raises(AuthenticationFailedError, match="refused the login with code 1"):
        await opening


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", AMQP_HEADER, b"AMQP\x00\x00\x09\x01"])
async def test_peer_with_another_protocol_is_reported(listening: Listening, greeting: bytes) -> None:
    opening = asyncio.ensure_future(_opened(listening))
    peer = await listening.peer()
    peer.write_bytes(greeting)
    with pytest.raises(ConnectionLostError, match=r"expected an AMQP 1\.0 header from the peer, got"):
        await opening


async def test_opening_to_a_silent_peer_times_out(listening: Listening) -> None:
    with pytest.raises(AnswerTimeoutError, match=r"was not connected within 0\.1 seconds"):
        await _opened(listening, timeout=0.1)
    peer = await listening.peer()
    with pytest.raises(asyncio.IncompleteReadError):
        await peer.read_bytes(100)  # the socket is gone


async def test_cancelled_opening_leaves_nothing_behind(listening: Listening) -> None:
    opening = asyncio.ensure_future(_opened(listening))
    peer = await listening.peer()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    with pytest.raises(asyncio.IncompleteReadError):
        await peer.read_bytes(100)


# ---- the other's numbers ----


async def test_channels_and_handles_of_the_peer_may_differ_from_ours(pair: tuple[Connection, Peer]) -> None:
    connection, peer = pair
    sender = await attached_sender(connection, peer)
    peer.credit(HANDLE, 1)
    sending = asyncio.ensure_future(sender.deliver(message(), PATIENCE))
    frame = await peer.read()
    assert frame.channel == 0
    assert frame.performative.handle != HANDLE
    assert frame.payload == message()
    peer.write(amqp.Disposition(amqp.ROLE_RECEIVER, frame.performative.delivery_id, None, True, amqp.Accepted()))
    await sending


async def test_deliveries_are_counted_from_the_peers_initial_count(pair: tuple[Connection, Peer]) -> None:
    connection, peer = pair
    inbox = Inbox()
    receiver = await attached_receiver(connection, peer, inbox)
    receiver.add_credit(3)
    flow = await peer.expect(amqp.Flow)
    assert (flow.delivery_count, flow.link_credit) == (5, 3)
    assert flow.next_incoming_id == 8, "the peer began with 7, and has sent one transfer: the token's answer"
    peer.write(delivery(1), message())
    await inbox.take_one()
    receiver.add_credit(1)
    flow = await peer.expect(amqp.Flow)
    assert (flow.delivery_count, flow.link_credit) == (6, 3)
    assert flow.next_incoming_id == 9


async def test_credit_granted_in_one_turn_is_one_flow(pair: tuple[Connection, Peer]) -> None:
    connection, peer = pair
    receiver = await attached_receiver(connection, peer, Inbox())
    for _ in range(10):
        receiver.add_credit(2)
    assert (await peer.expect(amqp.Flow)).link_credit == 20
    await receiver_is_asked(peer)


async def receiver_is_asked(peer: Peer) -> None:
    """The next flow answers an echo: nothing else is in flight."""
    peer.credit(HANDLE, 0, delivery_count=5, link_credit=None, echo=True)
    assert (await peer.expect(amqp.Flow)).link_credit == 20


async def test_deliveries_accepted_in_one_turn_are_settled_as_ranges(pair: tuple[Connection, Peer]) -> None:
    connection, peer = pair
    inbox, outcomes = Inbox(), Outcomes()
    receiver = await attached_receiver(connection, peer, inbox, credit=10)
    await peer.expect(amqp.Flow)
    for number in (1, 2, 3, 4, 6, 7):
        peer.write(delivery(number), message())
    for one in reversed(await inbox.take(6)):
        receiver.settle(one, ACCEPT, outcomes.on(one.id))
    found = [await peer.expect(amqp.Disposition) for _ in range(2)]
    assert [(one.first, one.last) for one in found] == [(1, 4), (6, 7)]
    for one in found:
        assert (one.role, one.settled, one.state) == (amqp.ROLE_RECEIVER, False, amqp.Accepted())
        peer.write(one._replace(role=amqp.ROLE_SENDER, settled=True))
    assert set((await outcomes.all(6)).values()) == {None}


# ---- outcomes ----


@pytest.mark.parametrize(
    ("state", "expected", "condition"),
    [
        (amqp.Rejected(amqp.Error("x:no", "because")), RejectedError, "x:no"),
        (amqp.Rejected(), RejectedError, ""),
        (amqp.Released(), ReleasedError, ""),
        (amqp.Modified(True, False), ModifiedError, ""),
        (None, ReleasedError, ""),
    ],
)
async def test_each_negative_outcome_has_its_own_error(
    pair: tuple[Connection, Peer], state: Any, expected: type[AmqpError], condition: str
) -> None:
    connection, peer = pair
    sender = await attached_sender(connection, peer)
    peer.credit(HANDLE, 1)
    sending = asyncio.ensure_future(sender.deliver(message(), PATIENCE))
    transfer = (await peer.read()).performative
    peer.write(amqp.Disposition(amqp.ROLE_RECEIVER, transfer.delivery_id, None, True, state))
    with pytest.raises(expected) as caught:
        await sending
    assert caught.value.condition == condition


async def test_unsettled_outcome_is_settled_by_the_client(pair: tuple[Connection, Peer]) -> None:
    connection, peer = pair
    sender = await attached_sender(connection, peer)
    peer.credit(HANDLE, 1)
    sending = asyncio.ensure_future(sender.deliver(message(), PATIENCE))
    number = (await peer.read()).performative.delivery_id
    peer.write(amqp.Disposition(amqp.ROLE_RECEIVER, number, None, False, amqp.Received(0, 0)))
    peer.write(amqp.Disposition(amqp.ROLE_RECEIVER, number, None, False, amqp.Accepted()))
    await sending
    settled = await peer.expect(amqp.Disposition)
    assert (settled.role, settled.first, settled.settled) == (amqp.ROLE_SENDER, number, True)


async def test_outcome_range_reaches_only_pending_deliveries(pair: tuple[Connection, Peer]) -> None:
    connection, peer = pair
    sender = await attached_sender(connection, peer)
    peer.credit(HANDLE, 10)
    await sender.wait_for_credit(PATIENCE)
    outcomes = Outcomes()
    for number in range(3):
        sender.send(message(), outcomes.on(number))
    first = (await peer.read()).performative.delivery_id
    peer.write(amqp.Disposition(amqp.ROLE_RECEIVER, first, first + 1_000_000, True, amqp.Accepted()))
    assert await outcomes.all(3) == {0: None, 1: None, 2: None}


async def test_settlement_answered_with_another_outcome_fails(pair: tuple[Connection, Peer]) -> None:
    connection, peer = pair
    inbox, outcomes = Inbox(), Outcomes()
    receiver = await attached_receiver(connection, peer, inbox, credit=10)
    await peer.expect(amqp.Flow)
    for number in (1, 2):
        peer.write(delivery(number), message())
    first, second = await inbox.take(2)
    receiver.settle(first, ACCEPT, outcomes.on("accept"))
    receiver.settle(second, DEFER, outcomes.on("defer"))
    peer.write(amqp.Disposition(amqp.ROLE_SENDER, 1, None, True, amqp.Released()))
    peer.write(amqp.Disposition(amqp.ROLE_SENDER, 2, None, True, amqp.Modified(True, True)))
    seen = await outcomes.all(2)
    assert isinstance(seen["accept"], ReleasedError)
    assert seen["defer"] is None


# ---- flow ----


async def test_an_echo_is_answered_for_the_session_and_for_each_link(pair: tuple[Connection, Peer]) -> None:
    connection, peer = pair
    await attached_sender(connection, peer)
    peer.write(amqp.Flow(0, 1000, 7, 1000, echo=True))
    answer = await peer.expect(amqp.Flow)
    assert (answer.handle, answer.incoming_window, answer.echo) == (None, WINDOW - 1, None)
    peer.credit(HANDLE, 3, echo=True)
    answer = await peer.expect(amqp.Flow)
    assert (answer.delivery_count, answer.link_credit) == (0, 3)


async def test_draining_peer_gets_the_senders_credit_back(pair: tuple[Connection, Peer]) -> None:
    connection, peer = pair
    sender = await attached_sender(connection, peer)
    peer.credit(HANDLE, 30, drain=True)
    answer = await peer.expect(amqp.Flow)
    assert (answer.delivery_count, answer.link_credit, answer.drain) == (30, 0, True)
    assert sender.available == 0


async def test_credit_that_was_used_before_the_flow_arrived_is_not_used_twice(pair: tuple[Connection, Peer]) -> None:
    connection, peer = pair
    sender = await attached_sender(connection, peer)
    peer.credit(HANDLE, 3)
    await sender.wait_for_credit(PATIENCE)
    outcomes = Outcomes()
    sender.send(message(), outcomes.on(0))
    sender.send(message(), outcomes.on(1))
    assert sender.available == 1
    peer.credit(HANDLE, 3)  # written before it saw a transfer
    peer.credit(HANDLE, 3, echo=True)
    while (await peer.read()).performative.__class__ is not amqp.Flow:
        pass
    assert sender.available == 1
    peer.credit(HANDLE, 1, echo=True)  # less than is in flight
    await peer.expect(amqp.Flow)
    assert sender.available == 0


async def test_exhausted_window_holds_frames_back(pair: tuple[Connection, Peer]) -> None:
    connection, peer = pair
    sender = await attached_sender(connection, peer)
    peer.credit(HANDLE, 10, next_incoming_id=1, incoming_window=2)  # the request for the token was frame 0
    await sender.wait_for_credit(PATIENCE)
    payload = message(b"x" * 200_000)
    outcomes = Outcomes()
    sender.send(payload, outcomes.on(0))
    assert sender.available == 0, "the frames of the message fill the window"
    parts = [(await peer.read()) for _ in range(2)]
    assert all(part.performative.more for part in parts)
    peer.write(amqp.Flow(3, 1, 7, 1000))
    parts.append(await peer.read())
    peer.write(amqp.Flow(4, 100, 7, 1000))
    parts.append(await peer.read())
    assert not parts[-1].performative.more
    assert b"".join(part.payload for part in parts) == payload
    await eventually(lambda: sender.available > 0)


async def test_own_window_is_reopened_before_it_is_exhausted(pair: tuple[Connection, Peer]) -> None:
    connection, peer = pair
    inbox = Inbox()
    await attached_receiver(connection, peer, inbox, credit=WINDOW)
    await peer.expect(amqp.Flow)
    for number in range(WINDOW // 2):
        peer.write(delivery(number + 1), b"\x00\x53\x75\xa0\x00")
    flow = await peer.expect(amqp.Flow)
    assert (flow.handle, flow.incoming_window) == (None, WINDOW)


async def test_frames_respect_the_peers_maximum_size(listening: Listening) -> None:
    opening = asyncio.ensure_future(_opened(listening))
    peer = await listening.peer()
    await peer.open(max_frame_size=512)
    connection = await opening
    sender = await attached_sender(connection, peer)
    peer.credit(HANDLE, 1)
    await sender.wait_for_credit(PATIENCE)
    sender.send(message(b"x" * 2000), Outcomes().on(0))
    frames = [await peer.read()]
    while frames[-1].performative.more:
        frames.append(await peer.read())
    assert len(frames) > 4
    assert b"".join(one.payload for one in frames) == message(b"x" * 2000)
    await connection.close(0.1)


# ---- life ----


async def test_empty_frames_keep_a_quiet_connection_alive(listening: Listening) -> None:
    opening = asyncio.ensure_future(_opened(listening))
    peer = await listening.peer()
    await peer.open(idle_time_out=200)
    connection = await opening
    reading = asyncio.ensure_future(peer.read())
    await eventually(lambda: peer.empty_frames >= 3)
    closing = asyncio.ensure_future(connection.close(0.1))
    assert type((await reading).performative) is amqp.Close
    await closing


async def test_silent_peer_loses_the_connection_after_the_idle_timeout(listening: Listening) -> None:
    opening = asyncio.ensure_future(_opened(listening, idle_timeout=0.3))
    peer = await listening.peer()
    await peer.open()
    connection = await opening
    assert peer.opened.idle_time_out == 150
    error = await asyncio.wait_for(connection.wait_lost(), PATIENCE)
    assert isinstance(error, ConnectionLostError)
    assert error.description == "the peer sent nothing for 0.3 seconds"


async def test_empty_frames_of_the_peer_reset_the_idle_timeout(listening: Listening) -> None:
    opening = asyncio.ensure_future(_opened(listening, idle_timeout=1.0))
    peer = await listening.peer()
    await peer.open()
    connection = await opening
    start = connection.last_activity
    while connection.last_activity < start + 1.5:
        assert connection.error is None
        peer.write_bytes(EMPTY_FRAME)
        await asyncio.sleep(0.02)
    await connection.close(0.1)


# ---- broken rules ----


def too_large(peer: Peer) -> None:
    peer.write_bytes(b"\x00\x10\x00\x00\x02\x00\x00\x00")


def nonsense(peer: Peer) -> None:
    peer.write_bytes(b"\x00\x00\x00\x0c\x02\x00\x00\x00\xff\xff\xff\xff")


def second_open(peer: Peer) -> None:
    peer.write(amqp.Open("again"), channel=0)


def uninvited_session(peer: Peer) -> None:
    peer.write(amqp.Begin(None, 0, 10, 10), channel=3)


@pytest.mark.parametrize("violation", [too_large, nonsense, second_open, uninvited_session])
async def test_protocol_violation_closes_the_connection_with_a_reason(
    pair: tuple[Connection, Peer], violation: Callable[[Peer], None]
) -> None:
    connection, peer = pair
    sender = await attached_sender(connection, peer)
    violation(peer)
    close = await peer.expect(amqp.Close)
    assert close.error.condition.startswith("amqp:")
    error = await asyncio.wait_for(connection.wait_lost(), PATIENCE)
    assert "broke the protocol" in error.description
    assert sender.error is error


async def test_a_message_without_credit_detaches_the_link(pair: tuple[Connection, Peer]) -> None:
    connection, peer = pair
    inbox = Inbox()
    receiver = await attached_receiver(connection, peer, inbox)
    peer.write(delivery(1), message())
    detach = await peer.expect(amqp.Detach)
    assert detach.error.condition == "amqp:link:transfer-limit-exceeded"
    assert isinstance(receiver.error, LinkDetachedError)
    assert len(inbox) == 0
    assert connection.error is None


async def test_a_message_without_a_delivery_id_detaches_the_link(pair: tuple[Connection, Peer]) -> None:
    connection, peer = pair
    receiver = await attached_receiver(connection, peer, Inbox(), credit=1)
    await peer.expect(amqp.Flow)
    peer.write(delivery(1, delivery_id=None), message())
    assert (await peer.expect(amqp.Detach)).error.condition == "amqp:invalid-field"
    assert isinstance(receiver.error, LinkDetachedError)


async def test_node_that_refuses_one_link_gets_no_attach_for_the_other(pair: tuple[Connection, Peer]) -> None:
    connection, peer = pair

    async def serve() -> None:
        await tokens(peer)
        await peer.attach(50, source=None, target=None)
        peer.write(amqp.Detach(50, True, amqp.Error("x:no", "not here")))
        await peer.expect(amqp.Detach)

    serving = asyncio.ensure_future(serve())
    with pytest.raises(LinkDetachedError, match="not here"):
        await connection.management("q")
    await serving
    peer.write(amqp.Flow(0, 1000, 7, 1000, echo=True))
    await peer.expect(amqp.Flow)  # and no detach of a link that was never attached


async def test_transfers_beyond_our_window_end_the_session(pair: tuple[Connection, Peer]) -> None:
    connection, peer = pair
    ends: list[AmqpError] = []

    def stop_the_window(one: Any) -> None:
        connection._sessions[0]._window = 0  # as if it had not been reopened

    await attached_receiver(connection, peer, stop_the_window, credit=10, on_end=ends.append)
    await peer.expect(amqp.Flow)
    session = connection._sessions[0]
    session._window = 0
    peer.write(delivery(1), message())
    end = await peer.expect(amqp.End)
    assert end.error.condition == "amqp:session:window-violation"
    assert [error.condition for error in ends] == ["amqp:session:window-violation"]
    peer.write(amqp.End())
    assert connection.error is None


async def test_session_ended_by_the_peer_ends_its_links_and_a_new_one_is_begun(
    pair: tuple[Connection, Peer],
) -> None:
    connection, peer = pair
    sender = await attached_sender(connection, peer)
    peer.write(amqp.End(amqp.Error("x:over", "no more")))
    await peer.expect(amqp.End)
    assert isinstance(sender.error, LinkDetachedError)
    assert sender.error.condition == "x:over"
    again = await attached_sender(connection, peer)
    assert again.error is None


async def test_close_of_the_peer_is_answered_and_its_reason_kept(pair: tuple[Connection, Peer]) -> None:
    connection, peer = pair
    peer.write(amqp.Close(amqp.Error("amqp:connection:forced", "maintenance", {})), channel=0)
    await peer.expect(amqp.Close)
    error = await asyncio.wait_for(connection.wait_lost(), PATIENCE)
    assert (error.condition, error.description) == ("amqp:connection:forced", "maintenance")


async def test_frames_on_an_ended_channel_are_ignored(pair: tuple[Connection, Peer]) -> None:
    connection, peer = pair
    await attached_sender(connection, peer)
    peer.write(amqp.End())
    await peer.expect(amqp.End)
    peer.write(amqp.Flow(0, 10, 0, 10, echo=True), channel=CHANNEL)
    again = await attached_sender(connection, peer)
    assert again.error is None


async def test_unanswered_link_is_given_up_while_the_peer_is_alive(pair: tuple[Connection, Peer]) -> None:
    connection, peer = pair
    sender = await attached_sender(connection, peer)

    async def alive() -> None:
        while True:
            peer.write_bytes(EMPTY_FRAME)
            await asyncio.sleep(0.01)

    living = asyncio.ensure_future(alive())
    with pytest.raises(AnswerTimeoutError, match="'q' was not attached within"):
        await connection.attach_sender("q", seconds=0.5)
    living.cancel()
    assert (await peer.expect(amqp.Attach)).name
    assert type((await peer.read()).performative) is amqp.Detach
    assert sender.error is None
    assert connection.error is None


async def test_unanswered_link_ends_the_connection_of_a_silent_peer(
    pair: tuple[Connection, Peer],
) -> None:
    connection, peer = pair
    sender = await attached_sender(connection, peer)
    with pytest.raises(AnswerTimeoutError):
        await connection.attach_sender("q", seconds=0.2)
    assert isinstance(await connection.wait_lost(), AnswerTimeoutError)
    assert isinstance(sender.error, AnswerTimeoutError)
