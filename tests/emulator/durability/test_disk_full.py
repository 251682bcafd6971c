"""A full disk: clients get errors, no acknowledged message is lost, and work continues when there is room again."""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient
from tests.emulator.durability.small_disk import Disk, LimitedProcess, SmallFileSystem
from tests.emulator.durability.tables import read_tables
from tests.emulator.raw_client import ConnectionGoneError, Delivery, RawClient, RefusedError, encoded_message
from tests.emulator.wire import PlainHttp, ServeProcess, administration

from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec.types import Array

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="needs tmpfs or prlimit"),
    pytest.mark.parametrize("disk", [SmallFileSystem, LimitedProcess], indirect=True),
]

NAMESPACE = "contoso"
QUEUE = "orders"
BODY = b"x" * 4000
ANSWER_SECONDS = 30.0
UUID = 0x98


@pytest.fixture
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    made = request.param(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def serve(disk: Disk) -> Iterator[ServeProcess]:
    process = ServeProcess(disk.folder, "--namespace", f"{NAMESPACE}=0", "--log-level", "error")
    with process:
        administration(process.connection_string(NAMESPACE)).create_queue(QUEUE)
        yield process


async def _send_all(sender_of: RawClient, ids: list[str]) -> dict[str, RefusedError | ConnectionGoneError | None]:
    """Send all concurrently; returns the outcome of each."""
    sender = await sender_of.sender(QUEUE)
    outcomes: dict[str, RefusedError | ConnectionGoneError | None] = {}
    finished = asyncio.Event()

    def keep(message_id: str, error: RefusedError | ConnectionGoneError | None) -> None:
        outcomes[message_id] = error
        if len(outcomes) == len(ids):
            finished.set()

    for message_id in ids:
        await sender.room()
        sender.submit(encoded_message(message_id, BODY), lambda error, message_id=message_id: keep(message_id, error))
    await asyncio.wait_for(finished.wait(), ANSWER_SECONDS)
    return outcomes


def _acknowledged(outcomes: dict[str, RefusedError | ConnectionGoneError | None]) -> set[str]:
    return {message_id for message_id, error in outcomes.items() if error is None}


async def _receive_all(client: RawClient, count: int) -> list[str]:
    """Receive and complete `count` messages."""
    received: list[str] = []
    settled: list[asyncio.Task[None]] = []
    finished = asyncio.Event()

    def on_message(delivery: Delivery) -> None:
        received.append(delivery.message_id)
        settled.append(asyncio.ensure_future(receiver.settled(delivery)))
        if len(received) == count:
            finished.set()

    receiver = await client.receiver(QUEUE, on_message)
    receiver.grant(count)
    await asyncio.wait_for(finished.wait(), ANSWER_SECONDS)
    await asyncio.gather(*settled)
    return received


async def test_every_sender_is_answered_and_nothing_acknowledged_is_lost(disk: Disk, serve: ServeProcess) -> None:
    connection_string = serve.connection_string(NAMESPACE)
    async with RawClient(connection_string) as client:
        await client.put_token(QUEUE)
        before = await _send_all(client, [f"before-{number}" for number in range(200)])
        disk.fill(serve)
        full = await _send_all(client, [f"full-{number}" for number in range(1500)])
        refusals = [error for error in full.values() if error is not None]
        assert refusals
        assert {type(error) for error in refusals} == {RefusedError}
        assert "could not write" in str(refusals[0])
        disk.free(serve)
        after = await _send_all(client, [f"after-{number}" for number in range(200)])
        stored = _acknowledged(before) | _acknowledged(full) | _acknowledged(after)
        assert len(_acknowledged(before)) == len(_acknowledged(after)) == 200
        serve.kill()
        tables = read_tables(disk.folder / NAMESPACE)
        assert {message.message_id for message in tables.messages[QUEUE]} == stored
        assert tables.wrong_sequences() == []
    serve.start()
    async with RawClient(serve.connection_string(NAMESPACE)) as client:
        await client.put_token(QUEUE)
        assert sorted(await _receive_all(client, len(stored))) == sorted(stored)


async def test_the_sdk_raises_within_its_timeout_and_sends_again_later(disk: Disk, serve: ServeProcess) -> None:
    connection_string = serve.connection_string(NAMESPACE)
    async with (
        ServiceBusClient.from_connection_string(connection_string, retry_total=0) as client,
        client.get_queue_sender(QUEUE) as sender,
    ):
        await sender.send_messages(ServiceBusMessage(BODY, message_id="before"))
        disk.fill(serve)
        started = time.monotonic()
        large = ServiceBusMessage(BODY * 50, message_id="full")
        with pytest.raises(ServiceBusError, match="could not write"):
            await sender.send_messages(large, timeout=5)
        assert time.monotonic() - started < ANSWER_SECONDS
        disk.free(serve)
        await sender.send_messages(ServiceBusMessage(BODY, message_id="after"))
        async with client.get_queue_receiver(QUEUE, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
            ids: list[str] = []
            while "after" not in ids:
                ids += [str(message.message_id) for message in await receiver.receive_messages(100, max_wait_time=2)]
    assert ids[0] == "before"


async def test_failed_settlement_is_refused_and_the_lock_is_kept(disk: Disk, serve: ServeProcess) -> None:
    async with RawClient(serve.connection_string(NAMESPACE)) as client:
        await client.put_token(QUEUE)
        sender = await client.sender(QUEUE)
        await sender.send(encoded_message("kept", BODY))
        arrived: asyncio.Queue[Delivery] = asyncio.Queue()
        receiver = await client.receiver(QUEUE, arrived.put_nowait)
        receiver.grant(2)
        delivery = await asyncio.wait_for(arrived.get(), ANSWER_SECONDS)
        disk.fill(serve)
        with pytest.raises(RefusedError, match="could not write"):
            await receiver.settled(delivery, amqp.Modified(True, True))  # deferring with a change of the message
        disk.free(serve)
        # The receiver still holds the lock, so settling through $management works, as the SDK retries.
        tokens = Array(UUID, [uuid.UUID(bytes_le=delivery.tag)])
        await client.manage(QUEUE, "update-disposition", {"disposition-status": "completed", "lock-tokens": tokens})
        assert arrived.empty()
    serve.kill()
    assert read_tables(disk.folder / NAMESPACE).messages[QUEUE] == []


async def test_receive_and_delete_waits_until_the_deletion_is_stored(disk: Disk, serve: ServeProcess) -> None:
    async with RawClient(serve.connection_string(NAMESPACE)) as client:
        await client.put_token(QUEUE)
        sender = await client.sender(QUEUE)
        for number in range(3):
            await sender.send(encoded_message(f"message-{number}", BODY))
        disk.fill(serve)
        arrived: asyncio.Queue[Delivery] = asyncio.Queue()
        receiver = await client.receiver(QUEUE, arrived.put_nowait, deletes=True)
        receiver.grant(5)
        with pytest.raises(RefusedError):
            await sender.send(encoded_message("full", BODY))  # submitted after the deletion
        assert arrived.empty()
        disk.free(serve)
        received = [await asyncio.wait_for(arrived.get(), ANSWER_SECONDS) for _ in range(3)]
        assert [message.message_id for message in received] == ["message-0", "message-1", "message-2"]
        assert arrived.empty()


async def test_administration_api_reports_a_failed_change(disk: Disk, serve: ServeProcess) -> None:
    admin = ServiceBusAdministrationClient.from_connection_string(
        serve.connection_string(NAMESPACE), transport=PlainHttp(), retry_total=0
    )
    disk.fill(serve)
    with pytest.raises(HttpResponseError, match="could not write") as refused:
        await asyncio.to_thread(admin.create_queue, "another")
    assert refused.value.status_code == 500
    with pytest.raises(HttpResponseError, match="could not write"):
        await asyncio.to_thread(admin.delete_queue, QUEUE)
    disk.free(serve)
    assert [queue.name for queue in admin.list_queues()] == [QUEUE]
    await asyncio.to_thread(admin.create_queue, "another")
    await asyncio.to_thread(admin.delete_queue, QUEUE)
    assert [queue.name for queue in admin.list_queues()] == ["another"]
