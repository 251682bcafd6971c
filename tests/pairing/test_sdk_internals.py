"""Reading private attributes of the SDK, and working without them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.exceptions import ServiceBusError
from tests.pairing.conftest import HIDDEN
from tests.pairing.paired import Stage, text
from tests.sdk_connection import client_options, needs_plain_text, reachable

from twinbus.emulator import Fault, FaultKind, FaultPoint, NamespaceThread, QueueDescription
from twinbus.pairing.failover.entity_failover import Route
from twinbus.pairing.pairing_errors import AttemptTimeoutError, HungCallsError, TwinbusError
from twinbus.pairing.sdk import deadline, internals
from twinbus.pairing.sdk.tls import client_tls
from twinbus.pairing.sending.parcel import Batched, Limits

PATIENCE = 60.0
LIMIT = 256 * 1024

pytestmark = pytest.mark.skipif(HIDDEN, reason="these are about what the others do without")


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamespaceThread]:
    folder = tmp_path_factory.mktemp("certificates")
    with NamespaceThread(lambda: reachable("contoso", certificate_folder=folder)) as running:
        running.run(running.namespace.create(QueueDescription("orders")))
        yield running


@pytest.fixture
def frozen(bus: NamespaceThread) -> Iterator[None]:
    bus.call(bus.namespace.faults.add, Fault(FaultKind.BLACKHOLE))
    yield
    bus.call(bus.namespace.faults.clear)


def ends_with_an_error(call: Any) -> tuple[threading.Thread, list[BaseException]]:
    """Make a call in a thread that must not end before it is cut."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except ServiceBusError as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(0.5)
    assert thread.is_alive()
    return thread, raised


@needs_plain_text
def test_cutting_ends_an_opening_in_another_thread(bus: NamespaceThread, frozen: None) -> None:
    client = ServiceBusClient.from_connection_string(
        bus.connection_string, retry_total=0, **client_options(bus.namespace)
    )
    sender = client.get_queue_sender("orders")
    thread, raised = ends_with_an_error(sender.__enter__)
    internals.cut(internals.connection(sender))
    thread.join(PATIENCE)
    assert len(raised) == 1
    sender.close()


def test_cutting_ends_a_send_on_an_open_link(bus: NamespaceThread) -> None:
    client = ServiceBusClient.from_connection_string(
        bus.connection_string, retry_total=0, **client_options(bus.namespace)
    )
    sender = client.get_queue_sender("orders")
    sender.send_messages(ServiceBusMessage("hello"))
    assert internals.can_cut(sender)
    bus.call(bus.namespace.faults.add, Fault(FaultKind.BLACKHOLE))
    thread, raised = ends_with_an_error(lambda: sender.send_messages(ServiceBusMessage("hello")))
    sock = internals.open_socket(internals.connection(sender))
    internals.cut(internals.connection(sender))
    thread.join(PATIENCE)
    bus.call(bus.namespace.faults.clear)
    assert len(raised) == 1
    assert sock is not None
    sock.close()


@needs_plain_text
async def test_cutting_ends_an_opening_in_another_task(bus: NamespaceThread, frozen: None) -> None:
    client = AsyncServiceBusClient.from_connection_string(
        bus.connection_string, retry_total=0, **client_options(bus.namespace)
    )
    sender = client.get_queue_sender("orders")
    opening = asyncio.create_task(sender.__aenter__())
    await asyncio.wait({opening}, timeout=0.5)
    assert not opening.done()
    internals.cut(internals.connection(sender))
    with pytest.raises(ServiceBusError):
        await opening
    await sender.close()


def test_cutting_is_harmless_before_and_after(bus: NamespaceThread) -> None:
    sender = ServiceBusClient.from_connection_string(
        bus.connection_string, **client_options(bus.namespace)
    ).get_queue_sender("orders")
    assert not internals.can_cut(sender)
    internals.cut(internals.connection(sender))
    sender.send_messages(ServiceBusMessage("hello"))
    sender.close()
    internals.cut(internals.connection(sender))


def test_the_limits_of_an_entity_are_known_once_it_is_open(bus: NamespaceThread) -> None:
    with ServiceBusClient.from_connection_string(bus.connection_string, **client_options(bus.namespace)) as client:
        sender = client.get_queue_sender("orders")
        assert internals.max_message_size(sender) is None
        sender.send_messages(ServiceBusMessage("hello"))
        assert internals.max_message_size(sender) == LIMIT
        assert sender.create_message_batch().max_size_in_bytes == LIMIT
        sender.close()


def test_messages_of_an_sdk_batch_can_be_read(bus: NamespaceThread) -> None:
    with (
        ServiceBusClient.from_connection_string(bus.connection_string, **client_options(bus.namespace)) as client,
        client.get_queue_sender("orders") as sender,
    ):
        batch = sender.create_message_batch()
        batch.add_message(ServiceBusMessage("one", message_id="1"))
        assert [message.message_id for message in internals.messages_of(batch) or ()] == ["1"]


# ---- TLS ----


