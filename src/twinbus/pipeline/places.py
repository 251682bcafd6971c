"""What is kept of each destination of a day: small enough for one file of JSON, and for the driver."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .facts import ACCEPTED, OPEN, RECEIVED


@dataclass(frozen=True, slots=True)
class Place:
    """How many messages of one kind a destination has in a slice; of a subscription, how many arrived there.

    Of open messages the rows are counted. Times are microseconds since the epoch.
    """

    kind: str
    destination: str
    subscription: str | None
    messages: int
    #: When the last of them was accepted.
    accepted_us: int | None
    #: When the first and the last of them was received.
    first_us: int | None
    last_us: int | None


@dataclass(frozen=True, slots=True)
class DayPlaces:
    """All of a day."""

    places: tuple[Place, ...]
    #: How paths are written that have capital letters, by the path in small ones.
    spelt: Mapping[str, str]
    #: Requests to cancel scheduled messages, and rows that the ledger lacks.
    cancelled: int
    dropped: int

    @classmethod
    def of(cls, parts: Iterable[DayPlaces]) -> DayPlaces:
        """What the slices of a day say together."""
        found = cls((), {}, 0, 0)
        for one in parts:
            spelt = {small: min(path, found.spelt.get(small, path)) for small, path in one.spelt.items()}
            found = cls(
                found.places + one.places,
                {**found.spelt, **spelt},
                found.cancelled + one.cancelled,
                found.dropped + one.dropped,
            )
        return found

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> DayPlaces:
        return cls(**{**given, "places": tuple(Place(**one) for one in given["places"])})


class Places:
    """What is known of all days together."""

    def __init__(self, days: Mapping[str, DayPlaces]) -> None:
        self._days = days
        #: How a path is written where it is shown, if it has capital letters.
        self.spelt: dict[str, str] = {}
        #: When receivers of a destination first and last reported.
        self.reported: dict[str, tuple[int, int]] = {}
        self.cancelled = sum(day.cancelled for day in days.values())
        self.dropped = sum(day.dropped for day in days.values())
        #: What is kept: one row for each settled message and place, and those of open ones.
        self.rows = sum(one.messages for day in days.values() for one in day.places)
        for day in days.values():
            self.spelt |= day.spelt
            for one in day.places:
                if one.first_us is not None and one.last_us is not None:
                    first, last = self.reported.get(one.destination, (one.first_us, one.last_us))
                    self.reported[one.destination] = min(first, one.first_us), max(last, one.last_us)

    @property
    def doubtful(self) -> list[tuple[str, str]]:
        """Days and destinations whose messages were settled by the namespace's word, but receivers reported then."""
        return sorted(
            (day, one.destination)
            for day, places in self._days.items()
            for one in places.places
            if one.kind == ACCEPTED and self._is_doubtful(one)
        )

    def _is_doubtful(self, one: Place) -> bool:
        reported = self.reported.get(one.destination)
        return reported is not None and (one.accepted_us is None or one.accepted_us >= reported[0])

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

    def _all_settled(self) -> Iterable[Place]:
        return (one for day in self._days.values() for one in day.places if one.kind != OPEN)
