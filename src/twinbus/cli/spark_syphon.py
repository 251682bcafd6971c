"""`twinbus syphon --spark`: the same drain with tasks of Spark."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import typer

from twinbus.ledger.proof import LedgerMode
from twinbus.pairing.naming import backlog_path
from twinbus.pipeline.errors import SparkMissing
from twinbus.syphon.terms import Terms

from .event_loop import run_loop
from .namespaces import Pair

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from twinbus.pipeline.drain.loop import Settings, SparkDrain
    from twinbus.pipeline.drain.results import SparkReport

SPARE_SLOTS = 2


def spark_settings(
    terms: Terms,
    pumps: int | None,
    seconds: float | None,
    ledger: str | None,
    ledger_mode: LedgerMode,
    log_level: str,
) -> Settings:
    """The settings of the drain. Raises `ValueError` for what is out of bounds, `SparkMissing` without the extra."""
    try:
        from twinbus.pipeline.drain import loop
    except ImportError:
        raise SparkMissing from None
    if ledger is not None and "://" not in ledger:
        ledger = os.path.abspath(ledger)  # tasks are in folders of their own
    return loop.Settings(
        options=terms.options,
        ttl=terms.ttl,
        order=terms.order,
        lock_seconds=terms.lock_seconds,
        pumps=loop.PUMPS if pumps is None else pumps,
        slice_seconds=loop.SECONDS if seconds is None else seconds,
        ledger=ledger,
        ledger_mode=ledger_mode,
        log_level=log_level,
    )


@dataclass(frozen=True, slots=True)
class SparkSyphon:
    """One run of the syphon on Spark."""

    pair: Pair
    count: int
    settings: Settings
    watch: bool
    master: str | None
    remote: str | None
    memory: str | None

    def run(self) -> tuple[SparkReport, bool]:
        """What came of it, and whether a signal has ended it. Raises PipelineError, AmqpError, ValueError."""
        from twinbus.pipeline.session import check_workers, running_spark

        with running_spark(
            master=self.master,
            remote=self.remote,
            app_name="twinbus syphon",
            slots=self.settings.pumps + SPARE_SLOTS,
            memory=self.memory,
        ) as spark:
            check_workers(spark)
            return run_loop(self._drain(spark))

    async def _drain(self, spark: SparkSession) -> tuple[SparkReport, bool]:
        from twinbus.pipeline.drain.loop import SparkDrain
        from twinbus.pipeline.drain.progress import ProgressView

        name = await self.pair.primary_name()
        await self.pair.check_not_swapped(name)
        queues = [backlog_path(name, index) for index in range(self.count)]
        with ProgressView() as view:
            settings = replace(self.settings, pairing=name)
            drain = SparkDrain(spark, self.pair.primary, self.pair.secondary, queues, settings, view.show)
            stop = _Stop(drain, settings.slice_seconds)
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, stop)
            return await drain.run(watch=self.watch), stop.is_asked


class _Stop:
    """The first signal ends the drain after its slice, the second at once."""

    def __init__(self, drain: SparkDrain, seconds: float) -> None:
        self._drain = drain
        self._seconds = seconds
        self.is_asked = False

    def __call__(self) -> None:
        if self.is_asked:
            # What is under way comes again when its locks are over: nothing is lost by that.
            typer.echo("twinbus syphon: stopped at once; what was under way is moved again later", err=True)
            os._exit(1)
        self.is_asked = True
        typer.echo(
            f"twinbus syphon: stopping when this slice is over, within {self._seconds:.0f} s; again: at once", err=True
        )
        self._drain.stop()
