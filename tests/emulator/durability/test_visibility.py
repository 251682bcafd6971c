"""Nothing is acknowledged or delivered before it is stored, tested with a writer that can be paused."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.emulator.durability.tables import LOG
from tests.emulator.raw_client import ConnectionGoneError, Delivery, RawClient, RefusedError, encoded_message

from twinbus.emulator.config.namespace_file import NamespaceConfig
from twinbus.emulator.server.namespace import Namespace
from twinbus.emulator.storage import store
from twinbus.emulator.storage.schema import INSERT, PUT_SETTING, Change, message_key
from twinbus.emulator.storage.store import CHECKPOINT_BYTES, INLINE_UNITS, Durability, Store, StoreError, Unit
from twinbus.servicebus.entity_descriptions import QueueDescription

QUEUE = "orders"
SECONDS = 60.0


class Writer:
    """Pauses the store's writer thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._write = Store._write
        self._may_write = threading.Event()
        self._may_write.set()
        self._reached = threading.Event()
        self.failing = False
        self.groups: list[int] = []
        # Let the thread write everything: it can be paused, and the event loop cannot.
        monkeypatch.setattr(store, "INLINE_UNITS", 0)
        monkeypatch.setattr(Store, "_write", lambda its_store, group: self._written(its_store, group))

    def _written(self, its_store: Store, group: list[Unit]) -> None:
        self._reached.set()
        assert self._may_write.wait(SECONDS)
        if self.failing and any(changes for changes, _, _ in group):
            raise sqlite3.OperationalError("made to fail")
        self.groups.append(len(group))
        self._write(its_store, group)

    def hold(self) -> None:
        """Pause writing."""
        self._reached.clear()
        self._may_write.clear()

    async def held(self) -> None:
        """Wait until the paused thread has something to write."""
        assert await asyncio.to_thread(self._reached.wait, SECONDS)

    def let_go(self) -> None:
        self._may_write.set()


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Writer]:
    made = Writer(monkeypatch)
    yield made
    made.let_go()


@pytest.fixture
async def namespace(writer: Writer, tmp_path: Path) -> AsyncIterator[Namespace]:
    config = NamespaceConfig("contoso", port=0, durability=Durability.FULL)
    async with Namespace(config, data=tmp_path) as running:
        await running.create(QueueDescription(QUEUE))
        yield running
        writer.let_go()


@pytest.fixture
async def client(namespace: Namespace) -> AsyncIterator[RawClient]:
    async with RawClient(namespace.connection_string) as connected:
        await connected.put_token(QUEUE)
        yield connected


async def _receive(arrived: asyncio.Queue[Delivery]) -> Delivery:
    return await asyncio.wait_for(arrived.get(), SECONDS)


async def test_a_message_is_neither_acknowledged_nor_delivered_before_its_commit(
    writer: Writer, client: RawClient
) -> None:
    arrived: asyncio.Queue[Delivery] = asyncio.Queue()
    receiver = await client.receiver(QUEUE, arrived.put_nowait)
    receiver.grant(10)
    sender = await client.sender(QUEUE)
    outcomes: list[RefusedError | ConnectionGoneError | None] = []
    writer.hold()
    sender.submit(encoded_message("held"), outcomes.append)
    await writer.held()
    # Its answer comes over the same connection, after everything sent before.
    await client.put_token(QUEUE)
    assert outcomes == []
    assert arrived.empty()
    writer.let_go()
    assert (await _receive(arrived)).message_id == "held"
    await client.put_token(QUEUE)
    assert outcomes == [None]


async def test_peek_shows_only_what_is_committed(writer: Writer, client: RawClient) -> None:
    sender = await client.sender(QUEUE)
    await sender.send(encoded_message("committed"))
    writer.hold()
    sender.submit(encoded_message("held"), lambda error: None)
    await writer.held()
    answer = await client.manage(QUEUE, "peek-message", {"from-sequence-number": 0, "message-count": 10})
    assert [Delivery(0, b"", message["message"]).message_id for message in answer["messages"]] == ["committed"]


async def test_a_completion_is_confirmed_after_its_commit(writer: Writer, client: RawClient) -> None:
    arrived: asyncio.Queue[Delivery] = asyncio.Queue()
    sender = await client.sender(QUEUE)
    await sender.send(encoded_message("one"))
    receiver = await client.receiver(QUEUE, arrived.put_nowait)
    receiver.grant(1)
    delivery = await _receive(arrived)
    outcomes: list[RefusedError | ConnectionGoneError | None] = []
    writer.hold()
    receiver.settle(delivery, outcomes.append)
    await writer.held()
    await client.put_token(QUEUE)
    assert outcomes == []
    writer.let_go()
    await sender.send(encoded_message("two"))  # stored, so everything submitted before is stored too
    assert outcomes == [None]


