"""Message counts and sequence numbers after a stop and after a crash."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from tests.emulator.durability.tables import FILES, Counted

from twinbus.emulator.storage.schema import DELETE, SET_STATE, Change, State, message_key
from twinbus.emulator.storage.store import RESERVED, Durability, Store

QUEUE = 2


def _insertion(sequence: int) -> Change:
    row = (message_key(QUEUE, sequence), 1, 10, b"\x00\x53\x73\x45\x00\x53\x75\xa0\x00")
    sql = "INSERT INTO messages (id, state, enqueued_at, delivery_count, size, bare) VALUES (?, 0, ?, 0, ?, ?)"
    return sql, row


async def _fill(store: Store) -> None:
    """Store three messages, delete the newest and defer one."""
    for sequence in (1, 2, 3):
        await store.commit([_insertion(sequence)])
    await store.commit([(SET_STATE, (int(State.DEFERRED), message_key(QUEUE, 1)))])
    await store.commit([(DELETE, (message_key(QUEUE, 3),))])


def _counters(store: Store) -> tuple[Counted, int]:
    row = store.reader.execute("SELECT active, deferred, scheduled, bytes, last_sequence FROM counters").fetchone()
    return Counted(*row[:4]), row[4]


async def _reopened(folder: Path) -> tuple[Counted, int]:
    store = Store(folder)
    try:
        return _counters(store)
    finally:
        await store.close()


async def test_closed_store_keeps_its_counters_and_sequence(tmp_path: Path) -> None:
    store = Store(tmp_path)
    await _fill(store)
    await store.close(lambda: [(QUEUE, 1, 1, 0, 20, 3)])
    assert await _reopened(tmp_path) == (Counted(1, 1, 0, 20), 3)
    assert await _reopened(tmp_path) == (Counted(1, 1, 0, 20), 3)


async def test_after_a_crash_messages_are_counted_and_no_number_is_reused(tmp_path: Path) -> None:
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    store = Store(tmp_path / "running", Durability.NORMAL)
    await _fill(store)
    for file in FILES:
        shutil.copy(tmp_path / "running" / file, crashed / file)
    await store.close()
    counted, last = await _reopened(crashed)
    assert counted == Counted(1, 1, 0, 20)
    assert 3 <= last <= 3 + RESERVED


async def test_sequence_numbers_are_reserved_before_use(tmp_path: Path) -> None:
    store = Store(tmp_path)
    await asyncio.gather(*(store.commit([_insertion(number)]) for number in range(1, 2 * RESERVED)))
    assert _counters(store)[1] >= 2 * RESERVED - 1
    await store.close()


async def test_out_of_order_messages_do_not_lower_the_sequence_number(tmp_path: Path) -> None:
    store = Store(tmp_path)
    await store.commit([_insertion(number) for number in (7, 5, 3)])
    await store.commit([_insertion(6 + RESERVED)])
    assert _counters(store)[1] >= 6 + RESERVED
    await store.close()


async def test_store_closed_without_counters_is_counted_at_next_start(tmp_path: Path) -> None:
    store = Store(tmp_path)
    await _fill(store)
    await store.close()
    assert (await _reopened(tmp_path))[0] == Counted(1, 1, 0, 20)
