"""Namespaces at an IPv6 address: an outage with both clients, the hosted syphon, `twinbus serve` and the commands."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from tests.client.threads import Seen, down, eventually
from tests.sdk_connection import needs_plain_text

from twinbus import Namespace, PairedServiceBusClient, Recovered, Route, SendAvailabilityOptions, SyphonOptions, aio
from twinbus.emulator import AZURE, NamespaceThread, QueueDescription
from twinbus.emulator import Namespace as EmbeddedNamespace


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as bound:
            bound.bind(("::1", 0))
    except OSError:
        return False
    return True


pytestmark = [
    pytest.mark.slow,
    needs_plain_text,
    pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6 loopback address"),
]

SECONDS = 120
OPTIONS = SendAvailabilityOptions(
    backlog_queue_count=2,
    failover_interval=0,
    ping_primary_interval=1,
    attempt_timeout=5,
    enable_syphon=True,
    syphon=SyphonOptions(retry_min=0.1, retry_max=1),
)


@pytest.fixture(scope="module")
def twins() -> Iterator[tuple[NamespaceThread, NamespaceThread]]:
    def make(name: str) -> EmbeddedNamespace:
        return EmbeddedNamespace(name, host="::1", profile=AZURE)

    with NamespaceThread(lambda: make("contoso")) as primary, NamespaceThread(lambda: make("standby")) as secondary:
        yield primary, secondary


def test_a_sync_client_fails_over_and_returns(twins: tuple[NamespaceThread, NamespaceThread]) -> None:
    primary, secondary = twins
    queue = primary.run(primary.namespace.create(QueueDescription("orders-sync"))).queue
    texts = primary.connection_string, secondary.connection_string
    with (
        PairedServiceBusClient.from_connection_strings(*texts, options=OPTIONS) as client,
        client.get_queue_sender(queue.path) as sender,
    ):
        seen = Seen(client)
        assert sender.send_messages(ServiceBusMessage("1")).route is Route.PRIMARY
        down(primary)
        assert sender.send_messages(ServiceBusMessage("2")).route is Route.BACKLOG
        primary.call(primary.namespace.faults.clear)
        seen.next(Recovered)
        eventually(lambda: primary.call(lambda: queue.counters.active) == 2)


async def test_an_async_client_fails_over_and_returns(twins: tuple[NamespaceThread, NamespaceThread]) -> None:
    primary, secondary = twins
    queue = primary.run(primary.namespace.create(QueueDescription("orders-async"))).queue
    texts = primary.connection_string, secondary.connection_string
    async with (
        aio.PairedServiceBusClient.from_connection_strings(*texts, options=OPTIONS) as client,
        client.get_queue_sender(queue.path) as sender,
    ):
        seen = Seen(client)
        assert (await sender.send_messages(ServiceBusMessage("1"))).route is Route.PRIMARY
        down(primary)
        assert (await sender.send_messages(ServiceBusMessage("2"))).route is Route.BACKLOG
        primary.call(primary.namespace.faults.clear)
        await asyncio.to_thread(seen.next, Recovered)
        await asyncio.to_thread(eventually, lambda: primary.call(lambda: queue.counters.active) == 2)


async def test_a_namespace_over_tls_is_reached(tmp_path: Path) -> None:
    async with EmbeddedNamespace("contoso", host="::1", certificate_folder=tmp_path) as namespace:
        await namespace.create(QueueDescription("orders"))
        assert namespace.certificate is not None
        text = namespace.connection_string.replace(";UseDevelopmentEmulator=true", "")
        side = Namespace.from_connection_string(text, connection_verify=str(namespace.certificate.ca_file))
        async with side.async_client() as client, client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("x"))
        async with side.administration() as administration:
            assert (await administration.get_queue_runtime_properties("orders")).active_message_count == 1


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_the_connection_strings_of_serve_work_with_the_commands(host: str, tmp_path: Path) -> None:
    twinbus = [sys.executable, "-m", "twinbus"]
    names = ["--namespace", "contoso=0", "--namespace", "standby=0"]
    served = subprocess.Popen(
        [*twinbus, "serve", "--host", host, *names, "--json"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    try:
        assert served.stdout is not None
        namespaces = json.loads(served.stdout.readline())["namespaces"]
        texts = [one["connection_string"] for one in namespaces.values()]
        assert all(text.startswith("Endpoint=sb://[::1]:") for text in texts)
        with PairedServiceBusClient.from_connection_strings(*texts, options=OPTIONS):
            pass  # it has made the backlog queues
        environment = {**os.environ, "TWINBUS_PRIMARY": texts[0], "TWINBUS_SECONDARY": texts[1]}
        for command in (["syphon", "--until-empty"], ["status"], ["backlog", "list"]):
            ran = subprocess.run(
                [*twinbus, *command, "--queues", "2"], env=environment, capture_output=True, text=True, timeout=SECONDS
            )
            assert ran.returncode == 0, ran.stdout + ran.stderr
    finally:
        served.terminate()
        served.communicate(timeout=SECONDS)
