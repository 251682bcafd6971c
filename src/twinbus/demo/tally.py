"""Counts sends and arrivals of the demo, independently of the ledger."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Verdict:
    """Number of messages per outcome, counted by id. Final once everything was received.

    The words mean what they mean in the reconciliation of the ledger (`twinbus.tables.verdict`).
    """

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
    """Records attempts, acknowledgements and arrivals, and reconciles them."""

    #: Where messages of each entity are received: the queue itself, or each subscription of a topic.
    receiving_paths: dict[str, tuple[str, ...]]
    _attempted: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _acknowledged: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    #: Sequence numbers by path and id. A redelivery has the same number, so it is not a duplicate.
    _received: dict[str, dict[str, set[int]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))
    by_route: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def attempt(self, entity: str, message_id: str) -> None:
        self._attempted[entity].add(message_id)

    def acknowledge(self, entity: str, message_id: str, route: str) -> None:
        self._acknowledged[entity].add(message_id)
        self.by_route[entity][route] += 1

    def receive(self, path: str, message_id: str, sequence_number: int) -> None:
        self._received[path][message_id].add(sequence_number)

    def received(self, entity: str) -> int:
        """Return how many messages of an entity arrived on every receiving path."""
        return min(len(self._received[path]) for path in self.receiving_paths[entity])

    @property
    def missing(self) -> int:
        """The number of acknowledged messages that have not arrived, summed over the receiving paths."""
        return sum(
            len(self._acknowledged[entity] - self._received[path].keys())
            for entity, paths in self.receiving_paths.items()
            for path in paths
        )

    def verdict(self) -> Verdict:
        attempted = acknowledged = ok = lost = unexpected = duplicated = 0
        for entity, paths in self.receiving_paths.items():
            attempts, acks = self._attempted[entity], self._acknowledged[entity]
            everywhere = set.intersection(*(set(self._received[path]) for path in paths))
            anywhere = set.union(*(set(self._received[path]) for path in paths))
            attempted += len(attempts)
            acknowledged += len(acks)
            ok += len(attempts & everywhere)
            lost += len(acks - everywhere)
            unexpected += len(anywhere - attempts)
            twice = {name for path in paths for name, numbers in self._received[path].items() if len(numbers) > 1}
            duplicated += len(twice)
        return Verdict(attempted, acknowledged, ok, lost, unexpected, duplicated)
