"""Implements the faults of the matrix, and counts how often each really struck."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..breaking_proxy import FaultKind, FrameFault, LastingFault, PassedPart
from ..proxy_frames import FaultPoint
from .cells import Where
from .matrix_bench import POLL, Bench, ProxiedNamespace, until
from .namespace_processes import NamespaceProcess
from .traffic import Traffic

GARBAGE = 5000  # bytes appended to the log of a killed namespace
#: Seconds per state of a flapping namespace: less than a ping interval, which is at least a second.
FLAP = 0.35
FLAPS = 6
CLOCK_SECONDS = 10.0  # until a process notices a new clock


@dataclass(slots=True)
class FaultScope:
    """The cells that a fault strikes together, and where."""

    bench: Bench
    where: Where
    traffics: list[Traffic]

    @property
    def proxied_namespaces(self) -> list[ProxiedNamespace]:
        return self.bench.side(self.where)

    def targets(self, traffic: Traffic) -> list[tuple[ProxiedNamespace, str]]:
        """The entities of a cell that the fault strikes: its queue or topic, the root of its backlog, or both."""
        paths = {id(self.bench.primary): traffic.entity, id(self.bench.secondary): traffic.backlog_root}
        return [(proxied, paths[id(proxied)]) for proxied in self.proxied_namespaces]


class MatrixFault(ABC):
    """A fault of the matrix, for all cells of a scope."""

    #: Whether receivers can keep their connections after the fault.
    spares_receivers = False
    #: Whether the cells' senders pause during the fault.
    pauses_senders = False
    #: Seconds within which it must strike every cell.
    firing_seconds = 40.0

    async def prepare(self, scope: FaultScope) -> None:  # noqa: B027 - most have nothing to prepare
        """Prepare the namespaces, before the cells start."""

    @abstractmethod
    async def strike(self, scope: FaultScope) -> None:
        """Start the fault."""

    @abstractmethod
    async def repair(self, scope: FaultScope) -> None:
        """End the fault."""

    @abstractmethod
    async def fired(self, traffic: Traffic) -> int:
        """How often the fault really struck a cell."""

    def violations(self, traffic: Traffic) -> dict[str, int]:
        """What has_fired to callers of its own that must not be while all is well, and how often."""
        return {}


class FrameFaults(MatrixFault):
    """Resets connections at a point in the life of a message."""

    def __init__(self, point: FaultPoint, passing: PassedPart, times: int = 3) -> None:
        self._point, self._passing, self._times = point, passing, times
        self._armed: dict[str, list[FrameFault]] = defaultdict(list)

    async def strike(self, scope: FaultScope) -> None:
        for traffic in scope.traffics:
            for proxied, path in scope.targets(traffic):
                fault = FrameFault(point=self._point, entity=path, passing=self._passing, times=self._times)
                self._armed[traffic.name].append(proxied.proxy.arm(fault))

    async def repair(self, scope: FaultScope) -> None:
        for proxied in scope.proxied_namespaces:
            proxied.proxy.clear()

    async def fired(self, traffic: Traffic) -> int:
        return min(fault.fired for fault in self._armed[traffic.name])


class LastingFaults(MatrixFault):
    """Disturbs the whole network of a namespace."""

    def __init__(self, kind: FaultKind, delay: float = 0.0) -> None:
        self._kind, self._delay = kind, delay
        self._faults: list[tuple[ProxiedNamespace, LastingFault]] = []
        self._scope: FaultScope | None = None

    async def strike(self, scope: FaultScope) -> None:
        self._scope = scope
        for proxied in scope.proxied_namespaces:
            self._faults.append((proxied, proxied.proxy.begin(LastingFault(kind=self._kind, delay=self._delay))))

    async def repair(self, scope: FaultScope) -> None:
        for proxied, fault in self._faults:
            await proxied.proxy.end(fault)

    async def fired(self, traffic: Traffic) -> int:
        assert self._scope is not None
        paths = {id(proxied): path for proxied, path in self._scope.targets(traffic)}
        # A connection that is stalled before its first attach belongs to no entity.
        return min(fault.fired_at(paths[id(proxied)]) or fault.by_entity[""] for proxied, fault in self._faults)


class Flapping(MatrixFault):
    """Makes the namespace fail and recover faster than it is pinged."""

    def __init__(self) -> None:
        self._faults: list[LastingFault] = []

    async def strike(self, scope: FaultScope) -> None:
        for _ in range(FLAPS):
            lasting_faults = [
                (proxied.proxy, proxied.proxy.begin(LastingFault(kind=FaultKind.REFUSE)))
                for proxied in scope.proxied_namespaces
            ]
            self._faults += [fault for _, fault in lasting_faults]
            await asyncio.sleep(FLAP)
            for proxy, fault in lasting_faults:
                await proxy.end(fault)
            await asyncio.sleep(FLAP)

    async def repair(self, scope: FaultScope) -> None:
        """Nothing to repair: `strike` ends the fault."""

    async def fired(self, traffic: Traffic) -> int:
        return sum(fault.fired_at(traffic.entity) for fault in self._faults)


class BrokerFaults(MatrixFault):
    """Injects a fault into the namespace itself, for the entities of the cell."""

    def __init__(self, kind: str, on: Sequence[str] = (), *, reconnect: bool = False, **options: Any) -> None:
        self._fault = {"kind": kind, "on": list(on), **options}
        self._reconnect = reconnect
        self._ids: dict[str, list[tuple[ProxiedNamespace, int]]] = defaultdict(list)

    def targets(self, scope: FaultScope, traffic: Traffic) -> list[tuple[ProxiedNamespace, str]]:
        """The entities of a cell that the fault strikes."""
        return scope.targets(traffic)

    async def strike(self, scope: FaultScope) -> None:
        for traffic in scope.traffics:
            for proxied, path in self.targets(scope, traffic):
                seed = traffic.cell.seed
                answer = await proxied.namespace.control(
                    "POST", "faults", {**self._fault, "entity": path, "seed": seed}
                )
                self._ids[traffic.name].append((proxied, answer["id"]))
        if self._reconnect:  # tokens and attaches are sent on new connections only
            for proxied in scope.proxied_namespaces:
                proxied.proxy.reset_all()

    async def repair(self, scope: FaultScope) -> None:
        for proxied in scope.proxied_namespaces:
            await proxied.namespace.control("DELETE", "faults")

    async def fired(self, traffic: Traffic) -> int:
        answers = [
            await proxied.namespace.control("GET", f"faults/{number}") for proxied, number in self._ids[traffic.name]
        ]
        return min(int(answer["fired"]) for answer in answers)


class Kill(MatrixFault):
    """Kills a namespace (`kill -9`), at a point in the life of a message or at any moment."""

    def __init__(self, point: FaultPoint | None = None, *, tear_log: bool = False) -> None:
        self._point, self._tear_log = point, tear_log
        self._killed: list[int] = []

    async def strike(self, scope: FaultScope) -> None:
        armed = [self._kill_fault(proxied) for proxied in scope.proxied_namespaces]
        for fault in armed:
            if fault is not None:
                await fault.has_fired.wait()
        # At the same time: otherwise the second one would still accept messages.
        self._killed = list(await asyncio.gather(*(proxied.namespace.kill() for proxied in scope.proxied_namespaces)))

    def _kill_fault(self, proxied: ProxiedNamespace) -> FrameFault | None:
        if self._point is None:
            return None
        process = proxied.namespace

        async def kill(pass_on: Callable[[], Awaitable[None]]) -> None:
            if self._point is FaultPoint.TRANSFER:
                # It gets the message, but cannot store it.
                process.send_signal(signal.SIGSTOP)
                with contextlib.suppress(ConnectionError):
                    await pass_on()
            process.send_signal(signal.SIGKILL)

        return proxied.proxy.arm(FrameFault(point=self._point, then=kill))

    async def repair(self, scope: FaultScope) -> None:
        for proxied in scope.proxied_namespaces:
            proxied.proxy.clear()
            if self._tear_log:
                for log in proxied.namespace.folder.glob("*-wal"):
                    with log.open("ab") as file:
                        file.write(os.urandom(GARBAGE))
        await asyncio.gather(*(proxied.namespace.start() for proxied in scope.proxied_namespaces))

    async def fired(self, traffic: Traffic) -> int:
        return min(self._killed, default=0)


class ProcessFault(MatrixFault):
    """A fault that is visible only in calls that the primary does not accept."""

    def __init__(self, begin: Callable[[ProxiedNamespace], None], end: Callable[[ProxiedNamespace], None]) -> None:
        self._begin, self._end = begin, end

    async def strike(self, scope: FaultScope) -> None:
        for proxied in scope.proxied_namespaces:
            self._begin(proxied)

    async def repair(self, scope: FaultScope) -> None:
        for proxied in scope.proxied_namespaces:
            self._end(proxied)

    async def fired(self, traffic: Traffic) -> int:
        return traffic.not_accepted_by_primary


def full_disk() -> MatrixFault:
    return ProcessFault(lambda proxied: proxied.namespace.fill_disk(), lambda proxied: proxied.namespace.free_disk())


def frozen() -> MatrixFault:
    """The process is frozen, as on a machine that swaps or a virtual machine during migration."""
    return ProcessFault(
        lambda proxied: proxied.namespace.send_signal(signal.SIGSTOP),
        lambda proxied: proxied.namespace.send_signal(signal.SIGCONT),
    )


class ClockJump(MatrixFault):
    """Sets the clock of a namespace permanently, so that locks last longer or less long.

    A clock that will be set back starts ahead: if the namespace is far behind the client, the SDK's receiver considers
    every lock lost, and the cell would prove nothing.
    """

    spares_receivers = True

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds
        self._processes: list[NamespaceProcess] = []

    async def prepare(self, scope: FaultScope) -> None:
        self._processes = [proxied.namespace for proxied in scope.proxied_namespaces]
        for proxied in scope.bench.side("both"):
            proxied.namespace.set_clock(0)
        for process in self._processes:
            process.set_clock(max(0, -self._seconds))
        async with asyncio.timeout(CLOCK_SECONDS):
            while not await self._are_set():  # noqa: ASYNC110 - libfaketime reads the file once a second
                await asyncio.sleep(POLL)

    async def strike(self, scope: FaultScope) -> None:
        for process in self._processes:
            process.set_clock(process.clock + self._seconds)

    async def repair(self, scope: FaultScope) -> None:
        """Nothing to repair: the jump itself is the fault."""

    async def fired(self, traffic: Traffic) -> int:
        return int(await self._are_set())

    async def _are_set(self) -> bool:
        errors = [await process.clock_error() - process.clock for process in self._processes]
        return all(abs(error) < abs(self._seconds) / 2 for error in errors)


class DeletedEntity(MatrixFault):
    """Deletes the entity once it is empty, and creates it again later."""

    async def strike(self, scope: FaultScope) -> None:
        for traffic in scope.traffics:
            traffic.pause()
        for traffic in scope.traffics:
            await traffic.received_all()
            await traffic.delete_entity()
            traffic.resume()

    async def repair(self, scope: FaultScope) -> None:
        for traffic in scope.traffics:
            await traffic.create_entity()

    async def fired(self, traffic: Traffic) -> int:
        return traffic.not_accepted_by_primary


class IdleSenders(MatrixFault):
    """Pauses all senders for longer than the namespace keeps an idle link."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._watched: dict[str, FrameFault] = {}

    async def strike(self, scope: FaultScope) -> None:
        for traffic in scope.traffics:
            watch = FrameFault(point=FaultPoint.DETACH, entity=traffic.entity, times=1000, resets=False)
            self._watched[traffic.name] = scope.bench.primary.proxy.arm(watch)
            traffic.pause()
        await asyncio.sleep(self._seconds)
        for traffic in scope.traffics:
            traffic.mark()
            traffic.resume()

    async def repair(self, scope: FaultScope) -> None:
        scope.bench.primary.proxy.clear()

    async def fired(self, traffic: Traffic) -> int:
        return self._watched[traffic.name].fired


