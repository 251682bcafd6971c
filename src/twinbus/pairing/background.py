"""What a pairing does by the clock: pings, the end of intervals, getting the standby ready, releasing sessions.

Asynchronous only. For a synchronous client it runs on a loop of its own (`PrivateLoop`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from azure.servicebus.aio import ServiceBusClient

from ._async.attempts import Link
from .core import DuePing, Pairing
from .duplicates import DuplicateWindows
from .namespaces import Namespace
from .ping import ping
from .scanning import SCAN_MIN, SessionScanner
from .sdk_version import attempt_bound
from .standby import RETRY_MIN, Standby
from .tasks import Tasks

logger = logging.getLogger("twinbus.pairing")

#: Pings under way at the same time; each has a connection of its own.
MAX_PINGS = 64


class Background:
    """The background work of one pairing, on the event loop that `start` is called on."""

    def __init__(self, pairing: Pairing, primary: Namespace, secondary: Namespace) -> None:
        self._pairing = pairing
        self._primary = primary
        self._secondary = secondary
        self.standby = Standby(pairing, primary, secondary)
        self._duplicates = DuplicateWindows(pairing, primary)
        self._clients: list[ServiceBusClient] = []
        self._tasks = Tasks(self._broken)

    async def start(self) -> None:
        """Get the standby ready, or begin to keep trying, and act by the clock from now on.

        Raises:
            BacklogConfigurationError: a backlog queue would lose or refuse messages.
            BacklogNotReadyError: a namespace refused to answer; with `strict` also if it could not be asked.
        """
        self._tasks.open()
        self._woken = asyncio.Event()
        self._turns = asyncio.Semaphore(MAX_PINGS)
        self._pinging = self._client(self._primary)
        self._pairing.wake = self._wake
        self._tasks.begin(self._act_by_the_clock)
        try:
            await self.standby.prepare()
            if not self.standby.is_ready:
                self._tasks.begin(self._tasks.repeat, self.standby.try_again, RETRY_MIN)
            if self._pairing.options.create_backlog:
                self._tasks.begin(self._tasks.repeat, self._duplicates.look, 0.0)
            if self._pairing.diverted_sessions is not None:
                scanner = SessionScanner(self._pairing, self._pairing.diverted_sessions, self._client(self._secondary))
                if self.standby.is_ready:
                    await scanner.find_all()
                self._tasks.begin(self._tasks.repeat, scanner.look_again, SCAN_MIN)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End everything, also pings under way. Nothing is left running or open."""
        self._pairing.wake = lambda: None
        await self._tasks.close()
        for client in self._clients:
            await client.close()
        self._clients.clear()

    def _client(self, namespace: Namespace) -> ServiceBusClient:
        # One attempt each, with a deadline of ours. The bound of the SDK holds for its cleaning up as well.
        client = namespace.async_client(retry_total=0, **attempt_bound(self._pairing.options.attempt_timeout))
        self._clients.append(client)
        return client

    def _broken(self, error: Exception) -> None:
        """Without pings nobody would ever come back from a failover: better to say so."""
        logger.error("The background of %s has stopped", self._pairing.name, exc_info=error)
        self._pairing.set_fault("its background has stopped", error)

    # ---- the clock ----

    def _wake(self) -> None:
        """Look again what is to be done; from any thread."""
        self._tasks.call_from_any_thread(self._woken.set)

    async def _act_by_the_clock(self) -> None:
        while self._pairing.fault is None:
            self._woken.clear()
            for due in self._pairing.tick():
                self._tasks.begin(self._ping, due)
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
