"""`twinbus syphon --spark` as a process, on one machine and on a cluster of two executors."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.pipeline.drain.backlogs import QUEUES, Backlogs
from tests.spark.processes import SECONDS, syphon
from tests.syphon.pumping import bodies, numbered

from twinbus.ledger import Stage
from twinbus.ledger.ledger_reader import read_ledger
from twinbus.ledger.schema import to_operations


@pytest.fixture
async def pair() -> AsyncIterator[Backlogs]:
    async with Backlogs() as running:
        yield running


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_on_a_cluster_it_moves_everything_and_ends_with_1_if_something_is_deferred(
    pair: Backlogs, tmp_path: Path
) -> None:
    for index, queue in enumerate(QUEUES):
        await pair.put_in(queue, numbered("orders", range(index * 1000, index * 1000 + 1000)))
    await pair.put_in(QUEUES[0], numbered("nowhere", range(3)))
    ledger = tmp_path / "ledger"
    arguments = ("--until-empty", "--json", "--ledger", str(ledger), "--master", "local-cluster[2,3,1024]")
    running = await syphon(pair, *arguments).start(tmp_path)
    try:
        code, output, errors = await running.ended()
    finally:
        running.kill_all()
    assert code == 1, errors
    report = json.loads(output)
    assert (report["moved"], report["deferred"], report["held"]) == (3000, 3, 0)
    assert report["destinations"]["nowhere"]["deferred"] == 3
    assert {"slices", "bytes", "oldest_seconds", "repeated_tasks", "missing", "seconds"} <= report.keys()
    assert re.search(r"0 moved, about [23],\d\d\d remaining", errors)
    assert "Traceback" not in errors
    assert sorted(await pair.arrived("orders")) == sorted(bodies(range(3000)))
    moved = [row for row in to_operations(read_ledger(ledger).table) if row.stage is Stage.PRIMARY_SEND]
    assert len({row.message_id for row in moved if row.destination == "orders"}) == 3000
    assert not running.running()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_ctrl_c_ends_it_after_the_slice_with_1_and_leaves_nothing_locked(pair: Backlogs, tmp_path: Path) -> None:
    await pair.put(numbered("orders", range(5000)))
    running = await syphon(pair, "--until-empty", "--rate", "100", "--slice", "5").start(tmp_path)
    try:
        async with asyncio.timeout(SECONDS):
            while pair.queue("orders").activity.received < 20:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.01)
        # A terminal tells the whole group of processes.
        os.killpg(running.process.pid, signal.SIGINT)
        code, output, errors = await running.ended()
    finally:
        running.kill_all()
    assert code == 1
    assert "stopping after this slice, within 5 s" in errors
    assert "stopped before the backlog was empty" in errors
    assert "Traceback" not in errors
    assert pair.backlog.locked == 0
    received = pair.queue("orders").activity.received
    assert pair.left + received == 5000
    assert f"{received:,} moved in" in output
