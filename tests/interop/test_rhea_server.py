"""The AMQP client with a third-party server, so that client and namespace cannot share a mistake."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.interop.node import Script
from tests.syphon.bus import PATIENCE, Outcomes, body_of, eventually, message, receive

from twinbus.syphon import (
    ACCEPT,
    DEFER,
    RELEASE,
    AmqpError,
    Connection,
    Endpoint,
    LinkDetachedError,
    ModifiedError,
    RejectedError,
    ReleasedError,
    SasKey,
    dead_letter,
)

LARGE = 200_000


@pytest.fixture
async def server(node_modules: Path) -> AsyncIterator[Script]:
    async with Script(node_modules, "rhea_server.js") as running:
        yield running


@pytest.fixture
async def connection(server: Script) -> AsyncIterator[Connection]:
    port = (await server.until("listening"))["port"]
    endpoint = Endpoint("127.0.0.1", port, tls=False)
    async with Connection.open(endpoint, SasKey("policy", "key"), timeout=PATIENCE) as opened:
        yield opened


async def test_rhea_server_understands_our_open_frame(server: Script, connection: Connection) -> None:
    opened = await server.until("open")
    assert (opened["hostname"], opened["frame"], opened["idle"]) == ("127.0.0.1", 65536, 60_000)
    await connection.attach_sender("q")
    token = await server.until("token")
    assert token["operation"] == "put-token"
    assert token["type"] == "servicebus.windows.net:sastoken"
    assert token["name"] == connection.endpoint.audience("q")
    assert token["token"] == "SharedAccessSignature"
    await connection.close()
    await server.until("connection_close")


async def test_each_message_gets_the_servers_outcome(server: Script, connection: Connection) -> None:
    sender = await connection.attach_sender("q")
    await sender.wait_for_credit(PATIENCE)
    outcomes = Outcomes()
    seen: dict[str, AmqpError | None] = {}
    for asked in ("accept", "reject", "release", "modify"):
        # One at a time: rhea merges the outcomes of two deliveries that it settles together, even if they differ.
        sender.send(message(asked.encode(), asked), outcomes.on(asked))
        seen = await outcomes.all(len(seen) + 1)
    assert seen["accept"] is None
    rejected = seen["reject"]
    assert isinstance(rejected, RejectedError)
    assert (rejected.condition, rejected.description) == ("rhea:no", "not this one")
    assert isinstance(seen["release"], ReleasedError)
    assert isinstance(seen["modify"], ModifiedError)
    ids = [(await server.until("message"))["id"] for _ in range(4)]
    assert ids == ["accept", "reject", "release", "modify"]


async def test_large_message_arrives_whole_in_frames_of_4096_bytes(server: Script, connection: Connection) -> None:
    sender = await connection.attach_sender("q")
    await sender.deliver(message(b"x" * LARGE), PATIENCE)
    assert (await server.until("message"))["size"] == LARGE


async def test_thousands_of_messages_stay_within_the_credit_and_the_window(
    server: Script, connection: Connection
) -> None:
    sender = await connection.attach_sender("q")
    outcomes = Outcomes()
    for number in range(5000):
        await sender.wait_for_credit(PATIENCE)
        sender.send(message(b"accept", str(number)), outcomes.on(number))
    assert set((await outcomes.all(5000)).values()) == {None}
    assert [(await server.until("message"))["id"] for _ in range(5000)] == [str(number) for number in range(5000)]


async def test_messages_from_the_server_are_settled_in_every_way(server: Script, connection: Connection) -> None:
    receiver, inbox = await receive(connection, "q", 4)
    one, two, three, four = await inbox.take(4)
    assert [body_of(each.payload) for each in (one, two, three)] == [b"one", b"two", b"three"]
    assert len(body_of(four.payload)) == LARGE
    assert one.tag == b"tag-0-0123456789"

    await receiver.settled(one, ACCEPT, PATIENCE)
    assert not (await server.until("accepted"))["settled"], "the receiver settles second"
    await receiver.settled(two, DEFER, PATIENCE)
    modified = await server.until("modified")
    assert (modified["failed"], modified["undeliverable"]) == (True, True)
    await receiver.settled(three, dead_letter("Poison", "no handler"), PATIENCE)
    error = (await server.until("rejected"))["error"]
    assert error["condition"] == "com.microsoft:dead-letter"
    assert error["info"] == {"DeadLetterReason": "Poison", "DeadLetterErrorDescription": "no handler"}
    await receiver.settled(four, RELEASE, PATIENCE)
    await server.until("released")
    await receiver.close()
    await server.until("sender_close")


async def test_server_respects_our_credit_and_returns_it(server: Script, connection: Connection) -> None:
    receiver, inbox = await receive(connection, "q", 2)
    await inbox.take(2)
    assert receiver.credit == 0
    receiver.add_credit(10)
    await inbox.take(2)
    assert receiver.credit == 8
    await receiver.stop(PATIENCE)
    assert receiver.credit == 0


async def test_link_refused_or_ended_by_the_server_has_a_reason(server: Script, connection: Connection) -> None:
    ends: list[object] = []
    refused = await connection.attach_receiver("forbidden", ends.append, on_end=ends.append)
    await eventually(lambda: refused.error is not None)
    assert isinstance(refused.error, LinkDetachedError)
    assert (refused.error.condition, refused.error.description) == ("amqp:unauthorized-access", "not for you")
    sender = await connection.attach_sender("q")
    with pytest.raises(LinkDetachedError) as caught:
        await sender.deliver(message(b"detach"), PATIENCE)
    assert (caught.value.condition, caught.value.description) == ("rhea:gone", "the link is closed")
    again = await connection.attach_sender("q")
    await again.deliver(message(b"accept"), PATIENCE)


async def test_a_quiet_connection_is_kept_alive(server: Script, connection: Connection) -> None:
    """The server drops a client that sends nothing for four seconds."""
    sender = await connection.attach_sender("q")
    await eventually(lambda: sender.idle_seconds > 6)
    assert connection.error is None
    await sender.deliver(message(b"accept"), PATIENCE)
