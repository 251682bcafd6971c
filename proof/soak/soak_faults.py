"""Draws the faults of a soak from a seed."""

from __future__ import annotations

import random
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from ..breaking_proxy import FaultKind, FrameFault, LastingFault, PassedPart
from ..matrix.matrix_bench import Bench, ProxiedNamespace
from ..proxy_frames import FaultPoint

Side = Literal["primary", "secondary"]

#: Duration of a fault in seconds, and of the pause after it.
FAULT_SECONDS = 0.5, 6.0
PAUSE_SECONDS = 2.0, 8.0
TIMES = 3  # per frame fault
WHERE = "primary", "primary", "backlog", "both"


class SoakFault(ABC):
    """One fault at one namespace."""

    @abstractmethod
    async def begin(self, proxied: ProxiedNamespace) -> None: ...

    @abstractmethod
    async def end(self, proxied: ProxiedNamespace) -> int:
        """End the fault; return how often it really struck."""


class LastingSoakFault(SoakFault):
    """A lasting network fault."""

    def __init__(self, kind: FaultKind, delay: float = 0.0) -> None:
        self._spell = LastingFault(kind=kind, delay=delay)

    async def begin(self, proxied: ProxiedNamespace) -> None:
        proxied.proxy.begin(self._spell)

    async def end(self, proxied: ProxiedNamespace) -> int:
        await proxied.proxy.end(self._spell)
        return self._spell.fired


class FrameSoakFault(SoakFault):
    """Resets connections at a point in the life of a message."""

    def __init__(self, point: FaultPoint, passing: PassedPart) -> None:
        self._frame_fault = FrameFault(point=point, passing=passing, times=TIMES)

    async def begin(self, proxied: ProxiedNamespace) -> None:
        proxied.proxy.arm(self._frame_fault)

    async def end(self, proxied: ProxiedNamespace) -> int:
        proxied.proxy.frame_faults.remove(self._frame_fault)
        return self._frame_fault.fired


class NamespaceFault(SoakFault):
    """A fault injected into the namespace itself; see `twinbus.emulator.Fault`."""

    def __init__(self, kind: str, on: str, probability: float, seed: int) -> None:
        self._fault: dict[str, Any] = {"kind": kind, "on": [on], "probability": probability, "seed": seed}
        self._id = 0

    async def begin(self, proxied: ProxiedNamespace) -> None:
        self._id = (await proxied.namespace.control("POST", "faults", self._fault))["id"]

    async def end(self, proxied: ProxiedNamespace) -> int:
        fired = (await proxied.namespace.control("GET", f"faults/{self._id}"))["fired"]
        await proxied.namespace.control("DELETE", f"faults/{self._id}")
        return int(fired)


class Frozen(SoakFault):
    """A frozen namespace process."""

    async def begin(self, proxied: ProxiedNamespace) -> None:
        proxied.namespace.send_signal(signal.SIGSTOP)

    async def end(self, proxied: ProxiedNamespace) -> int:
        proxied.namespace.send_signal(signal.SIGCONT)
        return 1


def _lasting_fault(rng: random.Random) -> SoakFault:
    return LastingSoakFault(rng.choice(list(FaultKind)), delay=rng.uniform(0.01, 0.5))


def _frame_fault(rng: random.Random) -> SoakFault:
    point = rng.choice((FaultPoint.TRANSFER, FaultPoint.OUTCOME, FaultPoint.DELIVERY, FaultPoint.SETTLEMENT))
    passing: tuple[PassedPart, ...] = ("nothing", "half", "all")
    return FrameSoakFault(point, rng.choice(passing))


def _namespace(rng: random.Random) -> SoakFault:
    kind, on = rng.choice(
        (
            ("reject", "send"),
            ("reject", "settle"),
            ("throttle", "send"),
            ("throttle", "management"),
            ("detach", "send"),
            ("detach", "receive"),
            ("detach", "settle"),
            ("close", "send"),
            ("close", "receive"),
            ("drop_ack", "send"),
            ("drop_ack", "settle"),
            ("drop_ack", "management"),
        )
    )
    return NamespaceFault(kind, on, rng.choice((0.1, 0.5, 0.9)), rng.randrange(1 << 16))


def _frozen(_: random.Random) -> SoakFault:
    return Frozen()


_KINDS: tuple[Callable[[random.Random], SoakFault], ...] = (
    _lasting_fault,
    _lasting_fault,
    _frame_fault,
    _frame_fault,
    _namespace,
    _frozen,
)


@dataclass(frozen=True, slots=True)
class FaultGroup:
    """Faults that start together, each with its side, their duration, and the pause after them."""

    faults: tuple[tuple[Side, SoakFault], ...]
    seconds: float
    pause: float

    async def begin(self, bench: Bench) -> None:
        for side, fault in self.faults:
            await fault.begin(*bench.side(side))

    async def end(self, bench: Bench) -> int:
        """End the faults; return how many of them really struck."""
        return sum([bool(await fault.end(*bench.side(side))) for side, fault in self.faults])


def fault_groups(seed: int) -> Iterator[FaultGroup]:
    """Yield fault groups without end. Depends on the seed only."""
    rng = random.Random(seed)

    def draw() -> SoakFault:
        return rng.choice(_KINDS)(rng)

    while True:
        match rng.choice(WHERE):
            case "primary":
                faults: tuple[tuple[Side, SoakFault], ...] = (("primary", draw()),)
            case "backlog":  # the backlog is used only while the primary is unavailable
                faults = ("primary", LastingSoakFault(FaultKind.REFUSE)), ("secondary", draw())
            case _:
                faults = ("primary", draw()), ("secondary", draw())
        yield FaultGroup(faults, rng.uniform(*FAULT_SECONDS), rng.uniform(*PAUSE_SECONDS))
