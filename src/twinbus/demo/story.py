"""The demo from beginning to end: traffic, an outage, the drain on Spark, and what the pipeline makes of it."""

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
from twinbus.pairing.naming import backlog_path
from twinbus.syphon.connector import Side

from .processes import NamespaceProcess
from .screen import Scene, Screen
from .tally import Tally, Verdict
from .traffic import Destination, Traffic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from twinbus.pipeline.drain.results import SparkReport
    from twinbus.pipeline.report.document import Report

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
BEFORE, AFTER = 6.0, 4.0  # seconds of peace
PATIENCE = 60.0
SPARK_SLOTS = 6


@dataclass(frozen=True, slots=True)
class Ending:
    """What came of it."""

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
    """Runs the demo in a folder. `seed` makes ids and timing offsets repeat; processes are as timely as the machine."""

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
        tally = Tally({one.path: one.places for one in DESTINATIONS})
        say, phase = self._screen.say, self._screen.phase
        async with AsyncExitStack() as stack:
            phase("Two namespaces, each a process of its own")
            primary = NamespaceProcess("contoso", self._folder, "".join(one.toml("contoso") for one in DESTINATIONS))
            standby = NamespaceProcess("contoso-standby", self._folder)
            for one in (primary, standby):
                stack.push_async_callback(one.stop)
            await asyncio.gather(primary.start(), standby.start())
            say(f"contoso listens on port {primary.port}, contoso-standby on port {standby.port}")
            # Spark takes its time to start: let it, while there is something to see.
            starting = asyncio.create_task(asyncio.to_thread(_start_spark))
            stack.push_async_callback(_stop_spark, starting)
            writer = stack.enter_context(LedgerWriter(str(self._folder / "ledger")))
            client = await stack.enter_async_context(
                PairedServiceBusClient.from_connection_strings(
                    primary.connection_string, standby.connection_string, options=OPTIONS, recorder=writer
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

            phase("All is well: messages go to contoso")
            await asyncio.sleep(BEFORE)
            broken_at = await self._break(primary)
            await asyncio.sleep(self._seconds)
            await self._repair(primary)
            await asyncio.sleep(AFTER)
            await traffic.stop_sending()
            phase("Bringing the backlog home with Spark")
            spark = await starting
            drained = await self._drain(spark, primary, standby, scene)
            phase("Waiting for the receivers")
            await self._until(lambda: tally.missing == 0, "the receivers to get everything")
            await traffic.close()
            self._screen.scene = None
            await client.close()
            writer.close()
            phase("Asking the ledger: did everything arrive, and what did it cost")
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

    # ---- the outage ----

    async def _break(self, primary: NamespaceProcess) -> float:
        if self._fault == "kill":
            self._screen.phase("contoso is killed (kill -9)")
            at = self._now()
            await primary.kill()
        else:
            self._screen.phase("contoso takes everything and answers nothing")
            at = self._now()
            await primary.blackhole()
        await self._until(lambda: len(self._failed_over) == len(DESTINATIONS), "all entities to fail over")
        self._screen.say(f"all entities have failed over after {self._now() - at:.1f} s; sends go on")
        return at

    async def _repair(self, primary: NamespaceProcess) -> None:
        self._screen.phase("contoso is back")
        if self._fault == "kill":
            await primary.start()
        else:
            await primary.clear_faults()
        await self._until(lambda: len(self._recovered) == len(DESTINATIONS), "pings to get through")

    def _on_event(self, scene: Scene, event: Event) -> None:
        match event:
            case PingSent() | PingFailed():
                scene.pings += isinstance(event, PingSent)
            case FailedOver():
                self._failed_over.add(event.entity)
                self._screen.say(f"  {event.entity} has failed over: its messages go to the backlog", "red")
            case Recovered():
                self._recovered.add(event.entity)
                self._screen.say(f"  a ping got through: messages for {event.entity} go to contoso again", "green")
        self._changed.set()

    def _in_backlog(self, tally: Tally) -> int:
        return max(0, sum(routes["backlog"] for routes in tally.by_route.values()) - self._moved)

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                while not holds():
                    self._changed.clear()
                    try:
                        async with asyncio.timeout(0.2):
                            await self._changed.wait()
                    except TimeoutError:
                        continue
        except TimeoutError:
            raise TimeoutError(f"waited {PATIENCE:g} s in vain for {what}") from None

    # ---- Spark ----

    async def _drain(
        self, spark: SparkSession, primary: NamespaceProcess, standby: NamespaceProcess, scene: Scene
    ) -> SparkReport:
        from twinbus.pipeline.drain.loop import Progress, Settings, SparkDrain
        from twinbus.pipeline.drain.progress import view_of

        def show(progress: Progress) -> None:
            self._moved = progress.total - (progress.remaining or 0)
            scene.below = view_of(progress)

        home, away = (Side.from_connection_string(one.connection_string) for one in (primary, standby))
        queues = [backlog_path("contoso", index) for index in range(BACKLOG_QUEUES)]
        settings = Settings(pumps=BACKLOG_QUEUES, pairing="contoso", ledger=str(self._folder / "ledger"))
        report = await SparkDrain(spark, home, away, queues, settings, show).run()
        self._moved = report.drain.total.moved
        scene.below = None
        self._screen.say(f"{report.drain.total.moved:,} messages moved home in {report.drain.seconds:.1f} s")
        return report

    def _report(self, spark: SparkSession) -> tuple[Report, Path]:
        from functools import partial

        from twinbus.pipeline.ingest import ingest
        from twinbus.pipeline.prices import load_prices
        from twinbus.pipeline.reconciliation import reconcile
        from twinbus.pipeline.report.assemble import Wishes, assemble, open_results
        from twinbus.pipeline.report.html import render
        from twinbus.pipeline.results import Results, default_results

        ledger = str(self._folder / "ledger")
        ingest(spark, ledger, Results.open(default_results(ledger)), reconcile=partial(reconcile, drained=True))
        subscriptions = {one.path: len(one.subscriptions) for one in DESTINATIONS if one.subscriptions}
        report = assemble(open_results(ledger), Wishes(book=load_prices(None), subscriptions=subscriptions))
        html = self._folder / "report.html"
        html.write_text(render(report), encoding="utf-8")
        return report, html


def _start_spark() -> SparkSession:
    from twinbus.pipeline.session import spark_session

    config = {"spark.sql.shuffle.partitions": "4"}
    return spark_session(app_name="twinbus demo", slots=SPARK_SLOTS, memory="1g", config=config)


async def _stop_spark(starting: asyncio.Task[SparkSession]) -> None:
    if not starting.cancelled():
        session = await starting
        await asyncio.to_thread(session.stop)