def over_tls(bus: NamespaceThread, **options: Any) -> ServiceBusClient:
    text = bus.connection_string.replace("UseDevelopmentEmulator=true", "").rstrip(";")
    options.setdefault("custom_endpoint_address", f"sb://{bus.namespace.host}:{bus.namespace.port}")
    options.setdefault("transport_type", TransportType.Amqp)
    return ServiceBusClient.from_connection_string(text, retry_total=0, **options)


def authorities(bus: NamespaceThread) -> str:
    assert bus.namespace.certificate is not None
    return str(bus.namespace.certificate.ca_file)


@needs_plain_text
@pytest.mark.parametrize("transport", [TransportType.Amqp, TransportType.AmqpOverWebsocket])
def test_a_handshake_ends_at_the_deadline_of_the_call(
    bus: NamespaceThread, frozen: None, transport: TransportType
) -> None:
    client = over_tls(bus, transport_type=transport, ssl_context=client_tls(authorities(bus), PATIENCE))
    sender = client.get_queue_sender("orders")
    started = time.monotonic()
    deadline.call.ends = started + 0.5
    try:
        with pytest.raises(ServiceBusError):
            sender.__enter__()
    finally:
        deadline.call.ends = float("inf")
    assert time.monotonic() - started < 5.0
    sender.close()


@needs_plain_text
@pytest.mark.parametrize("transport", [TransportType.Amqp, TransportType.AmqpOverWebsocket])
@pytest.mark.parametrize("wrong", ["authority", "name"])
def test_the_certificate_and_the_name_of_the_host_are_checked(
    bus: NamespaceThread, wrong: str, transport: TransportType
) -> None:
    certificate = bus.namespace.certificate
    assert certificate is not None
    with socket.create_server(("127.0.0.2", 0)) as server:
        options: dict[str, Any] = {"ssl_context": client_tls(authorities(bus), PATIENCE), "transport_type": transport}
        if wrong == "authority":
            options["ssl_context"] = client_tls(None, PATIENCE)
        else:  # its certificate is good for 127.0.0.1 only
            options["custom_endpoint_address"] = f"sb://127.0.0.2:{server.getsockname()[1]}"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate.cert_file, certificate.key_file)
            threading.Thread(target=shake_hands, args=(server, context), daemon=True).start()
        with pytest.raises(ServiceBusError) as raised:
            over_tls(bus, **options).get_queue_sender("orders").__enter__()
    assert "certificate" in str(raised.value).lower() or "CERTIFICATE" in repr(raised.value.inner_exception)


def shake_hands(server: socket.socket, context: ssl.SSLContext) -> None:
    connection, _ = server.accept()
    with contextlib.suppress(ssl.SSLError, OSError), connection:
        context.wrap_socket(connection, server_side=True)


# ---- without it ----


@pytest.fixture
def without_internals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "attribute", lambda owner, *names: None)


def test_sdk_batch_with_hidden_messages_is_refused_in_failover(bus: NamespaceThread, without_internals: None) -> None:
    with (
        ServiceBusClient.from_connection_string(bus.connection_string, **client_options(bus.namespace)) as client,
        client.get_queue_sender("orders") as sender,
    ):
        batch = sender.create_message_batch()
        batch.add_message(ServiceBusMessage("one"))
        parcel = Batched(batch, "orders")
        assert parcel.message_ids == ("",)
        with pytest.raises(TwinbusError, match="create_message_batch of the paired sender"):
            parcel.next_part(Limits(LIMIT, LIMIT))


def test_hung_calls_are_abandoned_up_to_a_bound_and_then_refused(without_internals: None) -> None:
    """Sync calls run in helper threads where they cannot be cut; no more than `max_links` of them hang at a time."""
    options = {"attempt_timeout": 2.0, "failover_interval": 60, "max_links": 2, "while_suspect": "raise"}
    with Stage.set_up() as stage, stage.pair("sync", **options) as pair:
        sender = pair.sender()
        sender.send_messages(text())
        pair.strike(FaultKind.BLACKHOLE, on=frozenset({FaultPoint.SEND}))
        for _ in range(2):
            with pytest.raises(AttemptTimeoutError):
                sender.send_messages(text())
        with pytest.raises(HungCallsError, match=r"2 calls to .* hang in the SDK"):
            sender.send_messages(text())
        stage.clear()
        stage.wait_until(lambda: not any(link.is_hung for link in sender._delivery._primary._abandoned))
        assert sender.send_messages(text()).route is Route.PRIMARY


async def test_a_cancelled_send_is_closed_in_time_without_cutting(without_internals: None) -> None:
    with Stage.set_up() as stage, stage.pair("aio", attempt_timeout=2.0, failover_interval=60) as pair:
        sender = pair.sender()
        sender.send_messages(text())
        pair.strike(FaultKind.BLACKHOLE, on=frozenset({FaultPoint.SEND}))
        assert sender.send_messages(text()).route is Route.BACKLOG
        stage.clear()
        assert sender.send_messages(text()).route is Route.PRIMARY
