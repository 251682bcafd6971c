"""Addresses and connection strings."""

from __future__ import annotations

import pytest

from twinbus.syphon import Endpoint, SasKey, SasToken, from_connection_string

KEY = "c2VjcmV0LWtleQ=="
SIGNATURE = "SharedAccessSignature sr=sb%3A%2F%2Fhost%2F&sig=abc%3D&se=2000000000&skn=policy"


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("contoso.servicebus.windows.net", "contoso.servicebus.windows.net", None),
        ("sb://Contoso.servicebus.windows.net/", "contoso.servicebus.windows.net", None),
        ("127.0.0.1:5673", "127.0.0.1", 5673),
        ("amqps://localhost:5671", "localhost", 5671),
        ("sb://[::1]:5672/", "::1", 5672),
        ("[::1]", "::1", None),
    ],
)
def test_endpoint_has_a_host_and_an_optional_port(text: str, host: str, port: int | None) -> None:
    endpoint = Endpoint.parse(text)
    assert (endpoint.host, endpoint.port) == (host, port)


@pytest.mark.parametrize("text", ["", "sb://", "host:port", "host:123456", "a b", "http://host", "host/path", "u@h"])
def test_invalid_endpoint_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected an endpoint like sb://host or sb://host:port"):
        Endpoint.parse(text)


@pytest.mark.parametrize("port", [0, 65536, -1])
def test_port_out_of_bounds_is_refused(port: int) -> None:
    with pytest.raises(ValueError, match="port must be 1 to 65535"):
        Endpoint("host", port)


def test_missing_port_means_the_default_port() -> None:
    assert Endpoint("host").effective_port == 5671
    assert Endpoint("host", tls=False).effective_port == 5672
    assert str(Endpoint("::1", 99)) == "[::1]:99"


@pytest.mark.parametrize(
    ("path", "audience"),
    [
        ("orders", "orders"),
        ("orders/$management", "orders"),
        ("orders/$DeadLetterQueue", "orders"),
        ("orders/$DeadLetterQueue/$management", "orders"),
        ("orders/$Transfer/$DeadLetterQueue", "orders"),
        ("events/Subscriptions/all/$DeadLetterQueue", "events/Subscriptions/all"),
        ("contoso/x-servicebus-transfer/0", "contoso/x-servicebus-transfer/0"),
    ],
)
def test_token_audience_is_the_entity_and_covers_its_sub_queues(path: str, audience: str) -> None:
    assert Endpoint("host").audience(path) == f"sb://host/{audience}"
    assert Endpoint("127.0.0.1", 5673, tls=False).audience(path) == f"sb://127.0.0.1:5673/{audience}"


def test_a_connection_string_gives_endpoint_and_key() -> None:
    text = f"Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=root;SharedAccessKey={KEY}"
    endpoint, credential = from_connection_string(text)
    assert endpoint == Endpoint("contoso.servicebus.windows.net")
    assert credential == SasKey("root", KEY)


def test_connection_string_may_hold_a_shared_access_signature() -> None:
    _, credential = from_connection_string(f"Endpoint=sb://host/;SharedAccessSignature={SIGNATURE}")
    assert isinstance(credential, SasToken)


@pytest.mark.parametrize(("value", "tls"), [("true", False), ("True", True), ("false", True)])
def test_development_emulator_value_must_be_exactly_true(value: str, tls: bool) -> None:
    text = f"Endpoint=sb://127.0.0.1:5;SharedAccessKeyName=r;SharedAccessKey=k;UseDevelopmentEmulator={value}"
    assert from_connection_string(text)[0] == Endpoint("127.0.0.1", 5, tls=tls)


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        (f"SharedAccessKeyName=r;SharedAccessKey={KEY}", "Endpoint is missing"),
        (f"Endpoint=sb://h;SharedAccessKey={KEY}", "SharedAccessKeyName is missing"),
        ("Endpoint=sb://h;SharedAccessKeyName=r", "SharedAccessKey is missing"),
        (f"Endpoint=sb://h;SharedAccessKey={KEY};sharedaccesskey={KEY}", "each once"),
        (f"Endpoint=sb://h;{KEY[:5]}", "name=value parts"),
        (f"Endpoint=sb://h h;SharedAccessKeyName=r;SharedAccessKey={KEY}", "Endpoint of the connection string must be"),
    ],
)
def test_invalid_connection_string_is_refused_without_showing_the_key(text: str, missing: str) -> None:
    with pytest.raises(ValueError, match=missing) as caught:
        from_connection_string(text)
    assert KEY not in str(caught.value)
