"""What goes wrong in a cell, and how often it really did."""

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

from .matrix_bench import POLL, Bench, Station, until
from .matrix_cells import Where
from .matrix_processes import NamespaceProcess
from .matrix_traffic import Traffic
from .proxy import Ambush, Passing, Spell, Weather
from .proxy_frames import Point

GARBAGE = 5000  # bytes behind the log of a killed namespace
#: How long one state of a flapping namespace lasts: less than a ping interval, which is at least a second.
FLAP = 0.35
FLAPS = 6
CLOCK_SECONDS = 10.0  # until a process has noticed that its clock was set


@dataclass(slots=True)
class Stage:
    """Cells that share a fault, and so a moment at which it strikes."""

    bench: Bench
    where: Where
    traffics: list[Traffic]

    @property
    def stations(self) -> list[Station]:
        return self.bench.side(self.where)

    def targets(self, traffic: Traffic) -> list[tuple[Station, str]]:
        """The entities of a cell that the fault is to strike: its queue or topic, the root of its backlog, or both."""
        paths = {id(self.bench.primary): traffic.entity, id(self.bench.secondary): traffic.backlog_root}
        return [(station, paths[id(station)]) for station in self.stations]


class Trouble(ABC):
    """One fault of the matrix, for all cells of a stage."""

    #: Whether receivers may go on with the connections they have when it is over.
    spares_receivers = False
    #: Whether the senders of the cells pause while it lasts.
    pauses_senders = False
    #: How long it may take until it has struck every cell.
    firing_seconds = 40.0

    async def prepare(self, stage: Stage) -> None:  # noqa: B027 - most have nothing to prepare
        """Called before anything of the cells is there."""

    @abstractmethod
    async def strike(self, stage: Stage) -> None:
        """Let it begin."""

    @abstractmethod
    async def repair(self, stage: Stage) -> None:
        """Let it be over."""

    @abstractmethod
    async def fired(self, traffic: Traffic) -> int:
        """How often it has really struck something of a cell."""

    def wrong(self, traffic: Traffic) -> dict[str, int]:
        """What happened to callers of its own that must not be while all is well, and how often."""
        return {}


class Ambushes(Trouble):
    """Connections are reset at a point in the life of a message."""

    def __init__(self, point: Point, passing: Passing, times: int = 3) -> None:
        self._point, self._passing, self._times = point, passing, times
        self._laid: dict[str, list[Ambush]] = defaultdict(list)

    async def strike(self, stage: Stage) -> None:
        for traffic in stage.traffics:
            for station, path in stage.targets(traffic):
                ambush = Ambush(point=self._point, entity=path, passing=self._passing, times=self._times)
                self._laid[traffic.name].append(station.proxy.lie_in_wait(ambush))

    async def repair(self, stage: Stage) -> None:
        for station in stage.stations:
            station.proxy.clear()

    async def fired(self, traffic: Traffic) -> int:
        return min(one.fired for one in self._laid[traffic.name])


class Spells(Trouble):
    """The network of a namespace is in a bad way."""

    def __init__(self, weather: Weather, delay: float = 0.0) -> None:
        self._weather, self._delay = weather, delay
        self._spells: list[tuple[Station, Spell]] = []
        self._stage: Stage | None = None

    async def strike(self, stage: Stage) -> None:
        self._stage = stage
        for station in stage.stations:
            self._spells.append((station, station.proxy.begin(Spell(weather=self._weather, delay=self._delay))))

    async def repair(self, stage: Stage) -> None:
        for station, spell in self._spells:
            await station.proxy.end(spell)

    async def fired(self, traffic: Traffic) -> int:
        assert self._stage is not None
        paths = {id(station): path for station, path in self._stage.targets(traffic)}
        # A connection that is swallowed before it has said what it wants belongs to nobody yet.
        return min(spell.fired_at(paths[id(station)]) or spell.by_entity[""] for station, spell in self._spells)


