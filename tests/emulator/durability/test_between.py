"""Messages between their commit and its announcement are neither lost nor counted twice."""

from __future__ import annotations

import asyncio
import math
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from tests.emulator.contract.bus import until
from tests.emulator.durability.tables import as_after_a_crash, read_tables
from tests.emulator.raw_client import RawClient, encoded_message

from twinbus.emulator.entities import forwarding
from twinbus.emulator.entities.forwarding import Forwarder
from twinbus.emulator.entities.message import Arrival
from twinbus.emulator.entities.queue import Queue
from twinbus.emulator.protocol.error_conditions import BrokerError
from twinbus.emulator.server.namespace import Namespace
from twinbus.emulator.storage.store import Store, StoreError
from twinbus.servicebus.entity_descriptions import QueueDescription

SECONDS = 30.0
FAR = 1 << 50  # milliseconds since the epoch


@pytest.fixture
async def namespace(tmp_path: Path) -> AsyncIterator[Namespace]:
    async with Namespace("contoso", data=tmp_path) as running:
        yield running
    assert read_tables(tmp_path).wrong_counters() == []


async def create_queue(namespace: Namespace, path: str, **properties: Any) -> Queue:
    return (await namespace.create(QueueDescription(path, **properties))).queue


def arrival(name: str) -> Arrival:
    return Arrival(encoded_message(name))


def later(name: str) -> Arrival:
    scheduled = arrival(name)
    scheduled.due_at = FAR
    return scheduled


async def store_messages(queue: Queue, *names: str) -> None:
    done: asyncio.Future[BrokerError | None] = asyncio.get_running_loop().create_future()
    queue.take([arrival(name) for name in names], done.set_result)
    assert await asyncio.wait_for(done, SECONDS) is None


def ignore(error: object) -> None:
    """The test checks the result in another way."""


# ---- committed but not announced ----


def commit_unannounced(store: Store, queue: Queue, message: Arrival) -> None:
    """Let the thread commit a message while this function blocks the event loop, so that it is not announced yet."""
    store._slow_until = math.inf
    before = len(queue.peek(0, 100))
    queue.take([message], ignore)
    store._flush()
    until = time.monotonic() + SECONDS
    while len(queue.peek(0, 100)) == before:
        assert time.monotonic() < until
        time.sleep(0.001)


async def test_committed_but_unannounced_message_is_not_purged(namespace: Namespace) -> None:
    queue = await create_queue(namespace, "orders")
    commit_unannounced(namespace.store, queue, arrival("new"))
    assert queue.delete_oldest(FAR, 10, None, ignore) == 0
    await until(lambda: queue.counters.active == 1)
    assert queue.delete_oldest(FAR, 10, None, ignore) == 1
    await until(lambda: queue.counters.active == 0)


async def test_message_that_expires_before_its_announcement_is_dead_lettered_once(namespace: Namespace) -> None:
    queue = await create_queue(namespace, "orders", dead_lettering_on_message_expiration=True)
    dead_letter = queue.dead_letter
    assert dead_letter is not None
    late = arrival("late")
    late.ttl = 60_000
    async with RawClient(namespace.connection_string) as client:
        await client.put_token("orders")
        (await client.receiver("orders", ignore)).grant(5)
        await until(lambda: bool(queue._waiting))
        commit_unannounced(namespace.store, queue, late)
        hours_later = queue.env.now_ms() + 7_200_000
        queue.env.now_ms = lambda: hours_later
        queue.expire(1)
        await until(lambda: dead_letter.counters.active > 0)
        await store_messages(queue, "next")
        assert (queue.counters.active, len(dead_letter.peek(0, 10))) == (1, 1)


# ---- duplicates of messages that are being stored ----


async def test_transaction_with_an_id_being_stored_is_refused_as_busy(namespace: Namespace) -> None:
    queue = await create_queue(namespace, "orders", requires_duplicate_detection=True)
    store, errors = namespace.store, []
    queue.take([arrival("x")], errors.append)  # waits for its commit
    with pytest.raises(BrokerError, match="'x' is being stored"):
        store.atomically(lambda: queue.take([arrival("y"), arrival("x")], errors.append), errors.append)
    await until(lambda: len(errors) == 1)
    assert errors == [None]
    await store_messages(queue, "y")  # not a duplicate of the refused one
    assert queue.counters.active == 2


