"""What lies between a commit and its announcement, or waits for one, is neither lost nor counted twice."""

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
from tests.broker.contract.bus import until
from tests.broker.durability.tables import as_after_a_crash, read_tables
from tests.broker.raw_client import RawClient, encoded_message

from twinbus.broker import forwarding
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.errors import BrokerError
from twinbus.broker.forwarding import Forwarder
from twinbus.broker.message import Arrival
from twinbus.broker.namespace import Namespace
from twinbus.broker.queue import Queue
from twinbus.broker.store import Store, StoreError

SECONDS = 30.0
FAR = 1 << 50  # milliseconds since the epoch


@pytest.fixture
async def namespace(tmp_path: Path) -> AsyncIterator[Namespace]:
    async with Namespace("contoso", data=tmp_path) as running:
        yield running
    assert read_tables(tmp_path).wrong_counters() == []


async def made(namespace: Namespace, path: str, **properties: Any) -> Queue:
    return (await namespace.create(QueueDescription(path, **properties))).queue


def arrival(name: str) -> Arrival:
    return Arrival(encoded_message(name))


def later(name: str) -> Arrival:
    scheduled = arrival(name)
    scheduled.due_at = FAR
    return scheduled


async def stored(queue: Queue, *names: str) -> None:
    done: asyncio.Future[BrokerError | None] = asyncio.get_running_loop().create_future()
    queue.take([arrival(name) for name in names], done.set_result)
    assert await asyncio.wait_for(done, SECONDS) is None


def ignore(error: object) -> None:
    """Somebody else looks at what became of it."""


# ---- committed, and not announced ----


def commit_unannounced(store: Store, queue: Queue, message: Arrival) -> None:
    """Have the thread commit a message; the event loop, which runs this, cannot hear of it yet."""
    store._slow_until = math.inf
    before = len(queue.peek(0, 100))
    queue.take([message], ignore)
    store._flush()
    until = time.monotonic() + SECONDS
    while len(queue.peek(0, 100)) == before:
        assert time.monotonic() < until
        time.sleep(0.001)


async def test_a_message_that_is_not_announced_yet_is_not_purged(namespace: Namespace) -> None:
    queue = await made(namespace, "orders")
    commit_unannounced(namespace.store, queue, arrival("new"))
    assert queue.delete_oldest(FAR, 10, None, ignore) == 0
    await until(lambda: queue.counters.active == 1)
    assert queue.delete_oldest(FAR, 10, None, ignore) == 1
    await until(lambda: queue.counters.active == 0)


async def test_a_message_that_expires_before_it_is_announced_is_one_dead_letter(namespace: Namespace) -> None:
    queue = await made(namespace, "orders", dead_lettering_on_message_expiration=True)
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
        await stored(queue, "next")
        assert (queue.counters.active, len(dead_letter.peek(0, 10))) == (1, 1)


# ---- duplicates of what is still being stored ----


async def test_what_belongs_to_a_message_does_not_rely_on_another_that_may_not_get_stored(namespace: Namespace) -> None:
    queue = await made(namespace, "orders", requires_duplicate_detection=True)
    store, errors = namespace.store, []
    queue.take([arrival("x")], errors.append)  # it waits for its commit
    with pytest.raises(BrokerError, match="'x' is being stored"):
        store.atomically(lambda: queue.take([arrival("y"), arrival("x")], errors.append), errors.append)
    await until(lambda: len(errors) == 1)
    assert errors == [None]
    await stored(queue, "y")  # which is no duplicate of one that was refused
    assert queue.counters.active == 2


async def test_a_transaction_that_sends_a_message_twice_stores_it_once(namespace: Namespace) -> None:
    queue = await made(namespace, "orders", requires_duplicate_detection=True)
    errors: list[StoreError | None] = []

    def act() -> None:
        queue.take([arrival("x")], ignore)
        queue.take([arrival("x")], ignore)

    namespace.store.atomically(act, errors.append)
    await until(lambda: errors == [None])
    assert queue.counters.active == 1


async def test_a_forwarder_waits_for_a_message_with_the_same_id_that_is_refused_in_the_end(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "RETRY_SECONDS", 0.05)
    source, target = await made(namespace, "in"), await made(namespace, "out", requires_duplicate_detection=True)
    await stored(source, "x")
    store, is_full = namespace.store, threading.Event()
    write = store._write

    def refuse(group: Any) -> None:
        assert is_full.wait(SECONDS)
        monkeypatch.setattr(store, "_write", write)
        raise sqlite3.OperationalError("database or disk is full")

    store._slow_until = math.inf
    monkeypatch.setattr(store, "_write", refuse)
    monkeypatch.setattr(store, "_write_apart", lambda group: [StoreError("full")] * len(group))
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


async def test_a_forwarder_that_wants_to_try_again_finds_that_its_namespace_has_ended(tmp_path: Path) -> None:
    async with Namespace("contoso", data=tmp_path) as namespace:
        source = await made(namespace, "in")
        short = arrival("short")
        short.ttl = 60_000
        source.take([short], ignore)
        await until(lambda: source.counters.active == 1)
        forwarder = Forwarder(source, "out", namespace.entities.resolve, lambda: source)
        lock = source.lock(source.peek(0, 1)[0], forwarder, source.env.now_ms())
    source.env.now_ms = lambda: FAR
    forwarder._try_again(lock.token)
    assert source.holds(lock.token)


# ---- numbers ----


async def test_a_number_that_is_named_twice_counts_once(namespace: Namespace) -> None:
    queue = await made(namespace, "orders")
    await stored(queue, "a")
    (message,) = queue.peek(0, 10)
    queue.defer(queue.lock(message, cast(Any, None), queue.env.now_ms()).token, None, ignore)
    await until(lambda: queue.counters.deferred == 1)
    assert [found.sequence for found in queue.find_deferred([1, 1, 1])] == [1]
    (number,) = queue.schedule([later("b")], ignore)
    await until(lambda: queue.counters.scheduled == 1)
    queue.cancel([number, number], ignore)
    await until(lambda: queue.counters.scheduled == 0)


async def test_the_number_of_a_duplicate_is_never_given_again(tmp_path: Path) -> None:
    folder, crashed = tmp_path / "running", tmp_path / "crashed"
    async with Namespace("contoso", data=folder) as namespace:
        queue = await made(namespace, "orders", requires_duplicate_detection=True)
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
