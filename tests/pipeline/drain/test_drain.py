"""The syphon on Spark: real Spark, real namespaces, counted at the brokers."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.pipeline.drain.backlogs import DRAIN_SECONDS, FIRST, QUEUES, SHORT_LOCK, Backlogs
from tests.syphon.bus import connect, eventually, receive
from tests.syphon.pumping import bodies, numbered
from tests.syphon.test_pump_order import assert_in_order, of_sessions

from twinbus.emulator import Fault, FaultKind
from twinbus.ledger import OperationKind, Outcome, Stage
from twinbus.ledger.ledger_reader import read_ledger
from twinbus.ledger.schema import to_operations
from twinbus.spark.draining import drain_loop as loop
from twinbus.spark.draining import slice_planning as planning
from twinbus.spark.draining.drain_loop import DrainProgress, DrainSettings, SparkDrain
from twinbus.spark.pipeline_errors import DrainFailedError
from twinbus.syphon import AmqpError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(400)


async def test_everything_arrives_once_and_has_its_row(pair: Backlogs, spark: SparkSession, tmp_path: Path) -> None:
    await pair.put_in(QUEUES[0], numbered("orders", range(6_000)))  # two pumps
    await pair.put_in(QUEUES[1], numbered("bills", range(50)))
    report = await pair.drained(spark, ledger=str(tmp_path / "ledger"))
    assert pair.left == 0
    assert sorted(await pair.arrived("orders")) == sorted(bodies(range(6_000)))
    assert await pair.arrived("bills") == bodies(range(50))
    found = report.to_json()
    assert (found["moved"], found["deferred"], found["held"], found["repeated_tasks"]) == (6_050, 0, 0, 0)
    assert found["bytes"] > 6_050 * 100
    rows = list(to_operations(read_ledger(tmp_path / "ledger").table))
    moves = [one for one in rows if one.stage is Stage.PRIMARY_SEND and one.outcome is Outcome.DONE]
    assert sorted((str(one.destination), str(one.message_id)) for one in moves) == sorted(
        [*(("orders", f"orders-{number}") for number in range(6_000)), *(("bills", f"bills-{n}") for n in range(50))]
    )
    assert {one.pairing for one in rows} == {"contoso"}
    completes = [one for one in rows if one.operation is OperationKind.COMPLETE]
    assert len(completes) == pair.backlog.activity.completed + pair.backlog_of(QUEUES[1]).activity.completed == 6_050


async def test_a_destination_that_no_look_showed_gets_its_token_in_the_next_slice(
    pair: Backlogs, spark: SparkSession
) -> None:
    # Between thousands of others one is easily overlooked.
    await pair.put(
        [*numbered("orders", range(1_000)), *numbered("bills", [1]), *numbered("orders", range(1_000, 4_000))]
    )
    seen: list[DrainProgress] = []
    report = await pair.drained(spark, seen=seen)
    assert pair.left == 0
    assert report.drain.total.moved == 4_001
    assert await pair.arrived("bills") == bodies([1])


async def test_what_cannot_be_moved_is_deferred_and_told(pair: Backlogs, spark: SparkSession) -> None:
    await pair.put([*numbered("orders", range(5)), *numbered("nowhere", range(3))])
    report = await pair.drained(spark)
    assert (report.drain.total.moved, report.drain.total.deferred, report.drain.is_empty) == (5, 3, False)
    await pair.create("nowhere")
    report = await pair.drained(spark)
    assert (report.drain.total.moved, report.drain.is_empty) == (3, True)


async def test_only_the_given_destinations_are_moved(pair: Backlogs, spark: SparkSession) -> None:
    await pair.put([*numbered("orders", range(5)), *numbered("bills", range(3))])
    report = await pair.drained(spark, options={"destinations": ["ORDERS"]})
    assert (report.drain.total.moved, report.drain.total.deferred) == (5, 3)
    assert pair.queue("bills").activity.received == 0


async def test_an_empty_backlog_is_done_without_a_job(pair: Backlogs, spark: SparkSession) -> None:
    report = await pair.drained(spark)
    assert (report.slices, report.drain.total.moved, report.drain.is_empty) == (0, 0, True)


async def test_the_rate_is_shared_by_all_pumps(pair: Backlogs, spark: SparkSession) -> None:
    for index, queue in enumerate(QUEUES):
        await pair.put_in(queue, numbered("orders", range(index * 200, index * 200 + 200)))
    started = time.monotonic()
    report = await pair.drained(spark, options={"rate": 120.0})
    assert report.drain.total.moved == 600
    assert time.monotonic() - started >= 600 / 120 * 0.9


async def test_sessions_stay_in_order(pair: Backlogs, spark: SparkSession) -> None:
    await pair.put(of_sessions(4_500))
    report = await pair.drained(spark, order="session", slice_seconds=3)
    assert report.slices >= 1
    await assert_in_order(pair, 4_500)


async def test_messages_that_somebody_else_keeps_locked_are_held_not_waited_for_for_ever(
    short_locks: Backlogs, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twinbus.spark.draining.drain_loop.PATIENCE", 1.0)
    await short_locks.put(numbered("orders", range(3)))
    async with connect(short_locks.secondary) as connection:
        _, inbox = await receive(connection, FIRST, 3)
        locked = await inbox.take(3)
        management = await connection.management(FIRST)

        async def keep() -> None:
            while True:
                await management.renew_locks([one.lock_token for one in locked])
                await asyncio.sleep(SHORT_LOCK / 4)

        keeper = asyncio.create_task(keep())
        report = await short_locks.drained(spark, slice_seconds=4)
        keeper.cancel()
    assert (report.drain.total.moved, report.drain.held, report.drain.is_empty) == (0, 3, False)


async def test_two_drains_at_once_do_not_get_in_each_others_way(short_locks: Backlogs, spark: SparkSession) -> None:
    await short_locks.put(numbered("orders", range(3_000)))
    reports = await asyncio.gather(short_locks.drained(spark, pumps=2), short_locks.drained(spark, pumps=2))
    assert sum(one.drain.total.moved for one in reports) == 3_000
    arrived = await short_locks.arrived("orders")
    assert set(arrived) == set(bodies(range(3_000)))
    # Twice only what the queue gave out twice: on a slow machine a lock may end before its message is completed.
    assert len(arrived) <= short_locks.backlog.activity.delivered


# ---- failures ----


async def test_a_primary_that_is_down_ends_the_drain_with_the_reason(pair: Backlogs, spark: SparkSession) -> None:
    await pair.put(numbered("orders", range(5)))
    pair.primary.faults.add(Fault(FaultKind.REFUSE))
    with pytest.raises(DrainFailedError, match="cannot be reached"):
        await pair.drained(spark)
    assert pair.left == 5


async def test_a_secondary_that_is_down_ends_the_drain_with_the_reason(pair: Backlogs, spark: SparkSession) -> None:
    pair.secondary.faults.add(Fault(FaultKind.REFUSE))
    with pytest.raises(AmqpError, match="cannot be reached"):
        await pair.drained(spark)


async def test_a_ledger_that_takes_no_rows_ends_the_drain_at_once(
    short_locks: Backlogs, spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "ledger").write_text("this is no folder")
    await short_locks.put(numbered("orders", range(5)))
    with pytest.raises(DrainFailedError, match="the ledger failed"):
        await short_locks.drained(spark, ledger=str(tmp_path / "ledger"))
    assert (short_locks.left, short_locks.backlog.locked) == (5, 0)


async def test_bad_settings_are_refused_with_their_bounds(pair: Backlogs, spark: SparkSession) -> None:
    with pytest.raises(ValueError, match="slice_seconds must be 1 to 60, not 61"):
        DrainSettings(slice_seconds=61)
    with pytest.raises(ValueError, match=f"pumps must be 1 to {planning.MAX_PUMPS}, not 0"):
        DrainSettings(pumps=0)
    with pytest.raises(ValueError, match="queues must name at least one"):
        SparkDrain(spark, *pair.sides, [])


# ---- stopping and watching ----


async def test_stop_ends_it_after_the_slice_and_leaves_nothing_locked(pair: Backlogs, spark: SparkSession) -> None:
    await pair.put(numbered("orders", range(2_000)))
    drain = pair.drain_on(spark, slice_seconds=5, options={"rate": 100.0})
    running = asyncio.create_task(drain.run())
    await pair.until("orders", 5)
    drain.stop()
    async with asyncio.timeout(DRAIN_SECONDS):
        report = await running
    assert report.slices == 1
    assert pair.backlog.locked == 0
    assert pair.left + pair.queue("orders").activity.received == 2_000
    assert report.drain.total.moved == pair.queue("orders").activity.received


async def test_watching_starts_slices_when_something_arrives(pair: Backlogs, spark: SparkSession) -> None:
    seen: list[DrainProgress] = []
    drain = pair.drain_on(spark, seen=seen)
    running = asyncio.create_task(drain.run(watch=True))
    await eventually(lambda: seen and seen[-1].is_waiting)
    for number in range(2):
        await pair.put_in(QUEUES[number], numbered("orders", [number]))
        await pair.until("orders", number + 1)
        await eventually(lambda: seen[-1].is_waiting)
    drain.stop()
    async with asyncio.timeout(DRAIN_SECONDS):
        report = await running
    assert (report.drain.total.moved, report.slices, pair.left) == (2, 2, 0)


async def test_watching_tries_what_is_deferred_again(pair: Backlogs, spark: SparkSession) -> None:
    await pair.put(numbered("later", range(3)))
    drain = pair.drain_on(spark)
    running = asyncio.create_task(drain.run(watch=True))
    await eventually(lambda: pair.backlog.counters.deferred == 3)
    await pair.create("later")
    await pair.until("later", 3)
    drain.stop()
    async with asyncio.timeout(DRAIN_SECONDS):
        assert (await running).drain.total.moved == 3


async def test_progress_tells_what_remains_and_how_fast_it_goes(pair: Backlogs, spark: SparkSession) -> None:
    await pair.put(numbered("orders", range(3_000)))
    seen: list[DrainProgress] = []
    await pair.drained(spark, seen=seen)
    assert seen[0].remaining == pytest.approx(3_000, rel=0.1)
    assert any(one.pumps for one in seen)
    assert seen[-1].rate > 0
    assert seen[-1].account.moved == 3_000


async def test_progress_moves_while_a_slice_runs(
    pair: Backlogs, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "GLANCE_EVERY", 0.5)
    await pair.put(numbered("orders", range(1_500)))
    seen: list[DrainProgress] = []
    await pair.drained(spark, FIRST, seen=seen, options={"rate": 300})
    slice_ends = next(one.ends_at for one in seen if one.pumps)
    at_work = [one.remaining or 0 for one in seen if one.pumps and one.ends_at == slice_ends]
    assert at_work == sorted(at_work, reverse=True)
    assert len({left for left in at_work if 0 < left < 1_400}) > 2
    assert all(one.total == pytest.approx(1_500, rel=0.1) for one in seen)
