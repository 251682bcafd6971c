"""Namespaces: every kind of credential works for both SDK clients and administration."""

from __future__ import annotations

import asyncio
import base64
import ssl
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage, TransportType
from tests.connection_strings import ROOT_POLICY
from tests.namespace_internals import Queue
from tests.sdk_connection import address_options, ca_file, client_options, needs_sdk, reachable

from twinbus.emulator import BearerToken, NamespaceConfig, QueueDescription
from twinbus.emulator import Namespace as Broker
from twinbus.pairing.namespace import Namespace
from twinbus.pairing.private_loop import PrivateLoop
from twinbus.servicebus.access_rights import ALL_RIGHTS
from twinbus.syphon import SasKey

pytestmark = pytest.mark.slow

on_the_wire = pytest.mark.asyncio(loop_scope="module")

TOKEN = "a-token-for-tests"
KEYED = "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0"


class SyncCredential:
    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        assert scopes == ("https://servicebus.azure.net//.default",)
        return AccessToken(TOKEN, int(time.time()) + 3600)


class AsyncCredential:
    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        return SyncCredential().get_token(*scopes)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    config = NamespaceConfig("contoso", port=0, bearer_tokens=(BearerToken(TOKEN, ALL_RIGHTS),))
    async with reachable(config, certificate_folder=tmp_path_factory.mktemp("bus")) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def queue(broker: Broker) -> AsyncIterator[Queue]:
    yield (await broker.create(QueueDescription("orders"))).queue
    await broker.delete("orders")


async def credential(kind: str, broker: Broker) -> Any:
    key = broker.policy(ROOT_POLICY).primary_key
    if kind == "named key":
        return AzureNamedKeyCredential(ROOT_POLICY, key)
    if kind == "signature":
        token = await SasKey(ROOT_POLICY, key).token(f"sb://{broker.host}:{broker.port}/")
        return AzureSasCredential(token.text)
    return SyncCredential() if kind == "sync token" else AsyncCredential()


async def send_with_both_clients(namespace: Namespace, loop: PrivateLoop) -> None:
    async with namespace.async_client() as client, client.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("from a task"))

    def from_a_thread() -> None:
        with namespace.sync_client(loop.run) as client, client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("from a thread"))

    await asyncio.to_thread(from_a_thread)


@on_the_wire
@pytest.mark.parametrize("kind", ["named key", "signature", "sync token", "async token"])
async def test_every_kind_of_credential_serves_every_client(broker: Broker, queue: Queue, kind: str) -> None:
    address = f"{broker.host}:{broker.port}"
    namespace = Namespace(address, await credential(kind, broker), **address_options(broker))
    loop = PrivateLoop()
    try:
        await send_with_both_clients(namespace, loop)
    finally:
        await asyncio.to_thread(loop.close)
    assert queue.activity.received == 2
    async with namespace.administration() as admin:
        assert (await admin.get_namespace_properties()).name == "contoso"
        assert (await admin.get_queue_runtime_properties("orders")).active_message_count == 2


@on_the_wire
async def test_a_connection_string_may_hold_a_signature(broker: Broker, queue: Queue) -> None:
    signature = (await credential("signature", broker)).signature
    text = f"Endpoint=sb://{broker.host}:{broker.port};SharedAccessSignature={signature};UseDevelopmentEmulator=true"
    namespace = Namespace.from_connection_string(text, **client_options(broker))
    await send_with_both_clients(namespace, PrivateLoop())
    assert queue.activity.received == 2
    async with namespace.administration() as admin:
        assert (await admin.get_queue("orders")).name == "orders"


@on_the_wire
@pytest.mark.parametrize(
    "option",
    ["connection_verify", pytest.param("ssl_context", marks=needs_sdk((7, 13), "ssl_context"))],
)
async def test_tls_options_apply_to_all_clients(broker: Broker, queue: Queue, option: str) -> None:
    authorities = ca_file(broker)
    given = authorities if option == "connection_verify" else ssl.create_default_context(cafile=authorities)
    namespace = Namespace(
        f"{broker.host}:{broker.port}",
        await credential("named key", broker),
        custom_endpoint_address=f"sb://{broker.host}:{broker.port}",
        transport_type=TransportType.Amqp,
        **{option: given},
    )
    async with namespace.async_client() as client, client.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("over TLS"))
    assert queue.activity.received == 1
    async with namespace.administration() as admin:
        assert (await admin.get_namespace_properties()).name == "contoso"


@on_the_wire
async def test_a_development_connection_string_serves_every_client_of_every_sdk() -> None:
    """With the certificate authority of the namespace, on any port."""
    config = NamespaceConfig("contoso", port=0)
    with tempfile.TemporaryDirectory() as folder:
        async with Broker(config, certificate_folder=Path(folder)) as broker:
            queue = (await broker.create(QueueDescription("orders"))).queue
            namespace = Namespace.from_connection_string(broker.connection_string, connection_verify=ca_file(broker))
            await send_with_both_clients(namespace, PrivateLoop())
            assert queue.activity.received == 2
            async with namespace.administration() as admin:
                assert (await admin.get_queue_runtime_properties("orders")).active_message_count == 2


