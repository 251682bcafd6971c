"""Applies faults to the operations of a link.

Slow operations wait in a gate in order; only later operations of the same link wait behind them. Operations that a
black hole swallows wait separately until the fault ends. All of them are done in the end, even if the client has
disconnected, as if they had been in flight.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from .fault_plan import ActiveFault, Fault, FaultKind, FaultPoint, Strike

if TYPE_CHECKING:
    from ..protocol.connection import Connection

Act = Callable[[Fault | None], None]

# Per link, and per connection over all its links (_TOGETHER).
MAX_HELD = 1000
MAX_HELD_BYTES = 1 << 20
MAX_HELD_TOGETHER = 10_000
MAX_HELD_BYTES_TOGETHER = 16 << 20

_ON_OPEN_LINKS = frozenset({FaultPoint.SEND, FaultPoint.RECEIVE, FaultPoint.SETTLE, FaultPoint.MANAGEMENT})


class _HeldOperation(NamedTuple):
    act: Callable[[], None]
    size: int
    held_by: ActiveFault | None
    due: float = 0.0


class HeldOperations:
    """Counts the operations that faults hold on one connection; at the limit reading and delivering stop."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._count = 0
        self._bytes = 0
        self.is_full = False

    def add(self, size: int) -> None:
        self._count += 1
        self._bytes += size
        if self._count >= MAX_HELD_TOGETHER or self._bytes >= MAX_HELD_BYTES_TOGETHER:
            self.is_full = True
            self._connection.hold_reading(self)

    def remove(self, size: int) -> None:
        self._count -= 1
        self._bytes -= size
        if self.is_full and self._count < MAX_HELD_TOGETHER and self._bytes < MAX_HELD_BYTES_TOGETHER:
            self.is_full = False
            self._connection.release_reading(self)
            # Not now: other held operations of the same link go first.
            asyncio.get_running_loop().call_soon(self._connection.wake_links)


class Gate:
    """Passes the operations of one kind on one link through the faults of the namespace."""

    def __init__(self, connection: Connection, operation: FaultPoint) -> None:
        self._connection = connection
        self._operation = operation
        self._slow: deque[_HeldOperation] = deque()
        self._swallowed: list[_HeldOperation] = []
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        #: Whether no operation waits, so that the next can be done at once.
        self.is_clear = True
        #: Whether the link's limit of held operations is reached.
        self.is_full = False
        #: Called when nothing is held any more.
        self.on_clear: Callable[[], None] = lambda: None

    def perform(self, path: str, act: Act, size: int = 0, spared: frozenset[FaultKind] = frozenset()) -> None:
        """Call `act` now or later, with the fault that it must apply itself, or None."""
        connection = self._connection
        strike = connection.namespace.faults.strike(self._operation, path, spared)
        if strike.struck_by is None:
            self._pass(lambda: act(None), size, strike)
            return
        fault = strike.struck_by.fault
        if fault.kind is FaultKind.BLACKHOLE:
            self._hold(self._swallowed, _HeldOperation(lambda: act(None), size, strike.struck_by))
        elif fault.kind in (FaultKind.RESET, FaultKind.REFUSE) and not fault.after_answer:
            self._pass(connection.reset, size, strike)
        else:
            self._pass(lambda: self._carry_out(fault, path, act), size, strike)

    def _carry_out(self, fault: Fault, path: str, act: Act) -> None:
        if fault.kind not in (FaultKind.CLOSE, FaultKind.EXPIRE):
            act(fault)
            return
        # An operation on an open link is lost with the link; only a delivery must put its message back first.
        if self._operation not in _ON_OPEN_LINKS or self._operation is FaultPoint.RECEIVE:
            act(fault)
        if fault.kind is FaultKind.CLOSE:
            self._connection.close(fault.error())
        else:
            self._connection.expire_tokens(path, fault.error())

    def _pass(self, act: Callable[[], None], size: int, strike: Strike) -> None:
        if not strike.delay and self.is_clear:
            act()
            return
        # Keep the order: an operation is due no earlier than the one before it.
        due = self._connection.namespace.loop_time() + strike.delay
        if self._slow:
            due = max(due, self._slow[-1].due)
        self._hold(self._slow, _HeldOperation(act, size, strike.slowed_by, due))

    def _hold(self, waiting: deque[_HeldOperation] | list[_HeldOperation], held: _HeldOperation) -> None:
        waiting.append(held)
        self._bytes += held.size
        self._connection.held_operations.add(held.size)
        self._update_flags()
        self._connection.namespace.outage.gates.add(self)
        self._set_timer()
        if self.is_full:
            self._connection.hold_reading(self)

    def _update_flags(self) -> None:
        # Stored, not computed: every message reads the flags, and operations are rarely held.
        self.is_clear = not self._slow
        self.is_full = len(self._slow) + len(self._swallowed) >= MAX_HELD or self._bytes >= MAX_HELD_BYTES

    def _set_timer(self) -> None:
        if self._timer is None and self._slow:
            self._timer = asyncio.get_running_loop().call_at(self._slow[0].due, self._on_due)

    def _on_due(self) -> None:
        self._timer = None
        self.release_due()

    def release_due(self) -> None:
        """Do the held operations that are due or whose fault ended."""
        for held in [held for held in self._swallowed if held.held_by is not None and held.held_by.ended]:
            self._swallowed.remove(held)
            self._do(held)
        now = self._connection.namespace.loop_time()
        while self._slow and (now >= self._slow[0].due or _is_released(self._slow[0])):
            self._do(self._slow.popleft())
        if not self.is_full:
            self._connection.release_reading(self)
        self._set_timer()
        if not self._slow and not self._swallowed:
            self._connection.namespace.outage.gates.discard(self)
            self.on_clear()

    def _do(self, held: _HeldOperation) -> None:
        self._bytes -= held.size
        self._update_flags()
        self._connection.held_operations.remove(held.size)
        self._connection.guard(held.act)

    def close(self) -> None:
        """Discard what is held, when the namespace stops."""
        self._slow.clear()
        self._swallowed.clear()
        self._update_flags()
        if self._timer is not None:
            self._timer.cancel()


def _is_released(held: _HeldOperation) -> bool:
    """Whether a slow operation can go on because its fault was removed."""
    return held.held_by is not None and held.held_by.removed
