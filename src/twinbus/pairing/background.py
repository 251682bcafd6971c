"""Runs a pairing's timed work: pings, failover timers, backlog readiness, session release.

Asynchronous only. For a synchronous client it runs on a loop of its own (`PrivateLoop`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from azure.servicebus.aio import ServiceBusClient

from twinbus.ledger.recorder import DurableRecorder, trouble_of

from .background_tasks import Tasks
from .backlog.duplicate_detection import DuplicateWindows
from .backlog.readiness import BacklogReadiness
from .backlog.session_scan import SessionScanner
from .events import Moved
from .failover.error_classification import retires_queue
from .failover.ping import ping
from .ledger_health import WRITER
from .namespace import Namespace
from .pairing_state import DuePing, DueProbe, Entity, Pairing
from .sdk.version import attempt_bound
from .sending._async.link import Link
from .sending.diverted_sessions import DivertedSessions

logger = logging.getLogger("twinbus.pairing")

#: Parallel pings; each has its own connection.
MAX_PINGS = 64
#: Seconds between two checks for idle links and for functions that do not return.
TIDY_EVERY = 15.0
#: Seconds for the SDK to clean up after an abandoned attempt.
CLEAN_UP = 1.0
#: Seconds between two checks of the ledger's writer.
WATCH_LEDGER_EVERY = 0.5


class Background:
    """The background work of one pairing, on the event loop that `start` is called on."""

    def __init__(self, pairing: Pairing, primary: Namespace, secondary: Namespace) -> None:
        self._pairing = pairing
        self._primary = primary
        self._secondary = secondary
        self.readiness = BacklogReadiness(pairing, primary, secondary)
        self._duplicates = DuplicateWindows(pairing, primary)
        self._clients: list[ServiceBusClient] = []
        self._tasks = Tasks(self._broken)
        self._forget: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Prepare the backlog, or start to retry, and act by the clock from now on.

        Raises, with the option `strict` only:
            BacklogConfigurationError: a backlog queue would lose or refuse messages.
            NamespacesSwappedError: primary and secondary look swapped.
            BacklogNotReadyError: a namespace did not answer, or refused.
        """
        self._tasks.open()
        self._woken = asyncio.Event()
        self._turns = asyncio.Semaphore(MAX_PINGS)
        self._pinging = self._client(self._primary)
        self._probing = self._client(self._secondary)
        self._pairing.wake = self._wake
        self._pairing.on_queue_missing = self._queue_missing
        self._tasks.begin(self._act_by_the_clock)
        self._tasks.begin(self._measure_lag)
        if self._pairing.ledger is not None:
            self._tasks.begin(self._watch_ledger, self._pairing.ledger)
        self._tasks.begin(self._tasks.repeat, self._tidy_up, TIDY_EVERY)
        try:
            await self.readiness.prepare()
            if self._pairing.options.create_backlog:
                self._tasks.begin(self.readiness.keep_ready)
                self._tasks.begin(self._tasks.repeat, self._duplicates.fetch_new, 0.0)
            if self._pairing.diverted_sessions is not None:
                await self._start_scanner(self._pairing.diverted_sessions)
        except BaseException:
            await self.close()
            raise

    async def _start_scanner(self, sessions: DivertedSessions) -> None:
        scanner = SessionScanner(self._pairing, sessions, self._client(self._secondary))
        if self.readiness.is_ready:
            await scanner.find_all()

        def wake() -> None:
            self._tasks.call_from_any_thread(scanner.wake)

        sessions.on_hold = wake
        self._forget = self._pairing.events.subscribe(lambda event: wake() if isinstance(event, Moved) else None)
        self._tasks.begin(scanner.run)

    async def close(self) -> None:
        """Stop everything, running pings included. Nothing is left running or open."""
        self._pairing.wake = lambda: None
        self._forget()
        self._pairing.on_queue_missing = lambda index: None
        await self._tasks.close()
        for client in self._clients:
            await client.close()
        self._clients.clear()

    def _client(self, namespace: Namespace) -> ServiceBusClient:
        # One attempt each, with our own deadline. The SDK's bound also covers its cleanup, which would log a traceback
        # if no time was left for it.
        bound = attempt_bound(self._pairing.options.attempt_timeout + CLEAN_UP)
        client = namespace.async_client(retry_total=0, **bound)
        self._clients.append(client)
        return client

    def _broken(self, error: Exception) -> None:
        """Fault the pairing: without pings no entity would ever recover."""
        logger.error("%s: the background work failed and has stopped", self._pairing.label, exc_info=error)
        self._pairing.set_fault("its background has stopped", error)

    def _queue_missing(self, index: int) -> None:
        """Check a backlog queue that does not exist; from any thread."""
        self._tasks.call_from_any_thread(self.readiness.queue_missing, index)

    def _wake(self) -> None:
        """Recompute what is due; from any thread."""
        self._tasks.call_from_any_thread(self._woken.set)

    async def _act_by_the_clock(self) -> None:
        while self._pairing.fault is None:
            self._woken.clear()
            for due in self._pairing.tick():
                if isinstance(due, DuePing):
                    self._tasks.begin(self._ping, due)
                else:
                    self._tasks.begin(self._probe, due)
            at = self._pairing.next_time()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if at is None else max(0.0, at - self._pairing.clock())):
                    await self._woken.wait()

    async def _ping(self, due: DuePing) -> None:
        async with self._turns:
            link = Link(self._pinging.get_queue_sender(due.entity.path), due.entity.path)
            try:
                await ping(self._pairing, due.entity, link)
            except Exception as error:
                self._duplicates.check(due.entity)
                self._pairing.ping_failed(due, error)
            else:
                self._duplicates.check(due.entity)
                self._pairing.ping_ok(due)
            finally:
                await link.close()

    async def _probe(self, due: DueProbe) -> None:
        """Open a probe link: no caller waited long enough to tell whether the target answers."""
        pairing, target = self._pairing, due.target
        if isinstance(target, Entity):
            link, counts = Link(self._pinging.get_queue_sender(target.path), target.path), pairing.counts
        else:
            path = pairing.queue_path(target)
            link, counts = Link(self._probing.get_queue_sender(path), path), retires_queue
        async with self._turns:
            try:
                await link.open(pairing.options.attempt_timeout)
            except Exception as error:
                pairing.probe_failed(due, error, counts=counts(error))
            else:
                pairing.probe_ok(due)
            finally:
                await link.close()

    async def _measure_lag(self) -> None:
        """Measure how late this process runs: a late process proves nothing about the primary."""
        lag = self._pairing.lag
        try:
            while True:
                self._pairing.note_lag()
                await asyncio.sleep(lag.interval)
        finally:
            lag.stop()

    async def _watch_ledger(self, ledger: DurableRecorder) -> None:
        """Report when the ledger stops taking rows, and when it takes them again."""
        health = self._pairing.ledger_health
        while True:
            trouble = trouble_of(ledger)
            if trouble is None:
                health.works(WRITER)
            else:
                health.failed(WRITER, trouble)
            await asyncio.sleep(WATCH_LEDGER_EVERY)

    async def _tidy_up(self) -> float:
        self._pairing.foreign.report_stuck()
        for connections in (self._pairing.primary_connections, self._pairing.backlog_connections):
            for pool in connections.pools():
                pool.close_idle(self._pairing.clock())
        return TIDY_EVERY
