"""A report as data: what every form of it (terminal, JSON, HTML) is made of. Contract: docs/reference/report.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from twinbus.ledger.recorder import Stage
from twinbus.report.reconciliation_summary import UNKNOWN

from .cost.period_costs import Cost
from .headline import Headline, Word
from .incidents import Backlog, Incident, Timeline
from .render.formats import iso

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinbus.report.outages import Outage
    from twinbus.report.percentiles import Percentiles

#: Within a format keys are only added.
FORMAT = 1


class LeftOutFile(NamedTuple):
    """A file of the ledger whose rows are not in the tables, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Period:
    """What the report is about, in microseconds since the epoch."""

    since: int
    until: int
    #: Whether somebody asked for it; else it is all that the results have.
    is_chosen: bool = False

    def to_json(self) -> dict[str, Any]:
        return {"since": iso(self.since), "until": iso(self.until), "is_chosen": self.is_chosen, "time_zone": "UTC"}


@dataclass(frozen=True, slots=True)
class Source:
    """Where the figures come from."""

    results: str
    #: The number of the generation.
    snapshot: int
    #: When the pipeline ran.
    made_at: int | None
    rows: int
    files: int
    versions: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        return {
            "results": self.results,
            "snapshot": self.snapshot,
            "made_at": iso(self.made_at),
            "rows": self.rows,
            "files": self.files,
            "versions": dict(self.versions),
        }


@dataclass(frozen=True, slots=True)
class Anomalies:
    """Messages that are lost, unexpected, duplicated, …: the worst of them, and how many there are in all."""

    #: Rows of the table `anomalies`, with times in microseconds.
    shown: tuple[Mapping[str, Any], ...] = ()
    count: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"count": self.count, "shown": [_readable(one) for one in self.shown]}


def _readable(row: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in row.items() if name not in ("first_us", "last_us")}
    return {**found, "first_at": iso(row["first_us"]), "last_at": iso(row["last_us"])}


def _outage(outage: Outage) -> dict[str, Any]:
    times = ("suspected_at", "failed_over_at", "recovered_at", "drained_at")
    return {**outage.to_json(), **{name: iso(getattr(outage, name)) for name in times}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What happened, whether anything is missing, and what it cost."""

    made_at: int
    source: Source
    #: None if the ledger is empty.
    period: Period | None
    headline: Headline
    #: `Summary.to_json()` of the reconciliation: about the whole ledger, whatever the period. None if there was none.
    summary: Mapping[str, Any] | None
    anomalies: Anomalies
    outages: tuple[Outage, ...]
    incidents: tuple[Incident, ...]
    timelines: tuple[Timeline, ...]
    backlog: Backlog
    latency: tuple[Percentiles, ...]
    #: None if the ledger is empty.
    cost: Cost | None
    #: Rows that the ledger says it lacks.
    dropped_rows: int
    left_out: tuple[LeftOutFile, ...]

    @property
    def moved_unseen(self) -> int:
        """Messages that were brought home though no sender tells of an outage: senders kept no ledger, or another."""
        part = self.cost.stages.get(Stage.PRIMARY_SEND) if self.cost and not self.outages else None
        return part.operations if part else 0

    @property
    def verdict(self) -> str:
        """`valid`, `invalid` or `unknown`."""
        return self.summary["verdict"] if self.summary is not None else UNKNOWN

    @property
    def is_valid(self) -> bool | None:
        """Nothing lost, nothing unexpected; None if files could not be read, False if nobody has looked."""
        if self.headline.word is Word.UNKNOWN:
            return None
        return bool(self.summary and self.summary["valid"])

    def to_json(self) -> dict[str, Any]:
        """The documented contract: times in ISO 8601 and UTC, amounts of money as texts with all their digits."""
        return {
            "format": FORMAT,
            "made_at": iso(self.made_at),
            "source": self.source.to_json(),
            "period": self.period.to_json() if self.period else None,
            "verdict": {**self.headline.to_json(), "valid": self.is_valid, "verdict": self.verdict},
            "reconciliation": dict(self.summary) if self.summary is not None else None,
            "anomalies": self.anomalies.to_json(),
            "incidents": [one.to_json() for one in self.incidents],
            "outages": [_outage(one) for one in self.outages],
            "timeline": [one.to_json() for one in self.timelines],
            "backlog": self.backlog.to_json(),
            "latency": [one.to_json() for one in self.latency],
            "cost": self.cost.to_json() if self.cost else None,
            "gaps": {"dropped_rows": self.dropped_rows, "left_out": [one._asdict() for one in self.left_out]},
        }
