"""One port serves AMQP and HTTP, plain and over TLS."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from azure.core.credentials import AccessToken
from azure.servicebus import ServiceBusClient as SyncServiceBusClient
from azure.servicebus import ServiceBusMessage, TransportType
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.exceptions import ServiceBusConnectionError, ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient as SyncAdministrationClient
from tests.emulator.faults.bench import SHORT, until
from tests.emulator.frame_peer import Peer
from tests.emulator.wire import async_administration

from twinbus.amqp.codec.frames import SASL_HEADER
from twinbus.emulator import Fault, FaultKind, Namespace, NamespaceConfig, QueueDescription
from twinbus.emulator.auth.security import BearerToken
from twinbus.emulator.server import websocket
from twinbus.servicebus.access_rights import ALL_RIGHTS

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

QUEUE = "orders"
BEARER = "for-tests-only"
CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def namespace(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Namespace]:
    config = NamespaceConfig("contoso", port=0, bearer_tokens=(BearerToken(BEARER, ALL_RIGHTS),))
    async with Namespace(config, certificate_folder=tmp_path_factory.mktemp("tls")) as running:
        await running.create(QueueDescription(QUEUE))
        yield running


def ca_file(namespace: Namespace) -> str:
    assert namespace.certificate is not None
    return str(namespace.certificate.ca_file)


def over_tls(namespace: Namespace, transport: TransportType = TransportType.Amqp) -> tuple[str, dict[str, object]]:
    """SDK options for TLS. Without the emulator switch the SDK drops the port, so the address must be given."""
    text = namespace.connection_string.removesuffix(";UseDevelopmentEmulator=true")
    options = {
        "connection_verify": ca_file(namespace),
        "custom_endpoint_address": f"sb://127.0.0.1:{namespace.port}",
        "transport_type": transport,
        "retry_total": 0,
    }
    return text.replace(f":{namespace.port}", ""), options


def in_plain_websockets(namespace: Namespace) -> dict[str, object]:
    """SDK options for WebSockets. From the connection string the SDK takes the host but not the port."""
    address = f"sb://127.0.0.1:{namespace.port}"
    return {
        "transport_type": TransportType.AmqpOverWebsocket,
        "custom_endpoint_address": address,
        "retry_total": 0,
    }


async def exchange(client: ServiceBusClient) -> None:
    async with client, client.get_queue_sender(QUEUE) as sender, client.get_queue_receiver(QUEUE) as receiver:
        await sender.send_messages(ServiceBusMessage("x"))
        (message,) = await receiver.receive_messages(max_wait_time=5)
        await receiver.complete_message(message)


async def test_amqp_in_plain_text(namespace: Namespace) -> None:
    await exchange(ServiceBusClient.from_connection_string(namespace.connection_string, retry_total=0))


@pytest.mark.parametrize("transport", TransportType)
async def test_amqp_over_tls_and_over_websockets(namespace: Namespace, transport: TransportType) -> None:
    text, options = over_tls(namespace, transport)
    await exchange(ServiceBusClient.from_connection_string(text, **options))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the segment size")
async def test_segment_size_of_a_tls_connection_can_be_set_again(namespace: Namespace) -> None:
    """The SDK's asyncio client before 7.15 reads the segment size after the handshake and sets it again."""
    context = ssl.create_default_context(cafile=ca_file(namespace))
    _, writer = await asyncio.open_connection("127.0.0.1", namespace.port, ssl=context)
    connected = writer.get_extra_info("socket")
    size = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, size)
    writer.close()
    await writer.wait_closed()


@pytest.mark.filterwarnings("ignore:ssl=None is deprecated")  # the SDK passes ssl=None to aiohttp
async def test_amqp_over_plain_websockets(namespace: Namespace) -> None:
    options = in_plain_websockets(namespace)
    await exchange(ServiceBusClient.from_connection_string(namespace.connection_string, **options))


def exchanged(client: SyncServiceBusClient) -> int:
    """Send and receive a large message with the synchronous client; returns its body."""
    with (
        client,
        client.get_queue_sender(QUEUE) as sender,
        client.get_queue_receiver(QUEUE) as receiver,
    ):
        sender.send_messages(ServiceBusMessage(b"x" * 200_000))  # several frames, many TLS records
        (message,) = receiver.receive_messages(max_wait_time=5)
        receiver.complete_message(message)
        return len(b"".join(message.body))


@pytest.mark.parametrize("transport", TransportType)
async def test_amqp_over_tls_with_the_synchronous_client(namespace: Namespace, transport: TransportType) -> None:
    text, options = over_tls(namespace, transport)
    client = SyncServiceBusClient.from_connection_string(text, **options)
    assert await asyncio.to_thread(exchanged, client) == 200_000


