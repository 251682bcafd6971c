"""The data pipeline and the drain on Spark, for notebooks, jobs and the command line.

from twinbus.spark import run_pipeline, read_table

run_pipeline(spark, "abfss://logs@contoso.dfs.core.windows.net/ledger")
read_table(spark, "abfss://logs@contoso.dfs.core.windows.net/ledger-results", "usage").show()
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from twinbus.ledger.locations import locate
from twinbus.tables.table_schemas import TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from twinbus.syphon import Side

    from .draining.drain_loop import DrainProgress, DrainSettings
    from .draining.slice_results import SparkReport
    from .pipeline.run import RunResult

__all__ = ["DrainProgress", "DrainSettings", "drain", "read_table", "run_pipeline"]

#: Loaded on first use, because the pipeline does not need what a drain imports.
_LAZY = ("DrainProgress", "DrainSettings")


def run_pipeline(
    spark: SparkSession,
    ledger: str | os.PathLike[str],
    results: str | os.PathLike[str] | None = None,
    *,
    reconcile: bool = True,
    drained: bool = False,
    patience: timedelta = timedelta(hours=1),
    horizon_days: int = 14,
    allow_shrink: bool = False,
    format: str = "parquet",
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
    now: datetime | None = None,
) -> RunResult:
    """Bring the result tables up to date with a ledger. Reads only days whose files are new or have changed.

    Args:
        ledger: A folder or URL that Spark reaches.
        results: Where the tables are; `<ledger>-results` by default.
        reconcile: Compute `verdicts`, `arrivals`, `anomalies` and `backlog_time`.
        drained: Backlog and destinations are empty: what has not arrived is lost.
        patience: A message is lost if its receivers still reported this long after it was accepted.
        horizon_days: Days within which operations of a message belong together.
        allow_shrink: Compute days again whose files are gone, from those that are left.
        format: `parquet`, or another format that the session can write, such as `delta`.
        storage_options: `account_name` of an Azure container, if the URL does not say it.
        progress: Called with what is being done, and how many rows of how many are done.
        now: The time of the run; rows of days that begin more than a day later are left out as wrong clocks.

    Raises:
        ValueError: An argument is out of its bounds, or the results would be inside the ledger.
        PipelineError: The run failed. The next one repairs what it has left.
    """
    from twinbus.tables.result_reader import default_results

    from .pipeline.run import RunOptions
    from .pipeline.run import run_pipeline as run

    options = RunOptions(
        reconcile=reconcile,
        drained=drained,
        patience=patience,
        horizon_days=horizon_days,
        allow_shrink=allow_shrink,
        format=format,
    )
    source = locate(ledger, storage_options).spark.rstrip("/")
    target = locate(results or default_results(ledger), storage_options).spark.rstrip("/")
    if f"{target}/".startswith(f"{source}/"):
        raise ValueError(f"results must be outside the ledger, got {target}")
    return run(spark, source, target, options, progress=progress, now=now)


def read_table(
    spark: SparkSession,
    results: str | os.PathLike[str],
    name: str,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> DataFrame:
    """A result table as a DataFrame, in whatever format it was written.

    Raises:
        ValueError: There is no table of this name.
        PipelineError: There are no tables at this place, or they are of a later release.
    """
    from .pipeline.run_errors import ResultsUnreachableError
    from .pipeline.storage import ResultTables

    if name not in TABLES:
        raise ValueError(f"name must be one of {', '.join(TABLES)}, got {name!r}")
    place = locate(results, storage_options)
    last = ResultTables(spark, place.spark).generation()
    if last is None:
        raise ResultsUnreachableError(f"there are no result tables at {place.shown}")
    return ResultTables(spark, place.spark, last.format).read(TABLES[name])


def drain(
    spark: SparkSession,
    primary: Side,
    secondary: Side,
    queues: list[str],
    settings: DrainSettings | None = None,
    *,
    on_progress: Callable[[DrainProgress], None] = lambda progress: None,
) -> SparkReport:
    """Drain backlog queues with tasks of Spark until nothing is left that can be moved.

    The executors need this version of twinbus.

    Args:
        queues: Paths of the backlog queues in the secondary namespace.
        on_progress: Called in another thread, a few times per slice.

    Raises:
        PipelineError: The backlog could not be drained, or a worker lacks twinbus or does not reach the ledger.
    """
    from .draining.drain_loop import DrainSettings, SparkDrain
    from .draining.worker_check import check_workers

    settings = settings or DrainSettings()
    check_workers(spark, settings.ledger)
    spark_drain = SparkDrain(spark, primary, secondary, queues, settings, on_progress)
    # In another thread, because notebooks have a running event loop.
    with ThreadPoolExecutor(1, "twinbus-drain") as pool:
        return pool.submit(lambda: asyncio.run(spark_drain.run())).result()


def __dir__() -> list[str]:
    return [*globals(), *_LAZY]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .draining import drain_loop

    return getattr(drain_loop, name)
