"""Everything of a paired client that runs by itself: the background, the syphon, and the rule of close and fault.

Asynchronous only, on one event loop: the application's own, or the private one of a synchronous client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from twinbus.ledger.proof import for_syphon
from twinbus.ledger.recorder import NamespaceRole, Recorder
from twinbus.pairing import events
from twinbus.pairing.background import Background
from twinbus.pairing.backlog import ListedQueue, list_backlog
from twinbus.pairing.core import Pairing
from twinbus.pairing.events import Event, Faulted
from twinbus.pairing.failover import FailedOver
from twinbus.pairing.namespaces import Namespace
from twinbus.pairing.tasks import Tasks
from twinbus.syphon.connector import Side
from twinbus.syphon.host import SyphonHost
from twinbus.syphon.ledger_gate import Flush
from twinbus.syphon.terms import Terms

from .partnership import GRACE, Partnership

logger = logging.getLogger("twinbus.client")

#: Seconds in which the syphon must have stopped, so that a client closes within 5 s whatever its ledger does.
SYPHON_CLOSE = 3.5
#: Seconds in which the last events and operations are handed to callbacks and recorders of the application.
HAND_OVER = 0.5


class Runtime:
    """Started once, closed once, on the same loop. `new_syphon` makes a syphon for these queues, if not the usual."""

    def __init__(
        self,
        pairing: Pairing,
        primary: Namespace,
        secondary: Namespace,
        partnership: Partnership,
        new_syphon: Callable[[Sequence[str], Terms], SyphonHost] | None = None,
    ) -> None:
        self._pairing = pairing
        self._primary = primary
        self._secondary = secondary
        self._partnership = partnership
        self._new_syphon = new_syphon or self._usual_syphon
        self._tasks = Tasks(self._broken)
        self._starting: asyncio.Task[Any] | None = None
        self.background = Background(pairing, primary, secondary)
        self.syphon: SyphonHost | None = None
        self._forget: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Start the background and, if the options say so, the syphon. Raises what `Background.start` raises."""
        self._starting = asyncio.current_task()
        self._tasks.open()
        await self.background.start()
        if self._pairing.options.enable_syphon:
            self._forget = self._pairing.events.subscribe(self._follow)
            self._tasks.begin(self._run_syphon)

    async def close(self) -> None:
        """End pings and pumps, also if they were only about to start. Nothing is left running or open."""
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.wait({self._starting})
        self._forget()
        await self._tasks.close()
        await asyncio.gather(self._stop_syphon(), self.background.close())
        await self._pairing.foreign.close_within(HAND_OVER)

    def _broken(self, error: Exception) -> None:
        logger.error("%s: the syphon could not be started or stopped", self._pairing.label, exc_info=error)
        self._pairing.set_fault("its syphon could not be started or stopped", error)

    async def list_backlog(self) -> list[ListedQueue]:
        """All backlog queues of this pairing in the secondary, used or not."""
        async with self._secondary.administration() as admin:
            return await list_backlog(admin, self._pairing)

    # ---- the syphon ----

    async def _run_syphon(self) -> None:
        await self.background.standby.is_named.wait()
        pairing = self._pairing
        queues = [pairing.queue_path(index) for index in range(pairing.options.backlog_queue_count)]
        recorder, flush = _proof_of(pairing)
        terms = Terms(
            options=pairing.options.syphon,
            ttl=pairing.options.ttl,
            order=pairing.options.order,
            pairing=pairing.name,
            client=pairing.client,
            recorder=recorder,
            events=pairing.events,
            flush=flush,
            ledger_health=pairing.ledger_health,
            probe=pairing.options.probe,
            lock_seconds=self.background.standby.lock_seconds,
        )
        self.syphon = self._new_syphon(queues, terms)
        for entity in pairing.entities():
            state = pairing.state_of(entity)
            if isinstance(state, FailedOver) and state.is_forced:
                self.syphon.hold_back(entity.path)
        await self.syphon.start()

    def _usual_syphon(self, queues: Sequence[str], terms: Terms) -> SyphonHost:
        return SyphonHost(Side.of(self._primary), Side.of(self._secondary), queues, terms)

    async def _stop_syphon(self) -> None:
        if self.syphon is not None:
            await self.syphon.close(SYPHON_CLOSE)

    def _follow(self, event: Event) -> None:
        """What the syphon has to do when something happens; from any thread."""
        if isinstance(event, Faulted):
            self._tasks.call_from_any_thread(self._tasks.begin, self._stop_syphon)
        elif isinstance(event, events.FailedOver) and event.forced:
            self._tasks.call_from_any_thread(self._hold_back, event.entity)
        elif isinstance(event, events.Recovered):
            self._tasks.call_from_any_thread(self._let_go, event.entity)
        elif isinstance(event, events.BacklogReady):
            self._tasks.call_from_any_thread(self._set_lock)

    def _hold_back(self, entity: str) -> None:
        """Whoever forces a failover wants the primary entity left alone, by the syphon, too."""
        if self.syphon is not None:
            self.syphon.hold_back(entity)

    def _let_go(self, entity: str) -> None:
        if self.syphon is not None:
            self.syphon.let_go(entity)

    def _set_lock(self) -> None:
        """The backlog queues could not be looked at before the syphon was started."""
        lock_seconds = self.background.standby.lock_seconds
        if self.syphon is not None and lock_seconds is not None:
            self.syphon.set_lock(lock_seconds)

    # ---- close and fault ----

    def client_ended(self, role: NamespaceRole) -> None:
        """One of the two clients was closed or has faulted; from any thread. Only a host of the syphon minds."""
        if self._pairing.options.enable_syphon:
            self._tasks.call_from_any_thread(self._tasks.begin, self._fault_partner, role)

    async def _fault_partner(self, role: NamespaceRole) -> None:
        await asyncio.sleep(GRACE)
        error = self._partnership.fault_partner(role)
        if error is not None:
            self._pairing.set_fault(error.reason, error.cause)


def _proof_of(pairing: Pairing) -> tuple[Recorder, Flush | None]:
    """What the syphon records with, and waits for: where there is a ledger, the row of each move in it."""
    mode = pairing.options.syphon.ledger_mode
    if pairing.ledger is None or mode == "best_effort":
        return pairing.recorder, None
    return for_syphon(pairing.ledger, asyncio.get_running_loop(), ledger=mode)
