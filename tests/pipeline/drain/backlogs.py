"""What the tests of the drain on Spark need: namespaces with several backlog queues, tasks, and drains."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
from tests.namespace_internals import Queue
from tests.syphon.bus import PATIENCE, connect, send_all
from tests.syphon.pumping import LOCK_SECONDS, QUICK, Pair

from twinbus.emulator import DEFAULT, Profile, QueueDescription
from twinbus.pairing.options import SyphonOptions
from twinbus.servicebus.durations import TICKS_PER_SECOND
from twinbus.spark.draining.drain_loop import DrainProgress, DrainSettings, SparkDrain
from twinbus.spark.draining.drain_task import SliceWork, facts_of
from twinbus.spark.draining.slice_planning import Assignment
from twinbus.spark.draining.slice_results import Figure, SliceResult, SparkReport
from twinbus.spark.draining.task_tokens import mint
from twinbus.syphon.connector import Side

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUEUES = tuple(f"contoso/x-servicebus-transfer/{index}" for index in range(3))
FIRST = QUEUES[0]
# Where locks have to run out, the shortest that the service knows. The ledger has a third of a lock to store rows.
SHORT_LOCK = 5
DRAIN_SECONDS = 300  # for what takes ten, on a machine that has nothing else to do


class Backlogs(Pair):
    """A primary with the queues `orders` and `bills`, and a secondary with three backlog queues."""

    def __init__(self, lock_seconds: int = LOCK_SECONDS, profile: Profile = DEFAULT) -> None:
        super().__init__(profile, lock_seconds)
        self.lock_seconds = lock_seconds

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        await self.create("orders", "bills")
        for queue in QUEUES[1:]:
            await self.secondary.create(
                QueueDescription(
                    queue, lock_duration=self.lock_seconds * TICKS_PER_SECOND, max_delivery_count=2147483647
                )
            )
        return self

    async def put_in(self, queue: str, payloads: Iterable[bytes]) -> None:
        async with connect(self.secondary) as connection:
            sender = await connection.attach_sender(queue)
            outcomes = await send_all(sender, list(payloads))
        assert set(outcomes.values()) <= {None}

    def backlog_of(self, queue: str) -> Queue:
        node = self.secondary.entities.resolve(queue)
        assert node is not None
        return node.queue

    @property
    def left(self) -> int:
        """How many messages are in the backlog, deferred or not."""
        counters = [self.backlog_of(queue).counters for queue in QUEUES]
        return sum(one.active + one.deferred for one in counters)

    @property
    def sides(self) -> tuple[Side, Side]:
        primary, secondary = (
            Side.from_connection_string(one.connection_string) for one in (self.primary, self.secondary)
        )
        return primary, secondary

    # ---- one task, without Spark ----

    async def work(self, *assignments: Assignment, known: Iterable[str] = ("orders",), **told: Any) -> SliceWork:
        primary, secondary = self.sides
        return SliceWork(
            assignments=assignments,
            primary=await mint(primary.endpoint, primary.credential, known),
            secondary=await mint(secondary.endpoint, secondary.credential, QUEUES),
            **{"seconds": 30.0, "options": SyphonOptions(**QUICK), "lock_seconds": self.lock_seconds, **told},
        )

    async def task(self, work: SliceWork, number: int = 0) -> SliceResult:
        """What a task of the slice does and says."""
        async with asyncio.timeout(PATIENCE * 3):
            batches = await asyncio.to_thread(lambda: list(facts_of(work, number)))
        return SliceResult.of(figures(batches))

    # ---- a drain ----

    def drain_on(
        self, spark: SparkSession, *queues: str, seen: list[DrainProgress] | None = None, **told: Any
    ) -> SparkDrain:
        options = SyphonOptions(**{**QUICK, **told.pop("options", {})})
        settings = DrainSettings(
            options=options,
            **{"lock_seconds": self.lock_seconds, "pumps": 4, "slice_seconds": 20, "pairing": "contoso", **told},
        )
        return SparkDrain(spark, *self.sides, queues or QUEUES, settings, [].append if seen is None else seen.append)

    async def drained(self, spark: SparkSession, *queues: str, **told: Any) -> SparkReport:
        async with asyncio.timeout(DRAIN_SECONDS):
            return await self.drain_on(spark, *queues, **told).run()


def figures(batches: Iterable[pa.RecordBatch]) -> list[Figure]:
    """The rows of a task, as Spark would add them up one by one."""
    rows = [row for batch in batches for row in batch.to_pylist()]
    return [
        Figure(
            row["queue"], row["destination"], row["outcome"], row["detail"], row["count"], row["bytes"], row["age_ms"]
        )
        for row in rows
    ]