@on_the_wire
async def test_an_unknown_certificate_is_refused_by_the_administration_too(broker: Broker) -> None:
    namespace = Namespace(f"{broker.host}:{broker.port}", await credential("named key", broker))
    async with namespace.administration() as admin:
        with pytest.raises(Exception, match="CERTIFICATE_VERIFY_FAILED"):
            await admin.get_namespace_properties()


def test_the_name_is_the_first_label_of_the_host() -> None:
    assert Namespace.from_connection_string(KEYED).name == "contoso"
    assert Namespace("10.0.0.1:5672", SyncCredential()).name is None


def test_a_namespace_never_shows_its_key() -> None:
    for namespace in (
        Namespace.from_connection_string(KEYED),
        Namespace("contoso", AzureSasCredential("se=1&sig=c2Vj")),
    ):
        assert "c2Vj" not in repr(namespace)
        assert "c2Vj" not in str(namespace)


def test_the_options_of_the_sdk_are_passed_on() -> None:
    namespace = Namespace.from_connection_string(KEYED, user_agent="shop", retry_total=7)
    for arguments in (namespace.sync_arguments(retry_total=0), namespace.async_arguments(retry_total=0)):
        assert arguments["fully_qualified_namespace"] == "contoso.servicebus.windows.net"
        assert (arguments["user_agent"], arguments["retry_total"]) == ("shop", 0)


@needs_sdk((7, 13), "ssl_context")
def test_the_connections_of_a_namespace_share_one_tls_context() -> None:
    namespace = Namespace.from_connection_string(KEYED)
    first, second = (namespace.async_arguments()["ssl_context"] for _ in range(2))
    assert first is second
    assert first.verify_mode is ssl.CERT_REQUIRED
    assert first.get_ca_certs()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "Endpoint"),
        ("SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0", "Endpoint"),
        ("Endpoint=contoso;SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0", "Endpoint"),
        ("Endpoint=sb://contoso", "SharedAccessKeyName"),
        ("Endpoint=sb://contoso;SharedAccessKey=c2VjcmV0", "SharedAccessKeyName"),
        (f"{KEYED};SharedAccessSignature=sig=c2Vj", "SharedAccessSignature"),
        (f"{KEYED};SharedAccessKey=c2VjcmV0", "each once"),
        ("c2VjcmV0", "name=value"),
    ],
)
def test_a_bad_connection_string_is_refused_without_showing_it(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=named) as raised:
        Namespace.from_connection_string(text)
    assert "c2Vj" not in str(raised.value)


def test_invalid_namespace_is_refused() -> None:
    with pytest.raises(ValueError, match="fully_qualified_namespace"):
        Namespace(" ", SyncCredential())
    with pytest.raises(TypeError, match="credential"):
        Namespace("contoso", object())
    with pytest.raises(TypeError, match="connection string"):
        Namespace.of(42)  # type: ignore[arg-type]


def test_namespace_accepts_string_tuple_or_namespace() -> None:
    given = Namespace.from_connection_string(KEYED)
    assert Namespace.of(given, user_agent="shop") is given
    assert Namespace.of(KEYED, user_agent="shop").client_options == {"user_agent": "shop"}
    pair = Namespace.of(("contoso.servicebus.windows.net", SyncCredential()))
    assert (pair.fully_qualified_namespace, pair.name) == ("contoso.servicebus.windows.net", "contoso")


def test_entity_path_of_a_connection_string_is_known() -> None:
    assert Namespace.from_connection_string(f"{KEYED};EntityPath=orders").entity_path == "orders"
    assert Namespace.from_connection_string(KEYED).entity_path is None


def test_asynchronous_credential_needs_a_runner() -> None:
    with pytest.raises(TypeError, match="asynchronous"):
        Namespace("contoso", AsyncCredential()).sync_client()


@on_the_wire
async def test_proxy_applies_to_administration() -> None:
    seen: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        proxy = {"proxy_hostname": "127.0.0.1", "proxy_port": port, "username": "me", "password": "p@ss"}
        namespace = Namespace.from_connection_string(f"{KEYED};UseDevelopmentEmulator=true", http_proxy=proxy)
        async with namespace.administration() as admin:
            with pytest.raises(HttpResponseError):
                await admin.get_namespace_properties()
    [request] = seen
    assert request.startswith(b"GET http://contoso.servicebus.windows.net/$namespaceinfo")
    assert b"Proxy-Authorization: Basic " + base64.b64encode(b"me:p@ss") in request
