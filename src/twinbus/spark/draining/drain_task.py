"""Run pumps in a Spark task for a limited time, and return one row of facts for each message.

Bodies stay in this process. A row has the destination, size, age and outcome of a message. The last rows are about the
pumps themselves.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from twinbus.amqp.client.errors import AmqpError
from twinbus.ledger.durable_rows import LedgerMode, for_syphon
from twinbus.ledger.writer import LedgerWriter
from twinbus.pairing.options import Order, SyphonOptions, TimeToLive
from twinbus.syphon.connector import Side
from twinbus.syphon.drain_report import DrainReport
from twinbus.syphon.host import SyphonHost
from twinbus.syphon.pump import LedgerFailedError
from twinbus.syphon.settlement.facts import Fact
from twinbus.syphon.terms import Terms

from .slice_planning import Assignment
from .task_tokens import HandedTokens, Tokens
from .task_words import FAILED, FINISHED, HELD, LEDGER_FAILED, LEFT_DEFERRED, NO_TOKEN, REPEATED, UNFINISHED

SCHEMA = pa.schema(
    [
        ("queue", pa.string()),
        ("destination", pa.string()),
        ("outcome", pa.string()),
        ("attempts", pa.int32()),
        ("bytes", pa.int64()),
        ("age_ms", pa.int64()),
        ("count", pa.int64()),
        ("detail", pa.string()),
    ]
)
DDL = (
    "queue string, destination string, outcome string, attempts int, bytes bigint, age_ms bigint, count bigint,"
    " detail string"
)

HAND_OVER_EVERY = 0.5  # seconds
#: A destination without a token must not fill the queue with deferred messages: the next slice has the token.
SECONDS_WITHOUT_TOKEN = 3.0
#: How long tokens must outlive a slice, for messages in flight at its end.
TOKEN_MARGIN = 60.0
COLLECT_AFTER = 50_000  # new objects between two garbage collections: messages in flight are no garbage


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceWork:
    """What the tasks of a slice are given: tokens, never a key."""

    assignments: tuple[Assignment, ...]
    primary: Tokens
    secondary: Tokens
    seconds: float
    options: SyphonOptions
    ttl: TimeToLive = "remaining"
    order: Order | None = None
    lock_seconds: float | None = None
    pairing: str = ""
    client: str = ""
    ledger: str | None = None
    ledger_mode: LedgerMode = "required"
    log_level: str = "error"


def pumps_of(work: SliceWork) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`: each input row is the number of an assignment."""

    def pump(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from facts_of(work, number)

    return pump


def facts_of(work: SliceWork, number: int) -> Iterator[pa.RecordBatch]:
    """Run the pumps of one assignment, and yield the facts of their messages."""
    logging.getLogger("twinbus").setLevel(work.log_level.upper())
    running, parent = _RunningAssignment(work, work.assignments[number]), os.getppid()
    with _rare_garbage_collection(), ThreadPoolExecutor(1, "twinbus-pumps") as executor:
        # Pumps have their own thread, so that they go on while Spark takes the rows.
        ended = executor.submit(_run_loop, running.run)
        try:
            while not wait([ended], HAND_OVER_EVERY).done:
                if os.getppid() != parent:
                    running.stop()  # Spark has ended and takes no rows; other pumps may have the queue already
                yield from running.take()
        finally:
            running.stop()
        ended.result()
        yield from running.take()


def _run_loop(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run with uvloop if it is installed."""
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with suppress(ImportError):
        from uvloop import new_event_loop as factory
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(work())


@contextmanager
def _rare_garbage_collection() -> Iterator[None]:
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


class _RunningAssignment:
    """The pumps of one assignment, and the rows that they have for Spark."""

    def __init__(self, work: SliceWork, assignment: Assignment) -> None:
        self._work = work
        self._assignment = assignment
        self._rows: deque[tuple[Any, ...]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._host: SyphonHost | None = None
        self._is_cut_short = False

    # ---- on Spark's thread ----

    def take(self) -> Iterator[pa.RecordBatch]:
        """The rows that are ready."""
        rows = [self._rows.popleft() for _ in range(len(self._rows))]
        if rows:
            columns = zip(zip(*rows, strict=True), SCHEMA, strict=True)
            yield pa.RecordBatch.from_arrays([pa.array(column, field.type) for column, field in columns], schema=SCHEMA)

    def stop(self) -> None:
        """Receive no more messages, and finish those in flight."""
        self._is_cut_short = True
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._cut_short)

    # ---- on the pumps' thread ----

    async def run(self) -> None:
        """Move messages until nothing is left that can be moved, or the time is over."""
        self._loop = loop = asyncio.get_running_loop()
        work = self._work
        if _attempt():
            self._about_pumps(REPEATED)
        expires_at = min(work.primary.expires_at, work.secondary.expires_at)
        seconds = min(work.seconds, expires_at - TOKEN_MARGIN - time.time())
        if seconds <= 0 or self._is_cut_short:
            self._about_pumps(UNFINISHED)  # its tokens expired, or nearly, while it waited for a slot
            return
        credential = HandedTokens(work.primary, lambda: loop.call_later(SECONDS_WITHOUT_TOKEN, self._cut_short))
        with LedgerWriter(work.ledger) if work.ledger is not None else nullcontext() as writer:
            self._host = SyphonHost(
                Side(work.primary.endpoint, credential),
                Side(work.secondary.endpoint, HandedTokens(work.secondary)),
                self._assignment.queues,
                self._terms(writer),
            )
            timer = loop.call_later(seconds, self._cut_short)
            try:
                self._add_remaining(await self._host.drain(until_empty=True))
            except LedgerFailedError as error:
                self._about_pumps(LEDGER_FAILED, str(error))
            except AmqpError as error:
                self._about_pumps(FAILED, str(error))
            finally:
                timer.cancel()
        for path in credential.missing:
            self._row(self._assignment.queues[0], path, NO_TOKEN)

    def _cut_short(self) -> None:
        self._is_cut_short = True
        if self._host is not None:
            self._host.stop()

    def _terms(self, writer: LedgerWriter | None) -> Terms:
        work = self._work
        terms = Terms(
            options=replace(work.options, rate=self._assignment.rate),
            ttl=work.ttl,
            order=work.order,
            pairing=work.pairing,
            client=f"{work.client}-{uuid.uuid4().hex[:8]}",
            lock_seconds=work.lock_seconds,
            on_settled=self._settled,
            is_extra=self._assignment.is_extra,
        )
        if writer is None:
            return terms
        recorder, flush = for_syphon(writer, asyncio.get_running_loop(), ledger=work.ledger_mode)
        return replace(terms, recorder=recorder, flush=flush)

    # ---- rows ----

    def _settled(self, fact: Fact) -> None:
        self._rows.append((fact.queue, fact.destination, fact.outcome, fact.attempts, fact.size, fact.age_ms, 1, None))

    def _add_remaining(self, report: DrainReport) -> None:
        """Add rows about what is left. An extra pump knows only what it did itself."""
        self._about_pumps(UNFINISHED if self._is_cut_short else FINISHED)
        if self._assignment.is_extra:
            return
        queue = self._assignment.queues[0]
        for path, tally in report.destinations.items():
            if tally.deferred:
                self._row(queue, path, LEFT_DEFERRED, tally.deferred)
        if report.held:
            self._row(queue, "", HELD, report.held)

    def _about_pumps(self, outcome: str, detail: str | None = None) -> None:
        self._row(self._assignment.queues[0], "", outcome, 1, detail)

    def _row(self, queue: str, destination: str, outcome: str, count: int = 1, detail: str | None = None) -> None:
        self._rows.append((queue, destination, outcome, 0, 0, None, count, detail))


def _attempt() -> int:
    """0-based attempt number of this task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else int(context.attemptNumber())