class SlowReceivers(MatrixFault):
    """Makes receivers take longer than the message lock lasts."""

    async def strike(self, scope: FaultScope) -> None:
        for traffic in scope.traffics:
            traffic.receives_slowly = True

    async def repair(self, scope: FaultScope) -> None:
        for traffic in scope.traffics:
            traffic.receives_slowly = False

    async def fired(self, traffic: Traffic) -> int:
        return traffic.receive_errors["MessageLockLostError"] + traffic.receive_errors["SessionLockLostError"]


class ExpiringMessages(MatrixFault):
    """An outage that lasts longer than the time to live of the diverted messages."""

    def __init__(self, seconds: float, min_diverted: int = 6) -> None:
        self._seconds, self._min_diverted = seconds, min_diverted
        self._outage = LastingFaults(FaultKind.REFUSE)

    async def strike(self, scope: FaultScope) -> None:
        await self._outage.strike(scope)
        for traffic in scope.traffics:
            traffic.time_to_live = self._seconds
        await until(
            lambda: all(traffic.diverted >= self._min_diverted for traffic in scope.traffics), self._seconds * 4
        )
        for traffic in scope.traffics:
            traffic.pause()
        await asyncio.sleep(self._seconds + 1)

    async def repair(self, scope: FaultScope) -> None:
        for traffic in scope.traffics:
            await traffic.left()  # notes that nothing was dead-lettered too early
            traffic.time_to_live = None
            traffic.resume()
        await self._outage.repair(scope)

    async def fired(self, traffic: Traffic) -> int:
        return min(traffic.diverted, await self._outage.fired(traffic))