async def test_amqp_over_plain_websockets_with_the_synchronous_client(namespace: Namespace) -> None:
    options = in_plain_websockets(namespace)
    client = SyncServiceBusClient.from_connection_string(namespace.connection_string, **options)
    assert await asyncio.to_thread(exchanged, client) == 200_000


class Credential:
    """A token credential of the synchronous client."""

    def get_token(self, *scopes: str, **options: object) -> AccessToken:
        return AccessToken(BEARER, int(time.time()) + 3600)


class AsyncCredential:
    async def get_token(self, *scopes: str, **options: object) -> AccessToken:
        return AccessToken(BEARER, int(time.time()) + 3600)


@pytest.mark.parametrize("transport", TransportType)
async def test_a_token_credential_over_tls_and_over_websockets(namespace: Namespace, transport: TransportType) -> None:
    _, options = over_tls(namespace, transport)
    await exchange(ServiceBusClient("127.0.0.1", AsyncCredential(), **options))
    assert await asyncio.to_thread(exchanged, SyncServiceBusClient("127.0.0.1", Credential(), **options)) == 200_000


@pytest.mark.filterwarnings("ignore:ssl=None is deprecated")  # the SDK passes ssl=None to aiohttp
@pytest.mark.parametrize("encrypted", [False, True])
async def test_sdk_with_an_address_only_uses_websockets_and_takes_tls_from_the_connection_string(
    namespace: Namespace, encrypted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    async def record_and_serve(served: Namespace, request: web.BaseRequest) -> web.StreamResponse:
        seen.append(request.secure)
        return await serve(served, request)

    serve = websocket.serve_websocket
    monkeypatch.setattr(websocket, "serve_websocket", record_and_serve)
    text, options = over_tls(namespace)
    del options["transport_type"]
    await exchange(
        ServiceBusClient.from_connection_string(text if encrypted else namespace.connection_string, **options)
    )
    assert set(seen) == {encrypted}


# ---- invalid WebSockets ----


@contextlib.asynccontextmanager
async def upgraded(namespace: Namespace) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """A WebSocket. Afterwards asserts that nothing is left of it and that clients are served."""
    address = f"http://127.0.0.1:{namespace.port}{websocket.PATH}"
    async with (
        asyncio.timeout(30),
        aiohttp.ClientSession() as session,
        session.ws_connect(address, protocols=[websocket.SUBPROTOCOL]) as upgraded,
    ):
        assert upgraded.protocol == websocket.SUBPROTOCOL
        yield upgraded
    await until(lambda: not namespace.connections and len(namespace.unauthenticated) == 0)
    await exchange(ServiceBusClient.from_connection_string(namespace.connection_string, retry_total=0))


async def test_a_text_message_closes_a_websocket(namespace: Namespace) -> None:
    async with upgraded(namespace) as peer:
        await peer.send_str("AMQP")
        assert (await peer.receive()).type is aiohttp.WSMsgType.CLOSE
        assert peer.close_code == aiohttp.WSCloseCode.UNSUPPORTED_DATA


async def test_a_message_that_is_too_large_closes_a_websocket(namespace: Namespace) -> None:
    async with upgraded(namespace) as peer:
        await peer.send_bytes(SASL_HEADER)
        assert (await peer.receive_bytes()).startswith(SASL_HEADER)
        # Only its start: bytes in flight when the server closes would reset the connection and lose the answer.
        size = (websocket.MAX_MESSAGE + 1).to_bytes(8, "big")
        os.write(peer.get_extra_info("socket").fileno(), b"\x82\xff" + size + b"mask" + b"x")
        assert (await peer.receive()).type is aiohttp.WSMsgType.CLOSE
        assert peer.close_code == aiohttp.WSCloseCode.MESSAGE_TOO_BIG


async def test_a_message_of_garbage_is_answered_with_the_header_and_a_close(namespace: Namespace) -> None:
    async with upgraded(namespace) as peer:
        await peer.send_bytes(bytes(range(256)))
        assert await peer.receive_bytes() == SASL_HEADER
        assert (await peer.receive()).type is aiohttp.WSMsgType.CLOSE
        assert peer.close_code == aiohttp.WSCloseCode.OK


async def test_bytes_that_are_not_a_websocket_message_close_it(namespace: Namespace) -> None:
    async with upgraded(namespace) as peer:
        os.write(peer.get_extra_info("socket").fileno(), b"\xff" * 20)  # reserved bits must be 0
        assert (await peer.receive()).type is aiohttp.WSMsgType.CLOSE
        assert peer.close_code == aiohttp.WSCloseCode.PROTOCOL_ERROR


async def test_websocket_client_that_disconnects_without_close_leaves_nothing(namespace: Namespace) -> None:
    async with upgraded(namespace) as peer:
        await peer.send_bytes(SASL_HEADER)
        await peer.receive_bytes()
        peer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        assert (await peer.receive()).type is aiohttp.WSMsgType.CLOSED


@pytest.mark.parametrize("offered", ["mqtt", "amqpwsb10", "AMQPWSB100, x"])
async def test_unsupported_subprotocol_is_refused(namespace: Namespace, offered: str) -> None:
    address = f"http://127.0.0.1:{namespace.port}{websocket.PATH}"
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(address, protocols=[offered])
        assert refused.value.status == 400
        async with session.ws_connect(address, protocols=["mqtt", websocket.SUBPROTOCOL]) as one_of_two:
            assert one_of_two.protocol == websocket.SUBPROTOCOL
    await until(lambda: not namespace.connections)


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_health_in_plain_text_and_over_tls(namespace: Namespace, scheme: str) -> None:
    context = ssl.create_default_context(cafile=ca_file(namespace))
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{scheme}://127.0.0.1:{namespace.port}/healthz", ssl=context) as answer,
    ):
        assert await answer.json() == {"status": "ok", "namespace": "contoso"}


