"""Tests that the proxy strikes at the chosen point, counts it, and otherwise changes nothing."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender
from azure.servicebus.exceptions import ServiceBusError
from proof.breaking_proxy import FaultKind, FrameFault, LastingFault, PassedPart, Proxy
from proof.proxy_frames import FaultPoint, FrameTracker, entity_of

from twinbus.emulator import Namespace, QueueDescription

# The SDK leaks the streams of broken connections; each test collects them while this filter is active.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

QUEUE = "orders"
SECONDS = 10.0


@pytest.fixture
async def namespace() -> AsyncIterator[Namespace]:
    async with Namespace("contoso") as running:
        await running.create(QueueDescription(QUEUE))
        yield running


@pytest.fixture
async def proxy(namespace: Namespace) -> AsyncIterator[Proxy]:
    async with Proxy(namespace.port) as running:
        yield running


@pytest.fixture
async def client(namespace: Namespace, proxy: Proxy) -> AsyncIterator[ServiceBusClient]:
    text = namespace.connection_string.replace(f":{namespace.port}", f":{proxy.port}")
    async with ServiceBusClient.from_connection_string(text, retry_total=0) as opened:
        yield opened
    del opened
    gc.collect()


@pytest.fixture
async def sender(client: ServiceBusClient) -> AsyncIterator[ServiceBusSender]:
    async with client.get_queue_sender(QUEUE) as opened:
        yield opened


def _stored(namespace: Namespace) -> int:
    node = namespace.entities.resolve(QUEUE)
    assert node is not None
    return node.queue.counters.active


async def test_everything_passes_without_faults(namespace: Namespace, proxy: Proxy, sender: ServiceBusSender) -> None:
    await sender.send_messages([ServiceBusMessage("x" * 50_000) for _ in range(4)])  # more than one frame
    assert _stored(namespace) == 4


@pytest.mark.parametrize(
    ("point", "passing", "is_stored", "is_acknowledged"),
    [
        (FaultPoint.TRANSFER, "nothing", False, False),
        (FaultPoint.TRANSFER, "half", False, False),
        (FaultPoint.OUTCOME, "nothing", True, False),
        (FaultPoint.OUTCOME, "all", True, True),
    ],
)
async def test_reset_strikes_exactly_at_its_point(
    namespace: Namespace,
    proxy: Proxy,
    sender: ServiceBusSender,
    point: FaultPoint,
    passing: PassedPart,
    is_stored: bool,
    is_acknowledged: bool,
) -> None:
    elsewhere = proxy.arm(FrameFault(point=point, entity="others", passing=passing))
    fault = proxy.arm(FrameFault(point=point, entity=QUEUE, passing=passing))
    if is_acknowledged:
        await sender.send_messages(ServiceBusMessage("order"))
        with pytest.raises(ServiceBusError):  # the sender notices the reset now
            await sender.send_messages(ServiceBusMessage("never stored"), timeout=SECONDS)
    else:
        with pytest.raises(ServiceBusError):
            await sender.send_messages(ServiceBusMessage("order"), timeout=SECONDS)
    assert _stored(namespace) == int(is_stored)
    assert (fault.fired, fault.fired_at(QUEUE), elsewhere.fired) == (1, 1, 0)
    await sender.send_messages(ServiceBusMessage("again"))  # the fault strikes once
    assert _stored(namespace) == 1 + is_stored


async def test_black_hole_delays_messages(namespace: Namespace, proxy: Proxy, sender: ServiceBusSender) -> None:
    fault = proxy.begin(LastingFault(kind=FaultKind.BLACK_HOLE))
    with pytest.raises(ServiceBusError):
        await sender.send_messages(ServiceBusMessage("order"), timeout=1)
    assert _stored(namespace) == 0
    assert fault.fired_at(QUEUE) >= 1
    await proxy.end(fault)
    async with asyncio.timeout(SECONDS):
        while not _stored(namespace):  # noqa: ASYNC110 - the namespace has no event for it
            await asyncio.sleep(0.01)


async def test_messages_with_lost_answers_are_stored(
    namespace: Namespace, proxy: Proxy, sender: ServiceBusSender
) -> None:
    fault = proxy.begin(LastingFault(kind=FaultKind.ANSWERS_LOST))
    with pytest.raises(ServiceBusError):
        await sender.send_messages(ServiceBusMessage("order"), timeout=1)
    assert _stored(namespace) == 1
    assert fault.fired_at(QUEUE) >= 1


async def test_half_open_connection_drops_messages_and_new_one_works(
    namespace: Namespace, proxy: Proxy, sender: ServiceBusSender, client: ServiceBusClient
) -> None:
    fault = proxy.begin(LastingFault(kind=FaultKind.HALF_OPEN))
    with pytest.raises(ServiceBusError):
        await sender.send_messages(ServiceBusMessage("order"), timeout=1)
    assert _stored(namespace) == 0
    assert fault.fired_at(QUEUE) >= 1
    async with client.get_queue_sender(QUEUE) as another:
        await another.send_messages(ServiceBusMessage("again"), timeout=SECONDS)
    assert _stored(namespace) == 1


async def test_refusing_proxy_reopens_on_the_same_port(
    namespace: Namespace, proxy: Proxy, sender: ServiceBusSender
) -> None:
    port, fault = proxy.port, proxy.begin(LastingFault(kind=FaultKind.REFUSE))
    with pytest.raises(ServiceBusError):
        await sender.send_messages(ServiceBusMessage("order"), timeout=SECONDS)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    assert fault.fired_at(QUEUE) == 1
    await proxy.end(fault)
    assert proxy.port == port
    await sender.send_messages(ServiceBusMessage("again"), timeout=SECONDS)
    assert _stored(namespace) == 1


@pytest.mark.parametrize("kind", [FaultKind.SLICED, FaultKind.SLOW])
async def test_slow_and_sliced_messages_arrive_complete(
    namespace: Namespace, proxy: Proxy, sender: ServiceBusSender, kind: FaultKind
) -> None:
    fault = proxy.begin(LastingFault(kind=kind, delay=0.05))
    await sender.send_messages([ServiceBusMessage("x" * 100) for _ in range(3)], timeout=SECONDS)
    assert _stored(namespace) == 3
    assert fault.fired_at(QUEUE) >= 1


def test_other_protocols_pass_unchanged() -> None:
    tracker = FrameTracker()
    request = b"GET /orders HTTP/1.1\r\n\r\n"
    assert [piece.raw for piece in tracker.feed(request, by_client=True)] == [request]
    assert [piece.raw for piece in tracker.feed(b"HTTP/1.1 200 OK", by_client=False)] == [b"HTTP/1.1 200 OK"]


@pytest.mark.parametrize("cut", [1, 7, 8, 9, 20])
def test_split_frames_are_reassembled(cut: int) -> None:
    header, frame = b"AMQP\x00\x01\x00\x00", b"\x00\x00\x00\x10\x02\x00\x00\x00" + b"payload!"
    stream, tracker = header + frame * 3, FrameTracker()
    chunks = [stream[pos : pos + cut] for pos in range(0, len(stream), cut)]
    frames = [piece.raw for chunk in chunks for piece in tracker.feed(chunk, by_client=True)]
    assert frames == [header, frame, frame, frame]


def test_entity_is_read_from_both_address_forms() -> None:
    assert entity_of("amqps://127.0.0.1:5672/Orders/$management") == "orders/$management"
    assert entity_of("orders") == "orders"
    assert entity_of(None) == ""
