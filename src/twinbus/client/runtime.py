"""Runs the background work, the syphon, and the lifetime rule of a paired client.

Asynchronous only, on one event loop: the application's own, or the private one of a synchronous client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from twinbus.ledger.durable_rows import for_syphon
from twinbus.ledger.recorder import NamespaceRole, Recorder
from twinbus.pairing import events
from twinbus.pairing.background import Background
from twinbus.pairing.background_tasks import Tasks
from twinbus.pairing.backlog.provisioning import ListedQueue, list_backlog
from twinbus.pairing.events import Event, Faulted
from twinbus.pairing.failover.entity_failover import FailedOver
from twinbus.pairing.namespace import Namespace
from twinbus.pairing.pairing_state import Pairing
from twinbus.syphon.connector import Side
from twinbus.syphon.host import SyphonHost
from twinbus.syphon.settlement.ledger_gate import Flush
from twinbus.syphon.terms import Terms

from .partnership import GRACE, Partnership

logger = logging.getLogger("twinbus.client")

#: Seconds for the syphon to stop, so that a client closes within 5 s whatever its ledger does.
SYPHON_CLOSE = 3.5
#: Seconds to deliver the last events and operations to callbacks and recorders of the application.
HAND_OVER = 0.5


class Runtime:
    """Started once, closed once, on the same loop. `new_syphon` makes a syphon for these queues, if not the default."""

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
        #: The lock durations that the syphon was given, by queue.
        self._lock_seconds: dict[str, float] = {}

    async def start(self) -> None:
        """Start the background and, if the options say so, the syphon. Raises what `Background.start` raises."""
        self._starting = asyncio.current_task()
        self._tasks.open()
        await self.background.start()
        if self._pairing.options.enable_syphon:
            self.background.readiness.on_checked = self._set_locks
            self._forget = self._pairing.events.subscribe(self._follow)
            self._tasks.begin(self._run_syphon)

    async def close(self) -> None:
        """Stop pings and pumps, even those still starting. Nothing is left running or open."""
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.wait({self._starting})
        self._forget()
        await self._tasks.close()
        await asyncio.gather(self._stop_syphon(), self.background.close())
        await self._pairing.foreign.close_within(HAND_OVER)

    def _broken(self, error: Exception) -> None:
        logger.error("%s: starting or stopping the syphon failed", self._pairing.label, exc_info=error)
        self._pairing.set_fault("its syphon could not be started or stopped", error)

    async def list_backlog(self) -> list[ListedQueue]:
        """List all backlog queues of this pairing in the secondary, used or not."""
        async with self._secondary.administration() as admin:
            return await list_backlog(admin, self._pairing)

    async def _run_syphon(self) -> None:
        await self.background.readiness.is_named.wait()
        pairing = self._pairing
        queues = [pairing.queue_path(index) for index in range(pairing.options.backlog_queue_count)]
        recorder, flush = _proof_of(pairing)
        known = self.background.readiness.lock_seconds()
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
            lock_seconds=max(known.values()) if len(known) == len(queues) else None,
        )
        self.syphon = self._new_syphon(queues, terms)
        for entity in pairing.entities():
            state = pairing.state_of(entity)
            if isinstance(state, FailedOver) and state.is_forced:
                self.syphon.hold_back(entity.path)
        await self.syphon.start()
        self._set_locks()

    def _usual_syphon(self, queues: Sequence[str], terms: Terms) -> SyphonHost:
        return SyphonHost(Side.of(self._primary), Side.of(self._secondary), queues, terms)

    async def _stop_syphon(self) -> None:
        if self.syphon is not None:
            await self.syphon.close(SYPHON_CLOSE)

    def _follow(self, event: Event) -> None:
        """Notify the syphon of an event; from any thread."""
        if isinstance(event, Faulted):
            self._tasks.call_from_any_thread(self._tasks.begin, self._stop_syphon)
        elif isinstance(event, events.FailedOver) and event.forced:
            self._tasks.call_from_any_thread(self._hold_back, event.entity)
        elif isinstance(event, events.Recovered):
            self._tasks.call_from_any_thread(self._let_go, event.entity)

    def _hold_back(self, entity: str) -> None:
        """A forced failover means that the syphon must leave the primary entity alone, too."""
        if self.syphon is not None:
            self.syphon.hold_back(entity)

    def _let_go(self, entity: str) -> None:
        if self.syphon is not None:
            self.syphon.let_go(entity)

    def _set_locks(self) -> None:
        """Give the syphon the lock durations of queues that were checked since the last time.

        One queue that cannot be checked must not leave those of the others to be estimated.
        """
        if self.syphon is None or not self.syphon.is_started:
            return
        for queue, seconds in self.background.readiness.lock_seconds().items():
            if self._lock_seconds.get(queue) != seconds:
                self._lock_seconds[queue] = seconds
                self.syphon.set_lock(queue, seconds)

    def client_ended(self, role: NamespaceRole) -> None:
        """Record that one of the two clients ended; from any thread. Matters only to a syphon host."""
        if self._pairing.options.enable_syphon:
            self._tasks.call_from_any_thread(self._tasks.begin, self._fault_partner, role)

    async def _fault_partner(self, role: NamespaceRole) -> None:
        await asyncio.sleep(GRACE)
        error = self._partnership.fault_partner(role)
        if error is not None:
            self._pairing.set_fault(error.reason, error.cause)


def _proof_of(pairing: Pairing) -> tuple[Recorder, Flush | None]:
    """Return the syphon's recorder: with a ledger, one that waits until each move is stored in it."""
    mode = pairing.options.syphon.ledger_mode
    if pairing.ledger is None or mode == "best_effort":
        return pairing.recorder, None
    return for_syphon(pairing.ledger, asyncio.get_running_loop(), ledger=mode)
