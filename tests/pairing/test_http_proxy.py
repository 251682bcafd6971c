"""Proxy and transport options, and their validation before anything is opened."""

from __future__ import annotations

from typing import Any

import pytest
from azure.servicebus import TransportType
from tests.sdk_connection import needs_plain_text

from twinbus import Namespace, PairedServiceBusClient, aio
from twinbus.amqp.client.endpoint import Endpoint
from twinbus.pairing.sdk import ipv6
from twinbus.pairing.sdk.addresses import connection_options
from twinbus.servicebus.http_proxy import HttpProxy
from twinbus.syphon.connector import endpoint_of

SECRET = "pass:w@rd"
KEY = "SharedAccessKeyName=n;SharedAccessKey=c2VjcmV0"
TEXT = f"Endpoint=sb://contoso.servicebus.windows.net;{KEY}"
OTHER = f"Endpoint=sb://standby.servicebus.windows.net;{KEY}"
PLAIN = f"Endpoint=sb://127.0.0.1:5672;{KEY};UseDevelopmentEmulator=true"
PROXY: dict[str, Any] = {"proxy_hostname": "proxy.example", "proxy_port": 3128}
WEBSOCKET = {"transport_type": TransportType.AmqpOverWebsocket}


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "NO_PROXY", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


# ---- bad input ----

BAD_OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"transport_type": "AmqpOverWebsocket"}, TypeError, "transport_type must be TransportType"),
    ({"transport_type": 2}, TypeError, "transport_type must be TransportType"),
    ({"http_proxy": "http://proxy:3128"}, TypeError, "http_proxy must be a dictionary"),
    ({"http_proxy": {}}, ValueError, "http_proxy must have proxy_hostname"),
    ({"http_proxy": {"proxy_hostname": "p"}}, ValueError, "http_proxy must have proxy_port"),
    ({"http_proxy": {"proxy_port": 3128}}, ValueError, "http_proxy must have proxy_hostname"),
    ({"http_proxy": {**PROXY, "proxy_port": "3128"}}, TypeError, "http_proxy: proxy_port must be a whole number"),
    ({"http_proxy": {**PROXY, "proxy_port": True}}, TypeError, "http_proxy: proxy_port must be a whole number"),
    ({"http_proxy": {**PROXY, "proxy_port": 0}}, ValueError, "http_proxy: proxy_port must be 1 to 65535, not 0"),
    ({"http_proxy": {**PROXY, "proxy_port": 65536}}, ValueError, "http_proxy: proxy_port must be 1 to 65535"),
    ({"http_proxy": {**PROXY, "proxy_hostname": 7}}, TypeError, "http_proxy: proxy_hostname must be a text"),
    ({"http_proxy": {**PROXY, "proxy_hostname": "a b"}}, ValueError, "http_proxy: proxy_hostname must be a host name"),
    ({"http_proxy": {**PROXY, "proxy_hostname": "p/x"}}, ValueError, "http_proxy: proxy_hostname must be a host name"),
    ({"http_proxy": {**PROXY, "proxy_hostname": "https://p"}}, ValueError, "http_proxy: proxy_hostname must begin"),
    ({"http_proxy": {**PROXY, "user": "me"}}, ValueError, "http_proxy may have .*, not 'user'"),
    ({"http_proxy": {**PROXY, "username": 1}}, TypeError, "http_proxy: username must be a text"),
    ({"http_proxy": {**PROXY, "username": "a:b"}}, ValueError, "http_proxy: username must be printable ASCII"),
    ({"http_proxy": {**PROXY, "username": "a", "password": "é"}}, ValueError, "http_proxy: password must be printable"),
    ({"http_proxy": {**PROXY, "password": SECRET}}, ValueError, "http_proxy: username must be given"),
]


@pytest.mark.parametrize(("options", "kind", "named"), BAD_OPTIONS)
def test_a_wrong_transport_or_proxy_is_refused(options: dict[str, Any], kind: type[Exception], named: str) -> None:
    for make in (PairedServiceBusClient, aio.PairedServiceBusClient):
        with pytest.raises(kind, match=named) as caught:
            make(TEXT, OTHER, **options)
        assert SECRET not in str(caught.value)
    with pytest.raises(kind, match=named):
        Namespace.from_connection_string(TEXT, **options)


@needs_plain_text
def test_a_proxy_for_a_development_namespace_in_plain_text_is_refused() -> None:
    namespace = Namespace.from_connection_string(PLAIN, http_proxy=PROXY)
    with pytest.raises(ValueError, match="http_proxy needs TLS"):
        namespace.check_options()
    with pytest.raises(ValueError, match="http_proxy needs TLS"):
        endpoint_of(namespace)


@pytest.mark.parametrize(
    "text", ["", "proxy", "http://proxy", "http://proxy:0", "http://proxy:99999", "http://p:1/path", "http://p:1?q",
             f"socks5://me:{SECRET}@proxy:1080", "https://proxy:443", "http://:3128", "http://a b:1", "http://p:1\n"],
)  # fmt: skip
def test_a_malformed_address_of_a_proxy_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="address of a proxy") as caught:
        HttpProxy.parse(text)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("port", [70000, "x"])
def test_a_namespace_with_a_wrong_port_is_refused(port: object) -> None:
    with pytest.raises(ValueError, match=r"fully_qualified_namespace must be a host.*65535"):
        connection_options(f"contoso:{port}", True, False, None, None)