async def test_receive_and_delete_delivers_after_the_deletion(writer: Writer, client: RawClient) -> None:
    arrived: asyncio.Queue[Delivery] = asyncio.Queue()
    sender = await client.sender(QUEUE)
    await sender.send(encoded_message("one"))
    writer.hold()
    receiver = await client.receiver(QUEUE, arrived.put_nowait, deletes=True)
    receiver.grant(1)
    await writer.held()
    await client.put_token(QUEUE)
    assert arrived.empty()
    writer.let_go()
    assert (await _receive(arrived)).message_id == "one"


async def test_sends_during_a_commit_share_the_next_one(writer: Writer, client: RawClient) -> None:
    sender = await client.sender(QUEUE)
    writer.hold()
    first = asyncio.ensure_future(sender.send(encoded_message("first")))
    await writer.held()
    others = [asyncio.ensure_future(sender.send(encoded_message(f"other-{number}"))) for number in range(500)]
    await client.put_token(QUEUE)
    before = len(writer.groups)
    writer.let_go()
    await asyncio.gather(first, *others)
    assert writer.groups[before:] == [1, 500]


async def test_message_of_a_failed_commit_is_refused_and_not_delivered(writer: Writer, client: RawClient) -> None:
    arrived: asyncio.Queue[Delivery] = asyncio.Queue()
    receiver = await client.receiver(QUEUE, arrived.put_nowait)
    receiver.grant(10)
    sender = await client.sender(QUEUE)
    writer.failing = True
    with pytest.raises(RefusedError, match="made to fail"):
        await sender.send(encoded_message("refused"))
    writer.failing = False
    await sender.send(encoded_message("stored"))
    assert (await _receive(arrived)).message_id == "stored"
    assert arrived.empty()


async def test_duplicate_is_not_acknowledged_if_the_first_was_not_stored(writer: Writer, namespace: Namespace) -> None:
    await namespace.create(QueueDescription("unique", requires_duplicate_detection=True))
    async with RawClient(namespace.connection_string) as client:
        await client.put_token("unique")
        sender = await client.sender("unique")
        writer.hold()
        first = asyncio.ensure_future(sender.send(encoded_message("same")))
        await writer.held()
        second = asyncio.ensure_future(sender.send(encoded_message("same")))
        await client.put_token("unique")
        writer.failing = True
        writer.let_go()
        outcomes = await asyncio.gather(first, second, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [RefusedError, RefusedError]
        writer.failing = False
        await sender.send(encoded_message("same"))
        await sender.send(encoded_message("same"))
        answer = await client.manage("unique", "peek-message", {"from-sequence-number": 0, "message-count": 10})
        assert len(answer["messages"]) == 1


async def test_a_change_that_cannot_be_written_fails_alone(namespace: Namespace) -> None:
    errors: dict[str, StoreError | None] = {}
    setting = "INSERT INTO settings (name, value) VALUES (?, ?)"
    for name in ("before", "bad", "after"):
        value: object = 1 << 70 if name == "bad" else name
        namespace.store.submit([(setting, (name, value))], lambda error, name=name: errors.update({name: error}))
    await namespace.store.commit([])
    assert errors["before"] is None
    assert errors["after"] is None
    assert isinstance(errors["bad"], StoreError)
    kept = {row[0] for row in namespace.store.reader.execute("SELECT name FROM settings")}
    assert {"before", "after"} <= kept
    assert "bad" not in kept


@pytest.mark.parametrize("durability", list(Durability))
async def test_answers_come_in_the_order_of_the_commits(tmp_path: Path, durability: Durability) -> None:
    made = Store(tmp_path, durability)
    answered: list[int] = []

    def submit(number: int) -> None:
        made.submit([(PUT_SETTING, (str(number), ""))], lambda error: answered.append(number))

    many = 2 * INLINE_UNITS  # enough to use the thread, except maybe for the last group
    for number in range(many):
        submit(number)
    await asyncio.sleep(0)
    submit(many)
    await made.commit([])
    assert answered == list(range(many + 1))
    await made.close()


async def test_log_stays_small_over_many_commits(tmp_path: Path) -> None:
    made = Store(tmp_path, Durability.NORMAL)
    body = bytes(1000)
    for number in range(4000):
        row = (message_key(2, number), 0, None, 0, None, None, 0, len(body), None, None, None, body)
        made.submit([(INSERT, row)], lambda error: None, len(body))
        await made.commit([])
    assert (tmp_path / LOG).stat().st_size < 4 * CHECKPOINT_BYTES
    await made.close()


async def test_after_a_slow_commit_the_thread_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    write = Store._write

    def seen(its_store: Store, group: list[Unit]) -> None:
        threads.append(threading.current_thread().name)
        write(its_store, group)

    monkeypatch.setattr(Store, "_write", seen)
    made = Store(tmp_path, Durability.FULL)
    change: list[Change] = [(PUT_SETTING, ("name", ""))]
    monkeypatch.setattr(store, "SLOW_COMMIT", 60.0)
    await made.commit(change)
    monkeypatch.setattr(store, "SLOW_COMMIT", -1.0)  # as with a slow disk
    monkeypatch.setattr(store, "SLOW_DISK_SECONDS", 60.0)
    await made.commit(change)
    await made.commit(change)
    assert threads == ["MainThread", "MainThread", "twinbus-store"]
    await made.close()
