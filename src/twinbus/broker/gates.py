"""What a fault does to the operations of a link: they are done, done late, answered wrongly, or never done.

Slow operations wait in a gate, in the order they came, and only those of their own link wait behind them. What a
black hole swallows waits apart from them until the fault ends. All are done in the end even if the client has gone
away meanwhile, as bytes that were on their way would be.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from .faults import ActiveFault, Fault, Kind, Operation, Strike

if TYPE_CHECKING:
    from .connection import Connection

Act = Callable[[Fault | None], None]

# Of one link, and of a connection with all its links.
MAX_HELD = 1000
MAX_HELD_BYTES = 1 << 20
MAX_HELD_TOGETHER = 10_000
MAX_HELD_BYTES_TOGETHER = 16 << 20

_ON_OPEN_LINKS = frozenset({Operation.SEND, Operation.RECEIVE, Operation.SETTLE, Operation.MANAGEMENT})


class _Held(NamedTuple):
    act: Callable[[], None]
    size: int
    by: ActiveFault | None
    due: float = 0.0


class HeldBack:
    """What faults hold back of one connection, over all its links: above a bound nothing more is read or delivered."""

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
            # Not now: what is still held back of the same link goes first.
            asyncio.get_running_loop().call_soon(self._connection.wake_links)


class Gate:
    """Operations of one kind on one link, on their way through the faults of the namespace."""

    def __init__(self, connection: Connection, operation: Operation) -> None:
        self._connection = connection
        self._operation = operation
        self._slow: deque[_Held] = deque()
        self._swallowed: list[_Held] = []
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        #: Whether an operation need not wait for others.
        self.is_clear = True
        #: Whether so much is held back that no more should be asked for.
        self.is_full = False
        #: Told when nothing is held back any more.
        self.on_clear: Callable[[], None] = lambda: None

    def perform(self, path: str, act: Act, size: int = 0, spared: frozenset[Kind] = frozenset()) -> None:
        """Do `act`, now or late, with the fault that it has to carry out itself, if any."""
        connection = self._connection
        strike = connection.namespace.faults.strike(self._operation, path, spared)
        if strike.by is None:
            self._pass(lambda: act(None), size, strike)
            return
        fault = strike.by.fault
        if fault.kind is Kind.BLACKHOLE:
            self._hold(self._swallowed, _Held(lambda: act(None), size, strike.by))
        elif fault.kind in (Kind.RESET, Kind.REFUSE) and not fault.after_answer:
            self._pass(connection.reset, size, strike)
        else:
            self._pass(lambda: self._carry_out(fault, path, act), size, strike)

    def _carry_out(self, fault: Fault, path: str, act: Act) -> None:
        if fault.kind not in (Kind.CLOSE, Kind.EXPIRE):
            act(fault)
            return
        # What is sent on an open link ends with it; a delivery takes its message back first.
        if self._operation not in _ON_OPEN_LINKS or self._operation is Operation.RECEIVE:
            act(fault)
        if fault.kind is Kind.CLOSE:
            self._connection.close(fault.error())
        else:
            self._connection.expire_tokens(path, fault.error())

    def _pass(self, act: Callable[[], None], size: int, strike: Strike) -> None:
        if not strike.delay and self.is_clear:
            act()
            return
        # Nothing overtakes: what comes after a slow operation is due when that one is, at the earliest.
        due = self._connection.namespace.loop_time() + strike.delay
        if self._slow:
            due = max(due, self._slow[-1].due)
        self._hold(self._slow, _Held(act, size, strike.slowed_by, due))

    def _hold(self, where: deque[_Held] | list[_Held], held: _Held) -> None:
        where.append(held)
        self._bytes += held.size
        self._connection.held_back.add(held.size)
        self._look()
        self._connection.namespace.outage.gates.add(self)
        self._set_timer()
        if self.is_full:
            self._connection.hold_reading(self)

    def _look(self) -> None:
        # Kept, not asked for: every message asks, and hardly ever something is held.
        self.is_clear = not self._slow
        self.is_full = len(self._slow) + len(self._swallowed) >= MAX_HELD or self._bytes >= MAX_HELD_BYTES

    def _set_timer(self) -> None:
        if self._timer is None and self._slow:
            self._timer = asyncio.get_running_loop().call_at(self._slow[0].due, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self.pump()

    def pump(self) -> None:
        """Do what may go on now."""
        for held in [one for one in self._swallowed if one.by is not None and one.by.ended]:
            self._swallowed.remove(held)
            self._do(held)
        now = self._connection.namespace.loop_time()
        while self._slow and (now >= self._slow[0].due or _let_go(self._slow[0])):
            self._do(self._slow.popleft())
        if not self.is_full:
            self._connection.release_reading(self)
        self._set_timer()
        if not self._slow and not self._swallowed:
            self._connection.namespace.outage.gates.discard(self)
            self.on_clear()

    def _do(self, held: _Held) -> None:
        self._bytes -= held.size
        self._look()
        self._connection.held_back.remove(held.size)
        self._connection.guard(held.act)

    def close(self) -> None:
        """The namespace stops: what is held back is never done."""
        self._slow.clear()
        self._swallowed.clear()
        self._look()
        if self._timer is not None:
            self._timer.cancel()


def _let_go(held: _Held) -> bool:
    """Whether a slow operation need not wait any more: its fault was removed by hand."""
    return held.by is not None and held.by.removed
