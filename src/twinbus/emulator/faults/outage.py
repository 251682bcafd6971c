"""Applies faults to a namespace's listener, connections and links."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING

from ..server.listener import reset
from .fault_plan import ActiveFault, FaultKind, FaultPoint
from .gates import Gate

if TYPE_CHECKING:
    from ..server.namespace import Namespace

MAX_HELD_CONNECTIONS = 1000


class Outage:
    """Updates a namespace whenever a fault begins or ends."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._faults = namespace.faults
        #: Gates that hold operations.
        self.gates: set[Gate] = set()
        self._held: list[tuple[socket.socket, ActiveFault]] = []
        self._delayed: dict[socket.socket, tuple[asyncio.TimerHandle, ActiveFault | None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._thawed = asyncio.Event()
        self._faults.on_change = self._on_faults_changed

    def admit(self, accepted: socket.socket) -> bool:
        """Whether to serve an accepted socket; false if a fault holds or resets it."""
        if not self._faults.active:
            return True
        strike = self._faults.strike(FaultPoint.CONNECT, None)
        if strike.struck_by is None and not strike.delay:
            return True
        is_reset = strike.struck_by is not None and strike.struck_by.fault.kind is not FaultKind.BLACKHOLE
        if is_reset or len(self._held) + len(self._delayed) >= MAX_HELD_CONNECTIONS:
            reset(accepted)
        elif strike.struck_by is not None:
            self._held.append((accepted, strike.struck_by))
        else:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(strike.delay, self._serve_delayed, accepted)
            self._delayed[accepted] = timer, strike.slowed_by
        return False

    def _serve_delayed(self, accepted: socket.socket) -> None:
        timer, _ = self._delayed.pop(accepted)
        timer.cancel()
        self._namespace.serve_socket(accepted)

    async def wait_for_http(self) -> None:
        """Wait until no black hole holds the namespace."""
        while self._faults.namespace_fault(FaultKind.BLACKHOLE):
            await self._thawed.wait()

    def _on_faults_changed(self, added: ActiveFault | None) -> None:
        self._update_reachability()
        if added is not None:
            self._strike_existing(added)
        else:
            for gate in list(self.gates):
                gate.release_due()
        self._set_timer()

    def _update_reachability(self) -> None:
        """Close or open the listener, freeze or thaw the connections."""
        refusing = self._faults.namespace_fault(FaultKind.REFUSE)
        if refusing is None:
            self._namespace.listen()
        elif self._namespace.stop_listening():
            refusing.fired += 1  # once: the operating system does not report the connections it refuses
        blackhole = self._faults.namespace_fault(FaultKind.BLACKHOLE)
        for connection in list(self._namespace.connections):
            if blackhole is None:
                connection.thaw()
            elif connection.freeze():
                blackhole.fired += 1
        if blackhole is None:
            self._thawed.set()
        else:
            self._thawed.clear()
        released = [accepted for accepted, held_by in self._held if held_by.ended]
        self._held = [(accepted, held_by) for accepted, held_by in self._held if not held_by.ended]
        for accepted in released:
            self._namespace.serve_socket(accepted)
        for accepted in [
            delayed for delayed, (_, slowed_by) in self._delayed.items() if slowed_by is not None and slowed_by.removed
        ]:
            self._serve_delayed(accepted)

    def _strike_existing(self, added: ActiveFault) -> None:
        """Apply a fault without fault points to the connections and links that exist."""
        fault = added.fault
        if fault.on or not fault.is_steady:
            return
        if fault.kind in (FaultKind.RESET, FaultKind.CLOSE, FaultKind.EXPIRE):
            for connection in list(self._namespace.connections):
                paths = [path for path in connection.paths() if fault.covers(path)]
                if fault.entity is not None and not paths:
                    continue
                added.fired += 1
                if fault.kind is FaultKind.RESET:
                    connection.reset()
                elif fault.kind is FaultKind.CLOSE:
                    connection.close(fault.error())
                else:
                    for path in paths:
                        connection.expire_tokens(path, fault.error())
        elif fault.kind in (FaultKind.DETACH, FaultKind.DISABLE):
            for link in self._namespace.entity_links():
                if fault.covers(link.node.path):
                    added.fired += 1
                    link.channel.detach(link, fault.error())

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ends = self._faults.next_end()
        if ends is not None:
            delay = max(0.0, ends - time.monotonic()) + 0.001
            self._timer = asyncio.get_running_loop().call_later(delay, self._faults.expire)

    def close(self) -> None:
        """Close what is held, when the namespace stops."""
        if self._timer is not None:
            self._timer.cancel()
        for gate in self.gates:
            gate.close()
        for delayed, (timer, _) in self._delayed.items():
            timer.cancel()
            delayed.close()
        for held, _ in self._held:
            held.close()
        self._held.clear()
        self._delayed.clear()
        self._thawed.set()