async def test_transaction_stores_a_duplicate_once(namespace: Namespace) -> None:
    queue = await create_queue(namespace, "orders", requires_duplicate_detection=True)
    errors: list[StoreError | None] = []

    def act() -> None:
        queue.take([arrival("x")], ignore)
        queue.take([arrival("x")], ignore)

    namespace.store.atomically(act, errors.append)
    await until(lambda: errors == [None])
    assert queue.counters.active == 1


async def test_forwarder_retries_after_a_pending_duplicate_failed(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "RETRY_SECONDS", 0.05)
    source, target = (
        await create_queue(namespace, "in"),
        await create_queue(namespace, "out", requires_duplicate_detection=True),
    )
    await store_messages(source, "x")
    store, is_full = namespace.store, threading.Event()
    write = store._write

    def refuse(group: Any) -> None:
        assert is_full.wait(SECONDS)
        monkeypatch.setattr(store, "_write", write)
        raise sqlite3.OperationalError("database or disk is full")

    store._slow_until = math.inf
    monkeypatch.setattr(store, "_write", refuse)
    monkeypatch.setattr(store, "_write_by_halves", lambda group: [StoreError("full")] * len(group))
    errors: list[BrokerError | None] = []
    target.take([arrival("x")], errors.append)
    store._flush()
    forwarder = Forwarder(source, "out", namespace.entities.resolve, lambda: target)
    forwarder.start()
    is_full.set()
    await until(lambda: target.counters.active == 1)
    (error,) = errors
    assert error is not None
    await until(lambda: source.counters.active == 0)
    forwarder.stop()


async def test_forwarder_does_not_retry_after_the_namespace_closed(tmp_path: Path) -> None:
    async with Namespace("contoso", data=tmp_path) as namespace:
        source = await create_queue(namespace, "in")
        short = arrival("short")
        short.ttl = 60_000
        source.take([short], ignore)
        await until(lambda: source.counters.active == 1)
        forwarder = Forwarder(source, "out", namespace.entities.resolve, lambda: source)
        lock = source.lock(source.peek(0, 1)[0], forwarder, source.env.now_ms())
    source.env.now_ms = lambda: FAR
    forwarder._try_again(lock.token)
    assert source.holds(lock.token)


# ---- sequence numbers ----


async def test_repeated_sequence_number_counts_once(namespace: Namespace) -> None:
    queue = await create_queue(namespace, "orders")
    await store_messages(queue, "a")
    (message,) = queue.peek(0, 10)
    queue.defer(queue.lock(message, cast(Any, None), queue.env.now_ms()).token, None, ignore)
    await until(lambda: queue.counters.deferred == 1)
    assert [message.sequence for message in queue.find_deferred([1, 1, 1])] == [1]
    (number,) = queue.schedule([later("b")], ignore)
    await until(lambda: queue.counters.scheduled == 1)
    queue.cancel([number, number], ignore)
    await until(lambda: queue.counters.scheduled == 0)


async def test_sequence_number_of_a_duplicate_is_never_reused(tmp_path: Path) -> None:
    folder, crashed = tmp_path / "running", tmp_path / "crashed"
    async with Namespace("contoso", data=folder) as namespace:
        queue = await create_queue(namespace, "orders", requires_duplicate_detection=True)
        assert queue.schedule([later("a")], ignore) == [1]
    async with Namespace("contoso", data=folder) as namespace:
        node = namespace.entities.resolve("orders")
        assert node is not None
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        assert node.queue.schedule([later("a")], done.set_result) == [2]
        await done
        as_after_a_crash(folder, crashed)
    async with Namespace("contoso", data=crashed) as namespace:
        node = namespace.entities.resolve("orders")
        assert node is not None
        assert node.queue.schedule([later("b")], ignore) == [3]
