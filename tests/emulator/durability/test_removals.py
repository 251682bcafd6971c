"""Single removals are noted first and applied later; a removed message is never visible again."""

from __future__ import annotations

import asyncio
import logging
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.emulator.durability.small_disk import SmallFileSystem
from tests.emulator.durability.tables import DATABASE, REMOVALS, as_after_a_crash, read_tables
from tests.emulator.raw_client import Delivery, RawClient, RefusedError, encoded_message
from tests.emulator.wire import ServeProcess, administration

from twinbus.emulator.entities.session_queue import SessionQueue
from twinbus.emulator.server.namespace import Namespace
from twinbus.emulator.storage import removals as removals_module
from twinbus.emulator.storage import store as store_module
from twinbus.emulator.storage.removals import CAPACITY, Removals
from twinbus.emulator.storage.schema import DELETE, INSERT_PLAIN, Change, message_key, sequence_of
from twinbus.emulator.storage.store import Durability, Store, StoreError
from twinbus.servicebus.entity_descriptions import QueueDescription

QUEUE = 2
SECONDS = 30.0
START = 4711


def _insertion(sequence: int) -> Change:
    return INSERT_PLAIN, (message_key(QUEUE, sequence), 1, 10, b"\x00\x53\x73\x45\x00\x53\x75\xa0\x00")


def _removal(sequence: int) -> Change:
    return DELETE, (message_key(QUEUE, sequence),)


def _count(store: Store, table: str) -> int:
    return int(store.reader.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0])


def _counts(store: Store) -> tuple[int, int, int]:
    """The messages in their table, the removed ones among them, and those that a reader sees."""
    return _count(store, "messages"), len(store.removed), _count(store, "stored")


async def _filled(folder: Path, removed: int, durability: Durability = Durability.NORMAL) -> Store:
    store = Store(folder, durability)
    await store.commit([_insertion(number) for number in range(1, 11)])
    for number in range(1, removed + 1):
        await store.commit([_removal(number)])
    return store


# ---- the file ----


