"""Counts what the syphon has done, for reports and status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class Tally:
    """Message counts of one destination: moved, dead-lettered in the backlog, and still deferred there."""

    moved: int = 0
    #: Dead-lettered: their time to live ended in the backlog.
    expired: int = 0
    #: Dead-lettered: the destination refused them.
    poison: int = 0
    #: Deferred in the backlog: the destination is down or not allowed.
    deferred: int = 0

    def add(self, other: Tally) -> None:
        self.moved += other.moved
        self.expired += other.expired
        self.poison += other.poison
        self.deferred += other.deferred


@dataclass(frozen=True, slots=True)
class DrainReport:
    """The result of a drain.

    `malformed` messages named no destination and were dead-lettered. `held` ones stayed locked by another client.
    """

    destinations: Mapping[str, Tally]
    malformed: int
    held: int
    seconds: float
    #: Backlog queues that do not exist.
    missing: tuple[str, ...] = ()
    total: Tally = field(default_factory=Tally)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was left in the backlog."""
        return self.total.deferred == 0 and self.held == 0

    def to_json(self) -> dict[str, Any]:
        """The report in plain JSON types: the contract of `twinbus syphon --json`."""
        return {
            **asdict(self.total),
            "malformed": self.malformed,
            "held": self.held,
            "seconds": round(self.seconds, 3),
            "destinations": {path: asdict(tally) for path, tally in sorted(self.destinations.items())},
            "missing": sorted(self.missing),
        }


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """One backlog queue as its pump sees it now."""

    queue: str
    is_receiving: bool
    in_flight: int
    destinations: Mapping[str, Tally]
    malformed: int
    held: int
    is_missing: bool = False


@dataclass(frozen=True, slots=True)
class SyphonStatus:
    """The state of the syphon.

    `down` are the destinations that failed when last tried, `held_back` those held back by request. `ledger_error` is
    why nothing is moved until the ledger accepts rows again; None if it works or is not required.
    """

    primary_connected: bool
    secondary_connected: bool
    queues: tuple[QueueStatus, ...]
    down: tuple[str, ...]
    held_back: tuple[str, ...] = ()
    ledger_error: str | None = None


def merge(statuses: Iterable[QueueStatus], seconds: float) -> DrainReport:
    """Merge the queues into one report."""
    destinations: dict[str, Tally] = {}
    total, malformed, held, missing = Tally(), 0, 0, []
    for status in statuses:
        malformed += status.malformed
        held += status.held
        if status.is_missing:
            missing.append(status.queue)
        for path, tally in status.destinations.items():
            destinations.setdefault(path, Tally()).add(tally)
            total.add(tally)
    return DrainReport(destinations, malformed, held, seconds, tuple(missing), total)
