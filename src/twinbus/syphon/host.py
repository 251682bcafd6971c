"""The syphon in a process: one pump for each backlog queue, over one connection to each side."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from twinbus.pairing.events import PumpStopped
from twinbus.pairing.ledger_health import LedgerHealth
from twinbus.pairing.naming import entity_key

from .bookkeeping import Pings
from .connector import Connector, Side
from .destinations import Destinations
from .pacing import Backoff, Pace
from .pump import CLOSE_TIMEOUT, MAX_FAILURES, Pump
from .report import DrainReport, SyphonStatus, merge
from .terms import Terms

logger = logging.getLogger("twinbus.syphon")

GRACE = 0.25  # seconds for pumps that end a little late before they are cancelled


class SyphonHost:
    """Runs the pumps of a pairing on the running event loop.

    await host.start() … await host.close()          for as long as the process lives
    report = await host.drain(until_empty=True)      once

    Raises `ValueError` if no queue is given.
    """

    def __init__(self, primary: Side, secondary: Side, queues: Sequence[str], terms: Terms | None = None) -> None:
        if not queues:
            raise ValueError("queues must name at least one backlog queue")
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
        """Begin to move messages; returns at once. What cannot be reached is tried again until `close`."""
        self._start(until_empty=False)

    def _start(self, until_empty: bool) -> None:
        if self._tasks:
            raise RuntimeError("the syphon is running already")
        loop = asyncio.get_running_loop()
        options, self._started_at = self._terms.options, loop.time()
        least, most = options.retry_min, options.retry_max
        max_failures = MAX_FAILURES if until_empty else None
        primary, secondary = self._connectors = [
            Connector(str(side.endpoint), side.open, Backoff(least, most), max_failures) for side in self._sides
        ]
        pace = Pace(options.rate, least, most, loop.time())
        terms = self._terms
        pings = Pings(terms.recorder, terms.pairing, terms.client) if terms.probe == "ping" else None
        self._destinations = Destinations(primary, pace, least, most, pings)
        for key in self._held:
            self._destinations.hold(key)
        self._pumps = [Pump(queue, secondary, self._destinations, self._terms, self._health) for queue in self._queues]
        self._helpers = [loop.create_task(connector.run()) for connector in self._connectors]
        self._tasks = [loop.create_task(self._watched(pump, until_empty)) for pump in self._pumps]

    async def _watched(self, pump: Pump, until_empty: bool) -> None:
        try:
            await pump.run(until_empty=until_empty)
        except Exception as error:
            logger.error("The pump of %s has stopped: %s", pump.queue, type(error).__name__)
            self._terms.events.publish(PumpStopped(queue=pump.queue, error=error))
            raise

    async def drain(self, *, until_empty: bool = True) -> DrainReport:
        """Move messages until nothing is left that can be moved, or without `until_empty` until `close`.

        Closes everything it has opened. Raises the error that kept it from draining: one of `twinbus.syphon.errors`.
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
        """How things are."""
        primary, secondary = [one.connection is not None for one in self._connectors] or [False, False]
        down = () if self._destinations is None else self._destinations.down()
        held_back = tuple(sorted(self._held))
        queues = tuple(pump.status() for pump in self._pumps)
        return SyphonStatus(primary, secondary, queues, down, held_back, self._health.syphon_error)

    def hold_back(self, destination: str) -> None:
        """Send nothing to a destination until `let_go`: its messages are set aside in the backlog. On the loop."""
        key = entity_key(destination)
        self._held.add(key)
        if self._destinations is not None:
            self._destinations.hold(key)

    def let_go(self, destination: str) -> None:
        """Send to a destination again that was held back, or is known to be back: without waiting for any back-off."""
        key = entity_key(destination)
        self._held.discard(key)
        if self._destinations is not None:
            self._connectors[0].hurry()
            self._destinations.release(key)

    def set_lock(self, lock_seconds: float) -> None:
        """Tell the pumps how long the locks of their queues last, if that was not known at the start. On the loop."""
        for pump in self._pumps:
            pump.restorer.set_lock(lock_seconds)

    def report(self) -> DrainReport:
        """What was done since the start."""
        seconds = asyncio.get_running_loop().time() - self._started_at
        return merge((pump.status() for pump in self._pumps), seconds)

    def stop(self, seconds: float = CLOSE_TIMEOUT) -> None:
        """Have the pumps take nothing more and see off what is under way: a `drain` then ends."""
        for pump in self._pumps:
            pump.close(seconds)

    async def close(self, seconds: float | None = None) -> None:
        """Stop, and leave no task or socket behind. Of `seconds`, if given, a quarter is for closing the connections.

        What the destinations have and the ledger has not confirmed by then is given back: it will be sent again.
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
