"""What the syphon has done, in numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class Tally:
    """Messages of one destination: moved, dead-lettered in the backlog, and still there."""

    moved: int = 0
    #: Their time to live ended in the backlog.
    expired: int = 0
    #: The destination refused them.
    poison: int = 0
    #: Set aside in the backlog: the destination is down or not allowed.
    parked: int = 0

    def add(self, other: Tally) -> None:
        self.moved += other.moved
        self.expired += other.expired
        self.poison += other.poison
        self.parked += other.parked


@dataclass(frozen=True, slots=True)
class DrainReport:
    """What came of a drain. `malformed` messages said nothing of their destination and were dead-lettered; `held` ones
    were locked by somebody else to the end."""

    destinations: Mapping[str, Tally]
    malformed: int
    held: int
    seconds: float
    #: Backlog queues that do not exist: nothing is in them.
    missing: tuple[str, ...] = ()
    total: Tally = field(default_factory=Tally)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was left in the backlog."""
        return self.total.parked == 0 and self.held == 0

    def to_json(self) -> dict[str, Any]:
        """The same in plain JSON types: the contract of `twinbus syphon --json`."""
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
    """One backlog queue, as its pump sees it now."""

    queue: str
    is_receiving: bool
    in_flight: int
    destinations: Mapping[str, Tally]
    malformed: int
    held: int
    is_missing: bool = False


@dataclass(frozen=True, slots=True)
class SyphonStatus:
    """The syphon as it is now.

    `down` are the destinations that failed when last tried, `held_back` those that are left alone by order.
    `ledger_error` is why nothing is moved until the ledger takes rows again; None if it does, or need not.
    """

    primary_connected: bool
    secondary_connected: bool
    queues: tuple[QueueStatus, ...]
    down: tuple[str, ...]
    held_back: tuple[str, ...] = ()
    ledger_error: str | None = None


def merge(statuses: Iterable[QueueStatus], seconds: float) -> DrainReport:
    """One report of all queues."""
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
