"""Drive the syphon on Spark: survey the backlog, plan and run a slice, and repeat until nothing is left to move.

There is no checkpoint: the backlog queues are the only truth about what is left. A slice that is lost, in part or as a
whole, is planned again from what is there then.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from collections.abc import Callable, Coroutine, Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from twinbus.amqp.client.errors import AmqpError
from twinbus.ledger.durable_rows import LedgerMode
from twinbus.ledger.recorder import NullRecorder
from twinbus.ledger.writer import LedgerWriter
from twinbus.pairing.options import Order, SyphonOptions, TimeToLive
from twinbus.servicebus.entity_paths import entity_key
from twinbus.syphon.connector import Side
from twinbus.syphon.pacing import Backoff

from ..pipeline_errors import DrainFailedError
from . import slice_planning as planning
from .backlog_survey import Backlog, Survey
from .drain_task import DDL, SliceWork, pumps_of
from .slice_results import Account, Figure, SliceResult, SparkReport
from .task_tokens import MAX_DESTINATIONS, mint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("twinbus.spark.drain")

PUMPS = 10
SECONDS = planning.MOST_SECONDS
MAX_FAILURES = 3  # in a row, before a drain gives up
#: A lock that another client left behind expires after a minute; then its message can be received here.
LOCK_SECONDS, PATIENCE = 60.0, 15.0
GLANCE_EVERY = 2.0  # seconds, while a slice runs


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainSettings:
    """How a drain on Spark works: `pumps` run at once, a slice receives new messages for `slice_seconds`.

    `ledger` must be a folder or URL that every executor reaches. Raises `ValueError` for what is out of bounds.
    """

    options: SyphonOptions = field(default_factory=SyphonOptions)
    ttl: TimeToLive = "remaining"
    order: Order | None = None
    lock_seconds: float | None = None
    pairing: str = ""
    pumps: int = PUMPS
    slice_seconds: float = SECONDS
    ledger: str | None = None
    ledger_mode: LedgerMode = "required"
    log_level: str = "error"

    def __post_init__(self) -> None:
        if not 1 <= self.pumps <= planning.MAX_PUMPS:
            raise ValueError(f"pumps must be 1 to {planning.MAX_PUMPS}, not {self.pumps}")
        if not planning.LEAST_SECONDS <= self.slice_seconds <= planning.MOST_SECONDS:
            bounds = f"{planning.LEAST_SECONDS:g} to {planning.MOST_SECONDS:g}"
            raise ValueError(f"slice_seconds must be {bounds}, not {self.slice_seconds:g}")


@dataclass(frozen=True, slots=True)
class DrainProgress:
    """How far a drain is."""

    account: Account
    #: Estimate of the messages in the backlog; None before the first survey. It falls while a slice runs.
    remaining: int | None
    #: Messages a second while slices were running.
    rate: float
    #: Messages moved before the last survey, and those that it found, together.
    total: int = 0
    #: Pumps at work now; 0 between slices.
    pumps: int = 0
    #: When the slice ends, by the event loop's clock.
    ends_at: float = 0.0
    is_waiting: bool = False

    @property
    def eta(self) -> float | None:
        """Seconds until the backlog is empty at this rate; None if unknown."""
        return self.remaining / self.rate if self.remaining is not None and self.rate > 0 else None


class SparkDrain:
    """Drains the backlog queues of a pairing with tasks of a Spark session.

    report = await SparkDrain(spark, primary, secondary, queues, DrainSettings()).run()

    Raises `ValueError` for what cannot work: no queue, certificates that tasks cannot be given, order with
    speculation.
    """

    def __init__(
        self,
        spark: SparkSession,
        primary: Side,
        secondary: Side,
        queues: Iterable[str],
        settings: DrainSettings | None = None,
        on_progress: Callable[[DrainProgress], None] = lambda progress: None,
    ) -> None:
        self._queues = tuple(dict.fromkeys(queues))
        if not self._queues:
            raise ValueError("queues must name at least one backlog queue")
        if primary.ssl_context is not None or secondary.ssl_context is not None:
            raise ValueError("ssl_context cannot be given to tasks: let the workers' machines trust the certificate")
        self._settings = settings or DrainSettings()
        if spark.conf.get("spark.speculation", "false") == "true":
            if self._settings.order is not None:
                raise ValueError(
                    "order cannot be kept with spark.speculation: a queue would have two pumps; set it to false"
                )
            logger.warning("spark.speculation starts pumps only to kill them: messages may arrive twice")
        self._spark = spark
        self._primary, self._secondary = primary, secondary
        self._on_progress = on_progress
        self._client = f"spark-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        #: Destinations of the messages seen so far, the latest last.
        self._destinations: dict[str, str] = {}
        self._account = Account()
        self._remaining: int | None = None
        self._total = 0
        self._rate = 0.0
        self._failures = 0
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Start no more slices: `run` returns when the running one has ended."""
        self._stopping.set()

    async def run(self, *, watch: bool = False) -> SparkReport:
        """Move messages until nothing is left that can be moved; with `watch`, wait for more until `stop`.

        Raises `DrainFailedError`, or one of `twinbus.amqp.client.errors` if the backlog cannot be surveyed.
        """
        settings, time = self._settings, asyncio.get_running_loop().time
        started = time()
        with LedgerWriter(settings.ledger) if settings.ledger is not None else nullcontext() as writer:
            backlog = Backlog(self._secondary, self._queues, writer or NullRecorder(), settings.pairing, self._client)
            try:
                survey = await (self._watch(backlog) if watch else self._drain(backlog))
            finally:
                await backlog.close()
        return self._account.report(time() - started, survey.missing)

    # ---- until empty ----

    async def _drain(self, backlog: Backlog) -> Survey:
        """Run slices until nothing is left that can be moved, or until `stop`. Returns the last survey."""
        time = asyncio.get_running_loop().time
        number, progress_at = 0, time()
        while True:
            survey = await self._survey(backlog)
            assignments = planning.plan(
                survey.depths,
                pumps=self._settings.pumps,
                order=self._settings.order,
                rate=self._settings.options.rate,
            )
            if not assignments:
                self._account.nothing_left()
                return survey
            if self._stopping.is_set():
                return survey
            seconds = planning.slice_seconds(number, self._settings.slice_seconds)
            result = await self._slice(backlog, assignments, seconds)
            number += 1
            if result is None:
                continue
            new_destinations = set(map(entity_key, result.unknown)) - self._destinations.keys()
            self._learn(result.unknown)
            if result.settled or new_destinations:
                progress_at = time()
            elif time() - progress_at > (self._settings.lock_seconds or LOCK_SECONDS) + PATIENCE:
                # Other clients hold the locks of all messages that are left.
                self._account.held = max(self._account.held, survey.active)
                return survey
            if result.is_finished and not result.unknown:
                return survey

    async def _survey(self, backlog: Backlog) -> Survey:
        backoff = Backoff(self._settings.options.retry_min, self._settings.options.retry_max)
        for failures in range(1, MAX_FAILURES + 1):
            try:
                survey = await backlog.survey()
                break
            except AmqpError as error:
                if failures == MAX_FAILURES:
                    raise
                logger.warning("Surveying the backlog failed: %s", error)
                await self._sleep(backoff.next())
        self._learn(survey.destinations)
        self._remaining, self._total = survey.active, self._account.moved + survey.active
        self._report_progress()
        return survey

    def _learn(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._destinations.pop(entity_key(path), None)
            self._destinations[entity_key(path)] = path

    # ---- a slice ----

    async def _slice(
        self, backlog: Backlog, assignments: tuple[planning.Assignment, ...], seconds: float
    ) -> SliceResult | None:
        """Run pumps as one job; None if it failed without moving anything, and may be tried again."""
        time = asyncio.get_running_loop().time
        work = await self._work(assignments, seconds)
        started, before, ended = time(), self._remaining or 0, asyncio.Event()
        self._report_progress(len(assignments), started + seconds)
        watching = asyncio.create_task(self._watch_slice(backlog, len(assignments), started + seconds, ended))
        try:
            result = SliceResult.of(await asyncio.to_thread(run_slice, self._spark, work))
        except Exception as error:
            await self._failed(_reason(error), error)
            return None
        finally:
            ended.set()
            await watching
            self._remaining = before
        if result.moved:
            self._rate = result.moved / (time() - started)
        self._account.add(result)
        if self._remaining is not None:
            self._remaining = max(0, self._remaining - result.settled)
        self._report_progress()
        if result.ledger_failure is not None:
            raise DrainFailedError(result.ledger_failure)
        if result.failure is not None and not result.settled:
            await self._failed(result.failure)
            return None
        self._failures = 0
        return result

    async def _watch_slice(self, backlog: Backlog, pumps: int, ends_at: float, ended: asyncio.Event) -> None:
        """Report what is left while a slice runs: its tasks report what they did only at its end."""
        time = asyncio.get_running_loop().time
        started, before = time(), self._remaining or 0
        while not ended.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(GLANCE_EVERY):
                    await ended.wait()
                return
            try:
                self._remaining = min(before, await backlog.glance())
            except AmqpError as error:
                logger.info("Peeking at the backlog during a slice failed: %s", type(error).__name__)
                return
            if self._remaining < before:
                self._rate = (before - self._remaining) / (time() - started)
            self._report_progress(pumps, ends_at)

    async def _work(self, assignments: tuple[planning.Assignment, ...], seconds: float) -> SliceWork:
        settings = self._settings
        allowed = settings.options.destinations
        paths = dict.fromkeys([*(allowed or ()), *self._destinations.values()])
        wanted = [path for path in paths if settings.options.allows(path)][-MAX_DESTINATIONS:]
        return SliceWork(
            assignments=assignments,
            primary=await mint(self._primary.endpoint, self._primary.credential, wanted),
            secondary=await mint(self._secondary.endpoint, self._secondary.credential, self._queues),
            seconds=seconds,
            options=settings.options,
            ttl=settings.ttl,
            order=settings.order,
            lock_seconds=settings.lock_seconds,
            pairing=settings.pairing,
            client=self._client,
            ledger=settings.ledger,
            ledger_mode=settings.ledger_mode,
            log_level=settings.log_level,
        )

    async def _failed(self, reason: str, cause: Exception | None = None) -> None:
        self._failures += 1
        if self._failures >= MAX_FAILURES:
            raise DrainFailedError(reason) from cause
        logger.warning("A slice failed and is tried again: %s", reason)
        await self._sleep(min(self._settings.options.retry_max, 2.0**self._failures))

    # ---- watching ----

    async def _watch(self, backlog: Backlog) -> Survey:
        """Drain whenever something arrives. Deferred messages and failures are tried again after growing pauses."""
        options = self._settings.options
        backoff = Backoff(options.retry_max, max(options.retry_max, options.poll))
        survey = Survey((), frozenset())
        while not self._stopping.is_set():
            moved = self._account.moved
            try:
                survey = await self._drain(backlog)
                if self._account.moved > moved:
                    backoff.reset()
                has_more = any(map(options.allows, self._account.deferred)) or self._account.held
                self._report_progress(is_waiting=True)
                await self._unless_stopped(backlog.wait(options.poll, backoff.next() if has_more else None))
            except (AmqpError, DrainFailedError) as error:
                logger.error("Draining the backlog failed and is tried again later: %s", error)
                self._failures = 0
                await self._sleep(backoff.next())
        return survey

    async def _sleep(self, seconds: float) -> None:
        await self._unless_stopped(asyncio.sleep(seconds))

    async def _unless_stopped(self, work: Coroutine[Any, Any, Any]) -> None:
        """Wait for work; `stop` cancels it."""
        task, stopped = asyncio.ensure_future(work), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiting in (task, stopped):
                if not waiting.done():
                    waiting.cancel()
                    await asyncio.gather(waiting, return_exceptions=True)
        if not task.cancelled():
            task.result()

    def _report_progress(self, pumps: int = 0, ends_at: float = 0.0, is_waiting: bool = False) -> None:
        progress = DrainProgress(self._account, self._remaining, self._rate, self._total, pumps, ends_at, is_waiting)
        self._on_progress(progress)


def run_slice(spark: SparkSession, work: SliceWork) -> list[Figure]:
    """Run the pumps of a slice as one Spark job that adds up the facts of their messages."""
    from pyspark.sql import functions as f

    tasks = len(work.assignments)
    # One number in each partition: a task for each assignment. Tokens travel with the function, not in the plan,
    # which is shown in Spark's web page and logs.
    facts = spark.range(0, tasks, 1, tasks).mapInArrow(pumps_of(work), DDL)
    figures = facts.groupBy("queue", "destination", "outcome", "detail").agg(
        f.sum("count").alias("count"), f.sum("bytes").alias("bytes"), f.max("age_ms").alias("max_age_ms")
    )
    return [Figure(*row) for row in figures.collect()]


def _reason(error: Exception) -> str:
    """Why a job failed. The error's text may contain secrets, so it is logged at level debug only."""
    logger.debug("Running a slice failed", exc_info=error)
    if "No module named 'twinbus" in str(error):
        return "Spark's workers have no twinbus: install it there"
    return f"Spark could not run a slice: {type(error).__name__}"
