"""What one task does, here without Spark: the same function, the same tokens, real namespaces."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path

import pytest
from tests.pipeline.drain.backlogs import FIRST, QUEUES, Backlogs, figures
from tests.syphon.bus import PATIENCE, connect, eventually, receive
from tests.syphon.pumping import bodies, envelope, numbered

from twinbus.emulator import Fault, FaultKind
from twinbus.ledger import Stage
from twinbus.ledger.ledger_reader import read_ledger
from twinbus.ledger.schema import to_operations
from twinbus.ledger.writer import LedgerWriter
from twinbus.spark.draining.drain_task import SCHEMA, facts_of
from twinbus.spark.draining.slice_planning import Assignment
from twinbus.syphon.settlement import facts

ALONE = Assignment((FIRST,))


async def test_each_message_has_a_row_of_facts_and_none_has_its_body(pair: Backlogs) -> None:
    await pair.put([*numbered("orders", range(20)), envelope(None, b"no destination"), *numbered("nowhere", [1])])
    work = await pair.work(ALONE, known=["orders", "nowhere"])
    batches = await asyncio.to_thread(lambda: list(facts_of(work, 0)))
    assert all(batch.schema == SCHEMA for batch in batches)
    rows = [one for one in figures(batches) if one.bytes]
    assert sorted(one.outcome for one in rows) == sorted(20 * [facts.MOVED] + [facts.MALFORMED, facts.DEFERRED])
    moved = [one for one in rows if one.outcome == facts.MOVED]
    assert {(one.queue, one.destination, one.messages) for one in moved} == {(FIRST, "orders", 1)}
    assert all(one.max_age_ms is not None and 0 <= one.max_age_ms < 60_000 for one in moved)
    assert await pair.arrived("orders") == bodies(range(20))


async def test_a_destination_without_a_token_is_left_and_told_and_the_slice_ends_soon(pair: Backlogs) -> None:
    await pair.put([*numbered("orders", range(5)), *numbered("bills", range(3))])
    result = await pair.task(await pair.work(ALONE, known=["orders"]))
    assert (result.moved, result.unknown, result.deferred) == (5, {"bills"}, {"bills": 3})
    assert pair.queue("bills").activity.received == 0
    result = await pair.task(await pair.work(ALONE, known=["orders", "bills"]))
    assert (result.moved, result.unknown, result.is_finished) == (3, set(), True)
    assert await pair.arrived("bills") == bodies(range(3))


async def test_a_slice_ends_in_time_and_leaves_no_message_locked(pair: Backlogs) -> None:
    await pair.put(numbered("orders", range(500)))
    result = await pair.task(await pair.work(Assignment((FIRST,), rate=50), seconds=4.0))
    assert not result.is_finished
    assert 0 < result.moved < 400
    assert pair.backlog.locked == 0
    assert pair.left + pair.queue("orders").activity.received == 500


async def test_tokens_that_are_almost_over_are_not_begun_with(pair: Backlogs) -> None:
    await pair.put(numbered("orders", range(5)))
    work = await pair.work(ALONE)
    for token in (work.primary.by_audience, work.secondary.by_audience):
        for audience, one in token.items():
            token[audience] = one._replace(expires_at=one.expires_at - 570)  # type: ignore[index]
    result = await pair.task(work)
    assert (result.moved, result.is_finished, pair.left) == (0, False, 5)


async def test_an_extra_pump_leaves_what_is_set_aside_to_the_one_in_charge(pair: Backlogs) -> None:
    await pair.put([*numbered("later", range(3)), *numbered("orders", range(10))])
    known = ["orders", "later"]
    assert (await pair.task(await pair.work(ALONE, known=known))).deferred == {"later": 3}
    await pair.create("later")
    await pair.put(numbered("orders", range(10, 20)))
    result = await pair.task(await pair.work(ALONE, Assignment((FIRST,), is_extra=True), known=known), 1)
    assert (result.moved, result.is_finished, result.deferred) == (10, True, {})
    assert pair.backlog.counters.deferred == 3
    assert (await pair.task(await pair.work(ALONE, known=known))).moved == 3


async def test_time_in_the_backlog_counts_though_nobody_tells_the_lock_duration(pair: Backlogs) -> None:
    await pair.put([*numbered("orders", [1], seconds=1), *numbered("orders", [2], seconds=3600)])
    enqueued_at = pair.clock()
    await eventually(lambda: pair.clock() > enqueued_at + 1.5)
    batches = await asyncio.to_thread(lambda work: list(facts_of(work, 0)), await pair.work(ALONE, lock_seconds=None))
    outcomes = sorted(one.outcome for one in figures(batches) if one.bytes)
    assert outcomes == sorted([facts.EXPIRED_THERE, facts.MOVED])
    [dead] = await pair.dead_letters()
    assert dead["DeadLetterReason"] == "ExpiredInBacklog"


async def test_one_task_can_have_several_queues(pair: Backlogs) -> None:
    for index, queue in enumerate(QUEUES):
        await pair.put_in(queue, numbered("orders", range(index * 10, index * 10 + 10)))
    result = await pair.task(await pair.work(Assignment(QUEUES)))
    assert (result.moved, result.failure, result.is_finished, pair.left) == (30, None, True, 0)


async def test_every_move_is_in_the_ledger_before_it_is_completed(pair: Backlogs, tmp_path: Path) -> None:
    await pair.put(numbered("orders", range(50)))
    work = await pair.work(ALONE, ledger=str(tmp_path / "ledger"), pairing="contoso", client="spark")
    assert (await pair.task(work)).moved == 50
    rows = [one for one in to_operations(read_ledger(tmp_path / "ledger").table) if one.stage is Stage.PRIMARY_SEND]
    assert {str(one.message_id) for one in rows} == {f"orders-{number}" for number in range(50)}
    assert {one.client.rpartition("-")[0] for one in rows} == {"spark"}


async def test_a_ledger_that_takes_no_rows_completes_nothing_and_says_so(
    short_locks: Backlogs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LedgerWriter.close, "__defaults__", (0.5,))  # seconds, after which it gives up
    (tmp_path / "ledger").write_text("this is no folder")
    await short_locks.put(numbered("orders", range(20)))
    result = await short_locks.task(await short_locks.work(ALONE, ledger=str(tmp_path / "ledger")))
    assert result.ledger_failure is not None
    assert result.ledger_failure.startswith("the ledger failed: ")
    assert (result.moved, short_locks.left) == (0, 20)


async def test_a_primary_that_cannot_be_reached_is_told_not_raised(pair: Backlogs) -> None:
    await pair.put(numbered("orders", range(20)))
    pair.primary.faults.add(Fault(FaultKind.REFUSE))
    result = await pair.task(await pair.work(ALONE))
    assert result.failure is not None
    assert "cannot be reached" in result.failure
    assert pair.left == 20


async def test_a_task_whose_rows_nobody_takes_any_more_gives_back_what_it_has(pair: Backlogs) -> None:
    await pair.put(numbered("orders", range(500)))
    work = await pair.work(Assignment((FIRST,), rate=20), seconds=60.0)
    rows = facts_of(work, 0)
    await asyncio.to_thread(next, rows)
    await asyncio.to_thread(rows.close)  # type: ignore[attr-defined]
    assert pair.backlog.locked == 0
    assert pair.left + pair.queue("orders").activity.received == 500


async def test_what_tasks_are_told_has_no_key_in_it(pair: Backlogs) -> None:
    work = await pair.work(ALONE)
    told = pickle.dumps(work) + repr(work).encode()
    for namespace in (pair.primary, pair.secondary):
        key = namespace.connection_string.partition("SharedAccessKey=")[2].partition(";")[0]
        assert len(key) > 10
        assert key.encode() not in told
    assert b"sig=" not in repr(work).encode()


async def test_messages_that_a_dead_task_held_come_again(short_locks: Backlogs) -> None:
    await short_locks.put(numbered("orders", range(10)))
    async with asyncio.timeout(PATIENCE):
        async with connect(short_locks.secondary) as connection:
            await receive(connection, FIRST, 4)
            await eventually(lambda: short_locks.backlog.locked == 4)
            connection.abort()
        assert (await short_locks.task(await short_locks.work(ALONE))).moved == 10
