"""Faults of a soak, drawn from a seed: one after the other, at one namespace or at both at once."""

from __future__ import annotations

import random
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from .matrix_bench import Bench, Station
from .proxy import Ambush, Passing, Spell, Weather
from .proxy_frames import Point

Side = Literal["primary", "secondary"]

#: Seconds that a fault lasts, and that nothing goes wrong after it.
LASTS = 0.5, 6.0
CALM = 2.0, 8.0
TIMES = 3  # that an ambush strikes
WHERE = "primary", "primary", "backlog", "both"


class Strike(ABC):
    """One fault at one namespace."""

    @abstractmethod
    async def begin(self, station: Station) -> None: ...

    @abstractmethod
    async def end(self, station: Station) -> int:
        """Let it be over; how often it really struck something."""


class InWeather(Strike):
    """A network that does something to whatever passes."""

    def __init__(self, weather: Weather, delay: float = 0.0) -> None:
        self._spell = Spell(weather=weather, delay=delay)

    async def begin(self, station: Station) -> None:
        station.proxy.begin(self._spell)

    async def end(self, station: Station) -> int:
        await station.proxy.end(self._spell)
        return self._spell.fired


class InAmbush(Strike):
    """Connections that are reset at a point in the life of a message."""

    def __init__(self, point: Point, passing: Passing) -> None:
        self._ambush = Ambush(point=point, passing=passing, times=TIMES)

    async def begin(self, station: Station) -> None:
        station.proxy.lie_in_wait(self._ambush)

    async def end(self, station: Station) -> int:
        station.proxy.ambushes.remove(self._ambush)
        return self._ambush.fired


class ByNamespace(Strike):
    """A namespace that misbehaves; see `broker/faults.py`."""

    def __init__(self, kind: str, on: str, probability: float, seed: int) -> None:
        self._fault: dict[str, Any] = {"kind": kind, "on": [on], "probability": probability, "seed": seed}
        self._id = 0

    async def begin(self, station: Station) -> None:
        self._id = (await station.namespace.control("POST", "faults", self._fault))["id"]

    async def end(self, station: Station) -> int:
        fired = (await station.namespace.control("GET", f"faults/{self._id}"))["fired"]
        await station.namespace.control("DELETE", f"faults/{self._id}")
        return int(fired)


class Frozen(Strike):
    """A process that stands still."""

    async def begin(self, station: Station) -> None:
        station.namespace.send_signal(signal.SIGSTOP)

    async def end(self, station: Station) -> int:
        station.namespace.send_signal(signal.SIGCONT)
        return 1


def _weather(chance: random.Random) -> Strike:
    return InWeather(chance.choice(list(Weather)), delay=chance.uniform(0.01, 0.5))


def _ambush(chance: random.Random) -> Strike:
    point = chance.choice((Point.TRANSFER, Point.OUTCOME, Point.DELIVERY, Point.SETTLEMENT))
    passing: tuple[Passing, ...] = ("nothing", "half", "all")
    return InAmbush(point, chance.choice(passing))


def _namespace(chance: random.Random) -> Strike:
    kind, on = chance.choice(
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
    return ByNamespace(kind, on, chance.choice((0.1, 0.5, 0.9)), chance.randrange(1 << 16))


def _frozen(_: random.Random) -> Strike:
    return Frozen()


_KINDS: tuple[Callable[[random.Random], Strike], ...] = (_weather, _weather, _ambush, _ambush, _namespace, _frozen)


@dataclass(frozen=True, slots=True)
class Spate:
    """What goes wrong at one moment, at which side each, for how long, and how long all is well after it."""

    strikes: tuple[tuple[Side, Strike], ...]
    seconds: float
    calm: float

    async def begin(self, bench: Bench) -> None:
        for side, strike in self.strikes:
            await strike.begin(*bench.side(side))

    async def end(self, bench: Bench) -> int:
        """How many of the strikes really struck."""
        return sum([bool(await strike.end(*bench.side(side))) for side, strike in self.strikes])


def spates(seed: int) -> Iterator[Spate]:
    """Without end, and the same for the same seed."""
    chance = random.Random(seed)

    def drawn() -> Strike:
        return chance.choice(_KINDS)(chance)

    while True:
        match chance.choice(WHERE):
            case "primary":
                strikes: tuple[tuple[Side, Strike], ...] = (("primary", drawn()),)
            case "backlog":  # which is used only while the primary is away
                strikes = ("primary", InWeather(Weather.REFUSE)), ("secondary", drawn())
            case _:
                strikes = ("primary", drawn()), ("secondary", drawn())
        yield Spate(strikes, chance.uniform(*LASTS), chance.uniform(*CALM))