@given(st.lists(st.integers(1, 2**63 - 1), max_size=CAPACITY // 100), st.integers(0, 2**32 - 1))
def test_notes_are_read_back(keys: list[int], start: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / REMOVALS
        with Removals(path, syncs=False) as removals:
            removals.begin(start)
            for key in keys:
                removals.add(key)
        with Removals(path, syncs=True) as removals:
            assert removals.read(start) == keys
            assert removals.read(start ^ 1) == []


@given(st.lists(st.integers(1, 2**63 - 1), min_size=1, max_size=20), st.data())
def test_damaged_note_is_ignored_and_the_others_are_read(keys: list[int], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / REMOVALS
        with Removals(path, syncs=False) as removals:
            removals.begin(START)
            for key in keys:
                removals.add(key)
        content = bytearray(path.read_bytes())
        at = data.draw(st.integers(0, 12 * len(keys) - 1))
        content[at] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content)
        with Removals(path, syncs=False) as removals:
            assert removals.read(START) == [key for number, key in enumerate(keys) if number != at // 12]


def test_full_file_takes_no_notes_until_begin(tmp_path: Path) -> None:
    with Removals(tmp_path / REMOVALS, syncs=False) as removals:
        size = (tmp_path / REMOVALS).stat().st_size
        assert not removals.takes_notes  # before `begin` sets the seed
        removals.begin(START)
        assert not removals.is_used
        for key in range(1, CAPACITY + 1):
            assert removals.takes_notes
            removals.add(key)
        assert not removals.takes_notes
        assert removals.is_used
        assert removals.read(START) == list(range(1, CAPACITY + 1))
        removals.begin(START + 1)
        removals.add(9_999)
        assert removals.takes_notes
        assert removals.read(START + 1) == [9_999]
        assert (tmp_path / REMOVALS).stat().st_size == size


def _fails(*_: object) -> None:
    raise OSError("the disk is gone")


def test_note_with_a_failed_sync_is_erased_and_notes_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Removals(tmp_path / REMOVALS, syncs=True) as removals:
        removals.begin(START)
        removals.add(1)
        monkeypatch.setattr(removals_module, "_sync", _fails)
        with pytest.raises(OSError, match="the disk is gone"):
            removals.add(2)
        assert not removals.takes_notes
        assert removals.is_used
        assert removals.read(START) == [1]


def test_short_file_is_extended(tmp_path: Path) -> None:
    (tmp_path / REMOVALS).write_bytes(bytes(100))
    with Removals(tmp_path / REMOVALS, syncs=False) as removals:
        removals.begin(START)
        for key in range(1, CAPACITY + 1):
            removals.add(key)
        assert len(removals.read(START)) == CAPACITY


# ---- the store ----


async def test_single_removal_is_noted_and_group_removal_is_deleted(tmp_path: Path) -> None:
    store = await _filled(tmp_path, 3)
    assert _counts(store) == (10, 3, 7)
    await store.commit([_removal(4), _removal(5)])
    assert _counts(store) == (8, 3, 5)
    await store.commit([_removal(3)])  # removed already: no change
    assert _count(store, "stored") == 5
    await store.close()


@pytest.mark.parametrize("durability", [Durability.FULL, Durability.NORMAL])
async def test_removed_messages_stay_removed_after_a_crash(tmp_path: Path, durability: Durability) -> None:
    store = await _filled(tmp_path / "running", 3, durability)
    crashed = as_after_a_crash(tmp_path / "running", tmp_path / "crashed")
    await store.close()
    again = Store(crashed)
    assert _counts(again) == (7, 0, 7)
    assert again.reader.execute("SELECT active FROM counters").fetchone() == (7,)
    await again.close()


async def test_notes_of_another_database_are_ignored(tmp_path: Path) -> None:
    store = await _filled(tmp_path / "one", 3)
    other = await _filled(tmp_path / "other", 0)
    crashed = as_after_a_crash(tmp_path / "other", tmp_path / "crashed")
    shutil.copy(tmp_path / "one" / REMOVALS, crashed / REMOVALS)
    await store.close()
    await other.close()
    again = Store(crashed)
    assert _counts(again) == (10, 0, 10)
    await again.close()


async def test_closing_the_store_deletes_removed_messages(tmp_path: Path) -> None:
    store = await _filled(tmp_path, 3)
    await store.close()
    with closing(sqlite3.connect(tmp_path / DATABASE)) as database:
        assert database.execute("SELECT COUNT(*) FROM messages").fetchone() == (7,)


async def test_checkpoint_deletes_removed_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = await _filled(tmp_path, 3)
    monkeypatch.setattr(store_module, "CHECKPOINT_BYTES", 1)
    monkeypatch.setattr(store_module, "DELETE", "DELETE FROM nothing WHERE id = ?")
    with caplog.at_level(logging.WARNING, "twinbus.emulator.storage.store"):
        await store.commit([_insertion(11)])
    assert "deleting removed messages from their table failed" in caplog.text
    assert _counts(store) == (11, 3, 8)
    monkeypatch.undo()
    monkeypatch.setattr(store_module, "CHECKPOINT_BYTES", 1)
    await store.commit([_removal(5)])
    await store.commit([_removal(6)])  # the first commit after which there is something to copy
    assert _counts(store) == (6, 0, 6)
    await store.close()


async def test_removal_right_after_a_sweep_is_kept(tmp_path: Path) -> None:
    store = await _filled(tmp_path / "running", 3)
    refused: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
    store.submit([(INSERT_PLAIN, (message_key(QUEUE, 50), None, None, None))], refused.set_result)
    await store.commit([_removal(4)])  # the group fails; the thread sweeps, then writes each unit alone
    assert isinstance(await refused, StoreError)
    assert _counts(store) == (7, 1, 6)
    crashed = as_after_a_crash(tmp_path / "running", tmp_path / "crashed")
    await store.close()
    again = Store(crashed)
    assert _counts(again) == (6, 0, 6)
    await again.close()


async def test_without_room_for_notes_the_database_is_changed_at_once(tmp_path: Path) -> None:
    store = await _filled(tmp_path, 3)
    store._removals.takes_notes = False
    await store.commit([_removal(4)])
    assert _counts(store) == (9, 3, 6)
    await store.close()


async def test_removal_that_cannot_be_noted_changes_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = await _filled(tmp_path, 3, Durability.FULL)
    monkeypatch.setattr(removals_module, "_sync", _fails)
    await store.commit([_removal(4)])
    assert "the disk is gone" in caplog.text
    assert _counts(store) == (9, 3, 6)
    monkeypatch.undo()
    await store.commit([_removal(5)])
    assert _counts(store) == (8, 3, 5)  # no more notes before the next sweep
    monkeypatch.setattr(store_module, "CHECKPOINT_BYTES", 1)
    await store.commit([_removal(6)])
    monkeypatch.undo()
    assert _counts(store) == (4, 0, 4)
    await store.commit([_removal(7)])
    assert _counts(store) == (4, 1, 3)
    await store.close()


@pytest.mark.parametrize("crashes", [True, False])
async def test_refused_removal_does_not_happen_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crashes: bool
) -> None:
    store = await _filled(tmp_path / "running", 3, Durability.FULL)
    monkeypatch.setattr(removals_module, "_sync", _fails)
    monkeypatch.setattr(store_module, "DELETE", DELETE.replace("messages", "nothing"))
    with pytest.raises(StoreError):
        await store.commit([(store_module.DELETE, (message_key(QUEUE, 4),))])
    monkeypatch.undo()
    assert _count(store, "stored") == 7
    folder = tmp_path / "running"
    if crashes:
        folder = as_after_a_crash(folder, tmp_path / "crashed")
    await store.close()
    again = Store(folder)
    assert _counts(again) == (7, 0, 7)
    assert again.reader.execute("SELECT 1 FROM messages WHERE id = ?", (message_key(QUEUE, 4),)).fetchone()
    await again.close()


async def test_database_of_schema_1_without_notes_opens(tmp_path: Path) -> None:
    store = await _filled(tmp_path, 0)
    await store.close()
    (tmp_path / REMOVALS).unlink()
    with closing(sqlite3.connect(tmp_path / DATABASE)) as database, database:
        database.execute("DELETE FROM settings WHERE name = 'removals'")
        database.execute("PRAGMA user_version = 1")
    again = Store(tmp_path)
    assert _counts(again) == (10, 0, 10)
    assert again.reader.execute("PRAGMA user_version").fetchone() == (2,)
    await again.close()


async def test_file_of_notes_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / REMOVALS).mkdir()
    with pytest.raises(StoreError, match=REMOVALS):
        Store(tmp_path)
    (tmp_path / REMOVALS).rmdir()
    await Store(tmp_path).close()  # the failed open has released its lock


# ---- the namespace ----


async def test_peek_receive_and_purge_skip_removed_messages(tmp_path: Path) -> None:
    async with Namespace("contoso", data=tmp_path) as namespace:
        await namespace.create(QueueDescription("orders"))
        async with RawClient(namespace.connection_string) as client:
            await client.put_token("orders")
            sender = await client.sender("orders")
            for name in ("first", "second", "third"):
                await sender.send(encoded_message(name))
            deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
            receiver = await client.receiver("orders", deliveries.put_nowait)
            receiver.grant(2)
            for _ in range(2):
                await receiver.settled(await asyncio.wait_for(deliveries.get(), SECONDS))
            assert len(namespace.store.removed) == 2
            peeked = await client.manage("orders", "peek-message", {"from-sequence-number": 0, "message-count": 10})
            assert len(peeked["messages"]) == 1
        async with RawClient(namespace.connection_string) as client:
            await client.put_token("orders")
            receiver = await client.receiver("orders", deliveries.put_nowait)
            receiver.grant(10)
            third = await asyncio.wait_for(deliveries.get(), SECONDS)
            assert third.message_id == "third"
            await receiver.settled(third)
        entity = namespace.entities.resolve("orders")
        assert entity is not None
        assert entity.queue.counters.active == 0
        assert entity.queue.delete_oldest(1 << 50, 10, None, lambda error: None) == 0
    assert read_tables(tmp_path).wrong_counters() == []


async def test_session_without_remaining_messages_is_gone(tmp_path: Path) -> None:
    async with Namespace("contoso", data=tmp_path) as namespace:
        entity = await namespace.create(QueueDescription("steps", requires_session=True))
        queue = entity.queue
        assert isinstance(queue, SessionQueue)
        async with RawClient(namespace.connection_string) as client:
            await client.put_token("steps")
            sender = await client.sender("steps")
            for name, session in (("first", "done"), ("second", "done"), ("third", "open")):
                await sender.send(encoded_message(name, session=session))
            deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
            receiver = await client.receiver("steps", deliveries.put_nowait, session="done")
            receiver.grant(2)
            for _ in range(2):
                await receiver.settled(await asyncio.wait_for(deliveries.get(), SECONDS))
            assert len(namespace.store.removed) == 2
            assert queue.sessions(0, 10) == ["open"]
        async with RawClient(namespace.connection_string) as client:
            await client.put_token("steps")
            receiver = await client.receiver("steps", deliveries.put_nowait, session="done")
            receiver.grant(1)
            sender = await client.sender("steps")
            await sender.send(encoded_message("fourth", session="done"))
            assert (await asyncio.wait_for(deliveries.get(), SECONDS)).message_id == "fourth"


@pytest.mark.slow
async def test_messages_can_be_completed_one_by_one_on_a_full_disk(tmp_path: Path) -> None:
    with closing(SmallFileSystem(tmp_path)) as disk, ServeProcess(tmp_path, "--namespace", "contoso=0") as serve:
        administration(serve.connection_string("contoso")).create_queue("orders")
        async with RawClient(serve.connection_string("contoso")) as client:
            await client.put_token("orders")
            sender = await client.sender("orders")
            for number in range(3):
                await sender.send(encoded_message(f"message-{number}", bytes(4000)))
            arrived: asyncio.Queue[Delivery] = asyncio.Queue()
            receiver = await client.receiver("orders", arrived.put_nowait)
            receiver.grant(2)
            disk.fill(serve)
            for _ in range(2):
                await receiver.settled(await asyncio.wait_for(arrived.get(), SECONDS))
            with pytest.raises(RefusedError, match="could not write"):
                await sender.send(encoded_message("full", bytes(4000)))
        serve.kill()
        disk.free(serve)
        stored = read_tables(disk.folder / "contoso").messages["orders"]
        assert [message.message_id for message in stored] == ["message-2"]


async def test_sweep_that_fails_in_its_last_sync_keeps_later_notes_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await _filled(tmp_path / "running", 1, Durability.FULL)
    remove = store._remove

    def fail_at_the_end(*args: Any) -> None:
        monkeypatch.setattr(store._removals, "begin", lambda start: None)
        remove(*args)
        monkeypatch.undo()
        raise sqlite3.OperationalError("disk I/O error")  # as when the last sync of a commit fails

    monkeypatch.setattr(store, "_remove", fail_at_the_end)
    assert store._sweep() is not None
    await store.commit([_removal(2)])
    left = _opened(as_after_a_crash(tmp_path / "running", tmp_path / "crashed"))
    await store.close()
    assert await left == list(range(3, 11))


async def _opened(folder: Path) -> list[int]:
    """The messages after opening the store again."""
    store = Store(folder)
    sequences = [sequence_of(row[0]) for row in store.reader.execute("SELECT id FROM stored ORDER BY id")]
    await store.close()
    return sequences


async def test_missing_file_of_notes_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = await _filled(tmp_path, 1)
    await store.close()
    (tmp_path / REMOVALS).unlink()
    await Store(tmp_path).close()
    (record,) = caplog.records
    assert "is missing: completed messages may be delivered again" in record.getMessage()
