"""The syphon on Spark is killed at seeded random moments: driver, Python worker or executor.

`make test-kill` does 20 rounds. What a round found is counted at the brokers and in the ledger's files.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.pipeline.drain.backlogs import QUEUES, Backlogs
from tests.spark.processes import SECONDS, Marked, syphon
from tests.syphon.bus import eventually
from tests.syphon.pumping import bodies, numbered

from twinbus.ledger import Outcome, Stage
from twinbus.ledger.ledger_reader import read_ledger
from twinbus.ledger.schema import to_operations
from twinbus.syphon.pacing import MAX_WINDOW

ROUNDS = int(os.environ.get("TWINBUS_KILL_ROUNDS", "2"))
SEED = int(os.environ.get("TWINBUS_KILL_SEED", "1"))
VICTIMS = ("worker", "driver", "executor")
LOCAL_CLUSTER = "local-cluster[2,3,1024]"
MESSAGES = 4_000
PUMPS = 3
# Short, so that a round need not wait for a minute; a third of it must do for the ledger on a busy machine.
LOCK_SECONDS = 15


@pytest.fixture
async def pair() -> AsyncIterator[Backlogs]:
    async with Backlogs(LOCK_SECONDS) as running:
        yield running


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(ROUNDS))
async def test_a_kill_at_any_moment_loses_nothing_and_every_completed_message_has_its_row(
    pair: Backlogs, tmp_path: Path, number: int
) -> None:
    victim, chance = VICTIMS[number % len(VICTIMS)], random.Random(f"{SEED}-{number}")
    # One queue with most of them, so that it has two pumps, and one more.
    await pair.put_in(QUEUES[0], numbered("orders", range(MESSAGES - 500)))
    await pair.put_in(QUEUES[1], numbered("orders", range(MESSAGES - 500, MESSAGES)))
    moment = chance.randrange(1, MESSAGES * 9 // 10)
    print(f"round {number}, seed {SEED}: {victim} killed when {moment} messages have arrived")
    ledger = str(tmp_path / "ledger")
    arguments = ["--until-empty", "--json", "--pumps", str(PUMPS), "--ledger", ledger, "--rate", "1500"]
    if victim == "executor":
        arguments += ["--master", LOCAL_CLUSTER]

    running = await syphon(pair, *arguments).start(tmp_path)
    try:
        async with asyncio.timeout(SECONDS):
            while pair.queue("orders").activity.received < moment:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.005)
        kill(running, victim, chance)
        code, output, errors = await running.ended()
        if victim == "driver":
            assert code < 0
            await eventually(lambda: not running.running())  # all that Spark had started is gone without being told
            running = await syphon(pair, *arguments).start(tmp_path)
            code, output, errors = await running.ended()
    finally:
        running.kill_all()

    assert code == 0, errors
    assert json.loads(output)["deferred"] == 0
    await check(pair, ledger)


def kill(running: Marked, victim: str, chance: random.Random) -> None:
    if victim == "driver":
        running.process.kill()
        return
    pids = running.python_workers() if victim == "worker" else running.executors()
    assert pids, f"there is no {victim} to kill"
    os.kill(chance.choice(pids), 9)


async def check(pair: Backlogs, ledger: str) -> None:
    """Lost 0, completed without a row 0, and twice no more than could be under way."""
    assert pair.left == 0
    completed = sum(pair.backlog_of(queue).activity.completed for queue in QUEUES)
    assert completed == MESSAGES
    arrived = Counter(await pair.arrived("orders"))
    assert set(arrived) == set(bodies(range(MESSAGES)))
    assert arrived.total() - MESSAGES <= PUMPS * MAX_WINDOW
    found = read_ledger(ledger)
    assert found.unreadable == []
    moved = {
        row.message_id
        for row in to_operations(found.table)
        if row.stage is Stage.PRIMARY_SEND and row.outcome is Outcome.DONE
    }
    assert {f"orders-{number}" for number in range(MESSAGES)} <= moved
