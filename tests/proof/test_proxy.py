"""The proxy strikes where it is told to, counts it, and otherwise changes nothing."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender
from azure.servicebus.exceptions import ServiceBusError

from twinbus.broker import Namespace, QueueDescription
from twinbus.proof.proxy import Ambush, Passing, Proxy, Spell, Weather
from twinbus.proof.proxy_frames import Conversation, Point, entity_of

# The SDK leaves the streams of a connection that broke to the collector: each test has it come while this holds.
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


async def test_without_a_fault_everything_passes(namespace: Namespace, proxy: Proxy, sender: ServiceBusSender) -> None:
    await sender.send_messages([ServiceBusMessage("x" * 50_000) for _ in range(4)])  # more than one frame
    assert _stored(namespace) == 4


@pytest.mark.parametrize(
    ("point", "passing", "is_stored", "is_told"),
    [
        (Point.TRANSFER, "nothing", False, False),
        (Point.TRANSFER, "half", False, False),
        (Point.OUTCOME, "nothing", True, False),
        (Point.OUTCOME, "all", True, True),
    ],
)
async def test_a_reset_comes_exactly_at_its_point(
    namespace: Namespace,
    proxy: Proxy,
    sender: ServiceBusSender,
    point: Point,
    passing: Passing,
    is_stored: bool,
    is_told: bool,
) -> None:
    elsewhere = proxy.lie_in_wait(Ambush(point=point, entity="others", passing=passing))
    ambush = proxy.lie_in_wait(Ambush(point=point, entity=QUEUE, passing=passing))
    if is_told:
        await sender.send_messages(ServiceBusMessage("order"))
        with pytest.raises(ServiceBusError):  # the connection is gone, and the sender finds out now
            await sender.send_messages(ServiceBusMessage("never stored"), timeout=SECONDS)
    else:
        with pytest.raises(ServiceBusError):
            await sender.send_messages(ServiceBusMessage("order"), timeout=SECONDS)
    assert _stored(namespace) == int(is_stored)
    assert (ambush.fired, ambush.fired_at(QUEUE), elsewhere.fired) == (1, 1, 0)
    await sender.send_messages(ServiceBusMessage("again"))  # it strikes once
    assert _stored(namespace) == 1 + is_stored


async def test_what_a_black_hole_held_up_arrives_late(
    namespace: Namespace, proxy: Proxy, sender: ServiceBusSender
) -> None:
    spell = proxy.begin(Spell(weather=Weather.BLACK_HOLE))
    with pytest.raises(ServiceBusError):
        await sender.send_messages(ServiceBusMessage("order"), timeout=1)
    assert _stored(namespace) == 0
    assert spell.fired_at(QUEUE) >= 1
    await proxy.end(spell)
    async with asyncio.timeout(SECONDS):
        while not _stored(namespace):  # noqa: ASYNC110 - the namespace tells nobody
            await asyncio.sleep(0.01)


async def test_lost_answers_are_those_of_messages_that_were_stored(
    namespace: Namespace, proxy: Proxy, sender: ServiceBusSender
) -> None:
    spell = proxy.begin(Spell(weather=Weather.ANSWERS_LOST))
    with pytest.raises(ServiceBusError):
        await sender.send_messages(ServiceBusMessage("order"), timeout=1)
    assert _stored(namespace) == 1
    assert spell.fired_at(QUEUE) >= 1


async def test_a_half_open_connection_swallows_and_a_new_one_works(
    namespace: Namespace, proxy: Proxy, sender: ServiceBusSender, client: ServiceBusClient
) -> None:
    spell = proxy.begin(Spell(weather=Weather.HALF_OPEN))
    with pytest.raises(ServiceBusError):
        await sender.send_messages(ServiceBusMessage("order"), timeout=1)
    assert _stored(namespace) == 0
    assert spell.fired_at(QUEUE) >= 1
    async with client.get_queue_sender(QUEUE) as another:
        await another.send_messages(ServiceBusMessage("again"), timeout=SECONDS)
    assert _stored(namespace) == 1


async def test_refused_connections_are_taken_again_at_the_same_port(
    namespace: Namespace, proxy: Proxy, sender: ServiceBusSender
) -> None:
    port, spell = proxy.port, proxy.begin(Spell(weather=Weather.REFUSE))
    with pytest.raises(ServiceBusError):
        await sender.send_messages(ServiceBusMessage("order"), timeout=SECONDS)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    assert spell.fired_at(QUEUE) == 1
    await proxy.end(spell)
    assert proxy.port == port
    await sender.send_messages(ServiceBusMessage("again"), timeout=SECONDS)
    assert _stored(namespace) == 1


@pytest.mark.parametrize("weather", [Weather.SLICED, Weather.SLOW])
async def test_slow_and_sliced_messages_arrive_whole(
    namespace: Namespace, proxy: Proxy, sender: ServiceBusSender, weather: Weather
) -> None:
    spell = proxy.begin(Spell(weather=weather, delay=0.05))
    await sender.send_messages([ServiceBusMessage("x" * 100) for _ in range(3)], timeout=SECONDS)
    assert _stored(namespace) == 3
    assert spell.fired_at(QUEUE) >= 1


def test_what_is_not_amqp_passes_as_it_is() -> None:
    talk = Conversation()
    request = b"GET /orders HTTP/1.1\r\n\r\n"
    assert [one.raw for one in talk.fed(request, by_client=True)] == [request]
    assert [one.raw for one in talk.fed(b"HTTP/1.1 200 OK", by_client=False)] == [b"HTTP/1.1 200 OK"]


@pytest.mark.parametrize("cut", [1, 7, 8, 9, 20])
def test_frames_come_whole_however_they_are_cut(cut: int) -> None:
    header, frame = b"AMQP\x00\x01\x00\x00", b"\x00\x00\x00\x10\x02\x00\x00\x00" + b"payload!"
    stream, talk = header + frame * 3, Conversation()
    pieces = [stream[pos : pos + cut] for pos in range(0, len(stream), cut)]
    found = [one.raw for piece in pieces for one in talk.fed(piece, by_client=True)]
    assert found == [header, frame, frame, frame]


def test_addresses_are_read_in_both_forms() -> None:
    assert entity_of("amqps://127.0.0.1:5672/Orders/$management") == "orders/$management"
    assert entity_of("orders") == "orders"
    assert entity_of(None) == ""
