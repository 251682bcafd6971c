"""`twinbus syphon --spark`: drains the backlog with Spark tasks."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import typer

from twinbus.ledger.durable_rows import LedgerMode
from twinbus.servicebus.entity_paths import backlog_path
from twinbus.spark.pipeline_errors import SparkMissingError
from twinbus.syphon.terms import Terms

from ..event_loop import run_loop
from ..options.namespaces import NoAnswerError, Pair
from .access_check import find_access_problem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from twinbus.spark.draining.drain_loop import DrainSettings, SparkDrain
    from twinbus.spark.draining.slice_results import SparkReport

SPARE_SLOTS = 2


def spark_settings(
    terms: Terms,
    pumps: int | None,
    seconds: float | None,
    ledger: str | None,
    ledger_mode: LedgerMode,
    log_level: str,
) -> DrainSettings:
    """Return the settings of the drain. Raises `ValueError` for bad values, `SparkMissingError` without the extra."""
    try:
        from twinbus.spark.draining import drain_loop as loop
    except ImportError:
        raise SparkMissingError from None
    if ledger is not None and "://" not in ledger:
        ledger = os.path.abspath(ledger)  # Spark tasks run in other folders
    return loop.DrainSettings(
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
    settings: DrainSettings
    watch: bool
    master: str | None
    remote: str | None
    memory: str | None

    def run(self) -> tuple[SparkReport, bool]:
        """Return the report, and whether a signal ended the run. Raises PipelineError, AmqpError, ValueError."""
        from twinbus.spark.draining.worker_check import check_workers
        from twinbus.spark.session import running_spark

        with running_spark(
            master=self.master,
            remote=self.remote,
            app_name="twinbus syphon",
            slots=self.settings.pumps + SPARE_SLOTS,
            memory=self.memory,
        ) as spark:
            check_workers(spark, self.settings.ledger)
            return run_loop(self._drain(spark))

    async def _drain(self, spark: SparkSession) -> tuple[SparkReport, bool]:
        from twinbus.spark.draining.drain_loop import SparkDrain
        from twinbus.spark.draining.drain_progress import ProgressView

        name = await self.pair.primary_name()
        await self.pair.check_not_swapped(name)
        queues = [backlog_path(name, index) for index in range(self.count)]
        if not self.watch:
            problem = await find_access_problem(self.pair, queues, self.settings.options.destinations)
            if problem is not None and not problem.is_missing:
                raise NoAnswerError(problem.text)
        with ProgressView() as view:
            settings = replace(self.settings, pairing=name)
            drain = SparkDrain(spark, self.pair.primary, self.pair.secondary, queues, settings, view.show)
            stop = _Stop(drain, settings.slice_seconds)
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, stop)
            return await drain.run(watch=self.watch), stop.is_requested


class _Stop:
    """Signal handler: the first signal ends the drain after its slice, the second immediately."""

    def __init__(self, drain: SparkDrain, seconds: float) -> None:
        self._drain = drain
        self._seconds = seconds
        self.is_requested = False

    def __call__(self) -> None:
        if self.is_requested:
            # Nothing is lost: messages in flight are delivered again when their locks expire.
            typer.echo("twinbus syphon: stopped immediately; messages in flight will be moved again", err=True)
            os._exit(1)
        self.is_requested = True
        typer.echo(
            f"twinbus syphon: stopping after this slice, within {self._seconds:.0f} s; Ctrl-C again stops immediately",
            err=True,
        )
        self._drain.stop()
