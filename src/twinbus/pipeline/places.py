"""What is kept of each destination of a day: small enough for one file of JSON, and for the driver."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .facts import ACCEPTED, RECEIVED

_SUBSCRIPTIONS = "/subscriptions/"


@dataclass(frozen=True, slots=True)
class Path:
    """A path as a day's rows spell it; times are those of receives, in microseconds since the epoch."""

    spelt: str
    first_us: int | None
    last_us: int | None
    #: Rows that tell of gaps in what is known, repeated ones included.
    gaps: int

    @property
    def is_reporting_subscription(self) -> bool:
        """Whether receivers of a subscription have reported."""
        return self.first_us is not None and _SUBSCRIPTIONS in self.spelt.lower()


@dataclass(frozen=True, slots=True)
class Settled:
    """How many messages of a destination were done with on a day; for a subscription: how many arrived there."""

    kind: str
    destination: str
    subscription: str | None
    messages: int
    #: When the last of them was accepted.
    last_us: int | None


@dataclass(frozen=True, slots=True)
class DayPlaces:
    """All of a day."""

    paths: tuple[Path, ...]
    settled: tuple[Settled, ...]
    #: Receives of messages without an id, requests to cancel scheduled messages, and rows that the ledger lacks.
    nameless: int = 0
    cancelled: int = 0
    dropped: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> DayPlaces:
        paths = tuple(Path(**one) for one in given["paths"])
        return cls(**{**given, "paths": paths, "settled": tuple(Settled(**one) for one in given["settled"])})


def destination_of(path: str) -> str:
    """Where a message was sent that arrives at a path: a subscription's topic, or the path itself, in small letters."""
    return path.lower().partition(_SUBSCRIPTIONS)[0]


class Places:
    """What is known of all days together."""

    def __init__(self, days: Mapping[str, DayPlaces]) -> None:
        self._days = days
        #: How a path is written where it is shown, by the path in small letters.
        self.spelt: dict[str, str] = {}
        #: When receivers of a destination first and last reported.
        self.reported: dict[str, tuple[int, int]] = {}
        self.nameless = sum(day.nameless for day in days.values())
        self.cancelled = sum(day.cancelled for day in days.values())
        self.dropped = sum(day.dropped for day in days.values())
        #: Whether receivers of some subscription have reported.
        self.has_subscriptions = False
        for path in (path for day in days.values() for path in day.paths):
            self._take(path)

    def _take(self, path: Path) -> None:
        self.has_subscriptions |= path.is_reporting_subscription
        small, destination = path.spelt.lower(), destination_of(path.spelt)
        self.spelt[small] = min(path.spelt, self.spelt.get(small, path.spelt))
        topic = path.spelt[: len(destination)]
        self.spelt[destination] = min(topic, self.spelt.get(destination, topic))
        if path.first_us is not None and path.last_us is not None:
            first, last = self.reported.get(destination, (path.first_us, path.last_us))
            self.reported[destination] = min(first, path.first_us), max(last, path.last_us)

    @property
    def doubtful(self) -> list[tuple[str, str]]:
        """Days and destinations whose messages were settled by the namespace's word, but receivers reported then."""
        return sorted(
            (day, one.destination)
            for day, places in self._days.items()
            for one in places.settled
            if one.kind == ACCEPTED and self._is_doubtful(one)
        )

    def _is_doubtful(self, one: Settled) -> bool:
        reported = self.reported.get(one.destination)
        return reported is not None and (one.last_us is None or one.last_us >= reported[0])

    def settled(self) -> Counter[str]:
        """How many messages of each destination are settled."""
        found: Counter[str] = Counter()
        for one in self._all_settled():
            if one.subscription is None:
                found[one.destination] += one.messages
        return found

    def before_reports(self) -> Counter[str]:
        """Of destinations whose receivers report: how many messages were accepted before they began to."""
        found: Counter[str] = Counter()
        for one in self._all_settled():
            if one.kind == ACCEPTED and one.destination in self.reported and not self._is_doubtful(one):
                found[one.destination] += one.messages
        return found

    def arrived(self) -> defaultdict[str, Counter[str]]:
        """How many settled messages of each topic arrived at each of its subscriptions."""
        found: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for one in self._all_settled():
            if one.subscription is not None and one.kind == RECEIVED:
                found[one.destination][one.subscription] += one.messages
        return found

    def _all_settled(self) -> Iterable[Settled]:
        return (one for day in self._days.values() for one in day.settled)
