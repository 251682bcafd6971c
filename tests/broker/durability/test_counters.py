"""How many messages a queue holds, and which sequence number comes next, after a stop and after a crash."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from tests.broker.durability.tables import FILES, Counted

from twinbus.broker.schema import DELETE, SET_STATE, Change, State, message_key
from twinbus.broker.store import RESERVED, Durability, Store

QUEUE = 2


def _insertion(sequence: int) -> Change:
    row = (message_key(QUEUE, sequence), 1, 10, b"\x00\x53\x73\x45\x00\x53\x75\xa0\x00")
    sql = "INSERT INTO messages (id, state, enqueued_at, delivery_count, size, bare) VALUES (?, 0, ?, 0, ?, ?)"
    return sql, row


async def _fill(store: Store) -> None:
    """Three messages, of which one is gone and one deferred; the one that is gone was the newest."""
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


async def test_a_store_that_was_closed_knows_what_it_holds_and_leaves_no_gap(tmp_path: Path) -> None:
    store = Store(tmp_path)
    await _fill(store)
    await store.close(lambda: [(QUEUE, 1, 1, 0, 20, 3)])
    assert await _reopened(tmp_path) == (Counted(1, 1, 0, 20), 3)
    assert await _reopened(tmp_path) == (Counted(1, 1, 0, 20), 3)


async def test_after_a_crash_the_messages_are_counted_and_no_number_comes_back(tmp_path: Path) -> None:
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


async def test_numbers_are_set_aside_before_they_are_used(tmp_path: Path) -> None:
    store = Store(tmp_path)
    await asyncio.gather(*(store.commit([_insertion(number)]) for number in range(1, 2 * RESERVED)))
    assert _counters(store)[1] >= 2 * RESERVED - 1
    await store.close()


async def test_messages_that_come_out_of_order_set_no_number_back(tmp_path: Path) -> None:
    store = Store(tmp_path)
    await store.commit([_insertion(number) for number in (7, 5, 3)])
    await store.commit([_insertion(6 + RESERVED)])
    assert _counters(store)[1] >= 6 + RESERVED
    await store.close()


async def test_what_nobody_counted_is_counted_at_the_next_start(tmp_path: Path) -> None:
    store = Store(tmp_path)
    await _fill(store)
    await store.close()
    assert (await _reopened(tmp_path))[0] == Counted(1, 1, 0, 20)
