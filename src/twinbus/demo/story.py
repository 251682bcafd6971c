"""Runs the demo: traffic, an outage, the drain on Spark, the pipeline and the report."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from twinbus import (
    Event,
    FailedOver,
    PingFailed,
    PingSent,
    Recovered,
    SendAvailabilityOptions,
)
from twinbus.aio import PairedServiceBusClient
from twinbus.ledger.writer import LedgerWriter
from twinbus.servicebus.entity_paths import backlog_path
from twinbus.syphon.connector import Side

from .processes import NamespaceProcess
from .screen import Scene, Screen
from .tally import Tally, Verdict
from .traffic import Destination, Traffic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from twinbus.report.document import Report
    from twinbus.spark.draining.slice_results import SparkReport

Fault = Literal["kill", "blackhole"]

DESTINATIONS = (
    Destination("orders"),
    Destination("payments"),
    Destination("shipments", sessions=("north", "south")),
    Destination("events", subscriptions=("billing", "audit")),
)
BACKLOG_QUEUES = 4
OPTIONS = SendAvailabilityOptions(
    backlog_queue_count=BACKLOG_QUEUES, failover_interval=1, ping_primary_interval=1, attempt_timeout=2
)
RATE = 25.0  # messages a second to each destination
BEFORE, AFTER = 6.0, 4.0  # seconds of normal traffic
PATIENCE = 60.0  # timeout of each phase, in seconds
SPARK_SLOTS = 6


@dataclass(frozen=True, slots=True)
class Ending:
    """Results of the demo."""

    verdict: Verdict
    failover_seconds: float
    drain_seconds: float
    moved: int
    slowest_send: float
    refused: int
    report: Report
    html: Path

    def to_json(self) -> dict[str, Any]:
        cost = self.report.cost
        return {
            **self.verdict.to_json(),
            "failover_seconds": round(self.failover_seconds, 3),
            "drain_seconds": round(self.drain_seconds, 3),
            "cost": None if cost is None else cost.to_json(),
            "report": str(self.html),
        }


class Story:
    """Runs the demo in a folder. `seed` fixes message ids and timing offsets, not the timing of the processes."""

    def __init__(self, folder: Path, screen: Screen, *, fault: Fault, seconds: float, seed: int) -> None:
        self._folder = folder
        self._screen = screen
        self._fault = fault
        self._seconds = seconds
        self._seed = seed
        self._now = time.monotonic
        self._recovered: set[str] = set()
        self._failed_over: set[str] = set()
        self._changed = asyncio.Event()
        self._moved = 0

    async def run(self) -> Ending:
        tally = Tally({destination.path: destination.receiving_paths for destination in DESTINATIONS})
        say, phase = self._screen.say, self._screen.phase
        async with AsyncExitStack() as stack:
            phase("Starting two namespaces, each in its own process")
            entities = "".join(destination.toml("contoso") for destination in DESTINATIONS)
            primary = NamespaceProcess("contoso", self._folder, entities)
            secondary = NamespaceProcess("contoso-standby", self._folder)
            for process in (primary, secondary):
                stack.push_async_callback(process.stop)
            await asyncio.gather(primary.start(), secondary.start())
            say(f"contoso listens on port {primary.port}, contoso-standby on port {secondary.port}")
            # Spark starts slowly: start it in the background now.
            starting = asyncio.create_task(asyncio.to_thread(_start_spark))
            stack.push_async_callback(_stop_spark, starting)
            writer = stack.enter_context(LedgerWriter(str(self._folder / "ledger")))
            client = await stack.enter_async_context(
                PairedServiceBusClient.from_connection_strings(
                    primary.connection_string, secondary.connection_string, options=OPTIONS, recorder=writer
                )
            )
            traffic = Traffic(client, DESTINATIONS, tally, RATE, self._seed, self._now)
            scene = Scene(client.status, tally, backlog=lambda: self._in_backlog(tally))
            self._screen.scene = scene
            loop = asyncio.get_running_loop()

            def on_event(event: Event) -> None:
                loop.call_soon_threadsafe(self._on_event, scene, event)

            stack.callback(client.on_event(on_event))
            traffic.start()
            stack.push_async_callback(traffic.close)

            phase("Normal operation: messages go to contoso")
            await asyncio.sleep(BEFORE)
            broken_at = await self._break(primary)
            await asyncio.sleep(self._seconds)
            await self._repair(primary)
            await asyncio.sleep(AFTER)
            await traffic.stop_sending()
            phase("Draining the backlog with Spark")
            spark = await starting
            drained = await self._drain(spark, primary, secondary, scene)
            phase("Waiting for the receivers")
            await self._until(lambda: tally.missing == 0, "the receivers to receive everything")
            await traffic.close()
            self._screen.scene = None
            await client.close()
            writer.close()
            phase("Computing the verdict and the bill from the ledger")
            report, html = await asyncio.to_thread(self._report, spark)
        assert traffic.diverted_at is not None
        return Ending(
            verdict=tally.verdict(),
            failover_seconds=traffic.diverted_at - broken_at,
            drain_seconds=drained.drain.seconds,
            moved=drained.drain.total.moved,
            slowest_send=traffic.slowest,
            refused=traffic.refused,
            report=report,
            html=html,
        )

    async def _break(self, primary: NamespaceProcess) -> float:
        if self._fault == "kill":
            self._screen.phase("contoso is killed (kill -9)")
            at = self._now()
            await primary.kill()
        else:
            self._screen.phase("contoso accepts everything and never answers")
            at = self._now()
            await primary.blackhole()
        await self._until(lambda: len(self._failed_over) == len(DESTINATIONS), "all entities to fail over")
        self._screen.say(f"all entities failed over within {self._now() - at:.1f} s; sends continue")
        return at

    async def _repair(self, primary: NamespaceProcess) -> None:
        self._screen.phase("contoso is back")
        if self._fault == "kill":
            await primary.start()
        else:
            await primary.clear_faults()
        await self._until(lambda: len(self._recovered) == len(DESTINATIONS), "pings to succeed")

    def _on_event(self, scene: Scene, event: Event) -> None:
        match event:
            case PingSent() | PingFailed():
                scene.pings += isinstance(event, PingSent)
            case FailedOver():
                self._failed_over.add(event.entity)
                self._screen.say(f"  {event.entity} has failed over: its messages go to the backlog", "red")
            case Recovered():
                self._recovered.add(event.entity)
                self._screen.say(f"  a ping succeeded: messages for {event.entity} go to contoso again", "green")
        self._changed.set()

    def _in_backlog(self, tally: Tally) -> int:
        return max(0, sum(routes["backlog"] for routes in tally.by_route.values()) - self._moved)

    async def _until(self, is_met: Callable[[], bool], condition: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                while not is_met():
                    self._changed.clear()
                    try:
                        async with asyncio.timeout(0.2):
                            await self._changed.wait()
                    except TimeoutError:
                        continue
        except TimeoutError:
            raise TimeoutError(f"timed out after {PATIENCE:g} s waiting for {condition}") from None

    async def _drain(
        self, spark: SparkSession, primary: NamespaceProcess, secondary: NamespaceProcess, scene: Scene
    ) -> SparkReport:
        from twinbus.spark.draining.drain_loop import DrainProgress, DrainSettings, SparkDrain
        from twinbus.spark.draining.drain_progress import view_of

        def show(progress: DrainProgress) -> None:
            self._moved = progress.total - (progress.remaining or 0)
            scene.below = view_of(progress)

        sides = [Side.from_connection_string(process.connection_string) for process in (primary, secondary)]
        queues = [backlog_path("contoso", index) for index in range(BACKLOG_QUEUES)]
        settings = DrainSettings(pumps=BACKLOG_QUEUES, pairing="contoso", ledger=str(self._folder / "ledger"))
        report = await SparkDrain(spark, sides[0], sides[1], queues, settings, show).run()
        self._moved = report.drain.total.moved
        scene.below = None
        self._screen.say(f"{report.drain.total.moved:,} messages moved to contoso in {report.drain.seconds:.1f} s")
        return report

    def _report(self, spark: SparkSession) -> tuple[Report, Path]:
        from twinbus.report.assemble import Wishes, assemble, open_results
        from twinbus.report.cost.prices import load_prices
        from twinbus.report.render.html import render
        from twinbus.spark import run_pipeline

        ledger = str(self._folder / "ledger")
        run_pipeline(spark, ledger, drained=True)
        subscriptions = {topic.path: len(topic.subscriptions) for topic in DESTINATIONS if topic.subscriptions}
        report = assemble(open_results(ledger), Wishes(book=load_prices(None), subscriptions=subscriptions))
        html = self._folder / "report.html"
        html.write_text(render(report), encoding="utf-8")
        return report, html


def _start_spark() -> SparkSession:
    from twinbus.spark.session import spark_session

    config = {"spark.sql.shuffle.partitions": "4"}
    return spark_session(app_name="twinbus demo", slots=SPARK_SLOTS, memory="1g", config=config)


async def _stop_spark(starting: asyncio.Task[SparkSession]) -> None:
    if not starting.cancelled():
        session = await starting
        await asyncio.to_thread(session.stop)
