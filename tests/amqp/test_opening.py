"""Opening and closing connections: TLS, refusals, timeouts, leaks."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.syphon.bus import PATIENCE, Inbox, Outcomes, body_of, connect, eventually, message, receive

from twinbus.emulator import AZURE, Fault, FaultKind, FaultPoint, Namespace, QueueDescription
from twinbus.syphon import (
    AnswerTimeoutError,
    Connection,
    ConnectionLostError,
    Endpoint,
    LinkDetachedError,
    from_connection_string,
)

ON_CONNECT = frozenset({FaultPoint.CONNECT})


def open_sockets() -> int:
    """The number of open sockets of this process."""
    gc.collect()
    links = []
    for entry in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{entry}"))
        except FileNotFoundError:
            continue  # the listing's own
    return sum(link.startswith("socket:") for link in links)


# ---- TLS ----


@pytest.fixture
async def secure(tmp_path: Path) -> AsyncIterator[Namespace]:
    async with Namespace("contoso", profile=AZURE, certificate_folder=tmp_path) as running:
        await running.create(QueueDescription("orders"))
        yield running


def trusting(namespace: Namespace) -> ssl.SSLContext:
    assert namespace.certificate is not None
    return ssl.create_default_context(cafile=str(namespace.certificate.ca_file))


def tls(namespace: Namespace, host: str, **options: Any) -> Any:
    _, credential = from_connection_string(namespace.connection_string)
    return Connection.open(Endpoint(host, namespace.port), credential, **{"timeout": PATIENCE, **options})


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_messages_are_sent_and_received_over_tls(secure: Namespace, host: str) -> None:
    async with tls(secure, host, ssl_context=trusting(secure)) as connection:
        sender = await connection.attach_sender("orders")
        await sender.deliver(message(b"x" * 200_000), PATIENCE)
        _, inbox = await receive(connection, "orders", 1)
        assert len(body_of((await inbox.take_one()).payload)) == 200_000


async def test_tls_handshake_has_the_host_name(secure: Namespace) -> None:
    names: list[str | None] = []
    context = secure._tls
    assert context is not None
    context.sni_callback = lambda _socket, name, _context: names.append(name)  # type: ignore[assignment]
    async with tls(secure, "localhost", ssl_context=trusting(secure)):
        pass
    assert names == ["localhost"]


async def test_untrusted_certificate_is_refused(secure: Namespace) -> None:
    with pytest.raises(ConnectionLostError, match="cannot be reached") as caught:
        await tls(secure, "localhost")
    assert isinstance(caught.value.__cause__, ssl.SSLCertVerificationError)


async def test_tls_into_a_plain_port_is_refused() -> None:
    async with Namespace("contoso") as namespace:
        with pytest.raises(ConnectionLostError):
            await tls(namespace, "localhost")


# ---- what may go wrong ----


async def test_refused_connection_raises_connection_lost() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = Endpoint("127.0.0.1", unused.getsockname()[1], tls=False)
        with pytest.raises(ConnectionLostError, match="cannot be reached") as caught:
            await Connection.open(endpoint, Credential(), timeout=PATIENCE)
        assert isinstance(caught.value.__cause__, ConnectionRefusedError)


class Credential:
    async def token(self, audience: str) -> Any:
        raise AssertionError("no token should be requested")


@pytest.mark.parametrize("host", ["nowhere.invalid", "x" * 70 + ".invalid"])
async def test_unknown_host_name_raises_connection_lost(host: str) -> None:
    with pytest.raises((ConnectionLostError, AnswerTimeoutError)):
        await Connection.open(Endpoint(host, tls=False), Credential(), timeout=PATIENCE)


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "tls"])
async def test_connecting_to_a_black_hole_times_out_and_leaves_no_socket(secure: Namespace, plain: bool) -> None:
    secure.faults.add(Fault(FaultKind.BLACKHOLE))
    context = trusting(secure)
    before = open_sockets()
    opening = connect(secure, timeout=0.2) if plain else tls(secure, "localhost", timeout=0.2, ssl_context=context)
    with pytest.raises(AnswerTimeoutError, match=r"was not connected within 0\.2 seconds"):
        await opening
    for _ in range(3):
        await asyncio.sleep(0)
    assert open_sockets() <= before + 1, "the namespace keeps its end"
    secure.faults.clear()


async def test_connection_cut_while_opening_raises_connection_lost(secure: Namespace) -> None:
    secure.faults.add(Fault(FaultKind.RESET, on=ON_CONNECT, count=1))
    with pytest.raises(ConnectionLostError):
        await connect(secure)
    async with connect(secure) as connection:
        assert connection.error is None


async def test_attaching_to_a_black_hole_times_out(secure: Namespace) -> None:
    async with connect(secure) as connection:
        await connection.attach_sender("orders")
        secure.faults.add(Fault(FaultKind.BLACKHOLE))
        with pytest.raises(AnswerTimeoutError):
            await connection.attach_sender("orders", seconds=0.2)
        assert isinstance(await connection.wait_lost(), AnswerTimeoutError)
        secure.faults.clear()


async def test_entity_that_ignores_attaches_does_not_affect_others(secure: Namespace) -> None:
    await secure.create(QueueDescription("silent"))
    async with connect(secure) as connection:
        orders = await connection.attach_sender("orders")
        secure.faults.add(Fault(FaultKind.BLACKHOLE, "silent", frozenset({FaultPoint.ATTACH})))
        with pytest.raises(AnswerTimeoutError, match="'silent' was not attached"):
            await connection.attach_sender("silent", seconds=1.0)
        await orders.deliver(message(), PATIENCE)
        assert connection.error is None
        secure.faults.clear()
        late = await connection.attach_sender("silent")
        await late.deliver(message(), PATIENCE)


@pytest.mark.parametrize("name", ["timeout", "outcome_timeout", "idle_timeout"])
@pytest.mark.parametrize("seconds", [0, -1, 86_401, float("nan")])
def test_timeout_out_of_bounds_is_refused(name: str, seconds: float) -> None:
    options: dict[str, Any] = {name: seconds}
    with pytest.raises(ValueError, match=f"{name} must be above 0 and at most 86400 seconds"):
        Connection.open(Endpoint("host"), Credential(), **options)


# ---- ends ----


async def test_closing_leaves_no_task_and_no_socket(secure: Namespace) -> None:
    tasks, sockets = asyncio.all_tasks(), open_sockets()
    for opening in (connect(secure), tls(secure, "localhost", ssl_context=trusting(secure))):
        async with opening as connection:
            sender = await connection.attach_sender("orders")
            await sender.deliver(message(), PATIENCE)
            await connection.attach_receiver("orders", Inbox(), credit=10)
            await connection.management("orders")
            assert open_sockets() > sockets
        await eventually(lambda: not secure.connections and asyncio.all_tasks() == tasks)
    assert open_sockets() == sockets


async def test_close_sends_a_close_frame_and_may_be_repeated(secure: Namespace) -> None:
    connection = await connect(secure)
    await asyncio.gather(connection.close(), connection.close())
    await connection.close()
    assert not secure.connections
    with pytest.raises(ConnectionLostError, match="closed here"):
        await connection.attach_sender("orders")


async def test_closing_a_connection_fails_what_is_pending(secure: Namespace) -> None:
    outcomes, ends = Outcomes(), Outcomes()
    connection = await connect(secure)
    sender = await connection.attach_sender("orders", on_end=ends.on("end"))
    await sender.wait_for_credit(PATIENCE)
    secure.faults.add(Fault(FaultKind.BLACKHOLE, "orders", frozenset({FaultPoint.SEND})))
    sender.send(message(), outcomes.on(0))
    await connection.close()
    assert isinstance((await outcomes.all(1))[0], ConnectionLostError)
    assert isinstance((await ends.all(1))["end"], ConnectionLostError)


async def test_close_does_not_wait_for_a_silent_peer(secure: Namespace) -> None:
    connection = await connect(secure)
    secure.faults.add(Fault(FaultKind.BLACKHOLE))
    await connection.close(0.1)
    assert isinstance(connection.error, ConnectionLostError)
    secure.faults.clear()


async def test_abort_ends_the_connection_at_once(secure: Namespace) -> None:
    connection = await connect(secure)
    connection.abort()
    assert str(await connection.wait_lost()) == "the connection was aborted here"
    await connection.close()


async def test_new_connection_works_after_a_lost_one(secure: Namespace) -> None:
    async with connect(secure) as connection:
        sender = await connection.attach_sender("orders")
        await sender.deliver(message(b"before"), PATIENCE)
        secure.faults.add(Fault(FaultKind.RESET))
        secure.faults.clear()
        assert isinstance(await connection.wait_lost(), ConnectionLostError)
    async with connect(secure) as connection:
        sender = await connection.attach_sender("orders")
        await sender.deliver(message(b"after"), PATIENCE)
        _, inbox = await receive(connection, "orders", 2)
        assert [body_of(delivery.payload) for delivery in await inbox.take(2)] == [b"before", b"after"]


async def test_raising_end_callback_does_not_stop_the_other_callbacks(secure: Namespace) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    connection = await connect(secure)
    sender = await connection.attach_sender("orders")
    await sender.wait_for_credit(PATIENCE)
    secure.faults.add(Fault(FaultKind.BLACKHOLE, "orders", frozenset({FaultPoint.SEND})))
    outcomes = Outcomes()

    def broken(error: object) -> None:
        raise KeyError("a mistake in the pump")

    sender.send(message(), broken)
    sender.send(message(), outcomes.on(1))
    await sender.close(0.1)
    assert isinstance((await outcomes.all(1))[1], LinkDetachedError)
    assert [type(context["exception"]) for context in reported] == [KeyError]
    await connection.close()
