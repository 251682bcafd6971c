"""What the faults of a namespace do to its listener, its connections and its links."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING

from .faults import ActiveFault, Kind, Operation
from .gates import Gate
from .listener import reset

if TYPE_CHECKING:
    from .namespace import Namespace

MAX_HELD_CONNECTIONS = 1000


class Outage:
    """Brings a namespace in line with the faults in force, whenever one begins or ends."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._faults = namespace.faults
        #: Where operations are held back.
        self.gates: set[Gate] = set()
        self._held: list[tuple[socket.socket, ActiveFault]] = []
        self._delayed: dict[socket.socket, tuple[asyncio.TimerHandle, ActiveFault | None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._thawed = asyncio.Event()
        self._faults.on_change = self._changed

    def arriving(self, arrived: socket.socket) -> bool:
        """A new connection, before anything is read from it; false if a fault keeps it."""
        if not self._faults.active:
            return True
        strike = self._faults.strike(Operation.CONNECT, None)
        if strike.by is None and not strike.delay:
            return True
        is_cut = strike.by is not None and strike.by.fault.kind is not Kind.BLACKHOLE
        if is_cut or len(self._held) + len(self._delayed) >= MAX_HELD_CONNECTIONS:
            reset(arrived)
        elif strike.by is not None:
            self._held.append((arrived, strike.by))
        else:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(strike.delay, self._serve_delayed, arrived)
            self._delayed[arrived] = timer, strike.slowed_by
        return False

    def _serve_delayed(self, arrived: socket.socket) -> None:
        timer, _ = self._delayed.pop(arrived)
        timer.cancel()
        self._namespace.serve_socket(arrived)

    async def pass_http(self) -> None:
        """Wait until requests over HTTP are answered again."""
        while self._faults.standing(Kind.BLACKHOLE):
            await self._thawed.wait()

    def _changed(self, added: ActiveFault | None) -> None:
        self._hold_namespace()
        if added is not None:
            self._strike_at_once(added)
        else:
            for gate in list(self.gates):
                gate.pump()
        self._set_timer()

    def _hold_namespace(self) -> None:
        """Close or open the listener, freeze or thaw the connections."""
        refused = self._faults.standing(Kind.REFUSE)
        if refused is None:
            self._namespace.listen()
        elif self._namespace.stop_listening():
            refused.fired += 1  # what the operating system refuses from now on nobody can count
        black = self._faults.standing(Kind.BLACKHOLE)
        for connection in list(self._namespace.connections):
            if black is None:
                connection.thaw()
            elif connection.freeze():
                black.fired += 1
        if black is None:
            self._thawed.set()
        else:
            self._thawed.clear()
        released = [arrived for arrived, by in self._held if by.ended]
        self._held = [(arrived, by) for arrived, by in self._held if not by.ended]
        for arrived in released:
            self._namespace.serve_socket(arrived)
        for arrived in [one for one, (_, by) in self._delayed.items() if by is not None and by.removed]:
            self._serve_delayed(arrived)

    def _strike_at_once(self, added: ActiveFault) -> None:
        """A fault that is not limited to some operations hits what is already there."""
        fault = added.fault
        if fault.on or not fault.is_steady:
            return
        if fault.kind in (Kind.RESET, Kind.CLOSE, Kind.EXPIRE):
            for connection in list(self._namespace.connections):
                paths = [path for path in connection.paths() if fault.covers(path)]
                if fault.entity is not None and not paths:
                    continue
                added.fired += 1
                if fault.kind is Kind.RESET:
                    connection.reset()
                elif fault.kind is Kind.CLOSE:
                    connection.close(fault.error())
                else:
                    for path in paths:
                        connection.expire_tokens(path, fault.error())
        elif fault.kind in (Kind.DETACH, Kind.DISABLE):
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
        """The namespace stops."""
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
