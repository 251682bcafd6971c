"""Outages behind a real proxy and over WebSockets, all over TLS: clients, pings, administration and both syphons.

The namespaces have host names that only the proxy can resolve, and the usual port. So nothing reaches them but through
the proxy.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, TransportType
from tests.client.threads import Seen, down, eventually
from tests.connect_proxy import ConnectProxy
from tests.namespace_internals import Queue

from twinbus import (
    BacklogUnavailableError,
    Namespace,
    PairedServiceBusClient,
    PingFailed,
    Recovered,
    Route,
    SendAvailabilityOptions,
    SyphonOptions,
    aio,
)
from twinbus.emulator import Namespace as EmbeddedNamespace
from twinbus.emulator import NamespaceThread, QueueDescription

pytestmark = pytest.mark.slow

DOMAIN = "twinbus.test"
LOGIN = ("agent", "open-sesame")
NUMBERS = itertools.count(1)
SECONDS = 120
OPTIONS: dict[str, Any] = {
    "backlog_queue_count": 2,
    "failover_interval": 0,
    "ping_primary_interval": 1,
    "attempt_timeout": 5,
    "backlog_cooldown": 1,
}
HOSTED = {"enable_syphon": True, "syphon": SyphonOptions(retry_min=0.1, retry_max=1)}


class Office:
    """Two namespaces over TLS, reachable only through a proxy."""

    def __init__(self, way: str, proxy: ConnectProxy, primary: NamespaceThread, secondary: NamespaceThread) -> None:
        self.way = way
        self.proxy = proxy
        self.primary = primary
        self.secondary = secondary
        certificate = primary.namespace.certificate
        assert certificate is not None
        self.ca_file = str(certificate.ca_file)

    @property
    def texts(self) -> tuple[str, str]:
        """The connection strings, as the service gives them out; without a proxy they have the address."""
        primary, secondary = (self._text(one) for one in (self.primary, self.secondary))
        return primary, secondary

    def _text(self, one: NamespaceThread) -> str:
        text = one.connection_string.replace(";UseDevelopmentEmulator=true", "")
        if self.way == "websocket":
            return text
        return text.replace(f"127.0.0.1:{one.namespace.port}", f"{one.namespace.name}.{DOMAIN}")

    @property
    def http_proxy(self) -> dict[str, Any]:
        login = dict(zip(("username", "password"), LOGIN, strict=True)) if self.way == "proxy with login" else {}
        return {"proxy_hostname": "127.0.0.1", "proxy_port": self.proxy.port, **login}

    @property
    def client_options(self) -> dict[str, Any]:
        trust = {"connection_verify": self.ca_file}
        if self.way == "websocket":
            return {"transport_type": TransportType.AmqpOverWebsocket, **trust}
        return {"http_proxy": self.http_proxy, **trust}

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the commands."""
        way = {"TWINBUS_TRANSPORT": "websocket"}
        if self.way != "websocket":
            login = f"{':'.join(LOGIN)}@" if self.way == "proxy with login" else ""
            way = {"TWINBUS_PROXY": f"http://{login}127.0.0.1:{self.proxy.port}"}
        namespaces = dict(zip(("TWINBUS_PRIMARY", "TWINBUS_SECONDARY"), self.texts, strict=True))
        return {**os.environ, **way, **namespaces, "TWINBUS_PRIMARY_NAME": "contoso", "SSL_CERT_FILE": self.ca_file}

    def client(self, **options: Any) -> PairedServiceBusClient:
        given = SendAvailabilityOptions(**{**OPTIONS, "primary_name": "contoso", **options})
        return PairedServiceBusClient.from_connection_strings(*self.texts, options=given, **self.client_options)

    def async_client(self, **options: Any) -> aio.PairedServiceBusClient:
        given = SendAvailabilityOptions(**{**OPTIONS, "primary_name": "contoso", **options})
        return aio.PairedServiceBusClient.from_connection_strings(*self.texts, options=given, **self.client_options)

    def queue(self) -> Queue:
        path = f"orders-{next(NUMBERS)}"
        return self.primary.run(self.primary.namespace.create(QueueDescription(path))).queue

    def primary_up(self) -> None:
        self.primary.call(self.primary.namespace.faults.clear)

    def tunnelled_to(self, one: NamespaceThread) -> bool:
        return (f"{one.namespace.name}.{DOMAIN}", 443) in self.proxy.tunnels

    def twinbus(self, *arguments: str) -> Any:
        """What a command says, as JSON, if it ends well; it never prints the password."""
        command = [sys.executable, "-m", "twinbus", *arguments, "--queues", "2", "--json"]
        ran = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=SECONDS)
        assert ran.returncode == 0, ran.stderr
        assert LOGIN[1] not in ran.stdout + ran.stderr
        return json.loads(ran.stdout)


