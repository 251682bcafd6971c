"""A run of the pipeline is killed at seeded random moments: the driver, or an executor.

`make test-kill` does 20 rounds. Afterwards the tables are those of a clean run.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from bench.ledger_shape import Shape
from bench.ledgers import generate
from tests.pipeline.running_process import NOW
from tests.pipeline.test_runs import tables
from tests.spark.processes import SECONDS, Marked

from twinbus.spark import run_pipeline
from twinbus.spark.pipeline.lock import DEAD_AFTER_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = int(os.environ.get("TWINBUS_KILL_ROUNDS", "2"))
SEED = int(os.environ.get("TWINBUS_KILL_SEED", "1"))
SHAPE = Shape(rows=3_000, entities=3, days=4, outages=1, lost=2, unexpected=1, trouble=5_000, block=300)
#: Files and folders that a run makes, temporary ones included. A later moment is after its end.
MOMENTS = 260

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "ledger"
    generate(folder, SHAPE)
    return folder


@pytest.fixture(scope="module")
def clean(spark: SparkSession, made: Path) -> dict[str, list[tuple[Any, ...]]]:
    run_pipeline(spark, made, now=NOW)
    return tables(made)


@pytest.mark.parametrize("number", range(ROUNDS))
async def test_a_kill_at_any_moment_changes_no_table(
    spark: SparkSession, made: Path, clean: dict[str, list[tuple[Any, ...]]], tmp_path: Path, number: int
) -> None:
    victim, chance = ("driver", "executor")[number % 2], random.Random(f"{SEED}-{number}")
    ledger, results = tmp_path / "ledger", tmp_path / "ledger-results"
    shutil.copytree(made, ledger)
    if is_second_run := number % 4 > 1:  # it replaces what is there, after a file came late
        late = chance.choice(sorted(ledger.rglob("*.parquet")))
        late.rename(tmp_path / late.name)
        run_pipeline(spark, ledger, now=NOW)
        (tmp_path / late.name).rename(late)
    moment = chance.randrange(1, MOMENTS // 2 if is_second_run else MOMENTS)
    print(f"round {number}, seed {SEED}: {victim} killed when {moment} files were made")
    master = "local[2,4]" if victim == "driver" else "local-cluster[2,1,1024]"
    running = await Marked("tests.pipeline.running_process", str(ledger), master).start(tmp_path)
    try:
        await _killed(running, victim, results, moment, chance)
        code, _, errors = await running.ended()
    finally:
        running.kill_all()
    if victim == "executor":
        assert code == 0, errors
    elif code:
        _let_claims_die(results)
        run_pipeline(spark, ledger, now=NOW)
    assert tables(ledger) == clean


async def _killed(running: Marked, victim: str, results: Path, moment: int, chance: random.Random) -> None:
    """Kill the process once a run has made `moment` files, unless it ends before."""
    before, seen = _paths(results), set[str]()
    async with asyncio.timeout(SECONDS):
        while len(seen) < moment:
            if running.process.returncode is not None:
                return
            seen |= _paths(results) - before
            await asyncio.sleep(0.005)  # there is no event to wait for
    if victim == "driver":
        running.kill_all()
    elif pids := running.executors():
        os.kill(chance.choice(pids), 9)


def _paths(folder: Path) -> set[str]:
    return {f"{at}/{name}" for at, folders, files in os.walk(folder) for name in (*folders, *files)}


def _let_claims_die(results: Path) -> None:
    """As if the time had passed after which a claim without a heartbeat is dead."""
    for path in (results / "_lock").rglob("*.txt"):
        then = path.stat().st_mtime - DEAD_AFTER_SECONDS - 1
        os.utime(path, (then, then))