async def test_the_administration_client_in_plain_text_and_over_tls(namespace: Namespace) -> None:
    verified = ServiceBusAdministrationClient.from_connection_string(
        namespace.connection_string, connection_verify=ca_file(namespace)
    )
    async with verified, async_administration(namespace.connection_string) as plain:
        for admin in (verified, plain):
            assert (await admin.get_queue(QUEUE)).name == QUEUE
            assert (await admin.get_namespace_properties()).name == "contoso"


async def test_the_synchronous_administration_client_over_tls(namespace: Namespace) -> None:
    def names() -> list[str]:
        with SyncAdministrationClient.from_connection_string(
            namespace.connection_string, connection_verify=ca_file(namespace)
        ) as admin:
            return [queue.name for queue in admin.list_queues()]

    assert await asyncio.to_thread(names) == [QUEUE]


async def test_client_that_does_not_trust_the_certificate_cannot_connect(namespace: Namespace) -> None:
    text, options = over_tls(namespace)
    del options["connection_verify"]
    async with ServiceBusClient.from_connection_string(text, **options) as client:
        sender = client.get_queue_sender(QUEUE)
        with pytest.raises(ServiceBusError, match="CERTIFICATE_VERIFY_FAILED"):
            await sender.send_messages(ServiceBusMessage("x"), timeout=5)
        await sender.close()


async def test_all_transports_work_at_the_same_time(namespace: Namespace) -> None:
    text, options = over_tls(namespace)
    await namespace.create(QueueDescription("busy"))

    async def send(client: ServiceBusClient) -> None:
        async with client, client.get_queue_sender("busy") as sender:
            await sender.send_messages([ServiceBusMessage("x") for _ in range(10)])

    async def administer() -> None:
        async with async_administration(namespace.connection_string) as admin:
            await admin.get_queue("busy")

    plain = ServiceBusClient.from_connection_string(namespace.connection_string, retry_total=0)
    encrypted = ServiceBusClient.from_connection_string(text, **options)
    await asyncio.gather(send(plain), send(encrypted), administer(), administer())
    entity = namespace.find("busy")
    assert entity is not None
    assert entity.counts.active == 20


async def test_faults_apply_over_tls(namespace: Namespace) -> None:
    text, options = over_tls(namespace)
    async with (
        ServiceBusClient.from_connection_string(text, **options) as client,
        client.get_queue_sender(QUEUE) as sender,
    ):
        await sender.send_messages(ServiceBusMessage("x"))
        active = namespace.faults.add(Fault(FaultKind.BLACKHOLE))
        with pytest.raises(ServiceBusError):
            await sender.send_messages(ServiceBusMessage("x"), timeout=SHORT)
        assert active.fired >= 1
        namespace.faults.clear()
        await sender.send_messages(ServiceBusMessage("x"))
        namespace.faults.add(Fault(FaultKind.RESET))
        with pytest.raises(ServiceBusConnectionError):
            await sender.send_messages(ServiceBusMessage("x"))
        namespace.faults.clear()
        await sender.send_messages(ServiceBusMessage("x"))


async def test_tls_without_a_certificate_ends_the_connection_at_once() -> None:
    async with Namespace("contoso") as bare, Peer(bare) as peer:
        peer.write(CLIENT_HELLO)
        assert await asyncio.wait_for(peer.rest(), 30) == b""


async def test_certificate_is_kept_over_a_restart(tmp_path: Path) -> None:
    kept = []
    for _ in range(2):
        async with Namespace("contoso", data=tmp_path) as running:
            kept.append(await asyncio.to_thread(Path(ca_file(running)).read_bytes))
            context = ssl.create_default_context(cafile=ca_file(running))
            _, writer = await asyncio.open_connection(
                "127.0.0.1", running.port, ssl=context, server_hostname="localhost"
            )
            writer.transport.abort()
    assert kept[0] == kept[1]