@contextmanager
def office_with(way: str, folder: Path) -> Iterator[Office]:
    def make(name: str) -> Callable[[], EmbeddedNamespace]:
        names = (f"{name}.{DOMAIN}",)
        return lambda: EmbeddedNamespace(name, certificate_folder=folder, certificate_names=names)

    with NamespaceThread(make("contoso")) as primary, NamespaceThread(make("standby")) as secondary:
        routes = {
            (f"{one.namespace.name}.{DOMAIN}", 443): ("127.0.0.1", one.namespace.port) for one in (primary, secondary)
        }
        with ConnectProxy(routes, LOGIN if way == "proxy with login" else None) as proxy:
            yield Office(way, proxy, primary, secondary)


@pytest.fixture(scope="module", params=["proxy", "proxy with login", "websocket"])
def office(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    with office_with(request.param, tmp_path_factory.mktemp("tls")) as running:
        yield running


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    with office_with("proxy with login", tmp_path_factory.mktemp("tls")) as running:
        yield running


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


def received(office: Office, client: PairedServiceBusClient, queue: Queue, count: int) -> list[str]:
    """The bodies of messages, received the same way."""
    eventually(lambda: office.primary.call(lambda: queue.counters.active) >= count)
    with client.get_queue_receiver(queue.path, max_wait_time=30) as receiver:
        messages = receiver.receive_messages(max_message_count=count)
        for one in messages:
            receiver.complete_message(one)
    return sorted(str(one) for one in messages)


def test_a_sync_client_fails_over_and_returns_and_its_syphon_drains(office: Office) -> None:
    queue = office.queue()
    with office.client(**HOSTED) as client, client.get_queue_sender(queue.path) as sender:
        seen = Seen(client)
        assert sender.send_messages(ServiceBusMessage("1")).route is Route.PRIMARY
        down(office.primary)
        assert sender.send_messages(ServiceBusMessage("2")).route is Route.BACKLOG
        office.primary_up()
        seen.next(Recovered)
        assert sender.send_messages(ServiceBusMessage("3")).route is Route.PRIMARY
        assert received(office, client, queue, 3) == ["1", "2", "3"]


async def test_an_async_client_fails_over_and_returns_and_its_syphon_drains(office: Office) -> None:
    queue = office.queue()
    async with office.async_client(**HOSTED) as client, client.get_queue_sender(queue.path) as sender:
        seen = Seen(client)
        assert (await sender.send_messages(ServiceBusMessage("1"))).route is Route.PRIMARY
        down(office.primary)
        assert (await sender.send_messages(ServiceBusMessage("2"))).route is Route.BACKLOG
        office.primary_up()
        await asyncio.to_thread(seen.next, Recovered)
        assert (await sender.send_messages(ServiceBusMessage("3"))).route is Route.PRIMARY
        await asyncio.to_thread(eventually, lambda: office.primary.call(lambda: queue.counters.active) == 3)


def test_the_command_drains_and_shows_the_backlog(office: Office) -> None:
    queue = office.queue()
    with office.client() as client, client.get_queue_sender(queue.path) as sender:
        down(office.primary)
        assert sender.send_messages(ServiceBusMessage("diverted")).route is Route.BACKLOG
        office.primary_up()
        assert sum(one["messages"] for one in office.twinbus("backlog", "list")["queues"]) == 1
        assert office.twinbus("syphon", "--until-empty")["moved"] == 1
        assert received(office, client, queue, 1) == ["diverted"]
    assert office.twinbus("status")["well"]


def test_the_command_goes_on_through_outages_and_ends_on_request(office: Office) -> None:
    queue = office.queue()
    command = [sys.executable, "-m", "twinbus", "syphon", "--queues", "2"]
    with (
        office.client() as client,
        client.get_queue_sender(queue.path) as sender,
        subprocess.Popen(command, env=office.environment, stderr=subprocess.PIPE, text=True) as syphon,
    ):
        try:
            seen = Seen(client)
            for number in range(1, 3):
                down(office.primary)
                assert sender.send_messages(ServiceBusMessage("diverted")).route is Route.BACKLOG
                if office.way != "websocket":
                    office.proxy.break_tunnels()  # the syphon loses the secondary, too
                office.primary_up()
                seen.next(Recovered)
                eventually(lambda number=number: office.primary.call(lambda: queue.counters.active) == number)
            syphon.send_signal(signal.SIGTERM)
            _, errors = syphon.communicate(timeout=SECONDS)
        finally:
            syphon.kill()
    assert syphon.returncode == 0, errors
    assert "Traceback" not in errors
    assert LOGIN[1] not in errors


def test_an_outage_behind_the_proxy_leaves_no_traceback_in_the_log(
    proxied: Office, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "azure.servicebus")
    queue = proxied.queue()
    with proxied.client() as client, client.get_queue_sender(queue.path) as sender:
        seen = Seen(client)
        down(proxied.primary)
        assert sender.send_messages(ServiceBusMessage("1")).route is Route.BACKLOG
        seen.next(PingFailed)
        proxied.primary_up()
        seen.next(Recovered)
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
    of_sdk = [record for record in caplog.records if record.name.startswith("azure.servicebus")]
    assert {record.levelno for record in of_sdk} == {logging.INFO}
    refusals = {
        record.name for record in of_sdk if "refused the tunnel" in record.getMessage() and "502" in record.getMessage()
    }
    assert refusals == {"azure.servicebus._base_handler", "azure.servicebus.aio._base_handler_async"}


def test_every_connection_goes_through_the_proxy(proxied: Office) -> None:
    """Administration included: it makes the backlog queues."""
    proxied.proxy.tunnels.clear()
    with proxied.client() as client:
        assert [one.path for one in client.list_backlog()] == [f"contoso/x-servicebus-transfer/{i}" for i in range(2)]
        assert proxied.tunnelled_to(proxied.secondary)
        with client.get_queue_sender(proxied.queue().path) as sender:
            sender.send_messages(ServiceBusMessage("x"))
        assert proxied.tunnelled_to(proxied.primary)


# ---- the proxy itself fails ----

FAILURES: dict[str, Callable[[ConnectProxy], None]] = {
    "is down": lambda proxy: proxy.stop(),
    "hangs": lambda proxy: proxy.break_tunnels(hangs=True),
    "asks for another login": lambda proxy: proxy.break_tunnels(refuse_with=407),
    "is out of order": lambda proxy: proxy.break_tunnels(refuse_with=503),
}


@pytest.fixture(params=FAILURES)
def fail(request: pytest.FixtureRequest, proxied: Office) -> Iterator[Callable[[], None]]:
    yield lambda: FAILURES[request.param](proxied.proxy)
    proxied.proxy.repair()


def has_no_password(text: str) -> bool:
    return LOGIN[1] not in text and base64.b64encode(":".join(LOGIN).encode()).decode() not in text


def test_a_sync_send_is_refused_while_the_proxy_fails_and_works_afterwards(
    proxied: Office, fail: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    queue = proxied.queue()
    with (
        proxied.client(**HOSTED, attempt_timeout=1) as client,
        client.get_queue_sender(queue.path) as sender,
    ):
        seen = Seen(client)
        sender.send_messages(ServiceBusMessage("1"))
        fail()
        with pytest.raises(BacklogUnavailableError) as caught:
            sender.send_messages(ServiceBusMessage("2"), timeout=SECONDS)
        assert has_no_password(str(caught.value) + repr(caught.value))
        proxied.proxy.repair()
        seen.next(Recovered)
        assert sender.send_messages(ServiceBusMessage("3")).route is Route.PRIMARY
        assert received(proxied, client, queue, 2) == ["1", "3"]
    assert has_no_password(caplog.text)


async def test_an_async_send_is_refused_while_the_proxy_fails_and_works_afterwards(
    proxied: Office, fail: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    queue = proxied.queue()
    async with (
        proxied.async_client(**HOSTED, attempt_timeout=1) as client,
        client.get_queue_sender(queue.path) as sender,
    ):
        seen = Seen(client)
        await sender.send_messages(ServiceBusMessage("1"))
        await asyncio.to_thread(fail)
        with pytest.raises(BacklogUnavailableError) as caught:
            await sender.send_messages(ServiceBusMessage("2"), timeout=SECONDS)
        assert has_no_password(str(caught.value) + repr(caught.value))
        await asyncio.to_thread(proxied.proxy.repair)
        await asyncio.to_thread(seen.next, Recovered)
        assert (await sender.send_messages(ServiceBusMessage("3"))).route is Route.PRIMARY
    assert has_no_password(caplog.text)


def test_sends_are_diverted_if_the_secondary_is_reached_directly(proxied: Office, fail: Callable[[], None]) -> None:
    queue = proxied.queue()
    secondary = proxied.secondary.connection_string.replace(";UseDevelopmentEmulator=true", "")
    trust = {"connection_verify": proxied.ca_file}
    pair = (
        Namespace.from_connection_string(proxied.texts[0], **proxied.client_options),
        Namespace.from_connection_string(secondary, transport_type=TransportType.AmqpOverWebsocket, **trust),
    )
    options = SendAvailabilityOptions(**{**OPTIONS, **HOSTED, "attempt_timeout": 1})
    with PairedServiceBusClient(*pair, options) as client, client.get_queue_sender(queue.path) as sender:
        seen = Seen(client)
        fail()
        assert sender.send_messages(ServiceBusMessage("1"), timeout=SECONDS).route is Route.BACKLOG
        proxied.proxy.repair()
        seen.next(Recovered)
        assert received(proxied, client, queue, 1) == ["1"]


def test_wrong_proxy_login_is_a_clear_error(proxied: Office) -> None:
    wrong = {**proxied.client_options, "http_proxy": {**proxied.http_proxy, "password": "guessed"}}
    options = SendAvailabilityOptions(**{**OPTIONS, "create_backlog": False})
    client = PairedServiceBusClient.from_connection_strings(*proxied.texts, options=options, **wrong)
    with client, client.get_queue_sender("orders") as sender, pytest.raises(BacklogUnavailableError, match="407"):
        sender.send_messages(ServiceBusMessage("x"), timeout=SECONDS)


def test_command_reports_the_answer_of_the_proxy(proxied: Office) -> None:
    proxied.proxy.break_tunnels(refuse_with=407)
    command = [sys.executable, "-m", "twinbus", "syphon", "--until-empty", "--queues", "1", "--proxy"]
    url = f"http://me:{LOGIN[1]}@127.0.0.1:{proxied.proxy.port}"
    try:
        ran = subprocess.run([*command, url], env=proxied.environment, capture_output=True, text=True, timeout=SECONDS)
    finally:
        proxied.proxy.repair()
    assert ran.returncode == 1
    assert f"through the proxy 127.0.0.1:{proxied.proxy.port}: it answered 407" in ran.stderr
    assert has_no_password(ran.stdout + ran.stderr)


# ---- the environment ----


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_over_websockets_the_proxy_of_the_environment_is_used(
    proxied: Office, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://{':'.join(LOGIN)}@127.0.0.1:{proxied.proxy.port}")
    path = proxied.queue().path
    options = {"transport_type": TransportType.AmqpOverWebsocket, "connection_verify": proxied.ca_file}
    namespace = Namespace.from_connection_string(proxied.texts[0], **options)
    assert str(namespace.proxy) == f"127.0.0.1:{proxied.proxy.port}"
    if kind == "async":
        async with namespace.async_client() as client, client.get_queue_sender(path) as sender:
            await sender.send_messages(ServiceBusMessage("x"))
    else:

        def send() -> None:
            with namespace.sync_client() as client, client.get_queue_sender(path) as sender:
                sender.send_messages(ServiceBusMessage("x"))

        await asyncio.to_thread(send)
    monkeypatch.setenv("NO_PROXY", DOMAIN)
    assert Namespace.from_connection_string(proxied.texts[0], **options).proxy is None
    assert Namespace.from_connection_string(proxied.texts[0], http_proxy=proxied.http_proxy).proxy is None
