"""Read the result tables that a report needs, all of one generation."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from twinbus.ledger.schema import pa, pc
from twinbus.report.cost.usage_bill import Period, days_of, hours_within, period_of
from twinbus.tables.arrow_schemas import arrow_schema, micros
from twinbus.tables.result_reader import Generation, Results, read_consistent
from twinbus.tables.table_errors import DamagedTableError
from twinbus.tables.table_schemas import ACTIVITY, ANOMALIES, ARRIVALS, BACKLOG_TIME, INPUTS, LATENCY, USAGE, VERDICTS

from .document import LeftOutFile

#: Words of anomalies that are listed, the worst first. Messages in flight are only counted: there may be millions, and
#: nothing is wrong with them.
LISTED = ("lost", "unexpected", "dead_lettered", "duplicated", "recovered")
#: Statuses of files whose rows are in the tables, or in a file that replaces them.
COUNTED = ("read", "replaced")
UNREADABLE, LATE, CLOCK = "unreadable", "late", "clock"

_USAGE = [name for name in USAGE.names if name not in ("client", "bytes")]
_INPUTS = ["number", "day", "file", "status", "reason", "rows"]


@dataclass(frozen=True, slots=True)
class DayFacts:
    """Facts of the whole ledger by day, from the table `usage`."""

    #: Columns `day`, `first_time`, `last_time`, `rows`, `dropped` and `cancelled`.
    table: pa.Table

    @property
    def period(self) -> Period | None:
        """The hours from the first to the last row."""
        return period_of(self.table)

    @property
    def days(self) -> frozenset[date]:
        return days_of(self.table)

    def total(self, name: str) -> int:
        """Return the sum of a column."""
        return pc.sum(self.table[name]).as_py() or 0


@dataclass(frozen=True, slots=True)
class Inputs:
    """The files of the ledger, from the table `_inputs`."""

    files: int
    left_out: tuple[LeftOutFile, ...]
    #: Number of files that were left out, by status.
    statuses: Counter[str]


@dataclass(frozen=True, slots=True)
class WorstAnomalies:
    """The worst messages, and the number of messages for each word."""

    shown: tuple[dict[str, Any], ...]
    words: Counter[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTables:
    """The tables of one generation that a report needs."""

    generation: Generation
    inputs: Inputs
    facts: DayFacts
    #: The period of the report; None if the ledger is empty.
    period: Period | None
    #: Rows of the period only.
    usage: pa.Table
    latency: pa.Table
    #: Rows of all days: an outage may have begun before the period.
    activity: pa.Table
    backlog_time: pa.Table
    #: None if the tables of reconciliation are not current.
    verdicts: pa.Table | None
    arrivals: pa.Table | None
    anomalies: WorstAnomalies | None


def read_tables(
    results: Results,
    choose: Callable[[Period | None], Period | None],
    *,
    since: datetime | None,
    until: datetime | None,
    anomalies: int,
    patience: float | None = None,
    on_wait: Callable[[], None] | None = None,
) -> ReportTables:
    """Read the tables, again from the start if a run changes them meanwhile.

    Args:
        choose: Returns the period of the report for the period of all rows.
        since: Start of the rows that the bill needs.
        until: End of the rows that the bill needs, exclusive.
        anomalies: Number of messages to list.
        patience: As for `read_consistent`.
        on_wait: As for `read_consistent`.

    Raises:
        TablesError: The tables cannot be read.
        ValueError: Raised by `choose`.
    """
    wanted = Period(since or datetime.min.replace(tzinfo=UTC), until or datetime.max.replace(tzinfo=UTC))

    def read(generation: Generation) -> ReportTables:
        inputs = results.read(INPUTS, columns=_INPUTS)
        inputs = inputs.filter(pc.equal(inputs["number"], generation.number))
        facts, usage = _usage(results, wanted)
        _check_days(results, inputs, facts)
        period = choose(facts.period)
        first, last = (period.first_day, period.last_day) if period else (date.max, date.min)
        latency = results.read(LATENCY, since=first, until=last)
        is_reconciled = generation.reconciled
        return ReportTables(
            generation=generation,
            inputs=_inputs(inputs),
            facts=facts,
            period=period,
            usage=hours_within(usage, period) if period else usage,
            latency=hours_within(latency, period) if period else latency,
            activity=results.read(ACTIVITY),
            backlog_time=results.read(BACKLOG_TIME),
            verdicts=results.read(VERDICTS) if is_reconciled else None,
            arrivals=results.read(ARRIVALS) if is_reconciled else None,
            anomalies=_anomalies(results, anomalies) if is_reconciled else None,
        )

    return read_consistent(results, read, patience=patience, on_wait=on_wait)


def _usage(results: Results, wanted: Period) -> tuple[DayFacts, pa.Table]:
    """Return the facts of all days, and the rows of `usage` for the wanted days."""

    def split(part: pa.Table) -> tuple[pa.Table, pa.Table]:
        day = part["day"]
        is_wanted = pc.and_(
            pc.greater_equal(day, pa.scalar(wanted.first_day)), pc.less_equal(day, pa.scalar(wanted.last_day))
        )
        return _day_facts(part), part.filter(is_wanted)

    parts = results.map_files(USAGE, split, columns=_USAGE)
    empty = pa.schema([arrow_schema(USAGE).field(name) for name in _USAGE]).empty_table()
    facts, rows = zip((_day_facts(empty), empty), *parts, strict=True)
    return DayFacts(pa.concat_tables(facts)), pa.concat_tables(rows)


def _day_facts(usage: pa.Table) -> pa.Table:
    is_dropped = pc.equal(usage["operation"], "dropped")
    is_cancelled = pc.and_(pc.equal(usage["operation"], "cancel"), pc.equal(usage["outcome"], "done"))
    slim = pa.table(
        {
            **{name: usage[name] for name in ("day", "first_time", "last_time", "rows")},
            "dropped": pc.if_else(is_dropped, usage["count"], 0),
            "cancelled": pc.if_else(is_cancelled, usage["rows"], 0),
        }
    )
    how = {"first_time": "min", "last_time": "max", "rows": "sum", "dropped": "sum", "cancelled": "sum"}
    sums = slim.group_by("day").aggregate(list(how.items()))
    return sums.select(["day", *(f"{name}_{by}" for name, by in how.items())]).rename_columns(["day", *how])


def _check_days(results: Results, inputs: pa.Table, facts: DayFacts) -> None:
    """Raise if a day with rows is missing in the tables: its partition was removed."""
    days = facts.days
    for day in sorted(
        row["day"] for row in inputs.to_pylist() if row["status"] == "read" and row["rows"] and row["day"] not in days
    ):
        if not days or day > min(days):  # older days may have expired
            raise DamagedTableError(
                f"the results are damaged: {results.place}/usage has no rows of {day}, but the ledger has some;"
                " remove them and run `twinbus pipeline run` again"
            )


def _inputs(table: pa.Table) -> Inputs:
    rows = sorted(table.to_pylist(), key=lambda row: (row["day"] or date.min, row["file"] or ""))
    left_out = [row for row in rows if row["status"] not in COUNTED]
    return Inputs(
        files=sum(row["status"] == "read" for row in rows),
        left_out=tuple(LeftOutFile(_path(row), row["reason"] or row["status"]) for row in left_out),
        statuses=Counter(row["status"] for row in left_out),
    )


def _path(row: dict[str, Any]) -> str:
    if not row["file"]:
        return f"day={row['day']}"
    return f"day={row['day']}/{row['file']}" if row["day"] else str(row["file"])


def _anomalies(results: Results, most: int) -> WorstAnomalies:
    listed = pa.array(LISTED)

    def reduce(part: pa.Table) -> tuple[list[dict[str, Any]], Counter[str]]:
        words = Counter({row["values"]: row["counts"] for row in pc.value_counts(part["word"]).to_pylist()})
        part = part.append_column("place", pc.index_in(part["word"], listed))
        part = part.filter(pc.is_valid(part["place"]))
        order = [("place", "ascending"), ("first_time", "ascending"), ("message_id", "ascending")]
        return _plain(part.take(pc.sort_indices(part, sort_keys=order)[:most])), words

    shown: list[dict[str, Any]] = []
    words: Counter[str] = Counter()
    for rows, counts in results.map_files(ANOMALIES, reduce):
        shown += rows
        words += counts
    places = {word: place for place, word in enumerate(LISTED)}
    worst = heapq.nsmallest(most, shown, key=lambda row: (places[row["word"]], row["first_us"], row["message_id"]))
    return WorstAnomalies(tuple(worst), words)


def _plain(anomalies: pa.Table) -> list[dict[str, Any]]:
    """Rows with times in microseconds since the epoch."""
    for name in ("first", "last"):
        anomalies = anomalies.append_column(f"{name}_us", micros(anomalies[f"{name}_time"]))
    names = ["word", "destination", "message_id", "first_us", "last_us", "sends", "moves", "arrivals", "evidence"]
    rows: list[dict[str, Any]] = anomalies.select(names).to_pylist()
    return rows
