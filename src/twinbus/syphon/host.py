"""Runs the syphon in a process: a pump per backlog queue, one connection to each namespace."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from twinbus.pairing.events import PumpStopped
from twinbus.pairing.ledger_health import LedgerHealth
from twinbus.servicebus.entity_paths import entity_key

from .connector import Connector, Side
from .delivery.destinations import Destinations
from .drain_report import DrainReport, SyphonStatus, merge
from .pacing import Backoff, Pace
from .pump import CLOSE_TIMEOUT, MAX_FAILURES, Pump
from .settlement.bookkeeping import Pings
from .terms import Terms

logger = logging.getLogger("twinbus.syphon")

GRACE = 0.25  # extra seconds for late pumps before they are cancelled


class SyphonHost:
    """Runs the pumps of a pairing on the running event loop.

    await host.start() … await host.close()          while the process lives
    report = await host.drain(until_empty=True)      once

    Raises `ValueError` if no queue is given.
    """

    def __init__(self, primary: Side, secondary: Side, queues: Sequence[str], terms: Terms | None = None) -> None:
        if not queues:
            raise ValueError("queues must name at least one backlog queue, got none")
        self._sides = primary, secondary
        self._queues = tuple(dict.fromkeys(queues))
        self._terms = terms or Terms()
        self._health = self._terms.ledger_health or LedgerHealth(self._terms.events)
        self._pumps: list[Pump] = []
        self._connectors: list[Connector] = []
        self._destinations: Destinations | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._helpers: list[asyncio.Task[None]] = []
        self._started_at = 0.0
        self._held: set[str] = set()

    async def start(self) -> None:
        """Start moving messages and return at once. Unreachable namespaces are tried again until `close`."""
        self._start(until_empty=False)

    def _start(self, until_empty: bool) -> None:
        if self._tasks:
            raise RuntimeError("the syphon is running already")
        loop = asyncio.get_running_loop()
        options, self._started_at = self._terms.options, loop.time()
        shortest, longest = options.retry_min, options.retry_max
        max_failures = MAX_FAILURES if until_empty else None
        primary, secondary = self._connectors = [
            Connector(str(side.endpoint), side.open, Backoff(shortest, longest), max_failures) for side in self._sides
        ]
        pace = Pace(options.rate, shortest, longest, loop.time())
        terms = self._terms
        pings = Pings(terms.recorder, terms.pairing, terms.client) if terms.probe == "ping" else None
        self._destinations = Destinations(primary, pace, shortest, longest, pings)
        for key in self._held:
            self._destinations.hold(key)
        self._pumps = [Pump(queue, secondary, self._destinations, self._terms, self._health) for queue in self._queues]
        self._helpers = [loop.create_task(connector.run()) for connector in self._connectors]
        self._tasks = [loop.create_task(self._watched(pump, until_empty)) for pump in self._pumps]

    async def _watched(self, pump: Pump, until_empty: bool) -> None:
        try:
            await pump.run(until_empty=until_empty)
        except Exception as error:
            logger.error("The pump of %s stopped: %s", pump.queue, type(error).__name__)
            self._terms.events.publish(PumpStopped(queue=pump.queue, error=error))
            raise

    async def drain(self, *, until_empty: bool = True) -> DrainReport:
        """Move messages until nothing movable is left, or without `until_empty` until `close`.

        Closes everything it opened. Raises the `AmqpError` that prevented the drain.
        """
        self._start(until_empty)
        watched = {*self._tasks, *self._helpers}
        try:
            while not watched.isdisjoint(self._tasks):
                done, watched = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            await self.close()
        return self.report()

    def status(self) -> SyphonStatus:
        """The current state."""
        primary, secondary = [side.connection is not None for side in self._connectors] or [False, False]
        down = () if self._destinations is None else self._destinations.down()
        held_back = tuple(sorted(self._held))
        queues = tuple(pump.status() for pump in self._pumps)
        return SyphonStatus(primary, secondary, queues, down, held_back, self._health.syphon_error)

    def hold_back(self, destination: str) -> None:
        """Send nothing to a destination until `let_go`: its messages are deferred. Call it on the event loop."""
        key = entity_key(destination)
        self._held.add(key)
        if self._destinations is not None:
            self._destinations.hold(key)

    def let_go(self, destination: str) -> None:
        """Send to a held-back or recovered destination again, without waiting for a back-off."""
        key = entity_key(destination)
        self._held.discard(key)
        if self._destinations is not None:
            self._connectors[0].retry_now()
            self._destinations.release(key)

    @property
    def is_started(self) -> bool:
        return bool(self._pumps)

    def set_lock(self, queue: str, lock_seconds: float) -> None:
        """Set the lock duration of a queue once it is known, or has changed. Call it on the event loop."""
        for pump in self._pumps:
            if pump.queue == queue:
                pump.restorer.set_lock(lock_seconds)

    def report(self) -> DrainReport:
        """The report since the start."""
        seconds = asyncio.get_running_loop().time() - self._started_at
        return merge((pump.status() for pump in self._pumps), seconds)

    def stop(self, seconds: float = CLOSE_TIMEOUT) -> None:
        """Stop receiving and finish the messages in flight. A running `drain` then ends."""
        for pump in self._pumps:
            pump.close(seconds)

    async def close(self, seconds: float | None = None) -> None:
        """Stop, and close all tasks and sockets. A quarter of `seconds`, if given, is for closing the connections.

        Messages that the ledger has not confirmed by then are abandoned, and so sent again.
        """
        if seconds is None:
            self.stop()
        else:
            self.stop(seconds * 3 / 4)
            for connector in self._connectors:
                connector.close_seconds = seconds / 4
            if self._tasks:
                _, late = await asyncio.wait(self._tasks, timeout=seconds * 3 / 4 + GRACE)
                for task in late:
                    task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._destinations is not None:
            await self._destinations.close()
        for task in self._helpers:
            task.cancel()
        await asyncio.gather(*self._helpers, return_exceptions=True)
        self._tasks, self._helpers = [], []
