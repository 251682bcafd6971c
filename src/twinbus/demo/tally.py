"""What senders were told and what receivers got, counted independently of the ledger."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Verdict:
    """Each message by its id, in the words of a queue checker. Valid once everything was received."""

    attempted: int
    acknowledged: int
    ok: int
    lost: int
    unexpected: int
    duplicated: int

    def to_json(self) -> dict[str, int]:
        return asdict(self)


@dataclass(slots=True)
class Tally:
    """Counts as it goes. A place is where messages of an entity are received: the queue, or each subscription."""

    #: Of each entity.
    places: dict[str, tuple[str, ...]]
    _attempted: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _acknowledged: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    #: By place and id: the sequence numbers it came under. One that comes again under the same is no second message.
    _received: dict[str, dict[str, set[int]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))
    by_route: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def attempt(self, entity: str, message_id: str) -> None:
        self._attempted[entity].add(message_id)

    def acknowledge(self, entity: str, message_id: str, route: str) -> None:
        self._acknowledged[entity].add(message_id)
        self.by_route[entity][route] += 1

    def receive(self, place: str, message_id: str, number: int) -> None:
        self._received[place][message_id].add(number)

    def received(self, entity: str) -> int:
        """How many messages of an entity have arrived at all its places."""
        return min(len(self._received[place]) for place in self.places[entity])

    @property
    def missing(self) -> int:
        """Acknowledged messages that some place has not got."""
        return sum(
            len(self._acknowledged[entity] - self._received[place].keys())
            for entity, places in self.places.items()
            for place in places
        )

    def verdict(self) -> Verdict:
        attempted = acknowledged = ok = lost = unexpected = duplicated = 0
        for entity, places in self.places.items():
            tried, told = self._attempted[entity], self._acknowledged[entity]
            everywhere = set.intersection(*(set(self._received[place]) for place in places))
            anywhere = set.union(*(set(self._received[place]) for place in places))
            attempted += len(tried)
            acknowledged += len(told)
            ok += len(told & everywhere)
            lost += len(told - everywhere)
            unexpected += len(anywhere - tried)
            twice = {name for place in places for name, numbers in self._received[place].items() if len(numbers) > 1}
            duplicated += len(twice)
        return Verdict(attempted, acknowledged, ok, lost, unexpected, duplicated)
