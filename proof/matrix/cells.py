"""Defines a cell of the fault matrix (fault, place, workload) and its result."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from ..checker import Verdict
from .matrix_bench import ProfileName

Where = Literal["primary", "secondary", "both"]
Work = Literal["single", "batch", "topic", "session", "scheduled"]

WORKS: tuple[Work, ...] = ("single", "batch", "topic", "session", "scheduled")


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell. `detects`: the destination has duplicate detection. Sessions are sent in order."""

    fault: str
    where: Where
    work: Work
    detects: bool
    profile: ProfileName
    seed: int

    @property
    def name(self) -> str:
        detection = "dd" if self.detects else "no-dd"
        return f"{self.profile}/{self.fault}/{self.where}/{self.work}/{detection}"


@dataclass(slots=True)
class Result:
    """The result of a cell: the checker's counts and some figures of its own."""

    cell: Cell
    fired: int = 0
    verdict: Verdict | None = None
    #: Messages accepted by the backlog.
    diverted: int = 0
    #: Calls that raised, by exception name.
    refused: dict[str, int] = field(default_factory=dict)
    #: Seconds from the fault to the first message accepted by the backlog, for each sender that had one.
    failover_seconds: list[float] = field(default_factory=list)
    drain_seconds: float = 0.0
    #: Broken promises; empty if the cell is good.
    problems: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        counts = self.verdict.counts() if self.verdict is not None else {}
        cell = self.cell
        return {
            "cell": cell.name,
            "fault": cell.fault,
            "where": cell.where,
            "work": cell.work,
            "duplicate_detection": cell.detects,
            "profile": cell.profile,
            "seed": cell.seed,
            "fired": self.fired,
            **{word: counts.get(word) for word in _WORDS},
            "diverted": self.diverted,
            "refused": dict(sorted(self.refused.items())),
            "failover_p50": quantile(self.failover_seconds, 0.5),
            "failover_p99": quantile(self.failover_seconds, 0.99),
            "drain_seconds": round(self.drain_seconds, 3),
            "problems": self.problems,
        }


_WORDS = (
    "attempted",
    "acknowledged",
    "ok",
    "lost",
    "unexpected",
    "duplicated",
    "recovered",
    "dead_lettered",
    "altered",
    "order_violations",
)


def quantile(values: list[float], share: float) -> float | None:
    """The smallest value that is at least as large as `share` of all values; `None` without values."""
    if not values:
        return None
    ordered = sorted(values)
    return round(ordered[math.ceil(share * len(ordered)) - 1], 3)
