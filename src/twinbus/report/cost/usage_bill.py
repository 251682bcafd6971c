"""Compute the bill of a ledger from the table `usage`. Needs no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from twinbus.ledger.recorder import NamespaceRole, Outcome, Stage
from twinbus.ledger.schema import pa, pc
from twinbus.tables.arrow_schemas import TIMESTAMP, micros
from twinbus.tables.billed_units import COPIED, Usage, checked_subscriptions
from twinbus.tables.code_words import word_of, words_of

from .billing import Bill, Connections, Contract, bill
from .prices import PriceBook

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_HOUR_US = timedelta(hours=1) // _MICROSECOND


@dataclass(frozen=True, slots=True)
class Period:
    """Whole hours from `since` until `until`, in UTC."""

    since: datetime
    until: datetime

    @classmethod
    def of_days(cls, first: date, last: date | None = None) -> Period:
        """Return the period from the first to the last day, inclusive; one day without `last`."""
        days = (last or first) - first + timedelta(days=1)
        since = datetime(first.year, first.month, first.day, tzinfo=UTC)
        return cls(since, since + days)

    @property
    def first_day(self) -> date:
        return self.since.date()

    @property
    def last_day(self) -> date:
        return (self.until - _MICROSECOND).date()

    def within(self, other: Period) -> Period | None:
        """Return the hours that are in both periods; None if there are none."""
        since, until = max(self.since, other.since), min(self.until, other.until)
        return Period(since, until) if since < until else None


def period_of(usage: pa.Table) -> Period | None:
    """Return the hours from the first to the last row of a table `usage`; None if it is empty."""
    first, last = (pc.min_max(micros(usage[name])) for name in ("first_time", "last_time"))
    if not first["min"].is_valid or not last["max"].is_valid:
        return None
    return Period(_hour(first["min"].as_py()), _hour(last["max"].as_py()) + timedelta(hours=1))


def days_of(usage: pa.Table) -> frozenset[date]:
    """Return the days for which a table `usage` has rows."""
    return frozenset(pc.unique(usage["day"]).to_pylist())


def hours_within(table: pa.Table, period: Period) -> pa.Table:
    """Return the rows of a table whose `hour` lies in a period."""
    since, until = (pa.scalar((at - _EPOCH) // _MICROSECOND).cast(TIMESTAMP) for at in (period.since, period.until))
    return table.filter(pc.and_(pc.greater_equal(table["hour"], since), pc.less(table["hour"], until)))


def usages(table: pa.Table, subscriptions: Mapping[str, int] | None = None) -> list[Usage]:
    """Return the billed usage, counted as by `billed_units.usage_of`. Codes of a later release are ignored.

    Args:
        table: The table `usage`.
        subscriptions: Number of subscriptions of each topic.

    Raises:
        ValueError: A number of subscriptions is out of bounds.
    """
    copies = checked_subscriptions(subscriptions or {})
    roles = {word_of(code): code for code in NamespaceRole}
    stages = {word_of(code): code for code in Stage}
    is_known = pc.and_(_is_in(table["namespace"], list(roles)), _is_in(table["stage"], list(stages)))
    table = table.filter(pc.and_(pc.greater(table["units"], 0), is_known))
    slim = pa.table(
        {
            "day": table["day"],
            "namespace": table["namespace"],
            "entity": table["entity"],
            "stage": table["stage"],
            # Copies are made when a message is sent to the topic itself, not to the backlog.
            "is_copied": pc.and_(
                _is_in(table["operation"], words_of(COPIED)),
                pc.equal(table["namespace"], word_of(NamespaceRole.PRIMARY)),
            ),
            "units": table["units"],
            "unanswered": pc.if_else(pc.equal(table["outcome"], word_of(Outcome.UNKNOWN)), table["units"], 0),
            "transferred": table["transferred"],
        }
    )
    sums = slim.group_by(["day", "namespace", "entity", "stage", "is_copied"]).aggregate(
        [("units", "sum"), ("unanswered", "sum"), ("transferred", "sum")]
    )
    counts: dict[tuple[date, NamespaceRole, str, Stage], list[int]] = {}
    for row in sums.to_pylist():
        times = 1 + copies.get(row["entity"].lower(), 0) if row["is_copied"] else 1
        key = (row["day"], roles[row["namespace"]], row["entity"], stages[row["stage"]])
        values = counts.setdefault(key, [0, 0, 0])
        values[0] += row["units_sum"] * times
        values[1] += row["unanswered_sum"] * times
        values[2] += row["transferred_sum"]
    return [Usage(*key, *values) for key, values in sorted(counts.items())]


def cost_of(
    usage: pa.Table,
    book: PriceBook,
    contract: Contract,
    *,
    period: Period | None = None,
    subscriptions: Mapping[str, int] | None = None,
    connections: Connections | None = None,
) -> Bill:
    """Return the bill of a period, or of all hours from the first to the last row.

    Hours before the first row and after the last row, and days without rows, are not charged.

    Args:
        usage: The whole table `usage`.

    Raises:
        ValueError: A number of subscriptions is out of bounds.
        PriceError: The book lacks a tier of the contract.
    """
    known = period_of(usage)
    billed = known if known is None or period is None else known.within(period)
    if billed is None:
        return Bill([], [])
    used = usages(hours_within(usage, billed), subscriptions)
    return bill(
        used, book, contract, since=billed.since, until=billed.until, days=days_of(usage), connections=connections
    )


def _is_in(column: pa.ChunkedArray, words: list[str]) -> pa.ChunkedArray:
    return pc.is_in(column, pa.array(words, pa.string()))


def _hour(us: int) -> datetime:
    """Return the start of the hour of a time."""
    return _EPOCH + timedelta(microseconds=us - us % _HOUR_US)