class Flapping(Trouble):
    """The namespace goes and comes faster than it is pinged."""

    def __init__(self) -> None:
        self._spells: list[Spell] = []

    async def strike(self, stage: Stage) -> None:
        for _ in range(FLAPS):
            spells = [(one.proxy, one.proxy.begin(Spell(weather=Weather.REFUSE))) for one in stage.stations]
            self._spells += [spell for _, spell in spells]
            await asyncio.sleep(FLAP)
            for proxy, spell in spells:
                await proxy.end(spell)
            await asyncio.sleep(FLAP)

    async def repair(self, stage: Stage) -> None:
        """It is over already."""

    async def fired(self, traffic: Traffic) -> int:
        return sum(spell.fired_at(traffic.entity) for spell in self._spells)


class BrokerFaults(Trouble):
    """The namespace itself misbehaves, for the entities of the cell."""

    def __init__(self, kind: str, on: Sequence[str] = (), *, reconnect: bool = False, **more: Any) -> None:
        self._fault = {"kind": kind, "on": list(on), **more}
        self._reconnect = reconnect
        self._ids: dict[str, list[tuple[Station, int]]] = defaultdict(list)

    def targets(self, stage: Stage, traffic: Traffic) -> list[tuple[Station, str]]:
        """Where it strikes a cell."""
        return stage.targets(traffic)

    async def strike(self, stage: Stage) -> None:
        for traffic in stage.traffics:
            for station, path in self.targets(stage, traffic):
                seed = traffic.cell.seed
                answer = await station.namespace.control(
                    "POST", "faults", {**self._fault, "entity": path, "seed": seed}
                )
                self._ids[traffic.name].append((station, answer["id"]))
        if self._reconnect:  # tokens are shown and links attached when a connection is new
            for station in stage.stations:
                station.proxy.reset_all()

    async def repair(self, stage: Stage) -> None:
        for station in stage.stations:
            await station.namespace.control("DELETE", "faults")

    async def fired(self, traffic: Traffic) -> int:
        answers = [await one.namespace.control("GET", f"faults/{number}") for one, number in self._ids[traffic.name]]
        return min(int(answer["fired"]) for answer in answers)


class Kill(Trouble):
    """`kill -9` of a namespace: at a point in the life of a message if one is given, else at any moment."""

    def __init__(self, point: Point | None = None, *, tear_log: bool = False) -> None:
        self._point, self._tear_log = point, tear_log
        self._killed: list[int] = []

    async def strike(self, stage: Stage) -> None:
        waiting = [self._lie_in_wait(station) for station in stage.stations]
        for ambush in waiting:
            if ambush is not None:
                await ambush.happened.wait()
        # All at once: while one is waited for, the other one would still accept messages.
        self._killed = list(await asyncio.gather(*(station.namespace.kill() for station in stage.stations)))

    def _lie_in_wait(self, station: Station) -> Ambush | None:
        if self._point is None:
            return None
        process = station.namespace

        async def kill(pass_on: Callable[[], Awaitable[None]]) -> None:
            if self._point is Point.TRANSFER:
                # It has the message, and never gets to store it.
                process.send_signal(signal.SIGSTOP)
                with contextlib.suppress(ConnectionError):
                    await pass_on()
            process.send_signal(signal.SIGKILL)

        return station.proxy.lie_in_wait(Ambush(point=self._point, then=kill))

    async def repair(self, stage: Stage) -> None:
        for station in stage.stations:
            station.proxy.clear()
            if self._tear_log:
                for log in station.namespace.folder.glob("*-wal"):
                    with log.open("ab") as file:
                        file.write(os.urandom(GARBAGE))
        await asyncio.gather(*(station.namespace.start() for station in stage.stations))

    async def fired(self, traffic: Traffic) -> int:
        return min(self._killed, default=0)


class Refusals(Trouble):
    """Something that only shows in calls that the primary does not accept any more."""

    def __init__(self, begin: Callable[[Station], None], end: Callable[[Station], None]) -> None:
        self._begin, self._end = begin, end

    async def strike(self, stage: Stage) -> None:
        for station in stage.stations:
            self._begin(station)

    async def repair(self, stage: Stage) -> None:
        for station in stage.stations:
            self._end(station)

    async def fired(self, traffic: Traffic) -> int:
        return traffic.not_direct


def full_disk() -> Trouble:
    return Refusals(lambda one: one.namespace.fill_disk(), lambda one: one.namespace.free_disk())


