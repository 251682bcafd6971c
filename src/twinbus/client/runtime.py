"""Everything of a paired client that runs by itself: the background, the syphon, and the rule of close and fault.

Asynchronous only, on one event loop: the application's own, or the private one of a synchronous client.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from twinbus.ledger.recorder import NamespaceRole
from twinbus.pairing.background import Background
from twinbus.pairing.backlog import ListedQueue, list_backlog
from twinbus.pairing.core import Pairing
from twinbus.pairing.events import Event, Faulted
from twinbus.pairing.namespaces import Namespace
from twinbus.syphon.connector import Side
from twinbus.syphon.host import SyphonHost
from twinbus.syphon.pump import Terms

from .partnership import GRACE, Partnership


class Runtime:
    """Started once, closed once, on the same loop."""

    def __init__(self, pairing: Pairing, primary: Namespace, secondary: Namespace, partnership: Partnership) -> None:
        self._pairing = pairing
        self._primary = primary
        self._secondary = secondary
        self._partnership = partnership
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.background = Background(pairing, primary, secondary)
        self.syphon: SyphonHost | None = None
        self._forget: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Start the background and, if the options say so, the syphon. Raises what `Background.start` raises."""
        self._loop = asyncio.get_running_loop()
        await self.background.start()
        if self._pairing.options.enable_syphon:
            self._forget = self._pairing.events.subscribe(self._stop_after_fault)
            self._begin(self._run_syphon)

    async def close(self) -> None:
        """End pings and pumps. Nothing is left running or open."""
        self._forget()
        self._loop = None
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.background.close()
        await self._stop_syphon()

    def _begin(self, work: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        if self._loop is not None:
            task = self._loop.create_task(work(*args))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _begin_from_any_thread(self, work: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        if self._loop is not None:
            # The loop may have been closed a moment ago.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._begin, work, *args)

    async def list_backlog(self) -> list[ListedQueue]:
        """All backlog queues of this pairing in the secondary, used or not."""
        async with self._secondary.administration() as admin:
            return await list_backlog(admin, self._pairing)

    # ---- the syphon ----

    async def _run_syphon(self) -> None:
        await self.background.standby.is_named.wait()
        pairing = self._pairing
        queues = [pairing.queue_path(index) for index in range(pairing.options.backlog_queue_count)]
        terms = Terms(
            options=pairing.options.syphon,
            ttl=pairing.options.ttl,
            order=pairing.options.order,
            pairing=pairing.name,
            client=pairing.client,
            recorder=pairing.recorder,
            events=pairing.events,
        )
        self.syphon = SyphonHost(Side.of(self._primary), Side.of(self._secondary), queues, terms)
        await self.syphon.start()

    async def _stop_syphon(self) -> None:
        if self.syphon is not None:
            await self.syphon.close()

    def _stop_after_fault(self, event: Event) -> None:
        if isinstance(event, Faulted):
            self._begin_from_any_thread(self._stop_syphon)

    # ---- close and fault ----

    def client_ended(self, role: NamespaceRole) -> None:
        """One of the two clients was closed or has faulted; from any thread. Only a host of the syphon minds."""
        if self._pairing.options.enable_syphon:
            self._begin_from_any_thread(self._fault_partner, role)

    async def _fault_partner(self, role: NamespaceRole) -> None:
        await asyncio.sleep(GRACE)
        error = self._partnership.fault_partner(role)
        if error is not None:
            self._pairing.set_fault(error.reason, error.cause)
