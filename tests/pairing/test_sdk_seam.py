"""What the seam relies on, against the installed SDK: a version that moves these things fails here."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusMessageBatch, TransportType
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import ServiceBusError
from tests.pairing.paired import PATIENCE

from twinbus.broker import Fault, Kind, Namespace, QueueDescription
from twinbus.broker.background import NamespaceThread
from twinbus.broker.certificate import Certificate, server_context
from twinbus.pairing import sdk_seam

LIMIT = 256 * 1024


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamespaceThread]:
    folder = tmp_path_factory.mktemp("tls")
    with NamespaceThread(lambda: Namespace("contoso", certificate_folder=folder)) as running:
        running.run(running.namespace.create(QueueDescription("orders")))
        yield running


@pytest.fixture
def frozen(bus: NamespaceThread) -> Iterator[None]:
    """Connections are taken, and nothing is said."""
    bus.call(bus.namespace.faults.add, Fault(Kind.BLACKHOLE))
    yield
    bus.call(bus.namespace.faults.clear)


def over_tls(bus: NamespaceThread) -> tuple[str, dict[str, Any]]:
    namespace = bus.namespace
    assert namespace.certificate is not None
    text = bus.connection_string.replace("UseDevelopmentEmulator=true", "").rstrip(";")
    return text, {
        "custom_endpoint_address": f"sb://{namespace.host}:{namespace.port}",
        "transport_type": TransportType.Amqp,
        "connection_verify": str(namespace.certificate.ca_file),
    }


# ---- connections ----


def test_a_prepared_sender_has_no_retries_and_no_keep_alive_of_its_own(bus: NamespaceThread) -> None:
    threads = threading.enumerate()
    with ServiceBusClient.from_connection_string(bus.connection_string) as client:
        sender = client.get_queue_sender("orders")
        sdk_seam.prepare(sender)
        sender.send_messages(ServiceBusMessage("hello"))
        assert sdk_seam.opened(sender) == 30.0
        assert sender._handler._keep_alive_thread is None
        assert set(threading.enumerate()) <= set(threads)  # there is nobody whose end a close would have to wait for
        sender.close()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_abort_ends_an_opening_in_another_thread_that_would_wait_for_ever(
    bus: NamespaceThread, frozen: None, tls: bool
) -> None:
    text, options = over_tls(bus) if tls else (bus.connection_string, {})
    sender = ServiceBusClient.from_connection_string(text, **options).get_queue_sender("orders")
    sdk_seam.prepare(sender)
    raised: list[BaseException] = []

    def opens() -> None:
        try:
            sender.__enter__()
        except ServiceBusError as error:
            raised.append(error)

    thread = threading.Thread(target=opens, daemon=True)
    thread.start()
    thread.join(0.5)
    assert thread.is_alive()
    sdk_seam.abort(sender)
    thread.join(PATIENCE)
    assert len(raised) == 1
    sender.close()
    sdk_seam.forgotten(sender)
    assert sdk_seam._transport(sender).sock is None


@pytest.mark.parametrize("wrong", ["authority", "name"])
def test_the_certificate_and_the_name_of_the_host_are_still_checked(bus: NamespaceThread, wrong: str) -> None:
    text, options = over_tls(bus)
    assert bus.namespace.certificate is not None
    with socket.create_server(("127.0.0.2", 0)) as server:
        if wrong == "authority":
            options["connection_verify"] = None
        else:  # its certificate is good for 127.0.0.1 only
            options["custom_endpoint_address"] = f"sb://127.0.0.2:{server.getsockname()[1]}"
            threading.Thread(target=shake_hands, args=(server, bus.namespace.certificate), daemon=True).start()
        sender = ServiceBusClient.from_connection_string(text, **options).get_queue_sender("orders")
        sdk_seam.prepare(sender)
        with pytest.raises(ServiceBusError) as raised:
            sender.__enter__()
    assert isinstance(raised.value.inner_exception.inner_error, ssl.SSLCertVerificationError)


def shake_hands(server: socket.socket, certificate: Certificate) -> None:
    connection, _ = server.accept()
    with contextlib.suppress(ssl.SSLError), connection:
        server_context(certificate).wrap_socket(connection, server_side=True)


async def test_abort_ends_an_opening_in_another_task(bus: NamespaceThread, frozen: None) -> None:
    client = AsyncServiceBusClient.from_connection_string(bus.connection_string)
    sender = client.get_queue_sender("orders")
    sdk_seam.prepare(sender)
    opening = asyncio.create_task(sender.__aenter__())
    await asyncio.wait({opening}, timeout=0.5)
    assert not opening.done()
    sdk_seam.abort(sender)
    with pytest.raises(ServiceBusError):
        await opening
    await sender.close()
    left_open = sdk_seam.forgotten(sender)
    assert left_open is not None
    await left_open


def test_abort_ends_a_send_on_an_open_link(bus: NamespaceThread) -> None:
    sender = ServiceBusClient.from_connection_string(bus.connection_string).get_queue_sender("orders")
    sdk_seam.prepare(sender)
    sender.send_messages(ServiceBusMessage("hello"))
    sdk_seam.opened(sender)
    assert sdk_seam.is_open(sender)
    bus.call(bus.namespace.faults.add, Fault(Kind.BLACKHOLE))
    raised: list[BaseException] = []

    def sends() -> None:
        try:
            sender.send_messages(ServiceBusMessage("hello"))
        except ServiceBusError as error:
            raised.append(error)

    thread = threading.Thread(target=sends, daemon=True)
    thread.start()
    thread.join(0.5)
    sdk_seam.abort(sender)
    thread.join(PATIENCE)
    bus.call(bus.namespace.faults.clear)
    assert len(raised) == 1
    assert not sdk_seam.is_open(sender)
    sdk_seam.forgotten(sender)


def test_abort_is_harmless_before_and_after(bus: NamespaceThread) -> None:
    sender = ServiceBusClient.from_connection_string(bus.connection_string).get_queue_sender("orders")
    sdk_seam.prepare(sender)
    sdk_seam.abort(sender)
    assert not sdk_seam.is_open(sender)
    sender.send_messages(ServiceBusMessage("hello"))
    sender.close()
    sdk_seam.abort(sender)


def test_a_link_that_the_service_detached_is_seen_by_listening(bus: NamespaceThread) -> None:
    sender = ServiceBusClient.from_connection_string(bus.connection_string).get_queue_sender("orders")
    sdk_seam.prepare(sender)
    sender.send_messages(ServiceBusMessage("hello"))
    bus.call(bus.namespace.faults.add, Fault(Kind.DETACH, entity="orders", seconds=0.1))
    sdk_seam.listen(sender)
    assert not sdk_seam.is_open(sender)
    sender.close()
    with pytest.raises(ConnectionError):
        sdk_seam.listen(sender)


def test_the_limits_of_an_entity_are_known_once_it_is_open(bus: NamespaceThread) -> None:
    with ServiceBusClient.from_connection_string(bus.connection_string) as client:
        sender = client.get_queue_sender("orders")
        assert (sdk_seam.max_message_size(sender), sdk_seam.max_batch_size(sender)) == (0, 0)
        sender.send_messages(ServiceBusMessage("hello"))
        assert (sdk_seam.max_message_size(sender), sdk_seam.max_batch_size(sender)) == (LIMIT, LIMIT)


# ---- opening ----


def test_a_prepared_sender_takes_no_nap_while_it_is_opened(
    bus: NamespaceThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    naps: list[float] = []
    me, sleep = threading.current_thread(), time.sleep

    def counted(seconds: float) -> None:
        if threading.current_thread() is me:
            naps.append(seconds)
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", counted)
    taken = []
    for is_prepared in (False, True):
        client = ServiceBusClient.from_connection_string(bus.connection_string)
        sender = client.get_queue_sender("orders")
        if is_prepared:
            sdk_seam.prepare(sender)
        with client, sender:
            taken.append(len(naps))
            sdk_seam.opened(sender)
            assert "client_ready" not in vars(sender._handler)  # it is in the way of every send
            sender.send_messages(ServiceBusMessage("hello"))
        naps.clear()
    assert taken[0] > 5
    assert taken[1] == 0


async def test_neither_does_an_asynchronous_one(bus: NamespaceThread, monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []
    me, sleep = threading.current_thread(), asyncio.sleep

    async def counted(seconds: float, *more: Any) -> Any:
        if threading.current_thread() is me:  # and not that of the namespace
            naps.append(seconds)
        return await sleep(seconds, *more)

    monkeypatch.setattr(asyncio, "sleep", counted)
    async with AsyncServiceBusClient.from_connection_string(bus.connection_string) as client:
        sender = client.get_queue_sender("orders")
        sdk_seam.prepare(sender)
        async with sender:
            assert naps == []
            sdk_seam.opened(sender)
            assert "client_ready_async" not in vars(sender._handler)
            await sender.send_messages(ServiceBusMessage("hello"))


# ---- transfers ----

# One that fits a frame, one that just does not, and one that takes several.
SIZES = [1, 65_536 - 600, 65_536, 200_000]


def counters(sender: Any) -> tuple[int, ...]:
    session, link = sender._handler._session, sender._handler._link
    counted = session.next_outgoing_id, session.remote_incoming_window, session.outgoing_window
    return *counted, link.delivery_count, link.current_link_credit


def stored(bus: NamespaceThread, queue: str) -> list[bytes]:
    found = bus.namespace.find(queue)
    assert found is not None
    return [bytes(one.bare) for one in bus.call(found.queue.peek, 0, 100)]


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_a_quickened_sender_sends_and_counts_as_the_sdks_own(bus: NamespaceThread, kind: str) -> None:
    messages = [ServiceBusMessage(b"x" * size, message_id=f"m-{size}") for size in SIZES]

    def send(queue: str, is_quick: bool) -> tuple[int, ...]:
        with ServiceBusClient.from_connection_string(bus.connection_string) as client:
            sender = client.get_queue_sender(queue)
            with sender:
                if is_quick:
                    sdk_seam.opened(sender)
                for message in messages:
                    sender.send_messages(message)
                return counters(sender)

    async def send_async(queue: str, is_quick: bool) -> tuple[int, ...]:
        async with AsyncServiceBusClient.from_connection_string(bus.connection_string) as client:
            sender = client.get_queue_sender(queue)
            async with sender:
                if is_quick:
                    sdk_seam.opened(sender)
                for message in messages:
                    await sender.send_messages(message)
                return counters(sender)

    results = []
    for is_quick in (False, True):
        queue = f"transfers-{kind}-{is_quick}"
        bus.run(bus.namespace.create(QueueDescription(queue)))
        results.append(send(queue, is_quick) if kind == "sync" else asyncio.run(send_async(queue, is_quick)))
    theirs, ours = results
    assert ours == theirs
    assert stored(bus, f"transfers-{kind}-True") == stored(bus, f"transfers-{kind}-False")


def test_an_sdk_that_has_changed_inside_sends_as_it_likes(bus: NamespaceThread) -> None:
    client = ServiceBusClient.from_connection_string(bus.connection_string)
    with client, client.get_queue_sender("orders") as sender:
        session = sender._handler._session
        window = session.outgoing_window
        del session.outgoing_window
        sdk_seam.opened(sender)
        assert "_outgoing_transfer" not in vars(session)
        session.outgoing_window = window


# ---- messages ----


def rich() -> ServiceBusMessage:
    return ServiceBusMessage(
        "body",
        application_properties={"number": 1, "text": "x" * 300},
        session_id="s",
        message_id="m",
        time_to_live=timedelta(hours=1),
        subject="subject",
    )


def test_the_size_of_a_body_is_told_at_a_glance() -> None:
    assert sdk_seam.body_size(ServiceBusMessage("grün")) == 5
    assert sdk_seam.body_size(ServiceBusMessage(None)) is None
    for body in ({"value_body": "x"}, {"sequence_body": [1]}, {"data_body": [b"a", b"b"]}):
        assert sdk_seam.body_size(sdk_seam.from_annotated(AmqpAnnotatedMessage(**body))) is None  # type: ignore[arg-type]


def test_a_batch_that_encodes_once_holds_the_same_bytes_as_the_sdks_own() -> None:
    ours, theirs = sdk_seam.new_batch(LIMIT), ServiceBusMessageBatch(LIMIT)
    for message in (ServiceBusMessage("a", message_id="1"), rich(), ServiceBusMessage(b"x" * 5000, message_id="2")):
        ours.add_message(message)
        theirs.add_message(message)
    assert ours._message == theirs._message
    assert (ours.size_in_bytes, len(ours)) == (theirs.size_in_bytes, len(theirs))


def test_a_snapshot_is_what_was_added_and_not_what_became_of_it() -> None:
    message, batch = rich(), sdk_seam.new_batch(LIMIT)
    batch.add_message(message)
    taken = sdk_seam.snapshot(message)
    message.subject = "another"
    message.application_properties["number"] = 2  # type: ignore[index]
    again = sdk_seam.new_batch(LIMIT)
    again.add_message(sdk_seam.from_snapshot(taken))
    assert again._message[5] == batch._message[5]
    assert sdk_seam.messages_of(batch) == [message]


def test_a_batch_of_the_other_kind_is_not_made_anew(bus: NamespaceThread) -> None:
    async def send() -> None:
        async with AsyncServiceBusClient.from_connection_string(bus.connection_string) as client:
            sender = client.get_queue_sender("orders")
            batch = sdk_seam.new_batch(LIMIT)
            batch.add_message(ServiceBusMessage("hello"))
            sdk_seam.suit(batch, sender)
            made: list[Any] = []
            sender.create_message_batch = made.append  # type: ignore[assignment, method-assign]
            await sender.send_messages(batch)
            assert made == []

    asyncio.run(send())


def test_what_the_sdk_traces_of_a_batch_is_the_same(bus: NamespaceThread) -> None:
    with ServiceBusClient.from_connection_string(bus.connection_string) as client:
        sender = client.get_queue_sender("orders")
        theirs = sender.create_message_batch()._tracing_attributes
        assert sdk_seam.tracing_attributes(client.fully_qualified_namespace, "orders") == theirs


def test_a_socket_is_cut_and_not_closed() -> None:
    one, other = socket.socketpair()
    with one, other:
        sdk_seam._shut_down(one)
        assert one.fileno() != -1
        assert other.recv(1) == b""
        sdk_seam._shut_down(one)