def frozen() -> Trouble:
    """The process stands still, as on a machine that swaps or a virtual one that is moved."""
    return Refusals(
        lambda one: one.namespace.send_signal(signal.SIGSTOP), lambda one: one.namespace.send_signal(signal.SIGCONT)
    )


class ClockJump(Trouble):
    """Somebody sets the clock of a namespace, and it stays so: locks that are held then last longer, or less long.

    A clock that is set back was ahead before: a receiver of the SDK takes every lock for lost where the namespace is
    far behind its own clock, and would prove nothing.
    """

    spares_receivers = True

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds
        self._processes: list[NamespaceProcess] = []

    async def prepare(self, stage: Stage) -> None:
        self._processes = [station.namespace for station in stage.stations]
        for station in stage.bench.side("both"):
            station.namespace.set_clock(0)
        for process in self._processes:
            process.set_clock(max(0, -self._seconds))
        async with asyncio.timeout(CLOCK_SECONDS):
            while not await self._are_set():  # noqa: ASYNC110 - it is looked at once a second
                await asyncio.sleep(POLL)

    async def strike(self, stage: Stage) -> None:
        for process in self._processes:
            process.set_clock(process.clock + self._seconds)

    async def repair(self, stage: Stage) -> None:
        """There is nothing to repair: what matters is the jump."""

    async def fired(self, traffic: Traffic) -> int:
        return int(await self._are_set())

    async def _are_set(self) -> bool:
        errors = [await process.clock_error() - process.clock for process in self._processes]
        return all(abs(error) < abs(self._seconds) / 2 for error in errors)


class Deleted(Trouble):
    """The entity is deleted when all that it held was received, and made anew later."""

    async def strike(self, stage: Stage) -> None:
        for traffic in stage.traffics:
            traffic.pause()
        for traffic in stage.traffics:
            await traffic.received_all()
            await traffic.delete_entity()
            traffic.resume()

    async def repair(self, stage: Stage) -> None:
        for traffic in stage.traffics:
            await traffic.make_entity()

    async def fired(self, traffic: Traffic) -> int:
        return traffic.not_direct


class Idle(Trouble):
    """Nobody sends for longer than the namespace keeps an idle link."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._watched: dict[str, Ambush] = {}

    async def strike(self, stage: Stage) -> None:
        for traffic in stage.traffics:
            watch = Ambush(point=Point.DETACH, entity=traffic.entity, times=1000, resets=False)
            self._watched[traffic.name] = stage.bench.primary.proxy.lie_in_wait(watch)
            traffic.pause()
        await asyncio.sleep(self._seconds)
        for traffic in stage.traffics:
            traffic.mark()
            traffic.resume()

    async def repair(self, stage: Stage) -> None:
        stage.bench.primary.proxy.clear()

    async def fired(self, traffic: Traffic) -> int:
        return self._watched[traffic.name].fired


class Dawdling(Trouble):
    """Receivers take longer than the lock of a message lasts."""

    async def strike(self, stage: Stage) -> None:
        for traffic in stage.traffics:
            traffic.dawdles = True

    async def repair(self, stage: Stage) -> None:
        for traffic in stage.traffics:
            traffic.dawdles = False

    async def fired(self, traffic: Traffic) -> int:
        return traffic.receive_errors["MessageLockLostError"] + traffic.receive_errors["SessionLockLostError"]


class ExpiringBacklog(Trouble):
    """An outage that lasts longer than the messages of the backlog may live."""

    def __init__(self, seconds: float, enough: int = 6) -> None:
        self._seconds, self._enough = seconds, enough
        self._outage = Spells(Weather.REFUSE)

    async def strike(self, stage: Stage) -> None:
        await self._outage.strike(stage)
        for traffic in stage.traffics:
            traffic.time_to_live = self._seconds
        await until(lambda: all(one.diverted >= self._enough for one in stage.traffics), self._seconds * 4)
        for traffic in stage.traffics:
            traffic.pause()
        await asyncio.sleep(self._seconds + 1)

    async def repair(self, stage: Stage) -> None:
        for traffic in stage.traffics:
            await traffic.left()  # notes that nothing was given up before its time
            traffic.time_to_live = None
            traffic.resume()
        await self._outage.repair(stage)

    async def fired(self, traffic: Traffic) -> int:
        return min(traffic.diverted, await self._outage.fired(traffic))
