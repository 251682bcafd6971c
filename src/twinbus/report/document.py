"""The report as data, from which terminal, JSON and HTML are rendered. Contract: docs/reference/report.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from twinbus.ledger.recorder import Stage
from twinbus.report.reconciliation_summary import UNKNOWN

from .cost.period_costs import Cost
from .coverage import Coverage, Span, gaps_between
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
    """The period of the report, in microseconds since the epoch."""

    since: int
    until: int
    #: Whether options chose it; otherwise it spans all rows of the results.
    is_chosen: bool = False

    def to_json(self) -> dict[str, Any]:
        return {"since": iso(self.since), "until": iso(self.until), "is_chosen": self.is_chosen, "time_zone": "UTC"}


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of the figures."""

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
    """Messages that are lost, unexpected, duplicated, …: the worst of them, and the number of all."""

    #: Rows of the table `anomalies`, with times in microseconds.
    shown: tuple[Mapping[str, Any], ...] = ()
    count: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"count": self.count, "shown": [_readable(row) for row in self.shown]}


def _readable(row: Mapping[str, Any]) -> dict[str, Any]:
    columns = {name: value for name, value in row.items() if name not in ("first_us", "last_us")}
    return {**columns, "first_at": iso(row["first_us"]), "last_at": iso(row["last_us"])}


def _outage(outage: Outage) -> dict[str, Any]:
    times = ("suspected_at", "failed_over_at", "recovered_at", "drained_at")
    return {**outage.to_json(), **{name: iso(getattr(outage, name)) for name in times}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Outages, missing messages and cost."""

    made_at: int
    source: Source
    #: None if the ledger is empty.
    period: Period | None
    headline: Headline
    #: `Summary.to_json()` of the reconciliation of the whole ledger, whatever the period. None if there was none.
    summary: Mapping[str, Any] | None
    anomalies: Anomalies
    outages: tuple[Outage, ...]
    #: Failovers by hand: no send had failed, so they are not outages.
    forced_failovers: tuple[Outage, ...]
    incidents: tuple[Incident, ...]
    #: The forced failovers, grouped as outages are.
    forced_incidents: tuple[Incident, ...]
    #: Of entities with an outage or a forced failover.
    timelines: tuple[Timeline, ...]
    backlog: Backlog
    #: The time for which the ledger has rows.
    coverage: Coverage
    latency: tuple[Percentiles, ...]
    #: None if the ledger is empty.
    cost: Cost | None
    #: Rows that the ledger says it lacks.
    dropped_rows: int
    left_out: tuple[LeftOutFile, ...]

    @property
    def moved_unseen(self) -> int:
        """Sends of a syphon, if no sender recorded a diversion: senders keep no ledger, or another one."""
        is_recorded = bool(self.outages or self.forced_failovers)
        part = self.cost.stages.get(Stage.PRIMARY_SEND) if self.cost and not is_recorded else None
        return part.operations if part else 0

    @property
    def seen_until(self) -> int:
        """Where plots end: with the period, but not after the report was made, unless clocks are ahead and rows are."""
        if self.period is None:
            return self.made_at
        latest = max(self.made_at, self.coverage.last or self.made_at)
        return min(self.period.until, latest) if latest > self.period.since else self.period.until

    @property
    def no_data(self) -> list[Span]:
        """Time of the period for which the ledger has no rows.

        If the period was not chosen, its ends are whole hours around the rows; time before the first and after the last
        row does not count then.
        """
        period, first, last = self.period, self.coverage.first, self.coverage.last
        if period is None:
            return []
        if first is None or last is None:
            return [Span(period.since, self.seen_until)]
        if period.is_chosen:
            return gaps_between(self.coverage.spans, period.since, self.seen_until)
        return gaps_between(self.coverage.spans, first, last)

    @property
    def verdict(self) -> str:
        """`valid`, `invalid` or `unknown`."""
        return self.summary["verdict"] if self.summary is not None else UNKNOWN

    @property
    def is_valid(self) -> bool | None:
        """Whether nothing is lost or unexpected; None if files could not be read, False without a reconciliation."""
        if self.headline.word is Word.UNKNOWN:
            return None
        return bool(self.summary and self.summary["valid"])

    def to_json(self) -> dict[str, Any]:
        """Return the documented contract: times in ISO 8601 and UTC, amounts of money as texts with all digits."""
        return {
            "format": FORMAT,
            "made_at": iso(self.made_at),
            "source": self.source.to_json(),
            "period": self.period.to_json() if self.period else None,
            "verdict": {**self.headline.to_json(), "valid": self.is_valid, "verdict": self.verdict},
            "reconciliation": dict(self.summary) if self.summary is not None else None,
            "anomalies": self.anomalies.to_json(),
            "incidents": [incident.to_json() for incident in self.incidents],
            "outages": [_outage(outage) for outage in self.outages],
            "forced_failovers": [_outage(forced) for forced in self.forced_failovers],
            "timeline": [timeline.to_json() for timeline in self.timelines],
            "no_data": [span.to_json() for span in self.no_data],
            "backlog": self.backlog.to_json(),
            "latency": [percentiles.to_json() for percentiles in self.latency],
            "cost": self.cost.to_json() if self.cost else None,
            "gaps": {"dropped_rows": self.dropped_rows, "left_out": [file._asdict() for file in self.left_out]},
        }