# ---- how it is handed on ----


@pytest.mark.parametrize("host", ["proxy.example", "http://proxy.example"])
def test_each_client_gets_the_proxy_in_its_own_form(host: str) -> None:
    given = {"proxy_hostname": host, "proxy_port": 3128, "username": "me", "password": SECRET}
    namespace = Namespace.from_connection_string(TEXT, http_proxy=given)
    login = {"proxy_port": 3128, "username": "me", "password": SECRET}
    assert namespace.sync_arguments()["http_proxy"] == {"proxy_hostname": "proxy.example", **login}
    assert namespace.async_arguments()["http_proxy"] == {"proxy_hostname": "http://proxy.example", **login}
    assert namespace.sync_arguments()["transport_type"] is TransportType.AmqpOverWebsocket
    assert SECRET not in repr(namespace) + repr(namespace.proxy) + str(namespace.proxy)


def test_a_proxy_has_an_address_with_and_without_its_login() -> None:
    proxy = HttpProxy.parse("http://me:pass%3Aw%40rd@[::1]:3128/")
    assert proxy == HttpProxy("::1", 3128, "me", SECRET)
    assert (proxy.url, proxy.url_with_login) == ("http://[::1]:3128", "http://me:pass%3Aw%40rd@[::1]:3128")
    assert proxy.for_async_client()["proxy_hostname"] == "http://[::1]"
    assert HttpProxy.parse("proxy:3128") == HttpProxy("proxy", 3128)


def test_a_proxy_implies_websockets_everywhere() -> None:
    namespace = Namespace.from_connection_string(TEXT, http_proxy=PROXY, transport_type=TransportType.Amqp)
    endpoint = endpoint_of(namespace)
    assert (endpoint.websocket, endpoint.effective_port, endpoint.proxy) == (
        True,
        443,
        HttpProxy("proxy.example", 3128),
    )
    assert endpoint.websocket_url == "wss://contoso.servicebus.windows.net:443/$servicebus/websocket"
    with pytest.raises(ValueError, match="proxy needs WebSockets over TLS"):
        Endpoint("contoso", proxy=HttpProxy("p", 1))


@needs_plain_text
def test_websockets_keep_a_custom_port() -> None:
    assert "custom_endpoint_address" not in Namespace.from_connection_string(TEXT, **WEBSOCKET).sync_arguments()
    given = Namespace.from_connection_string(PLAIN, **WEBSOCKET).sync_arguments()
    assert given["custom_endpoint_address"] == "sb://127.0.0.1:5672"
    assert endpoint_of(Namespace.from_connection_string(PLAIN, **WEBSOCKET)).effective_port == 5672
    own = Namespace.from_connection_string(TEXT, custom_endpoint_address="sb://gateway:8443", **WEBSOCKET)
    assert own.sync_arguments()["custom_endpoint_address"] == "sb://gateway:8443"


# ---- the environment ----


def test_proxy_environment_applies_to_websockets_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    assert Namespace.from_connection_string(TEXT).proxy is None
    assert Namespace.from_connection_string(PLAIN, **WEBSOCKET).proxy is None
    assert Namespace.from_connection_string(TEXT, **WEBSOCKET).proxy == HttpProxy("proxy.example", 3128)
    given = {"proxy_hostname": "other", "proxy_port": 1}
    assert Namespace.from_connection_string(TEXT, http_proxy=given).proxy == HttpProxy("other", 1)


def test_a_host_in_no_proxy_is_reached_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "servicebus.windows.net")
    namespace = Namespace.from_connection_string(TEXT, http_proxy=PROXY)
    assert namespace.proxy is None
    assert namespace.async_arguments()["http_proxy"] is None
    assert namespace.uses_websocket


def test_a_malformed_proxy_of_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"socks5://me:{SECRET}@proxy:1080")
    with pytest.raises(ValueError, match="HTTPS_PROXY: the address of a proxy must begin with http://") as caught:
        Namespace.from_connection_string(TEXT, **WEBSOCKET)
    assert SECRET not in str(caught.value)


# ---- IPv6 ----


@needs_plain_text
@pytest.mark.parametrize("host", ["::1", "[::1]", "[fd00::ab]:5673"])
def test_an_ipv6_address_is_dialled_with_its_port(host: str) -> None:
    given = Namespace(host, _Credential(), use_tls=False).sync_arguments()
    dialled = {"[fd00::ab]:5673": "sb://[fd00::ab]:5673"}.get(host, "sb://[::1]:5672")
    assert (given["custom_endpoint_address"], given["transport_type"]) == (dialled, TransportType.Amqp)


def test_websockets_to_an_ipv6_address_are_refused() -> None:
    with pytest.raises(ValueError, match=r"IPv6 address ::1 over WebSockets: give a host name"):
        Namespace("[::1]", _Credential(), **WEBSOCKET).check_options()


def test_without_the_private_sdk_function_ipv6_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ipv6, "_FUNCTION", "renamed")
    with pytest.raises(ValueError, match=r"cannot connect to the IPv6 address fd00::1: give a host name"):
        Namespace("[fd00::1]", _Credential()).check_options()


class _Credential:
    def get_token(self, *scopes: str) -> Any:
        raise NotImplementedError
