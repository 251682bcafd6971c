"""Options for each supported SDK version, and refusal of those that it would ignore."""

from __future__ import annotations

import ssl
from importlib.metadata import version
from typing import Any

import pytest
from tests.sdk_connection import OLDEST

from twinbus import PairedServiceBusClient
from twinbus.pairing.namespace import Namespace
from twinbus.pairing.sdk import version as sdk_version
from twinbus.pairing.sdk.version import (
    INSTALLED,
    Version,
    attempt_bound,
    check_method,
    check_options,
    development_address,
    version_of,
)

KEY = "SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0;UseDevelopmentEmulator=true"
PLAIN = f"Endpoint=sb://127.0.0.1:5673;{KEY}"
TRUST = {"connection_verify": "ca.pem"}


def test_the_installed_version_is_one_that_is_supported() -> None:
    assert version_of(version("azure-servicebus")) == INSTALLED
    assert OLDEST <= INSTALLED < (8, 0)


@pytest.mark.parametrize(
    ("text", "expected"), [("7.12.3", (7, 12)), ("7.15.0b1", (7, 15)), ("7.16.0a20270101001", (7, 16)), ("8.0", (8, 0))]
)
def test_a_version_is_its_first_two_numbers(text: str, expected: Version) -> None:
    assert version_of(text) == expected


def test_malformed_version_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected a version such as 7\.15\.0, got 'seven'"):
        version_of("seven")


# ---- options that some versions ignore ----


@pytest.mark.parametrize(
    ("options", "without", "since", "instead"),
    [
        ({"ssl_context": ssl.create_default_context()}, (7, 12), (7, 13), "connection_verify"),
        ({"use_tls": False}, (7, 13), (7, 14), "connection_verify"),
        ({"try_timeout": 5.0}, (7, 14), (7, 15), "attempt_timeout"),
    ],
)
def test_option_that_the_sdk_would_ignore_is_refused(
    options: dict[str, Any], without: Version, since: Version, instead: str
) -> None:
    (name,) = options
    check_options(options, since)
    with pytest.raises(ValueError, match=name) as raised:
        check_options(options, without)
    text = str(raised.value)
    assert f"azure-servicebus {without[0]}.{without[1]} does not support" in text
    assert f"azure-servicebus>={since[0]}.{since[1]}" in text
    assert instead in text


def test_default_options_are_valid_for_every_version() -> None:
    check_options({"use_tls": True, "ssl_context": None, "try_timeout": None, "retry_total": 0}, OLDEST)


def test_attempts_are_bounded_by_the_sdk_where_it_can() -> None:
    assert attempt_bound(5, (7, 14)) == {}
    assert attempt_bound(5, (7, 15)) == {"try_timeout": 5}


def test_missing_method_of_the_sdk_is_refused() -> None:
    check_method("list_queue_sessions", (7, 15))
    expected = r"azure-servicebus 7\.14 has no list_queue_sessions: install azure-servicebus>=7\.15"
    with pytest.raises(NotImplementedError, match=expected):
        check_method("list_queue_sessions", (7, 14))


# ---- development connection strings ----


@pytest.mark.parametrize("installed", [(7, 12), (7, 13), (7, 14), (7, 15)])
def test_without_a_trusted_authority_plain_text_is_requested(installed: Version) -> None:
    assert development_address("127.0.0.1", 5673, {}, installed) == ("127.0.0.1:5673", {"use_tls": False})
    assert development_address("localhost", None, {}, installed) == ("localhost", {"use_tls": False})


def test_plain_text_is_requested_if_the_sdk_supports_it() -> None:
    assert development_address("::1", 5673, TRUST, (7, 14)) == ("::1:5673", {"use_tls": False, **TRUST})


def test_the_port_is_dialled_over_tls() -> None:
    custom = {"custom_endpoint_address": "sb://127.0.0.1:5673"}
    assert development_address("127.0.0.1", 5673, TRUST, (7, 12)) == ("127.0.0.1:5673", TRUST)
    assert development_address("127.0.0.1", 5673, TRUST, (7, 13)) == ("127.0.0.1:5673", {**custom, **TRUST})
    assert development_address("127.0.0.1", 5671, TRUST, (7, 13)) == ("127.0.0.1:5671", TRUST)
    assert development_address("localhost", None, TRUST, (7, 12)) == ("localhost:5672", TRUST)


# ---- as a user meets it ----


@pytest.fixture
def oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the oldest version is installed."""
    monkeypatch.setattr(sdk_version, "INSTALLED", OLDEST)


@pytest.mark.usefixtures("oldest")
def test_a_client_in_plain_text_is_refused_where_the_sdk_cannot_speak_it() -> None:
    namespace = Namespace.from_connection_string(PLAIN)
    for make in (namespace.sync_arguments, namespace.async_arguments, namespace.check_options):
        with pytest.raises(ValueError, match=r"plain text.*connection_verify.*azure-servicebus>=7\.14"):
            make()
    with pytest.raises(ValueError, match="plain text"):
        PairedServiceBusClient.from_connection_strings(PLAIN, PLAIN.replace("5673", "5674"))


@pytest.mark.usefixtures("oldest")
def test_tls_context_is_not_passed_to_an_sdk_that_ignores_it() -> None:
    namespace = Namespace.from_connection_string(PLAIN, connection_verify="ca.pem")
    assert namespace.use_tls
    arguments = namespace.async_arguments()
    assert arguments["connection_verify"] == "ca.pem"
    assert "ssl_context" not in arguments
