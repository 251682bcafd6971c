"""Rules that the azure profile enforces and the default profile does not."""

from __future__ import annotations

import pytest
from tests.emulator.frame_peer import ConnectionEndedError, Peer, receiver_attach, sender_attach, transfer
from tests.emulator.profile.conftest import QUEUE, Serve
from tests.emulator.raw_client import RawClient, encoded_message

from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec.frames import AMQP_HEADER, SASL_HEADER
from twinbus.emulator import Namespace, QueueDescription


async def count_accepted(peer: Peer, count: int) -> int:
    """How many of `count` deliveries are accepted before another frame arrives."""
    accepted = 0
    while accepted < count:
        answer = await peer.expect((amqp.Disposition, amqp.Detach, amqp.End))  # type: ignore[arg-type]
        if not isinstance(answer, amqp.Disposition):
            return accepted
        accepted += (answer.last if answer.last is not None else answer.first) - answer.first + 1
    return accepted


async def test_the_service_announces_its_limits(serve: Serve) -> None:
    async with Peer(await serve()) as peer:
        opened = await peer.open()
        assert (opened.max_frame_size, opened.channel_max, opened.idle_time_out) == (65536, 4999, 120_000)
        begun = await peer.begin()
        assert (begun.incoming_window, begun.handle_max) == (5000, 255)
        credit = await peer.attach_sender(QUEUE)
        assert credit.link_credit == 1000


# ---- frames ----


async def test_a_frame_larger_than_agreed_closes_the_connection(serve: Serve) -> None:
    async with Peer(await serve()) as peer:
        await peer.open()
        await peer.begin()
        await peer.attach_sender(QUEUE)
        peer.write(transfer(0, payload=bytes(65536)))
        assert await peer.close_error() == "amqp:connection:framing-error"


async def test_a_channel_beyond_the_highest_closes_the_connection(serve: Serve) -> None:
    async with Peer(await serve(channel_max=3)) as peer:
        await peer.open()
        await peer.begin(channel=3)
        peer.send(amqp.Begin(None, 0, 100, 100), channel=4)
        assert await peer.close_error() == "amqp:not-allowed"


async def test_a_handle_beyond_the_highest_closes_the_connection(serve: Serve) -> None:
    async with Peer(await serve(handle_max=3)) as peer:
        await peer.open()
        await peer.begin()
        await peer.attach_sender(QUEUE, handle=3)
        peer.send(sender_attach(QUEUE, handle=4))
        assert await peer.close_error() == "amqp:not-allowed"


# ---- the session window ----


async def test_transfers_beyond_the_window_end_the_session(serve: Serve) -> None:
    namespace = await serve(incoming_window=10)
    async with Peer(namespace) as peer:
        await peer.open()
        await peer.begin()
        await peer.attach_sender(QUEUE)
        peer.write(*(transfer(number) for number in range(11)))
        ended = await peer.expect(amqp.End)
        assert isinstance(ended.error, amqp.Error)
        assert ended.error.condition == "amqp:session:window-violation"
        await peer.begin()  # the connection stays usable


async def test_session_window_is_renewed_for_transfers_within_it(serve: Serve) -> None:
    async with Peer(await serve(incoming_window=10)) as peer:
        await peer.open()
        await peer.begin()
        await peer.attach_sender(QUEUE)
        allowed, sent = 10, 0
        while allowed > sent:
            peer.write(*(transfer(number) for number in range(sent, allowed)))
            sent = allowed
            if sent < 100:
                flow = await peer.expect(amqp.Flow)
                assert flow.next_incoming_id is not None
                allowed = min(100, flow.next_incoming_id + flow.incoming_window)
        assert sent == 100
        assert await count_accepted(peer, 1) > 0


# ---- link credit ----


async def test_a_message_without_credit_detaches_the_link(serve: Serve) -> None:
    async with Peer(await serve(sender_credit=5)) as peer:
        await peer.open()
        await peer.begin()
        credit = await peer.attach_sender(QUEUE)
        assert credit.link_credit == 5
        peer.write(*(transfer(number) for number in range(6)))
        detached = await peer.expect(amqp.Detach)
        assert detached.error.condition == "amqp:link:transfer-limit-exceeded"


