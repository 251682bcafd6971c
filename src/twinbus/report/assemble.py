"""Assemble a report from the result tables. Needs neither Spark nor Java."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from twinbus.report.cost.billing import Contract
from twinbus.report.cost.prices import PriceBook
from twinbus.report.cost.usage_bill import Period as Hours
from twinbus.report.outages import Outage, events_of, outages_and_forced_failovers
from twinbus.report.percentiles import percentiles
from twinbus.tables.activity import ActivityKind
from twinbus.tables.result_reader import Results, open_results

from .cost.period_costs import EPOCH, Cost, Views, summed_cost, views_of
from .coverage import Coverage, coverage_of
from .document import Anomalies, Period, Report, Source
from .headline import headline_of
from .incidents import Backlog, depth_of, incidents_of, spread, timelines_of
from .reconciliation import summary_of
from .render.formats import place
from .report_inputs import LISTED, ReportTables, read_tables

__all__ = ["Wishes", "assemble", "open_results"]

_MICROSECOND = timedelta(microseconds=1)
#: Longest period that can be chosen: each month of it is billed.
LONGEST = timedelta(days=3_660)
#: Messages that a report lists; the table `anomalies` has all.
ANOMALIES = 200
_STORED = frozenset({ActivityKind.DIVERTED})
#: Without `COMPLETED`: a killed syphon may lose those rows, but never rows of moves.
_GONE = frozenset({ActivityKind.MOVED, ActivityKind.EXPIRED, ActivityKind.POISON})


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """Options of a report. Times are whole hours in UTC."""

    book: PriceBook
    contract: Contract = field(default_factory=Contract)
    since: datetime | None = None
    until: datetime | None = None
    #: Number of subscriptions of each topic.
    subscriptions: Mapping[str, int] = field(default_factory=dict)
    #: Whether to include the latency of each entity.
    is_detailed: bool = True


def assemble(
    results: Results,
    wishes: Wishes,
    *,
    now: datetime | None = None,
    patience: float | None = None,
    on_wait: Callable[[], None] | None = None,
) -> Report:
    """Read the tables and assemble the report.

    Args:
        now: The time at which the report is made; the current time by default.
        patience: Seconds to wait for a run that is writing the tables.
        on_wait: Called once before waiting.

    Raises:
        ValueError: The period ends before it begins, or a number of subscriptions is out of bounds.
        PriceError: The book lacks a tier of the contract.
        TablesError: The tables cannot be read, or are being written.
    """
    tables = read_tables(
        results,
        lambda known: _period(known, wishes),
        since=wishes.since,
        until=wishes.until,
        anomalies=ANOMALIES,
        patience=patience,
        on_wait=on_wait,
    )
    return _Assembly(tables, place(results.url), wishes, now or datetime.now(UTC)).report()


def _period(known: Hours | None, wishes: Wishes) -> Hours | None:
    """Return the period of the report; `known` is the period of all rows."""
    if known is None:
        return None
    since, until = wishes.since or known.since, wishes.until or known.until
    if since >= until:
        name, bound = ("--until", f"later than {since:%Y-%m-%dT%H:%M}")
        if wishes.until is None:
            name, bound = "--since", f"earlier than {until:%Y-%m-%dT%H:%M}, where the results end"
        raise ValueError(f"{name} must be {bound} (UTC)")
    if until - since > LONGEST and (wishes.since or wishes.until):
        raise ValueError(f"--since and --until must be at most {LONGEST.days:,} days apart")
    return Hours(since, until)


class _Assembly:
    """Assembles one report."""

    def __init__(self, tables: ReportTables, url: str, wishes: Wishes, now: datetime) -> None:
        self._tables = tables
        self._url = url
        self._wishes = wishes
        self._made_at = _us(now)
        hours = tables.period
        is_chosen = wishes.since is not None or wishes.until is not None
        self._period = Period(_us(hours.since), _us(hours.until), is_chosen) if hours else None

    def report(self) -> Report:
        tables = self._tables
        reconciled = summary_of(tables)
        summary = reconciled.to_json() if reconciled is not None else None
        episodes = outages_and_forced_failovers(tables.activity, tables.backlog_time)
        coverage = coverage_of(tables.usage, {(episode.pairing, episode.entity) for episode in episodes})
        episodes = self._within_period(episodes, coverage)
        outages = tuple(episode for episode in episodes if not episode.is_forced)
        forced = tuple(episode for episode in episodes if episode.is_forced)
        dropped, rows = tables.facts.total("dropped"), tables.facts.total("rows")
        return Report(
            made_at=self._made_at,
            source=self._source(rows),
            period=self._period,
            headline=headline_of(summary, dropped_rows=dropped, left_out=tables.inputs.statuses, rows=rows),
            summary=summary,
            anomalies=self._anomalies(summary),
            outages=outages,
            forced_failovers=forced,
            incidents=tuple(incidents_of(outages)),
            forced_incidents=tuple(incidents_of(forced)),
            timelines=tuple(timelines_of(episodes)),
            backlog=self._backlog(),
            coverage=coverage,
            latency=tuple(percentiles(tables.latency, by_entity=self._wishes.is_detailed)),
            cost=self._cost(),
            dropped_rows=dropped,
            left_out=tables.inputs.left_out,
        )

    def _source(self, rows: int) -> Source:
        generation = self._tables.generation
        return Source(
            results=self._url,
            snapshot=generation.number,
            made_at=_us(generation.started) if generation.started else None,
            rows=rows,
            files=self._tables.inputs.files,
            versions={"twinbus": generation.twinbus, "spark": generation.spark},
        )

    def _anomalies(self, summary: Mapping[str, Any] | None) -> Anomalies:
        if summary is None or self._tables.anomalies is None:
            return Anomalies()
        return Anomalies(self._tables.anomalies.shown, sum(summary[word] for word in LISTED))

    def _within_period(self, outages: list[Outage], coverage: Coverage) -> list[Outage]:
        """Return the outages that overlap the period. They are not cut. An open one is known to last until now."""
        if self._period is None:
            return []
        since, until = self._period.since, self._period.until
        now = min(until, max(self._made_at, coverage.last or self._made_at))
        return [outage for outage in outages if outage.suspected_at < until and _end(outage, now) >= since]

    def _backlog(self) -> Backlog:
        if self._period is None:
            return Backlog(())
        changes = (
            ((pairing, entity), at, part if event.kind in _STORED else -part)
            for pairing, entity, event in events_of(self._tables.activity)
            if event.kind in _STORED or event.kind in _GONE
            for at, part in spread(event.first_us, event.last_us, event.number)
        )
        return depth_of(changes).within(self._period.since, self._period.until)

    def _cost(self) -> Cost | None:
        """Return the bill of the period. Only time that rows cover is charged: see docs/explanation/cost.md."""
        facts, period = self._tables.facts, self._tables.period
        if period is None or facts.period is None:
            return None
        wishes = self._wishes
        billed = facts.period.within(period)
        if billed is None:
            no_usage = Views((), (), ())
            return summed_cost(no_usage, wishes.book, wishes.contract, since=period.since, until=period.until, days=())
        views = views_of(self._tables.usage, billed.since, wishes.subscriptions)
        return summed_cost(views, wishes.book, wishes.contract, since=billed.since, until=billed.until, days=facts.days)


def _end(outage: Outage, until: int) -> int:
    """Return the time at which an outage was over; `until` if it is not."""
    ends = [outage.recovered_at, outage.drained_at] if outage.diverted else [outage.recovered_at]
    return max(until if end is None else end for end in ends)


def _us(at: datetime) -> int:
    return (at - EPOCH) // _MICROSECOND
