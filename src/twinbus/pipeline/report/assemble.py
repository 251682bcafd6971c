"""Makes a report from the store of results. Needs neither Spark nor Java."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from twinbus.ledger.schema import pa, pc
from twinbus.pipeline.billing import Contract
from twinbus.pipeline.cost import Period as Hours
from twinbus.pipeline.cost import period_of, usage_table
from twinbus.pipeline.errors import NoResults, PipelineError, ResultsDamaged
from twinbus.pipeline.latency import Percentiles, percentiles
from twinbus.pipeline.outages import Outage, outages_of
from twinbus.pipeline.prices import PriceBook, PriceError
from twinbus.pipeline.results import Results, Snapshot, default_results
from twinbus.pipeline.tables import ACTIVITY, LATENCY, WAITS, Happening

from .anomalies import read_anomalies
from .costs import EPOCH, Cost, summed_cost, views_of
from .document import Anomalies, Aside, Period, Report, Source
from .formats import place
from .happenings import Backlog, depth_of, incidents_of, spread, timelines_of
from .headline import Headline, headline_of

_MICROSECOND = timedelta(microseconds=1)
#: The longest period that may be asked for: each month of it is billed.
LONGEST = timedelta(days=3_660)
#: How many messages a report lists one by one; the tables of reconciliation have all.
ANOMALIES = 200
_CAME = frozenset({Happening.DIVERTED})
#: Not the completed ones: those rows may be lost with a killed syphon, and those of moves never are.
_WENT = frozenset({Happening.MOVED, Happening.EXPIRED, Happening.POISON})


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What somebody wants to know. Times are whole hours in UTC."""

    book: PriceBook
    contract: Contract = field(default_factory=Contract)
    since: datetime | None = None
    until: datetime | None = None
    #: How many subscriptions each topic has.
    subscriptions: Mapping[str, int] = field(default_factory=dict)
    #: Whether latency is wanted of each entity, too.
    is_detailed: bool = True


class Opened(NamedTuple):
    """Results, and the newest snapshot of them that can be read."""

    results: Results
    snapshot: Snapshot
    #: Whether there is a newer one, which cannot.
    is_outdated: bool = False


