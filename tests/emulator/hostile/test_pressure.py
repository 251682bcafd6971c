"""Connections are not read while too much waits for the disk, and nothing is lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusSender
from tests.emulator.faults.bench import until
from tests.emulator.frame_peer import Peer, transfer
from tests.emulator.hostile.conftest import QUEUE
from tests.emulator.raw_client import Delivery, RawClient, encoded_message

from twinbus.amqp.codec import performatives as amqp
from twinbus.emulator import Namespace, QueueDescription
from twinbus.emulator.protocol.connection import Connection
from twinbus.emulator.storage import store as store_module
from twinbus.emulator.storage.schema import INSERT_PLAIN, message_key
from twinbus.emulator.storage.store import Store

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("serving")]

READ = 1 << 18  # what asyncio takes from a socket at once
HALF = 100  # messages


class Disk:
    """A disk whose writes block until `release`."""

    def __init__(self, namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
        self._released = threading.Event()
        self._store: Any = namespace.store
        write = self._store._try_write

        def blocked_write(group: Any) -> Any:
            self._released.wait()
            return write(group)

        monkeypatch.setattr(self._store, "_try_write", blocked_write)
        monkeypatch.setattr(self._store, "_slow_until", float("inf"))  # so nothing is written on the event loop

    @property
    def waiting(self) -> tuple[int, int]:
        """Pending bytes and units."""
        return self._store.pending_bytes, len(self._store._waiting)

    def release(self) -> None:
        self._released.set()


@pytest.fixture
def disk(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    blocked = Disk(namespace, monkeypatch)
    yield blocked
    blocked.release()


def connection_of(namespace: Namespace, peer: Peer) -> Connection:
    (match,) = [connection for connection in namespace.connections if connection.container == peer.name]
    return match


def is_read(connection: Connection) -> bool:
    assert connection._transport is not None
    return connection._transport.is_reading()


async def healthy(namespace: Namespace) -> bool:
    """Whether an HTTP request, which stores nothing, is answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", namespace.port)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer.startswith(b"HTTP/1.1 200")


async def received(namespace: Namespace, path: str, count: int) -> list[str]:
    """The ids of the next N messages, in order."""
    deliveries: list[Delivery] = []
    async with RawClient(namespace.connection_string) as client:
        await client.put_token(path)
        (await client.receiver(path, deliveries.append, deletes=True)).grant(count)
        await until(lambda: len(deliveries) == count)
    return [delivery.message_id for delivery in deliveries]


@pytest.mark.parametrize(
    ("bound", "value", "size"), [("PRESSURE_BYTES", 100_000, 10_000), ("MAX_GROUP", 10, 1)], ids=["bytes", "messages"]
)
async def test_sender_is_not_read_while_too_much_waits_for_the_disk(
    namespace: Namespace,
    disk: Disk,
    well_behaved: ServiceBusSender,
    monkeypatch: pytest.MonkeyPatch,
    bound: str,
    value: int,
    size: int,
) -> None:
    monkeypatch.setattr(store_module, bound, value)
    path = f"pressed-{bound}"
    disk.release()
    await namespace.create(QueueDescription(path))
    disk._released.clear()
    queue = namespace.entities.resolve(path).queue  # type: ignore[union-attr]
    names = [str(number) for number in range(2 * HALF)]
    frames = [transfer(number, payload=encoded_message(names[number], bytes(size))) for number in range(2 * HALF)]
    async with Peer(namespace) as peer:
        await peer.open()
        await peer.begin()
        await peer.attach_sender(path)
        connection = connection_of(namespace, peer)
        peer.write(*frames[:HALF])
        await until(lambda: not is_read(connection))
        waiting = disk.waiting
        assert waiting[0] <= value + READ or bound == "MAX_GROUP"
        peer.write(*frames[HALF:])
        assert await healthy(namespace)
        assert disk.waiting == waiting
        assert queue.activity.received == 0
        other = asyncio.create_task(well_behaved.send_messages(ServiceBusMessage("meanwhile")))
        assert await healthy(namespace)
        assert not other.done()

        disk.release()
        accepted = 0
        while accepted < len(names):
            disposition = await peer.expect(amqp.Disposition)
            assert isinstance(disposition.state, amqp.Accepted)
            accepted += (disposition.last or disposition.first) - disposition.first + 1
        await other
        await until(lambda: is_read(connection))
    assert disk.waiting == (0, 0)
    assert await received(namespace, path, len(names)) == names
    assert queue.counters.active == 0


async def test_sender_that_disconnects_under_pressure_leaves_nothing(
    namespace: Namespace, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "PRESSURE_BYTES", 10_000)
    async with Peer(namespace) as peer:
        await peer.open()
        await peer.begin()
        await peer.attach_sender(QUEUE)
        connection = connection_of(namespace, peer)
        frames = [transfer(number, payload=encoded_message("m", bytes(5000))) for number in range(5)]
        peer.write(frames[0])
        await until(lambda: disk.waiting[0] >= 5000)  # it is being written; later messages wait
        peer.write(*frames[1:])
        await until(lambda: not is_read(connection))
    disk.release()
    await until(lambda: connection not in namespace.connections)
    await until(lambda: disk.waiting == (0, 0))
    assert namespace.store._pressed == []


async def test_pending_bytes_of_tiny_messages_include_overhead(tmp_path: Path) -> None:
    store = Store(tmp_path)
    rows = [(INSERT_PLAIN, (message_key(2, number), 1, 4, b"\x00\x53\x77\x40")) for number in range(1, 1001)]
    written = asyncio.create_task(store.commit(rows))
    await asyncio.sleep(0)
    assert store.pending_bytes >= 200 * len(rows)
    await written
    assert store.pending_bytes == 0
    await store.close()