async def test_link_credit_is_renewed_for_a_client_that_respects_it(serve: Serve) -> None:
    namespace = await serve(sender_credit=5, throttle=None)
    async with RawClient(namespace.connection_string) as client:
        await client.put_token(QUEUE)
        sender = await client.sender(QUEUE)
        for number in range(50):
            await sender.send(encoded_message(str(number)))


@pytest.mark.parametrize("credit", [1, 7, 100])
async def test_link_credit_is_renewed_for_a_client_that_uses_all_of_it(serve: Serve, credit: int) -> None:
    """The client uses all of its credit repeatedly. Azure was seen to give 100, less than the profile."""
    async with Peer(await serve(sender_credit=credit, throttle=None)) as peer:
        await peer.open()
        await peer.begin()
        allowed = (await peer.attach_sender(QUEUE)).link_credit
        assert allowed == credit
        sent = accepted = 0
        while accepted < 300:
            peer.write(*(transfer(number) for number in range(sent, allowed)))
            sent = allowed
            answer = await peer.expect((amqp.Flow, amqp.Disposition, amqp.Detach))  # type: ignore[arg-type]
            if isinstance(answer, amqp.Flow):
                assert answer.delivery_count is not None
                assert answer.link_credit is not None
                allowed = max(sent, min(300, answer.delivery_count + answer.link_credit))
            else:
                assert isinstance(answer, amqp.Disposition)
                assert isinstance(answer.state, amqp.Accepted)
                accepted += (answer.last if answer.last is not None else answer.first) - answer.first + 1


async def test_default_profile_allows_exceeding_credit_and_window() -> None:
    async with Namespace("contoso") as namespace, Peer(namespace) as peer:
        await namespace.create(QueueDescription(QUEUE))
        await peer.open()
        await peer.begin()
        credit = (await peer.attach_sender(QUEUE)).link_credit
        assert credit is not None
        peer.write(*(transfer(number) for number in range(credit + 100)))
        assert await count_accepted(peer, credit + 100) == credit + 100


# ---- SASL, tokens and host names ----


async def test_amqp_without_sasl_is_answered_with_the_sasl_header(serve: Serve) -> None:
    async with Peer(await serve()) as peer:
        peer.write(AMQP_HEADER)
        assert await peer.header() == SASL_HEADER
        with pytest.raises(ConnectionEndedError):
            await peer.next()


async def test_default_profile_accepts_amqp_without_sasl() -> None:
    async with Namespace("contoso") as namespace, Peer(namespace) as peer:
        peer.write(AMQP_HEADER)
        assert await peer.header() == AMQP_HEADER


@pytest.mark.parametrize(
    "attach", [sender_attach(QUEUE), receiver_attach(QUEUE), sender_attach(f"{QUEUE}/$management")]
)
async def test_a_link_without_a_token_is_refused(serve: Serve, attach: amqp.Attach) -> None:
    async with Peer(await serve()) as peer:
        await peer.open("ANONYMOUS")
        await peer.begin()
        peer.send(attach)
        refused = await peer.expect(amqp.Attach)
        assert (refused.source, refused.target) == (None, None)
        error = (await peer.expect(amqp.Detach)).error
        assert error.condition == "amqp:unauthorized-access"
        assert "claim(s) are required to perform this operation" in error.description


@pytest.mark.parametrize(
    ("host", "condition"),
    [
        (None, "amqp:invalid-field"),
        ("", "amqp:invalid-field"),
        ("elsewhere.servicebus.windows.net", "amqp:not-found"),
        ("x" * 3000, "amqp:not-found"),
    ],
)
async def test_a_wrong_host_is_refused(serve: Serve, host: str | None, condition: str) -> None:
    async with Peer(await serve()) as peer:
        await peer.authenticate()
        peer.write(AMQP_HEADER)
        peer.send(amqp.Open("peer", hostname=host))
        await peer.header()
        assert await peer.close_error() == condition


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:5672",
        "localhost",
        "LOCALHOST:1",
        "::1",
        "[::1]",
        "contoso",
        "contoso.servicebus.windows.net",
    ],
)
async def test_names_of_the_namespace_are_accepted_as_host(serve: Serve, host: str) -> None:
    async with Peer(await serve()) as peer:
        await peer.open(hostname=host)