def open_results(url: str) -> Opened:
    """The results at a place, or those of the ledger at that place.

    Raises:
        NoResults: There are none.
        ResultsOfLaterRelease: A later release of twinbus has made them.
        ResultsDamaged: The newest snapshot has not the form of one, or none can be read.
        ValueError: It is no place for results.
    """
    for one in (url, default_results(url)):
        results = Results.open(one)
        newest = results.highest()
        try:
            snapshot = results.latest()
        except (KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
            raise ResultsDamaged(f"snapshot {newest} has not the form of one") from error
        if snapshot is not None:
            return Opened(results, snapshot, snapshot.number < newest)
        if newest:
            raise ResultsDamaged("no snapshot can be read")
    places = f"{place(url)}, nor at {place(default_results(url))}"
    raise NoResults(f"there are no results at {places}: run `twinbus pipeline run` first")


def assemble(opened: Opened, wishes: Wishes, *, now: datetime | None = None) -> Report:
    """Make the report.

    Raises:
        ValueError: The period ends before it begins, or a number of subscriptions is out of bounds.
        PriceError: The book lacks a tier of the contract.
        ResultsDamaged: A table is missing or cannot be read.
    """
    period = _period(opened.snapshot, wishes)
    with _damage_in_a_line():
        return _Assembling(opened, wishes, period).report(now or datetime.now(UTC))


def _period(snapshot: Snapshot, wishes: Wishes) -> Hours | None:
    known = period_of(snapshot)
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


class _Assembling:
    """One report in the making."""

    def __init__(self, opened: Opened, wishes: Wishes, hours: Hours | None) -> None:
        self._results, self._snapshot, self._is_outdated = opened
        self._wishes = wishes
        self._hours = hours
        is_chosen = wishes.since is not None or wishes.until is not None
        self._period = Period(_us(hours.since), _us(hours.until), is_chosen) if hours else None

    def report(self, now: datetime) -> Report:
        snapshot, period = self._snapshot, self._period
        kept = snapshot.reconciliation
        summary = kept["summary"] if kept is not None else None
        activity = self._results.table(snapshot.paths("activity"), ACTIVITY)
        outages = self._outages(activity)
        rows = sum(day.rows for day in snapshot.days.values())
        return Report(
            made_at=_us(now),
            source=self._source(rows),
            period=period,
            headline=self._headline(summary, rows),
            summary=summary,
            anomalies=Anomalies() if kept is None else self._anomalies(kept),
            outages=outages,
            incidents=tuple(incidents_of(outages)),
            timelines=tuple(timelines_of(outages)),
            backlog=self._backlog(activity),
            latency=self._latency(),
            cost=self._cost(),
            dropped_rows=snapshot.dropped,
            set_aside=tuple(Aside(one.path, one.reason) for one in snapshot.set_aside),
        )

    def _headline(self, summary: Mapping[str, Any] | None, rows: int) -> Headline:
        found = headline_of(
            summary, dropped_rows=self._snapshot.dropped, set_aside=len(self._snapshot.set_aside), rows=rows
        )
        if self._is_outdated:
            older = "There are newer results, which cannot be read: run `twinbus pipeline run` again."
            return replace(found, details=(*found.details, older))
        return found

    def _source(self, rows: int) -> Source:
        snapshot = self._snapshot
        started = run_started(snapshot.run)
        return Source(
            results=place(self._results.url),
            snapshot=snapshot.number,
            made_at=_us(started) if started else None,
            rows=rows,
            files=sum(day.files for day in snapshot.days.values()),
            versions=snapshot.versions,
        )

    def _anomalies(self, kept: Mapping[str, Any]) -> Anomalies:
        return read_anomalies(self._results, kept["anomalies"], kept["summary"], ANOMALIES)

    def _outages(self, activity: pa.Table) -> tuple[Outage, ...]:
        """Those that touch the period, whole."""
        if self._period is None:
            return ()
        waits = self._results.table(self._snapshot.paths("waits"), WAITS)
        since, until = self._period.since, self._period.until
        return tuple(
            one for one in outages_of(activity, waits) if one.suspected_at < until and _end(one, until) >= since
        )

    def _backlog(self, activity: pa.Table) -> Backlog:
        if self._period is None:
            return Backlog(())
        names = ("pairing", "entity", "first_us", "last_us", "kind", "count")
        rows = zip(*(activity[one].to_pylist() for one in names), strict=True)
        changes = (
            ((pairing, entity), moment, part if kind in _CAME else -part)
            for pairing, entity, first, last, kind, count in rows
            if kind in _CAME or kind in _WENT
            for moment, part in spread(first, last, count)
        )
        return depth_of(changes).within(self._period.since, self._period.until)

    def _latency(self) -> tuple[Percentiles, ...]:
        if self._hours is None or self._period is None:
            return ()
        paths = self._snapshot.paths("latency", self._hours.first_day, self._hours.last_day)
        table = self._results.table(paths, LATENCY)
        hours = table["hour_us"]
        mine = pc.and_(pc.greater_equal(hours, self._period.since), pc.less(hours, self._period.until))
        return tuple(percentiles(table.filter(mine), by_entity=self._wishes.is_detailed))

    def _cost(self) -> Cost | None:
        if self._hours is None:
            return None
        wishes, hours = self._wishes, self._hours
        views = views_of(usage_table(self._results, self._snapshot, hours), hours.since, wishes.subscriptions)
        return summed_cost(views, wishes.book, wishes.contract, since=hours.since, until=hours.until)


def run_started(run: str) -> datetime | None:
    """When a run began, which its name says; None if it does not."""
    try:
        return datetime.strptime(run.partition("-")[0], "%Y%m%dT%H%M%S.%fZ").replace(tzinfo=UTC)
    except ValueError:
        return None


def _end(outage: Outage, until: int) -> int:
    """When it was over; one that is not, ends with the period."""
    ends = [outage.recovered_at, outage.drained_at] if outage.diverted else [outage.recovered_at]
    return max(until if one is None else one for one in ends)


def _us(moment: datetime) -> int:
    return (moment - EPOCH) // _MICROSECOND


@contextmanager
def _damage_in_a_line() -> Iterator[None]:
    """A table that a snapshot names must be there and be one."""
    try:
        yield
    except (PriceError, PipelineError):
        raise
    except FileNotFoundError as error:
        raise ResultsDamaged(f"{error.filename or error} is missing") from error
    except (pa.ArrowException, KeyError) as error:
        raise ResultsDamaged(f"a table cannot be read ({type(error).__name__})") from error
